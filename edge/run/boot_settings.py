"""Makes the settings of all boots: boot programs, metadata, certificate authorities, and the values in scripts."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from edge.callers import MediumTokens, MetadataTokens, TrustedNetworks, token_keys
from edge.http.context import MetadataSettings
from edge.machines import ReadSecret
from edge.settings.model import StackSettings, Syslog
from ipxe.binaries import BootBinaries
from ipxe.scripts import BootSettings, LogsTo
from tink.files import rereading
from tink.net.addresses import join_host_port
from tink.server import TlsError, TokenKeys, authority_of

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
_LOGS: Final = {Syslog.AUTO: LogsTo.HOOKOS, Syslog.ON: LogsTo.ALL, Syslog.OFF: LogsTo.NOBODY}
MAX_REGISTRIES_BYTES: Final = 256 << 10
"""Maximum size of the registries' authorities that the agent reads (`tink.agent.connection`)."""


def boot_binaries(settings: StackSettings) -> BootBinaries:
    """Return the boot programs; a directory without any is read again on request. Raises BinariesError."""
    edge = settings.edge
    binaries = BootBinaries(edge.ipxe_dir, edge.shim_dir, edge.boot_path, dict(edge.boot_files), waits=True)
    rereading.register(binaries)
    return binaries


def metadata_settings(settings: StackSettings, read_secret: ReadSecret) -> MetadataSettings:
    """Return the settings of the metadata service. Raises KeyFileError."""
    edge = settings.edge
    return MetadataSettings(
        keys=token_keys(settings.data_dir, edge.metadata_token_key, create=True),
        read_secret=read_secret,
        trusted=TrustedNetworks(proxies=edge.trusted_proxies, nat=edge.metadata_nat),
        token_lifetime=edge.metadata_token_lifetime,
        imds_required=edge.imds_required,
    )


class EdgeUrls:
    """The URLs of an edge that BMCs and firmware fetch from (`tink.bmc.boot_operations.BootUrls`)."""

    def __init__(self, settings: StackSettings, address: Callable[[], str], *, has_edge: bool) -> None:
        """`address()` is the address of this host's edge; `has_edge` is True if this process has one.

        Raises KeyFileError.
        """
        self._settings = settings
        self._address = address if has_edge else str
        key = settings.edge.metadata_token_key
        has_key = has_edge or key is not None
        self._tokens = MediumTokens(token_keys(settings.data_dir, key, create=has_edge), 0.0) if has_key else None

    def http_boot(self, mac: str) -> str:
        """Return the URL of the boot program for x86-64; empty without an edge."""
        return f"{base}/ipxe/binary/{mac}/ipxe.efi" if (base := self._base()) else ""

    def medium(self, mac: str) -> str:
        """Return the signed URL of the machine's boot medium; empty without an edge or its key."""
        base = self._base()
        return f"{base}/iso/{self._tokens.mint(mac)}/boot.iso" if base and self._tokens is not None else ""

    def _base(self) -> str:
        if self._settings.bmcs.edge_url:
            return self._settings.bmcs.edge_url.rstrip("/")
        address = self._address()
        return f"http://{join_host_port(address, self._settings.edge.http_port)}" if address else ""


class Authorities:
    """The certificates by which agents trust the gRPC server and registries, from files.

    A file that can't be used is logged, and its last good content stays in use. Without any, machines boot, but their
    agents can't connect or can't pull images. A bad file is read again every RETRY_SECONDS; all files are read again on
    SIGHUP (`tink.files.rereading`). Belongs to the running event loop until `close`.
    """

    def __init__(self, settings: StackSettings, changed: Callable[[], None]) -> None:
        """`changed` is called when the contents of the files have changed."""
        server = settings.server
        self.is_encrypted = server.tls is not None or server.tls_ca is not None
        """True if agents reach the gRPC server by TLS."""
        self._server = server
        self._files = settings.edge.registry_cas
        self._changed = changed
        self._good: dict[str, bytes] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._reported: tuple[str, ...] = ()
        self.tls_ca = b""  # the authority of the gRPC server (PEM); empty if there is none or it can't be used
        self.registries = b""
        """The JSON document with the registries' certificates (PEM) by host[:port]; empty if there is none."""
        self._read()
        rereading.register(self)

    def close(self) -> None:
        """Stop reading files."""
        if self._retry is not None:
            self._retry.cancel()

    def reread(self) -> bool:
        """Read the files now. Return False if one can't be used; the log says why."""
        self._reported = ()
        return self._read_again()

    def _read_again(self) -> bool:
        before = self.tls_ca, self.registries
        is_good = self._read()
        if (self.tls_ca, self.registries) != before:
            log.info("the authorities of the gRPC server and of registries are read again: machines that boot get them")
            self._changed()
        return is_good

    def _read(self) -> bool:
        """Read all files. Return True if all are good."""
        errors: list[str] = []
        self.tls_ca = self._used(errors, "", lambda: authority_of(self._server.tls, self._server.tls_ca))
        self.registries = self._used(errors, "registries", lambda: self._document(errors))
        if tuple(errors) != self._reported:
            # The supervisor of the gRPC server reports the server's own certificate.
            for error in (each for each in errors if not each.startswith("--grpc-tls-cert ")):
                log.error("%s; machines boot without it: put a good one there, it is read again", error)
        self._reported = tuple(errors)
        self.close()
        self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._read_again) if errors else None
        return not errors

    def _used(self, errors: list[str], name: str, make: Callable[[], bytes]) -> bytes:
        """Return the result of `make`, or its last good result if the file can't be used now."""
        try:
            self._good[name] = make()
        except TlsError as error:
            errors.append(str(error))
        return self._good.get(name, b"")

    def _document(self, errors: list[str]) -> bytes:
        """Return the registries' certificates as JSON. Raises TlsError."""
        found: dict[str, str] = {}
        for host, file in self._files:
            flag = f"--registry-ca {host}={file}"
            pem = self._used(errors, flag, partial(authority_of, None, file, flag))
            if pem:
                found[host] = found.get(host, "") + pem.decode()
        # Edges with the same files return the same bytes: an agent may fetch the document from any edge.
        document = json.dumps(found, sort_keys=True).encode() if found else b""
        if len(document) > MAX_REGISTRIES_BYTES:
            raise TlsError(
                f"--registry-ca: all files have more than {MAX_REGISTRIES_BYTES} bytes; name fewer authorities"
            )
        return document


def boot_settings(settings: StackSettings, metadata: MetadataSettings | None, authorities: Authorities) -> BootSettings:
    """Return the settings of the boot scripts. Raises KeyFileError."""
    index = settings.data_dir / "images/index.json"
    edge, server = settings.edge, settings.server
    tokens = MetadataTokens(metadata.keys, metadata.token_lifetime) if metadata is not None else None
    keys = TokenKeys(server.tokens) if server.tokens is not None else None
    return BootSettings(
        http_port=edge.http_port,
        grpc_port=settings.grpc_port,
        grpc_authority=edge.grpc_authority,
        tinkerbell_tls=authorities.is_encrypted,
        tls_ca=authorities.tls_ca,
        registry_authorities=authorities.registries,
        token=(lambda mac: keys.mint(mac, time.time())) if keys is not None else None,
        metadata_token=tokens.mint if tokens is not None and edge.metadata_tokens else None,
        insecure_registries=edge.insecure_registries,
        # One access(2) for each script, because images may arrive at any time. A directory that this user can't read
        # is no error here: the log of the start reports it.
        own_registry=lambda: bool(edge.upstream_edge) or os.access(index, os.F_OK),
        kernel_parameters=edge.kernel_parameters,
        logs=_LOGS[edge.syslog],
    )

"""What machines are served by HTTP and TFTP, put together for the one process that does it, or for each of several.

    inventory, policy, callers -> scripts, files of OSIEs -> HTTP application; TFTP server of each address

`edge.run.serving` has one of these; so has each worker (`edge.run.workers`), which gets what it needs
to know, and its sockets, from the main process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from edge.callers import Callers, MetadataTokens, TrustedNetworks, token_keys
from edge.http import MachineApp, Memory, MetadataSettings
from edge.journey.events import NoteTaker, Recorder
from edge.machines import Artifacts, Inventory, MachineScripts, NetbootPolicy, OsieFiles, OsieLookup, ReadSecret
from edge.neighbour.table import AddressResolution
from edge.peers import Peers
from edge.run.settings import StackSettings, Syslog
from edge.tftp import BootFiles, TftpServer
from ipxe.binaries import BootBinaries
from ipxe.scripts import BootSettings, LogsTo, Origin, Scripts
from tink.files import rereading
from tink.limits.newest import Newest
from tink.limits.once_per import OncePer
from tink.server import TlsError, TokenKeys, authority_of

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
Others = Callable[[str, str], tuple[Origin, ...]]
"""`others(address, mac)`: where a machine that has reached this edge at `address` can go on with another one."""

_LOGS = {Syslog.AUTO: LogsTo.HOOKOS, Syslog.ON: LogsTo.ALL, Syslog.OFF: LogsTo.NOBODY}


_REGISTRIES_LIMIT_BYTES = 256 << 10
"""What the agent reads of such a document (`tink.agent.connection.channel`)."""


class MachineServices:
    """Scripts, files, HTTP application and TFTP servers. `machine_changed` and `callers_changed` are to be called."""

    def __init__(
        self,
        settings: StackSettings,
        exit_stack: AsyncExitStack,
        *,
        inventory: Inventory,
        callers: Callers,
        policy: NetbootPolicy,
        osie: OsieLookup,
        binaries: BootBinaries,
        artifacts: Artifacts | None,
        metadata: MetadataSettings | None,
        record: Recorder,
        take: NoteTaker | None = None,
        ready: Callable[[], str],
        nearest: Callable[[str], str],
        others: Others,
        peers: Peers | None = None,
        memory: Memory | None = None,
    ) -> None:
        """`metadata` None: nothing is served over HTTP. `ready()`: why machines can't be served, `nearest(ip)` the
        address of ours in the network of a machine's one; either empty: none. `memory`: see MachineApp;
        `take`: see MachineScripts. Belongs to the running event loop.

        Raises KeyFileError.
        """
        self._settings = settings
        self._inventory = inventory
        self._callers = callers
        self._policy = policy
        self._binaries = binaries
        self._record = record
        self._authorities = Authorities(settings, self._trust)
        exit_stack.callback(self._authorities.close)
        boot = boot_settings(settings, metadata, self._authorities)
        edge = settings.edge
        self.scripts = MachineScripts(inventory, policy, osie, Scripts(boot), record, edge.default_osie, others, take)
        self._osie_files = OsieFiles(osie, artifacts) if artifacts is not None else None
        self.app: MachineApp | None = None
        if self._osie_files is not None and metadata is not None:
            self.app = MachineApp(
                inventory=inventory,
                callers=callers,
                policy=policy,
                scripts=self.scripts,
                osie_files=self._osie_files,
                binaries=binaries,
                record=record,
                metadata=metadata,
                agent_ca=boot.tls_ca,
                registry_authorities=boot.registry_authorities,
                default_osie=edge.default_osie,
                ready=ready,
                fast_path=edge.fast_path,
                depot=settings.data_dir,
                beyond=artifacts if edge.upstream_edge else None,
                peers=peers,
                ipxe_dir=edge.ipxe_dir,
                nearest=nearest,
                memory=memory,
            )
            exit_stack.callback(self.app.close)

    def _trust(self) -> None:
        """Give machines what the files of the authorities have now."""
        now = self._authorities.tls_ca, self._authorities.registries
        self.scripts.trust(*now)
        if self.app is not None:
            self.app.trust(*now)

    def subscribe(self) -> None:
        """Hear of changes, before there are any."""
        self._inventory.on_change(self.scripts.machine_changed)
        if self.app is not None:
            self._inventory.on_change(self.app.machine_changed)
            self._callers.on_change(self.app.callers_changed)

    def tftp_server(
        self,
        interface: str,
        address: str,
        *,
        sock: socket.socket | None = None,
        processes: int = 1,
        failures: Newest[str, str] | None = None,
        begun: OncePer | None = None,
    ) -> tuple[BootFiles, TftpServer]:
        """For one address of ours, with the `sock` that is open there (None: with one of its own). See TftpServer and
        BootFiles for the rest; the inventory is to call the latter's `machine_changed`."""
        edge = self._settings.edge
        callers = self._callers.answering_on(interface)
        files = BootFiles(
            self._binaries,
            self._inventory,
            callers,
            self._policy,
            address=address,
            scripts=self.scripts,
            osie_files=self._osie_files,
            default_osie=edge.default_osie,
            extra=edge.tftp_dir,
            pi_firmware=edge.rpi_dir,
            resolution=AddressResolution(callers.is_hidden, interface),
            failures=failures,
        )
        server = TftpServer(
            files,
            self._record,
            host=address,
            interface=interface,
            single_port=edge.tftp_single_port,
            sock=sock,
            processes=processes,
            begun=begun,
            is_unresolved=callers.is_unresolved,
        )
        return files, server


def nearest_of(ip: str, places: Iterable[tuple[str, Iterable[IPv4Network]]]) -> str:
    """Which of our addresses, each with the networks of its interface, is in the network of `ip`; empty: none is."""
    try:
        machine = IPv4Address(ip)
    except ValueError:
        return ""
    found = (address for address, networks in places if any(machine in network for network in networks))
    return next(filter(None, found), "")


def boot_binaries(settings: StackSettings) -> BootBinaries:
    """Return the boot programs; a directory without any is read again on request. Raises BinariesError."""
    edge = settings.edge
    binaries = BootBinaries(edge.ipxe_dir, edge.shim_dir, edge.boot_path, dict(edge.boot_files), waits=True)
    rereading.register(binaries)
    return binaries


def metadata_settings(settings: StackSettings, read_secret: ReadSecret) -> MetadataSettings:
    """How metadata is served. Raises KeyFileError."""
    edge = settings.edge
    return MetadataSettings(
        keys=token_keys(settings.data_dir, edge.metadata_token_key, create=True),
        read_secret=read_secret,
        trusted=TrustedNetworks(proxies=edge.trusted_proxies, nat=edge.metadata_nat),
        token_lifetime=edge.metadata_token_lifetime,
        imds_required=edge.imds_required,
    )


class Authorities:
    """The certificates by which agents trust the gRPC server and registries, from files.

    A file that can't be used is logged, and what was good stays. Without that, machines boot, and their agents don't
    connect, or don't pull images. It is read again every RETRY_SECONDS until it is good; all files are read again when
    the process is asked to (`tink.files.rereading`). Belongs to the running event loop until `close`.
    """

    def __init__(self, settings: StackSettings, changed: Callable[[], None]) -> None:
        """`changed` is called when what the files have is something else than before."""
        server = settings.server
        self.is_encrypted = server.tls is not None or server.tls_ca is not None
        """True if agents reach the gRPC server by TLS."""
        self._server = server
        self._files = settings.edge.registry_cas
        self._changed = changed
        self._good: dict[str, bytes] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._reported: tuple[str, ...] = ()
        self.tls_ca = b""
        """The authority of the gRPC server (PEM); empty: there is none, or it can't be used."""
        self.registries = b""
        """The document by which agents trust registries: certificates (PEM) by host[:port]; empty: there is none."""
        self._read()
        rereading.register(self)

    def close(self) -> None:
        """Read no more."""
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
        """Read all files. Return whether all are good."""
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
        """Return what `make` reads, or what it has read before if that can't be used now."""
        try:
            self._good[name] = make()
        except TlsError as error:
            errors.append(str(error))
        return self._good.get(name, b"")

    def _document(self, errors: list[str]) -> bytes:
        """Raises TlsError. Edges with the same files make the same bytes: an agent may have them from any of them."""
        found: dict[str, str] = {}
        for host, file in self._files:
            flag = f"--registry-ca {host}={file}"
            pem = self._used(errors, flag, partial(authority_of, None, file, flag))
            if pem:
                found[host] = found.get(host, "") + pem.decode()
        document = json.dumps(found, sort_keys=True).encode() if found else b""
        if len(document) > _REGISTRIES_LIMIT_BYTES:
            raise TlsError(
                f"--registry-ca: all files have more than {_REGISTRIES_LIMIT_BYTES} bytes; name fewer authorities"
            )
        return document


def boot_settings(settings: StackSettings, metadata: MetadataSettings | None, authorities: Authorities) -> BootSettings:
    """Return what all machines are told. Raises KeyFileError."""
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
        # One access(2) for each script: images may come at any time. A folder that this user can't read is no error,
        # but a line in the log of the start.
        own_registry=lambda: bool(edge.upstream_edge) or os.access(index, os.F_OK),
        kernel_parameters=edge.kernel_parameters,
        logs=_LOGS[edge.syslog],
    )

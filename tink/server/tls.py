"""The gRPC server's certificate and its client authorities, read from files and reloaded when these change.

At the start every file must be usable; the error names the one that is not. Later a file may be half-written or wrong:
then the previous content stays in use, and the error is logged once. gRPC calls `Certificates.credentials` at each
handshake, so a change does not affect open connections.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tink.errors import TinkedgeError
from tink.files.rereading import ChangingFile

log = logging.getLogger(__name__)

_MAX_FILE_BYTES = 1 << 20
ENDS_SOON = timedelta(days=14)
"""Time before its end at which a certificate is reported: later than programs renew it, early enough for people."""


class TlsError(TinkedgeError):
    """A certificate or key can't be used; the message names the file, the flag and what to do."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of the server.

    `certificate`: the server's certificate and the chain to the authority. `key`: its private key. `client_ca`: the
    authorities of the certificates that clients must show; None if clients show none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def by_flag(self) -> dict[str, Path]:
        """Return all files, by the flags that name them."""
        files = {"--grpc-tls-cert": self.certificate, "--grpc-tls-key": self.key}
        return files | ({"--grpc-client-ca": self.client_ca} if self.client_ca is not None else {})


@dataclass(frozen=True, slots=True)
class _Loaded:
    chain: bytes
    key: bytes
    client_ca: bytes | None
    certificate: x509.Certificate
    endings: dict[str, datetime]


class Certificates(ChangingFile):
    """The certificate in use and the authorities in use."""

    _KEPT = "the gRPC server goes on with the certificate that it has"

    def __init__(self, files: TlsFiles, *, now: Callable[[], float] = time.time) -> None:
        """`now` gives Unix seconds. Raises TlsError."""
        super().__init__(files.certificate, time.monotonic)
        self._files = files
        self._now = now
        self._lock = threading.Lock()  # gRPC calls from its own threads
        self._read_first("")
        self._shown = self._loaded

    def reread(self) -> bool:
        """Reload the files now. Return False, keep the previous content and log the reason if they can't be used."""
        with self._lock:
            return super().reread()

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for `add_secure_port`."""
        credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            _configuration(self._loaded), self._changed, self._files.client_ca is not None
        )
        return credentials

    def lacking(self, hosts: Iterable[str]) -> list[str]:
        """Return the `hosts` that the certificate does not name: agents that use them would not trust it."""
        named = set[str]()
        with suppress(x509.ExtensionNotFound):
            extensions = self._loaded.certificate.extensions
            names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            named = {*map(str, names.get_values_for_type(x509.IPAddress)), *names.get_values_for_type(x509.DNSName)}
        return [host for host in hosts if host not in named]

    def endings(self) -> dict[str, datetime]:
        """Return when the certificate and the authorities expire, by flag."""
        return self._loaded.endings

    def say_what_ends(self) -> None:
        """Log what expires within two weeks or has expired. Called once a day."""
        with self._lock:
            self._compare()  # the files may have been renewed since the last handshake
        now = self._now()
        for flag, end in self._loaded.endings.items():
            if story := what_ends(end, now):
                log.log(
                    logging.ERROR if end.timestamp() <= now else logging.WARNING,
                    "%s %s: %s: agents can't connect from then on; put a renewed one there, it is read again",
                    *(flag, self._files.by_flag()[flag], story),
                )

    def _changed(self) -> Any:
        """Return the new configuration if the files changed and are valid; None to keep the old one."""
        with self._lock:
            self.recheck()
            if self._shown is self._loaded:
                return None
            self._shown = self._loaded
            return _configuration(self._loaded)

    def _stat(self) -> tuple[int, ...]:
        states = list[int]()
        for flag, path in self._files.by_flag().items():
            try:
                found = path.stat()
            except OSError as error:
                raise TlsError(f"{flag} {path}: {error.strerror}") from error
            states += (found.st_mtime_ns, found.st_size, found.st_ino)
        return tuple(states)

    def _read(self) -> None:
        self._loaded = _load(self._files, self._now())

    def _after_change(self) -> None:
        log.info("gRPC server: certificate read again from %s", self._files.certificate)


def why_unusable(files: TlsFiles, now: float) -> str:
    """Return why a server can't begin with these files at `now` (Unix seconds), with the remedy; empty if it can."""
    try:
        _load(files, now)
    except TlsError as error:
        return f"{error}; put one there that can be used: it is read again by itself, or by 'systemctl reload tinkedge'"
    return ""


def _configuration(loaded: _Loaded) -> Any:
    return grpc.ssl_server_certificate_configuration([(loaded.key, loaded.chain)], loaded.client_ca)


def what_ends(end: datetime, now: float) -> str:
    """Return a text for operators if `end` is past or within two weeks of `now` (Unix seconds); else empty."""
    left = end - datetime.fromtimestamp(now, UTC)
    if left > ENDS_SOON:
        return ""
    return f"{'ends' if left > timedelta(0) else 'ended'} on {end:%Y-%m-%d %H:%M} UTC"


def endings(files: Mapping[str, Path]) -> Iterator[tuple[str, datetime]]:
    """Yield when the certificates of these files expire, by flag: `--grpc-tls-cert` and the flags of authorities.

    A chain expires with its first certificate. A file of authorities expires with its last one, because an old
    authority stands beside its successor. Raises TlsError.
    """
    for flag, path in files.items():
        yield flag, _end(flag, _certificates(path, flag)[1])


def _end(flag: str, found: Iterable[x509.Certificate]) -> datetime:
    ends = [certificate.not_valid_after_utc for certificate in found]
    return min(ends) if flag == "--grpc-tls-cert" else max(ends)


def authority_of(files: TlsFiles | None, ca: Path | None, flag: str = "--grpc-tls-ca") -> bytes:
    """Return the authority by which clients should verify the server, in PEM.

    It is the content of `ca`, else the last certificate of the server's chain, else empty. `flag` names `ca` in
    messages. Raises TlsError.
    """
    found = list[x509.Certificate]()
    if ca is not None:
        _, found = _certificates(ca, flag)
    elif files is not None:
        found = _certificates(files.certificate, "--grpc-tls-cert")[1][-1:]
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in found)


def _load(files: TlsFiles, now: float) -> _Loaded:
    chain, certificates = _certificates(files.certificate, "--grpc-tls-cert")
    certificate, ends = certificates[0], {"--grpc-tls-cert": _end("--grpc-tls-cert", certificates)}
    key = _read(files.key, "--grpc-tls-key")
    try:
        public_key = serialization.load_pem_private_key(key, None).public_key()
    except TypeError as error:
        raise TlsError(f"--grpc-tls-key {files.key}: is encrypted; give one without a password") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TlsError(
            f"--grpc-tls-key {files.key}: holds no private key in PEM (-----BEGIN PRIVATE KEY-----)"
        ) from error
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if public_key.public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise TlsError(
            f"--grpc-tls-key {files.key}: is not the key of the first certificate in {files.certificate}; "
            "that file begins with the server's own certificate"
        )
    at = datetime.fromtimestamp(now, UTC)
    if at > certificate.not_valid_after_utc:
        raise TlsError(f"--grpc-tls-cert {files.certificate}: ended on {certificate.not_valid_after_utc:%Y-%m-%d}")
    if at < certificate.not_valid_before_utc:
        log.warning("--grpc-tls-cert %s: begins on %s", files.certificate, certificate.not_valid_before_utc)
    client_ca = None
    if files.client_ca is not None:
        client_ca, authorities = _certificates(files.client_ca, "--grpc-client-ca")
        ends["--grpc-client-ca"] = _end("--grpc-client-ca", authorities)
    return _Loaded(chain, key, client_ca, certificate, ends)


def _read(path: Path, flag: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TlsError(f"{flag} {path}: {error.strerror}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise TlsError(f"{flag} {path}: is larger than {_MAX_FILE_BYTES} bytes")
    return content


def _certificates(path: Path, flag: str) -> tuple[bytes, list[x509.Certificate]]:
    """Return the content of a file and its certificates. Raises TlsError."""
    pem = _read(path, flag)
    try:
        return pem, x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise TlsError(f"{flag} {path}: holds no certificates in PEM (-----BEGIN CERTIFICATE-----)") from error

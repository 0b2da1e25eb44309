"""Who may talk to the API server, and how they know that it is the right one: CA, certificate, token, kubeconfig.

Made once in the data directory and kept, so that kubeconfigs that people have copied go on working:

    pki/ca.crt, pki/ca.key    the server's own certificate authority
    token                     the bearer token of the administrator
    kubeconfig                both together with the address, for kubectl

The server's own certificate is made anew at each start and never leaves memory but for a moment. Keys, token and
kubeconfig are readable by their owner only (0600), and are written beside their place and moved into it, so that no
reader sees half a file.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import secrets
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tink.apiserver.errors import ApiServerError
from tink.kube.certificates import builder, common_name, new_key, private_pem

# A host without a battery-backed clock may boot years in the past; its certificates must be valid then, too.
_NOT_BEFORE = datetime(2020, 1, 1, tzinfo=UTC)
_CA_LIFE = timedelta(days=365 * 30)
_LIFE = timedelta(days=365 * 10)

NAME = "tinkedge"
"""Name of cluster, user and context in the kubeconfig."""


@dataclass(frozen=True)
class Authority:
    """The certificate authority of this API server."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def pem(self) -> bytes:
        """Give the certificate, for clients."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:  # mkstemp has made it 0600
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load_authority(directory: Path, now: datetime) -> Authority:
    """Read the certificate authority, or make it. Raises ApiServerError when it cannot be read."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    key_file, certificate_file = directory / "ca.key", directory / "ca.crt"
    if not key_file.exists() or not certificate_file.exists():
        made = _make_authority(now)
        write_private(key_file, private_pem(made.key))
        write_private(certificate_file, made.pem())
        certificate_file.chmod(0o644)
        return made
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    except (ValueError, TypeError) as error:
        raise ApiServerError(f"{directory}: the certificate authority cannot be read: {error}; move it away") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ApiServerError(f"{key_file}: is not an EC key; move {directory} away to begin anew")
    return Authority(key, certificate)


def load_token(path: Path) -> str:
    """Read the administrator's token, or make it: 256 random bits. Raises ApiServerError when the file is empty."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32).encode() + b"\n")
    token = path.read_text().strip()
    if not token:
        raise ApiServerError(f"{path}: holds no token; remove it to get a new one")
    return token


def server_context(authority: Authority, host: str, now: datetime, directory: Path) -> ssl.SSLContext:
    """Make a certificate for `host`, localhost and the loopback addresses, and give the TLS context that shows it."""
    key = new_key()
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    addresses = {ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")}
    try:
        addresses.add(ipaddress.ip_address(host))
    except ValueError:
        if host != "localhost":
            names.append(x509.DNSName(host))
    names += [x509.IPAddress(address) for address in sorted(addresses, key=str)]
    certificate = (
        builder(common_name("tinkedge-apiserver"), authority.certificate.subject, key, _NOT_BEFORE, now + _LIFE)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    # The ssl module reads certificates from files only.
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".serving.") as file:
        file.write(private_pem(key) + certificate.public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)
    return context


def write_kubeconfig(path: Path, url: str, authority: Authority, token: str) -> None:
    """Write the kubeconfig for kubectl."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": NAME,
                "cluster": {
                    "server": url,
                    "certificate-authority-data": base64.b64encode(authority.pem()).decode(),
                },
            }
        ],
        "users": [{"name": NAME, "user": {"token": token}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": "default"}}],
        "current-context": NAME,
    }
    write_private(path, yaml.safe_dump(content, sort_keys=False).encode())


def _make_authority(now: datetime) -> Authority:
    key = new_key()
    name = common_name("tinkedge-ca")
    certificate = (
        builder(name, name, key, _NOT_BEFORE, now + _CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(key, certificate)

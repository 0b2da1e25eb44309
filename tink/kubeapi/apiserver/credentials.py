"""The server's credentials in the data directory: certificate authority, token and kubeconfig.

    pki/ca.crt, pki/ca.key    the server's own certificate authority
    token                     the administrator's bearer token; every line is valid, kubeconfigs contain the first
    kubeconfig                address, authority and token, for kubectl

They are created once, so that copied kubeconfigs keep working. The server's certificate is created at each start and
never written. Keys, token and kubeconfig are readable by their owner only, and written atomically
(`tink.files.private_files`). An invalid file stops the start with advice: a silent replacement would lock out every
client that has a copy.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
import re
import secrets
import shutil
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tink.files import private_files
from tink.kube.certificates import builder, common_name, new_key, private_pem, show
from tink.kubeapi.apiserver.errors import ApiServerError

log = logging.getLogger(__name__)

_CA_LIFE = timedelta(days=365 * 30)
_LIFE = timedelta(days=365 * 10)

_TOKEN = re.compile(rb"[!-~]{1,1000}")
_OUR_TOKEN = 43
"""Length of a token that this module creates: 32 bytes in base64url."""
_LEAST_TOKEN = 32

NAME = "tinkedge"  # Name of cluster, user and context in the kubeconfig


@dataclass(frozen=True)
class Authority:
    """The certificate authority of this API server."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def pem(self) -> bytes:
        """Return the certificate for clients."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def load_authority(directory: Path, now: datetime) -> Authority:
    """Read the certificate authority, or create it. Raises ApiServerError if it is incomplete or invalid, OSError."""
    key_file, certificate_file = directory / "ca.key", directory / "ca.crt"
    there = [file.name for file in (key_file, certificate_file) if file.exists()]
    if not there:
        return _make_authority(directory, now)
    advice = (
        f"restore it from a backup (tinkedge restore), or move {directory} away: the next start creates another one, "
        "and copied kubeconfigs become invalid"
    )
    if len(there) == 1:
        missing = "ca.crt" if there == ["ca.key"] else "ca.key"
        raise ApiServerError(f"{directory / missing} is missing beside {there[0]}: {advice}")
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = str(error).partition(". ")[0]  # the rest of cryptography's text is a URL
        raise ApiServerError(f"{directory}: the certificate authority cannot be read: {why}; {advice}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ApiServerError(f"{key_file}: is not an EC key; {advice}")
    if key.public_key() != certificate.public_key():
        raise ApiServerError(f"{key_file}: is not the key of {certificate_file.name}; {advice}")
    return Authority(key, certificate)


def _make_authority(directory: Path, now: datetime) -> Authority:
    """Create both files or none, even if this process is killed. Raises OSError."""
    key, name = new_key(), common_name("tinkedge-ca")
    certificate = (
        builder(name, name, key, now, _CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    made = Authority(key, certificate)
    beside = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
    try:
        private_files.write(beside / "ca.key", private_pem(made.key))
        private_files.write(beside / "ca.crt", made.pem(), 0o644)
        beside.rename(directory)  # the target may exist if it is empty
        private_files.sync_directory(directory.parent)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return made


def load_token(path: Path) -> str:
    """Read the administrator's token, or create it. Raises ApiServerError if it is invalid, OSError."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = secrets.token_urlsafe(32).encode() + b"\n"
        private_files.create(path, content)
        content = path.read_bytes()
    tokens = [line.strip() for line in content.strip().splitlines() if not line.startswith(b"#")] or [b""]
    for token in tokens:
        wrong = ""
        if not token:
            wrong = "holds no token"
        elif not _TOKEN.fullmatch(token):
            wrong = "is no token: one line of letters, digits and punctuation"
        elif len(token) < _LEAST_TOKEN:
            wrong = f"has a token of {len(token)} characters, fewer than {_LEAST_TOKEN}: it is cut off"
        elif not content.endswith(b"\n") and len(token) != _OUR_TOKEN:
            wrong = "has no end of line: it is cut off"
        if wrong:
            raise ApiServerError(
                f"{path}: {wrong}; restore it, or remove the file to get a new one: copied kubeconfigs become "
                "invalid then"
            )
    return tokens[0].decode("ascii")


def server_context(authority: Authority, hosts: str | Sequence[str], now: datetime) -> ssl.SSLContext:
    """Create a certificate for these names and addresses and for localhost, and return the TLS context."""
    key = new_key()
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    addresses = {ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")}
    for host in dict.fromkeys([hosts] if isinstance(hosts, str) else hosts):
        try:
            addresses.add(ipaddress.ip_address(host))
        except ValueError:
            if host != "localhost":
                names.append(x509.DNSName(host))
    names += [x509.IPAddress(address) for address in sorted(addresses, key=str)]
    certificate = (
        builder(common_name("tinkedge-apiserver"), authority.certificate.subject, key, now, _LIFE)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    show(context, private_pem(key) + certificate.public_bytes(serialization.Encoding.PEM))
    return context


def keep_kubeconfig(path: Path, url: str, authority: Authority, token: str) -> None:
    """Write the kubeconfig for kubectl, unless the present one is for this server. Raises OSError."""
    wanted = _kubeconfig(url, authority.pem(), token)
    try:
        there: Any = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    except FileNotFoundError:
        there = None
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        log.warning("%s: cannot be read, and is replaced: %s", path, " ".join(str(error).split()))
        there = None
    else:
        if all(_named(there, kind) == _named(wanted, kind) for kind in ("clusters", "users")):
            return  # keep the owner's changes, such as the namespace
        log.warning("%s: is not for this server; it is replaced", path)
    private_files.write(path, yaml.safe_dump(wanted, sort_keys=False).encode())


def _named(kubeconfig: Any, kind: str) -> Any:
    entries = kubeconfig.get(kind) if isinstance(kubeconfig, dict) else None
    found = [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    return next((each for each in found if each.get("name") == NAME), None)


def user_kubeconfig(data_dir: Path, url: str, user: str, token: str, namespace: str = "default") -> bytes:
    """Return the kubeconfig of a user who reaches this server at `url`. Raises OSError."""
    authority = (data_dir / "pki" / "ca.crt").read_bytes()
    # With its own name, so that it can be merged with others (KUBECONFIG=a:b).
    host = url.partition("://")[2].rpartition(":")[0].strip("[]") or url
    made = _kubeconfig(
        url, authority, token, cluster=f"{NAME}-{host}", user=f"{user}@{NAME}-{host}", namespace=namespace
    )
    return yaml.safe_dump(made, sort_keys=False).encode()


def _kubeconfig(
    url: str, authority: bytes, token: str, *, cluster: str = NAME, user: str = NAME, namespace: str = "default"
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": cluster,
                "cluster": {"server": url, "certificate-authority-data": base64.b64encode(authority).decode()},
            }
        ],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": user, "context": {"cluster": cluster, "user": user, "namespace": namespace}}],
        "current-context": user,
    }

"""Certificates and kubeconfigs of the test's cluster: one authority, and who needs to be known by it."""

from __future__ import annotations

import base64
import ipaddress
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.interop.authority import AUTHORITY_USAGE

NODE = "node1"
CLIENTS = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
}
"""File -> user and group (kubernetes.io, "PKI certificates and requirements")."""


class Pki:
    """Writes NAME.crt, NAME.key and NAME.kubeconfig into a directory."""

    def __init__(self, directory: Path, address: str, service: str) -> None:
        """`address` is the node's, `service` that of the Service `kubernetes`."""
        directory.mkdir()
        self._directory = directory
        self._now = datetime.now(UTC)
        self._authority = self._key("ca")
        self._issuer = _name("test cluster", "")
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        self._write("ca", self._signed(self._issuer, self._authority, constraints, AUTHORITY_USAGE))
        self._key("service-accounts")
        names = ["localhost", "kubernetes", "kubernetes.default.svc", "127.0.0.1", address, service]
        self._leaf("apiserver", "kube-apiserver", "", names)
        self._leaf("kubelet-client", "kube-apiserver", "system:masters", [])
        for file, (user, group) in CLIENTS.items():
            self._leaf(file, user, group, [address, NODE] if file == "kubelet" else [])
            self._kubeconfig(file, f"https://{address}:6443")

    def _key(self, file: str) -> rsa.RSAPrivateKey:
        key = rsa.generate_private_key(65537, 2048)
        form = serialization.PrivateFormat.TraditionalOpenSSL
        pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        (self._directory / f"{file}.key").write_bytes(pem)
        return key

    def _signed(self, subject: x509.Name, key: rsa.RSAPrivateKey, *extensions: x509.ExtensionType) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - timedelta(days=1))
            .not_valid_after(self._now + timedelta(days=2))
            # Both identifiers, or Python 3.13 trusts no chain (VERIFY_X509_STRICT).
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._authority.public_key()), critical=False
            )
        )
        for extension in extensions:
            builder = builder.add_extension(
                extension, critical=isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
            )
        return builder.sign(self._authority, hashes.SHA256())

    def _leaf(self, file: str, user: str, group: str, names: list[str]) -> None:
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        extensions: list[x509.ExtensionType] = [usage]
        if names:
            extensions.append(x509.SubjectAlternativeName([_general(name) for name in names]))
        self._write(file, self._signed(_name(user, group), self._key(file), *extensions))

    def _write(self, file: str, certificate: x509.Certificate) -> None:
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        (self._directory / f"{file}.crt").write_bytes(pem)

    def _kubeconfig(self, file: str, server: str) -> None:
        def data(name: str) -> str:
            return base64.b64encode((self._directory / name).read_bytes()).decode()

        user = {"client-certificate-data": data(f"{file}.crt"), "client-key-data": data(f"{file}.key")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": data("ca.crt")}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (self._directory / f"{file}.kubeconfig").write_text(json.dumps(config))


def _name(user: str, group: str) -> x509.Name:
    named = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    return x509.Name([*named, *([x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else [])])


def _general(name: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(name)) if name[0].isdigit() else x509.DNSName(name)

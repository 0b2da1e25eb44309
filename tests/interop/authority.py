"""A certificate authority for tests of TLS between agents and servers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

EARLIER = timedelta(hours=-1)
AUTHORITY_USAGE = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""With the key identifiers, what Python 3.13 asks of an authority (VERIFY_X509_STRICT)."""


class Authority:
    """Signs certificates, in files of one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rack authority")])
        self._key = ec.generate_private_key(ec.SECP256R1())
        root = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        root = root.add_extension(AUTHORITY_USAGE, critical=True)
        self._pem = root.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        self.file = self._directory / "authority.crt"
        self.file.write_bytes(self._pem)

    def sign(self, file: str, name: x509.GeneralName, begins: timedelta = EARLIER) -> tuple[Path, Path]:
        """A certificate in that name, for a day and an hour from `begins` on, with those that lead to this authority,
        and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([name])
        builder = self._builder(x509.Name([]), key, begins).add_extension(names, critical=True)
        leaf = builder.sign(self._key, hashes.SHA256())
        chain, private = self._directory / f"{file}.crt", self._directory / f"{file}.key"
        chain.write_bytes(leaf.public_bytes(serialization.Encoding.PEM) + self._pem)
        encoded = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        private.write_bytes(key.private_bytes(*encoded))
        return chain, private

    def _builder(
        self, subject: x509.Name, of: ec.EllipticCurvePrivateKey, begins: timedelta = EARLIER
    ) -> x509.CertificateBuilder:
        begin = datetime.now(UTC) + begins
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(of.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + timedelta(days=1, hours=1))
            # Both identifiers, or Python 3.13 trusts no chain (VERIFY_X509_STRICT).
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(of.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

"""What all our certificates have in common: those of the embedded API server and those of the webhooks.

EC keys on P-256, a random serial number, key usages for TLS alone (RFC 5280 sections 4.1.2 and 4.2.1.3).
"""

from __future__ import annotations

import os
import ssl
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def new_key() -> ec.EllipticCurvePrivateKey:
    """Make a key."""
    return ec.generate_private_key(ec.SECP256R1())


def common_name(name: str) -> x509.Name:
    """Give a distinguished name of a common name alone."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, since: datetime, until: datetime
) -> x509.CertificateBuilder:
    """Begin a certificate for `key`, valid from `since` to `until`."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_key_usage(ca=subject == issuer), critical=True)
    )


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Write a private key in PEM, not encrypted: whoever stores it keeps it for its owner alone."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def show(context: ssl.SSLContext, pem: bytes) -> None:
    """Have `context` show a certificate, with its key in PEM, in every handshake from now on."""
    # The ssl module reads certificates from files only; this one is in memory and has no name.
    handle = os.memfd_create("serving", os.MFD_CLOEXEC)
    try:
        os.fchmod(handle, 0o600)
        os.write(handle, pem)
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    """What a key may do: an authority signs certificates, a server proves that it has the key."""
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )

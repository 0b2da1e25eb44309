"""What all our certificates have in common: those of the embedded API server and those of the webhooks.

EC keys on P-256, a random serial number, key usages for TLS alone (RFC 5280 sections 4.1.2 and 4.2.1.3).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The first moment of every certificate."""
RELEASED: Final = datetime(2026, 11, 1, tzinfo=UTC)
"""The life of a certificate counts from here at the earliest."""

REJECTIONS: Final = (
    "BAD_CERTIFICATE",
    "UNKNOWN_CA",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
)
"""The alerts by which a client rejects a server's certificate (RFC 8446 section 6.2), as OpenSSL names them."""


def validity(now: datetime, life: timedelta) -> tuple[datetime, datetime]:
    """Return the first and the last moment of a certificate that is made at `now`.

    A host without a battery-backed clock may start in 1970 or years ahead, and is corrected later. So each certificate
    begins with Unix time, and its life counts from this release at the earliest. An early beginning does no harm,
    because the key did not exist before.
    """
    return BEGINNING, max(now.astimezone(UTC), RELEASED) + life


def new_key() -> ec.EllipticCurvePrivateKey:
    """Make a key."""
    return ec.generate_private_key(ec.SECP256R1())


def common_name(name: str) -> x509.Name:
    """Give a distinguished name of a common name alone."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    """Begin a certificate for `key` that is valid for `life` from `now` on (`validity`)."""
    since, until = validity(now, life)
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


def watch_handshakes(context: ssl.SSLContext, notify: Callable[[str], None]) -> None:
    """Call `notify` after each handshake of this server: with the client's alert if it rejected the certificate, or "".

    A handshake that fails for another reason is not reported: a port scan says nothing about the certificate.
    """

    class WatchedObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except ssl.SSLError as error:
                reason: Any = error.reason
                if any(each in str(reason) for each in REJECTIONS):
                    notify(str(reason).rpartition("ALERT_")[2].replace("_", " ").lower())
                raise
            notify("")

    context.sslobject_class = WatchedObject


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

"""The common parts of our certificates: those of the embedded API server and those of the webhooks.

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

VALID_FROM: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The start of the validity of every certificate."""
RELEASED: Final = datetime(2026, 11, 1, tzinfo=UTC)
"""The earliest time from which the lifetime of a certificate counts."""

REJECTIONS: Final = (
    "BAD_CERTIFICATE",
    "UNKNOWN_CA",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
)
"""The TLS alerts with which a client rejects a certificate (RFC 8446 section 6.2), by their names in OpenSSL."""


def validity(now: datetime, life: timedelta) -> tuple[datetime, datetime]:
    """Return the start and the end of the validity of a certificate that is made at `now`.

    A host without a battery-backed clock may start in 1970 or years ahead until its time is set. So each certificate is
    valid from the start of Unix time, and its lifetime counts from this release at the earliest. The early start does
    no harm, because the key did not exist before.
    """
    return VALID_FROM, max(now.astimezone(UTC), RELEASED) + life


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def common_name(name: str) -> x509.Name:
    """Return a distinguished name that has only a common name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    """Return the builder of a certificate for `key` that is valid for `life` from `now` on (`validity`)."""
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
    """Return a private key as unencrypted PEM; store it in a file that only its owner can read."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def show(context: ssl.SSLContext, pem: bytes) -> None:
    """Use a certificate, in PEM with its key, in all further handshakes of `context`."""
    # The ssl module reads certificates from files only; this file is in memory and has no name.
    handle = os.memfd_create("serving", os.MFD_CLOEXEC)
    try:
        os.fchmod(handle, 0o600)
        os.write(handle, pem)
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


def watch_handshakes(context: ssl.SSLContext, notify: Callable[[str], None]) -> None:
    """Call `notify` after each handshake of this server.

    It gets the alert of a client that rejected the certificate, or "" after a successful handshake. Handshakes that
    fail for other reasons are not reported, such as those of a port scan.
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
    """Return the key usage of an authority, which signs certificates, or of a server."""
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

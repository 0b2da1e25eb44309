"""The webhooks' own certificate authority, which the API server trusts, and their serving certificates.

The authority signs serving certificates that live for a quarter of a year. The running server renews them after two
thirds of that time. The authority lives for ten years. In its last third a new one is made, and both are in the bundle
until the old one has expired. A bundle is registered before the first certificate that needs it is served, so the API
server trusts every certificate. If the Secret is replaced, all replicas notice at once, register both authorities, and
serve the new certificate after every API server has had time to learn the new authority.

If one process serves on loopback, the authority is in memory and new at each start. Several replicas behind one Service
share it through a Secret. The chart makes that Secret, empty, and the first replica fills it: an account that may
create Secrets could create one that holds the token of another account. Serving keys are never written to a
disk.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import orjson
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tink.api.v1alpha2 import as_mapping
from tink.errors import TinkedgeError
from tink.kube.certificates import builder, common_name, new_key, private_pem
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.resources import SECRET

AUTHORITY_LIFE = timedelta(days=3650)
SERVING_LIFE = timedelta(days=90)
_WATCH_SECONDS = 290
_CLOCKS_DIFFER = timedelta(hours=24)
"""Clocks of replicas, and of one host before and after its correction, may differ by so much without a consequence."""


class CertificateError(TinkedgeError):
    """The authority that is kept can't be used; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Authority:
    """`key` belongs to the first of `certificates`, which signs; the others are trusted until they end."""

    key: ec.EllipticCurvePrivateKey
    certificates: tuple[x509.Certificate, ...]

    def bundle(self) -> bytes:
        """The certificates in PEM: `caBundle` of a webhook's clientConfig."""
        return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in self.certificates)

    def private(self) -> bytes:
        """The key in PEM."""
        return private_pem(self.key)

    def needs_renewal(self, now: datetime) -> bool:
        """Return whether the last third of its life has begun, or its life has not begun at all.

        Earlier releases made authorities that begin a day before they were made, perhaps with a clock that was ahead.
        """
        signer = self.certificates[0]
        return signer.not_valid_before_utc > now or signer.not_valid_after_utc - now < AUTHORITY_LIFE / 3

    @classmethod
    def read(cls, bundle: bytes, private: bytes) -> Authority:
        """From PEM. Raises ValueError."""
        key = serialization.load_pem_private_key(private, None)
        certificates = tuple(x509.load_pem_x509_certificates(bundle))
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError("the key is no EC key")
        if certificates[0].public_key() != key.public_key():
            raise ValueError("the key is not that of the first certificate")
        return cls(key, certificates)


def renewed(old: Authority | None, now: datetime) -> Authority:
    """A new authority that signs from now on, beside those of `old` that have not ended."""
    key = new_key()
    name = common_name("tinkedge webhooks")
    certificate = (
        builder(name, name, key, now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    kept = () if old is None else tuple(c for c in old.certificates if c.not_valid_after_utc > now)
    return Authority(key, (certificate, *kept))


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A certificate for the server with its key, in PEM, and the times at which it was made and is to be replaced."""

    pem: bytes
    made_at: datetime
    renew_at: datetime

    def needs_renewal(self, now: datetime) -> bool:
        """Return whether its time is over, or the clock was ahead when it was made: then it would live for too long."""
        return not self.made_at - _CLOCKS_DIFFER <= now < self.renew_at


def serving(authority: Authority, names: Sequence[str], now: datetime) -> ServingCertificate:
    """A certificate for these host names and addresses."""
    key = new_key()
    subject = common_name("tinkedge webhooks server")
    issuer = authority.certificates[0]
    certificate = (
        builder(subject, issuer.subject, key, now, SERVING_LIFE)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    pem = private_pem(key) + certificate.public_bytes(serialization.Encoding.PEM)
    return ServingCertificate(pem, now, now + SERVING_LIFE * 2 / 3)


class MemoryKeeper:
    """Keeps the authority for one process."""

    def __init__(self) -> None:
        self._authority: Authority | None = None

    async def changed(self) -> None:
        """Never returns: no other process has this authority."""
        await asyncio.Event().wait()

    async def authority(self, now: datetime) -> Authority:
        """Return the current authority; create or renew it if necessary."""
        if self._authority is None or self._authority.needs_renewal(now):
            self._authority = renewed(self._authority, now)
        return self._authority


class SecretKeeper:
    """Keeps it for all replicas behind one Service: the Secret `name` in `namespace`, with ca.crt and ca.key."""

    def __init__(self, client: KubeClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._version = ""

    async def changed(self) -> None:
        """Return when the Secret is another one than was read last, or when the API ends the question.

        Raises ApiError; ValueError for an answer that can't be read.
        """
        watch = self._client.watch(SECRET, self._namespace, self._version, _WATCH_SECONDS, name=self._name)
        async with watch as stream:
            async for line in stream:
                match orjson.loads(line).get("type"):
                    case "ADDED" | "MODIFIED" | "DELETED":
                        return
                    case "ERROR":
                        raise ValueError(f"the watch has ended: {line[:200]!r}")

    async def authority(self, now: datetime) -> Authority:
        """The one to use now; of two replicas that make one at the same moment, the first wins.

        Raises CertificateError, ApiError.
        """
        while True:
            try:
                found = await self._client.get(SECRET, self._name, self._namespace)
            except NotFoundError:
                made, version = renewed(None, now), None
            else:
                self._version = str(as_mapping(found.get("metadata")).get("resourceVersion", ""))
                kept = self._read(found) if found.get("data") else None
                if kept is not None and not kept.needs_renewal(now):
                    return kept
                made, version = renewed(kept, now), found["metadata"]["resourceVersion"]
            try:
                await self._write(made, version)
            except (ConflictError, NotFoundError):
                continue
            return made

    def _read(self, secret: dict[str, object]) -> Authority:
        data = secret.get("data")
        try:
            if not isinstance(data, dict):
                raise TypeError("it has no data")
            return Authority.read(base64.b64decode(data["ca.crt"]), base64.b64decode(data["ca.key"]))
        except (KeyError, TypeError, ValueError) as error:
            where = f"Secret {self._namespace}/{self._name}"
            raise CertificateError(
                f"{where}: no certificate authority: {error}. Empty it to get a new one: kubectl patch secret -n "
                f"{self._namespace} {self._name} -p '{{\"data\":null}}'"
            ) from error

    async def _write(self, authority: Authority, version: str | None) -> None:
        data = {
            "ca.crt": base64.b64encode(authority.bundle()).decode(),
            "ca.key": base64.b64encode(authority.private()).decode(),
        }
        if version is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            secret = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}
            try:
                stored = await self._client.create(SECRET, secret)
            except ApiError as error:
                if error.status != 403:
                    raise
                raise CertificateError(
                    f"Secret {self._namespace}/{self._name} does not exist, and this account may not create it: run "
                    f"`helm upgrade`, or: kubectl create secret generic -n {self._namespace} {self._name}"
                ) from error
        else:
            patch = {"metadata": {"resourceVersion": version}, "data": data}
            stored = await self._client.patch(SECRET, self._name, self._namespace, patch)
        self._version = stored["metadata"]["resourceVersion"]


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)

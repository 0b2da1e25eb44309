"""Encrypted copies of the Secrets that Hardware name (user-data, vendor-data), on the edge's disk: option
`--checkpoint-secrets`.

An installed machine requests its user-data, maybe while the API is away. So the Secrets of all Hardware are read ahead,
slowly, and read again after some hours. A request of a machine is answered from the API whenever that answers, and
from the copy only if it does not.

    DATA_DIR/checkpoint/secrets/<SHA-256 of NAMESPACE/NAME>: a line with the format, a nonce, AES-256-GCM of
    {"known": ..., "cluster": [...], "type": ..., "data": {...}} with NAMESPACE/NAME as the associated data

The encryption key is derived from the key file of the edge: from its first line for new copies, from any line for
reading. No part of a Secret is ever logged, nor the name of its file.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from hegel.instance import SecretReference, SecretUnusableError
from tink.api.annotations import USERDATA_SECRET_ANNOTATION, VENDORDATA_SECRET_ANNOTATION
from tink.api.v1alpha2 import Raw, as_mapping
from tink.files import private_files
from tink.files.key_file import KeyFile
from tink.kube.cache import Index
from tink.kube.client import ApiError, NotFoundError, UnreachableError
from tink.kube.objects import NamespacedName
from tink.limits import OncePer
from tink.timestamps import rfc3339

log = logging.getLogger(__name__)

KEY_FILE: Final = "checkpoint.key"  # name of the key file in the data directory
MAX_SECRETS: Final = 100_000
MAX_SECRET_BYTES: Final = 2 << 20  # Kubernetes' own limit is 1 MiB (before base64)
MAX_BYTES: Final = 1 << 30  # maximum size of all copies together, in bytes

_MAGIC: Final = b"tinkedge-secret/1\n"
_LABEL: Final = "tinkedge checkpoint secrets"
_NONCE_BYTES: Final = 12
_READ_SECONDS: Final = 3.0  # time that the API has to answer if there is a copy. The machine waits for 10 s.
_PAUSE_SECONDS: Final = 0.1  # pause between two Secrets that are read ahead: 100,000 of them take three hours
_REFRESH_SECONDS: Final = 6 * 3600.0
_AWAY_SECONDS: Final = 30.0
_LOG_AGAIN_SECONDS: Final = 600.0
_CLUSTER_CREDENTIALS: Final = frozenset({"kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"})

ReadSecret = Callable[[str, str], Awaitable[Raw]]
"""`read(namespace, name)` returns the Secret from the API. Raises ApiError."""


@dataclass(eq=False)
class SecretStore:
    """The copies of one edge, in a `directory`: `run` reads ahead with `request`; `read` answers machines.

    Once `has_synced()` is True, all Hardware are known, so copies that no Hardware names are removed.
    """

    directory: Path
    key: KeyFile
    request: ReadSecret
    cluster: frozenset[str]
    _: KW_ONLY
    has_synced: Callable[[], bool]
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._named: Index[NamespacedName, NamespacedName] = Index()  # the Secrets that each Hardware names
        self._due: OrderedDict[NamespacedName, float] = OrderedDict()
        """The monotonic time at which each Secret is to be read, the next one first."""
        self._digests: dict[NamespacedName, bytes] = {}  # the SHA-256 of each Secret that this process has written
        self._sizes: dict[NamespacedName, int] = {}
        self._bytes = 0
        self._logged_once = OncePer(_LOG_AGAIN_SECONDS, 64)

    # --- the Secrets that Hardware name -------------------------------------------------------------------------------

    def apply(self, hardware: Raw, _old: Raw | None = None) -> None:
        """Note the Secrets of a Hardware that was added or changed."""
        self._name(NamespacedName.of(hardware), named_by(hardware))

    def remove(self, hardware: Raw) -> None:
        """Forget a deleted Hardware, and each Secret that no other Hardware names."""
        self._name(NamespacedName.of(hardware), ())

    def _name(self, hardware: NamespacedName, secrets: Iterable[NamespacedName]) -> None:
        wanted = list(secrets)
        for gone in self._named.set(hardware, wanted):
            if not self._named.keys(gone):
                self._due.pop(gone, None)
                self._forget(gone)
        for secret in wanted:
            if secret not in self._due and len(self._due) < MAX_SECRETS:
                self._due[secret] = 0.0
                self._due.move_to_end(secret, last=False)

    # --- for machines -------------------------------------------------------------------------------------------------

    async def read(self, namespace: str, name: str) -> Raw:
        """Return a Secret from the API, or its copy if the API does not answer. Raises ApiError."""
        key = NamespacedName(namespace, name)
        has_copy = self._has_copy(key)
        try:
            async with asyncio.timeout(_READ_SECONDS if has_copy else None):
                secret: Raw = await self.request(namespace, name)
        except NotFoundError:
            self._forget(key)
            raise
        except (ApiError, TimeoutError) as error:
            if isinstance(error, ApiError) and not error.is_away:
                raise
            found = await asyncio.to_thread(self._load, key) if has_copy else None
            if found is None:
                raise error if isinstance(error, ApiError) else UnreachableError("it did not answer") from error
            known = rfc3339(found["known"])
            log.info("the API does not answer: serving the copy of Secret %s of %s", key, known)
            return {"type": found["type"], "data": found["data"]}
        if self._named.keys(key):
            await self._write_copy(key, secret)
        return secret

    # --- reading ahead ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read the Secrets that Hardware name, until cancelled."""
        swept = False
        while True:
            if not swept and self.has_synced():
                await asyncio.to_thread(self._sweep, {self._path(key).name for key in self._due})
                swept = True
            await asyncio.sleep(await self.step())

    async def step(self) -> float:
        """Read the next Secret if one is due; return the seconds until the next step."""
        key, due = next(iter(self._due.items()), (None, 0.0))
        if key is None or due > self.monotonic():
            return 1.0
        try:
            async with asyncio.timeout(_AWAY_SECONDS):
                secret: Raw = await self.request(*key)
        except NotFoundError:
            self._forget(key)
        except (ApiError, TimeoutError) as error:
            if not isinstance(error, ApiError) or error.is_away:
                return _AWAY_SECONDS
            if self._logged_once.due(key.namespace, self.monotonic()):
                log.warning("Secret %s can't be copied to the disk: %s", key, error)
        else:
            await self._write_copy(key, secret)
        if key in self._due:
            self._due[key] = self.monotonic() + _REFRESH_SECONDS
            self._due.move_to_end(key)
        return _PAUSE_SECONDS

    # --- on the disk --------------------------------------------------------------------------------------------------

    async def _write_copy(self, key: NamespacedName, secret: Raw) -> None:
        if secret.get("type") in _CLUSTER_CREDENTIALS:
            return
        data = {"type": secret.get("type"), "data": dict(as_mapping(secret.get("data")))}
        plain = orjson.dumps(data, option=orjson.OPT_SORT_KEYS)
        digest = hashlib.sha256(plain).digest()
        size = len(plain) + 512
        if self._digests.get(key) == digest:
            return
        if len(plain) > MAX_SECRET_BYTES or self._bytes - self._sizes.get(key, 0) + size > MAX_BYTES:
            if self._logged_once.due("", self.monotonic()):
                log.warning("Secret %s is not copied to the disk: it is too large, or all copies together are", key)
            return
        try:
            await asyncio.to_thread(self._store, key, data)
        except OSError as error:
            if self._logged_once.due("", self.monotonic()):
                log.warning("Secrets can't be copied to the disk: %s", error.strerror or error)
            return
        self._digests[key] = digest
        self._bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def _path(self, key: NamespacedName) -> Path:
        return self.directory / hashlib.sha256(str(key).encode()).hexdigest()

    def _has_copy(self, key: NamespacedName) -> bool:
        try:
            return self._path(key).exists()
        except OSError:  # the disk may be broken
            return False

    def _store(self, key: NamespacedName, data: Raw) -> None:
        """Encrypt and write a copy, in a thread. Raises OSError."""
        plain = orjson.dumps({"known": self.clock(), "cluster": sorted(self.cluster), **data})
        nonce = os.urandom(_NONCE_BYTES)
        sealed = AESGCM(self.key.derived(_LABEL)[0]).encrypt(nonce, plain, _associated(key))
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_files.write(self._path(key), _MAGIC + nonce + sealed)

    def _load(self, key: NamespacedName) -> Raw | None:
        """Return the copy of a Secret, in a thread; None if it is unusable, which is logged."""
        try:
            with self._path(key).open("rb") as file:
                found = self._decrypt(key, file.read(2 * MAX_SECRET_BYTES))
            if found is not None and frozenset(found["cluster"]) & self.cluster:
                return found
            why = "it is of another cluster" if found else "it is not encrypted with a key of this edge, or damaged"
        except OSError as error:
            why = error.strerror or str(error)
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            why = f"it is damaged ({type(error).__name__})"
        log.error("the copy of Secret %s can't be used: %s", key, why)
        return None

    def _decrypt(self, key: NamespacedName, content: bytes) -> Raw | None:
        if not content.startswith(_MAGIC):
            return None
        nonce, sealed = content[len(_MAGIC) :][:_NONCE_BYTES], content[len(_MAGIC) + _NONCE_BYTES :]
        for each in self.key.derived(_LABEL):
            with suppress(InvalidTag, ValueError):
                found: Raw = orjson.loads(AESGCM(each).decrypt(nonce, sealed, _associated(key)))
                return found
        return None

    def _forget(self, key: NamespacedName) -> None:
        self._digests.pop(key, None)
        self._bytes -= self._sizes.pop(key, 0)
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:
            log.warning("the copy of Secret %s can't be removed: %s", key, error.strerror)

    def _sweep(self, wanted: set[str]) -> None:
        """Remove the copies that no Hardware names."""
        with suppress(OSError):
            for path in self.directory.iterdir():
                if path.name not in wanted:
                    path.unlink()


def named_by(hardware: Raw) -> Iterator[NamespacedName]:
    """Yield the Secrets that a Hardware names; they are in its own namespace."""
    annotations = as_mapping(as_mapping(hardware.get("metadata")).get("annotations"))
    for annotation in (USERDATA_SECRET_ANNOTATION, VENDORDATA_SECRET_ANNOTATION):
        given = annotations.get(annotation)
        with suppress(SecretUnusableError):  # logged when a machine requests it
            if isinstance(given, str):
                yield NamespacedName.of(hardware)._replace(name=SecretReference.parse(given).name)


def _associated(key: NamespacedName) -> bytes:
    return _MAGIC + str(key).encode()

"""The Secrets that Hardware name (user-data, vendor-data), kept encrypted on the edge's disk: `--checkpoint-secrets`.

A machine asks for its user-data when it has been installed, which may be when the API is away. So the Secrets of all
Hardware are read ahead, slowly, and again now and then. One that a machine asks for is read from the API whenever that
answers; only when it does not, what is kept is served.

    DATA_DIR/checkpoint/secrets/<SHA-256 of NAMESPACE/NAME>: a line with the format, a nonce, AES-256-GCM of
    {"known": ..., "cluster": [...], "type": ..., "data": {...}} with NAMESPACE/NAME as the associated data

The key is derived from the edge's, a file in the data directory or one that is given: with a new line on top of it new
ones are encrypted by that, and the others still read. Nothing of a Secret is ever logged, nor the name of its file.
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
from tink.limits.once_per import OncePer
from tink.timestamps import rfc3339

log = logging.getLogger(__name__)

KEY_FILE: Final = "checkpoint.key"
"""Its name in the data directory."""
MAX_SECRETS: Final = 100_000
MAX_SECRET_BYTES: Final = 2 << 20
"""Kubernetes' own limit is 1 MiB (before base64)."""
MAX_BYTES: Final = 1 << 30
"""Of all together, on the disk."""

_MAGIC: Final = b"tinkedge-secret/1\n"
_LABEL: Final = "tinkedge checkpoint secrets"
_NONCE_BYTES: Final = 12
_READ_SECONDS: Final = 3.0
"""How long the API is waited for where there is a copy; who asks waits for ten."""
_PAUSE_SECONDS: Final = 0.1
"""Between two Secrets that are read ahead: 100,000 of them take three hours."""
_AGAIN_SECONDS: Final = 6 * 3600.0
_AWAY_SECONDS: Final = 30.0
_SAY_AGAIN_SECONDS: Final = 600.0
_OF_THE_CLUSTER: Final = frozenset({"kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"})

ReadSecret = Callable[[str, str], Awaitable[Raw]]
"""`read(namespace, name)`: the Secret as the API gives it. Raises ApiError."""


class KeptSecrets:
    """Belongs to one event loop. `run` reads ahead; `read` is for machines."""

    def __init__(
        self,
        directory: Path,
        key: KeyFile,
        read: ReadSecret,
        cluster: frozenset[str],
        *,
        synced: Callable[[], bool],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`synced()`: whether all Hardware is known, so that what none of them names can go."""
        self._directory = directory
        self._key = key
        self._ask = read
        self._cluster = cluster
        self._synced = synced
        self._clock = clock
        self._monotonic = monotonic
        self._named: Index[NamespacedName, NamespacedName] = Index()
        """Secrets by the Hardware that name them."""
        self._due: OrderedDict[NamespacedName, float] = OrderedDict()
        """When each is to be read again, the next one first."""
        self._digests: dict[NamespacedName, bytes] = {}
        """Of what this process has written."""
        self._sizes: dict[NamespacedName, int] = {}
        self._bytes = 0
        self._said = OncePer(_SAY_AGAIN_SECONDS, 64)

    # --- what Hardware name -------------------------------------------------------------------------------------------

    def apply(self, hardware: Raw, _old: Raw | None = None) -> None:
        """A Hardware has come, or changed."""
        self._name(NamespacedName.of(hardware), named_by(hardware))

    def remove(self, hardware: Raw) -> None:
        """A Hardware has gone; with the last that names it, a Secret is forgotten."""
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
        """A Secret as the API has it; as it was known, if the API does not answer. Raises ApiError."""
        key = NamespacedName(namespace, name)
        kept = self._is_kept(key)
        try:
            async with asyncio.timeout(_READ_SECONDS if kept else None):
                secret: Raw = await self._ask(namespace, name)
        except NotFoundError:
            self._forget(key)
            raise
        except (ApiError, TimeoutError) as error:
            if isinstance(error, ApiError) and not error.is_away:
                raise
            found = await asyncio.to_thread(self._load, key) if kept else None
            if found is None:
                raise error if isinstance(error, ApiError) else UnreachableError("it did not answer") from error
            known = rfc3339(found["known"])
            log.info("Secret %s is served as it was known at %s: the API does not answer", key, known)
            return {"type": found["type"], "data": found["data"]}
        if self._named.keys(key):
            await self._keep(key, secret)
        return secret

    # --- ahead --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read ahead what Hardware name, until cancelled."""
        swept = False
        while True:
            if not swept and self._synced():
                await asyncio.to_thread(self._sweep, {self._path(key).name for key in self._due})
                swept = True
            await asyncio.sleep(await self.step())

    async def step(self) -> float:
        """Read the next one, if one is due; in how many seconds to go on."""
        key, due = next(iter(self._due.items()), (None, 0.0))
        if key is None or due > self._monotonic():
            return 1.0
        try:
            async with asyncio.timeout(_AWAY_SECONDS):
                secret: Raw = await self._ask(*key)
        except NotFoundError:
            self._forget(key)
        except (ApiError, TimeoutError) as error:
            if not isinstance(error, ApiError) or error.is_away:
                return _AWAY_SECONDS
            if self._said.due(key.namespace, self._monotonic()):
                log.warning("Secret %s can't be kept: %s", key, error)
        else:
            await self._keep(key, secret)
        if key in self._due:
            self._due[key] = self._monotonic() + _AGAIN_SECONDS
            self._due.move_to_end(key)
        return _PAUSE_SECONDS

    # --- on the disk --------------------------------------------------------------------------------------------------

    async def _keep(self, key: NamespacedName, secret: Raw) -> None:
        if secret.get("type") in _OF_THE_CLUSTER:
            return
        data = {"type": secret.get("type"), "data": dict(as_mapping(secret.get("data")))}
        plain = orjson.dumps(data, option=orjson.OPT_SORT_KEYS)
        digest = hashlib.sha256(plain).digest()
        size = len(plain) + 512
        if self._digests.get(key) == digest:
            return
        if len(plain) > MAX_SECRET_BYTES or self._bytes - self._sizes.get(key, 0) + size > MAX_BYTES:
            if self._said.due("", self._monotonic()):
                log.warning("Secret %s is not kept: it, or all together, is too large", key)
            return
        try:
            await asyncio.to_thread(self._store, key, data)
        except OSError as error:
            if self._said.due("", self._monotonic()):
                log.warning("Secrets can't be kept: %s", error.strerror or error)
            return
        self._digests[key] = digest
        self._bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def _path(self, key: NamespacedName) -> Path:
        return self._directory / hashlib.sha256(str(key).encode()).hexdigest()

    def _is_kept(self, key: NamespacedName) -> bool:
        try:
            return self._path(key).exists()
        except OSError:  # a disk that is broken has nothing
            return False

    def _store(self, key: NamespacedName, data: Raw) -> None:
        """In a thread. Raises OSError."""
        plain = orjson.dumps({"known": self._clock(), "cluster": sorted(self._cluster), **data})
        nonce = os.urandom(_NONCE_BYTES)
        sealed = AESGCM(self._key.derived(_LABEL)[0]).encrypt(nonce, plain, _associated(key))
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_files.write(self._path(key), _MAGIC + nonce + sealed)

    def _load(self, key: NamespacedName) -> Raw | None:
        """What is kept; None if that can't be used, which is said."""
        why = ""
        try:
            with self._path(key).open("rb") as file:
                content = file.read(2 * MAX_SECRET_BYTES)
            found = self._opened(key, content)
            if found is None:
                why = "it is not encrypted with a key of this edge, or damaged"
            elif not frozenset(found["cluster"]) & self._cluster:
                why = "it is of another cluster"
        except OSError as error:
            found, why = None, error.strerror or str(error)
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            found, why = None, f"it is damaged ({type(error).__name__})"
        if why:
            log.error("what is kept of Secret %s can't be used: %s", key, why)
            return None
        return found

    def _opened(self, key: NamespacedName, content: bytes) -> Raw | None:
        if not content.startswith(_MAGIC):
            return None
        nonce, sealed = content[len(_MAGIC) :][:_NONCE_BYTES], content[len(_MAGIC) + _NONCE_BYTES :]
        for each in self._key.derived(_LABEL):
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
            log.warning("what is kept of Secret %s can't be removed: %s", key, error.strerror)

    def _sweep(self, wanted: set[str]) -> None:
        """Remove what no Hardware names any more."""
        with suppress(OSError):
            for path in self._directory.iterdir():
                if path.name not in wanted:
                    path.unlink()


def named_by(hardware: Raw) -> Iterator[NamespacedName]:
    """The Secrets that a Hardware names, of its own namespace."""
    annotations = as_mapping(as_mapping(hardware.get("metadata")).get("annotations"))
    for annotation in (USERDATA_SECRET_ANNOTATION, VENDORDATA_SECRET_ANNOTATION):
        given = annotations.get(annotation)
        with suppress(SecretUnusableError):  # who serves it says so
            if isinstance(given, str):
                yield NamespacedName.of(hardware)._replace(name=SecretReference.parse(given).name)


def _associated(key: NamespacedName) -> bytes:
    return _MAGIC + str(key).encode()

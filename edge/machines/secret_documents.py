"""User-data and vendor-data in Secrets, read from the Kubernetes API when a machine requests them.

Secrets are not watched: an edge should not have the right to list them, and `get` on some of them is enough. A document
is stored for a few seconds, because a machine requests it more than once. A problem is stored for a moment, so that a
machine that retries at once does not burden the API. Concurrent requests for one document share one call. The contents
are never logged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hegel.instance import SecretReference, SecretUnusableError
from hegel.metadata import document_of_secret
from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, NotFoundError, UnreachableError

KEPT_SECONDS, PROBLEM_SECONDS = 10.0, 1.0
"""How long a document is stored, and how long a problem."""
MAX_KEPT_BYTES = 32 << 20
READ_SECONDS = 10.0
"""How long a machine waits for the API; cloud-init tries again."""
MAX_READS = 32
"""Maximum number of concurrent calls of the API, for a rack of machines that boots at the same moment."""
_OVERHEAD_BYTES = 512  # bytes that an entry takes besides its document

_OF_THE_CLUSTER = frozenset({"kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"})
"""Types of Secrets with credentials for the cluster itself, which no machine gets."""

ReadSecret = Callable[[str, str], Awaitable[Raw]]
"""`read(namespace, name)` returns the Secret as the API sends it. Raises ApiError."""


async def no_api(_namespace: str, _name: str) -> Raw:
    """A `ReadSecret` for a server without the Kubernetes API. Raises UnreachableError."""
    raise UnreachableError("there is no Kubernetes API here")


_Key = tuple[str, SecretReference]


@dataclass(frozen=True, slots=True)
class _StoredDocument:
    until: float
    document: bytes
    problem: str = ""

    @property
    def size_bytes(self) -> int:
        return len(self.document) + len(self.problem) + _OVERHEAD_BYTES


class SecretDocuments:
    """The documents by namespace and reference."""

    def __init__(self, read: ReadSecret, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns monotonic seconds. `size_bytes` is the memory of the stored documents."""
        self._read = read
        self._clock = clock
        self._kept: dict[_Key, _StoredDocument] = {}
        self.size_bytes = 0
        self._reading: dict[_Key, asyncio.Task[_StoredDocument]] = {}
        self._turn = asyncio.Semaphore(MAX_READS)

    async def document(self, namespace: str, reference: SecretReference) -> bytes:
        """Return the document to serve. Raises SecretUnusableError, which names Secret, key and remedy."""
        key = namespace, reference
        kept = self._kept.get(key)
        if kept is None or kept.until <= self._clock():
            # All waiting requests share one call, which continues even if they are all cancelled.
            task = self._reading.get(key)
            if task is None:
                task = self._reading[key] = asyncio.create_task(self._fetch(key))
                task.add_done_callback(lambda _: self._reading.pop(key, None))
            kept = await asyncio.shield(task)
        if kept.problem:
            raise SecretUnusableError(kept.problem)
        return kept.document

    async def _fetch(self, key: _Key) -> _StoredDocument:
        namespace, reference = key
        named = f"Secret {namespace}/{reference.name} (key {' or '.join(reference.keys)})"
        document, problem = b"", ""
        try:
            async with asyncio.timeout(READ_SECONDS), self._turn:
                secret = await self._read(namespace, reference.name)
            if secret.get("type") in _OF_THE_CLUSTER:
                problem = f"{named} is of the type {secret['type']}, which no machine gets: name another one"
            else:
                document = document_of_secret(reference, secret)
        except SecretUnusableError as error:
            problem = f"namespace {namespace}: {error}"
        except TimeoutError:
            problem = f"{named} could not be read: the Kubernetes API did not answer within {READ_SECONDS:g} s"
        except NotFoundError:
            problem = f"{named} does not exist: create it"
        except ApiError as error:
            # 403 comes from RBAC: the default roles let no edge read any Secret.
            advice = ": let the edge get it (deploy/rbac-secrets.yaml)" if error.status == 403 else ""
            problem = f"{named} could not be read: {error}{advice}"
        kept = _StoredDocument(self._clock() + (PROBLEM_SECONDS if problem else KEPT_SECONDS), document, problem)
        self._keep(key, kept)
        return kept

    def _keep(self, key: _Key, kept: _StoredDocument) -> None:
        now = self._clock()
        self._drop(key)
        self._kept[key] = kept
        self.size_bytes += kept.size_bytes
        # The oldest comes first.
        while self._kept:
            oldest = next(iter(self._kept))
            if self._kept[oldest].until > now and self.size_bytes <= MAX_KEPT_BYTES:
                break
            self._drop(oldest)

    def _drop(self, key: _Key) -> None:
        old = self._kept.pop(key, None)
        if old is not None:
            self.size_bytes -= old.size_bytes

"""User-data and vendor-data that stand in Secrets: read from the Kubernetes API when a machine asks for them.

They are not watched: to list Secrets is a right that an edge had better not have, and `get` on some is enough. A
document is kept for a few seconds, for a machine asks for it more than once, and a problem for a moment, so that a
machine that tries again at once does not become a burden to the API. Whoever asks meanwhile waits for the same answer.
What is read is never logged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hegel.documents import document_of_secret
from hegel.instance import SecretReference, SecretUnusableError
from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, NotFoundError, UnreachableError

KEPT_SECONDS, PROBLEM_SECONDS = 10.0, 1.0
"""How long a document is kept, and what was wrong with one."""
MAX_KEPT_BYTES = 32 << 20
READ_SECONDS = 10.0
"""How long a machine waits for the API; cloud-init tries again."""
_AT_ONCE = 32
"""Requests to the API at the same time: a rack of machines comes up at the same moment."""
_OVERHEAD_BYTES = 512  # bytes that an entry takes besides its document

_OF_THE_CLUSTER = frozenset({"kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"})
"""Types of Secrets that open the cluster itself: not for machines, whatever a Hardware names."""

ReadSecret = Callable[[str, str], Awaitable[Raw]]
"""`read(namespace, name)`: the Secret as the API gives it. Raises ApiError."""


async def no_api(_namespace: str, _name: str) -> Raw:
    """For a server that runs without the Kubernetes API."""
    raise UnreachableError("there is no Kubernetes API here")


_Key = tuple[str, SecretReference]


@dataclass(frozen=True, slots=True)
class _Kept:
    until: float
    document: bytes
    problem: str = ""


class SecretDocuments:
    """Documents by namespace and reference."""

    def __init__(self, read: ReadSecret, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives monotonic seconds. `size_bytes` is what all that is kept takes."""
        self._read = read
        self._clock = clock
        self._kept: dict[_Key, _Kept] = {}
        self.size_bytes = 0
        self._reading: dict[_Key, asyncio.Task[_Kept]] = {}
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def document(self, namespace: str, reference: SecretReference) -> bytes:
        """The bytes to serve. Raises SecretUnusableError, which names Secret, key and what to do."""
        key = namespace, reference
        kept = self._kept.get(key)
        if kept is None or kept.until <= self._clock():
            kept = await self._shared(key)
        if kept.problem:
            raise SecretUnusableError(kept.problem)
        return kept.document

    async def _shared(self, key: _Key) -> _Kept:
        """One reading for all who wait for it; it goes on if one of them, or all, go away."""
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.create_task(self._fetch(key))
            task.add_done_callback(lambda _: self._reading.pop(key, None))
        return await asyncio.shield(task)

    async def _fetch(self, key: _Key) -> _Kept:
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
            # 403 is RBAC's: the default roles let no edge read any Secret.
            advice = ": let the edge get it (deploy/rbac-secrets.yaml)" if error.status == 403 else ""
            problem = f"{named} could not be read: {error}{advice}"
        kept = _Kept(self._clock() + (PROBLEM_SECONDS if problem else KEPT_SECONDS), document, problem)
        self._keep(key, kept)
        return kept

    def _keep(self, key: _Key, kept: _Kept) -> None:
        now = self._clock()
        self._drop(key)
        self._kept[key] = kept
        self.size_bytes += _size(kept)
        # They stand in the order of their arrival.
        while self._kept:
            oldest = next(iter(self._kept))
            if self._kept[oldest].until > now and self.size_bytes <= MAX_KEPT_BYTES:
                break
            self._drop(oldest)

    def _drop(self, key: _Key) -> None:
        old = self._kept.pop(key, None)
        if old is not None:
            self.size_bytes -= _size(old)


def _size(kept: _Kept) -> int:
    return len(kept.document) + len(kept.problem) + _OVERHEAD_BYTES

"""Objects on their way into the store and out of it: in the version in which they are stored, and never too large."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from tink.kubeapi.apiserver import conversion, errors
from tink.kubeapi.apiserver.requests import Target
from tink.kubeapi.apiserver.resources import Resource
from tink.kubeapi.apiserver.store import Key, MismatchError, Store, Stored, Write
from tink.kubeapi.schema import Raw

MAX_STORED_BYTES = 6 << 20
"""Bytes of an object as it is stored: twice what can be sent. (etcd, where Kubernetes stores them, takes 1.5 MiB.)"""

ORIGIN: Final[ContextVar[object]] = ContextVar("origin", default=None)
"""The origin of the request that the running task handles; None for writes of the server itself.

Each write passes it to the store, and the store passes it to the audit log when the change is on the disk. So no path
of a write can omit it.
"""


class Persistence:
    """The store, for one object at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, key: Key) -> Stored | None:
        """Give an object as it is stored, or None."""
        return await self._store.get(key)

    async def get(self, resource: Resource, target: Target) -> Stored:
        """Give an object as it is stored. Raises StatusError (404)."""
        stored = await self._store.get(key_of(resource, target))
        if stored is None:
            raise errors.not_found(resource.group, resource.plural, target.name)
        return stored

    async def put(self, resource: Resource, key: Key, new: Raw, expected: int, *, dry_run: bool) -> bytes:
        """Store an object that has the version `expected` now, 0 when it must not exist.

        Gives it as text in the version of the request. Raises MismatchError, StatusError.
        """
        converted = await conversion.as_stored(resource, new)
        if dry_run:
            current = await self._store.get(key)
            if (current.version if current else 0) != expected:
                raise MismatchError(current.version if current else 0)
            body = conversion.text(converted, converted["apiVersion"])
            return await self._answer(resource, Stored(key.namespace, key.name, expected, body), new, converted)
        # From here to the store without awaiting: versions go to the store in the order in which they are given out.
        version = self._store.next_version()
        body = conversion.with_version(converted, version)
        if len(body) > MAX_STORED_BYTES:  # step by step, perhaps
            why = f"it would be stored with {len(body)} bytes, managedFields included; the limit is {MAX_STORED_BYTES}"
            raise errors.too_large_object(resource.group, resource.plural, key.name, why)
        await self._store.write(Write(key, version, body, expected, origin=ORIGIN.get()))
        return await self._answer(resource, Stored(key.namespace, key.name, version, body), new, converted)

    @staticmethod
    async def _answer(resource: Resource, stored: Stored, new: Raw, converted: Raw) -> bytes:
        """What was converted is answered as it will be read: with the defaults of the version in which it is stored."""
        return stored.body if converted is new else await served(resource, stored)

    async def remove(self, resource: Resource, key: Key, last: Raw, expected: int) -> None:
        """Remove an object; `last` is what watches see of it. Raises MismatchError, StatusError."""
        converted = await conversion.as_stored(resource, last)
        version = self._store.next_version()
        body = conversion.with_version(converted, version)
        await self._store.write(Write(key, version, body, expected, delete=True, origin=ORIGIN.get()))


def key_of(resource: Resource, target: Target) -> Key:
    """Give the key under which the object that a path names is stored."""
    return Key(resource.key, target.namespace, target.name)


async def served(resource: Resource, stored: Stored) -> bytes:
    """Give a stored object in the version of the request. Raises StatusError."""
    return (await conversion.as_served(resource, [stored]))[0]

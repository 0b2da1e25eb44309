"""A store on its own file, and short functions for writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tink.kubeapi.apiserver.store.object_store import ObjectStore
from tink.kubeapi.apiserver.store.objects import Event, Key, Write

PODS = "/pods"


def key(name: str, namespace: str = "default", resource: str = PODS) -> Key:
    return Key(resource, namespace, name)


def text(version: int, value: Any = None, owners: tuple[str, ...] = ()) -> bytes:
    fields: dict[str, Any] = {"resourceVersion": str(version)}
    if owners:
        fields["ownerReferences"] = [{"uid": uid} for uid in owners]
    return orjson.dumps({"metadata": fields, "value": value})


class OpenedStore:
    """A store, its delivered changes, and short functions for writes."""

    def __init__(self, path: Path, on_commit: Callable[[Event], object] | None = None, **options: Any) -> None:
        self.events: list[Event] = []
        self.store = ObjectStore(path, on_commit or self.events.append, **options)

    async def put(
        self, where: Key, value: Any = None, owners: tuple[str, ...] = (), expected: int | None = None
    ) -> int:
        if expected is None:
            found = await self.store.get(where)
            expected = found.version if found else 0
        version = self.store.next_version()
        await self.store.write(Write(where, version, text(version, value, owners), expected))
        return version

    async def drop(self, where: Key) -> int:
        found = await self.store.get(where)
        version = self.store.next_version()
        last = orjson.loads(found.body)
        last["metadata"]["resourceVersion"] = str(version)
        await self.store.write(Write(where, version, orjson.dumps(last), found.version, delete=True))
        return version

    async def names(self, version: int | None = None, **options: Any) -> list[str]:
        page = await self.store.page(PODS, None, version=version, **options)
        return [item.name for item in page.items]

    async def contents(self) -> dict[str, bytes]:
        """Return the bodies of all objects by name."""
        found: dict[str, bytes] = {}
        after, more = ("", ""), True
        while more:
            page = await self.store.page(PODS, None, after=after)
            found |= {item.name: item.body for item in page.items}
            after, more = (page.items[-1].namespace, page.items[-1].name) if page.items else after, page.more
        return found

    async def seen(self, version: int, namespace: str | None = None) -> list[tuple[str, str]]:
        return [(event.type, event.key.name) for event in await self.store.since(PODS, namespace, version)]


Open = Callable[..., Awaitable[OpenedStore]]


@pytest.fixture
async def open_store(tmp_path: Path) -> AsyncIterator[Open]:
    opened: list[OpenedStore] = []

    async def begin(path: Path = tmp_path, **options: Any) -> OpenedStore:
        made = OpenedStore(path / "state.db" if path.is_dir() else path, **options)
        await made.store.open()
        opened.append(made)
        return made

    yield begin
    for each in opened:
        await each.store.close()

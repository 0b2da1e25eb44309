"""A data directory with a state in it, made by the store itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tink.kubeapi.apiserver.store.object_store import ObjectStore
from tink.kubeapi.apiserver.store.objects import Event, Key, Write

WORKFLOWS = "tinkerbell.org/workflows"
Put = Callable[[str, str, dict[str, Any]], Awaitable[int]]


class Site:
    """A data directory, and the store over it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700, exist_ok=True)
        self.events: list[Event] = []
        self.store = ObjectStore(directory / "state.db", self.events.append)

    async def put(
        self,
        resource: str,
        name: str,
        *,
        annotations: dict[str, str] | None = None,
        finalizers: tuple[str, ...] = (),
        **fields: Any,
    ) -> int:
        key = Key(resource, "default" if "namespaces" not in resource else "", name)
        found = await self.store.get(key)
        version = self.store.next_version()
        metadata: dict[str, Any] = {
            "name": name,
            "namespace": key.namespace,
            "uid": name,
            "resourceVersion": str(version),
        }
        metadata |= {"annotations": annotations} if annotations else {}
        metadata |= {"finalizers": finalizers} if finalizers else {}
        body = orjson.dumps({"metadata": metadata, **fields})
        await self.store.write(Write(key, version, body, found.version if found else 0))
        return version

    async def get(self, resource: str, name: str) -> dict[str, Any]:
        found = await self.store.get(Key(resource, "default", name))
        assert found is not None
        obj: dict[str, Any] = orjson.loads(found.body)
        assert obj["metadata"]["resourceVersion"] == str(found.version)
        return obj

    def add_keys(self) -> None:
        (self.directory / "pki").mkdir(mode=0o700)
        for name in ("token", "pki/ca.key", "pki/ca.crt", "admin-token", "users.json"):
            (self.directory / name).write_text(f"secret {name}\n")
        for name in ("artifacts", "checkpoint", "osie"):
            (self.directory / name).mkdir()
            (self.directory / name / "kernel").write_bytes(b"k" * 3000)


@pytest.fixture
async def site(tmp_path: Path) -> Site:
    made = Site(tmp_path / "data")
    await made.store.open()
    await made.put("/namespaces", "default")
    return made

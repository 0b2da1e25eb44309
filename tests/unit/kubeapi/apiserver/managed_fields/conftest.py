"""One object in the API, with the definition of `schemas.json` and a clock that each write sets."""

from __future__ import annotations

import asyncio
import copy
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from tests.unit.kubeapi.apiserver.conftest import CRDS
from tests.unit.kubeapi.apiserver.managed_fields.record import MEDIA, PATHS, VOLATILE
from tink.kubeapi import LocalApi, LocalSnapshot

Raw = dict[str, Any]
DEFINITION = json.loads((Path(__file__).parent / "schemas.json").read_text())["definition"]


@cache
def _installed() -> LocalSnapshot:
    async def make() -> LocalSnapshot:
        api = LocalApi()
        await api.start()
        await api.request("POST", CRDS, body=DEFINITION)
        return api.snapshot()

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, make()).result()


class Object:
    """The object "x" of a resource, which no write has made yet."""

    def __init__(self, resource: str = "things") -> None:
        self.live: Raw | None = None
        self._resource = resource
        self._now = datetime(2026, 1, 1, tzinfo=UTC)
        self._api = LocalApi(snapshot=_installed(), now=lambda: self._now)

    async def write(self, step: Raw) -> Raw:
        """Do a step of a recording, and return the object. Raises StatusError."""
        if self.live is None:
            await self._api.start()
        verb, sent = step["verb"], copy.deepcopy(step["sent"])
        if verb == "put":
            live = self.live or {"metadata": {}}
            sent["metadata"] |= {key: live["metadata"][key] for key in VOLATILE if key in live["metadata"]}
        path = PATHS[self._resource].format(version=step.get("version") or "v1")
        if verb != "post":
            path += "/x" + (f"/{step['subresource']}" if step.get("subresource") else "")
        query = {"fieldManager": step["manager"], **({"force": "true"} if step.get("force") else {})}
        self._now = datetime.fromisoformat(step.get("now", "2026-01-01T00:00:00Z"))
        method = {"post": "POST", "put": "PUT"}.get(verb, "PATCH")
        self.live = await self._api.request(method, path, query, sent, MEDIA[verb])
        return self.live

    async def do(self, verb: str, manager: str, body: Raw, **more: Any) -> None:
        """Write the object in one line: apiVersion, kind and name are added."""
        if verb in ("post", "apply", "put"):
            head = {"apiVersion": "managed.example/v1", "kind": "Thing"}
            body = {**head, **body, "metadata": {"name": "x", **(body.get("metadata") or {})}}
        await self.write({"verb": verb, "manager": manager, "sent": body, **more})

"""A scripted Kubernetes API on loopback: answers what the test says, and records what was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tink.api.v1alpha2 import Raw
from tink.kube.client import KubeClient

END = object()
"""In a watch's script: the API ends the watch."""
CUT = object()
"""In a watch's script: the connection breaks."""


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class ScriptedApi:
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    lists: list[tuple[int, Any]] = field(default_factory=list)
    """Answers to lists, in turn; the last stays."""
    watches: list[asyncio.Queue[Any]] = field(default_factory=list)
    """One queue of events per watch, in turn; more watches get queues of their own, empty."""
    answer: tuple[int, Any] = (200, {})
    """To everything else."""
    opened: int = 0
    watch_list: bool = False
    """Whether it can begin a watch with all that there is; if not, it says so, and that is not recorded."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of all answers but watches."""

    def script(self, *events: Any) -> None:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        for event in events:
            queue.put_nowait(event)
        self.watches.append(queue)

    def send(self, event: Any) -> None:
        self.watches[self.opened - 1].put_nowait(event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if "sendInitialEvents" in request.query and not self.watch_list:
            return web.json_response({"kind": "Status", "code": 422, "message": "forbidden for watch"}, status=422)
        raw = await request.read()
        body = json.loads(raw) if raw else None
        headers = {key.lower(): value for key, value in request.headers.items()}
        self.asked.append(Asked(request.method, request.path, dict(request.query), headers, body))
        if request.query.get("watch") == "true":
            return await self._watch(request)
        status, content = self.answer
        if self.lists:
            status, content = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(content, bytes):
            return web.Response(status=status, body=content, headers=self.headers)
        return web.json_response(content, status=status, headers=self.headers)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if self.opened == len(self.watches):
            self.script()
        queue = self.watches[self.opened]
        self.opened += 1
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        first = True
        while True:
            event = await queue.get()
            if first and isinstance(event, int):
                return web.json_response({"kind": "Status", "code": event, "message": "no"}, status=event)
            if first:
                await response.prepare(request)
                first = False
            if event is END:
                return response
            if event is CUT:
                assert request.transport is not None
                request.transport.abort()
                return response
            await response.write(event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n")


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    scripted = ScriptedApi()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", scripted.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    scripted.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield scripted
    await runner.cleanup()


@pytest.fixture
def kubeconfig(api: ScriptedApi, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": api.url}}],
                "users": [{"name": "u", "user": {"token": "secret-token"}}],
            }
        )
    )
    return path


@pytest.fixture
async def client(kubeconfig: Path) -> AsyncIterator[KubeClient]:
    connected = await KubeClient.connect(kubeconfig)
    yield connected
    await connected.close()


@pytest.fixture
def markers() -> tuple[object, object]:
    """END and CUT, for watch scripts."""
    return END, CUT


@pytest.fixture
def obj() -> Callable[..., Raw]:
    """`obj(name, version, uid)`: a small object."""

    def make(name: str, version: int, uid: str = "", **fields: Any) -> Raw:
        metadata = {"name": name, "namespace": "d", "uid": uid or name, "resourceVersion": str(version)}
        return {"metadata": metadata, **fields}

    return make

"""A Kubernetes API over HTTP with scripted answers, also such as a real API never gives; it records the requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tink.kube.client import KubeClient

END, CUT = object(), object()
"""Entries of a watch's script: the API ends the watch; the connection breaks."""


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
    answers: list[tuple[int, Any]] = field(default_factory=lambda: [(200, {})])
    """Answers to all requests except watches, in turn; the last one is repeated."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of these answers."""
    watches: list[asyncio.Queue[Any]] = field(default_factory=list)
    """A queue of events for each watch, in turn; further watches get empty queues."""
    opened: int = 0
    watch_list: bool = False
    """True if the API supports `sendInitialEvents`. If not, it rejects such a watch, which is not recorded."""

    def script(self, *events: Any) -> None:
        """Script a further watch: objects, bytes, END, CUT, or, as the first event, the status of an error."""
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
        headers = {key.lower(): value for key, value in request.headers.items()}
        body = json.loads(raw) if raw else None
        self.asked.append(Asked(request.method, request.path, dict(request.query), headers, body))
        if request.query.get("watch") == "true":
            return await self._watch(request)
        status, content = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        return web.Response(status=status, body=content, headers=self.headers)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if self.opened == len(self.watches):
            self.script()
        queue = self.watches[self.opened]
        self.opened += 1
        event = await queue.get()
        if isinstance(event, int):
            return web.json_response({"kind": "Status", "code": event, "message": "no"}, status=event)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while event is not END:
            if event is CUT:
                request.transport.abort()
                return response
            await response.write(event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n")
            event = await queue.get()
        return response


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    scripted = ScriptedApi()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", scripted.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    scripted.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield scripted
    await runner.cleanup()


@pytest.fixture
def kubeconfig(api: ScriptedApi, tmp_path: Path) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": api.url}}],
        "users": [{"name": "u", "user": {"token": "secret-token"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
async def client(kubeconfig: Path) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(kubeconfig) as connected:
        yield connected

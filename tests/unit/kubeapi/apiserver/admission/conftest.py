"""A webhook server over TLS with answers from a test, and a player that runs cases against any API server.

The player drives our server and, for recordings, a real kube-apiserver: see `test_recorded.py`.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests import peer
from tink.kubeapi.apiserver import credentials

Raw = dict[str, Any]
Call = Callable[..., Awaitable[Any]]


class Hooks:
    """A webhook server. `answers` holds its answers by path, `seen` the received requests.

    An answer is a mapping with any of: allowed, patch (a list), response (more fields), review (more or other fields of
    the whole), raw (a text instead), code, type, headers, hang (never answer), drop (close without an answer), convert
    (the name of a conversion).
    """

    def __init__(self, authority: bytes) -> None:
        self.url = self.plain_url = ""
        self.authority = authority
        self.answers: dict[str, Raw] = {}
        self.seen: list[Raw] = []

    @property
    def bundle(self) -> str:
        return base64.b64encode(self.authority).decode()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append({"path": request.raw_path, "headers": dict(request.headers), "body": copy.deepcopy(body)})
        answer = self.answers.get(request.path, {"allowed": True})
        if answer.get("hang"):
            await asyncio.Event().wait()
        if answer.get("drop"):
            request.transport.abort()
        text = answer["raw"] if "raw" in answer else json.dumps(self._review(body, answer))
        headers = {"Content-Type": answer.get("type", "application/json"), **answer.get("headers", {})}
        return web.Response(status=answer.get("code", 200), body=text.encode(), headers=headers)

    @staticmethod
    def _review(asked: Raw, answer: Raw) -> Raw:
        response: Raw = {"uid": asked["request"]["uid"]}
        if asked["kind"] == "ConversionReview":
            response["result"] = {"status": "Success"}
            response["convertedObjects"] = [
                CONVERSIONS[answer.get("convert", "move")](item, asked["request"]["desiredAPIVersion"])
                for item in asked["request"]["objects"]
            ][: answer.get("count", 1000)]
        else:
            response["allowed"] = answer.get("allowed", True)
        if "patch" in answer:
            patch = answer["patch"]
            text = patch if isinstance(patch, str) else json.dumps(patch)
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(text.encode()).decode()}
        response |= answer.get("response", {})
        review = {"apiVersion": asked["apiVersion"], "kind": asked["kind"], "response": response}
        review |= answer.get("review", {})
        return {name: value for name, value in review.items() if value != "absent"}


def _move(obj: Raw, to: str) -> Raw:
    """Convert between v1 with the number spec.size and v2 with spec.dimensions.size."""
    obj = copy.deepcopy(obj)
    spec = obj.get("spec", {})
    if to.endswith("/v2") and "size" in spec:
        spec["dimensions"] = {"size": spec.pop("size")}
    elif to.endswith("/v1") and "dimensions" in spec:
        spec["size"] = spec.pop("dimensions")["size"]
    return obj | {"apiVersion": to}


def _meta(**more: Any) -> Callable[[Raw, str], Raw]:
    def convert(obj: Raw, to: str) -> Raw:
        made = _move(obj, to)
        return made | {"metadata": made["metadata"] | more}

    return convert


CONVERSIONS: dict[str, Callable[[Raw, str], Raw]] = {
    "move": _move,
    "stay": lambda obj, to: obj,
    "kind": lambda obj, to: _move(obj, to) | {"kind": "Circle"},
    "name": _meta(name="other"),
    "namespace": _meta(namespace="other"),
    "uid": _meta(uid="other"),
    "label": _meta(labels={"added": "yes"}, finalizers=["example.org/ignored"]),
    "bad label": _meta(labels={"_added": "yes"}),
    "bad annotation": _meta(annotations={"a b": "yes"}),
    "number label": _meta(labels={"added": 5}),
    "list label": _meta(labels=["a"]),
    "no metadata": lambda obj, to: {k: v for k, v in _move(obj, to).items() if k != "metadata"},
    "text metadata": lambda obj, to: _move(obj, to) | {"metadata": "x"},
    "unknown field": lambda obj, to: _move(obj, to) | {"spec": {"dimensions": {"size": 1, "depth": 2}, "x": 1}},
    "empty": lambda obj, to: {},
}


@asynccontextmanager
async def serve_hooks(directory: Path) -> AsyncIterator[Hooks]:
    """Serve webhooks on a free loopback port, and on another one without TLS."""
    authority = credentials.load_authority(directory / "hooks", datetime.now(UTC))
    context = credentials.server_context(authority, "127.0.0.1", datetime.now(UTC))
    hooks = Hooks(authority.pem())
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/{path:.*}", hooks.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    hooks.url, hooks.plain_url = (f"https://127.0.0.1:{address[1]}" for address in runner.addresses)
    try:
        yield hooks
    finally:
        await runner.cleanup()


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[Hooks]:
    """A webhook server that allows everything."""
    async with serve_hooks(tmp_path) as served:
        yield served


OTHER = base64.b64encode(Path(__file__).with_name("other-ca.pem").read_bytes()).decode()
"""The certificate of an authority that has signed nothing."""

_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_GENERATED = re.compile(r"^(made-)[a-z0-9]{5}$")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Player:
    """Runs a case: configurations, answers and requests. Returns what clients and webhooks received, ready to
    compare."""

    def __init__(self, call: Call, hooks: Hooks) -> None:
        self._call = call
        self._hooks = hooks

    def _filled(self, value: Any) -> Any:
        text = json.dumps(value).replace("$URL", self._hooks.url).replace("$CA", self._hooks.bundle)
        return json.loads(text.replace("$PLAIN", self._hooks.plain_url).replace("$OTHER", OTHER))

    def plain(self, value: Any) -> Any:
        """Remove values that differ between runs."""
        if isinstance(value, dict):
            out = {}
            for name, content in value.items():
                if name == "managedFields" or (name == "uid" and "groups" in value):
                    continue
                out[name] = "RV" if name == "resourceVersion" and content else self.plain(content)
            return out
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        if isinstance(value, str):
            value = value.replace(self._hooks.url.removeprefix("https://"), "HOOKS").replace(self._hooks.bundle, "CA")
            value = value.replace(self._hooks.plain_url.removeprefix("https://"), "PLAIN")
            value = re.sub(r"lookup (\S+) on \S+: no", r"lookup \1: no", _GENERATED.sub(r"\1NAME", value))
            return _UID.sub("UID", _STAMP.sub("TIME", value))
        return value

    async def _settle(self, moments: int = 1) -> None:
        """Wait until a real server has noticed the writes. Ours has when it answers."""
        if os.environ.get("TINKEDGE_ORACLE"):
            await peer.settle(moments)

    async def install(self, kind: str, definition: Raw) -> None:
        """Create a definition or namespace, and wait until it is served."""
        answer = await self._call("POST", kind, self._filled(definition))
        assert answer.status == 201, answer.text
        await self._settle(3)

    async def run(self, case: Raw) -> Raw:
        """Run one case."""
        base = "/apis/admissionregistration.k8s.io/v1/"
        self._hooks.answers = self._filled(case.get("hooks", {}))
        made = []
        for configuration in case.get("configurations", ()):
            path = base + configuration["kind"].lower() + "s"
            answer = await self._call("POST", path, self._filled(configuration))
            assert answer.status == 201, answer.text
            made.append(f"{path}/{configuration['metadata']['name']}")
        if made:
            await self._settle()
        self._hooks.seen = []
        answers = [await self._ask(request) for request in case["requests"]]
        seen = [{"path": self.plain(asked["path"]), "body": self.plain(asked["body"])} for asked in self._hooks.seen]
        if case.get("unordered"):
            seen.sort(key=lambda asked: str(asked["path"]))
        for path in made:
            await self._call("DELETE", path)
        if made:
            await self._settle()
        self._hooks.answers = {}
        for request in case["requests"]:
            if request["method"] == "POST" and "dryRun" not in request.get("query", {}):
                name = request["body"]["metadata"].get("name")
                await self._call("DELETE", f"{request['path']}/{name}")
        return {"answers": answers, "seen": seen}

    async def _ask(self, request: Raw) -> Raw:
        query = request.get("query", {})
        content = request.get("content", "application/json")
        body = self._filled(request["body"]) if "body" in request else None
        try:
            answer = await self._call(request["method"], request["path"], body, content=content, **query)
        except aiohttp.ClientError as error:
            return {"status": 0, "body": type(error).__name__}
        out = {"status": answer.status, "body": self.plain(answer.json)}
        warnings = answer.headers.get("Warning", [])
        return out | ({"warnings": self.plain(warnings)} if warnings else {})


@pytest.fixture
def make_player(hooks: Hooks) -> Callable[[Call], Player]:
    """Return a function that makes players."""
    return lambda call: Player(call, hooks)

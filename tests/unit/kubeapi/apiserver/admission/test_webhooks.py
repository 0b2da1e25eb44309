"""Webhooks beyond the recordings: odd answers, memory, and attacks by a bad server."""

from __future__ import annotations

import asyncio
import base64
import gzip
import itertools
import socket
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.support.virtual_time import elapse, turns
from tests.waiting import until
from tink.kubeapi.apiserver import credentials
from tink.kubeapi.apiserver.admission.review import Attributes
from tink.kubeapi.apiserver.admission.webhooks import MUTATING, VALIDATING, Webhooks
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.http.responses import limited_warnings
from tink.kubeapi.apiserver.resources.registry import Resource
from tink.kubeapi.apiserver.webhooks import WebhookCallError, WebhookClient
from tink.kubeapi.schema import webhooks as conditions_of
from tink.kubeapi.schema.shapes import Raw
from tink.kubeapi.schema.structural import compile_schema, root_schema
from tink.kubeapi.schema.webhooks import ClientConfig, check_client

OPENAPI: Raw = {
    "type": "object",
    "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
}
WIDGETS = Resource("example.org", "v1", "widgets", "Widget", OPENAPI, compile_schema(root_schema(OPENAPI)))


class Server:
    """Stands in for the network: answers by path, and records the requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Raw] = {}
        self.delays: dict[str, float] = {}
        self.under_way = self.most_at_once = 0

    async def post(self, config: ClientConfig, body: bytes, timeout_s: int, limit: int = 0) -> Any:
        path = config.url.rpartition("/")[2]
        self.asked.append(path)
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            if path in self.delays:
                await elapse(self.delays[path])
        finally:
            self.under_way -= 1
        uid = orjson.loads(body)["request"]["uid"]
        response = {"uid": uid, "allowed": True, **self.answers.get(path, {})}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


async def _labels(_: str) -> Mapping[str, str]:
    return {}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def webhooks(server: Server) -> Webhooks:
    return Webhooks(server.post, _labels, lambda resource: [resource])


def configuration(kind: str, *names: str, **more: Any) -> Raw:
    rule = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}
    return {
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": "ours"},
        "webhooks": [
            {
                "name": f"{name}.example.org",
                "clientConfig": {"url": f"https://hooks/{name}"},
                "rules": [rule],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                **more,
            }
            for name in names
        ],
    }


def write(**more: Any) -> Attributes:
    obj = {"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "one"}, "spec": {}}
    made: dict[str, Any] = {"old": None, "options": {"kind": "CreateOptions"}, "dry_run": False, **more}
    return Attributes("CREATE", WIDGETS, "default", "one", "", obj, **made)


async def test_webhooks_are_called_until_their_configuration_is_deleted(webhooks: Webhooks, server: Server) -> None:
    webhooks.set_configuration(VALIDATING, "ours", configuration("Validating", "a"))
    await webhooks.validate(write())
    webhooks.set_configuration(VALIDATING, "ours", configuration("Validating", "b"))
    webhooks.set_configuration(MUTATING, "ours", configuration("Mutating", "m"))
    await webhooks.mutate(write())
    await webhooks.validate(write())
    webhooks.set_configuration(VALIDATING, "ours", None)
    webhooks.set_configuration(VALIDATING, "never there", None)
    await webhooks.validate(write())
    assert server.asked == ["a", "m", "b"]


@pytest.mark.looptime
async def test_validating_webhooks_are_called_at_once_and_the_first_denial_in_order_is_returned(
    webhooks: Webhooks, server: Server
) -> None:
    webhooks.set_configuration(VALIDATING, "ours", configuration("Validating", "a", "b", "c"))
    server.delays = {"a": 0.1, "b": 0.1}
    server.answers = {"b": {"allowed": False}, "c": {"allowed": False}}
    attributes = write()
    with pytest.raises(StatusError, match=r'"b\.example\.org" denied'):
        await webhooks.validate(attributes)
    assert server.most_at_once == 3
    assert sorted(server.asked) == ["a", "b", "c"]


@pytest.mark.looptime
async def test_disconnect_of_the_client_cancels_the_calls(webhooks: Webhooks, server: Server) -> None:
    webhooks.set_configuration(VALIDATING, "ours", configuration("Validating", "a", "b"))
    server.delays = {"a": 60, "b": 60}
    task = asyncio.create_task(webhooks.validate(write()))
    await elapse(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await turns(2)
    assert [each for each in asyncio.all_tasks() if each is not asyncio.current_task()] == []


@pytest.mark.parametrize(("code", "answered"), [(0, 400), (-5, 400), (399, 400), (418, 418), (599, 599), (99999, 500)])
async def test_invalid_http_status_in_a_denial_breaks_nothing(webhooks, server, code, answered) -> None:
    webhooks.set_configuration(VALIDATING, "ours", configuration("Validating", "a"))
    server.answers = {"a": {"allowed": False, "status": {"code": code}}}
    with pytest.raises(StatusError) as caught:
        await webhooks.validate(write())
    assert caught.value.code == answered


@pytest.mark.parametrize(("effects", "asked"), [("None", True), ("NoneOnDryRun", True), ("Some", False), ("", False)])
async def test_dry_run_calls_only_webhooks_without_side_effects(webhooks, server, effects, asked) -> None:
    chosen = configuration("Validating", "a", sideEffects=effects, failurePolicy="Ignore")
    webhooks.set_configuration(VALIDATING, "ours", chosen)
    if asked:
        await webhooks.validate(write(dry_run=True))
    else:
        with pytest.raises(StatusError, match="does not support dry run") as caught:
            await webhooks.validate(write(dry_run=True))
        assert (caught.value.code, caught.value.reason) == (400, "BadRequest")
    assert bool(server.asked) == asked


@pytest.mark.parametrize("name", ["kind", "apiVersion", "metadata"])
async def test_patch_that_makes_another_kind_of_object_is_refused(webhooks, server, name) -> None:
    webhooks.set_configuration(MUTATING, "ours", configuration("Mutating", "a", failurePolicy="Ignore"))
    server.answers = {"a": _patch("replace", f"/{name}", "Other")}
    with pytest.raises(StatusError) as caught:
        await webhooks.mutate(write())
    assert caught.value.code == 500


async def test_change_from_true_to_one_calls_webhooks_again(webhooks: Webhooks, server: Server) -> None:
    webhooks.set_configuration(MUTATING, "ours", configuration("Mutating", "a", "b", reinvocationPolicy="IfNeeded"))
    attributes = write()
    attributes.object["spec"]["x"] = 1
    server.answers = {"b": _patch("replace", "/spec/x", True)}
    await webhooks.mutate(attributes)
    assert server.asked == ["a", "b", "a"]
    assert attributes.object["spec"]["x"] is True


def _patch(*operation: Any) -> Raw:
    """Return an answer with a JSON patch of one operation: op, path, value."""
    text = orjson.dumps([dict(zip(("op", "path", "value"), operation, strict=True))])
    return {"patchType": "JSONPatch", "patch": base64.b64encode(text).decode()}


def test_warnings_are_unique_fit_a_header_and_are_cut_if_too_long_together() -> None:
    assert limited_warnings(["a", "", "b", "a", "c\r\nX-Evil: 1", "\ud800"]) == ["a", "b"]
    assert limited_warnings(["a" * 4096]) == ["a" * 4096]
    assert limited_warnings(["a" * 4096, "b"]) == ["a" * 256, "b"]
    assert sum(map(len, limited_warnings(f"{i:05d}" + "x" * 300 for i in range(1000)))) <= 4096 + 256


async def test_namespace_is_read_once_for_all_webhooks_of_a_write(server: Server) -> None:
    read = []

    async def labels(name: str) -> Mapping[str, str]:
        read.append(name)
        return {"team": "a"}

    webhooks = Webhooks(server.post, labels, lambda resource: [resource])
    selector = {"matchLabels": {"team": "a"}}
    webhooks.set_configuration(MUTATING, "ours", configuration("Mutating", "a", "b", namespaceSelector=selector))
    webhooks.set_configuration(VALIDATING, "ours", configuration("Validating", "c", "d", namespaceSelector=selector))
    attributes = write()
    await webhooks.mutate(attributes)
    await webhooks.validate(attributes)
    assert (read, sorted(server.asked)) == (["default"], ["a", "b", "c", "d"])


async def test_new_definition_of_a_resource_is_matched_again(webhooks: Webhooks, server: Server) -> None:
    selected = configuration("Validating", "a")
    selected["webhooks"][0]["rules"][0]["scope"] = "Cluster"
    webhooks.set_configuration(VALIDATING, "ours", selected)
    await webhooks.validate(write())
    assert server.asked == []
    cluster = Resource("example.org", "v1", "widgets", "Widget", OPENAPI, WIDGETS.compiled, namespaced=False)
    attributes = write()
    attributes.resource, attributes.namespace = cluster, ""
    await webhooks.validate(attributes)
    assert server.asked == ["a"]


async def test_too_expensive_condition_ends_and_counts_as_failed(webhooks, server, monkeypatch) -> None:
    monkeypatch.setattr(conditions_of, "MAX_EACH", 10_000)
    every = "object.items.all(a, object.items.all(b, object.items.all(c, a + b + c < 100000)))"
    conditions = [{"name": "slow", "expression": every}]
    attributes = write()
    attributes.object["items"] = list(range(200))
    webhooks.set_configuration(VALIDATING, "ours", configuration("Validating", "a", matchConditions=conditions))
    with pytest.raises(StatusError, match="actual cost limit exceeded") as caught:
        await webhooks.validate(attributes)
    assert caught.value.code == 403
    ignoring = configuration("Validating", "a", matchConditions=conditions, failurePolicy="Ignore")
    webhooks.set_configuration(VALIDATING, "ours", ignoring)
    await webhooks.validate(attributes)
    assert server.asked == []


async def test_condition_that_no_longer_compiles_refuses_writes_instead_of_stopping_the_server(
    webhooks: Webhooks, server: Server
) -> None:
    conditions = [{"name": "old", "expression": "nothing =="}]
    webhooks.set_configuration(VALIDATING, "ours", configuration("Validating", "a", matchConditions=conditions))
    with pytest.raises(StatusError, match="is forbidden: compilation error: compilation failed: ERROR"):
        await webhooks.validate(write())


# --- calls


@pytest.fixture
async def webhook_client() -> AsyncIterator[WebhookClient]:
    made = WebhookClient()
    yield made
    await made.close()


LIMIT = 60
"""Seconds that a call may take: nothing here takes as long."""
Serve = Callable[[Callable[[web.Request], Awaitable[web.StreamResponse]]], Awaitable[ClientConfig]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Serve a handler over TLS and return its address."""
    runners: list[web.AppRunner] = []
    authority = credentials.load_authority(tmp_path / "hooks", datetime.now(UTC))

    async def begin(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> ClientConfig:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        runners.append(runner)
        context = credentials.server_context(authority, "127.0.0.1", datetime.now(UTC))
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        return ClientConfig(f"https://127.0.0.1:{runner.addresses[0][1]}/x", authority.pem())

    yield begin
    for runner in runners:
        await runner.cleanup()


async def test_connection_is_reused_without_cookies_and_may_be_closed(
    webhook_client: WebhookClient, serve: Serve
) -> None:
    peers, cookies = [], []

    async def answer(request: web.Request) -> web.Response:
        peers.append(request.transport.get_extra_info("peername"))
        cookies.append(request.headers.get("Cookie"))
        response = web.json_response([1])
        response.set_cookie("a", "b")
        return response

    where = await serve(answer)
    named = ClientConfig(where.url.replace("127.0.0.1", "localhost"), where.trust)
    for _ in range(3):
        assert await webhook_client.post(named, b"{}", LIMIT) == [1]
    assert len({*peers}) == 1
    for _ in range(2):
        await webhook_client.close()
    assert await webhook_client.post(named, b"{}", LIMIT) == [1]
    assert cookies == [None] * 4


@pytest.mark.parametrize("packed", [False, True])
async def test_endless_answer_is_cut_off_instead_of_filling_memory(webhook_client, serve, packed) -> None:
    small = gzip.compress(bytes(200_000_000)) if packed else b""

    async def answer(request: web.Request) -> web.StreamResponse:
        if packed:
            return web.Response(body=small, headers={"Content-Encoding": "gzip"})
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"x" * 65536)
        return response

    where = await serve(answer)
    tracemalloc.start()
    try:
        with pytest.raises(WebhookCallError, match="larger than 1000000 bytes"):
            await webhook_client.post(where, b"{}", LIMIT, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("169.254.169.254", "169.254.169.254 is a link-local address"),
        ("[fd00:ec2::254]", "fd00:ec2::254 is a cloud's metadata address"),
        ("0.0.0.0", "0.0.0.0 is an unspecified address"),
    ],
)
async def test_metadata_service_of_a_cloud_is_never_called(webhook_client: WebhookClient, host: str, why: str) -> None:
    """Loopback is allowed, because tinkedge's own webhooks are there."""
    with pytest.raises(WebhookCallError) as caught:
        await webhook_client.post(ClientConfig(f"https://{host}:8443/latest"), b"{}", LIMIT)
    assert str(caught.value) == f'Post "https://{host}:8443/latest?timeout=60s": {why}'


@pytest.mark.parametrize(
    ("status", "header", "times", "seconds", "message", "calls"),
    [
        pytest.param(307, {"Location": "/elsewhere"}, 99, LIMIT, "it answered with HTTP status 307", 1, id="redirect"),
        pytest.param(429, {"Retry-After": "0"}, 2, LIMIT, None, 3, id="asks for a moment"),
        pytest.param(503, {"Retry-After": "0"}, 99, LIMIT, "HTTP status 503", 11, id="asks for it too often"),
        pytest.param(429, {"Retry-After": "3600"}, 99, 1, "no answer within", 1, id="asks for an hour"),
    ],
)
async def test_call_is_retried_only_after_retry_after(
    webhook_client: WebhookClient,
    serve: Serve,
    status: int,
    header: Any,
    times: int,
    seconds: int,
    message: Any,
    calls: int,
) -> None:
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.Response(status=status, headers=header) if len(seen) <= times else web.json_response({"a": 1})

    where = await serve(answer)
    if message is None:
        assert await webhook_client.post(where, b"{}", seconds) == {"a": 1}
    else:
        with pytest.raises(WebhookCallError, match=message):
            await webhook_client.post(where, b"{}", seconds)
    assert seen == ["/x"] * calls


async def test_slow_answer_ends_with_the_timeout(webhook_client: WebhookClient, serve: Serve) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        for tick in itertools.count(loop.time(), 0.05):
            await until(lambda tick=tick: loop.time() > tick)
            await response.write(b" ")
        return response

    with pytest.raises(WebhookCallError, match="no answer within"):
        await webhook_client.post(await serve(answer), b"{}", 1)


async def test_certificate_of_another_host_is_refused(webhook_client, serve, monkeypatch) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    where = await serve(answer)

    async def found(_: str, port: int, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    named = ClientConfig(where.url.replace("127.0.0.1", "other.example.org"), where.trust)
    with pytest.raises(WebhookCallError, match="not valid for 'other"):
        await webhook_client.post(named, b"{}", LIMIT)


def test_configured_urls_and_bundles_are_read_as_in_kubernetes() -> None:
    for url, called in (
        ("https://a.b", "https://a.b/"),
        ("https://a.b:8443/x//y/../z/", "https://a.b:8443/x/z"),
        ("https://[::1]:1/../x", "https://[::1]:1/x"),
    ):
        assert ClientConfig.of({"url": url}).url == called
    for bundle in ("", base64.b64encode(b" \n").decode()):  # nothing but space trusts the system
        assert ClientConfig.of({"url": "https://a.b", "caBundle": bundle}).trust == b""
    for url in ("https://a.b/%zz", "https://a\x00b/", "https://[::1/", "https://a<b/"):  # Go cannot parse these
        (error,) = check_client({"url": url}, "clientConfig")
        assert str(error).startswith("clientConfig.url: Required value: url must be a valid URL;")

"""Bad input of every kind over HTTPS: never a 500, never a hang, and nothing stored that the schema forbids.

Hypothesis makes bodies, queries, paths and headers, from the schema of a resource and at random. Requests that no HTTP
library would send go over a bare socket. After each test the server must still answer, and every stored object must fit
the schema by a second, simpler check.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yarl import URL

from tests.waiting import PATIENCE_SECONDS
from tink.kubeapi import ApiServer
from tink.kubeapi.apiserver.media import MAX_BODY

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/conf.test/v1/namespaces/default/widgets"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
CRDS = Path(__file__).parents[1] / "unit" / "kubeapi" / "apiserver" / "conformance" / "crds.yaml"
_QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
_EXAMPLES = settings(max_examples=60, suppress_health_check=_QUIET)


class Running:
    """A server in a thread of its own, and a client for it. One for all tests: a broken server breaks them all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.run(self._start)

    async def _start(self) -> None:
        self._server = ApiServer(self._directory, port=0)
        await self._server.start()
        content = yaml.load(self._server.kubeconfig.read_text(), Loader=yaml.CSafeLoader)
        authority = base64.b64decode(content["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
        self.url = URL(content["clusters"][0]["cluster"]["server"])
        self.token = content["users"][0]["user"]["token"]
        self.context = ssl.create_default_context(cadata=authority)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self.context), timeout=aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
        )
        for definition in yaml.load_all(CRDS.read_text(), Loader=yaml.CSafeLoader):
            status, text = await self.request("POST", DEFINITIONS, json.dumps(definition).encode())
            assert status == 201, text

    def run(self, make: Callable[[], Awaitable[Any]]) -> Any:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(make(), self._loop).result()  # type: ignore[arg-type]

    async def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **(headers or {})}
        url = URL(f"{self.url}{path}", encoded=True)
        async with self._session.request(
            method, url, data=None if body is None else io.BytesIO(body), headers=sent
        ) as answer:
            return answer.status, await answer.read()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Send a request; return the status and the body as JSON. Fails if the server is slow or at fault."""
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        status, text = self.run(lambda: self.request(method, path, raw, named))
        assert status < 500 or status == 504, text
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def raw(self, sent: bytes, wait_s: float = 5.0) -> bytes:
        """Send bytes over a new connection; return the answer until the connection is closed or quiet."""

        async def talk() -> bytes:
            reader, writer = await asyncio.open_connection(self.url.host, self.url.port, ssl=self.context)
            got = b""
            try:
                writer.write(sent)
                await writer.drain()
                async with asyncio.timeout(wait_s):
                    while part := await reader.read(65536):
                        got += part
            except (TimeoutError, ConnectionError):
                pass
            finally:
                writer.close()
            return got

        return bytes(self.run(talk))

    def stop(self) -> None:
        async def end() -> None:
            await self._session.close()
            await self._server.stop()

        self.run(end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("fuzz"))
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def _still_answers(server: Running) -> Iterator[None]:
    yield
    assert server.ask("GET", "/readyz")[0] == 200
    status, listed = server.ask("GET", WIDGETS)
    assert status == 200
    for item in listed["items"]:
        assert list(wrong(SCHEMA, item, "")) == []


# --- a second opinion on what is stored ---

DEFINED = next(iter(yaml.load_all(CRDS.read_text(), Loader=yaml.CSafeLoader)))
SCHEMA = DEFINED["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
_NUMBER = (int, float)
_PYTHON = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": _NUMBER, "number": _NUMBER}


def wrong(schema: dict[str, Any], value: Any, at: str) -> Iterator[str]:
    """Return the errors of a stored value by its schema: types, missing and unknown fields, enumerations, bounds,
    sizes."""
    if value is None and (schema.get("nullable") or schema.get("x-kubernetes-preserve-unknown-fields")):
        return
    kind = schema.get("type")
    if kind and (not isinstance(value, _PYTHON[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield f"{at}: {value!r} is no {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is not in the enumeration"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and not int(schema.get("minimum", value)) <= value <= schema.get("maximum", value):
        yield f"{at}: {value!r} is out of bounds"
    if isinstance(value, str | list | dict):
        least = max(schema.get(f"min{name}", 0) for name in ("Length", "Items", "Properties"))
        most = min(schema.get(f"max{name}", len(value)) for name in ("Length", "Items", "Properties"))
        if not least <= len(value) <= most:
            yield f"{at}: {value!r} has a wrong size"
    if isinstance(value, dict):
        properties, extra = schema.get("properties", {}), schema.get("additionalProperties")
        known = {*properties, *(() if at else ("apiVersion", "kind", "metadata"))}
        for name, item in value.items():
            child = properties.get(name, extra)
            if child is not None:
                yield from wrong(child, item, f"{at}.{name}")
            elif name not in known and not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{at}: {name} is unknown"
        yield from (f"{at}: {name} is missing" for name in schema.get("required", ()) if name not in value)
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from wrong(schema["items"], item, f"{at}[{index}]")


# --- what hypothesis makes ---

_WORDS = ["abc", "2020-01-01T00:00:00Z", "red", "10.0.0.1", "YQ==", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"]
_NUMBERS = st.integers(-(2**65), 2**65) | st.floats(allow_nan=False, allow_infinity=False)
_SCALARS = st.none() | st.booleans() | _NUMBERS | st.text(max_size=12) | st.sampled_from(_WORDS)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


def fitting(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Draw values that a schema may or may not forbid: mostly of its type, sometimes anything."""
    match schema.get("type"):
        case "object":
            named = {name: fitting(child) for name, child in schema.get("properties", {}).items()}
            made: st.SearchStrategy[Any] = st.dictionaries(
                st.sampled_from(sorted(named) or ["x"]), st.none(), max_size=4
            ).flatmap(lambda chosen: st.fixed_dictionaries({name: named.get(name, _SCALARS) for name in chosen}))
        case "array":
            made = st.lists(fitting(schema.get("items", {})), max_size=4)
        case "string":
            made = st.sampled_from(schema["enum"]) if "enum" in schema else st.text(max_size=6)
        case "integer" | "number":
            made = st.integers(-20, 20) | st.floats(-20, 20)
        case "boolean":
            made = st.booleans()
        case _:
            made = _JSON
    return st.one_of(made, made, made, made, _JSON)


_SPEC = fitting(SCHEMA["properties"]["spec"])
_METADATA = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text("ab-.A/é", max_size=5) | _SCALARS,
        "generateName": st.text("ab-", max_size=5),
        "labels": st.dictionaries(st.text(max_size=4), st.text(max_size=4) | _SCALARS, max_size=2) | _JSON,
        "finalizers": st.lists(st.text(max_size=5), max_size=2) | _JSON,
        "ownerReferences": st.lists(_JSON, max_size=2) | _JSON,
        "namespace": st.sampled_from(["default", "other", ""]) | _SCALARS,
        **dict.fromkeys(("annotations", "managedFields"), _JSON),
        **dict.fromkeys(("resourceVersion", "uid", "creationTimestamp", "deletionTimestamp", "generation"), _SCALARS),
    },
)
_NAMES = """
dryRun fieldValidation fieldManager force limit continue resourceVersion labelSelector resourceVersionMatch
fieldSelector timeoutSeconds propagationPolicy pretty includeObject gracePeriodSeconds orphanDependents
allowWatchBookmarks sendInitialEvents
"""
_VALUES = ["", "0", "1", "-1", "true", "All", "Strict", "Exact", "99999999999999999999", "a=b", "a in (b"]
_OPTIONS = st.dictionaries(st.sampled_from(_NAMES.split()), st.sampled_from(_VALUES) | st.text(max_size=8), max_size=4)


def query(options: dict[str, str]) -> str:
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())


@_EXAMPLES
@given(metadata=_METADATA, spec=_SPEC, options=_OPTIONS, extra=st.dictionaries(st.text(max_size=5), _JSON, max_size=2))
def test_any_object_is_stored_correctly_or_refused(
    server: Running, metadata: Any, spec: Any, options: dict[str, str], extra: dict[str, Any]
) -> None:
    body = extra | {"apiVersion": "conf.test/v1", "kind": "Widget", "metadata": metadata, "spec": spec}
    status, answer = server.ask("POST", f"{WIDGETS}?{query(options)}", body)
    assert status in (201, 400, 404, 409, 413, 422), answer
    if status == 201:
        assert list(wrong(SCHEMA, answer, "")) == []
        server.ask("DELETE", f"{WIDGETS}/{quote(answer['metadata']['name'], safe='')}")


_OPERATIONS = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add", "remove", "replace", "test", "move", "copy", "x"]),
        "path": st.sampled_from(["/spec", "/metadata/labels", "/spec/atomic/-", "", "/kind", "/x~1y"])
        | st.text("/ab01-~", max_size=6),
    },
    optional={"value": _JSON, "from": st.sampled_from(["/spec", "/metadata", "/spec/atomic/0", ""])},
)
_MERGED = st.fixed_dictionaries({"spec": _SPEC}, optional={"metadata": _METADATA, "status": _JSON})


@_EXAMPLES
@given(
    change=st.one_of(_MERGED, st.lists(_OPERATIONS, max_size=4), _JSON),
    kind=st.sampled_from(["merge-patch+json", "json-patch+json", "apply-patch+yaml", "strategic-merge-patch+json"]),
    subresource=st.sampled_from(["", "/status"]),
    options=_OPTIONS,
)
def test_any_patch_leaves_a_valid_object(
    server: Running, change: Any, kind: str, subresource: str, options: dict[str, str]
) -> None:
    whole = {"apiVersion": "conf.test/v1", "kind": "Widget", "metadata": {"name": "patched"}}
    server.ask("POST", WIDGETS, {**whole, "spec": {"atomic": ["a"]}})
    if kind.startswith("apply") and isinstance(change, dict):
        change = whole | change
    path = f"{WIDGETS}/patched{subresource}?{query(options)}"
    raw = json.dumps(change).encode()
    status, text = server.run(lambda: server.request("PATCH", path, raw, {"Content-Type": f"application/{kind}"}))
    # Of a configuration that does not fit the schema, Kubernetes' apply says 500 (the words are those of its library).
    assert status < 500 or (status == 500 and b"typed patch object" in text) or status == 504, text
    status, answer = server.ask("GET", f"{WIDGETS}/patched")
    assert status in (200, 404)
    if status == 200:
        assert list(wrong(SCHEMA, answer, "")) == []
        free = {"metadata": {"finalizers": None}}
        server.ask("PATCH", f"{WIDGETS}/patched", free, Content_Type="application/merge-patch+json")
        server.ask("DELETE", f"{WIDGETS}/patched")


@_EXAMPLES
@given(
    kind=st.sampled_from(["application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "text/x", ""]),
    body=st.binary(max_size=60) | st.text("{}[]:,\"' ab\n-&*!|>%@0123.e\\u", max_size=40).map(str.encode),
    path=st.sampled_from([WIDGETS, CONFIG_MAPS, DEFINITIONS, f"{WIDGETS}/x", "/api/v1/namespaces"]),
    method=st.sampled_from(["POST", "PUT", "PATCH", "DELETE"]),
)
def test_any_bytes_as_a_body_are_refused(server: Running, kind: str, body: bytes, path: str, method: str) -> None:
    if method == "DELETE" and "/x" not in path:
        return
    status, answer = server.ask(method, path, body, Content_Type=kind)
    assert 400 <= status < 500, answer


_PARTS = ["api", "apis", "v1", "conf.test", "namespaces", "default", "widgets", "status", "openapi", ".."]


@_EXAMPLES
@given(
    path=st.lists(st.sampled_from(_PARTS) | st.text(max_size=5), max_size=7),
    options=_OPTIONS,
    accept=st.sampled_from(["*/*", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/yaml", "x", ""])
    | st.text("*/;,=aqv.01", max_size=20),
)
def test_any_path_and_query_has_an_answer(
    server: Running, path: list[str], options: dict[str, str], accept: str
) -> None:
    where = "/" + "/".join(quote(part, safe="") for part in path)
    for url in (where, WIDGETS):
        status, _ = server.ask("GET", f"{url}?{query(options)}", Accept=accept)
        assert 200 <= status < 500 or status == 504, url


@_EXAMPLES
@given(options=_OPTIONS)
def test_any_watch_ends(server: Running, options: dict[str, str]) -> None:
    options |= {"timeoutSeconds": "1", "watch": "1", "labelSelector": options.get("labelSelector", "none=here")}
    status, _ = server.run(lambda: server.request("HEAD", f"{WIDGETS}?{query(options)}"))
    assert status < 500


def definition(plural: str, kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    versions = [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]
    names = {"plural": plural, "kind": kind}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.fuzz.test"},
        "spec": {"group": "fuzz.test", "scope": "Namespaced", "names": names, "versions": versions},
    }


@settings(_EXAMPLES, max_examples=40)
@given(
    schema=st.recursive(
        st.fixed_dictionaries({}, optional={"type": st.sampled_from(["string", "integer", "object", "array", "x"])}),
        lambda inner: st.fixed_dictionaries(
            {"type": st.sampled_from(["object", "array"])},
            optional={
                "properties": st.dictionaries(st.text("ab$", max_size=2), inner, max_size=2),
                "items": inner,
                "default": _JSON,
                "pattern": st.sampled_from(["(a+)+$", "[", "^(a|a)*$", "\\1", "(?=x)"]),
                "required": st.lists(st.text(max_size=2), max_size=2),
                "x-kubernetes-list-type": st.sampled_from(["set", "map", "atomic", "x"]),
                "x-kubernetes-validations": st.lists(
                    st.fixed_dictionaries({"rule": st.sampled_from(["self", "true", "self.a > 1", "((((", "1/0"])}),
                    max_size=2,
                ),
            },
        ),
        max_leaves=5,
    )
)
def test_any_schema_is_installed_or_refused(server: Running, schema: dict[str, Any]) -> None:
    status, answer = server.ask("POST", DEFINITIONS, definition("fuzzes", "Fuzz", schema))
    assert status in (201, 400, 409, 422), answer
    if status == 201:
        server.ask("DELETE", f"{DEFINITIONS}/fuzzes.fuzz.test")


# --- by hand ---


def widget(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "conf.test/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec}


def test_body_that_is_too_large_or_compressed_is_refused_and_one_that_fits_is_answered(server: Running) -> None:
    status, answer = server.ask("POST", WIDGETS, b"x" * (10 << 20))
    assert (status, answer["reason"]) == (413, "RequestEntityTooLarge")
    assert "limit is 3145728" in answer["message"]
    status, answer = server.ask("POST", WIDGETS, b"\x1f\x8b\x08\x00" + b"\0" * 100, Content_Encoding="gzip")
    assert (status, answer["reason"]) == (400, "BadRequest")

    many = 19_000  # of 20,000 values that a body may have
    raw = json.dumps(widget(map={f"k{number}": "v" * 140 for number in range(many)})).encode()
    assert 0.9 * MAX_BODY < len(raw) < MAX_BODY
    assert server.ask("POST", WIDGETS, raw)[0] == 201
    assert server.ask("DELETE", f"{WIDGETS}/w")[0] == 200
    assert server.ask("POST", WIDGETS, widget(map=dict.fromkeys(map(str, range(100_000)), "v")))[0] == 413
    status, answer = server.ask("POST", WIDGETS, widget(map=dict.fromkeys(map(str, range(many)), 1)))
    assert status == 422
    assert len(json.dumps(answer)) < 100_000


def test_backtracking_pattern_is_cheap(server: Running) -> None:
    spec = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    backs = definition("backs", "Back", {"type": "object", "properties": {"spec": spec}})
    assert server.ask("POST", DEFINITIONS, backs)[0] == 201
    body = {"apiVersion": "fuzz.test/v1", "kind": "Back", "metadata": {"name": "x"}, "spec": {"a": "a" * 100_000 + "!"}}
    assert server.ask("POST", "/apis/fuzz.test/v1/namespaces/default/backs", body)[0] == 422


def test_endless_headers_are_refused(server: Running) -> None:
    head = f"GET {WIDGETS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n".encode()
    for many in (b"".join(b"X-%d: y\r\n" % number for number in range(200_000)), b"X: " + b"y" * (1 << 20) + b"\r\n"):
        answer = server.raw(head + many + b"\r\n")
        assert not answer or answer.split(b" ", 2)[1] in (b"400", b"431")  # or the connection ends before it is read


NO_HTTP = [
    b"\x00\x01\x02\x03",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 50 + b"nonsense\r\n\r\n",
]


@pytest.mark.parametrize("sent", NO_HTTP)
def test_invalid_http_is_answered_or_dropped(server: Running, sent: bytes) -> None:
    assert b" 500 " not in server.raw(sent, wait_s=1).split(b"\r\n")[0]


def test_slow_bodies_and_many_connections_delay_no_other_client(server: Running) -> None:
    head = f"POST {WIDGETS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n".encode()
    head += b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"

    async def crowd() -> None:
        opened = [
            await asyncio.open_connection(server.url.host, server.url.port, ssl=server.context) for _ in range(100)
        ]
        for _, writer in opened:
            writer.write(head)
        status, _ = await server.request("GET", WIDGETS)
        assert status == 200
        for _, writer in opened:
            writer.close()

    server.run(crowd)

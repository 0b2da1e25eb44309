"""The requests of the client, and its handling of answers and errors."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml
from prometheus_client import CollectorRegistry

from tests.interop.authority import Authority
from tests.waiting import until
from tink.kube.client import (
    ApiError,
    ConflictError,
    KubeClient,
    KubeConfigError,
    NotFoundError,
    UnreachableError,
    cluster_ids,
    log_missing_namespaces,
)
from tink.kube.metrics import client_metrics
from tink.kube.resources import CRD, WORKFLOW, ResourceType
from tink.kubeapi.apiserver import credentials
from tink.metrics.families import Scraped


def test_path_of_a_resource_stays_in_its_collection_and_needs_its_namespace() -> None:
    assert WORKFLOW.path("d", "w", "status") == "/apis/tinkerbell.org/v1alpha2/namespaces/d/workflows/w/status"
    assert WORKFLOW.path() == "/apis/tinkerbell.org/v1alpha2/workflows"
    assert CRD.path(None, "x") == "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x"
    assert ResourceType("", "v1", "nodes", "Node", namespaced=False).path(name="n") == "/api/v1/nodes/n"
    assert WORKFLOW.path("d", "../../x") == "/apis/tinkerbell.org/v1alpha2/namespaces/d/workflows/..%2F..%2Fx"
    with pytest.raises(ValueError, match=r"Workflow w: .* needs its namespace"):
        WORKFLOW.path(None, "w")


async def test_each_verb_has_its_method_path_headers_and_body(api: Any, client: KubeClient) -> None:
    """With the content type of kubernetes-asyncio, a conforming API refuses the patch as a malformed JSON patch."""
    api.answers = [(200, {"kind": "Workflow"})]
    preconditions = {"uid": "u", "resourceVersion": "7"}
    obj = {"metadata": {"name": "w", "namespace": "x"}}
    assert await client.patch(WORKFLOW, "w", "d", {"status": {"a": None}}, subresource="status") == {"kind": "Workflow"}
    await client.create(WORKFLOW, obj)
    await client.delete(WORKFLOW, "w", "d", preconditions=preconditions)
    await client.delete(WORKFLOW, "w", "d")
    with pytest.raises(ValueError, match=r"metadata.namespace is missing"):
        await client.create(WORKFLOW, {"metadata": {"name": "w"}})
    base = "/apis/tinkerbell.org/v1alpha2/namespaces"
    assert [(asked.method, asked.path.removeprefix(base), asked.body) for asked in api.asked] == [
        ("PATCH", "/d/workflows/w/status", {"status": {"a": None}}),
        ("POST", "/x/workflows", obj),
        ("DELETE", "/d/workflows/w", {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}),
        ("DELETE", "/d/workflows/w", None),
    ]
    assert api.asked[0].headers["content-type"] == "application/merge-patch+json"
    assert {asked.headers["authorization"] for asked in api.asked} == {"Bearer secret-token"}


KINDS = {404: NotFoundError, 409: ConflictError, 403: ApiError, 500: ApiError}
ODD = {"kind": "Status", "reason": "Because", "message": 'workflows "w" is odd'}


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        *((status, ODD, kind, 'workflows "w" is odd') for status, kind in KINDS.items()),
        *((502, body, ApiError, "502") for body in (b"", b"<html>bad gateway", b"[]", b"\xff")),
        *((200, body, ApiError, "the answer is not") for body in (b"", b"no", b"[1]")),
        (302, b"", ApiError, "302"),  # it is not followed, least of all with the token
    ],
)
async def test_error_is_raised_with_what_the_api_says_of_it(api, client, status, body, kind, said) -> None:
    api.answers = [(status, body)]
    with pytest.raises(kind, match=said) as caught:
        await client.get(WORKFLOW, "w", "d")
    assert type(caught.value) is kind
    assert caught.value.status == (status if status != 200 else caught.value.status)
    assert body is not ODD or caught.value.reason == "Because"
    assert len(api.asked) == 1


async def test_an_api_that_is_away_is_unreachable_and_asked_once(client, monkeypatch, unused_tcp_port: int) -> None:
    pauses = _paused(client, monkeypatch)
    monkeypatch.setattr(client, "url", f"http://127.0.0.1:{unused_tcp_port}")
    with pytest.raises(UnreachableError, match=r"GET http://127.0.0.1"):
        await client.list(WORKFLOW)
    assert pauses == []


async def test_loopback_and_what_no_proxy_excepts_is_never_reached_through_a_proxy(
    api, kubeconfig, monkeypatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "192.0.2.0/24")
    client = await KubeClient.connect(kubeconfig)
    await client.list(WORKFLOW)
    monkeypatch.setattr(client, "url", "http://198.51.100.1:1")
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        await client.list(WORKFLOW)
    await client.close()
    assert len(api.asked) == 1


@pytest.mark.parametrize("text", [None, "", "{", "apiVersion: v1\nkind: Config\n", "- 1\n", '{"clusters": 5}', "text"])
async def test_missing_or_broken_kubeconfig_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "broken"
    if text is not None:
        path.write_text(text)
    with pytest.raises(KubeConfigError, match="broken: no such file" if text is None else "broken") as refused:
        await KubeClient.connect(path)
    assert "object" not in str(refused.value) or "not a kubeconfig" in str(refused.value), "words of Python alone"


async def test_api_that_is_not_there_is_named_without_the_words_of_the_connector(api, kubeconfig: Path) -> None:
    text = kubeconfig.read_text()
    for url, said in (
        ("http://127.0.0.1:1", r"127\.0\.0\.1:1 refuses the connection: nothing listens there$"),
        ("http://nothing.invalid:1", r"can't connect to nothing\.invalid:1: [^\[\]]+$"),
    ):
        kubeconfig.write_text(text.replace(api.url, url))
        async with await KubeClient.connect(kubeconfig) as client:
            with pytest.raises(UnreachableError, match=said):
                await client.list(WORKFLOW)


async def test_kubeconfig_in_a_directory_with_a_colon_is_read_with_the_files_beside_it(
    api, kubeconfig: Path, tmp_path: Path
) -> None:
    """KUBECONFIG is a list of paths separated by colons; the path of one file is not."""
    directory = tmp_path / "a:b"
    directory.mkdir()
    token = directory / "token"
    token.write_text("secret")
    content = yaml.safe_load(kubeconfig.read_text())
    content["users"] = [{"name": each["name"], "user": {"tokenFile": "token"}} for each in content["users"]]
    (directory / "kubeconfig").write_text(yaml.safe_dump(content))
    async with await KubeClient.connect(directory / "kubeconfig") as client:
        await client.list(WORKFLOW)
    assert len(api.asked) == 1


@pytest.mark.parametrize("text", ["{", "a: [\nfoo: }{\n", "\t- x", "clusters:\n  - a\n b: c\n"])
async def test_fault_of_a_kubeconfig_is_one_line_with_the_number_of_the_line_that_is_wrong(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "broken").write_text(text)
    with pytest.raises(KubeConfigError, match=r"broken: not a kubeconfig .*: line \d: .*name one that") as refused:
        await KubeClient.connect(tmp_path / "broken")
    assert "\n" not in str(refused.value)


async def test_outside_a_cluster_there_is_no_service_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeConfigError, match="service account of this pod"):
        await KubeClient.connect(None)


async def test_watch_connection_has_tcp_keepalive(api: Any, client: KubeClient) -> None:
    """Linux reports a keepalive timer for the connection."""
    api.script({"type": "BOOKMARK"})

    def timers() -> list[str]:
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        port = f"{urlsplit(client.url).port:04X}"
        return [row[5] for row in rows if row[2].endswith(f":{port}") and row[3] == "01"]

    async with client.watch(WORKFLOW, None, "1", 5):
        [timer] = timers()
    kind, when = timer.split(":")
    assert kind == "02", "keepalive"
    assert int(when, 16) <= 20 * 100  # hundredths of a second


async def test_a_call_under_way_when_the_client_closes_ends(api: Any, client: KubeClient) -> None:
    api.script()

    async def watch() -> None:
        async with client.watch(WORKFLOW, None, "1", 5) as stream:
            await stream.read()

    task = asyncio.create_task(watch())
    await until(lambda: api.opened)
    await client.close()
    with pytest.raises(UnreachableError):
        await task


async def test_requests_are_counted_by_status_and_one_without_an_answer_as_client_go_does(api, client) -> None:
    registry = CollectorRegistry()
    registry.register(Scraped(lambda: client_metrics(client)))
    host = urlsplit(client.url).netloc
    api.answers = [*[(200, {"kind": "Workflow"})] * 2, (409, {"reason": "Conflict"})]
    for _ in range(2):
        await client.get(WORKFLOW, "w", "d")
    with pytest.raises(ConflictError):
        await client.patch(WORKFLOW, "w", "d", {})
    await client.close()
    with pytest.raises(UnreachableError):
        await client.get(WORKFLOW, "w", "d")

    def value(code: str, method: str) -> float | None:
        labels = {"code": code, "method": method, "host": host}
        return registry.get_sample_value("rest_client_requests_total", labels)

    assert (value("200", "GET"), value("409", "PATCH"), value("<error>", "GET")) == (2, 1, 1)
    seconds = {"verb": "GET", "host": host}
    assert registry.get_sample_value("rest_client_request_duration_seconds_count", seconds) == 3


_CONNECT = """
import asyncio, pathlib, sys
import tink.kube.cache.informer
from tink.kube import library
from tink.kube.client import KubeClient
assert "kubernetes_asyncio" not in sys.modules, "half a second, of every tinkedge --help"
async def connect():
    client = await KubeClient.connect(pathlib.Path(sys.argv[1]))
    assert (await client._authorize())["authorization"] == "Bearer secret-token"
    await client.close()
"""
FEW_MODULES = """
before = len(sys.modules)
asyncio.run(connect())
assert len(sys.modules) - before < 100, len(sys.modules) - before
import kubernetes_asyncio
assert kubernetes_asyncio.client.CoreV1Api
"""
OTHER_LAYOUT = """
library.find_spec = lambda name: None
asyncio.run(connect())
assert sys.modules["kubernetes_asyncio.client"].CoreV1Api
"""


@pytest.mark.parametrize("code", [FEW_MODULES, OTHER_LAYOUT], ids=["few modules", "laid out otherwise: the whole"])
def test_of_kubernetes_asyncio_few_modules_are_imported_and_when_a_client_connects(kubeconfig: Path, code: str) -> None:
    """Importing all nine hundred modules takes a third of a second at every start, and 35 MB in every process."""
    assert subprocess.run([sys.executable, "-c", _CONNECT + code, kubeconfig]).returncode == 0


# --- an API that is busy ---


def _paused(client: KubeClient, monkeypatch: pytest.MonkeyPatch, then: Any = lambda: None) -> list[float]:
    """Record the pauses of the client; `then` is called after each."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        then()

    monkeypatch.setattr(client, "_sleep", sleep)
    return pauses


@pytest.mark.parametrize("status", [429, 503])
async def test_busy_api_is_retried_after_its_retry_after(api, client, monkeypatch, status) -> None:
    pauses = _paused(client, monkeypatch)
    api.answers, api.headers = [(status, {"message": "too many"}), (200, {"kind": "Workflow"})], {"Retry-After": "7"}
    assert await client.patch(WORKFLOW, "w", "d", {"spec": {}}) == {"kind": "Workflow"}
    assert pauses == [7.0]
    assert [asked.body for asked in api.asked] == [{"spec": {}}] * 2
    assert sum(client.retries.values()) == 1


@pytest.mark.parametrize(
    ("status", "header", "pauses", "wants"),
    [
        (503, None, [], 0),
        (500, "1", [], 1),
        (409, "1", [], 1),
        (429, "soon", [], 0),
        (429, "-1", [], 0),
        (429, "Mon, 23 Nov 2026", [], 0),
        (429, "99999999999999999999", [], 60),
        (429, "1", [1.0] * 10, 1),  # as often as client-go
    ],
)
async def test_call_fails_when_retry_after_does_not_help(
    api, client, monkeypatch, status, header, pauses, wants
) -> None:
    waited = _paused(client, monkeypatch)
    api.answers, api.headers = [(status, {})], {} if header is None else {"Retry-After": header}
    with pytest.raises(ApiError) as caught:
        await client.get(WORKFLOW, "w", "d")
    assert (waited, len(api.asked)) == (pauses, 1 + len(pauses))
    assert caught.value.retry_after == wants


@pytest.mark.parametrize("resets", [0, 3, 4])
async def test_connection_reset_before_the_request_is_retried(tmp_path, monkeypatch, resets) -> None:
    """An embedded API resets connections if a process of this host has opened the maximum number of connections."""
    authority = credentials.load_authority(tmp_path / "pki", datetime.now(UTC))
    context = credentials.server_context(authority, "127.0.0.1", datetime.now(UTC))
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(seen) < resets:
            seen.append("reset")
            writer.transport.abort()
            return
        await writer.start_tls(context)
        seen.append((await reader.readline()).decode().split()[0])
        writer.write(b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    async def authorize() -> dict[str, str]:
        return {}

    server = await asyncio.start_server(serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    trust = ssl.create_default_context(cafile=str(tmp_path / "pki" / "ca.crt"))
    async with server, KubeClient(f"https://127.0.0.1:{port}", aiohttp.TCPConnector(ssl=trust), authorize) as client:
        pauses = _paused(client, monkeypatch)
        asked = client.create(WORKFLOW, {"metadata": {"name": "w", "namespace": "d"}})
        if resets < 4:
            assert await asked == {}
            assert seen == ["reset"] * resets + ["POST"]
        else:
            with pytest.raises(UnreachableError, match="POST https://127"):
                await asked
        assert pauses == [0.05, 0.2, 0.8][:resets]
        assert sum(client.retries.values()) == min(resets, 3)


# --- which cluster a kubeconfig leads to, and which namespaces it has ---


def test_cluster_is_known_by_its_authority_whatever_its_address(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, other = Authority(tmp_path), Authority(tmp_path / "other")
    known = cluster_ids("https://a:6443", str(one.file))
    assert known == cluster_ids("https://b", str(one.file))
    assert not known & cluster_ids("https://a:6443", str(other.file))
    both = tmp_path / "both.crt"
    both.write_bytes(one.file.read_bytes() + other.file.read_bytes())
    assert known & cluster_ids("https://a:6443", str(both)), "an authority that is being replaced"


def test_cluster_without_an_authority_of_its_own_is_known_by_its_url(tmp_path: Path) -> None:
    known = cluster_ids("https://api.example.org/", None)
    assert known == cluster_ids("https://api.example.org", None) != cluster_ids("https://other.example.org", None)
    broken = tmp_path / "ca.crt"
    broken.write_text("none")
    assert cluster_ids("https://api.example.org", str(broken)) == known
    assert cluster_ids("https://api.example.org", str(tmp_path / "absent")) == known


async def test_missing_namespace_is_named(api: Any, client: KubeClient, caplog: pytest.LogCaptureFixture) -> None:
    api.answers = [
        (200, {"kind": "Namespace", "metadata": {"name": "ulm"}}),
        (404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": 'namespaces "berln" not found'}),
        (403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "not yours"}),
    ]
    await log_missing_namespaces(client, ["ulm", "berln", "secret"])
    assert [asked.path for asked in api.asked] == [f"/api/v1/namespaces/{name}" for name in ("ulm", "berln", "secret")]
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "there is no namespace 'berln'" in said

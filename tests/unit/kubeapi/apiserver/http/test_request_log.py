"""Logs and counts of requests: each message once, and no label from a client's text."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from tests.unit.kubeapi.apiserver.conftest import Client, Start
from tests.waiting import until
from tink.kubeapi.apiserver.http.monitoring import (
    INTERVAL_SECONDS,
    MAX_ADDRESS_LINES,
    MAX_FAULT_LINES,
    MAX_LINES,
    MAX_USER_LINES,
    NotHttp,
    RequestLog,
)

LOG = logging.getLogger("tests.refusals")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
async def measured(start: Start) -> tuple[Client, CollectorRegistry]:
    """A client of a server, and the server's metrics."""
    server, client = await start()
    registry = CollectorRegistry()
    registry.register(server.metrics())
    return client, registry


def test_same_refusal_is_logged_once_a_minute_and_a_flood_of_different_ones_is_limited(lines: Any) -> None:
    now = [0.0]
    requests = RequestLog(LOG, lambda: now[0])
    for now[0] in (0.0, 1.0, INTERVAL_SECONDS - 1, INTERVAL_SECONDS):
        requests.refused("GET", "/x", "400 no")
    assert lines() == ["GET /x: 400 no"] * 2
    requests = RequestLog(LOG, lambda: now[0])
    for number in range(MAX_LINES * 3):
        requests.refused("GET", f"/{number}", "400 no")
    assert len(lines()) == MAX_LINES + 2
    now[0] += INTERVAL_SECONDS
    requests.refused("GET", "/later", "400 no")
    assert lines()[-2:] == [f"{MAX_LINES * 2} more lines like the last ones were left out", "GET /later: 400 no"]
    faults, before = RequestLog(LOG, lambda: 0.0), len(lines())
    for number in range(100):
        try:
            raise ValueError(number)
        except ValueError:
            faults.failed("GET", f"/{number}")
    assert len(lines()) - before == MAX_FAULT_LINES, "few stack traces"


def test_client_that_speaks_no_http_leaves_no_stack_trace(lines: Any) -> None:
    from aiohttp.http_exceptions import BadHttpMethod

    only = NotHttp(RequestLog(LOG, lambda: 0.0))
    for error, passes in ((BadHttpMethod("x"), False), (BadHttpMethod("y"), False), (ValueError("ours"), True)):
        record = LOG.makeRecord("x", logging.ERROR, "f", 1, "Error handling request", (), (type(error), error, None))
        assert only.filter(record) is passes
    assert lines() == ["? ?: a client does not speak HTTP: BadHttpMethod"]


def test_invented_paths_of_one_user_leave_room_for_lines_about_others(lines: Any) -> None:
    requests = RequestLog(LOG, lambda: 0.0)
    for number in range(MAX_LINES * 3):
        requests.refused("GET", f"/{number}", "400 no", "mallory")
        requests.unauthorized(f"2001:db8::{number:x}", "Unauthorized")
    requests.refused("GET", "/" + "x" * 9000, "400 no", "alice")
    requests.unauthorized("::1", "Unauthorized")
    assert len(lines()) == MAX_USER_LINES + MAX_ADDRESS_LINES + 2
    assert [line[:30] for line in lines()[-2:]] == ["GET /" + "x" * 25, "::1: 401 Unauthorized: no toke"]
    assert max(map(len, lines())) < 600


MAPS = "/api/v1/namespaces/default/configmaps"


async def test_requests_are_counted_by_verb_resource_and_code(measured: Any) -> None:
    client, registry = measured

    def counted(verb: str, scope: str, code: str = "200", subresource: str = "") -> float | None:
        about = {"verb": verb, "group": "", "version": "v1", "resource": "configmaps", "subresource": subresource}
        return registry.get_sample_value("apiserver_request_total", {**about, "scope": scope, "code": code})

    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    applied = {"content": "application/apply-patch+yaml", "fieldManager": "test"}
    for method, path, body, options in (
        ("POST", MAPS, made, {}),
        ("GET", f"{MAPS}/a", None, {}),
        ("GET", f"{MAPS}/b", None, {}),
        ("GET", MAPS, None, {}),
        ("GET", "/api/v1/configmaps", None, {}),
        ("PATCH", f"{MAPS}/a", made, applied),
        ("PATCH", f"{MAPS}/a", {"data": {"x": "y"}}, {"content": "application/merge-patch+json"}),
        ("DELETE", f"{MAPS}/a", None, {}),
        ("DELETE", MAPS, None, {}),
    ):
        await client(method, path, body, **options)
    assert counted("POST", "namespace", "201") == 1
    assert (counted("GET", "resource"), counted("GET", "resource", "404")) == (1, 1)
    assert (counted("LIST", "namespace"), counted("LIST", "cluster")) == (1, 1)
    assert (counted("APPLY", "resource"), counted("PATCH", "resource")) == (1, 1)
    assert (counted("DELETE", "resource"), counted("DELETECOLLECTION", "namespace")) == (1, 1)
    assert registry.get_sample_value("apiserver_current_inflight_requests") == 0


async def test_duration_of_a_watch_is_not_counted(measured: Any) -> None:
    client, registry = measured
    about = {"verb": "WATCH", "group": "", "version": "v1", "resource": "configmaps", "subresource": ""}
    about |= {"scope": "namespace"}
    async with client.watch(MAPS):
        assert registry.get_sample_value("apiserver_longrunning_requests", about) == 1
        assert registry.get_sample_value("apiserver_current_inflight_requests") == 0
    await until(lambda: registry.get_sample_value("apiserver_longrunning_requests", about) == 0)
    assert registry.get_sample_value("apiserver_request_total", {**about, "code": "200"}) == 1
    assert registry.get_sample_value("apiserver_request_duration_seconds_count", about) is None


async def test_client_cannot_create_series_and_a_repeated_bad_request_is_one_line(measured: Any, lines: Any) -> None:
    client, registry = measured
    for _ in range(5):
        assert (await client("GET", "/api/v1/secrets?limit=x")).status == 400
    assert sum("strconv.ParseInt" in line for line in lines()) == 1
    for number in range(20):
        await client("GET", f"/apis/evil-{number}.test/v1/things/name-{number}")
        await client("PROPFIND", f"{MAPS}/evil-{number}")
        await client("GET", f"/evil-{number}", token="wrong")
    text = generate_latest(registry).decode()
    assert "evil" not in text.lower()
    assert 'code="401"' in text
    assert 'verb="OTHER"' in text
    assert "PROPFIND" not in text

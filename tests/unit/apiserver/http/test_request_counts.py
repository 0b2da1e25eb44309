"""What is counted of requests: by Kubernetes' verbs, and by nothing that a client can make up."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from tests.unit.apiserver.conftest import Start
from tests.waiting import until

MAPS = "/api/v1/namespaces/default/configmaps"


async def test_requests_are_counted_by_verb_resource_and_code(start: Start) -> None:
    server, client = await start()
    registry = CollectorRegistry()
    registry.register(server.metrics())

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


async def test_watch_is_no_request_that_takes_long(start: Start) -> None:
    server, client = await start()
    registry = CollectorRegistry()
    registry.register(server.metrics())
    about = {"verb": "WATCH", "group": "", "version": "v1", "resource": "configmaps", "subresource": ""}
    about |= {"scope": "namespace"}
    async with client.watch(MAPS):
        assert registry.get_sample_value("apiserver_longrunning_requests", about) == 1
        assert registry.get_sample_value("apiserver_current_inflight_requests") == 0
    await until(lambda: registry.get_sample_value("apiserver_longrunning_requests", about) == 0)
    assert registry.get_sample_value("apiserver_request_total", {**about, "code": "200"}) == 1
    assert registry.get_sample_value("apiserver_request_duration_seconds_count", about) is None


async def test_client_makes_up_no_series(start: Start) -> None:
    server, client = await start()
    registry = CollectorRegistry()
    registry.register(server.metrics())
    for number in range(20):
        await client("GET", f"/apis/evil-{number}.test/v1/things/name-{number}")
        await client("PROPFIND", f"{MAPS}/evil-{number}")
        await client("GET", f"/evil-{number}", token="wrong")
    text = generate_latest(registry).decode()
    assert "evil" not in text.lower()
    assert 'code="401"' in text
    assert 'verb="OTHER"' in text
    assert "PROPFIND" not in text

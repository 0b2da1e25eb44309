"""Writes at the same time, writes that change nothing, keys that stand twice. conformance/cases has the rest."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.apiserver.conftest import Client

HARDWARE = "/apis/tinkerbell.org/v1alpha2/namespaces/default/hardware"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


def hardware(name: str = "m", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": "Hardware",
        "metadata": {"name": name},
        "spec": spec or {"osie": {"name": "hook"}},
    }


async def test_writers_of_an_old_version_get_a_conflict(api: Client) -> None:
    first = (await api("POST", HARDWARE, hardware())).json
    await api.merge(f"{HARDWARE}/m", {"metadata": {"labels": {"a": "b"}}})
    said = (
        'Operation cannot be fulfilled on hardware.tinkerbell.org "m": the object has been modified; please apply your '
        "changes to the latest version and try again"
    )
    for answer in (
        await api("PUT", f"{HARDWARE}/m", first),
        await api.merge(f"{HARDWARE}/m", {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}}),
    ):
        assert (answer.status, answer.json["reason"], answer.json["message"]) == (409, "Conflict", said)
    del first["metadata"]["resourceVersion"]
    answer = await api("PUT", f"{HARDWARE}/m", first)
    assert answer.status == 422
    assert answer.json["details"]["causes"][0]["field"] == "metadata.resourceVersion"


async def test_patches_at_the_same_time_all_take_effect(api: Client) -> None:
    await api("POST", CONFIGMAPS, {"metadata": {"name": "c"}, "data": {}})
    answers = await asyncio.gather(
        *(api.merge(f"{CONFIGMAPS}/c", {"data": {f"k{number}": "x"}}) for number in range(4))
    )
    assert [answer.status for answer in answers] == [200] * 4
    assert len((await api("GET", f"{CONFIGMAPS}/c")).json["data"]) == 4


async def test_update_that_changes_nothing_keeps_version_and_generation(api: Client) -> None:
    created = (await api("POST", HARDWARE, hardware())).json
    assert (await api.merge(f"{HARDWARE}/m", {"spec": created["spec"]})).json == created
    assert (await api("PUT", f"{HARDWARE}/m", created)).json == created


async def test_keys_given_twice_are_found_when_strict(api: Client) -> None:
    head = b'{"apiVersion": "tinkerbell.org/v1alpha2", "kind": "Hardware", "metadata": {"name": "m"}, '
    raw = head + b'"spec": {}, "spec": {"osie": {"name": "x"}}}'
    answer = await api("POST", HARDWARE, raw, fieldValidation="Strict")
    assert (answer.status, 'duplicate field "spec"' in answer.json["message"]) == (400, True)
    assert (await api("POST", HARDWARE, raw, fieldValidation="Ignore")).status == 201


async def test_object_with_finalizers_stays_until_the_last_is_removed(api: Client) -> None:
    body = hardware()
    body["metadata"]["finalizers"] = ["example.org/a", "example.org/b"]
    await api("POST", HARDWARE, body)
    marked = await api("DELETE", f"{HARDWARE}/m")
    assert (marked.status, "deletionTimestamp" in marked.json["metadata"]) == (200, True)
    assert (await api("DELETE", f"{HARDWARE}/m")).json == marked.json
    await api.merge(f"{HARDWARE}/m", {"metadata": {"finalizers": ["example.org/b"], "deletionTimestamp": None}})
    assert "deletionTimestamp" in (await api("GET", f"{HARDWARE}/m")).json["metadata"]
    async with api.watch(HARDWARE, resourceVersion=marked.json["metadata"]["resourceVersion"]) as watch:
        assert (await api.merge(f"{HARDWARE}/m", {"metadata": {"finalizers": []}})).status == 200
        assert await watch.kinds(2) == [("MODIFIED", "m"), ("DELETED", "m")]
    assert (await api("GET", f"{HARDWARE}/m")).status == 404


async def test_lease_is_taken_by_the_first_and_lost_by_the_second(api: Client) -> None:
    """Leader election: both read the same version, both write, one wins."""
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    lease = (await api("POST", leases, {"metadata": {"name": "controller"}, "spec": {}})).json
    first = {**lease, "spec": {"holderIdentity": "one", "renewTime": "2026-01-01T00:00:00.000000Z"}}
    second = {**lease, "spec": {"holderIdentity": "two"}}
    answers = await asyncio.gather(*(api("PUT", f"{leases}/controller", body) for body in (first, second)))
    assert sorted(answer.status for answer in answers) == [200, 409]

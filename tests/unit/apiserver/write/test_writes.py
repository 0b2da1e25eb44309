"""Create, update, patch and delete over HTTP, as a client library sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.apiserver.conftest import Client

HARDWARE = "/apis/tinkerbell.org/v1alpha2/namespaces/default/hardware"
WORKFLOWS = "/apis/tinkerbell.org/v1alpha2/namespaces/default/workflows"
OSIES = "/apis/tinkerbell.org/v1alpha2/namespaces/default/osies"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


def hardware(name: str = "m", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": "Hardware",
        "metadata": {"name": name},
        "spec": spec or {"osie": {"name": "hook"}},
    }


async def test_created_object_has_what_the_server_sets_and_not_what_the_client_pretends(api: Client) -> None:
    body = hardware()
    body["metadata"] |= {"uid": "mine", "generation": 7, "creationTimestamp": "2000-01-01T00:00:00Z", "selfLink": "/x"}
    answer = await api("POST", HARDWARE, body)
    assert answer.status == 201
    fields = answer.json["metadata"]
    assert fields["namespace"] == "default"
    assert fields["generation"] == 1
    assert len(fields["uid"]) == 36
    assert not fields["creationTimestamp"].startswith("2000")
    assert int(fields["resourceVersion"]) > 0
    assert "selfLink" not in fields
    assert list(answer.json) == ["apiVersion", "kind", "metadata", "spec", "status"]
    assert (await api("GET", f"{HARDWARE}/m")).json == answer.json


async def test_workflow_has_its_default_status_from_its_creation(api: Client) -> None:
    spec = {"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}}
    mine = {"metadata": {"name": "w"}, "spec": spec, "status": {"state": "Running"}}
    status = {"state": "Pending", "message": "waits for the controller"}
    assert (await api("POST", WORKFLOWS, mine)).json["status"] == status
    assert (await api("GET", f"{WORKFLOWS}/w")).json["status"] == status


async def test_second_object_of_a_name_is_refused(api: Client) -> None:
    assert (await api("POST", HARDWARE, hardware())).status == 201
    answer = await api("POST", HARDWARE, hardware())
    assert answer.status == 409
    assert answer.json == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'hardware.tinkerbell.org "m" already exists',
        "reason": "AlreadyExists",
        "details": {"name": "m", "group": "tinkerbell.org", "kind": "hardware"},
        "code": 409,
    }


async def test_generate_name_gives_every_object_a_name_of_its_own(api: Client) -> None:
    body = hardware()
    body["metadata"] = {"generateName": "rack-"}
    names = {(await api("POST", HARDWARE, body)).json["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("rack-") and len(name) == 10 for name in names)


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


async def test_core_objects_may_be_replaced_without_a_version(api: Client) -> None:
    body = {"metadata": {"name": "c"}, "data": {"a": "1"}}
    await api("POST", CONFIGMAPS, body)
    answer = await api("PUT", f"{CONFIGMAPS}/c", {**body, "data": {"b": "2"}})
    assert (answer.status, answer.json["data"]) == (200, {"b": "2"})


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


async def test_generation_counts_changes_of_spec_only(api: Client) -> None:
    await api("POST", HARDWARE, hardware())
    labelled = await api.merge(f"{HARDWARE}/m", {"metadata": {"labels": {"a": "b"}}})
    changed = await api.merge(f"{HARDWARE}/m", {"spec": {"osie": {"name": "other"}}})
    assert labelled.json["metadata"]["generation"] == 1
    assert changed.json["metadata"]["generation"] == 2


async def test_identity_of_an_object_cannot_be_changed(api: Client) -> None:
    created = (await api("POST", HARDWARE, hardware())).json
    answer = await api.merge(f"{HARDWARE}/m", {"metadata": {"name": "n"}})
    assert answer.json["message"] == "the name of the object (n) does not match the name on the URL (m)"
    answer = await api.merge(f"{HARDWARE}/m", {"metadata": {"uid": "x"}})
    assert answer.json["message"].endswith('metadata.uid: Invalid value: "x": field is immutable')
    answer = await api("PUT", f"{HARDWARE}/m", {**created, "metadata": {**created["metadata"], "uid": "x"}})
    assert (answer.status, answer.json["reason"]) == (409, "Conflict")
    answer = await api("PUT", f"{HARDWARE}/other", created)
    assert answer.status == 400
    answer = await api.merge(f"{HARDWARE}/m", {"metadata": {"creationTimestamp": None, "generation": 99}})
    assert answer.json == created


@pytest.mark.parametrize(
    ("validation", "status", "warnings"),
    [
        ("Strict", 400, []),
        ("Warn", 201, ['299 - "unknown field \\"spec.typo\\""']),
        ("", 201, ['299 - "unknown field \\"spec.typo\\""']),
        ("Ignore", 201, []),
        ("Sometimes", 422, []),
    ],
)
async def test_unknown_fields_are_refused_warned_of_or_dropped(
    api: Client, validation: str, status: int, warnings: list[str]
) -> None:
    answer = await api("POST", HARDWARE, hardware(typo=1), fieldValidation=validation)
    assert answer.status == status
    assert answer.headers.get("Warning", []) == warnings
    if status == 201:
        assert answer.json["spec"] == {}
    if status == 400:
        assert answer.json["message"] == (
            'Hardware in version "v1alpha2" cannot be handled as a Hardware: '
            'strict decoding error: unknown field "spec.typo"'
        )


async def test_keys_given_twice_are_found_when_strict(api: Client) -> None:
    head = b'{"apiVersion": "tinkerbell.org/v1alpha2", "kind": "Hardware", "metadata": {"name": "m"}, '
    raw = head + b'"spec": {}, "spec": {"osie": {"name": "x"}}}'
    answer = await api("POST", HARDWARE, raw, fieldValidation="Strict")
    assert (answer.status, 'duplicate field "spec"' in answer.json["message"]) == (400, True)
    assert (await api("POST", HARDWARE, raw, fieldValidation="Ignore")).status == 201


async def test_dry_run_checks_everything_and_stores_nothing(api: Client) -> None:
    answer = await api("POST", HARDWARE, hardware(), dryRun="All")
    assert (answer.status, "uid" in answer.json["metadata"]) == (201, True)
    assert (await api("GET", f"{HARDWARE}/m")).status == 404
    await api("POST", HARDWARE, hardware())
    assert (await api("POST", HARDWARE, hardware(), dryRun="All")).status == 409
    patched = await api.merge(f"{HARDWARE}/m", {"spec": {"kernelParams": ["x"]}}, dryRun="All")
    assert patched.json["spec"]["kernelParams"] == ["x"]
    assert (await api("DELETE", f"{HARDWARE}/m", dryRun="All")).status == 200
    assert (await api("GET", f"{HARDWARE}/m")).json["spec"] == {"osie": {"name": "hook"}}
    assert (await api("POST", HARDWARE, hardware("n"), dryRun="Some")).status == 422


async def test_delete_answers_with_a_status_and_obeys_preconditions(api: Client) -> None:
    created = (await api("POST", HARDWARE, hardware())).json
    answer = await api("DELETE", f"{HARDWARE}/m", {"preconditions": {"uid": "another"}})
    assert (answer.status, "the UID in the precondition (another) does not match" in answer.json["message"]) == (
        409,
        True,
    )
    answer = await api("DELETE", f"{HARDWARE}/m", {"preconditions": {"resourceVersion": "1"}})
    assert answer.status == 409
    body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
    answer = await api("DELETE", f"{HARDWARE}/m", body)
    assert answer.json["status"] == "Success"
    assert answer.json["details"] == {
        "name": "m",
        "group": "tinkerbell.org",
        "kind": "hardware",
        "uid": created["metadata"]["uid"],
    }
    assert (await api("DELETE", f"{HARDWARE}/m")).status == 404


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


async def test_status_is_written_through_its_subresource_only(api: Client) -> None:
    spec = {"hardwareRef": {"name": "m"}, "templateRef": {"name": "t"}}
    body = {"metadata": {"name": "w"}, "spec": spec, "status": {"state": "Running"}}
    assert (await api("POST", WORKFLOWS, body)).json["status"]["state"] == "Pending", "the default, not the writer's"
    change = {"metadata": {"labels": {"a": "b"}}, "spec": {"timeout": 9}, "status": {"state": "Pending"}}
    answer = await api.merge(f"{WORKFLOWS}/w/status", change)
    assert answer.json["status"]["state"] == "Pending"
    assert answer.json["spec"]["timeout"] == 0
    assert "labels" not in answer.json["metadata"]
    assert (await api("GET", f"{WORKFLOWS}/w/status")).json == answer.json
    replaced = {**answer.json, "status": {"state": "Running"}}
    assert (await api("PUT", f"{WORKFLOWS}/w/status", replaced)).json["status"] == {"state": "Running"}
    assert (await api("PUT", f"{WORKFLOWS}/w/status", replaced)).status == 409
    again = await api.merge(f"{WORKFLOWS}/w", {"status": {"state": "Failed"}, "spec": {"timeout": 9}})
    assert (again.json["status"], again.json["spec"]["timeout"]) == ({"state": "Running"}, 9)
    assert (await api("GET", f"{HARDWARE}/m/status")).status == 404


async def test_namespace_must_exist_and_match(api: Client) -> None:
    answer = await api("POST", HARDWARE.replace("default", "nowhere"), hardware())
    assert (answer.status, answer.json["message"]) == (404, 'namespaces "nowhere" not found')
    body = hardware()
    body["metadata"]["namespace"] = "kube-system"
    assert (await api("POST", HARDWARE, body)).status == 400


async def test_delete_of_a_collection_takes_what_is_selected(api: Client) -> None:
    for name, rack in (("a", "1"), ("b", "1"), ("c", "2")):
        body = hardware(name)
        body["metadata"]["labels"] = {"rack": rack}
        await api("POST", HARDWARE, body)
    answer = await api("DELETE", HARDWARE, labelSelector="rack=1")
    assert [item["metadata"]["name"] for item in answer.json["items"]] == ["a", "b"]
    assert [item["metadata"]["name"] for item in (await api("GET", HARDWARE)).json["items"]] == ["c"]


async def test_immutable_and_secret_rules_of_core_resources(api: Client) -> None:
    await api("POST", CONFIGMAPS, {"metadata": {"name": "c"}, "data": {"a": "1"}, "immutable": True})
    answer = await api.merge(f"{CONFIGMAPS}/c", {"data": {"a": "2"}})
    assert answer.json["details"]["causes"][0]["field"] == "data"
    secrets = CONFIGMAPS.replace("configmaps", "secrets")
    answer = await api("POST", secrets, {"metadata": {"name": "s"}, "stringData": {"k": "v"}})
    assert answer.json["data"] == {"k": "dg=="}
    assert "stringData" not in answer.json
    answer = await api("POST", secrets, {"metadata": {"name": "t"}, "type": "kubernetes.io/tls"})
    assert [cause["field"] for cause in answer.json["details"]["causes"]] == ["data[tls.crt]", "data[tls.key]"]


async def test_event_must_be_beside_what_it_is_about(api: Client) -> None:
    event = {"metadata": {"name": "e"}, "involvedObject": {"kind": "Hardware", "name": "m", "namespace": "kube-system"}}
    answer = await api("POST", "/api/v1/namespaces/default/events", event)
    assert answer.json["details"]["causes"][0]["field"] == "involvedObject.namespace"


async def test_lease_is_taken_by_the_first_and_lost_by_the_second(api: Client) -> None:
    """Leader election: both read the same version, both write, one wins."""
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    lease = (await api("POST", leases, {"metadata": {"name": "controller"}, "spec": {}})).json
    first = {**lease, "spec": {"holderIdentity": "one", "renewTime": "2026-01-01T00:00:00.000000Z"}}
    second = {**lease, "spec": {"holderIdentity": "two"}}
    answers = await asyncio.gather(*(api("PUT", f"{leases}/controller", body) for body in (first, second)))
    assert sorted(answer.status for answer in answers) == [200, 409]

"""The audit log: one line for each written object, with its real name, whatever the request contains."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.virtual_time import turns
from tests.unit.kubeapi.apiserver.conftest import GROUP, MERGE, Client
from tests.unit.kubeapi.apiserver.http.conftest import SECRETS, WORKFLOW, WORKFLOWS, User
from tests.waiting import until

HARDWARE = f"{GROUP}/namespaces/default/hardware"
MACHINE = {"metadata": {"name": "m"}, "spec": {}}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
Lines = Callable[[], list[str]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """Return the lines of the audit log, without the address."""
    caplog.set_level(logging.INFO)

    def found() -> list[str]:
        logged = [
            record.getMessage() for record in caplog.records if record.name == "tink.kubeapi.apiserver.http.audit"
        ]
        return [line.replace(" from 127.0.0.1", "") for line in logged]

    return found


# --- each write has a line with what was written


async def test_log_names_the_user_of_each_write_and_refusal_and_contains_no_token(some, user, caplog) -> None:
    token = user("alice", "edit")
    viewer = user("bob", "view")
    with caplog.at_level(logging.INFO):
        await some.merge(f"{WORKFLOWS}/x", {"metadata": {"labels": {"a": "SECRET"}}}, token=token)
        await some("DELETE", f"{WORKFLOWS}/x", token=token, dryRun="All")
        await some("GET", WORKFLOWS, token=token)
        for _ in range(3):
            await some("DELETE", f"{WORKFLOWS}/x", token=viewer)
            await some("GET", f"{WORKFLOWS}/x", token=token[:-1])
        await some("DELETE", "/version", token=viewer)
    found = [record.getMessage() for record in caplog.records]
    assert [line for line in found if line.startswith(("alice", "bob", "127.0.0.1"))] == [
        "alice from 127.0.0.1: patch workflows.tinkerbell.org default/x: metadata changed",
        "alice from 127.0.0.1: delete workflows.tinkerbell.org default/x: 200 (dry run)",
        'bob from 127.0.0.1: refused: workflows.tinkerbell.org "x" is forbidden: User "bob" cannot delete resource '
        '"workflows" in API group "tinkerbell.org" in the namespace "default"',
        "127.0.0.1: 401 Unauthorized: no token, or one that is not known",
        'bob from 127.0.0.1: refused: forbidden: User "bob" cannot delete path "/version"',
    ]
    for secret in (token.rpartition(".")[2], viewer.rpartition(".")[2], some.token, "SECRET"):
        assert secret not in caplog.text
    fields = [record.__dict__["fields"] for record in caplog.records if getattr(record, "fields", None)]
    about = {"address": "127.0.0.1", "resource": "workflows.tinkerbell.org", "object": "default/x"}
    place = {**about, "workflow": "default/x"}
    assert fields == [
        {"user": "alice", "verb": "patch", "outcome": "changed", "changed": "metadata"} | place,
        {"user": "alice", "verb": "delete", "status": 200, "dry_run": True} | place,
        {"user": "bob", "verb": "delete", "outcome": "refused"} | place,
        {"user": "bob", "verb": "delete", "path": "/version", "address": "127.0.0.1", "outcome": "refused"},
    ]


@pytest.mark.parametrize("accept", ["application/json", "application/yaml", TABLE])
async def test_generated_name_is_logged_for_every_form_of_the_answer(some, user, lines, accept) -> None:
    token = user("alice", "edit")
    new = {**WORKFLOW, "metadata": {"generateName": "many-"}}
    assert (await some("POST", WORKFLOWS, new, token=token, accept=accept)).status == 201
    name = (await some("GET", WORKFLOWS)).json["items"][0]["metadata"]["name"]
    assert name.startswith("many-")
    assert lines() == [f"alice: create workflows.tinkerbell.org default/{name}: created"]


@pytest.mark.parametrize("metadata", [{"name": "evil"}, {"generateName": "evil-"}, {}])
async def test_post_to_an_objects_path_with_another_name_is_refused(some, user, lines, metadata) -> None:
    token = user("alice", "edit")
    answer = await some("POST", f"{WORKFLOWS}/innocent", {**WORKFLOW, "metadata": metadata}, token=token)
    assert answer.status == 400
    assert "the name of the object" in answer.json["message"]
    assert [each["metadata"]["name"] for each in (await some("GET", WORKFLOWS)).json["items"]] == ["x"]
    assert lines() == []
    other = {**WORKFLOW, "metadata": {"name": "innocent", "namespace": "other"}}
    assert (await some("POST", f"{WORKFLOWS}/innocent", other, token=token)).status == 400
    same = {**WORKFLOW, "metadata": {"name": "innocent"}}
    assert (await some("POST", f"{WORKFLOWS}/innocent", same, token=token)).status == 201
    assert lines() == ["alice: create workflows.tinkerbell.org default/innocent: created"]


async def test_each_object_of_a_deletecollection_has_a_line(some: Client, user: User, lines: Lines) -> None:
    token = user("alice", "edit")
    held = {**WORKFLOW, "metadata": {"name": "y", "finalizers": ["example.org/hold"]}}
    assert (await some("POST", WORKFLOWS, held)).status == 201
    assert (await some("DELETE", WORKFLOWS, token=token)).status == 200
    assert lines()[1:] == [
        "alice: deletecollection workflows.tinkerbell.org default/x: deleted",
        "alice: deletecollection workflows.tinkerbell.org default/y: marked for deletion",
    ]


async def test_write_of_a_disconnected_client_has_a_line(some: Client, user: User, lines: Lines) -> None:
    """The server cancels the handler of a client that disconnects; a write that has begun is stored all the same."""
    token = user("alice", "edit")
    body = json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hit"}}).encode()
    for number in range(20):
        named = body.replace(b"hit", b"hit-%d" % number)
        asked = asyncio.create_task(some("POST", SECRETS, named, token=token))
        await turns(number)
        asked.cancel()
        await asyncio.wait([asked])
    assert (await some("POST", SECRETS, {"metadata": {"name": "last"}}, token=token)).status == 201

    async def all_logged() -> bool:  # a write that has begun may still be under way
        stored = [each["metadata"]["name"] for each in (await some("GET", SECRETS)).json["items"]]
        return sorted(stored) == sorted(["s", *(line.split("/")[1].removesuffix(": created") for line in lines())])

    await until(all_logged)


async def test_wrong_form_of_the_answer_is_refused_before_the_write(some: Client, lines: Lines) -> None:
    new = {**WORKFLOW, "metadata": {"name": "unseen"}}
    answer = await some("POST", WORKFLOWS, new, accept=TABLE, includeObject="Everything")
    assert answer.status == 400
    assert (await some("GET", f"{WORKFLOWS}/unseen")).status == 404
    assert not any("unseen" in line for line in lines())


# --- dry runs


async def test_delete_whose_query_and_body_differ_about_a_dry_run_is_refused_and_others_are_logged(
    some: Client, user: User, lines: Lines
) -> None:
    """Kubernetes reads the query of a DELETE only if it has no body: `?dryRun=All` would be ignored."""
    token = user("alice", "edit")
    for path in (f"{WORKFLOWS}/x", WORKFLOWS):
        for body in ({}, {"dryRun": []}, {"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": None}):
            answer = await some("DELETE", path, body, token=token, dryRun="All")
            assert answer.status == 400
            assert "dryRun" in answer.json["message"]
        for query in ({}, {"dryRun": "All"}):
            assert (await some("DELETE", path, {"dryRun": ["All"]}, token=token, **query)).status == 200
    assert (await some.merge(f"{WORKFLOWS}/x", {}, token=token)).status == 200
    assert (await some("DELETE", f"{WORKFLOWS}/x", token=token)).status == 200
    assert lines() == [
        *["alice: delete workflows.tinkerbell.org default/x: 200 (dry run)"] * 2,
        *["alice: deletecollection workflows.tinkerbell.org default: 200 (dry run)"] * 2,
        "alice: patch workflows.tinkerbell.org default/x: 200, nothing changed",
        "alice: delete workflows.tinkerbell.org default/x: deleted",
    ]


async def test_delete_whose_query_keeps_dependents_and_whose_body_does_not_is_refused(some: Client) -> None:
    orphan = {"propagationPolicy": "Orphan", "dryRun": ["All"]}
    for query in ({"propagationPolicy": "Orphan"}, {"orphanDependents": "true"}):
        answer = await some("DELETE", f"{WORKFLOWS}/x", {}, **query)
        assert (answer.status, next(iter(query)) in answer.json["message"]) == (400, True)
        assert (await some("DELETE", f"{WORKFLOWS}/x", orphan, **query)).status == 200
    assert (await some("DELETE", f"{WORKFLOWS}/x", {}, propagationPolicy="Background")).status == 200


async def test_flood_of_dry_runs_and_refusals_hides_no_write(some: Client, user: User, lines: Lines) -> None:
    token = user("alice", "edit")
    for number in range(560):
        await some.merge(f"{WORKFLOWS}/x", {"metadata": {"labels": {"a": str(number)}}}, token=token, dryRun="All")
        if number % 4 == 0:
            await some("DELETE", f"{HARDWARE}/m{number}/status", token=token)
            await some("DELETE", f"/api/v1/namespaces/n{number}", token=token)
    await some.merge(f"{WORKFLOWS}/x", {"metadata": {"labels": {"a": "b"}}}, token=token)
    await some("DELETE", f"{WORKFLOWS}/x", token=token)
    assert lines()[-2:] == [
        "alice: patch workflows.tinkerbell.org default/x: metadata changed",
        "alice: delete workflows.tinkerbell.org default/x: deleted",
    ]
    assert len(lines()) < 300


# --- components


async def test_change_of_a_spec_by_a_component_is_in_the_log_and_its_statuses_are_not(some, user, lines) -> None:
    server = user("rack-7", "tinkedge-server")
    assert (await some("POST", HARDWARE, MACHINE)).status == 201
    before = len(lines())
    status = {"status": {"state": "Pending"}}
    assert (await some.merge(f"{WORKFLOWS}/x/status", status, token=server)).status == 200
    assert await _ours(some, "PATCH", f"{WORKFLOWS}/x/status", {"status": {"state": "Running"}}) == 200
    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}}
    assert await _ours(some, "POST", "/api/v1/namespaces/default/events", event) == 201
    assert len(lines()) == before
    script = {"spec": {"ipxe": {"inline": "#!ipxe\nchain http://203.0.113.9/"}}}
    assert (await some.merge(f"{HARDWARE}/m", script, token=server)).status == 403
    assert await _ours(some, "PATCH", f"{HARDWARE}/m", script) == 200
    note = {"metadata": {"annotations": {"tinkerbell.org/agent-id": "other"}}}
    assert await _ours(some, "PATCH", f"{HARDWARE}/m", note) == 200
    refused, *written = lines()[before:]
    assert refused.startswith('rack-7: refused: hardware.tinkerbell.org "m" is forbidden')
    assert written == [
        "admin: patch hardware.tinkerbell.org default/m: spec changed",
        "admin: patch hardware.tinkerbell.org default/m: metadata changed",
    ]


async def test_user_who_impersonates_is_in_the_log_and_a_name_that_imitates_a_line_is_quoted(some, user, lines) -> None:
    assert (await some("GET", f"{WORKFLOWS}/x", token=user("rack-7", "tinkedge-server"))).status == 200
    status = {"status": {"state": "Running"}}
    assert await _ours(some, "PATCH", f"{WORKFLOWS}/x/status", status, {"Impersonate-User": "rack-7"}) == 200
    headers = {"Impersonate-User": "alice: delete workflows x: deleted", "Impersonate-Group": "system:masters"}
    assert await _ours(some, "DELETE", f"{WORKFLOWS}/x", None, headers) == 200
    assert lines() == [
        "admin as rack-7: patch workflows/status.tinkerbell.org default/x: status changed",
        'admin as "alice: delete workflows x: deleted": delete workflows.tinkerbell.org default/x: deleted',
    ]


async def test_object_that_garbage_collection_deletes_has_a_line(some: Client, lines: Lines) -> None:
    owner = (await some("GET", f"{WORKFLOWS}/x")).json
    mine = {"apiVersion": owner["apiVersion"], "kind": "Workflow", "name": "x", "uid": owner["metadata"]["uid"]}
    held = {**WORKFLOW, "metadata": {"name": "y", "ownerReferences": [mine]}}
    assert (await some("POST", WORKFLOWS, held)).status == 201
    async with some.watch(WORKFLOWS) as watch:
        assert (await some("DELETE", f"{WORKFLOWS}/x")).status == 200
        while await watch.next() is not None:
            if len(lines()) > 2:
                break
    assert lines()[1:] == [
        "admin: delete workflows.tinkerbell.org default/x: deleted",
        "the API server: delete workflows.tinkerbell.org default/y: deleted",
    ]


async def _ours(client: Client, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> int:
    """Send a request as a component on this host."""
    own = {"Authorization": f"Bearer {client.token}", "User-Agent": "tinkedge", "Content-Type": MERGE}
    if method == "POST":
        own["Content-Type"] = "application/json"
    async with client.session.request(method, path, json=body, headers=own | (headers or {})) as answer:
        return answer.status

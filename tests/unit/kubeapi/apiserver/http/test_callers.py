"""Users of the API: their permissions, the errors that they receive, and the end of their open requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.unit.kubeapi.apiserver.conftest import GROUP, MERGE, Client
from tests.unit.kubeapi.apiserver.http.conftest import SECRETS, WORKFLOW, WORKFLOWS, User
from tink.kubeapi import USERS_FILE, change_role, revoke_token
from tink.kubeapi.apiserver.access import PathAction, ResourceAction
from tink.kubeapi.apiserver.http.app import requested_action
from tink.kubeapi.apiserver.options import parse_path

APPLY = "application/apply-patch+yaml"
SELF = "/apis/authorization.k8s.io/v1"
WRITES: list[tuple[str, str, Any, dict[str, Any]]] = [
    ("POST", WORKFLOWS, WORKFLOW, {}),
    ("PUT", f"{WORKFLOWS}/x", WORKFLOW, {}),
    ("PATCH", f"{WORKFLOWS}/x", {"metadata": {"labels": {"a": "b"}}}, {"content": MERGE}),
    ("PATCH", f"{WORKFLOWS}/new", WORKFLOW, {"content": APPLY, "fieldManager": "m"}),
    ("PATCH", f"{WORKFLOWS}/x/status", {"status": {"state": "Running"}}, {"content": MERGE}),
    ("PUT", f"{WORKFLOWS}/x/status", WORKFLOW, {}),
    ("DELETE", f"{WORKFLOWS}/x", None, {}),
    ("DELETE", WORKFLOWS, None, {}),
    ("POST", WORKFLOWS, WORKFLOW, {"dryRun": "All"}),
    ("POST", f"{WORKFLOWS}/x", WORKFLOW, {}),
    ("POST", "/api/v1/namespaces", {"metadata": {"name": "n"}}, {}),
    ("PUT", "/api/v1/namespaces/default/finalize", {"metadata": {"name": "default"}}, {}),
    ("DELETE", "/api/v1/namespaces/default", None, {}),
    ("POST", SECRETS, {"metadata": {"name": "s"}}, {}),
    ("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/workflows.tinkerbell.org", None, {}),
    ("POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", {"metadata": {"name": "w"}}, {}),
    ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}}, {}),
    ("POST", f"{SELF}/subjectaccessreviews", {"spec": {"user": "bob", "nonResourceAttributes": {"path": "/"}}}, {}),
    ("POST", "/apis", {}, {}),
    ("OPTIONS", WORKFLOWS, None, {}),
]


# --- what a request is about


@pytest.mark.parametrize(
    ("method", "path", "about"),
    [
        ("GET", "/api/v1/secrets", ResourceAction("list", "", "secrets")),
        ("GET", "/api/v1/secrets?watch=1", ResourceAction("watch", "", "secrets")),
        ("GET", "/api/v1/secrets?watch=0", ResourceAction("list", "", "secrets")),
        ("HEAD", "/api/v1/secrets", ResourceAction("list", "", "secrets")),
        ("GET", "/api/v1/namespaces/a/secrets/b?watch=1", ResourceAction("get", "", "secrets", "", "a", "b")),
        ("GET", "/api/v1/namespaces/a/secrets/%62", ResourceAction("get", "", "secrets", "", "a", "b")),
        ("DELETE", "/apis/g/v1/things", ResourceAction("deletecollection", "g", "things")),
        ("DELETE", "/apis/g/v1/things/x", ResourceAction("delete", "g", "things", "", "", "x")),
        ("PATCH", "/apis/g/v1/namespaces/n/things/x/scale", ResourceAction("patch", "g", "things", "scale", "n", "x")),
        ("POST", "/apis/g/v1/namespaces/n/things", ResourceAction("create", "g", "things", "", "n")),
        ("PUT", "/api/v1/namespaces/n/finalize", ResourceAction("update", "", "namespaces", "finalize", "n", "n")),
        ("GET", "/api/v1/namespaces/n", ResourceAction("get", "", "namespaces", "", "n", "n")),
        ("TRACE", "/api/v1/secrets", ResourceAction("", "", "secrets")),
        ("GET", "/apis/g/v1", PathAction("get", "/apis/g/v1")),
        ("GET", "", PathAction("get", "/")),
        ("POST", "/api//v1/secrets", PathAction("post", "/api//v1/secrets")),
    ],
)
def test_action_of_a_request_is_that_of_kubernetes(method: str, path: str, about: ResourceAction | PathAction) -> None:
    path, _, query = path.partition("?")
    assert requested_action(method, path, parse_path(path), dict([query.split("=")] if query else [])) == about


# --- tokens


@pytest.mark.parametrize("header", ["", "Basic YWxpY2U6eA==", "Bearer", "Bearer  ", "Bearer é", "Token {}", "{}"])
async def test_request_without_a_token_is_refused(some: Client, user: User, header: str) -> None:
    token = user("alice", "cluster-admin")
    headers = {"Authorization": header.format(token)} if header else {}
    session = some.session
    for path in (WORKFLOWS, "/version", "/api", "/", "/metrics", "/openapi/v2"):
        for query in ({}, {"access_token": token}, {"token": token}):
            async with session.get(path, headers=headers, params=query) as answer:
                assert (answer.status, (await answer.json())["reason"]) == (401, "Unauthorized")
    async with session.get("/healthz", headers=headers) as answer:
        assert (answer.status, await answer.text()) == (200, "ok")


async def test_browser_without_a_token_gets_a_page_and_programs_get_a_status(some: Client) -> None:
    async with some.session.get("/", headers={"Accept": "text/html,application/xml;q=0.9,*/*;q=0.8"}) as answer:
        assert (answer.status, answer.content_type) == (401, "text/html")
        text = await answer.text()
        assert "This is a Kubernetes API, for kubectl" in text
        assert "tinkedge page" in text
    async with some.session.get("/", headers={"Accept": "*/*"}) as answer:
        assert (answer.status, answer.content_type) == (401, "application/json")


async def test_tokens_are_valid_after_a_restart_and_refused_with_their_date_when_expired(start, user) -> None:
    server, _ = await start()
    token = user("alice", "view")
    await server.stop()
    _, client = await start()
    assert (await client("GET", "/api/v1/events", token=token)).status == 200
    answer = await client("GET", "/api/v1/events", token=user("bob", "edit", days=-1))
    assert (answer.status, answer.json["reason"]) == (401, "Unauthorized")
    assert "token of bob has expired on" in answer.json["message"]


# --- roles


@pytest.mark.parametrize(("method", "path", "body", "how"), WRITES)
async def test_view_may_write_by_no_verb(some, user, method, path, body, how) -> None:
    before = (await some("GET", f"{WORKFLOWS}/x")).json
    answer = await some(method, path, body, token=user("alice", "view"), **how)
    assert (answer.status, answer.json["reason"]) == (403, "Forbidden")
    assert 'User "alice" cannot ' in answer.json["message"]
    assert (await some("GET", f"{WORKFLOWS}/x")).json == before
    for lost in (f"{WORKFLOWS}/new", "/api/v1/namespaces/n"):
        assert (await some("GET", lost)).status == 404


async def test_refusal_is_the_status_of_kubernetes(some: Client, user: User) -> None:
    token = user("alice", "view")
    assert (await some("DELETE", f"{WORKFLOWS}/x", token=token)).json == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'workflows.tinkerbell.org "x" is forbidden: User "alice" cannot delete resource "workflows" in API '
        'group "tinkerbell.org" in the namespace "default"',
        "reason": "Forbidden",
        "details": {"name": "x", "group": "tinkerbell.org", "kind": "workflows"},
        "code": 403,
    }
    whole = 'secrets is forbidden: User "alice" cannot list resource "secrets" in API group "" at the cluster scope'
    for path, message, details in (
        ("/api/v1/secrets", whole, {"kind": "secrets"}),
        ("/metrics", 'forbidden: User "alice" cannot get path "/metrics"', {}),
        ("/apis/no.such/v1/things", "", None),
    ):
        refused = (await some("GET", path, token=token)).json
        assert (refused["code"], refused["reason"]) == (403, "Forbidden")
        assert refused["message"] == (message or refused["message"])
        assert details is None or refused["details"] == details


async def test_view_reads_all_but_secrets(some: Client, user: User) -> None:
    token = user("alice", "view")
    for path in (WORKFLOWS, f"{WORKFLOWS}/x", f"{WORKFLOWS}/x/status", "/api/v1/events", "/api", "/apis", "/version"):
        assert (await some("GET", path, token=token)).status == 200
    for path in (SECRETS, f"{SECRETS}/s", "/api/v1/secrets"):
        for query in ({}, {"watch": "true"}):
            answer = await some("GET", path, token=token, **query)
            assert (answer.status, b"hunter2" in answer.text) == (403, False)


async def test_edit_in_a_namespace_writes_there_and_sees_no_other(some: Client, user: User) -> None:
    token = user("bob", "edit", "default")
    assert (await some.__call__("PATCH", f"{WORKFLOWS}/new", {
        "apiVersion": "tinkerbell.org/v1alpha2", "kind": "Workflow", **WORKFLOW, "metadata": {"name": "new"}
    }, content=APPLY, fieldManager="m", token=token)).status == 201  # fmt: skip
    assert (await some("DELETE", f"{WORKFLOWS}/new", token=token)).status == 200
    assert (await some("GET", f"{GROUP}/workflows", token=token)).status == 403
    assert (await some("GET", f"{GROUP}/namespaces/kube-system/workflows", token=token)).status == 403
    assert (await some("GET", "/api/v1/namespaces/default", token=token)).status == 200
    assert (await some("GET", "/api/v1/namespaces", token=token)).status == 403
    assert (await some.merge(f"{WORKFLOWS}/x/status", {"status": {"state": "Running"}}, token=token)).status == 403


# --- who am I, what may I


async def test_users_learn_their_name_and_their_rights(some: Client, user: User) -> None:
    token = user("alice", "view", "default")
    who = await some("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, token=token)
    assert who.json["status"] == {"userInfo": {"username": "alice", "groups": ["system:authenticated"]}}
    for verb, resource, namespace, may in (
        ("get", "workflows", "default", True),
        ("delete", "workflows", "default", False),
        ("get", "workflows", "other", False),
    ):
        about = {"verb": verb, "group": "tinkerbell.org", "resource": resource, "namespace": namespace}
        asked = {"spec": {"resourceAttributes": about}}
        assert (await some("POST", f"{SELF}/selfsubjectaccessreviews", asked, token=token)).json["status"] == {
            "allowed": may
        }
        others = {"spec": {**asked["spec"], "user": "alice"}}
        assert (await some("POST", f"{SELF}/subjectaccessreviews", others)).json["status"] == {"allowed": may}
    reviews = f"{SELF}/selfsubjectaccessreviews"
    for method, path, status in (("GET", reviews, 405), ("DELETE", reviews, 405), ("GET", f"{reviews}/x", 404)):
        assert (await some(method, path)).status == status
    rules = await some("POST", f"{SELF}/selfsubjectrulesreviews", {"spec": {"namespace": "default"}}, token=token)
    resources = {name for rule in rules.json["status"]["resourceRules"] for name in rule["resources"]}
    assert ("workflows" in resources, "secrets" in resources) == (True, False)
    review = "/apis/authentication.k8s.io/v1/tokenreviews"
    found = (await some("POST", review, {"spec": {"token": token}})).json["status"]
    assert (found["authenticated"], found["user"]["username"]) == (True, "alice")
    assert "authenticated" not in (await some("POST", review, {"spec": {"token": token[:-1]}})).json["status"]


async def test_impersonation_is_for_the_administrator_and_never_ignored(some: Client, user: User) -> None:
    token = user("alice", "view")
    session = some.session

    async def delete(shown: str, **headers: str) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {shown}", **{key.replace("_", "-"): each for key, each in headers.items()}}
        async with session.delete(f"{WORKFLOWS}/x", headers=headers) as answer:
            return answer.status, (await answer.json())["message" if answer.status != 200 else "status"]

    assert await delete(token, Impersonate_User="admin", Impersonate_Group="system:masters") == (
        403,
        'users "admin" is forbidden: User "alice" cannot impersonate resource "users" in API group "" at the cluster '
        "scope",
    )
    status, message = await delete(some.token, Impersonate_User="alice")
    assert (status, 'User "alice" cannot delete' in message) == (403, True)
    assert (await delete(some.token, Impersonate_User="eve", Impersonate_Uid="1"))[0] == 400
    assert (await delete(some.token, Impersonate_User="eve", Impersonate_Group="system:masters"))[0] == 200


# --- what is open ends


@pytest.mark.parametrize("how", ["revoked", "less", "file gone"])
async def test_watch_ends_with_the_permission_that_it_needs(some: Client, user: User, tmp_path: Path, how: str) -> None:
    token = user("alice", "edit")
    others = user("bob", "view")

    async def watch(shown: str) -> None:
        headers = {"Authorization": f"Bearer {shown}"}
        async with some.session.get(WORKFLOWS, params={"watch": "true"}, headers=headers) as answer:
            assert answer.status == 200
            began.release()
            while await answer.content.readline():
                pass

    began = asyncio.Semaphore(0)
    open_one, other = asyncio.create_task(watch(token)), asyncio.create_task(watch(others))
    for _ in range(2):
        await began.acquire()
    match how:
        case "revoked":
            revoke_token(tmp_path / "state", "alice")
        case "less":
            change_role(tmp_path / "state", "alice", "view", ("lab",))
        case _:
            (tmp_path / "state" / USERS_FILE).unlink()
    with pytest.raises(aiohttp.ClientPayloadError):
        await open_one
    if how == "file gone":
        with pytest.raises(aiohttp.ClientPayloadError):
            await other
        return
    assert not other.done(), "nobody else's watch has ended"
    other.cancel()
    await asyncio.wait([other])
    status = (await some("GET", WORKFLOWS, token=token)).status
    assert status == (401 if how == "revoked" else 403)

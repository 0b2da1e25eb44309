"""Users of the API: tokens, the file of users, the rights of roles, and impersonation."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from multidict import CIMultiDict

from tink.api.crds import generate, generate_bmc
from tink.kubeapi.apiserver.access import (
    ADMIN,
    ROLES,
    USERS_FILE,
    Authenticator,
    Caller,
    PathAction,
    ResourceAction,
    UserError,
    UserFileError,
    Users,
    allowed,
    change_role,
    forbidden,
    impersonate,
    issue_token,
    read_users,
    revoke_token,
)
from tink.kubeapi.apiserver.errors import StatusError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
ADMINS = "a" * 43


class Clock:
    at, seconds = NOW, 0.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authenticator(tmp_path: Path, clock: Clock) -> Authenticator:
    return Authenticator(ADMINS.__eq__, tmp_path / USERS_FILE, lambda: clock.at, lambda: clock.seconds)


def test_token_is_valid_as_soon_as_it_is_issued_and_is_not_in_the_file(tmp_path, authenticator) -> None:
    if os.geteuid() == 0:  # root hands out tokens for a service that runs as another user
        os.chown(tmp_path, 65534, 65534)
    credential, token = issue_token(tmp_path, "alice", "edit", ("lab",), NOW, NOW + DAY)
    caller = authenticator.caller(token.encode())
    assert (caller.name, caller.role, caller.namespaces) == ("alice", "edit", ("lab",))
    assert caller.credential == credential.id
    assert authenticator.caller(ADMINS.encode()) == ADMIN
    assert authenticator.holds(caller)
    file = tmp_path / USERS_FILE
    assert token.rpartition(".")[2] not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_uid == tmp_path.stat().st_uid


def test_truncated_changed_or_foreign_token_is_refused(tmp_path: Path, authenticator: Authenticator) -> None:
    _, token = issue_token(tmp_path, "alice", "view", (), NOW, None)
    (tmp_path / "other").mkdir()
    _, others = issue_token(tmp_path / "other", "alice", "cluster-admin", (), NOW, None)
    changed = token[:-1] + ("A" if token[-1] != "A" else "B")
    altered = (*(token[:cut] for cut in range(len(token))), changed, f"{token} ", f"{token}\n", others, token.upper())
    odd = (b"alice", b"tinkedge", b"tinkedge..", "tinkedge.aaaaaaaa.é".encode(), b"\xff" * 60)
    for wrong in (*(each.encode() for each in altered), *odd):
        with pytest.raises(StatusError, match="Unauthorized"):
            authenticator.caller(wrong)


def test_expired_token_is_refused_with_its_date_to_its_holder_only(tmp_path, authenticator, clock) -> None:
    _, token = issue_token(tmp_path, "alice", "view", (), NOW, NOW + DAY)
    caller = authenticator.caller(token.encode())
    clock.at = NOW + DAY
    with pytest.raises(StatusError, match=r"token of alice has expired on 2026-01-02 00:00 UTC; ask for a new"):
        authenticator.caller(token.encode())
    assert not authenticator.holds(caller)
    with pytest.raises(StatusError, match="Unauthorized") as caught:
        authenticator.caller(token[:-4].encode())
    assert "alice" not in str(caught.value)


def test_revoked_token_is_refused_within_a_second_and_the_other_token_stays_valid(
    tmp_path: Path, authenticator: Authenticator, clock: Clock
) -> None:
    old, old_token = issue_token(tmp_path, "alice", "view", (), NOW, None)
    _, new_token = issue_token(tmp_path, "alice", "", (), NOW, None)
    before = authenticator.caller(old_token.encode())
    revoke_token(tmp_path, "alice", old.id)
    clock.seconds += 1
    with pytest.raises(StatusError, match="Unauthorized"):
        authenticator.caller(old_token.encode())
    assert not authenticator.holds(before)
    after = authenticator.caller(new_token.encode())
    revoke_token(tmp_path, "alice")
    clock.seconds += 1
    authenticator.recheck()
    assert not authenticator.holds(after)
    assert read_users(tmp_path / USERS_FILE) == Users()


def test_changed_role_and_removed_file_apply_to_issued_tokens_and_end_open_requests(
    tmp_path: Path, authenticator: Authenticator, clock: Clock
) -> None:
    _, token = issue_token(tmp_path, "alice", "edit", (), NOW, None)
    before = authenticator.caller(token.encode())
    change_role(tmp_path, "alice", "view", ("lab",))
    clock.seconds += 1
    after = authenticator.caller(token.encode())
    assert (after.role, authenticator.holds(before)) == ("view", False)
    (tmp_path / USERS_FILE).unlink()
    clock.seconds += 1
    authenticator.recheck()
    assert not authenticator.holds(after)


def test_two_commands_that_issue_tokens_at_once_keep_both(tmp_path: Path) -> None:
    def issue(number: int) -> None:
        for each in range(5):
            issue_token(tmp_path, f"user-{number}", "view", (), NOW, NOW + DAY * (each + 1))

    threads = [threading.Thread(target=issue, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    users = read_users(tmp_path / USERS_FILE).users
    assert [len(users[f"user-{number}"].credentials) for number in range(6)] == [5] * 6


@pytest.mark.parametrize("damage", ["halved", "empty", "garbled", "version", "role", "extra", "twice"])
def test_invalid_file_is_reported_at_the_start_and_changes_nothing_later(
    tmp_path: Path, authenticator: Authenticator, clock: Clock, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    _, token = issue_token(tmp_path, "alice", "view", (), NOW, None)
    caller = authenticator.caller(token.encode())
    path = tmp_path / USERS_FILE
    whole = path.read_bytes()
    value = json.loads(whole)
    value["users"]["alice"]["role"] = "root"
    alice = json.loads(whole)["users"]["alice"]
    path.write_bytes(
        {
            "halved": whole[: len(whole) // 2],
            "empty": b"",
            "garbled": b"\xff" * 100 + b"\n",
            "version": whole.replace(b'"version": 1', b'"version": 2'),
            "role": json.dumps(value).encode() + b"\n",
            "extra": json.dumps({"users": {}, "SECRET": 1}).encode() + b"\n",
            "twice": json.dumps({"users": {"alice": alice, "bob": alice}}).encode() + b"\n",
        }[damage]
    )
    with pytest.raises(UserFileError, match=r"users\.json: .*; restore it, or remove it"):
        read_users(path)
    clock.seconds += 1
    with caplog.at_level(logging.ERROR):
        assert authenticator.caller(token.encode()) == caller
    assert "the users of the API stay unchanged" in caplog.text
    assert not authenticator.reread()
    path.write_bytes(whole)
    assert authenticator.reread()
    assert authenticator.caller(token.encode()) == caller


@pytest.mark.parametrize(
    ("name", "role", "namespaces", "message"),
    [
        ("alice", "", (), "there is no user alice yet: choose a role with --role cluster-admin|admin|edit|view"),
        ("alice", "root", (), "there is no role 'root'"),
        ("admin", "view", (), "is the holder of DATA_DIR/token"),
        ("system:masters", "view", (), "is not a valid user name"),
        ("Alice", "view", (), "is not a valid user name"),
        ("a\nb", "view", (), "is not a valid user name"),
        ("alice", "view", ("kube system",), "is not a valid namespace"),
    ],
)
def test_invalid_user_role_or_namespace_is_refused(tmp_path, name, role, namespaces, message) -> None:
    with pytest.raises(UserError) as caught:
        issue_token(tmp_path, name, role, namespaces, NOW, None)
    assert message in str(caught.value)
    assert not (tmp_path / USERS_FILE).exists()


def test_second_token_does_not_change_the_role_of_a_user(tmp_path: Path) -> None:
    issue_token(tmp_path, "alice", "view", (), NOW, None)
    with pytest.raises(UserError, match=r"alice is view already.*tinkedge users role alice edit -n lab"):
        issue_token(tmp_path, "alice", "edit", ("lab",), NOW, None)
    with pytest.raises(UserError, match="alice has no token zzzzzzzz; there is"):
        revoke_token(tmp_path, "alice", "zzzzzzzz")
    with pytest.raises(UserError, match="there is no user bob; there is alice"):
        revoke_token(tmp_path, "bob")


def test_expired_tokens_are_removed_and_valid_ones_are_bounded(tmp_path: Path) -> None:
    for day in range(60):
        issue_token(tmp_path, "alice", "view", (), NOW + day * DAY, NOW + (day + 1) * DAY)
    assert len(read_users(tmp_path / USERS_FILE).users["alice"].credentials) == 1
    for _ in range(49):
        issue_token(tmp_path, "alice", "", (), NOW, None)
    with pytest.raises(UserError, match="alice has 50 tokens: revoke those that are not used"):
        issue_token(tmp_path, "alice", "", (), NOW, None)


def test_token_that_expires_within_a_week_is_logged_with_its_user(tmp_path, authenticator, clock, caplog) -> None:
    soon, _ = issue_token(tmp_path, "alice", "view", (), NOW, NOW + 7 * DAY)
    issue_token(tmp_path, "bob", "view", (), NOW, NOW + 8 * DAY)
    issue_token(tmp_path, "eve", "view", (), NOW, None)
    clock.seconds += 1
    authenticator.recheck()
    authenticator.warn_of_expiry()
    message = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    advice = "`tinkedge kubeconfig --user alice` makes another"
    assert message == [f"the token {soon.id} of alice expires on 2026-01-08 00:00 UTC: {advice}"]
    caplog.clear()
    clock.at = NOW + 7 * DAY
    authenticator.warn_of_expiry()
    assert [record.getMessage().split()[4] for record in caplog.records] == ["bob"]


# --- roles

DEPLOY = Path(__file__).parents[4] / "deploy"
READS = ("get", "list", "watch")
WRITES = ("create", "update", "patch", "delete", "deletecollection")


def user(role: str, *namespaces: str) -> Caller:
    return Caller("alice", ("system:authenticated",), role, namespaces, "aaaaaaaa")


def verbs(role: str, resource: str, group: str = "tinkerbell.org", subresource: str = "") -> set[str]:
    every = (*READS, *WRITES, "impersonate", "escalate", "")
    return {
        verb for verb in every if allowed(user(role), ResourceAction(verb, group, resource, subresource, "default"))
    }


SPECS = [definition["spec"] for definition in (*generate(), *generate_bmc())]
ALL, NOTHING = {*READS, *WRITES}, set[str]()
DANGEROUS = [  # would make more of a user (Kubernetes, user-facing roles)
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
    ("", "users"),
    ("", "groups"),
]


@pytest.mark.parametrize(
    ("group", "resource", "subresource", "view", "edit"),
    [
        *((one["group"], one["names"]["plural"], "", {*READS}, ALL) for one in SPECS),
        *((one["group"], one["names"]["plural"], "status", {*READS}, {*READS}) for one in SPECS),
        ("", "secrets", "", NOTHING, ALL),
        ("", "namespaces", "", {*READS}, {*READS}),
        ("", "namespaces", "finalize", NOTHING, NOTHING),
        # Terraform's provider plans by them.
        ("apiextensions.k8s.io", "customresourcedefinitions", "", {*READS}, {*READS}),
        ("apiextensions.k8s.io", "customresourcedefinitions", "status", NOTHING, NOTHING),
        *((group, resource, "", NOTHING, NOTHING) for group, resource in DANGEROUS),
    ],
)
def test_roles_allow_these_verbs_and_no_others(group, resource, subresource, view, edit) -> None:
    found = {role: verbs(role, resource, group, subresource) for role in ("view", "edit", "admin")}
    assert found == {"view": view, "edit": edit, "admin": edit}
    assert allowed(user("cluster-admin"), ResourceAction("create", group, resource, subresource))


@pytest.mark.parametrize("role", ROLES)
def test_role_that_may_change_a_resource_may_create_it(role: str) -> None:
    """Server-side apply and updates create missing objects without a further check."""
    for rule in ROLES[role]:
        changes = {"patch", "update"} & {*rule.verbs}
        for group in rule.groups if changes else ():
            for resource in rule.resources:
                if "/" in resource:
                    continue  # A subresource needs an existing object.
                assert "create" in verbs(role, resource, group), (group, resource)


def test_each_role_includes_the_smaller_one() -> None:
    order = ["view", "edit", "admin"]
    for less, more in pairwise(order):
        assert {*ROLES[less]} <= {*ROLES[more]}


def test_role_in_namespaces_applies_there_only() -> None:
    alice = user("edit", "lab", "rack-2")
    assert allowed(alice, ResourceAction("delete", "tinkerbell.org", "workflows", "", "lab", "x"))
    assert not allowed(alice, ResourceAction("delete", "tinkerbell.org", "workflows", "", "default", "x"))
    assert not allowed(alice, ResourceAction("list", "tinkerbell.org", "workflows")), "of all namespaces at once"
    assert allowed(alice, ResourceAction("get", "", "namespaces", "", "lab", "lab"))
    assert not allowed(alice, ResourceAction("list", "", "namespaces"))


@pytest.mark.parametrize("role", ["", "view", "no-such-role"])
def test_every_user_may_use_discovery_and_ask_about_own_rights(role: str) -> None:
    for path in ("/api", "/apis", "/apis/tinkerbell.org/v1alpha2", "/openapi/v3", "/version", "/healthz"):
        assert allowed(user(role), PathAction("get", path))
    assert allowed(user(role, "lab"), ResourceAction("create", "authorization.k8s.io", "selfsubjectaccessreviews"))
    assert allowed(user(role), ResourceAction("create", "authentication.k8s.io", "selfsubjectreviews"))
    for path in ("/", "/metrics", "/apisx", "/debug/pprof", ""):
        assert not allowed(user(role), PathAction("get", path))
    assert not allowed(user(role), PathAction("post", "/apis"))


@pytest.mark.parametrize("component", ["server", "edge"])
def test_role_of_a_component_allows_what_its_role_in_a_cluster_allows(component: str) -> None:
    """tests/interop/test_privileges.py runs the components with exactly these rights."""
    rules = [
        (rule["apiGroups"], rule["resources"], rule["verbs"])
        for document in yaml.load_all((DEPLOY / "rbac.yaml").read_text(), Loader=yaml.CSafeLoader)
        if document["kind"] == "ClusterRole" and document["metadata"]["name"] == f"tinkedge-{component}"
        for rule in document["rules"]
    ]
    rules += [([""], ["secrets"], ["get"])] if component == "edge" else []
    ours = ROLES[f"tinkedge-{component}"]
    assert [([*rule.groups], [*rule.resources], [*rule.verbs]) for rule in ours] == rules


def test_refusal_has_the_wording_of_kubernetes() -> None:
    wanted = ResourceAction("patch", "tinkerbell.org", "workflows", "status", "default", "x")
    about = 'resource "workflows/status" in API group "tinkerbell.org" in the namespace "default"'
    assert str(forbidden(user("view"), wanted)).endswith(f'forbidden: User "alice" cannot patch {about}')
    path = PathAction("get", "/x<&>")
    assert str(forbidden(user("view"), path)) == 'forbidden: User "alice" cannot get path "/x&lt;&amp;&gt;"'


# --- kubectl --as


def known(name: str) -> Caller:
    return Caller(name, ("system:authenticated",), "view" if name == "bob" else "", ())


def test_administrator_who_impersonates_a_user_has_the_rights_of_that_user_only() -> None:
    headers = CIMultiDict({"Impersonate-User": "bob"})
    bob = impersonate(ADMIN, headers, known)
    assert (bob.name, bob.by, bob.role, bob.groups) == ("bob", "admin", "view", ("system:authenticated",))
    assert not allowed(bob, ResourceAction("delete", "tinkerbell.org", "workflows", "", "default", "x"))
    assert not allowed(
        impersonate(ADMIN, CIMultiDict({"impersonate-user": "nobody"}), known), ResourceAction("list", "", "cm")
    )


@pytest.mark.parametrize(
    ("headers", "half"),
    [
        ({"Impersonate-User": "admin"}, False),
        ({"impersonate-user": "bob", "Impersonate-Group": "system:masters"}, False),
        ({"Impersonate-Group": "system:masters"}, True),
        ({"Impersonate-Extra-Scopes": "all"}, True),
        ({"Impersonate-Uid": "1"}, True),
        ({"Impersonate-User": "a", "Impersonate-Uid": "1"}, True),
    ],
)
def test_other_users_may_not_impersonate_and_incomplete_headers_are_refused(
    headers: dict[str, str], half: bool
) -> None:
    for role in ("view", "edit", "admin", ""):
        with pytest.raises(StatusError) as caught:
            impersonate(user(role), CIMultiDict(headers), known)
        assert caught.value.code == 403
    if half:
        with pytest.raises(StatusError) as caught:
            impersonate(ADMIN, CIMultiDict(headers), known)
        assert caught.value.code == 400


def test_damaged_file_of_users_at_the_start_leaves_the_administrator_alone_until_it_is_repaired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / USERS_FILE
    _, token = issue_token(tmp_path, "alice", "view", (), NOW, None)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    authenticator = Authenticator(lambda shown: shown == "admin", path, lambda: NOW)
    assert "only the administrator is known" in caplog.text
    assert authenticator.caller(b"admin") == ADMIN
    with pytest.raises(StatusError, match="Unauthorized"):
        authenticator.caller(token.encode())
    path.write_bytes(whole)
    assert authenticator.reread()
    assert authenticator.caller(token.encode()).name == "alice"

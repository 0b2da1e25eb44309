"""Who may do what: as Kubernetes' default roles have it, and refused in its words."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from multidict import CIMultiDict

from tink.api.crds import generate
from tink.apiserver.access import (
    ADMIN,
    ROLES,
    Action,
    Caller,
    ImpersonationError,
    ImpersonationForbiddenError,
    Request,
    allowed,
    forbidden_message,
    impersonated,
    wants_impersonation,
)

DEPLOY = Path(__file__).parents[4] / "deploy"
READS = ("get", "list", "watch")
WRITES = ("create", "update", "patch", "delete", "deletecollection")


def user(role: str, *namespaces: str) -> Caller:
    return Caller("alice", ("system:authenticated",), role, namespaces, "aaaaaaaa")


def verbs(role: str, resource: str, group: str = "tinkerbell.org", subresource: str = "") -> set[str]:
    every = (*READS, *WRITES, "impersonate", "escalate", "")
    return {verb for verb in every if allowed(user(role), Action(verb, group, resource, subresource, "default"))}


@pytest.mark.parametrize("resource", [one["spec"]["names"]["plural"] for one in generate()])
def test_our_resources_are_read_by_view_and_written_by_edit(resource: str) -> None:
    assert verbs("view", resource) == {*READS}
    for role in ("edit", "admin"):
        assert verbs(role, resource) == {*READS, *WRITES}
        assert verbs(role, resource, subresource="status") == {*READS}, "status is for controllers"


def test_secrets_are_not_for_view() -> None:
    """What a view user can read must not make him more than that (Kubernetes, user-facing roles)."""
    assert verbs("view", "secrets", "") == set()
    assert verbs("edit", "secrets", "") == {*READS, *WRITES}


@pytest.mark.parametrize("role", ["view", "edit", "admin"])
@pytest.mark.parametrize(
    ("group", "resource"),
    [
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
        ("authentication.k8s.io", "tokenreviews"),
        ("authorization.k8s.io", "subjectaccessreviews"),
        ("", "users"),
        ("", "groups"),
    ],
)
def test_what_would_make_more_of_a_user_is_for_cluster_admin(role: str, group: str, resource: str) -> None:
    assert verbs(role, resource, group) == set()
    assert allowed(user("cluster-admin"), Action("create", group, resource))


@pytest.mark.parametrize("role", ["view", "edit", "admin"])
def test_namespaces_are_read_and_not_written(role: str) -> None:
    assert verbs(role, "namespaces", "") == {*READS}
    assert verbs(role, "namespaces", "", "finalize") == set()


@pytest.mark.parametrize("role", ROLES)
def test_who_may_change_something_may_create_it(role: str) -> None:
    """Server-side apply and updates create what is not there: nobody asks again."""
    for rule in ROLES[role]:
        changes = {"patch", "update"} & {*rule.verbs}
        for group in rule.groups if changes else ():
            for resource in rule.resources:
                if "/" in resource:
                    continue  # A subresource needs an existing object.
                assert "create" in verbs(role, resource, group), (group, resource)


def test_each_role_may_what_the_lesser_one_may() -> None:
    order = ["view", "edit", "admin"]
    for less, more in pairwise(order):
        assert {*ROLES[less]} <= {*ROLES[more]}


def test_role_in_namespaces_holds_there_and_nowhere_else() -> None:
    alice = user("edit", "lab", "rack-2")
    assert allowed(alice, Action("delete", "tinkerbell.org", "workflows", "", "lab", "x"))
    assert not allowed(alice, Action("delete", "tinkerbell.org", "workflows", "", "default", "x"))
    assert not allowed(alice, Action("list", "tinkerbell.org", "workflows")), "of all namespaces at once"
    assert allowed(alice, Action("get", "", "namespaces", "", "lab", "lab"))
    assert not allowed(alice, Action("list", "", "namespaces"))


@pytest.mark.parametrize("role", ["", "view", "no-such-role"])
def test_everybody_may_find_out_what_there_is_and_what_he_may(role: str) -> None:
    for path in ("/api", "/apis", "/apis/tinkerbell.org/v1alpha2", "/openapi/v3", "/version", "/healthz"):
        assert allowed(user(role), Request("get", path))
    assert allowed(user(role, "lab"), Action("create", "authorization.k8s.io", "selfsubjectaccessreviews"))
    assert allowed(user(role), Action("create", "authentication.k8s.io", "selfsubjectreviews"))
    for path in ("/", "/metrics", "/apisx", "/debug/pprof", ""):
        assert not allowed(user(role), Request("get", path))
    assert not allowed(user(role), Request("post", "/apis"))


@pytest.mark.parametrize("component", ["server", "edge"])
def test_component_on_another_host_may_what_it_may_on_a_cluster(component: str) -> None:
    """tests/interop/test_privileges.py runs them with exactly that."""
    rules = [
        (rule["apiGroups"], rule["resources"], rule["verbs"])
        for document in yaml.load_all((DEPLOY / "rbac.yaml").read_text(), Loader=yaml.CSafeLoader)
        if document["kind"] == "ClusterRole" and document["metadata"]["name"] == f"tinkedge-{component}"
        for rule in document["rules"]
    ]
    rules += [([""], ["secrets"], ["get"])] if component == "edge" else []
    ours = ROLES[f"tinkedge-{component}"]
    assert [([*rule.groups], [*rule.resources], [*rule.verbs]) for rule in ours] == rules


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (
            Action("delete", "tinkerbell.org", "workflows", "", "default", "x"),
            'User "alice" cannot delete resource "workflows" in API group "tinkerbell.org" in the namespace "default"',
        ),
        (
            Action("patch", "tinkerbell.org", "workflows", "status", "default", "x"),
            'User "alice" cannot patch resource "workflows/status" in API group "tinkerbell.org" in the namespace '
            '"default"',
        ),
        (
            Action("list", "", "secrets"),
            'User "alice" cannot list resource "secrets" in API group "" at the cluster scope',
        ),
        (Request("get", "/x<&>"), 'User "alice" cannot get path "/x&lt;&amp;&gt;"'),
    ],
)
def test_refusal_is_in_the_words_of_kubernetes(wanted: Action | Request, said: str) -> None:
    assert forbidden_message(user("view"), wanted) == said


# --- kubectl --as


def known(name: str) -> Caller:
    return Caller(name, ("system:authenticated",), "view" if name == "bob" else "", ())


def test_administrator_may_be_somebody_else_and_then_may_no_more_than_that_one() -> None:
    headers = CIMultiDict({"Impersonate-User": "bob"})
    assert wants_impersonation(headers)
    bob = impersonated(ADMIN, headers, known)
    assert (bob.name, bob.by, bob.role, bob.groups) == ("bob", "admin", "view", ("system:authenticated",))
    assert not allowed(bob, Action("delete", "tinkerbell.org", "workflows", "", "default", "x"))
    assert not allowed(
        impersonated(ADMIN, CIMultiDict({"impersonate-user": "nobody"}), known), Action("list", "", "cm")
    )


@pytest.mark.parametrize("role", ["view", "edit", "admin", ""])
@pytest.mark.parametrize(
    "headers",
    [
        {"Impersonate-User": "admin"},
        {"impersonate-user": "bob", "Impersonate-Group": "system:masters"},
        {"Impersonate-Group": "system:masters"},
        {"Impersonate-Extra-Scopes": "all"},
        {"Impersonate-Uid": "1"},
    ],
)
def test_others_may_not_and_are_not_taken_for_themselves(role: str, headers: dict[str, str]) -> None:
    assert wants_impersonation(CIMultiDict(headers))
    with pytest.raises(ImpersonationForbiddenError):
        impersonated(user(role), CIMultiDict(headers), known)


@pytest.mark.parametrize("headers", [{"Impersonate-Group": "g"}, {"Impersonate-User": "a", "Impersonate-Uid": "1"}])
def test_half_an_impersonation_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ImpersonationError):
        impersonated(ADMIN, CIMultiDict(headers), known)

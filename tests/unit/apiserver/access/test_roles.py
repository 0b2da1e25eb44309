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


ALL, NOTHING = {*READS, *WRITES}, set[str]()
DANGEROUS = [  # would make more of a user (Kubernetes, user-facing roles)
    ("apiextensions.k8s.io", "customresourcedefinitions"),
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
        *(("tinkerbell.org", one["spec"]["names"]["plural"], "", {*READS}, ALL) for one in generate()),
        *(("tinkerbell.org", one["spec"]["names"]["plural"], "status", {*READS}, {*READS}) for one in generate()),
        ("", "secrets", "", NOTHING, ALL),
        ("", "namespaces", "", {*READS}, {*READS}),
        ("", "namespaces", "finalize", NOTHING, NOTHING),
        *((group, resource, "", NOTHING, NOTHING) for group, resource in DANGEROUS),
    ],
)
def test_roles_allow_these_verbs_and_no_others(group, resource, subresource, view, edit) -> None:
    found = {role: verbs(role, resource, group, subresource) for role in ("view", "edit", "admin")}
    assert found == {"view": view, "edit": edit, "admin": edit}
    assert allowed(user("cluster-admin"), Action("create", group, resource, subresource))


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


def test_refusal_is_in_the_words_of_kubernetes() -> None:
    wanted = Action("patch", "tinkerbell.org", "workflows", "status", "default", "x")
    about = 'resource "workflows/status" in API group "tinkerbell.org" in the namespace "default"'
    assert forbidden_message(user("view"), wanted) == f'User "alice" cannot patch {about}'
    path = Request("get", "/x<&>")
    assert forbidden_message(user("view"), path) == 'User "alice" cannot get path "/x&lt;&amp;&gt;"'


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
def test_others_may_not_and_half_an_impersonation_is_refused(headers: dict[str, str], half: bool) -> None:
    assert wants_impersonation(CIMultiDict(headers))
    for role in ("view", "edit", "admin", ""):
        with pytest.raises(ImpersonationForbiddenError):
            impersonated(user(role), CIMultiDict(headers), known)
    if half:
        with pytest.raises(ImpersonationError):
            impersonated(ADMIN, CIMultiDict(headers), known)

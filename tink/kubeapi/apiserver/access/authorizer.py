"""May this caller do this? Decided as Kubernetes' RBAC authorizer does, and refused in its words. Pure.

(k8s.io/kubernetes, plugin/pkg/auth/authorizer/rbac and pkg/apis/rbac/v1/evaluation_helpers.go; the refusal:
k8s.io/apiserver, pkg/endpoints/handlers/responsewriters/errors.go.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tink.kubeapi.apiserver.access.callers import Caller
from tink.kubeapi.apiserver.access.roles import ALL, EVERYBODY, ROLES, Rule
from tink.kubeapi.schema import quote


@dataclass(frozen=True, slots=True)
class Action:
    """A verb on a resource: in a `namespace`, or of all ("" too where the resource is in none)."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def combined(self) -> str:
        """`workflows`, `workflows/status`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


@dataclass(frozen=True, slots=True)
class Request:
    """A verb (the method, in lower case) on a path that is no resource's."""

    verb: str
    path: str


def allowed(caller: Caller, wanted: Action | Request) -> bool:
    """Whether he may. What nothing allows is forbidden."""
    namespace = wanted.namespace if isinstance(wanted, Action) else ""
    return any(_matches(rule, wanted) for rule in rules_in(caller, namespace))


def rules_in(caller: Caller, namespace: str) -> Iterator[Rule]:
    """The rules that hold for a caller in a namespace ("": outside of all, and in all at once)."""
    if not caller.namespaces or namespace in caller.namespaces:
        yield from ROLES.get(caller.role, ())
        if caller.role == "cluster-admin":
            return
    yield from EVERYBODY


def _matches(rule: Rule, wanted: Action | Request) -> bool:
    if wanted.verb not in rule.verbs and ALL not in rule.verbs:
        return False
    if isinstance(wanted, Request):
        return any(_is_path(path, wanted.path) for path in rule.paths)
    if wanted.group not in rule.groups and ALL not in rule.groups:
        return False
    return ALL in rule.resources or wanted.combined in rule.resources


def _is_path(pattern: str, path: str) -> bool:
    return pattern in (ALL, path) or (pattern.endswith(ALL) and path.startswith(pattern[:-1]))


def forbidden_message(caller: Caller, wanted: Action | Request) -> str:
    """Why not, in the words of Kubernetes: what stands after `... is forbidden: `."""
    user = _quoted(caller.name)
    if isinstance(wanted, Request):
        return f"User {user} cannot {wanted.verb} path {_quoted(wanted.path)}"
    what = f"{wanted.verb} resource {_quoted(wanted.combined)} in API group {_quoted(wanted.group)}"
    where = f"in the namespace {_quoted(wanted.namespace)}" if wanted.namespace else "at the cluster scope"
    return f"User {user} cannot {what} {where}"


def _quoted(text: str) -> str:
    """As Go's %q, with what HTML would take for its own made harmless, as Kubernetes does."""
    return quote(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

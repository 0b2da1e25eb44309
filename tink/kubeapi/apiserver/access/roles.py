"""What each role may do: Kubernetes' default ClusterRoles for users, as far as there is here what they are about.

(k8s.io/kubernetes, plugin/pkg/auth/authorizer/rbac/bootstrappolicy; "User-facing roles" in the documentation of RBAC.)
Our resources, and Metal3's, are in them as a cluster's would be by `rbac.authorization.k8s.io/aggregate-to-*`: `view`
reads them, `edit` writes them, their status is for controllers. Secrets are for `edit`, and not for `view`.
To change definitions, namespaces and webhooks is for `cluster-admin`.

Whoever may patch or update something here may create it, too: server-side apply creates what is not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on resources of groups (`hardware`, `hardware/status`), or on paths that are no resource's (`/api/*`)."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


_READ: Final = ("get", "list", "watch")
_WRITE: Final = ("create", "delete", "deletecollection", "patch", "update")

_TINKERBELL: Final = ("hardware", "osies", "templates", "workflows")
_METAL3: Final = ("baremetalhosts", "hardwaredata")


def _with_status(resources: Sequence[str]) -> tuple[str, ...]:
    return tuple(each for name in resources for each in (name, f"{name}/status"))


_VIEW: Final = (
    Rule(_READ, ("",), ("configmaps", "namespaces", "namespaces/status")),
    Rule(_READ, ("", "events.k8s.io"), ("events",)),
    Rule(_READ, ("tinkerbell.org",), _with_status(_TINKERBELL)),
    Rule(_READ, ("metal3.io",), _with_status(_METAL3)),
)
_EDIT: Final = (
    Rule(_READ, ("",), ("secrets",)),
    Rule(_WRITE, ("",), ("configmaps", "secrets")),
    Rule(_WRITE, ("", "events.k8s.io"), ("events",)),
    Rule((*_READ, *_WRITE), ("coordination.k8s.io",), ("leases",)),
    Rule(_WRITE, ("tinkerbell.org",), _TINKERBELL),
    Rule(_WRITE, ("metal3.io",), _METAL3),
)
_ADMIN: Final = (Rule(("create",), ("authorization.k8s.io",), ("localsubjectaccessreviews",)),)
_SERVER: Final = (
    Rule(("list", "watch"), ("tinkerbell.org",), ("hardware", "workflows")),
    Rule(("get",), ("tinkerbell.org",), ("workflows",)),
    Rule(("patch",), ("tinkerbell.org",), ("workflows/status",)),
)
_EDGE: Final = (
    Rule(("list", "watch"), ("tinkerbell.org",), ("hardware", "osies", "workflows")),
    Rule(("get",), ("tinkerbell.org",), ("hardware",)),
    Rule(("patch",), ("tinkerbell.org",), ("hardware/status",)),
    Rule(("create",), ("",), ("events",)),
    Rule(("get",), ("",), ("secrets",)),
)
"""What these components use, as deploy/rbac.yaml has it for clusters; user-data may stand in any Secret."""

ROLES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "cluster-admin": (Rule((ALL,), (ALL,), (ALL,)), Rule((ALL,), paths=(ALL,))),
    "admin": (*_VIEW, *_EDIT, *_ADMIN),
    "edit": (*_VIEW, *_EDIT),
    "view": _VIEW,
    "tinkedge-edge": _EDGE,
    "tinkedge-server": _SERVER,
}
"""For people, from most to least; then for components on other hosts."""

EVERYBODY: Final = (
    Rule(("create",), ("authorization.k8s.io",), ("selfsubjectaccessreviews", "selfsubjectrulesreviews")),
    Rule(("create",), ("authentication.k8s.io",), ("selfsubjectreviews",)),
    # Not in Kubernetes' roles. Terraform's provider plans by definitions, which have what /openapi shows every user.
    Rule(_READ, ("apiextensions.k8s.io",), ("customresourcedefinitions",)),
    Rule(
        ("get",),
        paths=(
            *("/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz"),
            *("/version", "/version/"),
        ),
    ),
)
"""What each user may do: find out what there is, and what he may do (system:discovery, system:basic-user)."""

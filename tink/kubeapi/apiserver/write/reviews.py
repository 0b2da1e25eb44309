"""Reviews: questions about users and their rights (authorization.k8s.io and authentication.k8s.io).

`kubectl auth can-i` and `kubectl auth whoami` send them, and controllers that protect their own endpoints
(kube-rbac-proxy). A review is created and answered in one request, and never stored. `access` decides; refusals are
those of Kubernetes (k8s.io/kubernetes, pkg/apis/authorization/validation). Pure except for the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from tink.kubeapi.apiserver import access, errors
from tink.kubeapi.apiserver.media import Body
from tink.kubeapi.apiserver.resources.registry import Resource, Rules, builtin_resource
from tink.kubeapi.apiserver.write import submission
from tink.kubeapi.schema import field_errors, meta
from tink.kubeapi.schema.field_errors import FieldError
from tink.kubeapi.schema.shapes import FLAG, TEXT, Raw, atomic, mapping, same, struct, texts
from tink.kubeapi.schema.structural import compile_schema, root_schema

AUTHORIZATION = "authorization.k8s.io"
AUTHENTICATION = "authentication.k8s.io"

_TEXTS = atomic(TEXT)
_EXTRA = mapping(_TEXTS)
_SELECTOR = struct(
    {"rawSelector": TEXT, "requirements": atomic(struct({**texts("key", "operator"), "values": _TEXTS}))}
)
_ACTION: Raw = {
    "nonResourceAttributes": struct(texts("path", "verb")),
    "resourceAttributes": struct(
        {
            **texts("namespace", "verb", "group", "version", "resource", "subresource", "name"),
            **same(_SELECTOR, "fieldSelector", "labelSelector"),
        }
    ),
}
_DECISION = struct({**same(FLAG, "allowed", "denied"), **texts("reason", "evaluationError")})
_SUBJECT = struct({**_ACTION, **texts("user", "uid"), "groups": _TEXTS, "extra": _EXTRA})
_USER = struct({**texts("username", "uid"), "groups": _TEXTS, "extra": _EXTRA})
_RULES = struct(
    {
        "resourceRules": atomic(struct(same(_TEXTS, "verbs", "apiGroups", "resources", "resourceNames"))),
        "nonResourceRules": atomic(struct(same(_TEXTS, "verbs", "nonResourceURLs"))),
        "incomplete": FLAG,
        "evaluationError": TEXT,
    }
)


def _review(group: str, kind: str, spec: Raw | None, status: Raw, *, namespaced: bool = False) -> Resource:
    openapi = struct({"status": status} if spec is None else {"spec": spec, "status": status})
    compiled = compile_schema(root_schema(openapi))
    if spec is not None:
        openapi |= {"required": ["spec"]}  # for clients; here a missing spec is one with errors
    more = {"list_kind": "", "namespaced": namespaced, "virtual": True}
    return builtin_resource(group, f"{kind.lower()}s", kind, openapi, Rules(), compiled, **more)


REVIEWS: Sequence[Resource] = (
    _review(AUTHORIZATION, "LocalSubjectAccessReview", _SUBJECT, _DECISION, namespaced=True),
    _review(AUTHORIZATION, "SelfSubjectAccessReview", struct(_ACTION), _DECISION),
    _review(AUTHORIZATION, "SelfSubjectRulesReview", struct({"namespace": TEXT}), _RULES),
    _review(AUTHORIZATION, "SubjectAccessReview", _SUBJECT, _DECISION),
    _review(AUTHENTICATION, "SelfSubjectReview", None, struct({"userInfo": _USER})),
    _review(
        AUTHENTICATION,
        "TokenReview",
        struct({"token": TEXT, "audiences": _TEXTS}),
        struct({"authenticated": FLAG, "user": _USER, "audiences": _TEXTS, "error": TEXT}),
    ),
)
"""The available reviews. They are not in the registry, since none is stored and `create` is their only verb."""
_BY_PLURAL = {(review.group, review.version, review.plural): review for review in REVIEWS}


def find_review(group: str, version: str, plural: str) -> Resource | None:
    """Return the review of a path, or None."""
    return _BY_PLURAL.get((group, version, plural))


class Reviewer:
    """Answers reviews about the users of an authenticator."""

    def __init__(self, users: access.Authenticator, now: Callable[[], datetime]) -> None:
        self._users = users
        self._now = now

    def answer(
        self,
        review: Resource,
        namespace: str,
        body: Body,
        validation: str = "Warn",
        caller: access.Caller = access.ADMIN,
    ) -> tuple[Raw, list[str]]:
        """Answer the review in a body (201), and return the warnings for `caller`. Raises StatusError (400, 422)."""
        obj = submission.read_object(review, namespace, body.value)
        found = submission.complete(review, obj)
        if found.errors:
            raise submission.cannot_be_handled(review, str(found.errors[0]))
        warnings = submission.unknown_fields(review, found, body.duplicates, validation)
        with errors.attach_warnings(warnings):
            return self._answer(review, namespace, obj, caller), warnings

    def _answer(self, review: Resource, namespace: str, body: Raw, caller: access.Caller) -> Raw:
        made = {"kind": review.kind, "apiVersion": review.api_version, "metadata": body["metadata"]}
        spec = body.get("spec") or {}
        match review.kind:
            case "SelfSubjectReview":
                created = meta.timestamp(self._now())
                return made | {"metadata": {"creationTimestamp": created}, "status": {"userInfo": caller.user_info()}}
            case "SelfSubjectRulesReview":
                if not spec.get("namespace"):
                    raise errors.bad_request("no namespace on request")
                return made | {"spec": {}, "status": _rules(caller, spec["namespace"])}
            case "TokenReview":
                return made | {"spec": spec, "status": self._whose(spec)}
        if wrong := list(_check(review.kind, body["metadata"], namespace, spec)):
            raise errors.invalid(review.group, "", "", wrong)
        who = caller
        if review.kind != "SelfSubjectAccessReview":
            who = (
                access.ADMIN
                if access.MASTERS in (spec.get("groups") or ())
                else self._users.user(spec.get("user") or "")
            )
        return made | {"spec": spec, "status": {"allowed": access.allowed(who, _asked(spec))}}

    def _whose(self, spec: Mapping[str, Any]) -> Raw:
        token = spec.get("token")
        if not token:
            raise errors.bad_request("token is required for TokenReview in authentication")
        # The tokens of this server have no audience.
        if not spec.get("audiences"):
            with suppress(errors.StatusError):
                caller = self._users.caller(token.encode("utf-8", "surrogateescape"))
                return {"authenticated": True, "user": caller.user_info()}
        return {"user": {}, "error": "invalid bearer token"}


def _rules(caller: access.Caller, namespace: str) -> Raw:
    """Return the rights of a caller in a namespace, as `kubectl auth can-i --list` shows them."""
    rules = list(access.rules_in(caller, namespace))
    return {
        "resourceRules": [
            {"verbs": [*rule.verbs], "apiGroups": [*rule.groups], "resources": [*rule.resources]}
            for rule in rules
            if rule.resources
        ],
        "nonResourceRules": [
            {"verbs": [*rule.verbs], "nonResourceURLs": [*rule.paths]} for rule in rules if rule.paths
        ],
        "incomplete": False,
    }


def _asked(spec: Mapping[str, Any]) -> access.ResourceAction | access.PathAction:
    if (other := spec.get("nonResourceAttributes")) is not None:
        return access.PathAction(other.get("verb") or "", other.get("path") or "")
    about = spec["resourceAttributes"]
    return access.ResourceAction(
        *(about.get(name) or "" for name in ("verb", "group", "resource", "subresource", "namespace", "name"))
    )


def _check(kind: str, metadata: Mapping[str, Any], namespace: str, spec: Mapping[str, Any]) -> Iterator[FieldError]:
    resource, other = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and other is not None:
        both = "cannot be specified in combination with resourceAttributes"
        yield field_errors.invalid("spec.nonResourceAttributes", other, both)
    if resource is None and other is None:
        neither = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        yield field_errors.invalid("spec.resourceAttributes", None, neither)
    if kind != "SelfSubjectAccessReview" and not spec.get("user") and not spec.get("groups"):
        yield field_errors.invalid("spec.user", "", "at least one of user or group must be specified")
    left = {key: value for key, value in metadata.items() if key not in ("managedFields", "creationTimestamp")}
    if kind == "LocalSubjectAccessReview":
        left.pop("namespace", None)
        if resource is not None and (asked := resource.get("namespace", "")) != namespace:
            yield field_errors.invalid("spec.resourceAttributes.namespace", asked, "must match metadata.namespace")
        if other is not None:
            yield field_errors.invalid("spec.nonResourceAttributes", other, "disallowed on this kind of request")
    if left:
        yield field_errors.invalid("metadata", left, "must be empty")

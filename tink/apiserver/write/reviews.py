"""Reviews: questions to the API server about who somebody is and what they may do (authorization and authentication).

`kubectl auth can-i` and `kubectl auth whoami` ask them, and controllers that protect their own endpoints
(kube-rbac-proxy and the like). A review is created and answered in one request, and never stored. This server knows one
user and lets it do everything, so it answers as a Kubernetes server with the authorizer AlwaysAllow does; what it
refuses is what that one refuses (k8s.io/kubernetes, pkg/apis/authorization/validation). Pure but for the clock.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tink.apiserver import errors
from tink.apiserver.resources.registry import Resource, Rules
from tink.apiserver.write import completion, submitted
from tink.schema import FieldError, Raw, compile_schema, field_errors, meta, root_schema

AUTHORIZATION = "authorization.k8s.io"
AUTHENTICATION = "authentication.k8s.io"

_TEXT: Raw = {"type": "string"}
_FLAG: Raw = {"type": "boolean"}
_TEXTS: Raw = {"type": "array", "items": _TEXT, "x-kubernetes-list-type": "atomic"}
_EXTRA: Raw = {"type": "object", "additionalProperties": _TEXTS}


def _object(properties: Raw, text: str = "", **more: Any) -> Raw:
    return {"type": "object", "properties": properties, **({"description": text} if text else {}), **more}


def _texts(*names: str) -> Raw:
    return dict.fromkeys(names, _TEXT)


_REQUIREMENTS: Raw = {
    "type": "array",
    "items": _object({**_texts("key", "operator"), "values": _TEXTS}),
    "x-kubernetes-list-type": "atomic",
}
_SELECTOR = _object({"rawSelector": _TEXT, "requirements": _REQUIREMENTS})
_ACTION: Raw = {
    "nonResourceAttributes": _object(_texts("path", "verb"), "A request for a path that is no resource."),
    "resourceAttributes": _object(
        {
            **_texts("namespace", "verb", "group", "version", "resource", "subresource", "name"),
            "fieldSelector": _SELECTOR,
            "labelSelector": _SELECTOR,
        },
        "A request for a resource.",
    ),
}
_DECISION = _object(
    {"allowed": _FLAG, "denied": _FLAG, "reason": _TEXT, "evaluationError": _TEXT},
    "The answer of the server.",
)
_SUBJECT = _object({**_ACTION, "user": _TEXT, "groups": _TEXTS, "extra": _EXTRA, "uid": _TEXT})
_USER = _object({"username": _TEXT, "uid": _TEXT, "groups": _TEXTS, "extra": _EXTRA}, "Who the user is.")
_RULES: Raw = {
    "resourceRules": {
        "type": "array",
        "items": _object(dict.fromkeys(("verbs", "apiGroups", "resources", "resourceNames"), _TEXTS)),
        "x-kubernetes-list-type": "atomic",
    },
    "nonResourceRules": {
        "type": "array",
        "items": _object(dict.fromkeys(("verbs", "nonResourceURLs"), _TEXTS)),
        "x-kubernetes-list-type": "atomic",
    },
    "incomplete": _FLAG,
    "evaluationError": _TEXT,
}


def _review(group: str, kind: str, text: str, spec: Raw | None, status: Raw, namespaced: bool = False) -> Resource:
    openapi = _object(
        {**({"spec": spec} if spec else {}), "status": status}, text, **({"required": ["spec"]} if spec else {})
    )
    return Resource(
        group,
        "v1",
        f"{kind.lower()}s",
        kind,
        openapi,
        compile_schema(root_schema({**openapi, "required": []})),
        singular=kind.lower(),
        namespaced=namespaced,
        virtual=True,
        rules=Rules(),
    )


_ALL = (
    _review(
        AUTHORIZATION,
        "LocalSubjectAccessReview",
        "Asks whether a user or group may do something in one namespace.",
        _SUBJECT,
        _DECISION,
        namespaced=True,
    ),
    _review(
        AUTHORIZATION, "SelfSubjectAccessReview", "Asks whether you may do something.", _object(_ACTION), _DECISION
    ),
    _review(
        AUTHORIZATION,
        "SelfSubjectRulesReview",
        "Asks for all that you may do in a namespace.",
        _object({"namespace": _TEXT}),
        _object(_RULES, "The rules that apply to you."),
    ),
    _review(
        AUTHORIZATION, "SubjectAccessReview", "Asks whether a user or group may do something.", _SUBJECT, _DECISION
    ),
    _review(AUTHENTICATION, "SelfSubjectReview", "Asks who you are.", None, _object({"userInfo": _USER})),
    _review(
        AUTHENTICATION,
        "TokenReview",
        "Asks whose token this is.",
        _object({"token": _TEXT, "audiences": _TEXTS}),
        _object({"authenticated": _FLAG, "user": _USER, "audiences": _TEXTS, "error": _TEXT}),
    ),
)
REVIEWS: Sequence[Resource] = _ALL
"""What can be asked. Not in the registry: nothing of it is stored, and `create` is the only verb."""
_BY_PLURAL = {(review.group, review.version, review.plural): review for review in REVIEWS}


def find_review(group: str, version: str, plural: str) -> Resource | None:
    """Give a review by what a path names, or None."""
    return _BY_PLURAL.get((group, version, plural))


@dataclass(frozen=True)
class User:
    """Who asks: what TokenReview and SelfSubjectReview tell."""

    name: str = "admin"
    groups: tuple[str, ...] = ("system:masters", "system:authenticated")

    def info(self) -> Raw:
        """Give the user as `UserInfo`."""
        return {"username": self.name, "groups": list(self.groups)}


class Reviewer:
    """Answers reviews for the one user of this server, who is known by `token`."""

    def __init__(self, token: bytes, now: Callable[[], datetime], user: User | None = None) -> None:
        self._token = token
        self._now = now
        self._user = user or User()

    def answer(
        self, review: Resource, namespace: str, value: Any, duplicates: tuple[str, ...] = (), validation: str = "Warn"
    ) -> tuple[Raw, list[str]]:
        """Answer the review in a body (201), with warnings for the one who asks. Raises StatusError (400, 422)."""
        asked = submitted.object_of(review, namespace, value)
        found = completion.complete(review, asked)
        if found.errors:
            raise completion.cannot_be_handled(review, str(found.errors[0]))
        warnings = completion.unknown_fields(review, found, duplicates, validation)
        made = {"kind": review.kind, "apiVersion": review.api_version, "metadata": asked["metadata"]}
        spec = asked.get("spec") or {}
        match review.kind:
            case "SelfSubjectReview":
                created = meta.timestamp(self._now())
                return made | {
                    "metadata": {"creationTimestamp": created},
                    "status": {"userInfo": self._user.info()},
                }, warnings
            case "SelfSubjectRulesReview":
                if not spec.get("namespace"):
                    raise errors.bad_request("no namespace on request")
                return made | {"spec": {}, "status": _everything()}, warnings
            case "TokenReview":
                return made | {"spec": spec, "status": self._whose(spec)}, warnings
        if wrong := _check(review.kind, asked["metadata"], namespace, spec):
            raise errors.invalid(review.group, "", "", wrong)
        return made | {"spec": spec, "status": {"allowed": True}}, warnings

    def _whose(self, spec: Mapping[str, Any]) -> Raw:
        token = spec.get("token")
        if not token:
            raise errors.bad_request("token is required for TokenReview in authentication")
        # The token of this server is made for no audience.
        given = token.encode("utf-8", "surrogateescape")
        if spec.get("audiences") or not hmac.compare_digest(given, self._token):
            return {"user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": self._user.info()}


def _everything() -> Raw:
    return {
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "incomplete": False,
    }


def _check(kind: str, metadata: Mapping[str, Any], namespace: str, spec: Mapping[str, Any]) -> list[FieldError]:
    """Find what is wrong with a question about access."""
    found: list[FieldError] = []
    resource, other = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and other is not None:
        both = "cannot be specified in combination with resourceAttributes"
        found.append(field_errors.invalid("spec.nonResourceAttributes", _as_go(other), both))
    if resource is None and other is None:
        neither = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        found.append(field_errors.invalid("spec.resourceAttributes", None, neither))
    if kind != "SelfSubjectAccessReview" and not spec.get("user") and not spec.get("groups"):
        found.append(field_errors.invalid("spec.user", "", "at least one of user or group must be specified"))
    left = {key: value for key, value in metadata.items() if key not in ("managedFields", "creationTimestamp")}
    if kind == "LocalSubjectAccessReview":
        left.pop("namespace", None)
        if resource is not None and resource.get("namespace", "") != namespace:
            wrong = "must match metadata.namespace"
            found.append(
                field_errors.invalid("spec.resourceAttributes.namespace", resource.get("namespace", ""), wrong)
            )
        if other is not None:
            wrong = "disallowed on this kind of request"
            found.append(field_errors.invalid("spec.nonResourceAttributes", _as_go(other), wrong))
    if left:
        found.append(field_errors.invalid("metadata", left, "must be empty"))
    return found


def _as_go(attributes: Mapping[str, Any]) -> Raw:
    """Write attributes into a message as the real server does, with the names of its own fields."""
    return {"Path": attributes.get("path", ""), "Verb": attributes.get("verb", "")}

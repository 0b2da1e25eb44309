"""Reviews: questions to the API server about who somebody is and what they may do (authorization and authentication).

`kubectl auth can-i` and `kubectl auth whoami` ask them, and controllers that protect their own endpoints
(kube-rbac-proxy and the like). A review is created and answered in one request, and never stored. This server knows one
user and lets it do everything, so it answers as a Kubernetes server with the authorizer AlwaysAllow does; what it
refuses is what that one refuses (k8s.io/kubernetes, pkg/apis/authorization/validation). Pure but for the clock.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from tink.apiserver import errors
from tink.apiserver.admission.attributes import USER
from tink.apiserver.resources import Resource, Rules
from tink.apiserver.write import completion, submitted
from tink.schema import FieldError, Raw, compile_schema, field_errors, meta, root_schema
from tink.schema.shapes import FLAG, TEXT, atomic, mapping, same, struct, texts

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
        "resourceRules": atomic(
            struct(same(_TEXTS, "verbs", "apiGroups", "resources", "resourceNames")),
        ),
        "nonResourceRules": atomic(struct(same(_TEXTS, "verbs", "nonResourceURLs"))),
        "incomplete": FLAG,
        "evaluationError": TEXT,
    }
)


def _review(group: str, kind: str, spec: Raw | None, status: Raw, *, namespaced: bool = False) -> Resource:
    openapi = struct({"status": status})
    if spec is not None:
        openapi = struct({"spec": spec, "status": status}, "spec")
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
"""What can be asked. Not in the registry: nothing of it is stored, and `create` is the only verb."""
_BY_PLURAL = {(review.group, review.version, review.plural): review for review in REVIEWS}


def find_review(group: str, version: str, plural: str) -> Resource | None:
    """Give a review by what a path names, or None."""
    return _BY_PLURAL.get((group, version, plural))


class Reviewer:
    """Answers reviews for the one user of this server, who is known by `token`."""

    def __init__(self, token: bytes, now: Callable[[], datetime]) -> None:
        self._token = token
        self._now = now

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
                    "status": {"userInfo": USER},
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
        return {"authenticated": True, "user": USER}


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
        found.append(field_errors.invalid("spec.nonResourceAttributes", other, both))
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
            found.append(field_errors.invalid("spec.nonResourceAttributes", other, wrong))
    if left:
        found.append(field_errors.invalid("metadata", left, "must be empty"))
    return found

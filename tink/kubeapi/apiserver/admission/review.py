"""The input of admission, and AdmissionReview: the request to a webhook and the check of its answer. Pure.

The request has the fields and their order of k8s.io/api/admission/v1. The answer is checked as in k8s.io/apiserver,
pkg/admission/plugin/webhook/request. An invalid answer is a failed call, which the webhook's failurePolicy may allow. A
refusal is final.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson

from tink.errors import TinkedgeError
from tink.kubeapi.apiserver.access import ADMIN, Caller
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.options import Labels, Match, requirement
from tink.kubeapi.apiserver.resources.registry import Resource
from tink.kubeapi.apiserver.webhooks import check_review, group_version_kind
from tink.kubeapi.schema import field_errors, structs
from tink.kubeapi.schema.shapes import BYTES, FLAG, INT32, TEXT, Raw, array, mapping, struct, texts


@dataclass(slots=True)
class Attributes:
    """One attempt of a write. `object` is the new state in the version of the request (None for DELETE), `old` the
    state before.

    `options` is the CreateOptions, UpdateOptions, PatchOptions or DeleteOptions object of the request. Mutation may
    replace `object`. Admission may append to `warnings`, which the client receives. `labels` are those of the
    namespace, read on first use. `releases` are called when the write has been stored or has failed
    (`AdmissionPlugin`).
    """

    operation: Literal["CREATE", "UPDATE", "DELETE"]
    resource: Resource
    namespace: str
    name: str
    subresource: str
    object: Raw | None
    old: Raw | None
    options: Raw
    dry_run: bool
    warnings: list[str] = field(default_factory=list)
    labels: Mapping[str, str] | None = None
    caller: Caller = ADMIN
    releases: list[Callable[[], None]] = field(default_factory=list)

    def release(self) -> None:
        """Release the plugins' reservations: the write has been stored or has failed."""
        while self.releases:
            self.releases.pop()()


Release = Callable[[], None]  # Function that is called once, when the write has been stored or has failed


class AdmissionPlugin(Protocol):
    """A reviewer of writes in this process, instead of a validating webhook. All methods run on the event loop.

    It receives the same AdmissionRequest as a webhook. A review that fails rejects the write. The plugin sees every
    commit of the resource that it follows, in order, so an answer may reserve something, such as an address, until the
    write ends.
    """

    @property
    def webhooks(self) -> Sequence[Raw]:
        """The rules, as entries of a ValidatingWebhookConfiguration without a clientConfig."""

    @property
    def followed(self) -> str:
        """The resource whose objects `apply` and `remove` receive, such as `tinkerbell.org/hardware`."""

    def apply(self, obj: Raw) -> None:
        """Add or update a stored object. Calls before `synced` bring the objects from before the start."""

    def remove(self, obj: Raw) -> None:
        """Remove an object that is no longer stored."""

    def synced(self) -> None:
        """Start to review. Called once, after `apply` has received every object that was stored before the start."""

    async def answer(self, request: Raw) -> tuple[Raw, Release | None]:
        """Return an AdmissionResponse (admission.k8s.io/v1) without its uid, and a release function.

        The release function ends the reservations of this review; None if there are none. It is called when the write
        is settled. An exception rejects the write (500).
        """


_EXEMPT = frozenset(
    f"{kind}{part}"
    for kind in ("Validating", "Mutating")
    for part in ("WebhookConfiguration", "AdmissionPolicy", "AdmissionPolicyBinding")
)


def exempt(resource: Resource) -> bool:
    """Return True if webhooks are never called: a wrong configuration must not block its own repair."""
    return resource.group == "admissionregistration.k8s.io" and resource.kind in _EXEMPT


def is_namespaces(resource: Resource) -> bool:
    """Return True for the resource of namespaces. They have cluster scope, and count as inside themselves."""
    return not resource.group and resource.plural == "namespaces"


@dataclass(frozen=True, slots=True)
class HookRule:
    """One rule of a webhook: each set holds the matched values, or `*`. `resources` holds (resource, subresource).

    Source: k8s.io/apiserver, pkg/admission/plugin/webhook/predicates.
    """

    operations: frozenset[str]
    groups: frozenset[str]
    versions: frozenset[str]
    resources: frozenset[tuple[str, str]]
    scope: str

    @staticmethod
    def of(rule: Mapping[str, Any]) -> HookRule:
        """Compile a RuleWithOperations."""
        split = (item.partition("/") for item in rule.get("resources") or ())
        return HookRule(
            frozenset(rule.get("operations") or ()),
            frozenset(rule.get("apiGroups") or ()),
            frozenset(rule.get("apiVersions") or ()),
            frozenset((resource, subresource) for resource, _, subresource in split),
            rule.get("scope") or "*",
        )

    def asks(self, operation: str, resource: Resource, subresource: str) -> bool:
        """Return True if the rule matches this operation on this resource and version."""
        if resource.version not in self.versions and "*" not in self.versions:
            return False
        if operation not in self.operations and "*" not in self.operations:
            return False
        if resource.group not in self.groups and "*" not in self.groups:
            return False
        if self.scope != "*" and (self.scope == "Namespaced") != resource.namespaced:
            return False
        pairs = self.resources
        return (
            (resource.plural, subresource) in pairs
            or ("*", subresource) in pairs
            or (resource.plural, "*") in pairs
            or ("*", "*") in pairs
        )


def compile_selector(selector: Mapping[str, Any] | None) -> Match | None:
    """Compile a LabelSelector (k8s.io/apimachinery, pkg/apis/meta/v1). Return None if it selects everything."""
    selector = selector or {}
    tests = [requirement(key, "In", [value]) for key, value in (selector.get("matchLabels") or {}).items()]
    tests += [
        requirement(item.get("key", ""), item.get("operator", ""), item.get("values") or ())
        for item in selector.get("matchExpressions") or ()
    ]
    if not tests:
        return None
    return tests[0] if len(tests) == 1 else lambda labels: all(holds(labels) for holds in tests)


def labels_of(obj: Mapping[str, Any] | None) -> Labels | None:
    """Return the labels of an object, {} if they are invalid. Return None if there is no object."""
    if obj is None:
        return None
    fields = obj.get("metadata")
    found = fields.get("labels") if isinstance(fields, Mapping) else None
    return found if isinstance(found, Mapping) else {}


GROUP = "admission.k8s.io"
VERSIONS = ("v1", "v1beta1")
"""Versions of AdmissionReview that this server can send."""
MAX_WARNINGS = 1000  # Maximum number of warnings from one answer; the rest is dropped


class InvalidResponseError(TinkedgeError):
    """The answer of a webhook is invalid. The message says why."""


def request(attributes: Attributes, wanted: Resource) -> Raw:
    """Return the AdmissionRequest without uid and objects. Match conditions see it as `request`. `wanted` is the
    resource in the version that the webhook wants."""
    made, options = attributes.resource, attributes.options
    if options.get("kind") == "PatchOptions":  # a patch creates or updates, and so do its options (handlers/patch.go)
        kind = "CreateOptions" if attributes.operation == "CREATE" else "UpdateOptions"
        options = {key: value for key, value in options.items() if key != "force"} | {"kind": kind}
    name = attributes.name
    if not name and attributes.object is not None:  # from generateName, known once the object is complete
        name = attributes.object["metadata"].get("name", "") if "uid" in attributes.object["metadata"] else ""
    namespace = name if is_namespaces(made) else attributes.namespace
    return {
        "kind": {"group": wanted.group, "version": wanted.version, "kind": wanted.kind},
        "resource": {"group": wanted.group, "version": wanted.version, "resource": wanted.plural},
        **({"subResource": attributes.subresource} if attributes.subresource else {}),
        "requestKind": {"group": made.group, "version": made.version, "kind": made.kind},
        "requestResource": {"group": made.group, "version": made.version, "resource": made.plural},
        **({"requestSubResource": attributes.subresource} if attributes.subresource else {}),
        **({"name": name} if name else {}),
        **({"namespace": namespace} if namespace else {}),
        "operation": attributes.operation,
        "userInfo": attributes.caller.user_info(),
        "dryRun": attributes.dry_run,
        "options": options,
    }


def review(version: str, uid: str, request: Raw, obj: Raw | None, old: Raw | None) -> bytes:
    """Return an AdmissionReview as JSON."""
    return orjson.dumps(
        {
            "kind": "AdmissionReview",
            "apiVersion": f"{GROUP}/{version}",
            "request": {"uid": uid, **request, "object": obj, "oldObject": old},
        }
    )


# --- the answer -------------------------------------------------------------------------------------------------

_STATUS = struct(
    {
        **texts("status", "message", "reason"),
        "code": INT32,
        "details": struct(
            {
                **texts("name", "group", "kind", "uid"),
                "causes": array(struct(texts("reason", "message", "field"))),
                "retryAfterSeconds": INT32,
            }
        ),
    }
)
_RESPONSE = structs.struct(
    struct(
        {
            **texts("uid", "patchType"),
            "allowed": FLAG,
            "status": _STATUS,
            "patch": BYTES,
            "auditAnnotations": mapping(TEXT),
            "warnings": array(TEXT),
        }
    )
)


def decode(answer: Any, version: str) -> Raw:
    """Check that a JSON value is an AdmissionReview of this version. Raises WebhookCallError, InvalidResponseError."""
    found = check_review(answer, f"{GROUP}/{version}", "AdmissionReview")
    if found.get("response") is not None:
        try:
            _RESPONSE.read(found["response"], "response")
        except structs.MistypedError as error:
            raise InvalidResponseError(str(error)) from error
    return found


def verify(answer: Raw, uid: str, version: str, *, mutating: bool) -> tuple[bytes, str]:
    """Check a decoded answer. Return its patch, which may be empty, and the type of the patch. Raises
    InvalidResponseError."""
    response = answer.get("response")
    if response is None:
        raise InvalidResponseError("webhook response was absent")
    patch = base64.b64decode(response.get("patch") or "")
    patch_type = response.get("patchType")
    if version == "v1":
        if (response.get("uid") or "") != uid:
            got = field_errors.quote(response.get("uid") or "")
            raise InvalidResponseError(f'expected response.uid="{uid}", got {got}')
        got, expected = group_version_kind(answer), f"{GROUP}/v1, Kind=AdmissionReview"
        if got != expected:
            raise InvalidResponseError(f"expected webhook response of {expected}, got {got}")
        _check_patch(patch, patch_type, mutating=mutating)
    elif patch:  # v1beta1 does not check the type of a patch: there is only one
        patch_type = "JSONPatch"
    return patch if mutating else b"", patch_type or ""


def settle(attributes: Attributes, hook: str, response: Raw) -> None:
    """Add the warnings of an AdmissionResponse. Raises StatusError if the webhook denied the write."""
    attributes.warnings.extend((response.get("warnings") or ())[:MAX_WARNINGS])
    if not response.get("allowed"):
        raise _refusal(hook, response.get("status"))


def _check_patch(patch: bytes, patch_type: str | None, *, mutating: bool) -> None:
    wrong = ""
    if not mutating and (patch or patch_type is not None):
        wrong = f"validating webhook may not return response.{'patch' if patch else 'patchType'}"
    elif patch and patch_type is None:
        wrong = "webhook returned response.patch but not response.patchType"
    elif not patch and patch_type is not None:
        wrong = "webhook returned response.patchType but not response.patch"
    elif patch_type == "":
        wrong = 'webhook returned invalid response.patchType of ""'
    if wrong:
        raise InvalidResponseError(wrong)


def _refusal(hook: str, status: Raw | None) -> StatusError:
    status = status or {}
    code = max(400, status.get("code") or 0)
    if code > 599:  # not a valid HTTP status
        code = 500
    denied = f"admission webhook {field_errors.quote(hook)} denied the request"
    why = status.get("message") or status.get("reason")
    return StatusError(
        code,
        status.get("reason") or "",
        f"{denied}: {why}" if why else f"{denied} without explanation",
        status.get("details") or None,
    )

"""AdmissionReview: what a webhook is sent, and what of its answer counts. Pure.

The request has the fields and their order of k8s.io/api/admission/v1; the answer is checked as in k8s.io/apiserver,
pkg/admission/plugin/webhook/request. Two errors differ in what follows: an answer that makes no sense is a failed call,
which the webhook's failurePolicy may forgive; a refusal is final.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import orjson

from tink.kubeapi.apiserver.admission.attributes import Attributes
from tink.kubeapi.apiserver.admission.matching import is_namespaces
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.resources import Resource
from tink.kubeapi.apiserver.webhooks import check_review, group_version_kind
from tink.kubeapi.schema import Raw, field_errors, structs
from tink.kubeapi.schema.shapes import BYTES, FLAG, INT32, TEXT, array, mapping, struct, texts

GROUP = "admission.k8s.io"
VERSIONS = ("v1", "v1beta1")
"""Versions of AdmissionReview that are spoken."""
MAX_WARNINGS = 1000
"""More warnings of one answer are dropped."""


class InvalidResponseError(Exception):
    """The answer of a webhook makes no sense; the message says why."""


@dataclass(frozen=True, slots=True)
class AdmissionResponse:
    """What a webhook said. `patch` is the text of a patch, empty when there is none; `refusal`: it denied."""

    patch: bytes = b""
    patch_type: str = ""
    warnings: tuple[str, ...] = ()
    refusal: StatusError | None = None


def request(attributes: Attributes, asked: Resource) -> Raw:
    """Give the AdmissionRequest without uid and objects: what match conditions see as `request`.

    `asked` is the resource in the version that the webhook wants.
    """
    made = attributes.resource
    name = attributes.name
    if not name and attributes.object is not None:  # made from generateName, known once the object is complete
        name = attributes.object["metadata"].get("name", "") if "uid" in attributes.object["metadata"] else ""
    namespace = name if is_namespaces(made) else attributes.namespace
    return {
        "kind": {"group": asked.group, "version": asked.version, "kind": asked.kind},
        "resource": {"group": asked.group, "version": asked.version, "resource": asked.plural},
        **({"subResource": attributes.subresource} if attributes.subresource else {}),
        "requestKind": {"group": made.group, "version": made.version, "kind": made.kind},
        "requestResource": {"group": made.group, "version": made.version, "resource": made.plural},
        **({"requestSubResource": attributes.subresource} if attributes.subresource else {}),
        **({"name": name} if name else {}),
        **({"namespace": namespace} if namespace else {}),
        "operation": attributes.operation,
        "userInfo": attributes.caller.user_info(),
        "dryRun": attributes.dry_run,
        "options": _options(attributes),
    }


def _options(attributes: Attributes) -> Raw:
    """A patch creates or updates, and so do its options (k8s.io/apiserver, pkg/endpoints/handlers/patch.go)."""
    options = attributes.options
    if options.get("kind") != "PatchOptions":
        return options
    kind = "CreateOptions" if attributes.operation == "CREATE" else "UpdateOptions"
    return {key: value for key, value in options.items() if key != "force"} | {"kind": kind}


def review(version: str, uid: str, asked: Raw, obj: Raw | None, old: Raw | None) -> bytes:
    """Write an AdmissionReview: what is `asked`, about which objects."""
    return orjson.dumps(
        {
            "kind": "AdmissionReview",
            "apiVersion": f"{GROUP}/{version}",
            "request": {"uid": uid, **asked, "object": obj, "oldObject": old},
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


def verify(hook: str, answer: Raw, uid: str, version: str, *, mutating: bool) -> AdmissionResponse:
    """Judge a decoded answer. Raises InvalidResponseError when it makes no sense."""
    response = answer.get("response")
    if response is None:
        raise InvalidResponseError("webhook response was absent")
    patch = base64.b64decode(response.get("patch") or "")
    patch_type = response.get("patchType")
    if version == "v1":
        if (response.get("uid") or "") != uid:
            got = field_errors.quote(response.get("uid") or "")
            raise InvalidResponseError(f'expected response.uid="{uid}", got {got}')
        _check_kind(answer)
        _check_patch(patch, patch_type, mutating=mutating)
    elif patch:  # the type of a patch was not checked in v1beta1: there is only one
        patch_type = "JSONPatch"
    if not mutating:
        patch = b""
    return judge(hook, response, patch, patch_type or "")


def judge(hook: str, response: Raw, patch: bytes = b"", patch_type: str = "") -> AdmissionResponse:
    """Return the decision of an AdmissionResponse."""
    return AdmissionResponse(
        patch,
        patch_type,
        tuple(response.get("warnings") or ())[:MAX_WARNINGS],
        None if response.get("allowed") else _refusal(hook, response.get("status")),
    )


def _check_kind(answer: Raw) -> None:
    got, expected = group_version_kind(answer), f"{GROUP}/v1, Kind=AdmissionReview"
    if got != expected:
        raise InvalidResponseError(f"expected webhook response of {expected}, got {got}")


def _check_patch(patch: bytes, patch_type: str | None, *, mutating: bool) -> None:
    if not mutating:
        if patch:
            raise InvalidResponseError("validating webhook may not return response.patch")
        if patch_type is not None:
            raise InvalidResponseError("validating webhook may not return response.patchType")
        return
    if patch and patch_type is None:
        raise InvalidResponseError("webhook returned response.patch but not response.patchType")
    if not patch and patch_type is not None:
        raise InvalidResponseError("webhook returned response.patchType but not response.patch")
    if patch_type == "":
        raise InvalidResponseError('webhook returned invalid response.patchType of ""')


def _refusal(hook: str, status: Raw | None) -> StatusError:
    """Make of the status in a refusal what the client is told."""
    status = status or {}
    code = status.get("code") or 0
    if code < 400:
        code = 400
    elif code > 599:  # no HTTP answer could carry it
        code = 500
    denied = f"admission webhook {field_errors.quote(hook)} denied the request"
    why = status.get("message") or status.get("reason")
    return StatusError(
        code,
        status.get("reason") or "",
        f"{denied}: {why}" if why else f"{denied} without explanation",
        status.get("details") or None,
    )

"""What can be wrong with a request, as Kubernetes says it: `Status` objects with a code, a reason and causes.

Every refusal of the API server is a `StatusError`; the HTTP shell turns it into the answer. The wording follows
k8s.io/apimachinery (pkg/api/errors, pkg/util/validation/field), because kubectl prints it to the operator unchanged and
controllers compare the reasons.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tink.errors import TinkedgeError
from tink.kubeapi.schema import FieldError, Raw, TooMuchAddedError, quote


class ApiServerError(TinkedgeError):
    """The API server cannot start or go on. The message says what to do."""


class StatusError(Exception):
    """A request that is answered with a Status object (Kubernetes API conventions, "Response Status Kind")."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details
        self.metadata: dict[str, Any] = {}
        self.warnings: Sequence[str] | None = None
        """What else the client is told; None while nobody has looked."""

    def body(self) -> dict[str, Any]:
        """Give the Status object."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
            **({"reason": self.reason} if self.reason else {}),
            "code": self.code,
        }
        if self.details is not None:
            status["details"] = self.details
        return status


@contextlib.contextmanager
def warned(warnings: Sequence[str]) -> Iterator[None]:
    """What was to be said of a request before it was refused reaches the client with the refusal."""
    try:
        yield
    except StatusError as error:
        error.warnings = warnings
        raise


def invalid(group: str, kind: str, name: str, errors: Sequence[FieldError]) -> StatusError:
    """Refuse an object: 422, one cause for each field error."""
    qualified = f"{kind}.{group}" if group else kind
    listed = str(errors[0]) if len(errors) == 1 else "[" + ", ".join(str(error) for error in errors) + "]"
    details = {
        "name": name,
        "group": group,
        "kind": kind,
        "causes": [{"reason": error.reason, "message": error.message, "field": error.field} for error in errors],
    }
    return StatusError(
        422,
        "Invalid",
        f"{qualified} {quote(name)} is invalid: {listed}",
        {key: value for key, value in details.items() if value},
    )


def _qualified(group: str, plural: str) -> str:
    return f"{plural}.{group}" if group else plural


def _details(group: str, plural: str, name: str) -> dict[str, Any]:
    details = {"name": name, "group": group, "kind": plural}
    return {key: value for key, value in details.items() if value}


def not_found(group: str, plural: str, name: str) -> StatusError:
    """Refuse: the object does not exist."""
    message = f"{_qualified(group, plural)} {quote(name)} not found"
    return StatusError(404, "NotFound", message, _details(group, plural, name))


def already_exists(group: str, plural: str, name: str) -> StatusError:
    """Refuse to create: an object of this name exists."""
    message = f"{_qualified(group, plural)} {quote(name)} already exists"
    return StatusError(409, "AlreadyExists", message, _details(group, plural, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(group: str, plural: str, name: str, why: str = MODIFIED) -> StatusError:
    """Refuse to write: the object is not as the writer thought (optimistic concurrency, preconditions)."""
    message = f"Operation cannot be fulfilled on {_qualified(group, plural)} {quote(name)}: {why}"
    return StatusError(409, "Conflict", message, _details(group, plural, name))


def forbidden(group: str, plural: str, name: str, why: str) -> StatusError:
    """Refuse: allowed to nobody in this state."""
    message = f"{_qualified(group, plural)} {quote(name)} is forbidden: {why}"
    return StatusError(403, "Forbidden", message, _details(group, plural, name))


def not_allowed(group: str, plural: str, name: str, why: str) -> StatusError:
    """Refuse: this user may not do that. `plural` is empty where it is about a path that is no resource's."""
    if name:
        return forbidden(group, plural, name, why)
    message = f"{_qualified(group, plural)} is forbidden: {why}" if plural else f"forbidden: {why}"
    return StatusError(403, "Forbidden", message, _details(group, plural, ""))


def bad_request(message: str) -> StatusError:
    """Refuse: the request cannot be understood."""
    return StatusError(400, "BadRequest", message)


def no_such_path(advice: str = "") -> StatusError:
    """Refuse: nothing is served under this path."""
    return StatusError(404, "NotFound", advice or "the server could not find the requested resource", {})


def method_not_allowed() -> StatusError:
    """Refuse: the resource does not have this verb."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def unsupported_media_type(supported: Sequence[str]) -> StatusError:
    """Refuse the content type of a body."""
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(supported)}"
    return StatusError(415, "UnsupportedMediaType", message)


def not_acceptable(supported: Sequence[str]) -> StatusError:
    """Refuse: the answer cannot be given in any form that the client accepts."""
    return StatusError(406, "NotAcceptable", f"only the following media types are accepted: {', '.join(supported)}")


def expired(message: str) -> StatusError:
    """Refuse: the resourceVersion or continue token is older than what is kept. The client must list again."""
    return StatusError(410, "Expired", message)


def too_large_version(wanted: int, current: int) -> StatusError:
    """Refuse: the resourceVersion is from the future, as after the state was set back. The client must list again."""
    message = f"Too large resource version: {wanted}, current: {current}"
    return StatusError(
        504,
        "Timeout",
        f"Timeout: {message}",
        {
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
    )


def unauthorized(message: str = "Unauthorized") -> StatusError:
    """Refuse: no token, or not ours."""
    return StatusError(401, "Unauthorized", message)


def too_large_body(limit: int) -> StatusError:
    """Refuse a body of more than `limit` bytes."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def too_many_values(limit: int) -> StatusError:
    """Return the error for a body with so many values that reading it would take too long."""
    why = f"Request entity too large: more than {limit} values; write several objects instead of one"
    return StatusError(413, "RequestEntityTooLarge", why)


def too_large_object(group: str, plural: str, name: str, why: str) -> StatusError:
    """Refuse an object that would become larger than what is stored."""
    what = f'{_qualified(group, plural)} "{name}"'
    return StatusError(413, "RequestEntityTooLarge", f"{what} is too large: {why}", _details(group, plural, name))


def too_much_added(group: str, plural: str, obj: Raw, error: TooMuchAddedError) -> StatusError:
    """Refuse an object that defaults would make large: the definition's, not the client's, fault perhaps."""
    fields = obj.get("metadata")
    name = str(fields.get("name") or fields.get("generateName") or "") if isinstance(fields, dict) else ""
    return too_large_object(group, plural, name, str(error))


def internal(message: str) -> StatusError:
    """Report a fault on our side, or of somebody whom we ask; the cause stands alone, too."""
    return StatusError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})

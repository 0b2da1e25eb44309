"""Refusals in Kubernetes' form: `Status` objects with a code, a reason and causes.

The HTTP shell turns a `StatusError` into the answer. The wording follows k8s.io/apimachinery (pkg/api/errors,
pkg/util/validation/field), because kubectl prints it unchanged and controllers compare the reasons.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tink.errors import TinkedgeError
from tink.kubeapi.schema.field_errors import FieldError, TooMuchAddedError, quote
from tink.kubeapi.schema.shapes import Raw


class ApiServerError(TinkedgeError):
    """The API server cannot start or continue. The message says what to do."""


class StatusError(TinkedgeError):
    """A request is refused with a Status object (Kubernetes API conventions, "Response Status Kind")."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details
        self.metadata: dict[str, Any] = {}
        self.warnings: Sequence[str] | None = None
        """Further warnings for the client; None until the fields of the body have been checked."""

    def body(self) -> dict[str, Any]:
        """Return the Status object."""
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
def attach_warnings(warnings: Sequence[str]) -> Iterator[None]:
    """Attach warnings to a refusal that is raised inside."""
    try:
        yield
    except StatusError as error:
        error.warnings = warnings
        raise


def invalid(group: str, kind: str, name: str, errors: Sequence[FieldError]) -> StatusError:
    """Return the refusal of an object: 422, one cause for each field error."""
    listed = str(errors[0]) if len(errors) == 1 else "[" + ", ".join(str(error) for error in errors) + "]"
    causes = [{"reason": error.reason, "message": error.message, "field": error.field} for error in errors]
    message = f"{_qualified(group, kind)} {quote(name)} is invalid: {listed}"
    return StatusError(422, "Invalid", message, details(group, kind, name, causes=causes))


def _qualified(group: str, plural: str) -> str:
    return f"{plural}.{group}" if group else plural


def details(group: str, plural: str, name: str, **more: Any) -> dict[str, Any]:
    """Return the details of a Status about an object: the fields that are not empty."""
    found = {"name": name, "group": group, "kind": plural, **more}
    return {key: value for key, value in found.items() if value}


def not_found(group: str, plural: str, name: str) -> StatusError:
    """Return the refusal for an object that does not exist."""
    message = f"{_qualified(group, plural)} {quote(name)} not found"
    return StatusError(404, "NotFound", message, details(group, plural, name))


def already_exists(group: str, plural: str, name: str) -> StatusError:
    """Return the refusal to create an object whose name is taken."""
    message = f"{_qualified(group, plural)} {quote(name)} already exists"
    return StatusError(409, "AlreadyExists", message, details(group, plural, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(group: str, plural: str, name: str, why: str = MODIFIED) -> StatusError:
    """Return the refusal to write an object that is not as the writer expected."""
    message = f"Operation cannot be fulfilled on {_qualified(group, plural)} {quote(name)}: {why}"
    return StatusError(409, "Conflict", message, details(group, plural, name))


def forbidden(group: str, plural: str, name: str, why: str) -> StatusError:
    """Return the refusal of an operation that no user may do in this state."""
    message = f"{_qualified(group, plural)} {quote(name)} is forbidden: {why}"
    return StatusError(403, "Forbidden", message, details(group, plural, name))


def not_allowed(group: str, plural: str, name: str, why: str) -> StatusError:
    """Return the refusal of an operation that this user may not do. `plural` is "" for a path outside resources."""
    if name:
        return forbidden(group, plural, name, why)
    message = f"{_qualified(group, plural)} is forbidden: {why}" if plural else f"forbidden: {why}"
    return StatusError(403, "Forbidden", message, details(group, plural, ""))


def bad_request(message: str) -> StatusError:
    """Return the refusal of a request that cannot be understood."""
    return StatusError(400, "BadRequest", message)


def no_such_path() -> StatusError:
    """Return the refusal for a path that is not served."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def method_not_allowed() -> StatusError:
    """Return the refusal of a verb that the resource lacks."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def unsupported_media_type(supported: Sequence[str]) -> StatusError:
    """Return the refusal of a body's content type."""
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(supported)}"
    return StatusError(415, "UnsupportedMediaType", message)


def not_acceptable(supported: Sequence[str]) -> StatusError:
    """Return the refusal of a client that accepts none of our media types."""
    return StatusError(406, "NotAcceptable", f"only the following media types are accepted: {', '.join(supported)}")


def expired(message: str) -> StatusError:
    """Return the refusal of a resourceVersion or continue token older than the history. The client must list again."""
    return StatusError(410, "Expired", message)


def too_large_version(wanted: int, current: int) -> StatusError:
    """Return the refusal of a resourceVersion from the future, as after a restore. The client must list again."""
    message = f"Too large resource version: {wanted}, current: {current}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return StatusError(504, "Timeout", f"Timeout: {message}", {"causes": causes, "retryAfterSeconds": 1})


def unauthorized(message: str = "Unauthorized") -> StatusError:
    """Return the refusal of a request without a valid token."""
    return StatusError(401, "Unauthorized", message)


def too_large(why: str) -> StatusError:
    """Return the refusal of a body that is too large."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: {why}")


def too_large_object(group: str, plural: str, name: str, why: str) -> StatusError:
    """Return the refusal of an object that would exceed the size of stored objects."""
    what = f'{_qualified(group, plural)} "{name}"'
    return StatusError(413, "RequestEntityTooLarge", f"{what} is too large: {why}", details(group, plural, name))


def too_much_added(group: str, plural: str, obj: Raw, error: TooMuchAddedError) -> StatusError:
    """Return the refusal of an object that defaults would make too large. The definition may be at fault."""
    fields = obj.get("metadata")
    name = str(fields.get("name") or fields.get("generateName") or "") if isinstance(fields, dict) else ""
    return too_large_object(group, plural, name, str(error))


def internal(message: str) -> StatusError:
    """Return the error for a fault of this server, or of a server that it calls. The cause also stands alone."""
    return StatusError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})

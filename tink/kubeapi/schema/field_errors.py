"""What can be wrong with one field of an object, in Kubernetes' words (k8s.io/apimachinery, pkg/util/validation/field).

kubectl prints these messages to the operator unchanged, and controllers compare the reasons.


----
What a compiled schema finds in an object: errors, each with its path, and the fields that no schema knows.

Paths are chains of (parent, step) and become text only when something is wrong. Shared by compiled
schemas (`structural`) and rules (`validations`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tink import golang


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that is wrong with one field: `field` is its path, `message` what kubectl prints after the path."""

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


def quote(value: object) -> str:
    """Write a bad value into a message as Go would, cut when it is very long. Objects are written in their order."""
    if isinstance(value, str) and len(value) > golang.MAX_SHOWN:
        return golang.quote(value[: golang.MAX_SHOWN])[:-1] + '..."'
    if isinstance(value, str):
        return golang.quote(value)
    return golang.cut(golang.number(value) if isinstance(value, float) else golang.to_json(value))


def required(field: str, detail: str = "") -> FieldError:
    """Report that a field must be given."""
    return FieldError(field, "FieldValueRequired", "Required value" + (f": {detail}" if detail else ""))


def invalid(field: str, value: object, detail: str, reason: str = "FieldValueInvalid") -> FieldError:
    """Report that a field holds a value that is not allowed."""
    return FieldError(field, reason, f"Invalid value: {quote(value)}: {detail}")


def invalid_whole(field: str, value: object, detail: str) -> FieldError:
    """Report that a field holds a value that is not allowed; the value is repeated whatever its size."""
    return FieldError(field, "FieldValueInvalid", f"Invalid value: {golang.bad_value(value)}: {detail}")


def type_invalid(field: str, value: object, detail: str) -> FieldError:
    """Report that a field holds a value of the wrong type."""
    return invalid(field, value, detail, "FieldValueTypeInvalid")


def not_supported(field: str, value: object, allowed: Sequence[object]) -> FieldError:
    """Report that a field holds none of the values that it may have."""
    names = ", ".join(quote(item) if isinstance(item, str) else quote(quote(item)) for item in allowed)
    return FieldError(field, "FieldValueNotSupported", f"Unsupported value: {quote(value)}: supported values: {names}")


def duplicate(field: str, value: object) -> FieldError:
    """Report an item that stands twice in a set, or a key that stands twice in a list of maps."""
    return FieldError(field, "FieldValueDuplicate", f"Duplicate value: {quote(value)}")


def too_long(field: str, limit: int) -> FieldError:
    """Report a text with more than `limit` characters."""
    return FieldError(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def too_many(field: str, actual: int, limit: int) -> FieldError:
    """Report a list or a map with more than `limit` entries."""
    return FieldError(field, "FieldValueTooMany", f"Too many: {actual}: must have at most {limit} items")


def forbidden(field: str, detail: str) -> FieldError:
    """Report a field that must not be set, or not be changed."""
    return FieldError(field, "FieldValueForbidden", f"Forbidden: {detail}")


Path = tuple["Path", str | int] | None
CompiledSchema = Callable[[Any, Path, "Outcome"], None]
"""A schema or a keyword of one, compiled: prunes, completes and checks a value in place, and reports what it finds."""

NOWHERE = "<nil>"
"""The path of errors that Kubernetes reports without one."""
MAX_ERRORS = 100
"""After so many errors the rest is not reported: an answer should not be larger than what caused it."""
MAX_ADDED = 3 << 20
"""So many bytes of JSON may defaults add to an object: as many as a client may send."""


class TooMuchAddedError(Exception):
    """Defaults add more than `MAX_ADDED` bytes to an object; `path` is that of the field at which they do."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the defaults of {path} and of what stands before it add more than {MAX_ADDED} bytes")
        self.path = path


@dataclass(slots=True)
class Outcome:
    """What one walk found: errors, and the paths of fields that were dropped because the schema does not know them.

    With `keeps_nulls` a null that no default takes the place of stays, to be refused where it may not be.
    """

    errors: list[FieldError] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    added: int = 0
    keeps_nulls: bool = False

    def report(self, error: FieldError) -> None:
        """Note an error."""
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(error)

    def add(self, path: Path, name: str | int, size: int) -> None:
        """Note a default of `size` bytes, before it is filled in. Raises TooMuchAddedError."""
        self.added += size
        if self.added > MAX_ADDED:
            raise TooMuchAddedError(render((path, name)))

    def drop_late(self, at: str) -> None:
        """Note an unknown field in the metadata of an embedded object; Kubernetes tells of these last."""
        if len(self.late) < MAX_ERRORS:
            self.late.append(at)

    def drop(self, path: Path, name: str) -> None:
        """Note an unknown field."""
        if len(self.unknown) < MAX_ERRORS:
            self.unknown.append(render((path, name)))


def render(path: Path) -> str:
    """Write a path as Kubernetes does: `spec.actions[0].name`."""
    steps: list[str | int] = []
    while path is not None:
        path, step = path
        steps.append(step)
    text = ""
    for step in reversed(steps):
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text

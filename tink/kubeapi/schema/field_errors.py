"""Errors in fields of an object, in Kubernetes' words, and the outcome of a walk over an object.

kubectl prints the messages to the operator unchanged, and controllers compare the reasons (k8s.io/apimachinery,
pkg/util/validation/field). Compiled schemas collect their errors in a `WalkResult`. Paths are chains of
(parent, step), which become text only for an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tink import golang
from tink.errors import TinkedgeError


@dataclass(frozen=True, slots=True)
class FieldError:
    """One error in one field: `field` is its path, `message` the text that kubectl prints after the path."""

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


def quote(value: object) -> str:
    """Return a bad value for a message as Go writes it, cut if it is very long. Fields of objects keep their order."""
    if isinstance(value, str) and len(value) > golang.MAX_SHOWN:
        return golang.quote(value[: golang.MAX_SHOWN])[:-1] + '..."'
    if isinstance(value, str):
        return golang.quote(value)
    return golang.cut(golang.number(value) if isinstance(value, float) else golang.to_json(value))


def required(field: str, detail: str = "") -> FieldError:
    """Return the error for a missing field."""
    return FieldError(field, "FieldValueRequired", "Required value" + (f": {detail}" if detail else ""))


def invalid(field: str, value: object, detail: str, reason: str = "FieldValueInvalid") -> FieldError:
    """Return the error for a value that is not allowed."""
    return FieldError(field, reason, f"Invalid value: {quote(value)}: {detail}")


def invalid_whole(field: str, value: object, detail: str) -> FieldError:
    """Return the error for a value that is not allowed. The message repeats the value whatever its size."""
    return FieldError(field, "FieldValueInvalid", f"Invalid value: {golang.bad_value(value)}: {detail}")


def type_invalid(field: str, value: object, detail: str) -> FieldError:
    """Return the error for a value of the wrong type."""
    return invalid(field, value, detail, "FieldValueTypeInvalid")


def not_supported(field: str, value: object, allowed: Sequence[object]) -> FieldError:
    """Return the error for a value that is not one of the allowed values."""
    names = ", ".join(quote(item) if isinstance(item, str) else quote(quote(item)) for item in allowed)
    return FieldError(field, "FieldValueNotSupported", f"Unsupported value: {quote(value)}: supported values: {names}")


def duplicate(field: str, value: object) -> FieldError:
    """Return the error for an item that is repeated in a set, or a key that is repeated in a list of maps."""
    return FieldError(field, "FieldValueDuplicate", f"Duplicate value: {quote(value)}")


def too_long(field: str, limit: int) -> FieldError:
    """Return the error for a text with more than `limit` characters."""
    return FieldError(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def too_many(field: str, actual: int, limit: int) -> FieldError:
    """Return the error for a list or map with more than `limit` entries."""
    items = "item" if limit == 1 else "items"
    return FieldError(field, "FieldValueTooMany", f"Too many: {actual}: must have at most {limit} {items}")


def forbidden(field: str, detail: str) -> FieldError:
    """Return the error for a field that must not be set, or not be changed."""
    return FieldError(field, "FieldValueForbidden", f"Forbidden: {detail}")


Step = str | int | tuple[str]
"""A field, an index of a list, or a key of a map in a tuple: `.field`, `[0]`, `[key]`."""
Path = tuple["Path", Step] | None
CompiledSchema = Callable[[Any, Path, "WalkResult"], None]
"""A compiled schema or keyword: prunes, completes and checks a value in place, and reports to the outcome."""

NOWHERE = "<nil>"
"""The path of errors that Kubernetes reports without a path, in a check of a whole object."""
MAX_ERRORS = 100
"""Maximum number of errors in an answer, which should not be larger than the request."""
MAX_ADDED = 3 << 20
"""Maximum size in bytes of the JSON that defaults add to an object: as much as a client may send."""


class TooMuchAddedError(TinkedgeError):
    """Defaults add more than `MAX_ADDED` bytes to an object. `path` is the field at which they do."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the defaults up to {path} add more than {MAX_ADDED} bytes")
        self.path = path


@dataclass(slots=True)
class WalkResult:
    """The result of one walk: errors, and the paths of unknown fields, which the walk has dropped.

    With `keeps_nulls`, a null stays if no default replaces it, so that it is rejected where null is not allowed.
    `part` is the top-level field that is checked alone, such as status; empty: the whole object. Messages of Kubernetes
    then name a field relative to it, such as "power" for status.power (k8s.io/apiextensions-apiserver,
    pkg/registry/customresource/validator.go, ValidateStatusUpdate).
    """

    errors: list[FieldError] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    added: int = 0
    keeps_nulls: bool = False
    part: str = ""

    @property
    def nowhere(self) -> str:
        """The path of errors that Kubernetes reports without a path."""
        return self.part or NOWHERE

    def name(self, path: Path) -> str:
        """Return the name of a path in the text of a message: relative to `part`."""
        at = render(path)
        if not self.part or not f"{at}.".startswith(f"{self.part}."):
            return at
        return at[len(self.part) + 1 :]

    def report(self, error: FieldError) -> None:
        """Add an error."""
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(error)

    def add(self, path: Path, name: Step, size: int) -> None:
        """Count a default of `size` bytes before it is filled in. Raises TooMuchAddedError."""
        self.added += size
        if self.added > MAX_ADDED:
            raise TooMuchAddedError(render((path, name)))

    def drop_late(self, at: str) -> None:
        """Add an unknown field in the metadata of an embedded object. Kubernetes reports these last."""
        if len(self.late) < MAX_ERRORS:
            self.late.append(at)

    def drop(self, path: Path, name: str) -> None:
        """Add an unknown field."""
        if len(self.unknown) < MAX_ERRORS:
            self.unknown.append(render((path, name)))


def steps(path: Path) -> list[Step]:
    """Return the steps of a path from the root."""
    found: list[Step] = []
    while path is not None:
        path, step = path
        found.append(step)
    return found[::-1]


def render(path: Path) -> str:
    """Return a path as Kubernetes writes it: `spec.actions[0].name`, `spec.labels[a.b]`."""
    text = ""
    for step in steps(path):
        if isinstance(step, str):
            text += f".{step}" if text else step
        else:
            text += f"[{step if isinstance(step, int) else step[0]}]"
    return text

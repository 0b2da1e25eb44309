"""What can be wrong with one field of an object, in Kubernetes' words (k8s.io/apimachinery, pkg/util/validation/field).

kubectl prints these messages to the operator unchanged, and controllers compare the reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

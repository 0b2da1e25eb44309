"""The status of Machines, Jobs and Tasks: conditions and how they change. Pure."""

from __future__ import annotations

from tink.api.v1alpha2 import Raw, as_mapping
from tink.printable import printable
from tink.timestamps import rfc3339

_MAX_MESSAGE = 1024


def condition(obj: Raw, kind: str) -> Raw:
    """Return the condition of a type; an empty one if the object has none."""
    return next((each for each in _conditions(obj) if each.get("type") == kind), {})


def is_true(obj: Raw, kind: str) -> bool:
    """Return True if the condition of a type is True."""
    return condition(obj, kind).get("status") == "True"


def with_condition(
    obj: Raw, kind: str, *, is_true: bool, reason: str, message: str, now: float, time_field: str = "lastTransitionTime"
) -> list[Raw]:
    """Return the conditions of `obj` with a new one of type `kind`. `now` is in Unix seconds.

    A condition that stays the same keeps its time, so that an unchanged status needs no write.
    """
    before = condition(obj, kind)
    new = {"type": kind, "status": "True" if is_true else "False", "reason": reason, "message": bounded(message)}
    if all(before.get(key, "") == value for key, value in new.items()):
        return _conditions(obj)
    new[time_field] = rfc3339(now)
    return [*(each for each in _conditions(obj) if each.get("type") != kind), new]


def bounded(message: str) -> str:
    """Return a message without control characters, of at most 1024 characters. A BMC may have written parts of it."""
    return printable(message)[:_MAX_MESSAGE]


def _conditions(obj: Raw) -> list[Raw]:
    found = as_mapping(obj.get("status")).get("conditions")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

"""Read the fields of an object, and report each field that no converter asked for as dropped.

A converter asks for the fields that it knows, by name and type, and calls `rest()` at the end. A field of the wrong
type is reported where it is read and counts as absent, so that converters need no type checks:

    spec = Fields(obj, findings).fields("spec")
    hostname = spec.text("hostname")
    spec.drop("tinkVersion", "it had no use")
    spec.rest()

Empty fields (null, "", [], {}) are never reported: they lose nothing.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from tink.api import bounds
from tink.api.v1alpha2 import Raw
from tink.convert.constraints import Check
from tink.convert.findings import Findings
from tink.net.urls import redacted

UNKNOWN = "there is no such field, and v1alpha2 has no place for it"

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_MAX_KEY_CHARACTERS = 80

_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}


@lru_cache(8192)  # all objects of a kind have the same paths
def join(path: str, key: str | int) -> str:
    """Return the path of a child: `spec.disks`, `a[0]`, odd keys in quotes: `a["b/c"]`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not _PLAIN_KEY.match(key):
        if len(key) > _MAX_KEY_CHARACTERS:
            key = key[:_MAX_KEY_CHARACTERS] + "…"
        return f'{path}["{key.encode("unicode_escape").decode()}"]'
    return f"{path}.{key}" if path else key


def says_nothing(value: Any) -> bool:
    """Return True for an empty value: null, "", [], {}, and containers of only such values."""
    if isinstance(value, dict):
        return all(says_nothing(item) for item in value.values())
    if isinstance(value, list):
        return all(says_nothing(item) for item in value)
    return value is None or value == ""


def type_name(value: Any) -> str:
    """Return the type of a JSON-like value in words: `a list`."""
    return "null" if value is None else _NAMES.get(type(value), type(value).__name__)


def shown(text: str, longest: int = 100) -> str:
    """Return a value in quotes for a message. Long text is cut and secrets in URLs are hidden."""
    text = redacted(text)
    return repr(text if len(text) <= longest else text[:longest] + "…")


class Fields:
    """The fields of one mapping in an object.

    `path` is the place of the mapping in its object; empty for the object itself. Every method that reads a field marks
    it as read.
    """

    __slots__ = ("_findings", "_unread", "_value", "path")

    def __init__(self, value: Any, findings: Findings, path: str = "") -> None:
        """Accept a mapping. null counts as an empty one; any other value is reported and counts as an empty one."""
        self.path = path
        self._findings = findings
        if not isinstance(value, dict):
            if value is not None:
                findings.dropped(path, f"must be an object, is {type_name(value)}")
            value = {}
        self._value: Raw = value
        self._unread = dict.fromkeys(value)

    def __contains__(self, key: str) -> bool:
        """Return True if the field exists, even if it is null. Does not mark it as read."""
        return key in self._value

    def __bool__(self) -> bool:
        """Return True if the mapping has any field."""
        return bool(self._value)

    def at(self, key: str | int) -> str:
        """Return the path of a field of this mapping."""
        return join(self.path, key)

    def peek(self, key: str) -> Any:
        """Return the value of a field, of any type; None if absent. Does not mark it as read."""
        return self._value.get(key)

    def take(self, key: str) -> Any:
        """Return the value of a field, of any type; None if absent."""
        self._unread.pop(key, None)
        return self._value.get(key)

    def text(self, key: str) -> str | None:
        """Return a string; None if absent, null or of another type (reported)."""
        value: str | None = self._typed(key, str, "a string")
        return value

    def flag(self, key: str) -> bool | None:
        """Return a boolean; None if absent, null or of another type (reported)."""
        value: bool | None = self._typed(key, bool, "a boolean")
        return value

    def integer(self, key: str) -> int | None:
        """Return an integer; None if absent, null or of another type (reported)."""
        value = self.take(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if value is not None:
            self._wrong(self.at(key), "an integer", value)
        return None

    def fields(self, key: str) -> Fields:
        """Return the mapping under a key; an empty one if absent, null or of another type (reported)."""
        return Fields(self.take(key), self._findings, self.at(key))

    def array(self, key: str) -> list[tuple[str, Any]]:
        """Return the items of a list with their paths; none if absent, null or of another type (reported)."""
        value = self._typed(key, list, "a list")
        path = self.at(key)
        return [(join(path, index), item) for index, item in enumerate(value or ())]

    def each(self, key: str) -> list[Fields]:
        """Return the mappings in a list. Items of another type are reported and left out."""
        return [
            Fields(item, self._findings, path)
            for path, item in self.array(key)
            if isinstance(item, dict) or self._wrong(path, "an object", item)
        ]

    def texts(self, key: str) -> list[tuple[str, str]]:
        """Return the strings in a list with their paths. Items of another type are reported and left out."""
        return [
            (path, item)
            for path, item in self.array(key)
            if isinstance(item, str) or self._wrong(path, "a string", item)
        ]

    def mapping(self, key: str) -> list[tuple[str, str, Any]]:
        """Return path, key and value of each entry of a mapping with free keys (labels, env)."""
        value = self._typed(key, dict, "an object")
        path = self.at(key)
        return [(join(path, name), name, item) for name, item in (value or {}).items()]

    def drop(self, key: str, reason: str) -> None:
        """Report a field as dropped unless it is empty. False and 0 count as absent, as in Go."""
        if key not in self._value:
            return
        value = self.take(key)
        if not says_nothing(value) and value is not False and value != 0:
            self._findings.dropped(self.at(key), reason)

    def dropped(self, key: str, reason: str) -> None:
        """Report that a field is lost, and why. Does not mark it as read."""
        self._findings.dropped(self.at(key), reason)

    def changed(self, key: str, reason: str) -> None:
        """Report that a field has another form or meaning now, and which."""
        self._findings.changed(self.at(key), reason)

    def error(self, key: str, reason: str) -> None:
        """Report that a field prevents the conversion, and what to do."""
        self._findings.error(self.at(key), reason)

    def moved(self, key: str, to: str) -> None:
        """Record the new path of a field (`Findings.moved`)."""
        self._findings.moved(self.at(key), to)

    def put(self, name: str, check: Check, result: Raw, at: str, key: str) -> bool:
        """Call `put_checked` for a string field."""
        return put_checked(self._findings, self.at(name), self.text(name), check, result, at, key)

    def ignore(self, *keys: str) -> None:
        """Mark fields as read that need no finding, such as `metadata.uid`."""
        for key in keys:
            self._unread.pop(key, None)

    def rest(self, reason: str = UNKNOWN) -> None:
        """Report all unread fields as dropped: one finding a field, whatever is below it."""
        for key in self._unread:
            if not says_nothing(self._value[key]):
                self._findings.dropped(self.at(key), reason)
        self._unread.clear()

    def _typed(self, key: str, kind: type, name: str) -> Any:
        value = self.take(key)
        if value is None or isinstance(value, kind):
            return value
        self._wrong(self.at(key), name, value)
        return None

    def _wrong(self, path: str, wanted: str, value: Any) -> bool:
        """Report a value of the wrong type and return False. null is not reported."""
        if value is not None:
            self._findings.dropped(path, f"must be {wanted}, is {type_name(value)}")
        return False


def put_checked(findings: Findings, path: str, value: Any, check: Check, result: Raw, at: str, key: str) -> bool:
    """Put a value into `result[key]` if it exists and passes the check. Return True if it was put.

    `at` is the path of `result`. A bad value is reported as dropped, with the check's reason; a good one as moved.
    """
    if value is None or value == "":
        return False
    refusal = check(value) if isinstance(value, str) else f"must be a string, is {type_name(value)}"
    if refusal:
        findings.dropped(path, refusal)
        return False
    result[key] = value
    findings.moved(path, join(at, key))
    return True


LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

_SERVER_FIELDS = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generateName",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
)


def carried(top: Fields, findings: Findings) -> Raw:
    """Return the metadata of the result: name, namespace, labels and annotations. `top` is the object.

    Owners and finalizers are dropped: they name objects by uid, and controllers that do not know the new version.
    Fields that the API server writes are ignored.
    """
    metadata = top.fields("metadata")
    result: Raw = {"name": metadata.text("name")}
    namespace = metadata.text("namespace")
    if namespace:
        result["namespace"] = namespace
    labels = _string_values(metadata, "labels", findings)
    annotations = _string_values(metadata, "annotations", findings)
    # kubectl would compare the last applied object, which has the old version, with the new one.
    annotations.pop(LAST_APPLIED, None)
    if labels:
        result["labels"] = labels
    if annotations:
        result["annotations"] = annotations
    metadata.ignore(*_SERVER_FIELDS)
    metadata.drop("ownerReferences", "owners are named by a uid, which another API server does not have")
    metadata.drop("finalizers", "their controllers do not know the new object: it could not be deleted")
    metadata.rest("Kubernetes has no such field of metadata")
    return result


def _string_values(metadata: Fields, key: str, findings: Findings) -> dict[str, str]:
    found: dict[str, str] = {}
    for path, name, value in metadata.mapping(key):
        if isinstance(value, str):
            found[name] = value
        elif value is not None:
            text = _scalar_text(value)
            if text is None:
                findings.dropped(path, "must be a string")
            else:
                findings.changed(path, f"must be a string: is now {text!r}")
                found[name] = text
    return found


def _scalar_text(value: Any) -> str | None:
    """Return a boolean or a number as JSON writes it, as if it had been quoted. None for any other value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else None


def param_text(value: Any, at: str, findings: Findings) -> str | None:
    """Return a value as a templateParam, which is a string; None for null."""
    if value is None or isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, dict | list):
        findings.changed(at, f"is {type_name(value)}, and a string of JSON now: use it as (fromJson .Params.NAME)")
    else:
        findings.changed(at, f"is {type_name(value)}, and the string {text} now")
    return text


def check_params(params: dict[str, str], at: str, findings: Findings) -> None:
    """Report template parameters that exceed v1alpha2's bounds."""
    if len(params) > bounds.MAX_TEMPLATE_PARAMS:
        findings.error(at, f"v1alpha2 takes {bounds.MAX_TEMPLATE_PARAMS} parameters, here are {len(params)}")
    for key, text in params.items():
        if len(text) > bounds.MAX_TEXT_CHARACTERS:
            findings.error(
                f"{at}.{key}", f"longer than {bounds.MAX_TEXT_CHARACTERS} characters, the most that v1alpha2 takes"
            )

"""Read YAML as Kubernetes does: with the scalar rules of sigs.k8s.io/yaml (go-yaml v2), not those of PyYAML.

The difference matters: PyYAML reads the unquoted MAC address 52:54:00:12:34:56 as a number in base 60, and 2001-01-01
as a date. Here both are strings, as for kubectl, and a manifest means the same wherever it is read.

All YAML from users is read here. `Document` makes JSON-like values of libyaml's events, in one pass and without
recursion. It counts bytes as JSON would have them. An alias adds the size of the whole value that it repeats (against
"billion laughs"), and so does a `<<` merge. So the size of the result, and the work, are at most a small multiple of
the text, or of what an API server takes. The speed is about 3 MB a second: a long text is read beside the event loop
(`tink.offload`).
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import yaml

from tink.api.v1alpha2 import Raw
from tink.errors import TinkedgeError

MAX_DEPTH = 100
"""Maximum nesting, including the values that aliases repeat."""

_BOOLEANS = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"), False),
}
_NULLS = ("", "~", "null", "Null", "NULL")
_INTEGER = re.compile(r"^[-+]?(0b[01_]+|0o?[0-7_]*|0x[0-9a-fA-F_]+|[1-9][0-9_]*)$")
_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_NOT_FINITE = re.compile(r"^([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$")
_NUMERIC = frozenset("-+.0123456789")
_MAX_NUMBER_CHARACTERS = 400
"""Maximum characters of a number. Longer ones mean nothing in JSON, and Python makes integers of any length."""
_TAG = "tag:yaml.org,2002:"
_KINDS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),)}
_JSON_OVERHEAD_BYTES = 3
"""Bytes that JSON writes around a value: quotes or brackets, and a comma."""
_MAX_CACHED_CHARACTERS = 64
"""Maximum characters of a scalar in the cache, which keeps it in memory."""


class YamlError(TinkedgeError, ValueError):
    """Text that is not YAML, or not a Kubernetes object. The message says why; `line` is the place (from 1; 0 if
    unknown).
    """

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


# --- scalars ----------------------------------------------------------------------------------------------------------


def plain_scalar(text: str) -> Any:
    """Return the value of an unquoted scalar without a tag: a boolean, null, a number, or the text itself.

    Raises ValueError for values that JSON does not have, such as .inf.
    """
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text in _NULLS:
        return None
    if text[0] not in _NUMERIC or len(text) > _MAX_NUMBER_CHARACTERS:
        return text
    if _INTEGER.match(text):
        return _integer(text)
    return _float(text) if _FLOAT.match(text) or _NOT_FINITE.match(text) else text


def _integer(text: str) -> int:
    digits = text.replace("_", "").lower()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    if digits.startswith("0") and len(digits) > 1 and digits[1] in "01234567":
        digits = "0o" + digits[1:]
    return sign * int(digits, 0)


def _float(text: str) -> float | int:
    if _NOT_FINITE.match(text):
        raise ValueError(f"{text} has no place in JSON")
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large a number")
    # JSON knows one kind of number: 1e3 is the integer 1000 for Kubernetes.
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _as_key(value: Any) -> str:
    """Return a key as a string, as JSON requires. Kubernetes writes other keys as JSON would."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _plain_key(text: str) -> str:
    return _as_key(plain_scalar(text))


_known_scalar = lru_cache(maxsize=4096)(plain_scalar)
_known_key = lru_cache(maxsize=4096)(_plain_key)


def _scalar(event: yaml.ScalarEvent) -> Any:
    """Return the value of any scalar. Raises YamlError."""
    if event.tag is not None:
        return _tagged(event)
    try:
        return event.value if event.style else plain_scalar(event.value)
    except ValueError as error:
        raise _at(event, str(error)) from error


def _tagged(event: yaml.ScalarEvent) -> Any:
    """Return the value of a scalar with a tag. Raises YamlError."""
    tag = event.tag or "!"
    if tag in ("!", _TAG + "str"):
        return event.value
    kinds = _KINDS.get(tag.removeprefix(_TAG))
    if kinds is None:
        raise _at(event, f"the tag {tag[:200]} has no meaning here: take it out")
    try:
        made = plain_scalar(event.value)
    except ValueError as error:
        raise _at(event, str(error)) from error
    if not isinstance(made, kinds) or (isinstance(made, bool) and kinds != (bool,)):
        raise _at(event, f"{event.value[:200]!r} is not what its tag {tag} says")
    return made


def _at(event: yaml.Event, message: str) -> YamlError:
    return YamlError(message, _line(event))


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


# --- documents --------------------------------------------------------------------------------------------------------

_KEY: Any = object()
"""Stands in place of a key: the next scalar is a key."""
_MERGE: Any = object()
"""Stands in place of a key: the next value is to be merged."""


class _Frame:
    """A collection that is not finished yet. `spent` is the byte count at its beginning."""

    __slots__ = ("anchor", "height", "key", "made", "merged", "spent")

    def __init__(self, made: Any, anchor: str | None, spent: int) -> None:
        self.made = made
        self.key = _KEY
        self.merged: list[dict[str, Any]] = []
        self.anchor = anchor
        self.spent = spent
        self.height = 0


class Document:
    """Builds the value of one document from its events. `budget` is in bytes."""

    def __init__(self, budget: int, repeated: list[tuple[str, int]] | None = None) -> None:
        self._budget = budget
        self._repeated = repeated
        self._spent = 0
        self._here = _Frame([], None, 0)
        self._above: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int, int] | None] = {}

    def value(self) -> Any:
        """Return the value of all events."""
        return self._here.made[0] if self._here.made else None

    def take(self, event: Any) -> None:
        """Take the next event (yaml.Event) between the document's start and its end. Raises YamlError."""
        kind = event.__class__
        if kind is yaml.ScalarEvent:
            self.take_scalar(event)
        elif kind is yaml.MappingStartEvent:
            self._begin(event, {}, "map")
        elif kind is yaml.SequenceStartEvent:
            self._begin(event, [], "seq")
        elif kind is yaml.AliasEvent:
            self._alias(event)
        else:
            self._end(event)

    def take_scalar(self, event: yaml.ScalarEvent) -> None:
        """Take a scalar event, which is the most frequent kind. Raises YamlError."""
        here = self._here
        made = here.made
        text = event.value
        self._spent += len(text) + _JSON_OVERHEAD_BYTES
        usual = event.tag is None and not event.style and len(text) <= _MAX_CACHED_CHARACTERS
        try:
            if here.key is _KEY and made.__class__ is dict:
                if text == "<<" and usual:
                    here.key = _MERGE
                    return
                key = _known_key(text) if usual else _as_key(_scalar(event))
                if key in made:
                    self._twice(key, event)
                here.key = key
            elif made.__class__ is list:
                made.append(_known_scalar(text) if usual else _scalar(event))
            elif here.key is _MERGE:
                self._put(here, None, event)
            else:
                made[here.key] = _known_scalar(text) if usual else _scalar(event)
                here.key = _KEY
        except YamlError:
            raise
        except ValueError as error:
            raise _at(event, str(error)) from error
        if event.anchor is not None:
            self._anchors[event.anchor] = (_scalar(event), len(text) + _JSON_OVERHEAD_BYTES, 0)

    def _twice(self, key: str, event: yaml.Event) -> None:
        """Handle a repeated key."""
        if self._repeated is None:
            raise _at(event, f"key {key[:200]!r} is given twice")
        self._repeated.append((key, _line(event)))

    def _put(self, here: _Frame, value: Any, event: yaml.Event) -> None:
        """Put a value in its place."""
        if here.made.__class__ is list:
            here.made.append(value)
        elif here.key is _KEY:
            raise _at(event, "a key must be a string")
        elif here.key is _MERGE:
            sources = value if isinstance(value, list) else [value]
            if not all(isinstance(source, dict) for source in sources):
                raise _at(event, "what << merges must be a mapping, or a list of mappings")
            here.merged += sources
            here.key = _KEY
        else:
            here.made[here.key] = value
            here.key = _KEY

    def _begin(self, event: yaml.CollectionStartEvent, made: Any, tag: str) -> None:
        if event.tag not in (None, "!", _TAG + tag):
            raise _at(event, f"the tag {event.tag[:200]} has no meaning here: take it out")
        if self._here.key is _KEY and self._here.made.__class__ is dict:
            raise _at(event, "a key must be a string")
        self._above.append(self._here)
        self._check_depth(event, 0)
        self._here = _Frame(made, event.anchor, self._spent)
        self._spent += _JSON_OVERHEAD_BYTES
        if event.anchor is not None:
            self._anchors[event.anchor] = None  # not before it is finished

    def _end(self, event: yaml.CollectionEndEvent) -> None:
        done = self._here
        for source in done.merged:
            for key, value in source.items():
                done.made.setdefault(key, value)
        here = self._here = self._above.pop()
        height = done.height + 1
        here.height = max(here.height, height)
        self._check_budget(event)
        if done.anchor is not None:
            self._anchors[done.anchor] = (done.made, self._spent - done.spent, height)
        self._put(here, done.made, event)

    def _alias(self, event: yaml.AliasEvent) -> None:
        """Put an aliased value in its place, and count its bytes again."""
        name = event.anchor or ""
        found = self._anchors.get(name)
        if found is None:
            known = name in self._anchors
            raise _at(event, "the value contains itself, by an alias" if known else "found undefined alias")
        value, cost, height = found
        self._spent += cost
        self._check_budget(event)
        self._check_depth(event, height)
        here = self._here
        here.height = max(here.height, height)
        if here.key is _KEY and here.made.__class__ is dict and not isinstance(value, dict | list):
            key = _as_key(value)
            if key in here.made:
                self._twice(key, event)
            here.key = key
        else:
            self._put(here, value, event)

    def _check_budget(self, event: yaml.Event) -> None:
        if self._spent > self._budget:
            raise _at(event, f"more than {self._budget} bytes of values, counting what aliases repeat")

    def _check_depth(self, event: yaml.Event, height: int) -> None:
        if len(self._above) + height > MAX_DEPTH:
            raise _at(event, f"nested deeper than {MAX_DEPTH} levels, counting what aliases repeat")


__all__ = [
    "MAX_BYTES",
    "YamlError",
    "document_and_repeated",
    "documents",
    "objects",
    "objects_and_errors",
    "plain_scalar",
    "read",
]

MAX_BYTES = 3 * 1024 * 1024
"""The size of a request body that Kubernetes' API accepts; larger manifests could not be applied. Also the maximum
bytes of values that any text may give, however short it is.
"""
MAX_RATIO = 4
"""Maximum bytes of values for each byte of a longer text. Without an alias it can't be more."""
_MAX_TAGS = 8
"""Maximum %TAG directives: libyaml compares each with each. No tag that they could shorten is supported here."""

_BREAK_TAG = re.compile("(?:^|[\n\r\x85\u2028\u2029\ufeff])%TAG")


class Parser(yaml.CBaseLoader):
    """libyaml's parser (and composer) without tags: the scalar rules are applied to the events (and nodes).

    Raises yaml.YAMLError, ValueError.
    """

    def __init__(self, text: str) -> None:
        if "%TAG" in text and len(_BREAK_TAG.findall(text)) > _MAX_TAGS:
            raise ValueError(f"more than {_MAX_TAGS} %TAG directives")
        super().__init__(text)

    def resolve(self, kind: object, value: object, implicit: object) -> None:
        """Return no tag: only explicit ones count."""

    def ascend_resolver(self) -> None:
        """Do nothing."""

    def descend_resolver(self, *_arguments: object) -> None:
        """Do nothing."""


def read(text: str | bytes, repeated: list[tuple[str, int]] | None = None) -> Iterator[Any]:
    """Yield the documents of a YAML (or JSON) text as JSON-like values. What aliases repeat is one object.

    Repeated keys are errors, or are added to `repeated` with their lines. Raises YamlError, with the line if it is
    known.
    """
    try:
        if isinstance(text, bytes):
            text = _decoded(text)
        parser = Parser(text)
        budget = max(MAX_BYTES, MAX_RATIO * len(text))
        while True:
            event = parser.get_event()
            if isinstance(event, yaml.DocumentStartEvent):
                yield _parse_document(parser, Document(budget, repeated))
            elif isinstance(event, yaml.StreamEndEvent):
                return
    except (yaml.YAMLError, ValueError) as error:
        raise as_yaml_error(error, text) from error


def _parse_document(parser: Parser, document: Document) -> Any:
    get, take, take_scalar = parser.get_event, document.take, document.take_scalar
    while True:
        event: Any = get()
        if event.__class__ is yaml.ScalarEvent:
            take_scalar(event)
        elif event.__class__ is yaml.DocumentEndEvent:
            return document.value()
        else:
            take(event)


def _decoded(raw: bytes) -> str:
    """Decode bytes, whose encoding is detected as libyaml does. Raises UnicodeDecodeError."""
    wide = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return raw.decode("utf-16") if wide else raw.removeprefix(codecs.BOM_UTF8).decode()


def as_yaml_error(error: Exception, text: str | bytes = "") -> YamlError:
    """Return an error of `Parser` or `read` as a YamlError, with the line from 1; 0 if unknown."""
    if isinstance(error, YamlError):
        return error
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        return YamlError(what or "not YAML", mark.line + 1 if mark else 0)
    if isinstance(error, yaml.reader.ReaderError):
        line = text.encode()[: error.position].count(b"\n") + 1 if isinstance(text, str) else 0
        return YamlError(f"{error.reason} (here 0x{error.character:02x})", line)
    return YamlError(" ".join(str(error).split()))


def check_depth(text: str) -> None:
    """Raise YamlError for deep nesting. PyYAML's composer is recursive and would overrun the C stack."""
    depth = 0
    for event in iter(Parser(text).get_event, None):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise YamlError(f"nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def document_and_repeated(text: str | bytes) -> tuple[Any, list[tuple[str, int]]]:
    """Return the first document of a YAML text, and its repeated keys with their lines. Raises YamlError.

    The last value of a repeated key wins, as in Kubernetes without strict validation.
    """
    repeated: list[tuple[str, int]] = []
    _check_size(text)
    return next(read(text, repeated), None), repeated


def documents(text: str | bytes) -> Iterator[Any]:
    """Yield the documents of a YAML (or JSON) text as JSON-like values. Raises YamlError."""
    _check_size(text)
    try:
        yield from read(text)
    except YamlError as error:
        where = f"line {error.line}: " if error.line else ""
        raise YamlError(f"not YAML: {where}{error}", error.line) from error


def _check_size(text: str | bytes) -> None:
    if len(text) > MAX_BYTES:
        raise YamlError(f"larger than {MAX_BYTES} bytes")


def objects(text: str | bytes) -> list[Raw]:
    """Return the Kubernetes objects in a YAML text, without empty documents and with the items of Lists.

    Raises YamlError.
    """
    found = []
    for each in objects_and_errors(text):
        if isinstance(each, YamlError):
            raise each
        found.append(each)
    return found


def objects_and_errors(text: str | bytes) -> Iterator[Raw | YamlError]:
    """Yield the same objects, and an error for each document that is none. Invalid YAML ends the iteration with an
    error.
    """
    try:
        for number, document in enumerate(documents(text), start=1):
            if document is None:
                continue
            if not isinstance(document, dict) or not all(
                isinstance(document.get(key), str) for key in ("apiVersion", "kind")
            ):
                yield YamlError(f"document {number} is no Kubernetes object: apiVersion or kind is missing")
            elif document["kind"] != "List":
                yield document
            elif isinstance(items := document.get("items") or [], list):
                yield from items
            else:
                yield YamlError(f"document {number}: items of a List are no list")
    except YamlError as error:
        yield error

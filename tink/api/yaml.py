"""YAML as Kubernetes reads it: the scalar rules of sigs.k8s.io/yaml (go-yaml v2), not those of PyYAML.

The difference is not academic: PyYAML reads the unquoted MAC address 52:54:00:12:34:56 as a number in base 60, and
2001-01-01 as a date. Here both are strings, as for kubectl, and a manifest means the same wherever it is read.

This is the one reader of the house for YAML that others write, and `yaml_values` what makes values of libyaml's events
and keeps count: what comes out of a text is a small multiple of its length, or at most what an API takes, and so is the
work. A text is read in one pass, at some 3 MB a second: a long one is read beside the event loop (`tink.offload`).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tink.api.v1alpha2 import Raw
from tink.api.yaml_values import MAX_DEPTH, Document, YamlError, plain_scalar

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
"""The size of a request body that Kubernetes' API takes; larger manifests could not be applied. And so many bytes of
values may come of any text, however short it is."""
MAX_RATIO = 4
"""Bytes of values that may come of each byte of a longer text. Without an alias it can't be more."""
_MAX_TAGS = 8
"""Most %TAG directives: libyaml compares each with each. No tag that they could shorten is understood here."""

_BREAK_TAG = re.compile("(?:^|[\n\r\x85\u2028\u2029\ufeff])%TAG")


class Parser(yaml.CBaseLoader):
    """libyaml's parser (and composer) without tags: the rules are applied to the events (and nodes).

    Raises yaml.YAMLError, ValueError.
    """

    def __init__(self, text: str) -> None:
        if "%TAG" in text and len(_BREAK_TAG.findall(text)) > _MAX_TAGS:
            raise ValueError(f"more than {_MAX_TAGS} %TAG directives")
        super().__init__(text)

    def resolve(self, kind: object, value: object, implicit: object) -> None:
        """No tag but the explicit ones."""

    def ascend_resolver(self) -> None:
        """Nothing to do."""

    def descend_resolver(self, *_arguments: object) -> None:
        """Nothing to do."""


def read(text: str | bytes, repeated: list[tuple[str, int]] | None = None) -> Iterator[Any]:
    """The documents of a YAML (or JSON) text as JSON-like values; what aliases repeat is one object.

    Keys that stand twice are refused, or put into `repeated` with their lines. Raises YamlError, with the line if it is
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
                yield _document(parser, Document(budget, repeated))
            elif isinstance(event, yaml.StreamEndEvent):
                return
    except (yaml.YAMLError, ValueError) as error:
        raise as_yaml_error(error, text) from error


def _document(parser: Parser, document: Document) -> Any:
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
    """Text of bytes, whose encoding is as libyaml finds it. Raises UnicodeDecodeError."""
    wide = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return raw.decode("utf-16") if wide else raw.removeprefix(codecs.BOM_UTF8).decode()


def as_yaml_error(error: Exception, text: str | bytes = "") -> YamlError:
    """What is wrong with a text, and the line, counted from 1; 0 if unknown. `error` is one of `Parser` or `read`."""
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
    """Refuse deep nesting before anything recurses over it: PyYAML's composer would overrun the stack of C."""
    depth = 0
    for event in iter(Parser(text).get_event, None):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise YamlError(f"nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def document_and_repeated(text: str | bytes) -> tuple[Any, list[tuple[str, int]]]:
    """The first document of a YAML text, and the keys that stand in it twice, with their lines. Raises YamlError.

    The last value of a key is taken, as Kubernetes does when it is not told to be strict.
    """
    repeated: list[tuple[str, int]] = []
    _check_size(text)
    return next(read(text, repeated), None), repeated


def documents(text: str | bytes) -> Iterator[Any]:
    """The documents of a YAML (or JSON) text as JSON-like values. Raises YamlError."""
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
    """Yield the same objects, and an error for each document that is none. What is no YAML ends it with an error."""
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

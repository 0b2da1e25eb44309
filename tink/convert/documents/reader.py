"""Text to documents: YAML of many documents, JSON, Lists; one broken document does not take the others with it.

A stream is cut at its document markers before anything is parsed: `---` in the first column is one wherever it stands,
even inside a block scalar (YAML 1.2 section 9.1.2). What can't be read becomes a finding with its line, counted in the
file.

A file may be as large as a rack's inventory; an object may not be larger than what an API server takes
(`tink.api.yaml.MAX_BYTES`), whatever it was a part of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import orjson

from tink.api import yaml
from tink.api.v1alpha2 import Raw, as_mapping
from tink.api.yaml import MAX_BYTES, YamlError
from tink.convert.documents.comments import has_comments
from tink.convert.documents.document import MAX_DEPTH, Document, error_in, validated
from tink.convert.fields import join, shown, type_name
from tink.convert.findings import Finding, Kind, Source

# A document's start, with the directives that stand before it.
_START = re.compile(rb"^(?:%[^\n]*\n(?:[%#][^\n]*\n|[ \t\r]*\n)*)?---(?=[ \t\r\n]|\Z)", re.MULTILINE)
_SAYS_NOTHING = re.compile(rb"(?:[ \t\r]*(?:#[^\n]*)?(?:\n|\Z))*")
_NEXT_OBJECT = re.compile(r"^\{", re.MULTILINE)
_JSON_START = re.compile(rb"(?:---)?[ \t\r\n]*[{\[]")
_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


def read(file: str, content: bytes) -> Iterator[Document | Finding]:
    """The objects of a file's content, YAML or JSON, and an error finding for each part that can't be read."""
    if content.startswith(_UTF16_BOMS):  # as PowerShell's `>` writes
        try:
            content = content.decode("utf-16").encode()
        except UnicodeDecodeError as error:
            yield Finding(Kind.ERROR, Source(file, 1, "", "", ""), "", f"not UTF-16, as it says: byte {error.start}")
            return
    number = 1
    for line, chunk in _chunks(content.removeprefix(_BOM)):
        parts = _json_chunk(file, number, line, chunk)
        if parts is None:
            parts = [list(_yaml_chunk(Source(file, number, "", "", ""), line, chunk))]
        for part in parts:
            yield from part
        number += len(parts)


def _chunks(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The documents' texts, each with the number of its first line; comments before the first marker are its."""
    starts = [match.start() for match in _START.finditer(content)]
    if starts and _SAYS_NOTHING.fullmatch(content, 0, starts[0]):
        starts[0] = 0
    elif not starts or starts[0]:
        starts.insert(0, 0)
    ends = [*starts[1:], len(content)]
    line, done = 1, 0
    for start, end in zip(starts, ends, strict=True):
        line += content.count(b"\n", done, start)
        done = start
        yield line, content[start:end]


def _yaml_chunk(source: Source, first_line: int, chunk: bytes) -> Iterator[Document | Finding]:
    try:
        text = chunk.decode()
    except UnicodeDecodeError as error:
        line = first_line + chunk.count(b"\n", 0, error.start)
        yield Finding(Kind.ERROR, source, "", f"line {line}: not UTF-8 (byte 0x{chunk[error.start]:02x})")
        return
    try:
        values = list(yaml.read(text))
    except YamlError as error:
        where = f"line {first_line + error.line - 1}: " if error.line else ""
        yield Finding(Kind.ERROR, source, "", f"not YAML: {where}{error}")
        return
    kept = text if has_comments(text) else None
    for found in values:
        yield from _objects(source, found, kept, len(text))


def _json_chunk(file: str, number: int, first_line: int, chunk: bytes) -> list[list[Document | Finding]] | None:
    """Objects one after the other, as kubectl takes them. None: this is no JSON, but perhaps YAML in flow style."""
    if _JSON_START.match(chunk) is None:
        return None
    try:
        text = chunk.decode()
    except UnicodeDecodeError:
        return None
    at = _skip_space(text, len("---") if text.startswith("---") else 0)
    parts: list[list[Document | Finding]] = []
    while at < len(text):
        source = Source(file, number + len(parts), "", "", "")
        try:
            obj, end = _DECODER.raw_decode(text, at)
            parts.append(list(_objects(source, _sound(obj), None, end - at)))
        except (ValueError, RecursionError) as error:
            if not parts and not file.endswith(".json"):
                return None
            line = first_line + text.count("\n", 0, getattr(error, "pos", at))
            reason = f"not JSON: line {line}: {_json_problem(error)}"
            parts.append([Finding(Kind.ERROR, source, "", reason)])
            following = _NEXT_OBJECT.search(text, at + 1)
            end = following.start() if following else len(text)
        at = _skip_space(text, end)
    return parts


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _once(pairs: list[tuple[str, Any]]) -> Raw:
    """An object's fields, none of which may be given twice: of two values one would be lost without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        left = set(found)
        for key, _ in pairs:
            if key not in left:
                raise ValueError(f"in the value that begins there, key {shown(key, 80)} is given twice")
            left.discard(key)
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_once)


def _json_problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"nested deeper than {MAX_DEPTH} levels"
    return getattr(error, "msg", "") or str(error)


def _sound(obj: Any) -> Any:
    """What the standard library takes for JSON and others do not (half a surrogate pair) is refused: ValueError."""
    try:
        orjson.dumps(obj)
    except orjson.JSONEncodeError as error:
        if not str(error).startswith(("Integer", "Recursion")):  # of these there is more to say later
            raise ValueError(str(error)) from error
    return obj


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _objects(source: Source, found: Any, text: str | None, size: int) -> Iterator[Document | Finding]:
    """The object of a document, or those of a List; nothing for an empty document."""
    if found is None:
        return
    pending = [("", found, "", "")]
    while pending:
        prefix, obj, api_version, kind = pending.pop()
        if not isinstance(obj, dict):
            yield Finding(Kind.ERROR, source, prefix, f"must be a Kubernetes object, is {type_name(obj)}")
            continue
        if kind:
            obj = {"apiVersion": api_version, "kind": kind} | obj
        items = _items(obj)
        if items is None:
            yield _document(source, obj, prefix, text, size)
        elif prefix.count("items") >= MAX_DEPTH:
            yield Finding(Kind.ERROR, source, "", f"Lists nested deeper than {MAX_DEPTH} levels")
        else:
            at = join(prefix, "items")
            below = [(join(at, index), item, *_kind_of_items(obj)) for index, item in enumerate(items)]
            pending += reversed(below)
            text = None


def _items(obj: Raw) -> list[Any] | None:
    """The items of a List (`v1` List, or HardwareList as the API answers it); None if this is no List."""
    kind = obj.get("kind")
    if not isinstance(kind, str) or not kind.endswith("List") or as_mapping(obj.get("metadata")).get("name"):
        return None
    items = obj.get("items")
    return items if isinstance(items, list) else [] if items is None else None


def _kind_of_items(obj: Raw) -> tuple[str, str]:
    """What the items of an API's own list need not say of themselves."""
    kind = obj["kind"].removesuffix("List")
    api_version = obj.get("apiVersion")
    return (api_version, kind) if kind and isinstance(api_version, str) else ("", "")


def _document(source: Source, obj: Raw, prefix: str, text: str | None, size: int) -> Document | Finding:
    metadata = as_mapping(obj.get("metadata"))
    kind, namespace, name = obj.get("kind"), metadata.get("namespace"), metadata.get("name")
    named = Source(
        source.file,
        source.document,
        kind if isinstance(kind, str) else "",
        namespace if isinstance(namespace, str) else "",
        name if isinstance(name, str) else "",
    )
    document = Document(named, obj, prefix, text)
    if size > MAX_BYTES and (path := _too_large(obj)) is not None:
        return error_in(document, path, f"the object is larger than {MAX_BYTES} bytes, most of it here")
    return validated(document)


def _too_large(obj: Raw) -> str | None:
    """The path of an object's largest field if no API server would take the object; None if one would."""
    if _size(obj) <= MAX_BYTES:
        return None
    path, here = "", obj
    for _ in range(MAX_DEPTH):
        children: list[tuple[Any, Any]] = list(here.items() if isinstance(here, dict) else enumerate(here))
        key, child = max(children, key=lambda pair: _size(pair[1]))
        if _size(child) <= MAX_BYTES // 2:
            return path
        path, here = join(path, key), child
        if not isinstance(here, dict | list) or not here:
            return path
    return path


def _size(found: Any) -> int:
    try:
        return len(orjson.dumps(found))
    except orjson.JSONEncodeError:  # integers of more than 64 bits
        return len(json.dumps(found))

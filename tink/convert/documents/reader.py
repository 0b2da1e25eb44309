"""Read objects from files, directories and standard input: YAML of many documents, JSON, and Lists.

A file is cut at its document markers before it is parsed. `---` in the first column is a marker wherever it stands,
even inside a block scalar (YAML 1.2 section 9.1.2). So one broken document does not spoil the others: it becomes a
finding with its line in the file.

A file may be as large as the inventory of a rack. One object may not be larger than an API server takes
(`tink.api.yaml.MAX_BYTES`).
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

import orjson

from tink.api import yaml
from tink.api.v1alpha2 import Raw, as_mapping
from tink.api.yaml import MAX_BYTES, YamlError
from tink.convert.documents.comments import has_comments
from tink.convert.fields import join, shown, type_name
from tink.convert.findings import Comment, Finding, Kind, Source, nested

DEFAULT_NAMESPACE = "default"
MAX_DEPTH = 100
"""The deepest nesting of an object."""

_COLLECTIONS = (dict, list)
_MAX_SHOWN = 80
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_NAME_CHARACTERS = "lower case letters, digits, - and . between these"


@dataclass(frozen=True, slots=True)
class Document:
    """One object as it was read, and its place.

    Every object has `apiVersion` and `kind` as strings, and `metadata` with a name and perhaps a namespace, both
    strings. All other fields may hold any JSON value.
    """

    source: Source
    obj: Raw
    prefix: str = ""
    """The place of the object in its document: `items[3]` in a List, else empty."""
    text: str | None = None
    """The YAML text of the document, if it has comments."""


@dataclass(frozen=True, slots=True)
class Converted:
    """One object of the result."""

    obj: Raw
    document: Document | None = None
    """The document that it was made from; None for an object that several documents share."""
    moves: dict[str, str] = field(default_factory=dict)
    """Path in the document -> path in `obj` (`Findings.moved`)."""
    comments: list[Comment] = field(default_factory=list)
    """The comments that stood inside a field's text (`Findings.comments`)."""


class Lookup(Protocol):
    """Return another object of the same input, as it was read: `lookup("HardwareData", "metal3", "node-1")`."""

    def __call__(self, kind: str, namespace: str, name: str) -> Raw | None: ...


def validated(document: Document) -> Document | Finding:
    """Return the document, or a finding if its object is not a valid Kubernetes object."""
    obj = document.obj
    for key in ("apiVersion", "kind"):
        if not isinstance(obj.get(key), str) or not obj[key]:
            return error_in(document, key, f"must be a string, is {_present(obj, key)}: this is no Kubernetes object")
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        return error_in(document, "metadata", f"must be an object, is {_present(obj, 'metadata')}")
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if not isinstance(name, str) or not name:
        what = "put it in quotes" if isinstance(name, int | float) else "give it a name"
        return error_in(document, "metadata.name", f"must be a string, is {_present(metadata, 'name')}: {what}")
    if not _NAME.match(name):
        return error_in(
            document, "metadata.name", f"no API server takes {shown(name, _MAX_SHOWN)} for a name: {_NAME_CHARACTERS}"
        )
    if not isinstance(namespace, str | None):
        return error_in(document, "metadata.namespace", f"must be a string, is {_present(metadata, 'namespace')}")
    if namespace and not _NAMESPACE.match(namespace):
        reason = f"no API server takes {shown(namespace, _MAX_SHOWN)} for a namespace: {_NAME_CHARACTERS}, no points"
        return error_in(document, "metadata.namespace", reason)
    if (path := _too_deep(obj)) is not None:
        return error_in(document, path, f"nested deeper than {MAX_DEPTH} levels")
    return document


def error_in(document: Document, path: str, reason: str) -> Finding:
    """Return an error finding for a field of the document's object."""
    return Finding(Kind.ERROR, document.source, nested(document.prefix, path), reason)


def _too_deep(obj: Raw) -> str | None:
    """Return the top-level field that nests deeper than MAX_DEPTH; None if none does."""
    level = [(key, item) for key, item in obj.items() if item and item.__class__ in _COLLECTIONS]
    for _ in range(MAX_DEPTH - 1):
        below: list[tuple[str, Any]] = []
        for key, here in level:
            items = here.values() if here.__class__ is dict else here
            below += [(key, item) for item in items if item and item.__class__ in _COLLECTIONS]
        if not below:
            return None
        level = below
    return level[0][0]


def _present(mapping: Raw, key: str) -> str:
    if key not in mapping:
        return "missing"
    return "empty" if mapping[key] == "" else type_name(mapping[key])


# A document's start, with the directives that stand before it.
_START = re.compile(rb"^(?:%[^\n]*\n(?:[%#][^\n]*\n|[ \t\r]*\n)*)?---(?=[ \t\r\n]|\Z)", re.MULTILINE)
_EMPTY_TEXT = re.compile(rb"(?:[ \t\r]*(?:#[^\n]*)?(?:\n|\Z))*")
_NEXT_OBJECT = re.compile(r"^\{", re.MULTILINE)
_JSON_START = re.compile(rb"(?:---)?[ \t\r\n]*[{\[]")
_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


def read(file: str, content: bytes) -> Iterator[Document | Finding]:
    """Yield the objects of a file's content, YAML or JSON, and an error finding for each part that can't be read."""
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
    """Yield each document's text and first line. Comments before the first marker belong to the first document."""
    starts = [match.start() for match in _START.finditer(content)]
    if starts and _EMPTY_TEXT.fullmatch(content, 0, starts[0]):
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
    """Read JSON objects that follow one another, as kubectl does. None if the text is not JSON: it may be flow YAML."""
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
            # The standard library accepts half a surrogate pair, which is no JSON.
            try:
                orjson.dumps(obj)
            except orjson.JSONEncodeError as error:
                if not str(error).startswith(("Integer", "Recursion")):  # later checks report these with more detail
                    raise ValueError(str(error)) from error
            parts.append(list(_objects(source, obj, None, end - at)))
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


def _unique_fields(pairs: list[tuple[str, Any]]) -> Raw:
    """Return an object's fields. Raises ValueError for a repeated key: one of the two values would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        left = set(found)
        for key, _ in pairs:
            if key not in left:
                raise ValueError(f"in the value that begins there, key {shown(key, 80)} is given twice")
            left.discard(key)
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_unique_fields)


def _json_problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"nested deeper than {MAX_DEPTH} levels"
    return getattr(error, "msg", "") or str(error)


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _objects(source: Source, found: Any, text: str | None, size: int) -> Iterator[Document | Finding]:
    """Yield the object of a document, or the objects of a List; nothing for an empty document."""
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
    """Return the items of a List (`v1` List, or HardwareList as the API answers it); None if the object is no List."""
    kind = obj.get("kind")
    if not isinstance(kind, str) or not kind.endswith("List") or as_mapping(obj.get("metadata")).get("name"):
        return None
    items = obj.get("items")
    return items if isinstance(items, list) else [] if items is None else None


def _kind_of_items(obj: Raw) -> tuple[str, str]:
    """Return apiVersion and kind of the items of a typed list, whose items may omit them."""
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
    """Return the path of an object's largest field if the object is too large for an API server; None if it is not."""
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


STDIN = "-"
MAX_FILE_BYTES = 256 << 20
"""The inventory of a rack is a hundredth of this. A larger file is probably an image in the wrong directory."""

_SUFFIXES = (".yaml", ".yml", ".json")


def read_all(paths: Iterable[str]) -> Iterator[Document | Finding]:
    """Yield the documents of files (`-`: standard input), and of all YAML and JSON files below directories, in name
    order.

    A file that occurs twice is read once. Hidden files and directories are skipped. Links are followed, loops are not.
    """
    seen: set[tuple[int, int]] = set()
    for path in paths:
        for file in [path] if path == STDIN else _files(path, seen):
            try:
                content = _content(file, seen, listed=file != path)
            except OSError as error:
                yield _unreadable(file, error.strerror or str(error))
                continue
            if content is None:
                continue
            if len(content) > MAX_FILE_BYTES:
                yield _unreadable(file, f"larger than {MAX_FILE_BYTES} bytes")
                continue
            yield from read(file, content)


def _files(path: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    """Yield the file itself, or the files of a directory followed by those of its subdirectories."""
    if not Path(path).is_dir():
        yield path
        return
    pending = [path]
    while pending:
        directory = pending.pop()
        try:
            there = os.stat(directory)  # noqa: PTH116 - os throughout: ten thousand files
            if (there.st_dev, there.st_ino) in seen:
                continue
            seen.add((there.st_dev, there.st_ino))
            with os.scandir(directory) as found:
                entries = sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda e: e.name)
        except OSError:
            yield directory  # it can't be read: the caller reports it
            continue
        yield from (entry.path for entry in entries if entry.name.endswith(_SUFFIXES) and not _is_directory(entry))
        pending += [entry.path for entry in reversed(entries) if _is_directory(entry)]


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _content(file: str, seen: set[tuple[int, int]], *, listed: bool) -> bytes | None:
    """Return the content, at most one byte more than is allowed; None if it was read already. Raises OSError."""
    if file == STDIN:
        return sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    state = os.stat(file)  # noqa: PTH116
    if stat.S_ISREG(state.st_mode):
        if (state.st_dev, state.st_ino) in seen:
            return None
        seen.add((state.st_dev, state.st_ino))
    elif listed:  # a pipe is read if the user names it; reading one found in a directory would block
        raise OSError(0, "it is no regular file")
    with open(file, "rb") as stream:  # noqa: PTH123
        return stream.read(MAX_FILE_BYTES + 1)


def _unreadable(file: str, why: str) -> Finding:
    return Finding(Kind.ERROR, Source(file, 1, "", "", ""), "", f"the file can't be read: {why}")

"""Objects as files hold them: YAML of many documents, JSON, and Lists; and their YAML comments.

Reading: a file is cut at its document markers before it is parsed. `---` in the first column is a marker wherever it
stands, even inside a block scalar (YAML 1.2 section 9.1.2). So one broken document does not spoil the others: it
becomes a finding with its line in the file. A file may be as large as the inventory of a rack. One object may not be
larger than an API server takes (`tink.api.yaml.MAX_BYTES`).

Comments: libyaml drops them, and ruamel.yaml ties them to the tokens of a tree that a conversion takes apart. Here a
comment belongs to the field below it or beside it, by the field's path. The converter reports where a field went
(`Findings.moved`), and the comment follows. A comment whose field is gone stays at the nearest field that remains.

Writing: PyYAML does not write the YAML, for four reasons. The result must mean the same to every reader (an unquoted
MAC address is a number in base 60 for YAML 1.1 libraries). Multi-line strings must be readable. Comments stand beside
their fields. And 10,000 machines must take seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

import orjson
import yaml

from tink.api.v1alpha2 import Raw, as_mapping
from tink.api.yaml import MAX_BYTES, Parser, YamlError, check_depth
from tink.api.yaml import read as read_yaml
from tink.convert.fields import join, shown, type_name
from tink.convert.findings import Comment, ConversionFinding, FindingKind, ObjectPlace, nested
from tink.files import private_files

DEFAULT_NAMESPACE = "default"
MAX_DEPTH = 100
"""The deepest nesting of an object."""

_COLLECTIONS = (dict, list)
_MAX_SHOWN = 80
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_NAME_CHARACTERS = "lower case letters, digits, - and . between these"


@dataclass(frozen=True, slots=True)
class InputDocument:
    """One object as it was read, and its place.

    Every object has `apiVersion` and `kind` as strings, and `metadata` with a name and perhaps a namespace, both
    strings. All other fields may hold any JSON value.
    """

    source: ObjectPlace
    obj: Raw
    prefix: str = ""
    """The place of the object in its document: `items[3]` in a List, else empty."""
    text: str | None = None
    """The YAML text of the document, if it has comments."""


@dataclass(frozen=True, slots=True)
class Converted:
    """One object of the result."""

    obj: Raw
    document: InputDocument | None = None
    """The document that it was made from; None for an object that several documents share."""
    moves: dict[str, str] = field(default_factory=dict)
    """Path in the document -> path in `obj` (`Findings.moved`)."""
    comments: list[Comment] = field(default_factory=list)
    """The comments that stood inside a field's text (`Findings.comments`)."""


class Lookup(Protocol):
    """Return another object of the same input, as it was read: `lookup("HardwareData", "metal3", "node-1")`."""

    def __call__(self, kind: str, namespace: str, name: str) -> Raw | None: ...


def validated(document: InputDocument) -> InputDocument | ConversionFinding:
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


def _error(source: ObjectPlace, reason: str, path: str = "") -> ConversionFinding:
    return ConversionFinding(FindingKind.ERROR, source, path, reason)


def error_in(document: InputDocument, path: str, reason: str) -> ConversionFinding:
    """Return an error finding for a field of the document's object."""
    return _error(document.source, reason, nested(document.prefix, path))


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


def read(file: str, content: bytes) -> Iterator[InputDocument | ConversionFinding]:
    """Yield the objects of a file's content, YAML or JSON, and an error finding for each part that can't be read."""
    if content.startswith(_UTF16_BOMS):  # as PowerShell's `>` writes
        try:
            content = content.decode("utf-16").encode()
        except UnicodeDecodeError as error:
            yield _error(ObjectPlace(file, 1), f"not UTF-16, as it says: byte {error.start}")
            return
    number = 1
    for line, chunk in _chunks(content.removeprefix(_BOM)):
        parts = _json_chunk(file, number, line, chunk)
        if parts is None:
            parts = [list(_yaml_chunk(ObjectPlace(file, number), line, chunk))]
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


def _yaml_chunk(source: ObjectPlace, first_line: int, chunk: bytes) -> Iterator[InputDocument | ConversionFinding]:
    try:
        text = chunk.decode()
    except UnicodeDecodeError as error:
        line = first_line + chunk.count(b"\n", 0, error.start)
        yield _error(source, f"line {line}: not UTF-8 (byte 0x{chunk[error.start]:02x})")
        return
    try:
        values = list(read_yaml(text))
    except YamlError as error:
        where = f"line {first_line + error.line - 1}: " if error.line else ""
        yield _error(source, f"not YAML: {where}{error}")
        return
    kept = text if has_comments(text) else None
    for found in values:
        yield from _objects(source, found, kept, len(text))


def _json_chunk(
    file: str, number: int, first_line: int, chunk: bytes
) -> list[list[InputDocument | ConversionFinding]] | None:
    """Read JSON objects that follow one another, as kubectl does. None if the text is not JSON: it may be flow YAML."""
    if _JSON_START.match(chunk) is None:
        return None
    try:
        text = chunk.decode()
    except UnicodeDecodeError:
        return None
    at = _skip_space(text, len("---") if text.startswith("---") else 0)
    parts: list[list[InputDocument | ConversionFinding]] = []
    while at < len(text):
        source = ObjectPlace(file, number + len(parts))
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
            deep = isinstance(error, RecursionError)
            why = f"nested deeper than {MAX_DEPTH} levels" if deep else getattr(error, "msg", "") or str(error)
            parts.append([_error(source, f"not JSON: line {line}: {why}")])
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


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _objects(
    source: ObjectPlace, found: Any, text: str | None, size: int
) -> Iterator[InputDocument | ConversionFinding]:
    """Yield the object of a document, or the objects of a List; nothing for an empty document."""
    if found is None:
        return
    pending = [("", found, "", "")]
    while pending:
        prefix, obj, api_version, kind = pending.pop()
        if not isinstance(obj, dict):
            yield _error(source, f"must be a Kubernetes object, is {type_name(obj)}", prefix)
            continue
        if kind:
            obj = {"apiVersion": api_version, "kind": kind} | obj
        items = _items(obj)
        if items is None:
            yield _document(source, obj, prefix, text, size)
        elif prefix.count("items") >= MAX_DEPTH:
            yield _error(source, f"Lists nested deeper than {MAX_DEPTH} levels")
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


def _document(
    source: ObjectPlace, obj: Raw, prefix: str, text: str | None, size: int
) -> InputDocument | ConversionFinding:
    metadata = as_mapping(obj.get("metadata"))
    kind, namespace, name = obj.get("kind"), metadata.get("namespace"), metadata.get("name")
    named = ObjectPlace(
        source.file,
        source.document,
        kind if isinstance(kind, str) else "",
        namespace if isinstance(namespace, str) else "",
        name if isinstance(name, str) else "",
    )
    document = InputDocument(named, obj, prefix, text)
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


def read_all(paths: Iterable[str]) -> Iterator[InputDocument | ConversionFinding]:
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
                yield _error(ObjectPlace(file, 1), f"the file can't be read: {error.strerror or error}")
                continue
            if content is None:
                continue
            if len(content) > MAX_FILE_BYTES:
                yield _error(ObjectPlace(file, 1), f"the file can't be read: larger than {MAX_FILE_BYTES} bytes")
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


# --- comments ---------------------------------------------------------------------------------------------------------

_MAYBE = re.compile(r"(?:^|[ \t])#", re.MULTILINE)
_HASH = re.compile(r"(?<![^ \t])#")
_BLOCK_HEADER = re.compile(r"[|>][0-9+-]*")
END = "\0end"
"""The path of a comment that stands below all fields."""


def has_comments(text: str) -> bool:
    """Return True if the text may have comments. A `#` inside a block scalar counts here too."""
    return _MAYBE.search(text) is not None


def collect(text: str) -> list[Comment]:
    """Return the comments of the first document of a text, in order; none if the text can't be read."""
    try:
        check_depth(text)
        parser = Parser(text)
        root = parser.get_node() if parser.check_node() else None
    except (yaml.YAMLError, YamlError, ValueError):
        return []
    if root is None:
        return []
    fields: dict[int, list[str]] = {}
    scalars: list[yaml.ScalarNode] = []
    _collect_fields(root, "", fields, scalars, set())
    lines = text.split("\n")
    return list(_comments(lines, fields, _covered(scalars, lines)))


def placed(
    comments: Iterable[Comment], moves: Mapping[str, str], there: Mapping[str, int]
) -> list[tuple[str, Comment]]:
    """Return each comment with the path in the result that it belongs to; "" is the object itself.

    `there` has the paths of the result; `moves` is `Findings.moves`.
    """
    found: list[tuple[str, Comment]] = []
    for comment in comments:
        target, exact = _place_of(comment.paths, moves, there)
        # Beside another field, the comment would seem to be about that field.
        found.append((target, comment if exact else replace(comment, beside=False)))
    return found


def _collect_fields(
    node: yaml.Node, path: str, fields: dict[int, list[str]], scalars: list[yaml.ScalarNode], seen: set[int]
) -> None:
    """Collect the fields by their first lines, and the scalars.

    A node that an alias repeats is visited once: its marks are the anchor's.
    """
    if isinstance(node, yaml.ScalarNode):
        scalars.append(node)
        return
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        scalars += [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        children = [
            (key.start_mark.line, join(path, key.value), item)
            for key, item in node.value
            if isinstance(key, yaml.ScalarNode)
        ]
    else:
        children = [(item.start_mark.line, join(path, index), item) for index, item in enumerate(node.value)]
    for line, at, item in children:
        fields.setdefault(line, []).append(at)
        _collect_fields(item, at, fields, scalars, seen)


def _covered(scalars: list[yaml.ScalarNode], lines: list[str]) -> dict[int, list[tuple[int, int]]]:
    """Return the columns that scalars take on each line: a `#` there is no comment."""
    covered: dict[int, list[tuple[int, int]]] = {}
    for scalar in scalars:
        start, end = scalar.start_mark, scalar.end_mark
        if scalar.style not in ("|", ">") and start.line == end.line:
            covered.setdefault(start.line, []).append((start.column, end.column))
            continue
        header = _BLOCK_HEADER.search(lines[start.line], start.column) if scalar.style in ("|", ">") else None
        for line in range(start.line, min(end.line + 1, len(lines))):
            left = start.column if line == start.line else 0
            right = end.column if line == end.line else len(lines[line]) + 1
            if line == start.line and header is not None:  # the text behind the header may be a comment
                right = header.end()
            covered.setdefault(line, []).append((left, right))
    return covered


def _comments(
    lines: list[str], at_line: dict[int, list[str]], covered: dict[int, list[tuple[int, int]]]
) -> Iterator[Comment]:
    starts = sorted(at_line)
    following, previous = 0, -1
    for number, line in enumerate(lines):
        if "#" in line and (column := _comment_column(line, covered.get(number, ()))) is not None:
            while following < len(starts) and starts[following] <= number:
                following += 1
            text = line[column:].rstrip()
            if line[:column].strip() not in ("", "---"):
                yield Comment(tuple(at_line.get(number) or at_line.get(previous) or ()), text, True, number + 1)
            elif following < len(starts):
                # A comment above a line that begins several fields (`- device: x`) belongs to the outermost one.
                yield Comment(tuple(at_line[starts[following]][:1]), text, False, number + 1)
            else:
                yield Comment((END,), text, False, number + 1)
        if number in at_line:
            previous = number


def _comment_column(line: str, covered: Iterable[tuple[int, int]]) -> int | None:
    spans = list(covered)
    for match in _HASH.finditer(line):
        if not any(left <= match.start() < right for left, right in spans):
            return match.start()
    return None


def _place_of(paths: tuple[str, ...], moves: Mapping[str, str], there: Mapping[str, int]) -> tuple[str, bool]:
    """Return the path that a comment goes to, and True if its own field is there."""
    if paths == (END,):
        return END, True
    for path in reversed(paths):
        target = moves.get(path, path)
        if target in there:
            return target, True
    here = paths[-1] if paths else ""
    while here:
        here = _parent(here)
        target = moves.get(here, here)
        if target in there:
            return target, False
    return "", False


def _parent(path: str) -> str:
    """Return the path one level up. A quoted key (`a["b.c"]`) is one level."""
    if path.endswith('"]'):
        return path[: path.rindex('["')]
    if path.endswith("]"):
        return path[: path.rindex("[")]
    # A dot inside of a quoted key is no separator.
    dot, bracket = path.rfind("."), path.rfind("]")
    return path[: max(dot, 0)] if dot > bracket else path[: bracket + 1]


# --- writing ----------------------------------------------------------------------------------------------------------

# Text that every YAML library reads as a string if it is unquoted.
_PLAIN = re.compile(r"[A-Za-z/_][A-Za-z0-9_./@+=~()-]*(?:[: ][A-Za-z0-9_./@+=~()]+[A-Za-z0-9_./@+=~()-]*)*\Z")
_ADDRESS = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?:/[0-9]{1,2})?\Z")
_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_UNSAFE_IN_NAME = re.compile(r"[^A-Za-z0-9._-]")
_MAX_NAME_CHARACTERS = 200
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def to_yaml(converted: Iterable[Converted]) -> Iterator[str]:
    """Yield one YAML document for each object, with its `---` and the comments of its source."""
    for each in converted:
        yield yaml_document(each)


def yaml_document(converted: Converted) -> str:
    """Return one object as a YAML document that begins with `---`."""
    text = converted.document.text if converted.document is not None else None
    comments = collect(text) if text is not None else []
    if not comments and not converted.comments:
        return _Lines().document(converted.obj)
    there: dict[str, int] = {}
    lines = _Lines(there)
    lines.document(converted.obj)
    return lines.with_comments(placed(comments, converted.moves, there) + placed(converted.comments, {}, there))


def to_json(objects: list[Raw]) -> str:
    """Return a List of all objects, as `kubectl get -o json` writes it."""
    return json_text({"apiVersion": "v1", "kind": "List", "items": objects})


def json_text(obj: Raw) -> str:
    """Return one object as indented JSON."""
    try:
        return orjson.dumps(obj, option=orjson.OPT_INDENT_2).decode() + "\n"
    except orjson.JSONEncodeError:  # integers of more than 64 bits, which no API server takes, but a file may have
        return json.dumps(obj, indent=2, ensure_ascii=False) + "\n"


class _Lines:
    """The lines of one document that is being written."""

    def __init__(self, there: dict[str, int] | None = None) -> None:
        """Fill `there` with each field's path and the number of its first line."""
        self._lines: list[str] = ["---\n"]
        self._there = there

    def document(self, obj: Raw) -> str:
        if obj:
            self._children(obj, 0, "")
        else:
            self._lines.append("{}\n")
        return "".join(self._lines)

    def with_comments(self, comments: list[tuple[str, Comment]]) -> str:
        """Return the document with comments above or beside their fields."""
        assert self._there is not None  # noqa: S101 - for the type checker
        above: dict[int, list[str]] = {}
        beside: dict[int, str] = {}
        for path, comment in comments:
            number = len(self._lines) if path == END else self._there.get(path, 1)
            if comment.beside and path not in ("", END) and number not in beside:
                beside[number] = comment.text
            else:
                above.setdefault(number, []).append(comment.text)
        result: list[str] = []
        for number, line in enumerate([*self._lines, ""]):
            indent = line[: len(line) - len(line.lstrip(" "))]
            result += [f"{indent}{text}\n" for text in above.get(number, ())]
            result.append(f"{line[:-1]} {beside[number]}\n" if number in beside else line)
        return "".join(result)

    def _children(self, value: Raw | list[Any], depth: int, path: str, first: str = "") -> None:
        """Write a mapping or a list. `first` replaces the first indentation: the dash of a list's item."""
        is_mapping = isinstance(value, dict)
        indent = "  " * depth
        start = first or indent
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            at = path
            if self._there is not None:
                at = join(path, key)
                self._there[at] = len(self._lines)
            start += f"{_text(key)}:" if isinstance(key, str) else "-"
            if not item or not isinstance(item, dict | list):
                self._lines += _scalar_lines(start, item, depth)
            elif is_mapping:
                self._lines.append(start + "\n")
                self._children(item, depth + 1, at)
            else:
                self._children(item, depth + 1, at, start + " ")
            start = indent


def _scalar_lines(start: str, item: Any, depth: int) -> list[str]:
    """Return the lines of a scalar or of an empty collection. The first line begins with `start`."""
    if isinstance(item, str):
        if "\n" in item and (block := _block(item, "  " * (depth + 1))) is not None:
            return [f"{start} {block[0]}\n", *block[1:]]
        return [f"{start} {_text(item)}\n"]
    if isinstance(item, dict | list):
        return [f"{start} {'{}' if isinstance(item, dict) else '[]'}\n"]
    return [f"{start} {_number(item) if isinstance(item, float) else json.dumps(item)}\n"]


def _number(number: float) -> str:
    """Return a number for YAML 1.1, which knows an exponent only after a point: 1.0e-05."""
    text = repr(number)
    return text if "." in text else text.replace("e", ".0e")


def _text(text: str) -> str:
    """Return a string on one line: unquoted if every YAML library reads it as a string, else in double quotes."""
    if _PLAIN.match(text):
        if text.lower() not in _WORDS:
            return text
    elif _ADDRESS.match(text):
        return text
    if text.isprintable():
        return json.dumps(text, ensure_ascii=False)
    return '"' + "".join(_ESCAPES.get(char) or (char if char.isprintable() else _escape(char)) for char in text) + '"'


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _block(text: str, indent: str) -> list[str] | None:
    """Return a literal block (YAML 1.2 section 8.1.2): its header, then its lines. None if the text can't be one."""
    body = text.rstrip("\n")
    if not body or body[0] in "\t\n" or not body.replace("\n", "").replace("\t", "").isprintable():
        return None
    header = "|2" if body[0] == " " else "|"
    newlines = len(text) - len(body)
    header += "-" if newlines == 0 else "+" if newlines > 1 else ""
    lines = [indent + line + "\n" if line else "\n" for line in body.split("\n")]
    return [header, *lines, *["\n"] * (newlines - 1)]


def file_name(obj: Raw, suffix: str) -> str:
    """Return a file name such as `hardware-default-node-1.yaml`: safe in any directory, and unique for each object."""
    metadata = obj["metadata"]
    namespace = str(metadata.get("namespace") or DEFAULT_NAMESPACE)
    label = f"{obj['kind'].lower()}-{namespace}-{metadata.get('name')}"
    safe = _UNSAFE_IN_NAME.sub("_", label)[:_MAX_NAME_CHARACTERS]
    # Two objects may have one name: a-b in c, and b in c-a. The digest of KIND/NAMESPACE/NAME tells them apart.
    if safe != label or "-" in namespace or "-" in obj["kind"]:
        safe += "-" + hashlib.sha256(f"{obj['kind']}/{namespace}/{metadata.get('name')}".encode()).hexdigest()[:8]
    return safe + suffix


def write_whole(path: Path, text: Iterable[str]) -> None:
    """Write a text file whole, or leave the old file. Raises OSError.

    A symbolic link stays a link. A device or a pipe (`/dev/stdout`) is written to, not replaced.
    """
    try:
        with private_files.stream(path, private=False) as file:
            file.writelines(each.encode() for each in text)
    except OSError as error:
        error.filename = str(path)  # not that of the temporary file
        raise

"""Write objects as YAML or JSON, and write files whole.

PyYAML does not write the YAML, for four reasons. The result must mean the same to every reader (an unquoted MAC address
is a number in base 60 for YAML 1.1 libraries). Multi-line strings must be readable. Comments stand beside their fields.
And 10,000 machines must take seconds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from tink.api.v1alpha2 import Raw
from tink.convert.documents.comments import END, collect, placed
from tink.convert.documents.reader import DEFAULT_NAMESPACE, Converted
from tink.convert.fields import join
from tink.convert.findings import Comment
from tink.files import private_files

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
            self._mapping(obj, 0, "", "")
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

    def _mapping(self, mapping: Raw, depth: int, path: str, first: str) -> None:
        """Write a mapping. `first` replaces the indentation of the first key: the dash of a list's item."""
        indent = "  " * depth
        start = first or indent
        for key, item in mapping.items():
            at = path
            if self._there is not None:
                at = join(path, key)
                self._there[at] = len(self._lines)
            self._entry(f"{start}{_text(key)}:", item, depth, at)
            start = indent

    def _entry(self, start: str, item: Any, depth: int, path: str) -> None:
        if isinstance(item, dict) and item:
            self._lines.append(start + "\n")
            self._mapping(item, depth + 1, path, "")
        elif isinstance(item, list) and item:
            self._lines.append(start + "\n")
            self._sequence(item, depth + 1, path, "")
        else:
            self._lines += _scalar_lines(start, item, depth)

    def _sequence(self, items: list[Any], depth: int, path: str, first: str) -> None:
        indent = "  " * depth
        start = first or indent
        for index, item in enumerate(items):
            at = path
            if self._there is not None:
                at = join(path, index)
                self._there[at] = len(self._lines)
            if isinstance(item, dict) and item:
                self._mapping(item, depth + 1, at, start + "- ")
            elif isinstance(item, list) and item:
                self._sequence(item, depth + 1, at, start + "- ")
            else:
                self._lines += _scalar_lines(start + "-", item, depth)
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
    said = f"{obj['kind'].lower()}-{namespace}-{metadata.get('name')}"
    safe = _UNSAFE_IN_NAME.sub("_", said)[:_MAX_NAME_CHARACTERS]
    # Two objects may have one name: a-b in c, and b in c-a. The digest of KIND/NAMESPACE/NAME tells them apart.
    if safe != said or "-" in namespace or "-" in obj["kind"]:
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

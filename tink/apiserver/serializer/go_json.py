"""JSON as Go reads it: the words for what is wrong with a text, and the fields that stand in an object twice.

orjson reads what is right; what it refuses is read here again, letter by letter, because users know the messages of
Go's decoder (encoding/json), and because that decoder takes texts that orjson refuses: bytes that are no UTF-8 and
halves of surrogate pairs become U+FFFD. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

MAX_DEPTH = 10_000
"""Deepest nesting that Go's decoder takes."""

_SPACE = b" \t\r\n"
_NUMBER = re.compile(rb"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_STRING = re.compile(rb'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
_SURROGATES = re.compile("[\ud800-\udfff]")


class JsonError(ValueError):
    """A text that is no JSON; the message is that of Go's decoder."""


END = "unexpected end of JSON input"


def load_json(raw: bytes) -> Any:
    """Read JSON. Raises JsonError."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        _Scanner(raw).check()
    try:
        return orjson.loads(json.dumps(_mended(json.loads(raw.decode("utf-8", "replace")))))
    except (ValueError, RecursionError) as error:
        raise JsonError("invalid character '[' exceeded max depth") from error


def _mended(value: Any) -> Any:
    """Put U+FFFD in the place of halves of surrogate pairs."""
    if isinstance(value, str):
        return _SURROGATES.sub("�", value)
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    return [_mended(item) for item in value] if isinstance(value, list) else value


class _Scanner:
    """Looks for the first letter that is wrong."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def check(self) -> None:
        """Raise JsonError when the text is no JSON."""
        raw = self._raw
        stack: list[bytes] = []
        self._value(stack)
        while stack:
            self._skip()
            if raw[self._at : self._at + 1] in (b",", b"}" if stack[-1] == b"{" else b"]"):
                closes = raw[self._at : self._at + 1] != b","
                self._at += 1
                if closes:
                    stack.pop()
                elif stack[-1] == b"{":
                    self._key()
                    self._value(stack)
                else:
                    self._value(stack)
            else:
                raise self._wrong("after object key:value pair" if stack[-1] == b"{" else "after array element")
        self._skip()
        if self._at < len(raw):
            raise self._wrong("after top-level value")

    def _skip(self) -> None:
        while self._at < len(self._raw) and self._raw[self._at] in _SPACE:
            self._at += 1

    def _wrong(self, where: str) -> JsonError:
        if self._at >= len(self._raw):
            return JsonError(END)
        return JsonError(f"invalid character {quoted(self._raw[self._at])} {where}")

    def _value(self, stack: list[bytes]) -> None:
        """Pass a value; of an object or array, up to and with its first value."""
        while True:
            self._skip()
            raw, first = self._raw, self._raw[self._at : self._at + 1]
            if first not in (b"{", b"["):
                self._scalar(first)
                return
            self._at += 1
            stack.append(first)
            if len(stack) > MAX_DEPTH:
                raise JsonError(f"invalid character {quoted(first[0])} exceeded max depth")
            self._skip()
            if raw[self._at : self._at + 1] == (b"}" if first == b"{" else b"]"):
                self._at += 1
                stack.pop()
                return
            if first == b"{":
                self._key()

    def _key(self) -> None:
        self._skip()
        if self._raw[self._at : self._at + 1] != b'"':
            raise self._wrong("looking for beginning of object key string")
        self._string()
        self._skip()
        if self._raw[self._at : self._at + 1] != b":":
            raise self._wrong("after object key")
        self._at += 1

    def _scalar(self, first: bytes) -> None:
        if first == b'"':
            self._string()
        elif first and first in b"-0123456789":
            self._number()
        elif first in (b"t", b"f", b"n"):
            word = {b"t": b"true", b"f": b"false", b"n": b"null"}[first]
            for letter in word[1:]:
                self._at += 1
                if self._raw[self._at : self._at + 1] != bytes([letter]):
                    raise self._wrong(f"in literal {word.decode()} (expecting {quoted(letter)})")
            self._at += 1
        else:
            raise self._wrong("looking for beginning of value")

    def _number(self) -> None:
        found = _NUMBER.match(self._raw, self._at)
        if found is None:  # a minus without digits
            self._at += 1
            raise self._wrong("in numeric literal")
        self._at = found.end()
        after = self._raw[self._at : self._at + 1]
        if after == b"." and not found[2] and not found[3]:
            self._at += 1
            raise self._wrong("after decimal point in numeric literal")
        if after in (b"e", b"E") and not found[3]:
            self._at += 1
            if self._raw[self._at : self._at + 1] in (b"+", b"-"):
                self._at += 1
            raise self._wrong("in exponent of numeric literal")

    def _string(self) -> None:
        found = _STRING.match(self._raw, self._at)
        if found is not None:
            self._at = found.end()
            return
        self._at += 1
        while self._at < len(self._raw):
            letter = self._raw[self._at]
            if letter < 0x20:
                raise self._wrong("in string literal")
            self._at += 1
            if letter != 0x5C:
                continue
            if self._raw[self._at : self._at + 1] == b"u":
                for _ in range(4):
                    self._at += 1
                    if self._raw[self._at : self._at + 1] not in _HEX:
                        raise self._wrong("in \\u hexadecimal character escape")
            elif self._raw[self._at : self._at + 1] not in _ESCAPES:
                raise self._wrong("in string escape code")
            self._at += 1
        raise JsonError(END)


_HEX = frozenset(bytes([letter]) for letter in b"0123456789abcdefABCDEF")
_ESCAPES = frozenset(bytes([letter]) for letter in b'"\\/bfnrt')


def quoted(letter: int) -> str:
    """Write a byte as Go's decoder does: between single quotes."""
    if letter == 0x27:
        return "'\\''"
    if letter == 0x22:
        return "'\"'"
    text = chr(letter)
    if text in "\\\a\b\f\n\r\t\v":
        return "'" + {"\\": "\\\\", "\a": "\\a", "\b": "\\b", "\v": "\\v"}.get(text, repr(text)[1:-1]) + "'"
    if not text.isprintable():
        return f"'\\u{letter:04x}'" if letter >= 0x80 else f"'\\x{letter:02x}'"
    return f"'{text}'"


def duplicate_fields(raw: bytes, most: int = 100) -> list[str]:
    """Give the paths of fields that stand in an object twice, in the order of the text: `spec.actions[0].name`.

    `raw` is JSON. Fast when nothing stands twice.
    """
    seen_twice = False

    def pairs(items: list[tuple[str, Any]]) -> list[tuple[str, Any]] | dict[str, Any]:
        nonlocal seen_twice
        made = dict(items)
        if len(made) == len(items):
            return made
        seen_twice = True
        return _Pairs(items)

    value = json.loads(raw.decode("utf-8", "replace"), object_pairs_hook=pairs)
    found: list[str] = []
    if seen_twice:
        for path in _twice(value, ""):
            if len(found) == most:
                break
            found.append(path)
    return found


class _Pairs(list[tuple[str, Any]]):
    """An object in which something stands twice."""


def _twice(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict | _Pairs):
        seen: set[str] = set()
        for key, item in value.items() if isinstance(value, dict) else value:
            at = f"{path}.{key}" if path else key
            if key in seen:
                yield at
            seen.add(key)
            yield from _twice(item, at)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _twice(item, f"{path}[{index}]")

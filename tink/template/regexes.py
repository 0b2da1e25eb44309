"""Sprig's functions of regular expressions. Go's regular expressions are RE2's; google-re2 is the same engine.

Matching takes time in proportion to the text, but the factor can be large: these functions are `heavy`, and the size
of a compiled pattern is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import re2

from tink.template import fmt
from tink.template.errors import CallError
from tink.template.signatures import INT, STRING, Function, Functions, Type, table
from tink.template.strconv import from_bytes, to_bytes
from tink.template.values import Value

_REGEX_MEMORY: Final = 1 << 17  # Bounds the compiled pattern, and so the time for each character of the subject.
_MOST_MATCHES: Final = 10_000


def _regex(pattern: str) -> Any:
    """Go's and Google's RE2 have one syntax; matching takes linear time."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _REGEX_MEMORY
    try:
        return re2.compile(to_bytes(pattern), options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise CallError(f"error parsing regexp: {reason}") from None


def _matches(pattern: str, text: str) -> tuple[bytes, list[Any]]:
    """The subject as bytes, and the matches; as in Go, none that is empty and touches the one before."""
    raw = to_bytes(text)
    found = []
    end = -1
    for match in _regex(pattern).finditer(raw):
        # RE2 steps by bytes when it has matched nothing; within a character there is no match.
        inside = match.start() < len(raw) and raw[match.start()] & 0xC0 == 0x80
        if match.start() == match.end() and (match.start() == end or inside):
            continue
        found.append(match)
        end = match.end()
        if len(found) > _MOST_MATCHES:
            raise CallError(f"the pattern matches more than {_MOST_MATCHES} times")
    return raw, found


def _regex_match(pattern: str, text: str) -> bool:
    try:
        return _regex(pattern).search(to_bytes(text)) is not None
    except CallError:
        return False


def _regex_find(pattern: str, text: str) -> str:
    match = _regex(pattern).search(to_bytes(text))
    return from_bytes(match.group()) if match else ""


def _regex_find_all(pattern: str, text: str, limit: int) -> Value:
    found = _matches(pattern, text)[1]
    return [from_bytes(match.group()) for match in (found if limit < 0 else found[:limit])]


_EXPANSION: Final = re.compile(rb"\$(?:(\$)|(\w+)|\{(\w+)\})")


def _regex_replace_all(pattern: str, text: str, replacement: str) -> str:
    raw, found = _matches(pattern, text)
    source = to_bytes(replacement)

    def expand(match: Any) -> bytes:
        def group(reference: re.Match[bytes]) -> bytes:
            if reference[1]:
                return b"$"
            name = (reference[2] or reference[3]).decode("ascii")
            try:
                return match.group(int(name) if name.isdigit() and len(name) < 5 else name) or b""
            except (IndexError, KeyError, re2.error):
                return b""

        return _EXPANSION.sub(group, source)

    return _replaced(raw, found, expand)


def _regex_replace_literal(pattern: str, text: str, replacement: str) -> str:
    raw, found = _matches(pattern, text)
    literal = to_bytes(replacement)
    return _replaced(raw, found, lambda match: literal)


def _replaced(raw: bytes, found: list[Any], replacement: Callable[[Any], bytes]) -> str:
    out = []
    size = end = 0
    for match in found:
        new = replacement(match)
        size += len(new)
        if size > fmt.LARGEST:
            raise CallError(f"the result is larger than {fmt.LARGEST} bytes")
        out += [raw[end : match.start()], new]
        end = match.end()
    out.append(raw[end:])
    return from_bytes(b"".join(out))


def _regular(name: str, call: Callable[..., Any], *after: Type) -> Function:
    """A function of a regular expression, a text, and more."""
    return Function(name, call, (STRING, STRING, *after), heavy=True)


REGEXES: Final[Functions] = table(
    _regular("regexMatch", _regex_match),
    _regular("regexFind", _regex_find),
    _regular("regexFindAll", _regex_find_all, INT),
    _regular("regexReplaceAll", _regex_replace_all, STRING),
    _regular("regexReplaceAllLiteral", _regex_replace_literal, STRING),
)

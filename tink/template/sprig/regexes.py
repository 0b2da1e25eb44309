"""Sprig's functions of regular expressions. Go's regular expressions are RE2's; google-re2 is the same engine.

Matching takes time in proportion to the text, but the factor can be large: these functions are metered, and the size
of a compiled pattern is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import re2

from tink.golang import fmt, strconv
from tink.golang.strconv import from_bytes, to_bytes
from tink.golang.values import CallError, Value
from tink.template.signatures import INT, STRING, Function, Functions, Type, table
from tink.template.sprig.conversions import Spend

_REGEX_MEMORY: Final = 1 << 17  # Bounds the compiled pattern, and so the time for each character of the subject.
_MOST_MATCHES: Final = 10_000


def _charge(spend: Spend, *texts: str) -> None:
    """Each character may take microseconds."""
    spend(100 + (sum(map(len, texts)) >> 2))


def _regex(pattern: str) -> Any:
    """Go's and Google's RE2 have one syntax; matching takes linear time."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _REGEX_MEMORY
    try:
        return re2.compile(to_bytes(pattern), options)
    except re2.error as error:
        raise CallError(f"error parsing regexp: {_complaint(from_bytes(error.args[0]))}") from None


_GO_WORDS: Final = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "trailing \\": "trailing backslash at end of expression",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    "pattern too large - compile failed": "expression too large",
}
"""What Go's engine says where Google's says otherwise."""


def _complaint(text: str) -> str:
    problem, colon, where = text.partition(": ")
    found = _GO_WORDS.get(problem, problem)
    return f"{found}: `{where}`" if colon else f"{found}: ``"


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


def _regex_match(spend: Spend, pattern: str, text: str) -> bool:
    try:
        return _must_match(spend, pattern, text)
    except CallError:
        return False


def _must_match(spend: Spend, pattern: str, text: str) -> bool:
    _charge(spend, pattern, text)
    return _regex(pattern).search(to_bytes(text)) is not None


def _regex_find(spend: Spend, pattern: str, text: str) -> str:
    _charge(spend, pattern, text)
    match = _regex(pattern).search(to_bytes(text))
    return from_bytes(match.group()) if match else ""


def _regex_find_all(spend: Spend, pattern: str, text: str, limit: int) -> Value:
    _charge(spend, pattern, text)
    found = _matches(pattern, text)[1]
    return [from_bytes(match.group()) for match in (found if limit < 0 else found[:limit])]


def _regex_split(spend: Spend, pattern: str, text: str, limit: int) -> Value:
    _charge(spend, pattern, text)
    raw, found = _matches(pattern, text)
    if limit == 0:
        return []
    if pattern and not raw:
        return [""]
    parts: list[Value] = []
    start = end = 0
    for match in found if limit < 0 else found[:limit]:
        if limit > 0 and len(parts) == limit - 1:
            break
        end = match.start()
        if match.end() != 0:
            parts.append(from_bytes(raw[start:end]))
        start = match.end()
    if end != len(raw):
        parts.append(from_bytes(raw[start:]))
    return parts


_EXPANSION: Final = re.compile(rb"\$(?:(\$)|(\w+)|\{(\w+)\})")


def _regex_replace_all(spend: Spend, pattern: str, text: str, replacement: str) -> str:
    _charge(spend, pattern, text, replacement)
    raw, found = _matches(pattern, text)
    source = to_bytes(replacement)

    def expand(match: Any) -> bytes:
        def group(reference: re.Match[bytes]) -> bytes:
            if reference[1]:
                return b"$"
            name = reference[2] or reference[3]
            number = int(name) if name.isdigit() and len(name) < 5 else match.re.groupindex.get(name, -1)
            return (match.group(number) or b"") if 0 <= number <= match.re.groups else b""

        return _EXPANSION.sub(group, source)

    return _replaced(raw, found, expand)


def _regex_replace_literal(spend: Spend, pattern: str, text: str, replacement: str) -> str:
    _charge(spend, pattern, text, replacement)
    raw, found = _matches(pattern, text)
    literal = to_bytes(replacement)
    return _replaced(raw, found, lambda _match: literal)


def _replaced(raw: bytes, found: list[Any], replacement: Callable[[Any], bytes]) -> str:
    out = []
    size = end = 0
    for match in found:
        new = replacement(match)
        size += len(new)
        if size > fmt.MAX_CHARACTERS:
            raise CallError(f"the result is larger than {fmt.MAX_CHARACTERS} bytes")
        out += [raw[end : match.start()], new]
        end = match.end()
    out.append(raw[end:])
    return from_bytes(b"".join(out))


def _regular(name: str, call: Callable[..., Any], *after: Type, must: Callable[..., Any] | None = None) -> Functions:
    """A function of a regular expression, a text, and more; and the one that insists on a good expression."""
    parameters = (STRING, STRING, *after)
    insisting = f"must{name[0].upper()}{name[1:]}"

    def panicking(spend: Spend, pattern: str, *arguments: Value) -> Value:
        try:
            return call(spend, pattern, *arguments)
        except CallError as error:
            shown = f"`{pattern}`" if strconv.can_backquote(pattern) else strconv.quote(pattern)
            raise CallError(f"regexp: Compile({shown}): {error}" if _is_syntax(error) else str(error)) from None

    return table(
        Function(name, panicking, parameters, metered=True), Function(insisting, must or call, parameters, metered=True)
    )


def _is_syntax(error: CallError) -> bool:
    return str(error).startswith("error parsing regexp")


REGEXES: Final[Functions] = {
    **_regular("regexMatch", _regex_match, must=_must_match),
    **_regular("regexFind", _regex_find),
    **_regular("regexFindAll", _regex_find_all, INT),
    **_regular("regexReplaceAll", _regex_replace_all, STRING),
    **_regular("regexReplaceAllLiteral", _regex_replace_literal, STRING),
    **_regular("regexSplit", _regex_split, INT),
}

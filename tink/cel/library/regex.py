"""Regular expressions in linear time (RE2), worded as Go's when they are wrong.

Patterns that stand in an expression are compiled with it; others once for each of the last few texts.
"""

import functools
from collections.abc import Callable
from typing import Any

import re2

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True  # no function returns groups, and RE2 is much faster without them

_WORDING = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "unexpected )": "unexpected )",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid character class range": "invalid character class range",
    "invalid repetition size": "invalid repeat count",
    "invalid escape sequence": "invalid escape sequence",
    "trailing \\": "trailing backslash at end of expression",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    "invalid UTF-8": "invalid UTF-8",
}
_WITHOUT_PLACE = ("trailing backslash at end of expression",)


class PatternError(Exception):
    """A pattern that is not one; the text is Go's."""


def _explained(pattern: str, message: str) -> str:
    problem, _, place = message.partition(": ")
    wording = _WORDING.get(problem, problem)
    if wording in _WITHOUT_PLACE:
        place = ""
    elif wording == "missing closing )" or wording == "unexpected )":
        place = pattern
    shown = f"{wording}: `{place}`" if place or wording not in _WITHOUT_PLACE else f"{wording}: ``"
    return f"error parsing regexp: {shown}"


@functools.lru_cache(maxsize=512)
def compiled(pattern: str) -> Any:
    """The compiled pattern.

    Raises:
        PatternError: RE2 does not take it.
    """
    try:
        return re2.compile(pattern, options=_OPTIONS)
    except re2.error as error:
        text = error.args[0] if error.args else ""
        message = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        raise PatternError(_explained(pattern, message)) from None
    except UnicodeEncodeError:
        raise PatternError("error parsing regexp: invalid UTF-8: ``") from None


def tester(pattern: str) -> Callable[[str], bool]:
    """A function that tells whether a text has a match.

    Raises:
        PatternError: as `compiled`.
    """
    # The public search() converts offsets to code points, which costs nine times what the match itself does.
    match = compiled(pattern)._regexp.Match
    anywhere = re2._re2.RE2.Anchor.UNANCHORED

    def test(text: str) -> bool:
        data = text.encode("utf-8", "surrogatepass")
        return match(anywhere, data, 0, len(data))[0][0] >= 0  # type: ignore[no-any-return]

    return test


def find_all(pattern: str, text: str, limit: int = -1) -> list[str]:
    """The first matches in order, all of them for a negative limit; an empty match right behind one is none (Go).

    Raises:
        PatternError: as `compiled`.
    """
    match = compiled(pattern)._regexp.Match
    anywhere = re2._re2.RE2.Anchor.UNANCHORED
    data = text.encode("utf-8", "surrogatepass")
    found: list[str] = []
    at, size, last = 0, len(data), -1
    while at <= size and (limit < 0 or len(found) < limit):
        start, end = match(anywhere, data, at, size)[0]
        if start < 0:
            break
        if end > start or start != last:
            found.append(data[start:end].decode("utf-8", "surrogatepass"))
        last = end
        at = end if end > start else _after(data, end)
    return found


def _after(data: bytes, at: int) -> int:
    """The offset behind the character at `at`."""
    at += 1
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at

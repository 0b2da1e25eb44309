"""Regular expressions in linear time (RE2).

Constant patterns are compiled with their expression. The last 512 patterns stay in a cache.
"""

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import re2

from tink.errors import TinkedgeError

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True  # no function returns groups, and RE2 is much faster without them


class PatternError(TinkedgeError):
    """The pattern is invalid. The message is RE2's."""


@functools.lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> Any:
    """Compile a pattern. Raises PatternError if RE2 rejects it."""
    try:
        return re2.compile(pattern, options=_OPTIONS)
    except re2.error as error:
        text = error.args[0] if error.args else ""
        message = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        raise PatternError(f"error parsing regexp: {message}") from None
    except UnicodeEncodeError:
        raise PatternError("error parsing regexp: invalid UTF-8") from None


Match = Callable[[Any, bytes, int, int], Any]
"""Finds the first match in bytes between two offsets. The result is a tuple that begins with the span, or (-1, -1)."""


def _public_match(regex: Any) -> Match:
    def match(_anchor: Any, data: bytes, at: int, size: int) -> Any:
        found = regex.search(data, at, size)
        return ((-1, -1) if found is None else found.span(),)

    return match


def _choose_match() -> tuple[Callable[[Any], Match], Any]:
    """Return a function that returns a pattern's match function, and the anchor to call that with.

    The private functions of the module `re2` cost half as much as its public search. If one of them is missing or has
    another meaning, the public search is used.
    """
    below = attrgetter("_regexp.Match")
    try:
        anywhere = attrgetter("_re2.RE2.Anchor.UNANCHORED")(re2)
        if below(re2.compile("b", options=_OPTIONS))(anywhere, b"ab", 0, 2)[0] == (1, 2):
            return below, anywhere
    except (AttributeError, TypeError):
        pass
    return _public_match, None


_match_of, _ANYWHERE = _choose_match()


def pattern_tester(pattern: str) -> Callable[[str], bool]:
    """Return a function that tests if a text has a match. Raises PatternError like `compile_pattern`."""
    match, anywhere = _match_of(compile_pattern(pattern)), _ANYWHERE

    def test(text: str) -> bool:
        data = text.encode("utf-8", "surrogatepass")
        return match(anywhere, data, 0, len(data))[0][0] >= 0  # type: ignore[no-any-return]

    return test


def find_all(pattern: str, text: str, limit: int = -1) -> list[str]:
    """Return the first `limit` matches in order, or all if `limit` is negative.

    An empty match right after another match does not count, as in Go. Raises PatternError like `compile_pattern`.
    """
    match, anywhere = _match_of(compile_pattern(pattern)), _ANYWHERE
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
        at = end if end > start else end + 1
        while at < size and data[at] & 0xC0 == 0x80:  # after an empty match go on behind the next character
            at += 1
    return found

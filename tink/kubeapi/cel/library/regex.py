"""Regular expressions in linear time (RE2).

Patterns that stand in an expression are compiled with it; others once for each of the last few texts.
"""

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import re2

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True  # no function returns groups, and RE2 is much faster without them


class PatternError(Exception):
    """A pattern that is not one; the text is RE2's."""


@functools.lru_cache(maxsize=512)
def compiled(pattern: str) -> Any:
    """The compiled pattern. Raises PatternError: RE2 does not take it."""
    try:
        return re2.compile(pattern, options=_OPTIONS)
    except re2.error as error:
        text = error.args[0] if error.args else ""
        message = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        raise PatternError(f"error parsing regexp: {message}") from None
    except UnicodeEncodeError:
        raise PatternError("error parsing regexp: invalid UTF-8") from None


def check_pattern(pattern: str) -> None:
    """See that a text is a pattern. Raises PatternError: RE2 does not take it."""
    compiled(pattern)


Match = Callable[[Any, bytes, int, int], Any]
"""Finds the first match in bytes between two offsets: a tuple that begins with its span, (-1, -1) for none."""


def _public_match(regex: Any) -> Match:
    def match(_anchor: Any, data: bytes, at: int, size: int) -> Any:
        found = regex.search(data, at, size)
        return ((-1, -1) if found is None else found.span(),)

    return match


def _choose_match() -> tuple[Callable[[Any], Match], Any]:
    """Give the way to a pattern's match and its anchor: below the public search, at half its cost.

    The names there are private. Where one of them is missing or means something else, the public search is the way.
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
    """A function that tells whether a text has a match. Raises PatternError: as `compiled`."""
    match, anywhere = _match_of(compiled(pattern)), _ANYWHERE

    def test(text: str) -> bool:
        data = text.encode("utf-8", "surrogatepass")
        return match(anywhere, data, 0, len(data))[0][0] >= 0  # type: ignore[no-any-return]

    return test


def find_all(pattern: str, text: str, limit: int = -1) -> list[str]:
    """The first matches in order, all of them for a negative limit; an empty match right behind one is none (Go).

    Raises PatternError: as `compiled`.
    """
    match, anywhere = _match_of(compiled(pattern)), _ANYWHERE
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

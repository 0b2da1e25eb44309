"""The string functions: cel-go's strings extension (version 2) as Kubernetes has it. Places count code points."""

from typing import Any

from tink.kubeapi.cel.errors import EvaluationError
from tink.kubeapi.cel.values import shown

_UPPER = str.maketrans("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f"
_SPACES = _SPACE + "\u205f\u3000"
_QUOTED = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\", '"': '\\"',
}  # fmt: skip
MAX_RESULT = 50_000_000
"""Characters that one string function may produce."""


def _out_of_range(at: int) -> EvaluationError:
    return EvaluationError(f"index out of range: {at}")


def char_at(text: str, at: int) -> str:
    """The character at a place; empty right behind the end."""
    if not 0 <= at <= len(text):
        raise _out_of_range(at)
    return text[at : at + 1]


def index_of(text: str, part: str, start: int = 0) -> int:
    """Where `part` stands first at or after `start`, else -1."""
    if not part:
        return start
    if start < 0:
        raise _out_of_range(start)
    return text.find(part, start) if start < len(text) else -1


def last_index_of(text: str, part: str) -> int:
    """Where `part` stands last, else -1."""
    return len(text) if not part else text.rfind(part)


def last_index_before(text: str, part: str, start: int) -> int:
    """Where `part` stands last at or before `start`, else -1."""
    if not part:
        return start
    if start < 0:
        raise _out_of_range(start)
    if start >= len(text):
        return -1
    return text.rfind(part, 0, start + len(part))


def lower(text: str) -> str:
    """ASCII letters in lower case."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def upper(text: str) -> str:
    """ASCII letters in upper case."""
    return text.upper() if text.isascii() else text.translate(_UPPER)


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """The first `count` occurrences replaced, all for a negative count."""
    times = len(text) + 1 if not old else len(text) // len(old) + 1
    if len(text) + min(times, count if count >= 0 else times) * len(new) > MAX_RESULT:
        raise EvaluationError("operation cancelled: result is too large")
    return text.replace(old, new, count) if count >= 0 else text.replace(old, new)


def split(text: str, mark: str, limit: int = -1) -> list[str]:
    """The parts between the marks; with an empty mark, the characters. At most `limit` parts unless negative."""
    if limit == 0:
        return []
    if not mark:
        if limit < 0 or limit >= len(text):
            return list(text)
        return [*text[: limit - 1], text[limit - 1 :]]
    return text.split(mark, limit - 1) if limit > 0 else text.split(mark)


def substring(text: str, start: int) -> str:
    """From a place to the end."""
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    return text[start:]


def substring_range(text: str, start: int, end: int) -> str:
    """From a place up to another."""
    if start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    for at in (start, end):
        if not 0 <= at <= len(text):
            raise _out_of_range(at)
    return text[start:end]


def trim(text: str) -> str:
    """Without Unicode white space at both ends."""
    return text.strip(_SPACES)


def quote(text: str) -> str:
    """In double quotes, with escapes."""
    return '"' + "".join(_QUOTED.get(char, char) for char in text) + '"'


def join(items: list[Any], mark: str = "") -> str:
    """The strings of a list with a mark between them.

    Raises EvaluationError: an element is no string, or the result would be too long.
    """
    for item in items:
        if type(item) is not str:
            raise EvaluationError(f"join: invalid input: {shown(item)}")
    if sum(map(len, items)) + len(mark) * len(items) > MAX_RESULT:
        raise EvaluationError("operation cancelled: result is too large")
    return mark.join(items)

"""The string functions: cel-go's strings extension (version 2) as Kubernetes has it. Indexes count code points.

`string.format(list)` writes numbers for the locale that Kubernetes leaves set (en_US), hence the commas in %f.
"""

import re
from typing import Any

from tink.errors import TinkedgeError
from tink.golang import quote
from tink.kubeapi.cel.errors import EvaluationError
from tink.kubeapi.cel.frame import Traversal
from tink.kubeapi.cel.library.conversions import to_text
from tink.kubeapi.cel.values import Duration, Timestamp, TypeValue, UInt, double_text, shown, type_name

_UPPER = str.maketrans("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f"
_SPACES = _SPACE + "\u205f\u3000"
_QUOTED = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\", '"': '\\"',
}  # fmt: skip
MAX_RESULT = 50_000_000
"""Maximum length in characters of the result of a string function."""


def _out_of_range(at: int) -> EvaluationError:
    return EvaluationError(f"index out of range: {at}")


def char_at(text: str, at: int) -> str:
    """Return the character at an index. It is empty right after the end."""
    if not 0 <= at <= len(text):
        raise _out_of_range(at)
    return text[at : at + 1]


def index_of(text: str, part: str, start: int = 0) -> int:
    """Return the first index of `part` from `start` on, or -1."""
    if not part:
        return start
    if start < 0:
        raise _out_of_range(start)
    return text.find(part, start) if start < len(text) else -1


def last_index_of(text: str, part: str, start: int | None = None) -> int:
    """Return the last index of `part`, if given up to `start`, or -1."""
    if start is None:
        return text.rfind(part)
    if not part:
        return start
    if start < 0:
        raise _out_of_range(start)
    return text.rfind(part, 0, start + len(part)) if start < len(text) else -1


def lower(text: str) -> str:
    """Convert ASCII letters to lower case."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def upper(text: str) -> str:
    """Convert ASCII letters to upper case."""
    return text.upper() if text.isascii() else text.translate(_UPPER)


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """Replace the first `count` occurrences, or all if `count` is negative."""
    times = len(text) + 1 if not old else len(text) // len(old) + 1
    if len(text) + min(times, count if count >= 0 else times) * len(new) > MAX_RESULT:
        raise EvaluationError("operation cancelled: result is too large")
    return text.replace(old, new, count) if count >= 0 else text.replace(old, new)


def split(text: str, mark: str, limit: int = -1) -> list[str]:
    """Split a text at a mark, or into characters if the mark is empty, into at most `limit` parts unless negative."""
    if limit == 0:
        return []
    if not mark:
        if limit < 0 or limit >= len(text):
            return list(text)
        return [*text[: limit - 1], text[limit - 1 :]]
    return text.split(mark, limit - 1) if limit > 0 else text.split(mark)


def substring(text: str, start: int, end: int | None = None) -> str:
    """Return the text between two indexes, or from an index to the end."""
    if end is not None and start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    for at in (start, end):
        if at is not None and not 0 <= at <= len(text):
            raise _out_of_range(at)
    return text[start:end]


def trim(text: str) -> str:
    """Strip Unicode white space at both ends."""
    return text.strip(_SPACES)


def quoted(text: str) -> str:
    """Return the text in double quotes, with escapes."""
    return '"' + "".join(_QUOTED.get(char, char) for char in text) + '"'


def join(items: list[Any], mark: str = "") -> str:
    """Join the strings of a list with a mark between them.

    Raises EvaluationError if an element is not a string, or the result would be too long.
    """
    for item in items:
        if type(item) is not str:
            raise EvaluationError(f"join: invalid input: {shown(item)}")
    if sum(map(len, items)) + len(mark) * len(items) > MAX_RESULT:
        raise EvaluationError("operation cancelled: result is too large")
    return mark.join(items)


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MAX_PRECISION = 1000
WRITTEN = 4
"""Number of nodes of a traversal that one element counts for: writing takes longer than comparing."""

STRINGS = frozenset(
    (
        "list", "map", "int", "uint", "double", "bool", "string", "bytes", "google.protobuf.Timestamp",
        "google.protobuf.Duration", "type", "null_type", "dyn",
    )
)  # fmt: skip
_ALLOWED: dict[str, tuple[frozenset[str], str]] = {
    "s": (
        STRINGS,
        "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and"
        " timestamps, was given {}",
    ),
    "d": (frozenset(("int", "uint")), "decimal clause can only be used on integers, was given {}"),
    "f": (frozenset(("double", "string")), "fixed-point clause can only be used on doubles, was given {}"),
    "e": (frozenset(("double", "string")), "scientific clause can only be used on doubles, was given {}"),
    "b": (frozenset(("int", "uint", "bool")), "only integers and bools can be formatted as binary, was given {}"),
    "x": (
        frozenset(("int", "uint", "string", "bytes")),
        "only integers, byte buffers, and strings can be formatted as hex, was given {}",
    ),
    "o": (frozenset(("int", "uint")), "octal clause can only be used on integers, was given {}"),
}
_ALLOWED["X"] = _ALLOWED["x"]


_CLAUSE = re.compile(r"%(?:%|(\.[0-9]*)?(.?))", re.DOTALL)


class ClauseError(TinkedgeError):
    """A clause is malformed or does not fit its argument."""


def _wrong_type(clause: str, given: str) -> ClauseError:
    return ClauseError(f"error during formatting: {_ALLOWED[clause][1].format(given)}")


def allowed(clause: str, given: str) -> str:
    """Return why a clause does not accept an argument of a type, or ""."""
    return "" if given == "dyn" or given in _ALLOWED[clause][0] else str(_wrong_type(clause, given))


def clauses(text: str, size: int) -> list[tuple[str, int, str]]:
    """Split a format into pieces: (plain text, -1, "") or ("", precision or -1, clause).

    Raises ClauseError if it is malformed, or has more clauses than the `size` arguments.
    """
    pieces: list[tuple[str, int, str]] = []
    at = count = 0
    for match in _CLAUSE.finditer(text):
        if match.start() > at:
            pieces.append((text[at : match.start()], -1, ""))
        at = match.end()
        if match[0] == "%%":
            pieces.append(("%", -1, ""))
            continue
        if count >= size:
            raise ClauseError(f"index {count} out of range")
        precision, clause = match[1], match[2]
        if not clause and precision is None:
            raise ClauseError("unexpected end of string")
        if precision is not None and (why := _precision_problem(precision[1:], clause)):
            raise ClauseError(f"could not parse formatting clause: error while parsing precision: {why}")
        if clause not in _ALLOWED:
            raise ClauseError(f'could not parse formatting clause: unrecognized formatting clause "{clause}"')
        pieces.append(("", int(precision[1:]) if precision else -1, clause))
        count += 1
    return [*pieces, (text[at:], -1, "")] if at < len(text) else pieces


def _precision_problem(digits: str, clause: str) -> str:
    if not clause:
        return "could not find end of precision specifier"
    if not digits:
        return 'error while converting precision to integer: strconv.Atoi: parsing "": invalid syntax'
    return "precision is too large" if len(digits) > 6 or int(digits) > MAX_PRECISION else ""


_SCALARS = frozenset((bool, int, UInt, float, Timestamp, Duration))


def _string(traversal: Traversal, value: Any) -> str:
    kind = type(value)
    if kind is str:
        traversal.text(value)
        return str(value)
    if kind in _SCALARS:
        return to_text(value)
    if isinstance(value, list):
        traversal.visit(WRITTEN * (len(value) + 1))
        return "[" + ", ".join([_inner(traversal, item) for item in value]) + "]"
    if kind is dict:
        traversal.visit(WRITTEN * (len(value) + 1))
        return "{" + ", ".join(sorted(f"{_key(traversal, k)}:{_inner(traversal, v)}" for k, v in value.items())) + "}"
    if value is None:
        return "null"
    if kind is bytes:
        try:
            return str(value.decode("utf-8"))
        except UnicodeDecodeError:
            problem = "invalid UTF-8 in bytes, cannot convert to string"
            raise ClauseError(f'error during formatting: could not convert argument "{problem}" to string') from None
    if kind is TypeValue:
        return str(value.name)
    raise _wrong_type("s", type_name(value))


def _key(traversal: Traversal, value: Any) -> str:
    if type(value) is str:
        traversal.text(value)
        return quote(value)
    if type(value) in (int, UInt, bool):
        return _string(traversal, value)
    raise ClauseError(f"error during formatting: no formatting function for map key of type {type_name(value)}")


def _inner(traversal: Traversal, value: Any) -> str:
    """Write a value inside a list or map: strings are quoted, doubles have six decimals."""
    kind = type(value)
    if kind is str or kind is bytes:
        traversal.text(value)
    if kind is str:
        return quote(value)
    if kind is bytes:
        return "b" + quote(value.decode("utf-8", "replace"))
    if kind is float:
        if value - value != 0:
            return f'"{double_text(value)}"'
        return f"{value:f}"
    if kind is Timestamp or kind is Duration:
        word = "timestamp" if kind is Timestamp else "duration"
        return f'{word}("{_string(traversal, value)}")'
    return _string(traversal, value)


def _double(clause: str, value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is str and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise _wrong_type(clause, type_name(value))


def _special(value: float) -> str:
    return "NaN" if value != value else "∞" if value > 0 else "-∞"


def _fixed(value: Any, precision: int) -> str:
    number = _double("f", value)
    return _special(number) if number - number != 0 else f"{number + 0.0:,.{precision if precision >= 0 else 6}f}"


def _scientific(value: Any, precision: int) -> str:
    # Kubernetes uses the precision as a width; there are always six decimals.
    number, width = _double("e", value), precision if precision >= 0 else 6
    if number - number != 0:
        return _special(number).rjust(width)
    mantissa, _, exponent = f"{number + 0.0:.6e}".partition("e")
    return f"{mantissa}×10{exponent.removeprefix('+').translate(_SUPERSCRIPT)}".rjust(width)


def _integer(clause: str, value: Any) -> str:
    if type(value) is int or type(value) is UInt or (clause == "b" and type(value) is bool):
        return format(int(value), clause)
    if clause in "xX" and type(value) in (str, bytes):
        data = value.encode("utf-8", "surrogatepass") if type(value) is str else value
        return str(data.hex() if clause == "x" else data.hex().upper())
    raise _wrong_type(clause, type_name(value))


def _piece(traversal: Traversal, clause: str, precision: int, value: Any) -> str:
    if clause == "s":
        return _string(traversal, value)
    if clause not in "fe":
        return _integer(clause, value)
    return _fixed(value, precision) if clause == "f" else _scientific(value, precision)


def formatted(traversal: Traversal, text: str, args: list[Any]) -> str:
    """Fill the clauses of `text` with `args`.

    Raises EvaluationError for a malformed format, missing arguments, wrong types or a result that is too long, and
    BudgetExceededError for arguments with too many nodes.
    """
    try:
        out: list[str] = []
        at = size = 0
        for plain, precision, clause in clauses(text, len(args)):
            if clause:
                piece = _piece(traversal, clause, precision, args[at])
                size += len(piece)
                if size > MAX_RESULT:
                    raise EvaluationError("operation cancelled: result is too large")
                out.append(piece)
                at += 1
            else:
                out.append(plain)
        return "".join(out)
    except ClauseError as error:
        raise EvaluationError(str(error)) from None

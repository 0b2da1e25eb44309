r"""JSONPath in printer columns: the dialect of k8s.io/client-go, util/jsonpath, which differs from RFC 9535.

A column's path is the text of one action, `{PATH}`. It is parsed once (parser.go) and evaluated for each object
(jsonpath.go, with AllowMissingKeys). The oddities of client-go are reproduced:

    .a.b   .a\.b   ['a\.b']        a key; dots in quotes separate keys unless they are escaped; double quotes are no key
    [0] [-1] [1:3] [::2] [*]      items; an index that does not exist is an error, a missing key is not
    .*   ..   ..a                 all values; the object and all containers in it
    [0,2]  ['a','b']              a union
    [?(@.a=="x")]  [?(@.a)]       a filter; comparing values of two types is an error

`tests/unit/kubeapi/apiserver/data/columns.json` holds the answers of the original.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final

from tink.errors import TinkedgeError
from tink.golang import strconv

Values = list[Any]
Find = Callable[[Any], Values]

MAX_PATH_CHARACTERS: Final = 4096
"""Maximum length of a path."""
MAX_STEPS: Final = 10_000
"""Maximum number of values that the evaluation of a path visits in one object."""

_DICT_KEY = re.compile(r"'([^']*)'")
_SLICE = re.compile(r"(-?[0-9]*)(:-?[0-9]*)?(:-?[0-9]*)?")
_COMPARISON = re.compile(r"([^!<>=]+)([!<>=]+)(.+)")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?[0-9]+\.?[0-9]*")
_NAME = re.compile(r"(?:\\.?|[^\\ \t\r\n.,\[\]$@{}])*", re.DOTALL)
_WORD = re.compile(r"[^ \t\r\n.,\[\]$@{}]*")
_DIGITS = re.compile(r"[+-]?[.\d]*")
_STRING = re.compile(r"([\"'])[^\n]*?(?<!\\)\1")
_INT64 = 1 << 63


class JSONPathError(TinkedgeError, ValueError):
    """The path is malformed, or does not fit the object.

    `found` is the result that the failed step returned with its error. A filter for existence uses it.
    """

    def __init__(self, message: str, found: Values | None = None) -> None:
        super().__init__(message)
        self.found = found or []


class Byte(int):
    """A byte of a string, which client-go treats as a list of bytes."""


class _Budget:
    """The number of steps left for an evaluation."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def take(self, steps: int = 1) -> None:
        """Count steps. Raises JSONPathError if none are left."""
        self._left -= steps
        if self._left < 0:
            raise JSONPathError(f"the path takes more than {MAX_STEPS} steps")


Step = Callable[[Values, _Budget], Values]


def compile_path(text: str) -> Find:
    """Compile a path without its braces. Return a function that returns the values that the path selects in an object.

    Both raise JSONPathError.
    """
    if not text.startswith("."):
        raise JSONPathError("must be a simple json path starting with .")
    if len(text) > MAX_PATH_CHARACTERS:
        raise JSONPathError(f"has {len(text)} characters; at most {MAX_PATH_CHARACTERS} are read")
    blocks = _parse(f"{{{text}}}")

    def find(obj: Any) -> Values:
        budget = _Budget()
        # The first action is the column. Actions after a `}` in the path are evaluated because they may fail.
        found, *_ = [_walk(block, [obj], budget) for block in blocks]
        return found

    return find


def _walk(steps: Iterable[Step], values: Values, budget: _Budget) -> Values:
    for step in steps:
        budget.take(len(values) + 1)
        values = step(values, budget)
    return values


# --- parser.go --------------------------------------------------------------------------------------------------


def _parse(text: str) -> list[list[Step]]:
    """Parse a template that begins with an action. Returns the steps of each action."""
    blocks: list[list[Step]] = []
    at = 0
    while (begin := text.find("{", at)) >= 0:
        steps, at = _action(text, begin + 1)
        blocks.append(steps)
    return blocks


def _inner(text: str) -> list[Step]:
    """Parse an action that stands within another one."""
    return _parse(f"{{{text}}}")[0]


def _action(text: str, at: int) -> tuple[list[Step], int]:
    steps: list[Step] = []
    while True:
        char = text[at : at + 1]
        if char == "}":
            return steps, at + 1
        if text.startswith("[?(", at):
            at = _filter(text, at, steps)
        elif text.startswith("..", at):
            if steps and steps[-1] is _descend:
                raise JSONPathError("invalid multiple recursive descent")
            steps.append(_descend)
            at += 2
            if _is_alphanumeric(text[at : at + 1] or "."):
                at = _field(text, at, steps)
        elif char in ("", "\r", "\n"):
            raise JSONPathError("unclosed action")
        elif char in " @$":
            at += 1
        elif char == "[":
            at = _array(text, at, steps)
        elif char in "\"'":
            at = _quoted(text, at, steps)
        elif char == ".":
            at = _field(text, at + 1, steps)
        elif char in "+-" or char.isdecimal():
            at = _number(text, at, steps)
        elif _is_alphanumeric(char):
            name = _read(_WORD, text, at)
            steps.append(_constant(name == "true") if name in ("true", "false") else _unrecognized(name))
            at += len(name)
        else:
            raise JSONPathError(f"unrecognized character in action: {char!r}")


def _read(pattern: re.Pattern[str], text: str, at: int) -> str:
    found = pattern.match(text, at)
    return found[0] if found else ""


def _is_alphanumeric(char: str) -> bool:
    return char == "_" or char.isalpha() or char.isdecimal()


def _field(text: str, at: int, steps: list[Step]) -> int:
    name = _read(_NAME, text, at)
    steps.append(_every if name == "*" else _child(name.replace("\\", "")))
    return at + len(name)


def _number(text: str, at: int, steps: list[Step]) -> int:
    literal = _read(_DIGITS, text, at)
    if _INTEGER.fullmatch(literal) and -_INT64 <= int(literal) < _INT64:
        steps.append(_constant(int(literal)))
    elif _FLOAT.fullmatch(literal) and abs(float(literal)) != float("inf"):
        steps.append(_constant(float(literal)))
    else:
        raise JSONPathError(f"cannot parse number {literal}")
    return at + len(literal)


def _quoted(text: str, at: int, steps: list[Step]) -> int:
    found = _STRING.match(text, at)
    if found is None:
        raise JSONPathError("unterminated quoted string")
    try:
        value = strconv.unquote(found[0])
    except ValueError as error:
        raise JSONPathError(f"unquote string {found[0]} error {error}") from error
    # \xff is a byte that is not text. It becomes U+FFFD in an answer.
    constant = strconv.to_bytes(value).decode("utf-8", "replace")
    steps.append(lambda _values, _budget: [constant])
    return found.end()


def _array(text: str, at: int, steps: list[Step]) -> int:
    # The first closing bracket ends the array, even within quotes.
    end = re.compile(r"[\]\n]").search(text, at)
    if end is None or end[0] == "\n":
        raise JSONPathError("unterminated array")
    inside = text[at + 1 : end.start()]
    inside = ":" if inside == "*" else inside
    if "," in inside:
        steps.append(_union([_inner(f"[{part.strip(' ')}]") for part in inside.split(",")]))
    elif key := _DICT_KEY.fullmatch(inside):
        steps += _inner(f".{key[1]}")
    elif part := _SLICE.fullmatch(inside):
        steps.append(_items(*part.groups()))
    else:
        raise JSONPathError(f"invalid array index {inside}")
    return end.end()


def _filter(text: str, at: int, steps: list[Step]) -> int:
    begin = at = at + len("[?(")
    mark, closed = "", False
    while True:
        char = text[at : at + 1]
        if char in ("", "\n"):
            raise JSONPathError("unterminated filter")
        if char in "\"'":
            if not mark:
                mark = char
            elif text[at - 1] != "\\" and char == mark:
                closed = True
        elif char == ")" and bool(mark) == closed:
            break
        at += 1
    if text[at + 1 : at + 2] != "]":
        raise JSONPathError("unclosed array expect ]")
    inside = text[begin:at]
    if comparison := _COMPARISON.fullmatch(inside):
        left, name, right = comparison.groups()
        steps.append(_where(_inner(left), name, _inner(right)))
    else:
        steps.append(_where_exists(_inner(inside)))
    return at + 2


# --- jsonpath.go ------------------------------------------------------------------------------------------------


def _child(name: str) -> Step:
    def step(values: Values, _budget: _Budget) -> Values:
        return [value[name] for value in values if isinstance(value, dict) and name in value]

    return step


def _contents(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list):
        return value
    return map(Byte, strconv.to_bytes(value)) if isinstance(value, str) else ()


def _size(value: Any) -> int:
    return len(value) if isinstance(value, dict | list | str) else 0


def _every(values: Values, budget: _Budget) -> Values:
    budget.take(sum(map(_size, values)))
    return list(chain.from_iterable(map(_contents, values)))


def _descend(values: Values, budget: _Budget) -> Values:
    """Return all containers in `values` that are not empty, each before those in it; a string is a container."""
    found, todo = [], [*reversed(values)]
    while todo:
        value = todo.pop()
        if size := _size(value):
            budget.take(size)
            found.append(value)
            if not isinstance(value, str):
                todo += reversed([*_contents(value)])
    return found


def _constant(value: bool | float) -> Step:
    def step(values: Values, _budget: _Budget) -> Values:
        return [value] * len(values)

    return step


def _unrecognized(name: str) -> Step:
    def step(values: Values, _budget: _Budget) -> Values:
        raise JSONPathError(f"unrecognized identifier {name}", values)

    return step


def _union(parts: Sequence[list[Step]]) -> Step:
    def step(values: Values, budget: _Budget) -> Values:
        try:
            return [value for part in parts for value in _walk(part, values, budget)]
        except JSONPathError as error:
            raise JSONPathError(str(error), values) from error

    return step


def _items(first: str, last: str | None, by: str | None) -> Step:
    start = _bound(first)
    # An index alone selects one item: from it to the next one, and [-1] to the end.
    alone = last is None
    end = (start or 0) + 1 if last is None else _bound(last[1:])
    stride = _bound((by or ":")[1:])

    def step(values: Values, _budget: _Budget) -> Values:
        found: Values = []
        for value in values:
            if value is None:
                continue
            if not isinstance(value, list):
                raise JSONPathError(f"{type(value).__name__} is not array or slice", values)
            low, high = start or 0, len(value) if end is None else end
            low += len(value) if low < 0 else 0
            high += len(value) if high < 0 or (high == 0 and alone) else 0
            if low == high:
                return found
            if not 0 <= low < len(value) or not 0 <= high <= len(value) or low > high:
                raise JSONPathError(f"array index out of bounds: {low}:{high}, length {len(value)}", values)
            if stride is not None and stride <= 0:
                raise JSONPathError("step must be > 0", values)
            found += value[low : high : stride or 1]
        return found

    return step


def _bound(text: str) -> int | None:
    if not text:
        return None
    if text == "-" or not -_INT64 <= int(text) < _INT64:
        raise JSONPathError(f"array index {text} is not a number")
    return int(text)


def _items_of(values: Values) -> Iterable[Any]:
    for value in values:
        if not isinstance(value, list):
            raise JSONPathError(f"{value!r:.100} is not array or slice and cannot be filtered", values)
        yield from value


def _where_exists(left: list[Step]) -> Step:
    def holds(item: Any, budget: _Budget) -> bool:
        try:
            return bool(_walk(left, [item], budget))
        except JSONPathError as error:
            budget.take(0)
            return bool(error.found)

    return lambda values, budget: [item for item in _items_of(values) if holds(item, budget)]


def _where(left: list[Step], name: str, right: list[Step]) -> Step:
    def step(values: Values, budget: _Budget) -> Values:
        found: Values = []
        for item in _items_of(values):
            try:
                lefts = _walk(left, [item], budget)
                rights = _walk(right, [item], budget) if len(lefts) == 1 else []
            except JSONPathError as error:
                raise JSONPathError(str(error), values) from error
            if len(lefts) > 1 or len(rights) > 1:
                raise JSONPathError("can only compare one element at a time", values)
            if lefts and rights and _compare(name, lefts[0], rights[0], found):
                found.append(item)
        return found

    return step


_LESS: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_EQUAL: Final = {"==": operator.eq, "!=": operator.ne}


def _compare(name: str, left: Any, right: Any, found: Values) -> bool:
    """Compare as third_party/forked/golang/template/funcs.go does: only values of one basic kind."""
    compare = _LESS.get(name) or _EQUAL.get(name)
    if compare is None:
        raise JSONPathError(f"unrecognized filter operator {name}", found)
    kinds = _kind(left), _kind(right)
    if "" in kinds:
        raise JSONPathError("invalid type for comparison", found)
    if kinds[0] != kinds[1]:
        raise JSONPathError("incompatible types for comparison", found)
    if kinds[0] == "bool" and name in _LESS:
        raise JSONPathError("invalid type for comparison", found)
    return bool(compare(left, right))


def _kind(value: Any) -> str:
    """Return the basic kind of a value; "" if it has none. Integers beyond 64 bits are floats, as in Go."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -_INT64 <= value < _INT64 else "float"
    return "float" if isinstance(value, float) else "str" if isinstance(value, str) else ""

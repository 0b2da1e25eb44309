"""JSONPath as printer columns use it: Kubernetes' dialect (k8s.io/client-go, util/jsonpath) without the templates.

`.spec.a`, `.spec['a.b']`, `.spec.a\\.b`, `[0]`, `[-1]`, `[1:3]`, `[*]`, `.*`, `..a`, `[?(@.type=="Ready")]`.
A path is compiled once to a function from an object to the values that it finds; a missing key finds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

Step = Callable[[Any], Iterator[Any]]
Find = Callable[[Any], list[Any]]

MAX_FOUND = 1_000
"""Most values that a path finds; the rest is left out."""

_FIELD = re.compile(r"((?:[^.\[\]\\ '\"()]|\\.)+)")
_QUOTED = re.compile(r"\[\s*(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\")\s*\]")
_INDEX = re.compile(r"\[\s*(-?\d{1,9})\s*\]")
_SLICE = re.compile(r"\[\s*(-?\d{1,9})?\s*:\s*(-?\d{1,9})?\s*(?::\s*(\d{1,9})\s*)?\]")
_FILTER = re.compile(r"\[\?\(\s*@([^=!<>]*?)\s*(?:(==|!=|<=|>=|<|>)\s*('[^']*'|\"[^\"]*\"|[^'\"\s()]+)\s*)?\)\]")


class JSONPathError(ValueError):
    """The path cannot be read."""


def compile_path(text: str) -> Find:
    """Compile a path that starts with a dot, without braces. Raises JSONPathError."""
    if not text.startswith((".", "[")):
        raise JSONPathError("must be a simple json path starting with .")
    steps = _steps(text)

    def find(obj: Any) -> list[Any]:
        found = [obj]
        for step in steps:
            found = list(islice((value for item in found for value in step(item)), MAX_FOUND))
        return found

    return find


def _steps(text: str) -> list[Step]:
    steps: list[Step] = []
    at = 0
    while at < len(text):
        rest = text[at:]
        if rest.startswith("..") and (found := _FIELD.match(rest, 2)):
            steps.append(_descend(_plain(found[1])))
        elif rest == ".":
            return steps
        elif rest.startswith((".*", "[*]")):
            steps.append(_every)
            at += len(".*") if rest[0] == "." else len("[*]")
            continue
        elif rest.startswith(".") and (found := _FIELD.match(rest, 1)):
            steps.append(_child(_plain(found[1])))
        elif rest.startswith(".["):
            at += 1
            continue
        elif found := _QUOTED.match(rest):
            steps.append(_child(_plain(found[1] if found[1] is not None else found[2])))
        elif found := _INDEX.match(rest):
            steps.append(_item(int(found[1])))
        elif found := _SLICE.match(rest):
            steps.append(_some(slice(*(int(part) if part else None for part in found.groups()))))
        elif found := _FILTER.match(rest):
            steps.append(_filter(found))
        else:
            raise JSONPathError(f"cannot be read at {rest!r}")
        at += found.end()
    return steps


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _child(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and name in value:
            yield value[name]

    return step


def _every(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _item(index: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= index < len(value):
            yield value[index]

    return step


def _some(part: slice) -> Step:
    if part.step == 0:
        raise JSONPathError("the step of a slice must be more than 0")

    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list):
            yield from value[part]

    return step


def _descend(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        todo = [value]
        while todo:
            at = todo.pop()
            if isinstance(at, dict):
                if name in at:
                    yield at[name]
                todo += at.values()
            elif isinstance(at, list):
                todo += at

    return step


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _filter(found: re.Match[str]) -> Step:
    inner = _steps(found[1]) if found[1] else []
    wanted = _literal(found[3]) if found[2] else None
    compare = _COMPARE[found[2]] if found[2] else None

    def holds(item: Any) -> bool:
        values = [item]
        for step in inner:
            values = [value for at in values for value in step(at)]
        if compare is None:
            return bool(values)
        if not values:
            return False
        try:
            return compare(values[0], wanted)
        except TypeError:  # a text is neither more nor less than a number
            return False

    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list):
            yield from (item for item in value if holds(item))

    return step


def _literal(text: str) -> Any:
    if text[0] in "'\"":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text) if "." in text else int(text)
    except ValueError as error:
        raise JSONPathError(f"cannot be compared with {text!r}") from error

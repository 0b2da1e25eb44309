"""YAML documents as libyaml nodes, and their comments: where a comment stands, and where it goes when its field moves.

libyaml drops comments, and ruamel.yaml ties them to the tokens of a tree that a conversion takes apart. Here a comment
belongs to the field below it or beside it, by the field's path. The converter reports where a field went
(`Findings.moved`), and the comment follows. A comment whose field is gone stays at the nearest field that remains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import yaml

from tink.api.yaml import Parser, YamlError, check_depth
from tink.convert.fields import join
from tink.convert.findings import Comment

_MAYBE = re.compile(r"(?:^|[ \t])#", re.MULTILINE)
_HASH = re.compile(r"(?<![^ \t])#")
_BLOCK_HEADER = re.compile(r"[|>][0-9+-]*")
END = "\0end"
"""The path of a comment that stands below all fields."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The line on which a field of the document begins."""

    line: int
    path: str


def has_comments(text: str) -> bool:
    """Return True if the text may have comments. A `#` inside a block scalar counts here too."""
    return _MAYBE.search(text) is not None


def collect(text: str) -> list[Comment]:
    """Return the comments of the first document of a text, in order; none if the text can't be read."""
    try:
        check_depth(text)
        parser = Parser(text)
        root = parser.get_node() if parser.check_node() else None
    except (yaml.YAMLError, YamlError, ValueError):
        return []
    if root is None:
        return []
    places: list[_Place] = []
    scalars: list[yaml.ScalarNode] = []
    _walk(root, "", places, scalars, set())
    lines = text.split("\n")
    return list(_comments(lines, places, _covered(scalars, lines)))


def placed(
    comments: Iterable[Comment], moves: Mapping[str, str], there: Mapping[str, int]
) -> list[tuple[str, Comment]]:
    """Return each comment with the path in the result that it belongs to; "" is the object itself.

    `there` has the paths of the result; `moves` is `Findings.moves`.
    """
    found: list[tuple[str, Comment]] = []
    for comment in comments:
        target, exact = _target(comment.paths, moves, there)
        # Beside another field, the comment would seem to be about that field.
        found.append((target, comment if exact else replace(comment, beside=False)))
    return found


def _walk(node: yaml.Node, path: str, places: list[_Place], scalars: list[yaml.ScalarNode], seen: set[int]) -> None:
    """Collect fields and scalars in order. A node that an alias repeats is visited once: its marks are the anchor's."""
    if isinstance(node, yaml.ScalarNode):
        scalars.append(node)
        return
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, item in node.value:
            if isinstance(key, yaml.ScalarNode):
                scalars.append(key)
                at = join(path, key.value)
                places.append(_Place(key.start_mark.line, at))
                _walk(item, at, places, scalars, seen)
    else:
        for index, item in enumerate(node.value):
            at = join(path, index)
            places.append(_Place(item.start_mark.line, at))
            _walk(item, at, places, scalars, seen)


def _covered(scalars: list[yaml.ScalarNode], lines: list[str]) -> dict[int, list[tuple[int, int]]]:
    """Return the columns that scalars take on each line: a `#` there is no comment."""
    covered: dict[int, list[tuple[int, int]]] = {}
    for scalar in scalars:
        start, end = scalar.start_mark, scalar.end_mark
        if scalar.style not in ("|", ">") and start.line == end.line:
            covered.setdefault(start.line, []).append((start.column, end.column))
            continue
        header = _BLOCK_HEADER.search(lines[start.line], start.column) if scalar.style in ("|", ">") else None
        for line in range(start.line, min(end.line + 1, len(lines))):
            left = start.column if line == start.line else 0
            right = end.column if line == end.line else len(lines[line]) + 1
            if line == start.line and header is not None:  # the text behind the header may be a comment
                right = header.end()
            covered.setdefault(line, []).append((left, right))
    return covered


def _comments(lines: list[str], places: list[_Place], covered: dict[int, list[tuple[int, int]]]) -> Iterator[Comment]:
    at_line: dict[int, list[str]] = {}
    for place in sorted(places, key=lambda place: place.line):
        at_line.setdefault(place.line, []).append(place.path)
    starts = sorted(at_line)
    following, previous = 0, -1
    for number, line in enumerate(lines):
        if "#" in line and (column := _comment_column(line, covered.get(number, ()))) is not None:
            while following < len(starts) and starts[following] <= number:
                following += 1
            text = line[column:].rstrip()
            if line[:column].strip() not in ("", "---"):
                yield Comment(tuple(at_line.get(number) or at_line.get(previous) or ()), text, True, number + 1)
            elif following < len(starts):
                # A comment above a line that begins several fields (`- device: x`) belongs to the outermost one.
                yield Comment(tuple(at_line[starts[following]][:1]), text, False, number + 1)
            else:
                yield Comment((END,), text, False, number + 1)
        if number in at_line:
            previous = number


def _comment_column(line: str, covered: Iterable[tuple[int, int]]) -> int | None:
    spans = list(covered)
    for match in _HASH.finditer(line):
        if not any(left <= match.start() < right for left, right in spans):
            return match.start()
    return None


def _target(paths: tuple[str, ...], moves: Mapping[str, str], there: Mapping[str, int]) -> tuple[str, bool]:
    """Return the path that a comment goes to, and True if its own field is there."""
    if paths == (END,):
        return END, True
    for path in reversed(paths):
        target = moves.get(path, path)
        if target in there:
            return target, True
    here = paths[-1] if paths else ""
    while here:
        here = _parent(here)
        target = moves.get(here, here)
        if target in there:
            return target, False
    return "", False


def _parent(path: str) -> str:
    """Return the path one level up. A quoted key (`a["b.c"]`) is one level."""
    if path.endswith('"]'):
        return path[: path.rindex('["')]
    if path.endswith("]"):
        return path[: path.rindex("[")]
    # A dot inside of a quoted key is no separator.
    dot, bracket = path.rfind("."), path.rfind("]")
    return path[: max(dot, 0)] if dot > bracket else path[: bracket + 1]

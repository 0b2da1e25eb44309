"""Write the findings of a run as a table for people and as JSON for programs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import orjson

from tink.convert.findings import Finding, Kind, Source
from tink.convert.run import Result
from tink.printable import printable

_INDEX = re.compile(r"\[[0-9]+\]")
_MAX_ROWS = 200
_ORDER = {Kind.ERROR: 0, Kind.DROPPED: 1, Kind.CHANGED: 2}
_MIN_REASON_WIDTH = 30


@dataclass(slots=True)
class _Row:
    """Equal findings of many objects: a rack of them is one row, not a screenful."""

    kind: Kind
    path: str
    reason: str
    first: Source
    objects: int = 1

    def where(self) -> str:
        """Return the object in full, or the number of objects and the first of them."""
        if self.objects == 1:
            return str(self.first)
        return f"{self.objects} objects, the first {self.first.label or self.first}"


def as_table(findings: Iterable[Finding], width: int) -> Iterator[str]:
    """Yield the lines of a table for a terminal: errors first, then dropped fields, then changed fields.

    A finding that is the same for many objects appears once.
    """
    rows = _rows(findings)
    shown = rows[:_MAX_ROWS]
    if not shown:
        return
    wheres = {id(row): row.where() for row in shown}
    paths = max(len("FIELD"), *(len(_one_line(row.path)) for row in shown))
    paths = min(paths, max(20, width // 3))
    yield f"{'':8}{'FIELD':{paths}}  REASON"
    for row in shown:
        indent = " " * (8 + paths + 2)
        path = _one_line(row.path) or "-"
        start = f"{row.kind:8}{path:{paths}}  "
        if len(path) > paths:
            yield f"{row.kind:8}{path}"
            start = indent
        room = max(_MIN_REASON_WIDTH, width - len(indent))
        for line in (*textwrap.wrap(_one_line(row.reason), room), *textwrap.wrap(f"({wheres[id(row)]})", room)):
            yield f"{start}{line}"
            start = indent
    if len(rows) > len(shown):
        yield f"... and {len(rows) - len(shown)} rows more: --report json has all of them"


def summary(result: Result, done: str = "written") -> str:
    """Return one line with the counts of objects, errors, dropped and changed fields. `done` is the objects' verb."""
    counts = {kind: sum(finding.kind is kind for finding in result.findings) for kind in Kind}
    prices = [
        f"{_count(counts[Kind.ERROR], 'error')}",
        f"{_count(counts[Kind.DROPPED], 'field')} dropped",
        f"{counts[Kind.CHANGED]} changed",
    ]
    objects = _count(len(result.converted), "object")
    if result.lost:
        objects = f"{len(result.converted) - result.lost} of {len(result.converted)} objects"
    return f"{objects} {done}; {', '.join(prices)}"


def as_json(result: Result) -> str:
    """Return all findings as JSON, one object each, in the order of the input."""
    content = {
        "objects": len(result.converted) - result.lost,
        "findings": [
            {
                "finding": finding.kind,
                "file": finding.source.file,
                "document": finding.source.document,
                "kind": finding.source.kind,
                "namespace": finding.source.namespace,
                "name": finding.source.name,
                "path": finding.path,
                "reason": finding.reason,
            }
            for finding in result.findings
        ],
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2).decode() + "\n"


def _rows(findings: Iterable[Finding]) -> list[_Row]:
    rows: dict[tuple[Kind, str, str], _Row] = {}
    for finding in findings:
        path = _INDEX.sub("[]", finding.path)
        row = rows.get((finding.kind, path, finding.reason))
        if row is None:
            rows[finding.kind, path, finding.reason] = _Row(finding.kind, finding.path, finding.reason, finding.source)
            continue
        row.path = path
        if finding.source != row.first:
            row.objects += 1
    return sorted(rows.values(), key=lambda row: _ORDER[row.kind])


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _one_line(text: str) -> str:
    """Return a text as one line without control characters: it comes from a file or an API server."""
    return printable(" ".join(text.splitlines()))

"""The findings of a run for people, as a table, and for programs, as JSON."""

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
_MOST_ROWS = 200
_ORDER = {Kind.ERROR: 0, Kind.DROPPED: 1, Kind.CHANGED: 2}
_NARROWEST_REASON = 30


@dataclass(slots=True)
class _Row:
    """Findings of many objects that say the same: a rack of them has a row, not a screen."""

    kind: Kind
    path: str
    reason: str
    first: Source
    objects: int = 1

    def where(self) -> str:
        """One object in full; of several the first."""
        if self.objects == 1:
            return str(self.first)
        return f"{self.objects} objects, the first {self.first.label or self.first}"


def as_table(findings: Iterable[Finding], width: int) -> Iterator[str]:
    """The lines of a table as wide as a terminal: errors first, then what was dropped, then what changed.

    What is the same for many objects stands once.
    """
    rows = _rows(findings)
    shown = rows[:_MOST_ROWS]
    if not shown:
        return
    wheres = {id(row): row.where() for row in shown}
    paths = max(len("FIELD"), *(len(_line(row.path)) for row in shown))
    paths = min(paths, max(20, width // 3))
    yield f"{'':8}{'FIELD':{paths}}  REASON"
    for row in shown:
        indent = " " * (8 + paths + 2)
        path = _line(row.path) or "-"
        start = f"{row.kind:8}{path:{paths}}  "
        if len(path) > paths:
            yield f"{row.kind:8}{path}"
            start = indent
        room = max(_NARROWEST_REASON, width - len(indent))
        for line in (*textwrap.wrap(_line(row.reason), room), *textwrap.wrap(f"({wheres[id(row)]})", room)):
            yield f"{start}{line}"
            start = indent
    if len(rows) > len(shown):
        yield f"... and {len(rows) - len(shown)} rows more: --report json has all of them"


def summary(result: Result, done: str = "written") -> str:
    """One line: what there is now, and at what price. `done` is what was done with the objects."""
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
    """All findings, one object each, in the order of the input."""
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


def _line(text: str) -> str:
    """What a file says of itself, or an API server, goes to a terminal: no control characters."""
    return printable(" ".join(text.splitlines()))

"""All machines: where each is, since when, what it waits for, and what is wrong.

A machine has one line, and more where a sentence does not fit: it is wrapped, never cut. A terminal is drawn again each
second; elsewhere each machine has one line, which is written again when it has changed, as `kubectl get -w` does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from edge.commands.watching.machine import waiting
from edge.commands.watching.words import cells, cut, padded, printable, span, wrapped
from edge.journey.follow import Rows

_URGENT: Final = ("trouble", "booting", "working", "unregistered", "idle", "done", "silent")
_COLOURS: Final = {"trouble": "red", "booting": "cyan", "working": "cyan", "unregistered": "yellow", "done": "green"}
_DIGITS: Final = re.compile(r"\d+")
_LEAST, _MOST = 17, 30
_STATE: Final = 36
"""Columns of the longest state; a longer one is cut."""
_INDENT: Final = "    "
_FOR: Final = 6
_HOME: Final = "\x1b[H\x1b[J"
NARROWEST: Final = 60

Row = Mapping[str, Any]


class Table:
    """Takes what is new, and writes it with `echo`."""

    def __init__(
        self,
        *,
        as_json: bool,
        live: bool,
        once: bool = False,
        width: int | None = None,
        echo: Callable[[str], None] = click.echo,
        clock: Callable[[], float] = time.time,
        size: Callable[[], os.terminal_size] = shutil.get_terminal_size,
    ) -> None:
        """`live`: drawn again and again in a terminal of `size()`, columns and lines. Else lines have `width` columns
        at most (None: any), and with `once` all machines are written when all have arrived. `clock` gives seconds
        since the epoch."""
        self._once = once
        self._width = width
        self._as_json = as_json
        self._live = live and not as_json
        self._echo = echo
        self._clock = clock
        self._size = size
        self._rows: dict[str, Row] = {}
        self._said: dict[str, tuple[object, ...]] = {}
        self._notices: list[str] = []
        self._begun = False

    @property
    def is_live(self) -> bool:
        """True if the table is drawn again each second."""
        return self._live

    @property
    def count(self) -> int:
        """How many machines there are."""
        return len(self._rows)

    def take(self, news: Rows) -> None:
        """Show what is new."""
        for mac in news.gone:
            self._rows.pop(mac, None)
            self._said.pop(mac, None)
        self._rows |= {str(row["mac"]): row for row in news.rows}
        if self._as_json:
            for row in news.rows:
                self._echo(json.dumps(row))
            for mac in news.gone:
                self._echo(json.dumps({"mac": mac, "gone": True}))
        if news.notices is not None:
            new = [line for line in news.notices if line not in self._notices]
            self._notices = [printable(line) for line in news.notices]
            if not self._live:
                for line in new:
                    self._echo(json.dumps({"edge": line}) if self._as_json else f"this edge: {printable(line)}")
        if self._live:
            self.draw()
        elif not self._as_json:
            self._say(news.rows, last=not news.more)

    # --- elsewhere than in a terminal -----------------------------------------------------------------------------

    def _say(self, rows: Iterable[Row], *, last: bool) -> None:
        if self._once:
            if not last:
                return
            rows = self._rows.values()
        rows, now = sorted(rows, key=_by_urgency), self._clock()
        shape = Shape.of(rows, self._width)
        if not self._begun and (rows or not last):
            self._begun = True
            self._echo(line_of(HEAD, shape))
        for row in rows:
            told = row["state"], row.get("waiting_for"), row["reason"], row["wrong"]
            if self._said.get(row["mac"]) != told:
                self._said[row["mac"]] = told
                for line in lines_of(row, now, shape):
                    self._echo(line)
        if last and not self._rows:
            self._echo(NO_MACHINES)

    # --- in a terminal --------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Draw all of it, as far as there is room: the most urgent first."""
        width, height = self._size()
        width = max(width, NARROWEST)
        now, rows = self._clock(), sorted(self._rows.values(), key=_by_urgency)
        shape = Shape.of(rows[:height], width)
        lines = [
            click.style(line, fg="red")
            for notice in self._notices[:3]
            for line in wrapped(f"this edge: {notice}", width, _INDENT)
        ]
        lines.append(click.style(line_of(HEAD, shape), bold=True))
        room, shown = max(1, height - len(lines) - 2), 0
        for row in rows:
            made = list(lines_of(row, now, shape, most=max(room, 2)))
            lines += [click.style(line, fg=_COLOURS.get(row["kind"])) for line in made]
            room, shown = room - len(made), shown + 1
            if room <= 0:
                break
        if not rows:
            lines.append(NO_MACHINES)
        elif len(rows) > shown:
            lines.append(f"and {len(rows) - shown:,} more: 'tinkedge watch NAME' shows one, 'tinkedge page' all")
        self._echo(_HOME + "\n".join(lines))


HEAD: Final = ("MACHINE", "STATE", "FOR", "WAITING FOR, OR PROBLEM")
NO_MACHINES: Final = "no machine is registered, and none was heard"


class Shape(NamedTuple):
    """Columns of the name and of the state, and of a whole line (None: any)."""

    name: int
    state: int
    width: int | None

    @classmethod
    def of(cls, rows: Sequence[Row], width: int | None) -> Shape:
        """Return the shape in which these rows fit."""
        most = _MOST if width is None or width >= 100 else _LEAST + 3
        name = min(max([_LEAST, *(cells(_name(row)) for row in rows)]), most)
        return cls(name, min(max([len(HEAD[1]), *(cells(printable(row["state"])) for row in rows)]), _STATE), width)


def lines_of(row: Row, now: float, shape: Shape, most: int | None = None) -> Iterator[str]:
    """Yield the lines of a machine, `most` at most (None: any number)."""
    since = row["since"] or row["heard"]
    said = _name(row), printable(row["state"]), span(now - since) if since else "-"
    reason, text = _more(row, now)
    whole = f"{reason}: {text}" if reason and text else reason or text
    if shape.width is None or cells(line_of((*said, whole), shape, whole=True)) <= shape.width:
        yield line_of((*said, whole), shape, whole=True)
        return
    if cells(line_of((*said, reason), shape, whole=True)) > shape.width:
        reason, text = "", whole
    yield line_of((*said, reason), shape)
    more = [_INDENT + line for line in wrapped(text, shape.width - len(_INDENT), "")]
    if most is not None and len(more) > most - 1:
        more = more[: max(1, most - 1)]
        more[-1] = cut(more[-1], shape.width - 2) + " …"
    yield from more


def line_of(said: tuple[str, str, str, str], shape: Shape, *, whole: bool = False) -> str:
    """Return one line; unless `whole`, cut to the width of the shape."""
    any_width = shape.width is None
    name = said[0] if any_width else cut(said[0], shape.name)
    state = said[1] if any_width else cut(said[1], shape.state)
    line = f"{padded(name, max(shape.name, cells(name)))} {padded(state, max(shape.state, cells(state)))} "
    line = f"{line}{said[2]:>{_FOR}} {said[3]}".rstrip()
    return line if whole or shape.width is None else cut(line, shape.width)


def _name(row: Row) -> str:
    return printable(str(row["hardware"] or row["mac"]))


def _more(row: Row, now: float) -> tuple[str, str]:
    """Return the reason of a problem, and a sentence; either may be empty."""
    if row["wrong"]:
        return printable(("! " if row["warning"] else "") + str(row["reason"])), printable(str(row["wrong"]))
    if row.get("waiting_for"):
        return "", f"waiting for: {waiting(row, now)}"
    return "", printable(str(row["message"])) if row["kind"] == "unregistered" else ""


def _by_urgency(row: Row) -> tuple[int, str]:
    kind = row["kind"]
    name = str(row["hardware"] or "~" + row["mac"]).lower()
    rank = _URGENT.index(kind) if kind in _URGENT else len(_URGENT)
    return rank, _DIGITS.sub(lambda found: found[0][:20].zfill(20), name)

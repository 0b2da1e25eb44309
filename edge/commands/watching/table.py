"""All machines, one line each: where it is, since when, what is awaited, how long that takes here, what is wrong.

In a terminal the lines stand still and are drawn anew; elsewhere each is said once, and again when it has changed, as
`kubectl get -w` does it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import click

from edge.commands.watching.words import cells, cut, padded, printable, span
from edge.journey.follow import Rows

_URGENT: Final = ("trouble", "booting", "working", "unregistered", "idle", "done", "silent")
_COLOURS: Final = {"trouble": "red", "booting": "cyan", "working": "cyan", "unregistered": "yellow", "done": "green"}
_DIGITS: Final = re.compile(r"\d+")
_LEAST, _MOST = 17, 30
_STATE: Final = 24
_FOR: Final = 6
_HOME: Final = "\x1b[H\x1b[J"
NARROWEST: Final = 60

Row = Mapping[str, Any]


class Table:
    """Takes what is new, and says it by `echo`."""

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
        """`live`: drawn anew in a terminal of `size()`, columns and lines; else each line has `width` columns at most
        (None: any), and with `once` all of them are said when all are there. `clock` gives seconds since the epoch."""
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
        """Whether it is drawn anew now and then."""
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
        if not self._begun:
            self._begun = True
            self._echo(line_of(HEAD, _LEAST, self._width))
        for row in sorted(rows, key=_by_urgency):
            told = row["state"], row["awaited"], row["reason"], row["wrong"]
            if self._said.get(row["mac"]) != told:
                self._said[row["mac"]] = told
                self._echo(line_of(columns(row, self._clock()), _LEAST, self._width))
        if last and not self._rows:
            self._echo("no machine is registered, and none was heard")

    # --- in a terminal --------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """All of it, as far as there is room: those that need somebody first."""
        width, height = self._size()
        width = max(width, NARROWEST)
        now, rows = self._clock(), sorted(self._rows.values(), key=_by_urgency)
        first = max([_LEAST, *(cells(_name(row)) for row in rows[:height])])
        first = min(first, _MOST if width >= 100 else _LEAST + 3)
        lines = [click.style(cut(f"this edge: {line}", width), fg="red") for line in self._notices[:3]]
        lines.append(click.style(line_of(HEAD, first, width), bold=True))
        room = max(1, height - len(lines) - 2)
        lines += [
            click.style(line_of(columns(row, now), first, width), fg=_COLOURS.get(row["kind"])) for row in rows[:room]
        ]
        if not rows:
            lines.append("no machine is registered, and none was heard")
        elif len(rows) > room:
            lines.append(f"and {len(rows) - room:,} more: 'tinkedge watch NAME' shows one, 'tinkedge page' all")
        self._echo(_HOME + "\n".join(lines))


HEAD: Final = ("MACHINE", "STATE", "FOR", "AWAITED, OR WHAT IS WRONG")


def columns(row: Row, now: float) -> tuple[str, str, str, str]:
    """What is said of a machine."""
    since = row["since"] or row["heard"]
    return _name(row), printable(row["state"]), span(now - since) if since else "-", _more(row, now)


def line_of(said: tuple[str, str, str, str], first: int, width: int | None) -> str:
    """One line, of so many columns at most (None: any)."""
    name = said[0] if width is None else cut(said[0], first)
    state = said[1] if width is None else cut(said[1], _STATE)
    line = f"{padded(name, max(first, cells(name)))} {padded(state, max(_STATE, cells(state)))} "
    line = f"{line}{said[2]:>{_FOR}} {said[3]}".rstrip()
    return line if width is None else cut(line, width)


def _name(row: Row) -> str:
    return printable(str(row["hardware"] or row["mac"]))


def _more(row: Row, now: float) -> str:
    if row["wrong"]:
        mark = "! " if row["warning"] else ""
        return printable(f"{mark}{row['reason']}: {row['wrong']}")
    if not row["awaited"]:
        return printable(str(row["message"])) if row["kind"] == "unregistered" else ""
    awaited = str(row["awaited"]).removeprefix("that ").removeprefix("it ")
    usual = f"takes {span(row['usual_seconds'])} here, " if row["usual_seconds"] else ""
    left = row["deadline"] - now
    return printable(f"{awaited}: {usual}" + (f"within {span(left)}" if left > 0 else f"{span(-left)} late"))


def _by_urgency(row: Row) -> tuple[int, str]:
    kind = row["kind"]
    name = str(row["hardware"] or "~" + row["mac"]).lower()
    rank = _URGENT.index(kind) if kind in _URGENT else len(_URGENT)
    return rank, _DIGITS.sub(lambda found: found[0][:20].zfill(20), name)

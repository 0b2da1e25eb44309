"""The text of `tinkedge watch`: the table of all machines, one machine with its boots, and durations and times.

A machine has one line in the table, and more where a sentence does not fit: it is wrapped, never cut. A terminal is
drawn again each second. Elsewhere each machine has one line, which is written again when it has changed, as
`kubectl get -w` does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any, Final, NamedTuple

import click

from edge.journey.follow import Rows
from tink.printable import printable as printable_with

Row = Mapping[str, Any]  # a machine, as the admin API describes it

HEAD: Final = ("MACHINE", "STATE", "FOR", "WAITING FOR, OR PROBLEM")
NO_MACHINES: Final = "no machine is registered, and none was heard"
_BY_URGENCY: Final = ("trouble", "booting", "working", "unregistered", "idle", "done", "silent")
_COLOURS: Final = {"trouble": "red", "booting": "cyan", "working": "cyan", "unregistered": "yellow", "done": "green"}
_DIGITS: Final = re.compile(r"\d+")
_CLEAR_SCREEN: Final = "\x1b[H\x1b[J"

# Columns of a terminal.
_MIN_WIDTH: Final = 60
_MIN_NAME, _MAX_NAME = 17, 30
_MAX_STATE: Final = 36
_DURATION: Final = 6
_STEP: Final = 34
_INDENT: Final = "  "
_TABLE_INDENT: Final = "    "


# --- durations, times of day, and texts that others chose -----------------------------------------------------------


def printable(text: str) -> str:
    """Return a text that a machine or a user chose, in one line and without control characters of a terminal."""
    return printable_with(text, " ")


def span(seconds: float) -> str:
    """Return a duration for a column: `0.2s`, `12s`, `3m20s`, `5h07m`, `2d`."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    if seconds < 119.5:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes}m{rest:02d}s"
    if seconds < 48 * 3600:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours}h{minutes:02d}m"
    return f"{seconds / 86400:.0f}d"


def spoken(seconds: float) -> str:
    """Return a duration for a sentence: `now`, `22 s`, `3 min 20 s`, `2 h 5 min`, `5 days`."""
    whole = int(max(0.0, seconds))
    if whole < 120:
        return f"{whole} s" if whole else "now"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} days"


def ago(seconds: float) -> str:
    """Return how long ago something was: `now`, `22 s ago`."""
    text = spoken(seconds)
    return text if text == "now" else f"{text} ago"


def due(deadline: float, now: float) -> str:
    """Return when a step is due: `due in 4 s`, `due now`, `22 s overdue`."""
    left = deadline - now
    if abs(left) < 1:
        return "due now"
    return f"due in {spoken(left)}" if left > 0 else f"{spoken(-left)} overdue"


def clock(at: float) -> str:
    """Return the local time of day, with the date if that is not today."""
    then, now = time.localtime(at), time.localtime()
    day = "" if then[:3] == now[:3] else time.strftime("%Y-%m-%d ", then)
    return day + time.strftime("%H:%M:%S", then)


def precise(at: float) -> str:
    """Return the time of day with milliseconds."""
    return f"{clock(at)}.{int(at * 1000) % 1000:03d}"


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Return the text cut to `width` columns, with an ellipsis."""
    if cells(text) <= width:
        return text
    start, room = [], width - 1
    for character in text:
        room -= _cells(character)
        if room < 0:
            break
        start.append(character)
    return "".join(start) + "…"


def padded(text: str, width: int) -> str:
    """Return the text in exactly `width` columns."""
    text = cut(text, width)
    return text + " " * (width - cells(text))


def wrapped(text: str, width: int, indent: str) -> Iterator[str]:
    """Yield lines of at most `width` columns, all but the first indented. Break between words, or in a long word."""
    line = ""
    for word in text.split(" "):
        if line and cells(line) + 1 + cells(word) > width and line.strip():
            yield line
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
        while cells(line) > width > len(indent) + 2:
            head = cut(line, width + 1)[:-1]
            yield head
            line = indent + line[len(head) :]
    yield line


# --- one machine ------------------------------------------------------------------------------------------------------


def summary(found: Mapping[str, Any], now: float, width: int) -> Iterator[str]:
    """Yield where the machine is and what is wrong: lines of `width` columns at most."""
    names = (str(found[name]) for name in ("hardware", "mac", "address", "osie", "model") if found.get(name))
    yield from wrapped(printable("  ".join(names)), width, _INDENT)
    since = found["since"] or found["heard"]
    for_since = f", for {span(now - since)} (since {clock(since)})" if since else ""
    yield from wrapped(printable(str(found["state"])) + for_since, width, _INDENT)
    yield from _problem(found, now, width)
    if found.get("approve_command"):
        yield from wrapped(f"discovered, waits for approval: {printable(found['approve_command'])}", width, _INDENT)
    if found.get("difference"):
        yield from wrapped(printable(f"not as expected: {found['difference']}"), width, _INDENT)
    if found.get("power"):
        commands = "".join(f"; {command}" for command in found.get("power_commands", ()))
        yield from wrapped(printable(f"power: {found['power']}, as its BMC reported it last{commands}"), width, _INDENT)
    if found["workflow"]:
        parts = (f"Workflow {found['workflow']}", found.get("workflow_state"), found.get("workflow_failure"))
        yield from wrapped(printable(": ".join(filter(None, parts))), width, _INDENT)
    if found.get("waiting_for"):
        yield from wrapped(f"waiting for: {waiting(found, now)}", width, _INDENT)
    if found.get("last_output"):
        yield from wrapped(printable(f"last output: {found['last_output']}"), width, _INDENT)
    if found["heard"]:
        yield f"last heard: {ago(now - found['heard'])}"


def waiting(found: Mapping[str, Any], now: float) -> str:
    """Return what a machine waits for: `kernel download (22 s overdue)`, or `(usually 4 s, due in 8 s)`."""
    usual = found["usual_seconds"]
    takes = f"usually {spoken(usual)}, " if usual and usual >= 1 and found["deadline"] > now else ""
    return printable(f"{found['waiting_for']} ({takes}{due(found['deadline'], now)})")


def _problem(found: Mapping[str, Any], now: float, width: int) -> Iterator[str]:
    """Yield the problem of a machine, since when it has it, the likely causes, and what to do."""
    if not found["wrong"]:
        return
    mark = "problem" if found["warning"] else "note"
    problem = found.get("problem")
    if not problem:
        yield from wrapped(printable(f"{mark}: {found['reason']}: {found['wrong']}"), width, _INDENT)
        return
    since = f"since {clock(problem['began'])}, {ago(now - problem['began'])}"
    yield from wrapped(printable(f"{mark}: {problem['reason']} ({since}): {problem['facts']}"), width, _INDENT)
    lines = [f"likely cause: {cause}" for cause in problem["causes"]] + [f"what to do: {x}" for x in problem["remedy"]]
    for line in lines:
        yield from wrapped(printable(line), width, _INDENT)


def boots(found: Mapping[str, Any], width: int) -> Iterator[str]:
    """Yield the boots of a machine, the oldest first, step by step."""
    for boot in found["boots"]:
        yield ""
        text = f"boot of {clock(boot['began'])}, {span(boot['seconds'])}: {printable(boot['reached'])}"
        yield from wrapped(text, width, _INDENT)
        yield from (_step_line(step, width) for step in boot["steps"])


def _step_line(step: Mapping[str, Any], width: int) -> str:
    usual = f"  usually {span(step['usual_seconds'])}" if step["usual_seconds"] else ""
    slow = "overdue" if step["running"] else "slow"
    marks = [word for name, word in (("failed", "failed"), ("overdue", slow), ("running", "running")) if step[name]]
    took, label = span(step["seconds"]), padded(printable(step["step"]), min(_STEP, max(10, width - 46)))
    return f"{_INDENT}{clock(step['began'])} {label} {took:>7}{usual}{'  ' if marks else ''}{', '.join(marks)}".rstrip()


# --- the table of all machines ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Table:
    """The table of all machines: takes changes and writes them with `echo`.

    With `as_json` it writes one JSON object for each change. With `live` it draws the whole table again and again, in a
    terminal of `size()` columns and lines. With `once` it waits for all machines and writes them once. `width` is the
    most columns of a line, if not `live`.
    """

    _: KW_ONLY
    as_json: bool
    live: InitVar[bool]
    once: bool = False
    width: int | None = None
    echo: Callable[[str], None] = click.echo
    clock: Callable[[], float] = time.time
    size: Callable[[], os.terminal_size] = shutil.get_terminal_size

    def __post_init__(self, live: bool) -> None:
        self.is_live = live and not self.as_json
        self._rows: dict[str, Row] = {}
        self._written: dict[str, tuple[object, ...]] = {}
        self._notices: list[str] = []
        self._has_head = False

    def take(self, news: Rows) -> None:
        """Apply changes and show them."""
        for mac in news.gone:
            self._rows.pop(mac, None)
            self._written.pop(mac, None)
        self._rows |= {str(row["mac"]): row for row in news.rows}
        if self.as_json:
            for row in news.rows:
                self.echo(json.dumps(row))
            for mac in news.gone:
                self.echo(json.dumps({"mac": mac, "gone": True}))
        if news.notices is not None:
            new = [line for line in news.notices if line not in self._notices]
            self._notices = [printable(line) for line in news.notices]
            if not self.is_live:
                for line in new:
                    self.echo(json.dumps({"edge": line}) if self.as_json else f"this edge: {printable(line)}")
        if self.is_live:
            self.draw()
        elif not self.as_json:
            self._write(news.rows, last=not news.more)

    # --- elsewhere than in a terminal -----------------------------------------------------------------------------

    def _write(self, rows: Iterable[Row], *, last: bool) -> None:
        if self.once:
            if not last:
                return
            rows = self._rows.values()
        rows, now = sorted(rows, key=_by_urgency), self.clock()
        shape = Shape.of(rows, self.width)
        if not self._has_head and (rows or not last):
            self._has_head = True
            self.echo(line_of(HEAD, shape))
        for row in rows:
            state = row["state"], row.get("power"), row.get("waiting_for"), row["reason"], row["wrong"]
            if self._written.get(row["mac"]) != state:
                self._written[row["mac"]] = state
                for line in lines_of(row, now, shape):
                    self.echo(line)
        if last and not self._rows:
            self.echo(NO_MACHINES)

    # --- in a terminal --------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Draw the machines for which the terminal has room, the most urgent first."""
        width, height = self.size()
        width = max(width, _MIN_WIDTH)
        now, rows = self.clock(), sorted(self._rows.values(), key=_by_urgency)
        shape = Shape.of(rows[:height], width)
        lines = [
            click.style(line, fg="red")
            for notice in self._notices[:3]
            for line in wrapped(f"this edge: {notice}", width, _TABLE_INDENT)
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
        self.echo(_CLEAR_SCREEN + "\n".join(lines))


class Shape(NamedTuple):
    """The number of columns of the name, of the state and of a whole line (None: no limit)."""

    name: int
    state: int
    width: int | None

    @classmethod
    def of(cls, rows: Sequence[Row], width: int | None) -> Shape:
        """Return the shape in which these rows fit."""
        most = _MAX_NAME if width is None or width >= 100 else _MIN_NAME + 3
        name = min(max([_MIN_NAME, *(cells(_name(row)) for row in rows)]), most)
        states = (cells(printable(row["state"]) + _off(row)) for row in rows)
        return cls(name, min(max([len(HEAD[1]), *states]), _MAX_STATE), width)


def lines_of(row: Row, now: float, shape: Shape, most: int | None = None) -> Iterator[str]:
    """Yield the lines of a machine, at most `most` (None: no limit)."""
    since = row["since"] or row["heard"]
    columns = _name(row), printable(row["state"]) + _off(row), span(now - since) if since else "-"
    reason, text = _more(row, now)
    whole = f"{reason}: {text}" if reason and text else reason or text
    if shape.width is None or cells(line_of((*columns, whole), shape, whole=True)) <= shape.width:
        yield line_of((*columns, whole), shape, whole=True)
        return
    if cells(line_of((*columns, reason), shape, whole=True)) > shape.width:
        reason, text = "", whole
    yield line_of((*columns, reason), shape)
    more = [_TABLE_INDENT + line for line in wrapped(text, shape.width - len(_TABLE_INDENT), "")]
    if most is not None and len(more) > most - 1:
        more = more[: max(1, most - 1)]
        more[-1] = cut(more[-1], shape.width - 2) + " …"
    yield from more


def line_of(columns: tuple[str, str, str, str], shape: Shape, *, whole: bool = False) -> str:
    """Return one line of the table, cut to the width of the shape unless it is `whole`."""
    any_width = shape.width is None
    name = columns[0] if any_width else cut(columns[0], shape.name)
    state = columns[1] if any_width else cut(columns[1], shape.state)
    line = f"{padded(name, max(shape.name, cells(name)))} {padded(state, max(shape.state, cells(state)))} "
    line = f"{line}{columns[2]:>{_DURATION}} {columns[3]}".rstrip()
    return line if whole or shape.width is None else cut(line, shape.width)


def _name(row: Row) -> str:
    return printable(str(row["hardware"] or row["mac"]))


def _off(row: Row) -> str:
    """Return the mark of a machine that is off, as its BMC reported it last."""
    return ", off" if row.get("power") == "off" else ""


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
    rank = _BY_URGENCY.index(kind) if kind in _BY_URGENCY else len(_BY_URGENCY)
    return rank, _DIGITS.sub(lambda found: found[0][:20].zfill(20), name)

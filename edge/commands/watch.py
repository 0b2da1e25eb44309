"""`tinkedge watch`: the machines of a running edge in a terminal; with --capture, the packets of one beside its events.

`edge.commands.watching` formats the text.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Set
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from edge.commands import admin_api
from edge.commands.admin_api import AdminApi, NoAnswerError
from edge.commands.watching import Table, boots, precise, printable, span, summary, wrapped
from edge.journey.events import COLOURS, JourneyEvent, Notice, Step
from edge.journey.follow import Lost, events_of, follow, machine, machines, rows
from edge.settings import FilePath, types
from tink.mac import is_mac

if TYPE_CHECKING:
    from edge.doctor import CapturedLine, Listening, Timed

    _Shown = CapturedLine | JourneyEvent | Notice | Lost

_REDRAWN_SECONDS = 1.0
_ANY_WIDTH = 100_000
_MAX_NAMES = 10  # the most names of Hardware in the message about an unknown name
_MAX_SIMILAR = 3
_MIN_SIMILARITY = 0.7  # the similarity (of `difflib`) from which a name is suggested


@click.command()
@click.argument("machine", required=False)
@admin_api.of_edge
@click.option("--once", is_flag=True, help="Show the current state, and exit. Exits with 1 if MACHINE is not known.")
@click.option("--events", is_flag=True, help="Without MACHINE: show every step of every machine as it happens.")
@click.option(
    "--history/--no-history", default=True, help="Show past events first. Without MACHINE, --no-history means --events."
)
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Format; json is one object per line."
)
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@click.option("--logs", is_flag=True, help="Show the log lines that machines send, too: by --syslog, or HookOS.")
@click.option(
    "--capture",
    is_flag=True,
    help="Show the packets of the machine with this MAC, too: DHCP, TFTP, HTTP, ARP. Needs root and the extra "
    "`diagnose`, but no running edge.",
)
@click.option(
    "--interface",
    "interfaces",
    type=types.interface,
    metavar="NAME",
    multiple=True,
    help="Interface to capture on. Default: that of the settings, else that of the default route.",
)
@click.option(
    "--write",
    type=FilePath(dir_okay=False),
    help="With --capture: write all packets of the machine, in full, to this pcap file.",
)
def watch(
    machine: str | None,
    once: bool,
    events: bool,
    as_json: bool,
    edge: AdminApi,
    history: bool,
    output: str,
    logs: bool,
    capture: bool,
    interfaces: tuple[tuple[str, str], ...],
    write: Path | None,
) -> None:
    """Show all machines, live and most urgent first: the state of each, what it waits for, and what is wrong.

    With MACHINE, a MAC or the name of a Hardware (NAME or NAMESPACE/NAME), show its problem and the remedy, the
    duration of each step of its boots, and its journey. For an edge on another host, give --admin-url, and a copy of
    its token with --admin-token-file.
    """
    spelled = machine.lower().replace("-", ":") if machine else ""
    mac = spelled if is_mac(spelled) else None
    # In the settings, `interface` names the interfaces of machines and does not ask for a capture.
    source = click.get_current_context().get_parameter_source("interfaces")
    if not capture and ((interfaces and source is ParameterSource.COMMANDLINE) or write):
        raise click.UsageError("--interface and --write go with --capture")
    if capture and mac is None:
        raise click.UsageError("--capture shows one machine: give its MAC, like 52:54:00:00:00:01")
    if once and (capture or events):
        raise click.UsageError("--once goes neither with --events nor with --capture")
    names = [name for name, _ in interfaces]
    if capture and len(names) > 1:
        raise click.UsageError(f"give with --interface the interface of the machine: one of {', '.join(names)}")
    interface = next(iter(names), None)
    form = _Form("json" if as_json else output, logs)
    if capture and mac is not None:
        shown = _capture(mac, edge, history, form, interface, write)
    elif machine is None and history and not events and not logs:
        shown = _table(edge, form, once)
    elif machine is not None and once:
        shown = _machine_once(mac or machine, edge, form)
    else:
        shown = _watch(mac or machine, edge, history, form)
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(asyncio.run(shown))


@dataclass(frozen=True, slots=True)
class _Form:
    """The form of the output: `text` or `json`, with or without log lines."""

    output: str
    logs: bool


async def _macs_of(edge: AdminApi, name: str) -> frozenset[str]:
    """Return the MACs of the Hardware with this NAME or NAMESPACE/NAME. Raises NoAnswerError."""
    known = [each for each in await edge.get(machines) if each.get("name")]
    found = [each for each in known if name in (each["name"], f"{each['namespace']}/{each['name']}")]
    places = sorted({f"{each['namespace']}/{each['name']}" for each in found})
    if len(places) > 1:
        raise NoAnswerError(f"{name} may be {' or '.join(places)}: write the namespace, too")
    if not found:
        raise NoAnswerError(_unknown_name(name, known))
    return frozenset(str(each["mac"]) for each in found)


async def _unknown(edge: AdminApi, mac: str) -> str:
    """Return why there is nothing to show for a MAC; empty if the edge knows it. Raises NoAnswerError."""
    if bool(await edge.get(machine, mac)) or bool(await edge.get(events_of, mac)):
        return ""
    known = await edge.get(machines)
    return _unknown_mac(mac, known) if all(each["mac"] != mac for each in known) else ""


def _unknown_name(name: str, known: list[dict[str, Any]]) -> str:
    """Return the message about an unknown name. `known` are the machines that have a Hardware."""
    names = {f"{each['namespace']}/{each['name']}" for each in known}
    by_spelling = {each.rpartition("/")[2]: each for each in sorted(names)} | {each: each for each in names}
    near = _nearest(name, by_spelling)
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    there = f"there is: {', '.join(sorted(names)[:_MAX_NAMES]) or 'none'}{more}"
    if near:
        there = f"nearest: {', '.join(near)}"
    return (
        f"{name!r} is no MAC address, and the edge knows no Hardware of that name ({there}). "
        "A machine that is not registered is watched by its MAC."
    )


def _unknown_mac(mac: str, known: list[dict[str, Any]]) -> str:
    """Return the message about an unknown MAC. `known` are all machines of the edge."""
    spelled = {
        str(each["mac"]): f"{each['mac']} {each['namespace']}/{each['name']}" if each.get("name") else str(each["mac"])
        for each in known
    }
    near = _nearest(mac, spelled)
    nearest = f" (nearest: {', '.join(near)})" if near else ""
    return f"the edge has seen no machine with the MAC {mac}, and no Hardware has it{nearest}"


def _nearest(wanted: str, by_spelling: Mapping[str, str]) -> list[str]:
    found = get_close_matches(wanted, by_spelling, n=_MAX_SIMILAR, cutoff=_MIN_SIMILARITY)
    return list(dict.fromkeys(printable(by_spelling[each]) for each in found))


async def _table(edge: AdminApi, form: _Form, once: bool) -> int:
    terminal = sys.stdout.isatty()
    width = _width() if terminal else None
    table = Table(as_json=form.output == "json", live=terminal and not once, once=once, width=width)
    drawing = asyncio.create_task(_redraw(table)) if table.is_live else None
    try:
        async with contextlib.aclosing(edge.stream(rows)) as stream:
            async for news in stream:
                table.take(news)
                if once and not news.more:
                    return 0
    finally:
        if drawing is not None:
            drawing.cancel()
    click.echo("the edge has ended the stream", err=True)
    return 1


async def _redraw(table: Table) -> None:
    """Draw the table each second, because durations grow."""
    while True:
        await asyncio.sleep(_REDRAWN_SECONDS)
        table.draw()


async def _machine_once(name: str, edge: AdminApi, form: _Form) -> int:
    macs = {name} if is_mac(name) else await _macs_of(edge, name)
    if is_mac(name) and (unknown := await _unknown(edge, name)):
        raise NoAnswerError(unknown)
    for mac in sorted(macs):
        await _introduce(mac, edge, form)
        printer = _Printer(macs, form)
        for event in await edge.get(events_of, mac):
            printer.show(event)
    return 0


async def _introduce(mac: str, edge: AdminApi, form: _Form) -> None:
    """Show the state of a machine and its boots, before its events."""
    found, width = await edge.get(machine, mac), _width()
    if found and form.output == "json":
        click.echo(json.dumps(found))
    elif found:
        click.echo("\n".join((*summary(found, time.time(), width), *boots(found, width), "")))


def _width() -> int:
    """Return the columns of the terminal; more than any line has if the output is no terminal."""
    return max(60, shutil.get_terminal_size((80, 24)).columns) if sys.stdout.isatty() else _ANY_WIDTH


async def _watch(name: str | None, edge: AdminApi, history: bool, form: _Form) -> int:
    macs = None if name is None else {name} if is_mac(name) else await _macs_of(edge, name)
    if name is not None and is_mac(name) and history and (unknown := await _unknown(edge, name)):
        click.echo(f"{unknown}; waiting for it, end with Ctrl-C", err=True)
    if history and form.output != "json":
        for mac in sorted(macs or ()):
            await _introduce(mac, edge, form)
    printer = _Printer(macs, form)
    async for event in edge.stream(follow, history=history):
        printer.show(event)
    click.echo("the edge has ended the stream", err=True)
    return 1


async def _capture(
    mac: str, edge: AdminApi, history: bool, form: _Form, interface: str | None, write: Path | None
) -> int:
    from edge.doctor import DiagnoseError, Listening, Timed, in_order
    from edge.neighbour.host import HostError, default_interface

    listening: Listening | None = None
    printer = _Printer({mac}, form)
    try:
        name = interface or default_interface()
        async with Listening(name, mac, write) as listening:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGINT, _end_once, loop, listening.end)
            click.echo(f"packets of {mac} on {name}; end with Ctrl-C", err=True)
            packets = (Timed(heard.time, heard) async for heard in listening.lines())
            async with contextlib.aclosing(in_order(packets, _journey(edge, history))) as stream:
                async for found in stream:
                    printer.show(found)
    except (DiagnoseError, HostError) as error:
        click.echo(str(error), err=True)
        return 1
    finally:
        if listening is not None:
            lost = f", {listening.lost} more were lost" if listening.lost else ""
            file = f"; all frames are in {write}" if write is not None else ""
            click.echo(f"{listening.seen} packets read{lost}{file}", err=True)
    return 0


def _end_once(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
    """Call `end` at the first Ctrl-C. A second one interrupts as usual."""
    loop.remove_signal_handler(signal.SIGINT)
    end()


async def _journey(edge: AdminApi, history: bool) -> AsyncGenerator[Timed[_Shown], None]:
    """Yield the events of the edge. Without an edge, or after its end, packets alone are shown."""
    from edge.doctor import Timed

    try:
        async for event in edge.stream(follow, history=history):
            yield Timed(time.time() if isinstance(event, Lost) else event.time, event)
    except NoAnswerError as error:
        click.echo(f"{error} (packets alone are shown)", err=True)
    else:
        click.echo("the edge has ended the stream; packets alone are shown", err=True)


class _Printer:
    """Prints each event with one line. The lines of one machine have the seconds since the line before."""

    def __init__(self, macs: Set[str] | None, form: _Form) -> None:
        """`macs` None: print the events of all machines."""
        self._macs = macs
        self._form = form
        self._before: float | None = None
        self._is_one = macs is not None and len(macs) == 1
        self._width = _width()

    def show(self, found: _Shown) -> None:
        """Print a packet, an event or a notice."""
        as_json = self._form.output == "json"
        if isinstance(found, Lost):
            click.echo(f"{found.count} events were lost: this terminal reads more slowly than machines boot", err=True)
        elif isinstance(found, Notice):
            outcome, where = (
                click.style(f"{found.outcome:<8}", fg=COLOURS[found.outcome]),
                "this edge         network  ",
            )
            text = f"{precise(found.time)} {where} {outcome} {printable(found.message)}"
            click.echo(json.dumps(asdict(found)) if as_json else text)
        elif isinstance(found, JourneyEvent):
            if (self._macs is None or found.mac in self._macs) and (self._form.logs or found.step is not Step.LOG):
                click.echo(json.dumps(asdict(found)) if as_json else self._text(found))
        elif as_json:
            mac = next(iter(self._macs or ()), None)
            click.echo(json.dumps({"time": found.time, "mac": mac, "packet": found.text}))
        else:
            click.echo(f"{precise(found.time)} {printable(found.text)}")

    def _text(self, event: JourneyEvent) -> str:
        who = f"{event.mac} {event.step:<9}"
        if self._is_one:
            after = event.time - self._before if self._before is not None else 0.0
            self._before = event.time
            who = f"{'+' + span(after):>8} {event.step:<9}"
        at = precise(event.time)
        if event.step is Step.LOG:
            return "\n".join(f"{at} {who} {printable(line)}" for line in _log_lines(event))
        seen_by = event.detail.get("seen_by")
        message = event.message + (f" (seen by {seen_by})" if seen_by else "")
        outcome = f"{event.outcome:<8}"
        first, *more = wrapped(printable(f"{at} {who} {outcome} {message}"), self._width, "    ")
        lines = [first.replace(outcome, click.style(outcome, fg=COLOURS[event.outcome]), 1), *more]
        manifest = event.detail.get("manifest")
        return "\n".join(lines) + (f"\n{indent(str(manifest), '    ')}" if manifest else "")


def _log_lines(event: JourneyEvent) -> list[str]:
    """Return the lines of a log event, and how many are missing."""
    lines = str(event.detail.get("lines", event.message)).splitlines() or [event.message]
    if missing := event.detail.get("omitted_lines"):
        lines.append(f"({missing} more lines are in the machine's file only)")
    if lost := event.detail.get("dropped_lines"):
        lines.append(f"({lost} more lines exceeded the limit, and are lost)")
    return lines

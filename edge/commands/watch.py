"""`tinkedge watch`: the journey's stream of a running edge, in a terminal; with --capture, beside the packets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Set
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

import aiohttp
import click
from click.core import ParameterSource

from edge.commands.options import admin_token_from
from edge.commands.options import interface as interface_type
from edge.composition.admin_token import AdminTokenError, read, token_file
from edge.journey.events import COLOURS, JourneyEvent, Notice, Step
from edge.journey.follow import Lost, follow, machines
from tink.mac import is_mac
from tink.net.host_port import join_host_port

if TYPE_CHECKING:
    from edge.diagnose.listening import Heard, Listening, Timed

_NAMED = 10
"""Names of Hardware that are listed where one is unknown."""
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - who listens everywhere is asked here


@click.command()
@click.argument("machine", required=False)
@click.option("--admin-url", default=None, help="Where the edge tells. Default: of --admin-address and --admin-port.")
@click.option("--admin-address", default="127.0.0.1", help="As for `tinkedge up`.")
@click.option("--admin-port", type=click.IntRange(1, 65535), default=7081, help="As for `tinkedge up`.")
@admin_token_from
@click.option("--history/--no-history", default=True, help="Begin with what has happened already.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="json: one object a line.")
@click.option("--logs", is_flag=True, help="Show what machines log over the network, too: with --syslog, or HookOS.")
@click.option(
    "--capture",
    is_flag=True,
    help="Show what the machine with this MAC sends and is sent, too: DHCP, TFTP, HTTP, ARP. Needs root and the extra "
    "`diagnose`; an edge need not run.",
)
@click.option(
    "--interface",
    "interfaces",
    type=interface_type,
    metavar="NAME",
    multiple=True,
    help="Where to capture. Default: that of the settings; without one, the interface with the default route.",
)
@click.option(
    "--write",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="With --capture: keep all packets of the machine, whole, in this pcap file.",
)
def watch(
    machine: str | None,
    admin_url: str | None,
    admin_address: str,
    admin_port: int,
    data_dir: Path,
    admin_token_file: Path | None,
    history: bool,
    output: str,
    logs: bool,
    capture: bool,
    interfaces: tuple[tuple[str, str], ...],
    write: Path | None,
) -> None:
    """The journey of machines, live: all of them, or of one MACHINE: a MAC, or the name of a Hardware, as NAME or
    NAMESPACE/NAME."""
    if admin_url is None:
        admin_url = f"http://{join_host_port(_EVERYWHERE.get(admin_address, admin_address), admin_port)}"
    edge = _Edge(admin_url, token_file(data_dir, admin_token_file))
    spelled = machine.lower().replace("-", ":") if machine else ""
    mac = spelled if is_mac(spelled) else None
    # In the settings it is where machines are, and no wish to capture.
    source = click.get_current_context().get_parameter_source("interfaces")
    if not capture and ((interfaces and source is ParameterSource.COMMANDLINE) or write):
        raise click.UsageError("--interface and --write go with --capture")
    if capture and mac is None:
        raise click.UsageError("--capture shows one machine: give its MAC, like 52:54:00:00:00:01")
    names = [name for name, _ in interfaces]
    if capture and len(names) > 1:
        raise click.UsageError(f"say with --interface on which of {', '.join(names)} the machine is")
    interface = next(iter(names), None)
    with contextlib.suppress(KeyboardInterrupt):
        if capture and mac is not None:
            sys.exit(asyncio.run(_capture(mac, edge, history, _Form(output, logs), interface, write)))
        sys.exit(asyncio.run(_watch(mac or machine, edge, history, _Form(output, logs))))


@dataclass(frozen=True, slots=True)
class _Form:
    """How it is shown, `text` or `json`, and whether with log lines."""

    output: str
    logs: bool


class _NoJourneyError(Exception):
    """The edge does not tell of its machines; the message says why."""


@dataclass(frozen=True, slots=True)
class _Edge:
    """Where a journey is read, and with the token of which file."""

    url: str
    token_file: Path

    async def events(self, *, history: bool) -> AsyncGenerator[JourneyEvent | Notice | Lost, None]:
        """Those of all machines. Raises _NoJourneyError."""
        with self._said():
            async with contextlib.aclosing(follow(self.url, read(self.token_file), history=history)) as stream:
                async for event in stream:
                    yield event

    async def macs_of(self, name: str) -> frozenset[str]:
        """The MACs of the Hardware with this NAME or NAMESPACE/NAME. Raises _NoJourneyError."""
        with self._said():
            known = [each for each in await machines(self.url, read(self.token_file)) if each.get("name")]
        found = [each for each in known if name in (each["name"], f"{each['namespace']}/{each['name']}")]
        places = sorted({f"{each['namespace']}/{each['name']}" for each in found})
        if len(places) > 1:
            raise _NoJourneyError(f"{name} may be {' or '.join(places)}: write the namespace, too")
        if not found:
            raise _NoJourneyError(_unknown(name, sorted({f"{each['namespace']}/{each['name']}" for each in known})))
        return frozenset(str(each["mac"]) for each in found)

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        """Say what is wrong with the edge's answer. Raises _NoJourneyError."""
        try:
            yield
        except AdminTokenError as error:
            raise _NoJourneyError(str(error)) from error
        except aiohttp.ClientResponseError as error:
            if error.status != HTTPStatus.UNAUTHORIZED:
                raise _NoJourneyError(f"{self.url} answers {error.status} {error.message}") from error
            raise _NoJourneyError(f"{self.url} has another token than {self.token_file}: is it that edge's?") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            advice = "Is `tinkedge up` or `tinkedge edge` running here?"
            raise _NoJourneyError(f"{self.url} does not answer: {error}. {advice}") from error


def _unknown(name: str, known: list[str]) -> str:
    there = ", ".join(known[:_NAMED]) + (f" and {len(known) - _NAMED} more" if len(known) > _NAMED else "")
    return (
        f"{name!r} is no MAC address, and the edge knows no Hardware of that name (there is: {there or 'none'}). "
        "A machine that nobody has registered is watched by its MAC."
    )


async def _watch(machine: str | None, edge: _Edge, history: bool, form: _Form) -> int:
    try:
        macs = None if machine is None else {machine} if is_mac(machine) else await edge.macs_of(machine)
        async for event in edge.events(history=history):
            _tell(event, macs, form)
    except _NoJourneyError as error:
        click.echo(str(error), err=True)
        return 1
    click.echo("the edge has ended the stream", err=True)
    return 1


async def _capture(mac: str, edge: _Edge, history: bool, form: _Form, interface: str | None, write: Path | None) -> int:
    from edge.composition.host import HostError, default_interface
    from edge.diagnose.extra import DiagnoseError
    from edge.diagnose.listening import Listening, in_order

    listening: Listening | None = None
    try:
        name = interface or default_interface()
        async with Listening(name, mac, write) as listening:
            click.echo(f"packets of {mac} on {name}; end with Ctrl-C", err=True)
            async with contextlib.aclosing(in_order(_packets(listening), _journey(edge, history))) as stream:
                async for found in stream:
                    _tell(found, {mac}, form)
    except (DiagnoseError, HostError) as error:
        click.echo(str(error), err=True)
        return 1
    finally:
        if listening is not None:
            lost = f", {listening.lost} more were lost" if listening.lost else ""
            kept = f"; all frames are in {write}" if write is not None else ""
            click.echo(f"{listening.seen} packets read{lost}{kept}", err=True)
    return 0


async def _packets(listening: Listening) -> AsyncGenerator[Timed[Heard | JourneyEvent | Notice | Lost], None]:
    from edge.diagnose.listening import Timed

    async for heard in listening.heard():
        yield Timed(heard.time, heard)


async def _journey(edge: _Edge, history: bool) -> AsyncGenerator[Timed[Heard | JourneyEvent | Notice | Lost], None]:
    """The edge's events; where no edge runs, or no more, packets are worth showing all the same."""
    from edge.diagnose.listening import Timed

    try:
        async for event in edge.events(history=history):
            yield Timed(time.time() if isinstance(event, Lost) else event.time, event)
    except _NoJourneyError as error:
        click.echo(f"{error} (packets alone are shown)", err=True)
    else:
        click.echo("the edge has ended the stream; packets alone are shown", err=True)


def _tell(found: Heard | JourneyEvent | Notice | Lost, macs: Set[str] | None, form: _Form) -> None:
    output = form.output
    if isinstance(found, Lost):
        text = f"{found.count} events were lost: this terminal reads more slowly than machines boot"
        click.echo(text, err=True)
    elif isinstance(found, Notice):
        click.echo(json.dumps(asdict(found)) if output == "json" else _notice_text(found))
    elif isinstance(found, JourneyEvent):
        if (macs is None or found.mac in macs) and (form.logs or found.step is not Step.LOG):
            click.echo(json.dumps(asdict(found)) if output == "json" else _text(found))
    elif output == "json":
        click.echo(json.dumps({"time": found.time, "mac": next(iter(macs or ()), None), "packet": found.text}))
    else:
        click.echo(f"{_clock(found.time)} {found.text}")


def _notice_text(notice: Notice) -> str:
    """What concerns the edge itself, and with it every machine."""
    outcome = click.style(f"{notice.outcome:<8}", fg=COLOURS[notice.outcome])
    return f"{_clock(notice.time)} {'this edge':<17} {'network':<9} {outcome} {notice.message}"


def _text(event: JourneyEvent) -> str:
    if event.step is Step.LOG:
        return _log_text(event)
    outcome = click.style(f"{event.outcome:<8}", fg=COLOURS[event.outcome])
    line = f"{_clock(event.time)} {event.mac} {event.step:<9} {outcome} {event.message}"
    manifest = event.detail.get("manifest")
    return f"{line}\n{indent(str(manifest), '    ')}" if manifest else line


def _log_text(event: JourneyEvent) -> str:
    """Each line of those that an entry has together."""
    lines = str(event.detail.get("lines", event.message)).splitlines() or [event.message]
    if missing := event.detail.get("omitted_lines"):
        lines.append(f"({missing} more lines are in the machine's file only)")
    if lost := event.detail.get("dropped_lines"):
        lines.append(f"({lost} more lines were too many, and are lost)")
    return "\n".join(f"{_clock(event.time)} {event.mac} {event.step:<9} {line}" for line in lines)


def _clock(at: float) -> str:
    """The time of day, with its date where that is not today's."""
    then, now = time.localtime(at), time.localtime()
    day = "" if then[:3] == now[:3] else time.strftime("%Y-%m-%d ", then)
    return day + time.strftime("%H:%M:%S", then) + f".{int(at * 1000) % 1000:03d}"

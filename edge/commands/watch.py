"""`tinkedge watch`: the journey's stream of a running edge, in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from dataclasses import asdict
from textwrap import indent

import aiohttp
import click

from edge.journey.events import JourneyEvent, Outcome
from edge.journey.follow import Lost, follow

_COLOUR = {Outcome.OK: "green", Outcome.INFO: None, Outcome.REFUSED: "yellow", Outcome.FAILED: "red"}


@click.command()
@click.argument("mac", required=False)
@click.option("--admin-url", default="http://127.0.0.1:7081", help="The edge's admin address.")
@click.option("--history/--no-history", default=True, help="Begin with what has happened already.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="json: one object a line.")
def watch(mac: str | None, admin_url: str, history: bool, output: str) -> None:
    """The journey of machines, live: all of them, or the one with this MAC."""
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(asyncio.run(_watch(mac.lower().replace("-", ":") if mac else None, admin_url, history, output)))


async def _watch(mac: str | None, admin_url: str, history: bool, output: str) -> int:
    try:
        async for event in follow(admin_url, history=history):
            if isinstance(event, Lost):
                text = f"{event.count} events were lost: this terminal reads more slowly than machines boot"
                click.echo(text, err=True)
            elif mac is None or event.mac == mac:
                click.echo(json.dumps(asdict(event)) if output == "json" else _text(event))
    except (aiohttp.ClientError, TimeoutError) as error:
        click.echo(f"{admin_url} does not answer: {error}. Is `tinkedge up` or `tinkedge edge` running here?", err=True)
        return 1
    click.echo("the edge has ended the stream", err=True)
    return 1


def _text(event: JourneyEvent) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(event.time))
    outcome = click.style(f"{event.outcome:<8}", fg=_COLOUR[event.outcome])
    line = f"{clock} {event.mac} {event.step:<9} {outcome} {event.message}"
    manifest = event.detail.get("manifest")
    return f"{line}\n{indent(str(manifest), '    ')}" if manifest else line

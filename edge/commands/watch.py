"""`tinkedge watch`: the journey's stream of a running edge, in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from textwrap import indent
from typing import Any

import aiohttp
import click

_COLOUR = {"ok": "green", "info": None, "refused": "yellow", "failed": "red"}


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
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=120)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{admin_url}/api/v1/events", params={"since": "all" if history else "now"}) as response,
        ):
            response.raise_for_status()
            kind = ""
            async for line in response.content:
                if line.startswith(b"event:"):
                    kind = line[6:].strip().decode()
                elif line.startswith(b"data:"):
                    _show(kind, json.loads(line[5:]), mac, output)
                elif not line.strip():
                    kind = ""  # an empty line ends an event
    except (aiohttp.ClientError, TimeoutError) as error:
        click.echo(f"{admin_url} does not answer: {error}. Is `tinkedge up` or `tinkedge edge` running here?", err=True)
        return 1
    click.echo("the edge has ended the stream", err=True)
    return 1


def _show(kind: str, data: Any, mac: str | None, output: str) -> None:
    """Print one event of the stream; one that is not of the journey says how many were lost."""
    if kind == "lost":
        click.echo(f"{data} events were lost: this terminal reads more slowly than machines boot", err=True)
    elif mac is None or data["mac"] == mac:
        click.echo(json.dumps(data) if output == "json" else _text(data))


def _text(event: dict[str, Any]) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(float(event["time"])))
    outcome = click.style(f"{event['outcome']:<8}", fg=_COLOUR.get(event["outcome"]))
    line = f"{clock} {event['mac']} {event['step']:<9} {outcome} {event['message']}"
    manifest = event["detail"].get("manifest")
    return f"{line}\n{indent(manifest, '    ')}" if manifest else line

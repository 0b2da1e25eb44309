"""`tinkedge page`: a link that opens the web page of a running edge in one browser."""

from __future__ import annotations

import asyncio

import aiohttp
import click

from edge.commands import admin_api
from edge.commands.admin_api import AdminApi

_SECONDS = 10.0
_NO_PAGE = "no page: --admin-url must be the operators' port of an edge, like http://127.0.0.1:7081"


@click.command()
@admin_api.of_edge
def page(edge: AdminApi) -> None:
    """Print a link to the web page of a running edge: all machines, why one does not boot, the edge itself.

    The link is valid once, for two minutes. The browser that opens it has access for twelve hours. It begins with
    --admin-url, which must be as the browser reaches the edge. From another host: ssh -L 7081:127.0.0.1:7081 EDGE, and
    open the link there.
    """
    code, seconds = asyncio.run(edge.get(_code, missing=_NO_PAGE))
    click.echo(f"{edge.url}/enter?code={code}")
    click.echo(f"valid once, for {seconds // 60} minutes", err=True)


async def _code(url: str, token: str) -> tuple[str, int]:
    """Request a code for a browser. Return it and its lifetime in seconds. Raises aiohttp.ClientError, TimeoutError."""
    headers, timeout = {"Authorization": f"Bearer {token}"}, aiohttp.ClientTimeout(total=_SECONDS)
    async with (
        aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
        session.get(f"{url}/api/v1/page-code", raise_for_status=True) as response,
    ):
        given = await response.json()
    try:
        return str(given["code"]), int(given["seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise aiohttp.ClientPayloadError(f"its answer has no code: {error!r}") from error

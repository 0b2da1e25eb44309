"""`tinkedge page`: a link that opens the web page of a running edge in one browser."""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus
from pathlib import Path

import aiohttp
import click

from edge.admin_token import AdminTokenError, read, token_file
from edge.commands.options import admin_token_from
from tink.net.addresses import join_host_port, reachable_host
from tink.net.outbound import no_answer

_SECONDS = 10.0


class _NoLinkError(Exception):
    """The edge gives no link. The message says why."""


@click.command()
@click.option(
    "--admin-url",
    help="Admin URL of the edge, as the browser reaches it. Default: from --admin-address and --admin-port.",
)
@click.option("--admin-address", default="127.0.0.1", help="As for `tinkedge up`.")
@click.option("--admin-port", type=click.IntRange(1, 65535), default=7081, help="As for `tinkedge up`.")
@admin_token_from
def page(
    admin_url: str | None, admin_address: str, admin_port: int, data_dir: Path, admin_token_file: Path | None
) -> None:
    """Print a link to the web page of a running edge: all machines, why one does not boot, the edge itself.

    The link is valid once, for two minutes. The browser that opens it has access for twelve hours. From another host:
    ssh -L 7081:127.0.0.1:7081 EDGE, and open the link there.
    """
    own = f"http://{join_host_port(reachable_host(admin_address), admin_port)}"
    url = (admin_url or own).rstrip("/")
    try:
        code, seconds = asyncio.run(_code(url, token_file(data_dir, admin_token_file)))
    except (_NoLinkError, AdminTokenError) as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    click.echo(f"{url}/enter?code={code}")
    click.echo(f"valid once, for {seconds // 60} minutes", err=True)


async def _code(url: str, file: Path) -> tuple[str, int]:
    """Request a code for a browser. Return it with its lifetime in seconds. Raises _NoLinkError, AdminTokenError."""
    headers = {"Authorization": f"Bearer {read(file)}"}
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
            session.get(f"{url}/api/v1/page-code") as response,
        ):
            response.raise_for_status()
            given = await response.json()
            return str(given["code"]), int(given["seconds"])
    except aiohttp.ClientResponseError as error:
        if error.status == HTTPStatus.UNAUTHORIZED:
            raise _NoLinkError(f"{url} has another token than that in {file}: is it that edge's?") from error
        if error.status == HTTPStatus.NOT_FOUND:
            raise _NoLinkError(
                f"{url} has no page: --admin-url must be the operators' port of an edge, like http://127.0.0.1:7081"
            ) from error
        raise _NoLinkError(f"{url} answers {error.status} {error.message}") from error
    except aiohttp.InvalidURL as error:
        raise _NoLinkError(f"--admin-url {url} is no URL: write it as http://ADDRESS:7081") from error
    except (aiohttp.ClientError, TimeoutError, KeyError, ValueError) as error:
        advice = "Is `tinkedge up` or `tinkedge edge` running here?"
        raise _NoLinkError(f"{url} does not answer: {no_answer(error)}. {advice}") from error

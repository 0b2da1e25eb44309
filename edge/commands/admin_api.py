"""The admin API of a running edge: the options that name it, and its requests with errors for a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import aiohttp
import click

from edge.admin_token import AdminTokenError, read, token_file
from edge.commands.options import gathered
from edge.settings import FilePath
from tink.errors import TinkedgeError
from tink.net.addresses import join_host_port, reachable_host
from tink.net.outbound import no_answer

T = TypeVar("T")

_NO_LIST = "no list of machines: an older tinkedge has its events only: --events"


class NoAnswerError(TinkedgeError):
    """The edge gives no answer that can be shown. The message says why."""


@dataclass(frozen=True, slots=True)
class AdminApi:
    """The admin API of an edge: its URL, and the file with its token."""

    url: str
    token_file: Path

    async def stream(self, source: Callable[..., AsyncGenerator[T, None]], **options: bool) -> AsyncGenerator[T, None]:
        """Yield what a source of `edge.journey.follow` receives. Raises NoAnswerError."""
        with self._errors(_NO_LIST):
            async with contextlib.aclosing(source(self.url, read(self.token_file), **options)) as stream:
                async for each in stream:
                    yield each

    async def get(self, request: Callable[..., Awaitable[T]], *args: str, missing: str = _NO_LIST) -> T:
        """Return the answer to a request, such as those of `edge.journey.follow`. Raises NoAnswerError.

        `missing` is what an edge that answers 404 does not have, for the message.
        """
        with self._errors(missing):
            return await request(self.url, read(self.token_file), *args)

    @contextlib.contextmanager
    def _errors(self, missing: str) -> Iterator[None]:
        """Turn errors of the request into NoAnswerError."""
        try:
            yield
        except AdminTokenError as error:
            raise NoAnswerError(str(error)) from error
        except aiohttp.ClientResponseError as error:
            message = f"answers {error.status} {error.message}"
            if error.status == HTTPStatus.NOT_FOUND:
                message = f"has {missing}"
            elif error.status == HTTPStatus.UNAUTHORIZED:
                message = f"has another token than {self.token_file}: is it that edge's?"
            raise NoAnswerError(f"{self.url} {message}") from error
        except aiohttp.InvalidURL as error:
            raise NoAnswerError(f"--admin-url {self.url} is no URL: write it as http://ADDRESS:7081") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            advice = "Is `tinkedge up` or `tinkedge edge` running here?"
            raise NoAnswerError(f"{self.url} does not answer: {no_answer(error)}. {advice}") from error


def _admin_api(
    admin_url: str | None, admin_address: str, admin_port: int, data_dir: Path, admin_token_file: Path | None
) -> AdminApi:
    own = f"http://{join_host_port(reachable_host(admin_address), admin_port)}"
    return AdminApi((admin_url or own).rstrip("/"), token_file(data_dir, admin_token_file))


of_edge = gathered(
    "edge",
    _admin_api,
    click.option("--admin-url", help="Admin URL of the edge. Default: from --admin-address and --admin-port."),
    click.option("--admin-address", default="127.0.0.1", help="As for `tinkedge up`."),
    click.option("--admin-port", type=click.IntRange(1, 65535), default=7081, help="As for `tinkedge up`."),
    # A user who may not read the directory can use a copy, so the directory need not be readable.
    click.option(
        "--data-dir",
        type=FilePath(readable=False),
        default=Path("/var/lib/tinkedge"),
        help="The data directory of the edge, where its admin token is.",
    ),
    click.option(
        "--admin-token-file", type=FilePath(readable=False), help="Or a copy of it. Default: DATA_DIR/admin-token."
    ),
)
"""Gives a command the options that name an edge, as its argument `edge`: an AdminApi."""

"""A client of the admin HTTP API: reads the journey of a running edge, for `tinkedge watch` and the lab."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import aiohttp

from edge.journey.events import JourneyEvent, Notice, Outcome, Step

_SILENCE_SECONDS = 120.0  # seconds; the stream has a heartbeat every few
_ROWS_BYTES = 4 << 20
"""Maximum length of a line in a stream of rows."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The reader was too slow: this many events are missing here."""

    count: int


@contextlib.asynccontextmanager
async def _get(
    admin_url: str, token: str, path: str, *, is_stream: bool = False, read_bufsize: int = 1 << 16
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Send a GET. Raises aiohttp.ClientError (for 404, ClientResponseError), TimeoutError."""
    timeout = aiohttp.ClientTimeout(
        total=None if is_stream else _SILENCE_SECONDS, sock_connect=5, sock_read=_SILENCE_SECONDS if is_stream else None
    )
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers, read_bufsize=read_bufsize) as session,
        session.get(f"{admin_url}{path}", raise_for_status=True) as response,
    ):
        yield response


async def follow(admin_url: str, token: str, *, history: bool) -> AsyncGenerator[JourneyEvent | Notice | Lost, None]:
    """Yield events as they happen, with `history` after the stored ones, until the edge ends the stream.

    `admin_url` as `http://127.0.0.1:7081`; `token` is that of `edge.admin_token`. Raises
    aiohttp.ClientError, TimeoutError. The stream is Server-Sent Events (HTML Living Standard, section 9.2).
    """
    path = f"/api/v1/events?since={'all' if history else 'now'}"
    async with _get(admin_url, token, path, is_stream=True) as response:
        kind = ""
        async for line in response.content:
            if line.startswith(b"event:"):
                kind = line[6:].strip().decode()
            elif line.startswith(b"data:"):
                data = json.loads(line[5:])
                if kind == "lost":
                    yield Lost(int(data))
                elif kind == "notice":
                    yield Notice(data["time"], Outcome(data["outcome"]), data["message"], data["detail"])
                else:
                    yield _event(data)
            elif not line.strip():
                kind = ""  # an empty line ends an event


def _event(data: dict[str, Any]) -> JourneyEvent:
    step, outcome = Step(data["step"]), Outcome(data["outcome"])
    return JourneyEvent(data["time"], data["mac"], step, outcome, data["message"], data["detail"])


async def _json(admin_url: str, token: str, path: str, unknown: Any = None) -> Any:
    """Return the JSON of an answer, or `unknown` for 404 if that is not None. Raises like `_get`."""
    try:
        async with _get(admin_url, token, path) as response:
            return await response.json()
    except aiohttp.ClientResponseError as error:
        if error.status != HTTPStatus.NOT_FOUND or unknown is None:
            raise
        return unknown


async def events_of(admin_url: str, token: str, mac: str) -> list[JourneyEvent]:
    """Return the events of one machine, oldest first; none if the edge does not know it. Raises like `machine`."""
    return [_event(each) for each in await _json(admin_url, token, f"/api/v1/machines/{mac}/events", [])]


async def machines(admin_url: str, token: str) -> list[dict[str, Any]]:
    """Return the machines of `/api/v1/machines`. Raises aiohttp.ClientError, TimeoutError."""
    return cast(list[dict[str, Any]], await _json(admin_url, token, "/api/v1/machines"))


async def machine(admin_url: str, token: str, mac: str) -> dict[str, Any]:
    """Return one machine of `/api/v1/machines/MAC`, or an empty dictionary if the edge does not know it.

    An edge of another release does not know the path either. Raises aiohttp.ClientError, TimeoutError.
    """
    return cast(dict[str, Any], await _json(admin_url, token, f"/api/v1/machines/{mac}", {}))


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes of the list of machines, from `/live/rows`.

    rows: new or changed rows.
    gone: the MACs of rows to remove.
    more: True while the first list is not complete.
    notices: the current problems of the edge; None if they have not changed.
    """

    rows: list[dict[str, Any]]
    gone: list[str]
    more: bool
    notices: list[str] | None


async def rows(admin_url: str, token: str) -> AsyncGenerator[Rows, None]:
    """Yield all machines, then their changes, until the edge ends the stream.

    Raises aiohttp.ClientError, TimeoutError.
    """
    async with _get(admin_url, token, "/live/rows", is_stream=True, read_bufsize=_ROWS_BYTES) as response:
        async for line in response.content:
            if line.startswith(b"data:"):
                data = json.loads(line[5:])
                more = bool(data.get("more"))
                yield Rows(data.get("rows", []), data.get("gone", []), more, data.get("notices"))

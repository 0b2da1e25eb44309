"""A client of the admin HTTP API: reads the journey of a running edge, for `tinkedge watch` and the lab."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from edge.journey.events import JourneyEvent, Notice, Outcome, Step

_SILENCE_SECONDS = 120.0  # seconds; the stream has a heartbeat every few
_ROWS_BYTES = 4 << 20
"""Maximum length of a line in a stream of rows."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The reader was too slow: this many events are missing here."""

    count: int


async def follow(admin_url: str, token: str, *, history: bool) -> AsyncGenerator[JourneyEvent | Notice | Lost, None]:
    """Yield events as they happen, with `history` after the stored ones, until the edge ends the stream.

    `admin_url` as `http://127.0.0.1:7081`; `token` is that of `edge.admin_token`. Raises
    aiohttp.ClientError, TimeoutError. The stream is Server-Sent Events (HTML Living Standard, section 9.2).
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_SILENCE_SECONDS)
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
        session.get(f"{admin_url}/api/v1/events", params={"since": "all" if history else "now"}) as response,
    ):
        response.raise_for_status()
        kind = ""
        async for line in response.content:
            if line.startswith(b"event:"):
                kind = line[6:].strip().decode()
            elif line.startswith(b"data:"):
                data = json.loads(line[5:])
                yield _read(kind, data)
            elif not line.strip():
                kind = ""  # an empty line ends an event


def _read(kind: str, data: Any) -> JourneyEvent | Notice | Lost:
    if kind == "lost":
        return Lost(int(data))
    return _notice(data) if kind == "notice" else _event(data)


def _notice(data: dict[str, Any]) -> Notice:
    return Notice(data["time"], Outcome(data["outcome"]), data["message"], data["detail"])


async def events_of(admin_url: str, token: str, mac: str) -> list[JourneyEvent]:
    """Return the events of one machine, oldest first; none if the edge does not know it. Raises like `machine`."""
    timeout = aiohttp.ClientTimeout(total=_SILENCE_SECONDS, sock_connect=5)
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
        session.get(f"{admin_url}/api/v1/machines/{mac}/events") as response,
    ):
        if response.status == HTTPStatus.NOT_FOUND:
            return []
        response.raise_for_status()
        return [_event(each) for each in await response.json()]


async def machines(admin_url: str, token: str) -> list[dict[str, Any]]:
    """Return the machines of `/api/v1/machines`. Raises aiohttp.ClientError, TimeoutError."""
    timeout = aiohttp.ClientTimeout(total=_SILENCE_SECONDS, sock_connect=5)
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
        session.get(f"{admin_url}/api/v1/machines") as response,
    ):
        response.raise_for_status()
        found: list[dict[str, Any]] = await response.json()
        return found


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
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_SILENCE_SECONDS)
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers, read_bufsize=_ROWS_BYTES) as session,
        session.get(f"{admin_url}/live/rows") as response,
    ):
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data:"):
                data = json.loads(line[5:])
                more = bool(data.get("more"))
                yield Rows(data.get("rows", []), data.get("gone", []), more, data.get("notices"))


async def machine(admin_url: str, token: str, mac: str) -> dict[str, Any]:
    """Return one machine of `/api/v1/machines/MAC`, or an empty dictionary if the edge does not know it.

    Raises aiohttp.ClientError, TimeoutError.
    """
    timeout = aiohttp.ClientTimeout(total=_SILENCE_SECONDS, sock_connect=5)
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
        session.get(f"{admin_url}/api/v1/machines/{mac}") as response,
    ):
        if response.status == HTTPStatus.NOT_FOUND:  # or an edge of another release
            return {}
        response.raise_for_status()
        found: dict[str, Any] = await response.json()
        return found


def _event(data: dict[str, Any]) -> JourneyEvent:
    return JourneyEvent(
        time=data["time"],
        mac=data["mac"],
        step=Step(data["step"]),
        outcome=Outcome(data["outcome"]),
        message=data["message"],
        detail=data["detail"],
    )

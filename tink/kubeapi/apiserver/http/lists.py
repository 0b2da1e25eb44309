"""Lists and watches as streamed responses, over HTTP and over WebSocket.

Watches over WebSocket (RFC 6455) serve browsers and Java clients: a frame for each event. Sources: k8s.io/apiserver,
pkg/endpoints/handlers/watch.go (HandleWS), pkg/authentication/request/websocket; and golang.org/x/net/websocket, whose
server decides about the handshake.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import datetime
from typing import Any, Final

import orjson
from aiohttp import WSMsgType, web

from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.http import responses
from tink.kubeapi.apiserver.media import JSON, YAML, Accepted, Form
from tink.kubeapi.apiserver.options import ListOptions, Target
from tink.kubeapi.apiserver.read import Change, Lists, select, watch_lines
from tink.kubeapi.apiserver.resources.registry import Resource
from tink.kubeapi.apiserver.serializer import dump_yaml_item, dump_yaml_list
from tink.kubeapi.apiserver.tables import partial, row, table

BEARER: Final = "base64url.bearer.authorization.k8s.io."
"""Prefix of a subprotocol that carries a token: a browser can't send an Authorization header with a WebSocket."""
MAX_MESSAGE_BYTES: Final = 64 * 1024  # Maximum size in bytes of a message from the client, which is read and dropped
CLOSE_SECONDS: Final = 10.0  # Time limit for the client's answer to the end of the watch

_PROTOCOL = "Sec-WebSocket-Protocol"
_UPGRADE = re.compile(r"(^|.*,\s*)upgrade($|\s*,)")
_KEY = re.compile(r"[A-Za-z0-9+/]{22}==")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s]+")


def is_websocket(request: web.Request) -> bool:
    """Return True if the client asks for a WebSocket (k8s.io/apimachinery, wsstream.IsWebSocketRequest)."""
    upgrade, connection = (request.headers.get(name, "") for name in ("Upgrade", "Connection"))
    return upgrade.lower() == "websocket" and _UPGRADE.match(connection.lower()) is not None


def token_of(request: web.Request) -> bytes | None:
    """Return the token in a subprotocol; None if there is none. Raises StatusError (401)."""
    protocols = _protocols(request) if is_websocket(request) else []
    tokens = [each.removeprefix(BEARER) for each in protocols if each.startswith(BEARER)]
    if not any(tokens):
        return None
    if len(tokens) > 1 or len(protocols) == 1:
        raise errors.unauthorized()  # besides the token, a subprotocol is needed that the server can choose
    try:
        token = base64.urlsafe_b64decode(tokens[0] + "=" * (-len(tokens[0]) % 4))
        token.decode()
    except (binascii.Error, ValueError) as error:
        raise errors.unauthorized() from error
    return token


def _protocols(request: web.Request) -> list[str]:
    headers = request.headers.getall(_PROTOCOL, ())
    return [each.strip() for header in headers for each in header.split(",")]


def _check_handshake(request: web.Request) -> str:
    """Return the subprotocol that the server chooses; "" for none. Raises StatusError (400, 403)."""
    if request.headers.get("Sec-WebSocket-Version", "") != "13":
        raise errors.bad_request("missing or bad WebSocket Version: send Sec-WebSocket-Version: 13")
    if not _KEY.fullmatch(request.headers.get("Sec-WebSocket-Key", "")):
        raise errors.bad_request("missing or bad Sec-WebSocket-Key: send 16 random bytes in base64")
    # Kubernetes also refuses a client without an Origin, but only browsers send one.
    origin = request.headers.get("Origin")
    if origin is not None and not _ORIGIN.fullmatch(origin):
        raise StatusError(403, "Forbidden", "bad Origin: a page without an origin can't watch")
    protocols = [each for each in _protocols(request) if not each.startswith(BEARER)]
    if len(protocols) > 1:
        raise errors.bad_request("bad WebSocket Protocol: offer one subprotocol, besides that with the token")
    return protocols[0] if protocols else ""


async def _serve_websocket(
    request: web.Request, protocol: str, lines: AsyncGenerator[list[bytes], None]
) -> web.StreamResponse:
    """Send each line as a text frame until `lines` end, or the client closes the WebSocket."""
    socket = web.WebSocketResponse(
        protocols=[protocol] if protocol else (),
        timeout=CLOSE_SECONDS,
        compress=False,  # a frame's compression would cost memory and time for each watch
        max_msg_size=MAX_MESSAGE_BYTES,
    )
    with contextlib.suppress(ConnectionError):
        try:
            await socket.prepare(request)
            await _send_until_closed(socket, lines)
        finally:
            await lines.aclose()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await socket.close()
    return socket


async def _send_until_closed(socket: web.WebSocketResponse, lines: AsyncGenerator[list[bytes], None]) -> None:
    async def send() -> None:
        async for part in lines:
            for line in part:
                await socket.send_frame(line, WSMsgType.TEXT)

    sending = asyncio.create_task(send())
    listening = asyncio.create_task(_ignore_messages(socket))
    try:
        await asyncio.wait((sending, listening), return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = sending.done()
        for task in (sending, listening):
            task.cancel()
        await asyncio.gather(sending, listening, return_exceptions=True)
    if ended:
        sending.result()


async def _ignore_messages(socket: web.WebSocketResponse) -> None:
    ends = (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR)
    while True:
        if (await socket.receive()).type in ends:
            return
        await asyncio.sleep(0)  # many received messages must not block other tasks


class ListResponses:
    """Writes lists and watches as responses. It holds no state."""

    def __init__(self, lists: Lists, now: Callable[[], datetime]) -> None:
        self._lists = lists
        self._now = now

    async def respond(self, request: web.Request, resource: Resource, target: Target) -> web.StreamResponse:
        """List or watch, as the query says. Raises StatusError."""
        options = ListOptions.of(request.query)
        select(resource, target, options)  # errors in the selectors of a watch are reported before it begins
        if request.method == "HEAD":
            return web.Response(content_type=JSON)
        if options.watch:
            return await self._watch(request, resource, target, options)
        return await self._list(request, resource, target, options)

    async def _list(
        self, request: web.Request, resource: Resource, target: Target, options: ListOptions
    ) -> web.StreamResponse:
        accepted = responses.accepted_form(request, resource, many=True)
        listing = await self._lists.read(resource, target, options)
        metadata = {
            **({"resourceVersion": str(listing.version)} if listing.version else {}),
            **({"continue": listing.continues} if listing.continues else {}),
            **({"remainingItemCount": listing.remaining} if listing.remaining else {}),
        }
        if accepted.form is Form.TABLE:
            include = responses.include_object(request)
            now = self._now()
            rows = [row(orjson.loads(body), resource.columns, now, include) async for body in _items(listing.parts)]
            made = responses.in_meta_version(table(resource.columns, rows, metadata), accepted)
            return responses.body_response(orjson.dumps(made), accepted)
        if accepted.form is Form.PARTIAL:
            items = [partial(orjson.loads(body)) async for body in _items(listing.parts)]
            kind = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
            made = responses.in_meta_version({**kind, "metadata": metadata, "items": items or None}, accepted)
            return responses.body_response(orjson.dumps(made), accepted)
        head = list_head(resource, metadata)
        if accepted.media == YAML:
            return await self._yaml_list(request, head + b"]}", await _with_first_part(listing.parts))
        if accepted != Accepted():
            whole = b",".join([body async for body in _items(listing.parts)])
            made_body = await asyncio.to_thread(responses.render, head + whole + b"]}", accepted)
            return web.Response(body=made_body, content_type=accepted.media)
        # A large list must not be in memory twice, so it is sent part by part as it is read.
        parts = await _with_first_part(listing.parts)
        response = web.StreamResponse(headers={"Content-Type": JSON})
        await response.prepare(request)
        await response.write(head)
        comma = b""
        async for part in parts:
            if part:
                await response.write(comma + b",".join(part))
                comma = b","
        await response.write(b"]}")
        await response.write_eof()
        return response

    async def _yaml_list(
        self, request: web.Request, head: bytes, parts: AsyncIterator[list[bytes]]
    ) -> web.StreamResponse:
        """Write a list as YAML, item by item, since YAML takes a hundred times as long as JSON."""
        response = web.StreamResponse(headers={"Content-Type": YAML})
        await response.prepare(request)
        before, after = dump_yaml_list(head)
        await response.write(before)
        first = True
        async for body in _items(parts):
            await response.write(dump_yaml_item(body, first=first))
            await asyncio.sleep(0)
            first = False
        await response.write((b" []\n" if first else b"") + after)
        await response.write_eof()
        return response

    async def _watch(
        self, request: web.Request, resource: Resource, target: Target, options: ListOptions
    ) -> web.StreamResponse:
        accepted = responses.accepted_form(request, resource, watch=True)
        over_websocket = is_websocket(request)
        protocol = _check_handshake(request) if over_websocket else ""
        changes = self._lists.watch(resource, target, options)
        if accepted.form is Form.OBJECT:
            lines = watch_lines(changes)
        else:
            lines = watch_lines(changes, lambda change: self._as_form(request, resource, change, accepted))
        if over_websocket:
            return await _serve_websocket(request, protocol, lines)
        response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"})
        with contextlib.suppress(ConnectionError):  # most watches end because the client disconnects
            try:
                await response.prepare(request)
                async for part in lines:
                    await response.write(b"".join(part))
            finally:
                await lines.aclose()
            await response.write_eof()
        return response

    def _as_form(self, request: web.Request, resource: Resource, change: Change, accepted: Accepted) -> bytes:
        obj = orjson.loads(change.body)
        if change.type == "BOOKMARK" and accepted.form is Form.TABLE:
            # The row has no name; its metadata may mark the end of the initial events.
            rows = [{"cells": ["", *[None] * (len(resource.columns) - 1)], "object": partial(obj)}]
            made = responses.in_meta_version(
                table((), rows, {"resourceVersion": obj["metadata"]["resourceVersion"]}), accepted
            )
        else:
            made = responses.as_form(request, resource, obj, accepted, self._now())
        return orjson.dumps(made)


async def _with_first_part(parts: AsyncIterator[list[bytes]]) -> AsyncIterator[list[bytes]]:
    """Read the first part of a list, so that a failed conversion is refused before the answer begins. A later failure
    can only break off the response."""
    first = await anext(parts, None)

    async def rest() -> AsyncIterator[list[bytes]]:
        if first is not None:
            yield first
        try:
            async for part in parts:
                yield part
        except StatusError as error:
            raise ConnectionAbortedError(str(error)) from error

    return rest()


async def _items(parts: AsyncIterator[list[bytes]]) -> AsyncIterator[bytes]:
    async for part in parts:
        for body in part:
            yield body


def list_head(resource: Resource, metadata: dict[str, Any]) -> bytes:
    """Return the beginning of a list as JSON, up to its first item."""
    if resource.custom:
        metadata = {"continue": "", **metadata}
    head = {"apiVersion": resource.api_version, "kind": resource.list_kind, "metadata": metadata, "items": []}
    return orjson.dumps(head)[:-2]

"""Watches over WebSocket (RFC 6455), as Kubernetes serves them to browsers and Java clients: a frame for each event.

Sources: k8s.io/apiserver, pkg/endpoints/handlers/watch.go (HandleWS), pkg/authentication/request/websocket; and
golang.org/x/net/websocket, whose server decides about the handshake.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import re
from collections.abc import AsyncGenerator
from typing import Final

from aiohttp import WSMsgType, web

from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.errors import StatusError

BEARER: Final = "base64url.bearer.authorization.k8s.io."
"""A subprotocol that begins so carries a token: a browser can't send the header Authorization with a WebSocket."""
MAX_MESSAGE_BYTES: Final = 64 * 1024
"""Maximum size in bytes of a message from the client, which is read and dropped."""
CLOSE_SECONDS: Final = 10.0
"""How long the client has to answer the end of the watch."""

_PROTOCOL = "Sec-WebSocket-Protocol"
_UPGRADE = re.compile(r"(^|.*,\s*)upgrade($|\s*,)")
_KEY = re.compile(r"[A-Za-z0-9+/]{22}==")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s]+")


def is_websocket(request: web.Request) -> bool:
    """Return True if the client asks for a WebSocket (k8s.io/apimachinery, wsstream.IsWebSocketRequest)."""
    upgrade, connection = (request.headers.get(name, "") for name in ("Upgrade", "Connection"))
    return upgrade.lower() == "websocket" and _UPGRADE.match(connection.lower()) is not None


def token_of(request: web.Request) -> bytes | None:
    """Return the token that stands in a subprotocol; None if there is none. Raises StatusError (401)."""
    protocols = _protocols(request) if is_websocket(request) else []
    tokens = [each.removeprefix(BEARER) for each in protocols if each.startswith(BEARER)]
    if not any(tokens):
        return None
    if len(tokens) > 1 or len(protocols) == 1:
        raise errors.unauthorized()  # beside the token there must be a subprotocol that the server can choose
    try:
        token = base64.urlsafe_b64decode(tokens[0] + "=" * (-len(tokens[0]) % 4))
        token.decode()
    except (binascii.Error, ValueError) as error:
        raise errors.unauthorized() from error
    return token


def _protocols(request: web.Request) -> list[str]:
    headers = request.headers.getall(_PROTOCOL, ())
    return [each.strip() for header in headers for each in header.split(",")]


def check_handshake(request: web.Request) -> str:
    """Return the subprotocol that the server chooses; "" for none. Raises StatusError (400, 403)."""
    if request.headers.get("Sec-WebSocket-Version", "") != "13":
        raise errors.bad_request("missing or bad WebSocket Version: send Sec-WebSocket-Version: 13")
    if not _KEY.fullmatch(request.headers.get("Sec-WebSocket-Key", "")):
        raise errors.bad_request("missing or bad Sec-WebSocket-Key: send 16 random bytes in base64")
    # Kubernetes also refuses a client without an Origin. Programs that are no browsers have none.
    origin = request.headers.get("Origin")
    if origin is not None and not _ORIGIN.fullmatch(origin):
        raise StatusError(403, "Forbidden", "bad Origin: a page without an origin can't watch")
    protocols = [each for each in _protocols(request) if not each.startswith(BEARER)]
    if len(protocols) > 1:
        raise errors.bad_request("bad WebSocket Protocol: offer one subprotocol, besides that with the token")
    return protocols[0] if protocols else ""


async def serve(request: web.Request, protocol: str, lines: AsyncGenerator[list[bytes], None]) -> web.StreamResponse:
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
    sending = asyncio.create_task(_send(socket, lines))
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


async def _send(socket: web.WebSocketResponse, lines: AsyncGenerator[list[bytes], None]) -> None:
    async for part in lines:
        for line in part:
            await socket.send_frame(line, WSMsgType.TEXT)


async def _ignore_messages(socket: web.WebSocketResponse) -> None:
    """Read what the client sends, until it closes the WebSocket."""
    ends = (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR)
    while True:
        if (await socket.receive()).type in ends:
            return
        await asyncio.sleep(0)  # many messages that have come already must not keep others waiting

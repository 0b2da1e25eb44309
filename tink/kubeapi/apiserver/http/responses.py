"""Forms and headers of responses: Status bodies, tables and partial metadata, media types, warnings, caching; and lists
and watches as streamed responses, over HTTP and over WebSocket."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import re
import unicodedata
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from datetime import datetime
from typing import Any, Final

import orjson
from aiohttp import WSMsgType, web

from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.media import JSON, PROTOBUF, YAML, Accepted, Form, negotiate
from tink.kubeapi.apiserver.options import ListOptions, Target
from tink.kubeapi.apiserver.read import Change, Lists, select, watch_lines
from tink.kubeapi.apiserver.resources.registry import Resource
from tink.kubeapi.apiserver.serializer import dump_protobuf, dump_yaml, dump_yaml_item, dump_yaml_list, message_of
from tink.kubeapi.apiserver.tables import partial, row, table
from tink.kubeapi.schema.field_errors import quote
from tink.printable import printable

MAX_TOTAL = 4 * 1024
MAX_EACH = 256
"""If all warnings together exceed MAX_TOTAL characters, each is cut to MAX_EACH."""


def limited_warnings(warnings: Iterable[str]) -> list[str]:
    """Return the warnings for the client, in their order. Each text occurs once, and texts that no header can hold are
    dropped (k8s.io/apiserver, pkg/endpoints/filters/warning.go)."""
    unique: dict[str, None] = {}
    written, cutting = 0, False
    for text in warnings:
        if cutting and written >= MAX_TOTAL:
            break
        if not text or text in unique:
            continue
        unique[text] = None
        if not _fits_header(text):
            continue
        size = min(len(text), MAX_EACH) if cutting else len(text)
        if not cutting and written + size > MAX_TOTAL:
            cutting = True
            written = sum(min(len(other), MAX_EACH) for other in unique if _fits_header(other))
        else:
            written += size
    return [text[:MAX_EACH] if cutting else text for text in unique if _fits_header(text)]


def _fits_header(text: str) -> bool:
    """Return True if a header can hold the text: no control characters and no surrogates."""
    return not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)


DEPRECATED = web.RequestKey("deprecated", str)
"""The warning about the version that a request uses, if the version is deprecated."""

_FOR_BROWSERS = (
    "<!doctype html><title>tinkedge</title><p>This is a Kubernetes API, for kubectl and other programs with a token."
    "<p>'kubectl --kubeconfig DATA_DIR/kubeconfig get hardware' asks it on its own host; 'tinkedge kubeconfig' makes "
    "a kubeconfig for a user. 'tinkedge page' prints a link to the page for people.\n"
)
_SANDBOX = {"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff"}


def error_response(error: StatusError) -> web.Response:
    """Return the response to a refused request: a Status."""
    headers = {"Retry-After": "1"} if error.code in (429, 504) else {}
    response = web.Response(status=error.code, body=orjson.dumps(error.body()), content_type=JSON, headers=headers)
    for text in limited_warnings(error.warnings or ()):
        response.headers.add("Warning", warning(text))
    return response


def unauthorized_response(request: web.Request, error: StatusError) -> web.Response:
    """Return the response to an unauthenticated request: a page for a browser, a Status for any other client. A browser
    is recognised by its Accept header; Kubernetes clients do not ask for HTML."""
    if "text/html" not in request.headers.get("Accept", ""):
        return error_response(error)
    return web.Response(status=error.code, text=_FOR_BROWSERS, content_type="text/html", headers=_SANDBOX)


def render(body: bytes, accepted: Accepted) -> bytes:
    """Return an answer (JSON) in the media type that the client accepts."""
    if accepted.media == YAML:
        return dump_yaml(body)
    if accepted.media == PROTOBUF:
        return dump_protobuf(orjson.loads(body))
    return orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2) + b"\n" if accepted.pretty else body


def body_response(body: bytes, accepted: Accepted, status: int = 200) -> web.Response:
    """Return the response with a body (JSON) in the media type that the client accepts."""
    return web.Response(status=status, body=render(body, accepted), content_type=accepted.media)


def warning(text: str) -> str:
    """Return the value of a Warning header (RFC 7234 section 5.5, code 299), which kubectl prints."""
    return '299 - "' + printable(text, " ").replace("\\", "\\\\").replace('"', '\\"') + '"'


async def finish_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Forbid caching unless the answer allows it, and warn about a deprecated version. Sources: k8s.io/apiserver,
    filters: WithCacheControl; apiextensions-apiserver, customresource_handler."""
    headers = response.headers
    headers.setdefault("Cache-Control", "no-cache, private")
    if text := request.get(DEPRECATED):
        others = headers.popall("Warning", [])
        for line in (warning(text), *others):
            headers.add("Warning", line)


def for_log(error: StatusError) -> str:
    """Return what was wrong, without the refused values: they may be secret or long."""
    causes = (error.details or {}).get("causes") or []
    fields = [cause["field"] for cause in causes if cause.get("field")]
    return f"{error.reason}: {', '.join(fields)[:500]}" if fields else error.message[:500]


def accepted_form(request: web.Request, resource: Resource, *, many: bool = False, watch: bool = False) -> Accepted:
    """Choose the media type and form of a response. Raises StatusError (406, 400)."""
    header = ",".join(request.headers.getall("Accept", ()))
    written = message_of(resource.api_version, resource.kind) is not None
    accepted = negotiate(header, protobuf=written, many=many, watch=watch)
    if accepted.form is Form.TABLE:
        include_object(request)  # Checked before the write whose result the table would show.
    return accepted


def include_object(request: web.Request) -> str:
    """Return which part of its object a table row includes: the query's `includeObject`. Raises StatusError (400)."""
    include = request.query.get("includeObject") or "Metadata"
    if include not in ("None", "Metadata", "Object"):
        why = "must be 'Metadata', 'Object', 'None', or empty"
        raise errors.bad_request(
            f"Unable to convert to Table as requested: includeObject: Invalid value: {quote(include)}: {why}"
        )
    return include


def in_meta_version(made: dict[str, Any], accepted: Accepted) -> dict[str, Any]:
    """Return a table or partial metadata in the version of meta.k8s.io that the client asked for."""
    version = made["apiVersion"] = f"meta.k8s.io/{accepted.version}"
    for one in made.get("rows", ()) if accepted.version != "v1" else ():
        if (one["object"] or {}).get("kind") == "PartialObjectMetadata":
            one["object"]["apiVersion"] = version
    return made


def as_form(request: web.Request, resource: Resource, obj: Any, accepted: Accepted, now: datetime) -> dict[str, Any]:
    """Return one object as a table or as partial metadata. Raises StatusError (400)."""
    if accepted.form is Form.PARTIAL:
        return in_meta_version(partial(obj), accepted)
    rows = [row(obj, resource.columns, now, include_object(request))]
    metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
    return in_meta_version(table(resource.columns, rows, metadata), accepted)


# --- WebSocket --------------------------------------------------------------------------------------------------------
#
# Watches over WebSocket (RFC 6455) serve browsers and Java clients: a frame for each event. Sources: k8s.io/apiserver,
# pkg/endpoints/handlers/watch.go (HandleWS), pkg/authentication/request/websocket; and golang.org/x/net/websocket,
# whose server decides about the handshake.

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


# --- lists and watches ------------------------------------------------------------------------------------------------


class ListResponses:
    """Writes lists and watches as  It holds no state."""

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
        accepted = accepted_form(request, resource, many=True)
        listing = await self._lists.read(resource, target, options)
        metadata = {
            **({"resourceVersion": str(listing.version)} if listing.version else {}),
            **({"continue": listing.continues} if listing.continues else {}),
            **({"remainingItemCount": listing.remaining} if listing.remaining else {}),
        }
        if accepted.form is Form.TABLE:
            include = include_object(request)
            now = self._now()
            rows = [row(orjson.loads(body), resource.columns, now, include) async for body in _items(listing.parts)]
            made = in_meta_version(table(resource.columns, rows, metadata), accepted)
            return body_response(orjson.dumps(made), accepted)
        if accepted.form is Form.PARTIAL:
            items = [partial(orjson.loads(body)) async for body in _items(listing.parts)]
            kind = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
            made = in_meta_version({**kind, "metadata": metadata, "items": items or None}, accepted)
            return body_response(orjson.dumps(made), accepted)
        head = list_head(resource, metadata)
        if accepted.media == YAML:
            return await self._yaml_list(request, head + b"]}", await _with_first_part(listing.parts))
        if accepted != Accepted():
            whole = b",".join([body async for body in _items(listing.parts)])
            made_body = await asyncio.to_thread(render, head + whole + b"]}", accepted)
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
        accepted = accepted_form(request, resource, watch=True)
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
            made = in_meta_version(table((), rows, {"resourceVersion": obj["metadata"]["resourceVersion"]}), accepted)
        else:
            made = as_form(request, resource, obj, accepted, self._now())
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

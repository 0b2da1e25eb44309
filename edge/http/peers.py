"""Requests of other edges of the site (`edge.peers`): which edges are here, what they have, and the files themselves.

Every request and every answer is signed. A client without a valid signature learns nothing, not even which files exist.
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from edge.artifacts.artifact import Artifact, ArtifactError
from edge.artifacts.upstream import TRAILER_BYTES
from edge.callers import dotted
from edge.http.answers import local_address, not_allowed, not_found, text
from edge.http.context import HttpServices
from edge.http.files import MachineGoneError, break_off, span
from edge.http.routes import Route
from edge.peers.messages import (
    HEADER,
    MAX_BATCH_BYTES,
    MAX_MESSAGE_BYTES,
    MessageError,
    SignedRequest,
    StrangerError,
    StrangerReason,
    VerifiedRequest,
)
from edge.peers.site import Peers
from tink.net.addresses import join_host_port

log = logging.getLogger(__name__)

BODY_SECONDS = 5.0
_POSTED = {
    **dict.fromkeys(("hello", "ask", "chain", "fetch"), MAX_MESSAGE_BYTES),
    "happened": MAX_BATCH_BYTES,
}
"""The messages that may be posted, with their maximum size in bytes."""


class PeerRequests:
    """The handler of `Place.PEER`."""

    def __init__(self, services: HttpServices, peers: Peers) -> None:
        self._services = services
        self._peers = peers

    async def handle(self, request: web.Request, route: Route) -> web.StreamResponse:
        """Answer a request below /peers."""
        posted = route.name in _POSTED
        if request.method != ("POST" if posted else "GET"):
            return not_allowed(("POST",) if posted else ("GET",))
        most = _POSTED.get(route.name, 0)
        if request.headers.get(HEADER, "") and posted and (request.content_length or 0) > most:
            return text(f"longer than {most} bytes", status=413)
        try:
            body = await self._body(request, most) if posted else b""
            # The request in the form that is signed, with our real address instead of the Host header.
            name = request.protocol.sockname
            authority = join_host_port(local_address(request), name[1] if isinstance(name, tuple) else 0)
            span_text, header = request.headers.get("Range", ""), request.headers.get(HEADER, "")
            signed = SignedRequest(request.method, authority, request.raw_path, body, span_text)
            asked = self._peers.check(header, signed)
            if not posted:
                return await self._file(request, route, asked)
            content = await self._peers.answer(f"/peers/{route.name}", body, asked)
            headers = {HEADER: asked.sign_response(200, content)}
            return web.Response(body=content, content_type="application/json", headers=headers)
        except StrangerError as error:
            status = 503 if error.refusal is StrangerReason.FULL else 403
            return self._services.refuse(
                status, str(error), seen=dotted(request.remote or ""), why=f"as an edge: {error}"
            )
        except MessageError as error:
            return text(f"no message of an edge: {error}", status=400)

    async def _body(self, request: web.Request, most: int) -> bytes:
        """Read the body, but not more than a message may have. Raises StrangerError, MessageError."""
        if not request.headers.get(HEADER, ""):
            raise StrangerError(StrangerReason.UNSIGNED, "only edges of this site may ask here")
        body = b""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while len(body) <= most and (more := await request.content.read(most + 1)):
                    body += more
        except TimeoutError:
            raise MessageError(f"its body does not come within {BODY_SECONDS:g} s") from None
        return body

    async def _file(self, request: web.Request, route: Route, asked: VerifiedRequest) -> web.StreamResponse:
        try:
            artifact = await self._peers.open(route.who, request.query.get("sha256", ""), route.name)
        except ArtifactError as error:
            log.info("another edge can't be sent a file: %s", error)
            artifact = None
        if artifact is None:
            return not_found()
        with artifact:
            return await self._send(request, artifact, asked)

    async def _send(self, request: web.Request, artifact: Artifact, asked: VerifiedRequest) -> web.StreamResponse:
        part = span(request.headers.get("Range", ""), artifact.size)
        if part is None:
            return text(f"the file has {artifact.size} bytes", status=416)
        status, length = (206 if part.partial else 200), part.length + TRAILER_BYTES
        head = asked.sign_response(status, f"{length}".encode())
        response = web.StreamResponse(status=status, headers={HEADER: head, "Content-Type": "application/octet-stream"})
        response.content_length = length

        async def trailer() -> bytes:
            return asked.sign_digest(await artifact.sha256())

        try:
            await self._services.sender.send(request, response, artifact, part.start, trailer=(TRAILER_BYTES, trailer))
        except (MachineGoneError, ArtifactError) as error:
            log.info("an edge at %s was not sent all of a file: %s", dotted(request.remote or ""), error)
            break_off(request)
            return response
        self._peers.counts.served += 1
        self._peers.counts.served_bytes += part.length
        return response

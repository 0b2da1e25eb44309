"""What actions need and is in the data directory: container images and files, for sites without another server.

    /v2/...          DATA_DIR/images, as a registry gives it that can only be read (OCI distribution specification 1.0)
    /files/<name>    DATA_DIR/files: disk images and the like, for IMG_URL

`tinkedge bundle load` puts them there, or an operator does (`skopeo copy ... oci:/var/lib/tinkedge/images:NAME:TAG`).
They are for machines that have a Hardware, and know no difference between these: what is secret does not belong here.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from pathlib import Path

from aiohttp import web

from edge.artifacts import Artifact, ArtifactError, ImageLayout, LayoutError, NoImageError, NotFoundError, open_file
from edge.callers import Caller
from edge.http.context import Context, size_text, text
from edge.http.files.body import BodySender, MachineGoneError
from edge.http.files.response_head import begun, break_off, requested
from edge.http.routes import Route
from edge.journey.events import Outcome, Step

log = logging.getLogger(__name__)

_API = {"Docker-Distribution-API-Version": "registry/2.0"}


class Depot:
    """The handler of both."""

    def __init__(self, context: Context, sender: BodySender, images: Path | None, files: Path | None) -> None:
        """`images` and `files` are directories, which need not be there; None: nothing is served."""
        self._context = context
        self._sender = sender
        self._images, self._files = images, files
        self._layout = ImageLayout(images) if images is not None else None

    async def file(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """GET /files/<name>."""
        if (refusal := self._refusal(caller, f"file {route.name}")) is not None:
            return refusal
        if self._files is None or route.name.startswith("."):
            return text(f"there is no file {route.name}", status=404)
        try:
            artifact = open_file((self._files / route.name).absolute().as_uri(), self._files)
        except NotFoundError:
            return self._failed(caller, f"file {route.name}: it is not in {self._files}", "there is no such file", 404)
        except ArtifactError as error:
            return self._failed(caller, f"file {route.name}: {error}", "the file can't be read", 500)
        headers = {"Content-Type": "application/octet-stream", "ETag": f'"{artifact.version}"'}
        with artifact:
            return await self._send(request, caller, artifact, headers, f"file {route.name}")

    async def registry(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """GET /v2/ and what is below it."""
        if (refusal := self._refusal(caller, f"image {route.who or '(registry)'}")) is not None:
            return refusal
        if not route.name:
            return web.json_response({}, headers=_API)
        kind, _, reference = route.name.partition("/")
        layout = self._layout
        try:
            if layout is None:
                raise NoImageError("this edge has no images")
            if kind == "manifests":
                return await self._manifest(request, route.who, reference, layout)
            return await self._blob(request, caller, reference, layout)
        except (NoImageError, NotFoundError) as error:
            where = f"it is not in {self._images}: {error}"
            code = "MANIFEST_UNKNOWN" if kind == "manifests" else "BLOB_UNKNOWN"
            return self._refused(caller, f"image {route.who}: {where}", code, "this edge has no such image", 404)
        except (LayoutError, ArtifactError, OSError) as error:
            return self._refused(caller, f"image {route.who}: {self._images}: {error}", "UNKNOWN", "can't be read", 500)

    async def _manifest(
        self, request: web.Request, name: str, reference: str, layout: ImageLayout
    ) -> web.StreamResponse:
        found = await asyncio.to_thread(layout.manifest, name, reference)
        headers = {
            **_API,
            "Content-Type": found.media_type,
            "Docker-Content-Digest": found.digest,
            "ETag": f'"{found.digest}"',
        }
        part = requested(request, headers, len(found.content))
        if isinstance(part, web.Response):
            return part
        body = found.content[part.start : part.end]
        return web.Response(body=body, status=206 if part.partial else 200, headers=headers)

    async def _blob(self, request: web.Request, caller: Caller, digest: str, layout: ImageLayout) -> web.StreamResponse:
        artifact = open_file(layout.path(digest).absolute().as_uri(), self._images)
        headers = {
            **_API,
            "Content-Type": "application/octet-stream",
            "Docker-Content-Digest": digest,
            "ETag": f'"{digest}"',
        }
        with artifact:
            return await self._send(request, caller, artifact, headers, f"layer {digest[:19]}")

    # --- answers ---

    def _refusal(self, caller: Caller, what: str) -> web.Response | None:
        if caller.machine is not None:
            return None
        status = caller.status if caller.status == HTTPStatus.SERVICE_UNAVAILABLE else 403
        return self._context.refuse_caller(caller, what, status=status, step=Step.ACTION)

    def _failed(self, caller: Caller, why: str, body: str, status: int) -> web.Response:
        mac = caller.mac or ""
        if mac and self._context.first("depot", mac, why):
            self._context.record(mac, Step.ACTION, Outcome.FAILED, why)
        return text(body, status=status)

    def _refused(self, caller: Caller, why: str, code: str, message: str, status: int) -> web.Response:
        """An error as the distribution specification has it ("Error Codes")."""
        self._failed(caller, why, message, status)
        return web.json_response({"errors": [{"code": code, "message": message}]}, status=status, headers=_API)

    async def _send(
        self, request: web.Request, caller: Caller, artifact: Artifact, headers: dict[str, str], what: str
    ) -> web.StreamResponse:
        begin = await begun(request, headers, artifact.size)
        if isinstance(begin, web.StreamResponse):
            return begin
        response, part = begin
        try:
            await self._sender.send(request, response, artifact, part.start)
        except (MachineGoneError, ArtifactError) as error:
            log.warning("%s: %s broken off: %s", caller.address, what, error)
            break_off(request)
            return response
        log.info("%s: %s sent: %s", caller.address, what, size_text(part.length))
        return response

"""Container images and files for actions, from the data directory. Sites without another server need these.

    /v2/...          DATA_DIR/images, as a read-only registry (OCI distribution specification 1.0)
    /files/<name>    DATA_DIR/files: for example disk images for IMG_URL

`tinkedge bundle load` and `tinkedge image import` put them there, or an operator does (`skopeo copy ...
oci:/var/lib/tinkedge/images:NAME:TAG`). An edge with `--upstream-edge` fetches missing ones from that edge and keeps
them in its cache, like kernels. All machines with a Hardware can read all of them, so they must not contain secrets.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections import Counter
from http import HTTPStatus

from aiohttp import web

from edge.artifacts.artifact import Artifact, ArtifactError, NotFoundError, UpstreamError
from edge.artifacts.layout import (
    LayoutError,
    NoImageError,
    is_name,
    media_type_of,
)
from edge.artifacts.shared import SharedFiles, blob_url, file_url, manifest_url
from edge.callers import Caller
from edge.http.answers import size_text, text
from edge.http.context import HttpServices
from edge.http.files import Span, bytes_response
from edge.http.routes import Route
from edge.journey.events import Outcome, Step
from tink.registry.manifests import MANIFEST_LIMIT_BYTES
from tink.registry.names import is_digest

log = logging.getLogger(__name__)

MAX_ASKED = 8
"""Number of files that one machine may make the edge request from another edge at a time. An agent pulls four layers at
once."""

_RETRY_SECONDS = 10
_API = {"Docker-Distribution-API-Version": "registry/2.0"}


class ActionFiles:
    """The handler of images and files."""

    def __init__(self, services: HttpServices) -> None:
        depot = services.depot
        self._services = services
        self._images = depot / "images" if depot is not None else None
        self._files = depot / "files" if depot is not None else None
        self._shared = SharedFiles(self._files, self._images)
        self._asked: Counter[str] = Counter()

    async def file(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """Answer GET /files/<name>."""
        what = f"file {route.name}"
        if (refusal := self._refusal(caller, what)) is not None:
            return refusal
        if self._files is None or route.name.startswith("."):
            return text(f"there is no file {route.name}", status=404)
        try:
            artifact = await self._opened(caller, file_url(route.name))
        except NotFoundError as error:
            why = f"{what}: it is not in {self._files}{self._nor_beyond(error)}"
            return self._failed(caller, why, "there is no such file", 404)
        except UpstreamError as error:
            return self._failed(caller, f"{what}: {error}", "the other edge can't send the file now", 503)
        except ArtifactError as error:
            return self._failed(caller, f"{what}: {error}", "the file can't be read", 500)
        headers = {"Content-Type": "application/octet-stream", "ETag": f'"{artifact.version}"'}
        with artifact:
            return await self._send(request, caller, artifact, headers, what)

    async def registry(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """Answer GET /v2/ and the paths below it."""
        if (refusal := self._refusal(caller, f"image {route.who or '(registry)'}")) is not None:
            return refusal
        if not route.name:
            return web.json_response({}, headers=_API)
        kind, _, reference = route.name.partition("/")
        what = f"image {route.who}"
        try:
            if self._images is None:
                raise NoImageError("this edge has no images")
            if kind == "manifests":
                return await self._manifest(request, caller, route.who, reference)
            return await self._blob(request, caller, reference)
        except (NoImageError, NotFoundError) as error:
            where = f"it is not in {self._images}{self._nor_beyond(error)}"
            code = "MANIFEST_UNKNOWN" if kind == "manifests" else "BLOB_UNKNOWN"
            return self._refused(caller, f"{what}: {where}", code, "this edge has no such image", 404)
        except UpstreamError as error:
            return self._refused(caller, f"{what}: {error}", "UNAVAILABLE", "the other edge can't send it now", 503)
        except (LayoutError, ArtifactError, OSError) as error:
            return self._refused(caller, f"{what}: {self._images}: {error}", "UNKNOWN", "can't be read", 500)

    async def _manifest(self, request: web.Request, caller: Caller, name: str, reference: str) -> web.StreamResponse:
        is_by_digest = is_digest(reference)
        if not is_by_digest and not is_name(f"{name}:{reference}"):
            raise NoImageError("is no repository:tag")
        url = manifest_url(name, reference)
        with await self._opened(caller, url, _pin(reference)) as artifact:
            if artifact.size > MANIFEST_LIMIT_BYTES:
                raise LayoutError(f"{url} is larger than the {MANIFEST_LIMIT_BYTES} bytes that a manifest may have")
            filled = 0
            while filled < artifact.size:
                filled = await artifact.filled(filled)
            content = await asyncio.to_thread(os.pread, artifact.fd, artifact.size, 0)
        algorithm = reference.partition(":")[0] if is_by_digest else "sha256"
        digest = f"{algorithm}:{(await asyncio.to_thread(hashlib.new, algorithm, content)).hexdigest()}"
        if is_by_digest and digest != reference:
            raise LayoutError(f"{url} came with the digest {digest}")
        headers = _headers(await asyncio.to_thread(media_type_of, content, digest), digest)
        return bytes_response(request, headers, content)

    async def _blob(self, request: web.Request, caller: Caller, digest: str) -> web.StreamResponse:
        if not is_digest(digest):
            raise NoImageError(f"{digest[:80]!r} is no sha256 or sha512 digest")
        headers = _headers("application/octet-stream", digest)
        with await self._opened(caller, blob_url(digest), _pin(digest)) as artifact:
            return await self._send(request, caller, artifact, headers, f"layer {digest[:19]}")

    async def _opened(self, caller: Caller, url: str, pin: str = "") -> Artifact:
        """Open a local file, or that of another edge, which must have the SHA-256 `pin`.

        Raises ArtifactError; UpstreamError also if the machine requests too many files of another edge.
        """
        try:
            return await asyncio.to_thread(self._shared.open, url)
        except NotFoundError:
            if self._services.beyond is None:
                raise
        if self._asked[caller.address] >= MAX_ASKED:
            raise UpstreamError(url, f"{MAX_ASKED} other files are being requested: try again")
        self._asked[caller.address] += 1
        try:
            return await self._services.beyond.open(url, sha256=pin)
        finally:
            self._asked[caller.address] -= 1
            if not self._asked[caller.address]:
                del self._asked[caller.address]

    def _nor_beyond(self, error: Exception) -> str:
        reason = error.reason if isinstance(error, ArtifactError) else str(error)
        return f": {reason}" if self._services.beyond is None else f", and {reason}"

    # --- answers ---

    def _refusal(self, caller: Caller, what: str) -> web.Response | None:
        if caller.machine is not None:
            return None
        status = caller.status if caller.status == HTTPStatus.SERVICE_UNAVAILABLE else 403
        return self._services.refuse_caller(caller, what, status=status, step=Step.ACTION)

    def _failed(self, caller: Caller, why: str, body: str, status: int) -> web.Response:
        mac = caller.mac or ""
        if mac and self._services.first("depot", mac, why):
            self._services.record(mac, Step.ACTION, Outcome.FAILED, why)
        return text(body, status=status, headers=_retry_after(status))

    def _refused(self, caller: Caller, why: str, code: str, message: str, status: int) -> web.Response:
        """Return an error in the form of the distribution specification ("Error Codes")."""
        self._failed(caller, why, message, status)
        headers = {**_API, **_retry_after(status)}
        return web.json_response({"errors": [{"code": code, "message": message}]}, status=status, headers=headers)

    async def _send(
        self, request: web.Request, caller: Caller, artifact: Artifact, headers: dict[str, str], what: str
    ) -> web.StreamResponse:

        def ended(part: Span, error: Exception | None) -> None:
            if error is not None:
                log.warning("%s: %s broken off: %s", caller.address, what, error)
            else:
                log.info("%s: %s sent: %s", caller.address, what, size_text(part.length))

        return await self._services.sender.answer(request, headers, artifact, ended)


def _pin(reference: str) -> str:
    """Return the SHA-256 of a digest; empty if it has another algorithm, or is a tag."""
    algorithm, _, digest = reference.partition(":")
    return digest if algorithm == "sha256" and is_digest(reference) else ""


def _headers(media_type: str, digest: str) -> dict[str, str]:
    return {**_API, "Content-Type": media_type, "Docker-Content-Digest": digest, "ETag": f'"{digest}"'}


def _retry_after(status: int) -> dict[str, str]:
    """Return the Retry-After header of a 503, for which image clients wait (RFC 9110 section 10.2.3)."""
    return {"Retry-After": str(_RETRY_SECONDS)} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}

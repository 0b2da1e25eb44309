"""Speaking to a container engine: where its socket is, and the calls that aiodocker has not, or not in bounded memory.

`runtime` and `pull` open one client per operation: nothing has to be closed at the end of the agent, and an engine that
was restarted meanwhile is simply there again. What an action can make large (its output, a failure file, the engine's
report of a pull) is read here in pieces, as bytes.

Source: Docker Engine API 1.41 (ContainerLogs, ContainerArchive, ImageCreate, SystemPing).
"""

from __future__ import annotations

import contextlib
import json
import re
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from aiodocker import Docker, DockerError
from aiodocker.stream import Stream

from tink.agent.model import AgentError, SettingsError
from tink.agent.runtimes.docker.request import text_of_archive

DEFAULT_SOCKETS = (Path("/run/docker.sock"), Path("/run/podman/podman.sock"))

EngineFailure = (DockerError, aiohttp.ClientError, OSError, TimeoutError)
"""What a call of an engine raises: it said no, or it cannot be reached."""

_OLDEST_API = "v1.40"
"""Of Docker 19.03 and Podman 3: asked for when an engine does not tell its own."""

_CALL_SECONDS = 120.0
"""For calls that are not waited with; making a container on a slow disk takes some."""

_PUT_ATTEMPTS = 3
_FILE_HEAD_BYTES = 16 * 1024
_LINE_LIMIT_BYTES = 1024 * 1024
_COPY_BYTES = 64 * 1024
_FOR_EVER = aiohttp.ClientTimeout(total=None, sock_connect=10)


class EngineError(AgentError):
    """The engine reported `message` in the middle of an answer that had begun well."""


def find_socket(docker_host: str) -> Path:
    """The engine's socket: `docker_host` (a path or unix:// URL), or where engines have it. Raises SettingsError."""
    if not docker_host:
        for path in DEFAULT_SOCKETS:
            if path.exists():
                return path
        tried = " nor ".join(str(path) for path in DEFAULT_SOCKETS)
        raise SettingsError(f"docker host: there is neither {tried}; start the engine or give --docker-host")
    path = Path(docker_host.removeprefix("unix://"))
    if not path.is_absolute():
        raise SettingsError(f"docker host: {docker_host!r} is neither a path nor unix:// and a path")
    return path


class Engine:
    """The engine behind `socket`; what it is, and the version of its API, is known after `connect`."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.name = "the engine"
        self.is_podman = False
        self._api_version = _OLDEST_API

    async def connect(self) -> None:
        """Learn what the engine is. Raises EngineFailure."""
        # Not /version: Podman asks the package manager where its programs come from, which takes seconds.
        async with self.open() as docker, _request(docker, "GET", "/_ping", {}) as response:
            headers = response.headers
        version = headers.get("Api-Version", "")
        self._api_version = f"v{version}" if re.fullmatch(r"\d+\.\d+", version) else _OLDEST_API
        self.is_podman = "Libpod-API-Version" in headers
        self.name = headers.get("Server", "").partition(" ")[0][:64] or "the engine"

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Docker]:
        """A client, closed at the end."""
        timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS, sock_connect=10)
        async with Docker(f"unix://{self.socket}", timeout=timeout, api_version=self._api_version) as docker:
            yield docker


async def feed_live_output(stream: Stream, feed: Callable[[bytes], None]) -> None:
    """Hand what comes through `stream`, an attached container's, to `feed`, until it ends. Raises EngineFailure."""
    while (message := await stream.read_out()) is not None:
        feed(message.data)


async def feed_past_output(
    docker: Docker, container_id: str, feed: Callable[[bytes], None], lines: int, since: int
) -> None:
    """Hand the last `lines` that the engine kept of a container's output to `feed`, none from before the Unix time
    `since`. Raises EngineFailure.

    Not for what is still to come: Podman 4.3 loses the rest, and Docker 20.10 repeats some, when their log is rotated.
    """
    params = {"stdout": "1", "stderr": "1", "tail": str(lines), "since": str(since)}
    async with _request(docker, "GET", f"containers/{container_id}/logs", params) as response:
        with contextlib.suppress(EOFError):
            while True:
                (left,) = struct.unpack(">xxxxL", await _exactly(response.content, 8))
                while left:
                    chunk = await _some(response.content, min(left, _COPY_BYTES))
                    feed(chunk)
                    left -= len(chunk)


async def put_archive(docker: Docker, container_id: str, archive: bytes) -> None:
    """Unpack the tar `archive` at the root of the container. Raises EngineFailure."""
    headers = {"Content-Type": "application/x-tar"}
    path = f"containers/{container_id}/archive"
    for attempt in range(_PUT_ATTEMPTS):
        try:
            async with _request(docker, "PUT", path, {"path": "/"}, data=archive, headers=headers):
                return
        except DockerError as error:
            # Podman 4.3 has a helper read it, which may be gone before all of it is written.
            if "broken pipe" not in str(error.message) or attempt == _PUT_ATTEMPTS - 1:
                raise


async def read_file(docker: Docker, container_id: str, path: str) -> str:
    """The beginning of a small file of the container; "" when it is not there. Raises EngineFailure."""
    head = b""
    try:
        async with _request(docker, "GET", f"containers/{container_id}/archive", {"path": path}) as response:
            while len(head) < _FILE_HEAD_BYTES and (chunk := await response.content.read(_FILE_HEAD_BYTES)):
                head += chunk
            response.close()  # with the rest of it: it may be as large as the disk
    except DockerError as error:
        if error.status == 404:
            return ""
        raise
    return text_of_archive(head)


async def pull_reports(
    docker: Docker, path: str, params: Mapping[str, str], headers: Mapping[str, str]
) -> AsyncIterator[dict[str, Any]]:
    """What the engine says while it pulls an image, one JSON object after the other.

    Raises EngineError for a failure that it reports, EngineFailure; an answer that breaks off is one.
    """
    async with _request(docker, "POST", path, params, headers=headers, limits=_FOR_EVER) as response:
        rest = b""
        async for chunk in response.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LINE_LIMIT_BYTES:
                raise EngineError("it sent a line without an end")
            for line in lines:
                if line.strip():
                    yield _report(line)
        if rest.strip():
            yield _report(rest)


def _report(line: bytes) -> dict[str, Any]:
    try:
        report = json.loads(line)
    except ValueError as error:
        raise EngineError("it sent what is not JSON") from error
    if not isinstance(report, dict):
        raise EngineError("it sent what is not a JSON object")
    if report.get("error"):
        raise EngineError(str(report["error"]))
    return report


@contextlib.asynccontextmanager
async def _request(
    docker: Docker,
    method: str,
    path: str,
    params: Mapping[str, str],
    *,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    limits: aiohttp.ClientTimeout | None = None,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """An answer with a status below 400. Raises DockerError for others."""
    version = "" if path.startswith("/") else f"/{docker.api_version}/"
    more: dict[str, Any] = {} if limits is None else {"timeout": limits}
    url = f"http://engine{version}{path}"
    async with docker.session.request(method, url, params=params, data=data, headers=headers, **more) as response:
        if response.status >= 400:
            body = await response.content.read(_FILE_HEAD_BYTES)
            response.close()
            try:
                answer = json.loads(body)
                message = str(answer.get("message") or answer.get("cause") or answer)
            except (ValueError, AttributeError):
                message = body.decode(errors="replace")
            raise DockerError(response.status, message)
        yield response


async def _exactly(stream: aiohttp.StreamReader, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await _some(stream, size - len(data))
    return data


async def _some(stream: aiohttp.StreamReader, limit: int) -> bytes:
    if chunk := await stream.read(limit):
        return chunk
    raise EOFError

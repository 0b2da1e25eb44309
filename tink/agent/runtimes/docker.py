"""Runs actions as containers of a container engine (Docker, Podman)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import logging
import re
import secrets
import struct
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from aiodocker import Docker, DockerError
from aiodocker.containers import DockerContainer
from aiodocker.stream import Stream

from tink.agent.images import ATTEMPTS, Reference, Registries, how_to_log_in, parse, retry_backoff
from tink.agent.model import ActionError, AgentError, AgentSettingsError, Reason, RenderedAction, RunResult
from tink.agent.output import Output, PullProgress, thread_safe_sink
from tink.agent.runtimes.runtime import (
    CAPABILITIES,
    MESSAGE_LIMIT_BYTES,
    STOP_GRACE_SECONDS,
    ContainerHost,
    judge,
    one_line,
    parse_volumes,
)
from tink.waiting import done_before

log = logging.getLogger(__name__)

# --- Requests ---
#
# Converts an action to the body of `POST /containers/create`. Pure.
#
# The container has the properties that `oci` gives it, so that a Workflow runs alike with and without an engine, and
# those of Tinkerbell's own agents: it is privileged, because actions write disks.
#
# - Command: `cmd` replaces the image's Entrypoint (and drops its Cmd); `args` replace its Cmd. No shell is added.
# - The machine's /dev, not the copy that an engine makes when the container starts: partitions that the action has
#   just written appear in it.
# - Volumes: paths of the machine that the engine runs on, or volumes of the engine by name. One that names a file is a
#   mount, which the engine refuses if there is none; for a bind it would make a directory.
# - Network namespace: none named, or `host` or `/proc/1/ns/net`: the machine's. `none`: only loopback. `bridge`: the
#   engine's bridge. PID namespace: its own unless `host` or `/proc/1/ns/pid`. Engines do not join namespaces by path.
# - The log that the engine keeps for the agent is small: in an OSIE it is in memory.
# - Labels: whose container it is, to find it again (`protocol.Runtime.resume`).
#
# Sources: Docker Engine API 1.41, ContainerCreate; Podman 4.3's compatible API.


LABEL_AGENT = "tinkedge.agent"
LABEL_ACTION = "tinkedge.action"
FAILURE_FILES = ("failure-reason", "failure-message")
"""In /tinkerbell."""

_LOG_LIMIT = "4m"
_ENGINE_CAPABILITIES = 38
"""Capabilities that every engine in use knows by name; a newer one than AUDIT_READ (37) in CapDrop is an error."""


_NETWORKS = {"": "host", "host": "host", "none": "none", "bridge": "bridge", "/proc/1/ns/net": "host"}
_PID_MODES = {"": "", "host": "host", "private": "", "/proc/1/ns/pid": "host"}
"""The engine's names of the namespaces that an action may name."""


def image_name(image: str) -> str:
    """Return the full name of an image: engines would add registries of their own. Raises ActionError."""
    reference = parse(image)
    separator = "@" if reference.digest else ":"
    return f"{reference.host}/{reference.path}{separator}{reference.version}"


def container_request(action: RenderedAction, agent_id: str, capability_mask: int | None = None) -> dict[str, Any]:
    """Return the body that creates the container of `action`. Raises ActionError for properties that engines lack.

    `capability_mask`: None for a privileged container; a mask for the same with only these capabilities, because an
    engine that lacks a capability itself can't make a privileged container.
    """
    binds: list[str] = []
    mounts: list[dict[str, Any]] = []
    volumes = parse_volumes(action.volumes)
    if not any(volume.target == "/dev" for volume in volumes):
        binds.append("/dev:/dev")
    for volume in volumes:
        if not volume.must_exist:
            binds.append(str(volume))
            continue
        mount: dict[str, Any] = {"Type": "bind", "Source": volume.source, "Target": volume.target}
        mount["ReadOnly"] = "ro" in volume.options
        propagation = [option for option in volume.options if option not in ("ro", "rw")]
        if propagation:
            mount["BindOptions"] = {"Propagation": propagation[0]}
        mounts.append(mount)
    body: dict[str, Any] = {
        "Image": image_name(action.image),
        "Env": [f"{name}={value}" for name, value in action.env.items()],
        "Labels": {LABEL_AGENT: agent_id, LABEL_ACTION: action.id},
        "Tty": False,
        "HostConfig": {
            "NetworkMode": _namespace(action, action.network_namespace, _NETWORKS, "networkNamespace"),
            "PidMode": _namespace(action, action.pid_namespace, _PID_MODES, "PID namespace"),
            "Binds": binds,
            "Mounts": mounts,
            "LogConfig": {"Type": "json-file", "Config": {"max-size": _LOG_LIMIT}},
            "RestartPolicy": {"Name": "no"},
            **_privileges(capability_mask),
        },
    }
    if action.cmd:
        body["Entrypoint"] = [action.cmd]
    if action.args:
        body["Cmd"] = list(action.args)
    return body


def failure_archive() -> bytes:
    """Return a tar archive of /tinkerbell with the two empty failure files, writable by any user of the container."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        directory = tarfile.TarInfo("tinkerbell")
        directory.type, directory.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(directory)
        for name in FAILURE_FILES:
            file = tarfile.TarInfo(f"tinkerbell/{name}")
            file.mode = 0o666
            archive.addfile(file)
        end = archive.offset + 2 * tarfile.BLOCKSIZE
    # Without padding after the end mark: Podman's helper stops reading there, and the engine's write would fail.
    return buffer.getvalue()[:end]


def text_of_archive(head: bytes) -> str:
    """Return the text of the one file in a tar archive that begins with `head`; "" if it is no file or no archive."""
    try:
        with tarfile.open(fileobj=io.BytesIO(head), mode="r:") as archive:
            member = archive.next()
            if member is None or not member.isreg():
                return ""  # a link, perhaps to a file of the machine
            begin = member.offset_data
            return head[begin : begin + min(max(member.size, 0), 2 * MESSAGE_LIMIT_BYTES)].decode(errors="replace")
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError):
        return ""


def _privileges(capability_mask: int | None) -> dict[str, Any]:
    if capability_mask is None:
        return {"Privileged": True}
    lacking = [
        name for number, name in enumerate(CAPABILITIES[:_ENGINE_CAPABILITIES]) if not capability_mask & (1 << number)
    ]
    return {
        "Privileged": False,
        "CapAdd": ["ALL"],
        "CapDrop": lacking,
        "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined", "label=disable"],
        "MaskedPaths": [],
        "ReadonlyPaths": [],
        "DeviceCgroupRules": ["a *:* rwm"],
    }


def _namespace(action: RenderedAction, wanted: str, known: Mapping[str, str], field: str) -> str:
    """Return the engine's name of a namespace. Raises ActionError for a namespace that engines can't join."""
    if wanted in known:
        return known[wanted]
    names = [f'"{name}"' for name in known if name]
    message = f"{field}: {wanted!r} is neither {', '.join(names[:-1])} nor {names[-1]}"
    why = f"{message}; a container engine joins no other (--runtime runc does)"
    raise ActionError(Reason.INVALID_ACTION, f"action {action.name}: {why}")


# --- Engine ---
#
# Finds the engine's socket, and makes the calls that aiodocker lacks or that it does not make in bounded memory.
#
# Each operation opens a client of its own: nothing has to be closed at the end of the agent, and a restarted engine
# needs no reconnection. Answers that an action can make large (its output, a failure file, the engine's report of a
# pull) are read in pieces, as bytes.
#
# Source: Docker Engine API 1.41 (ContainerLogs, ContainerArchive, ImageCreate, SystemPing).


DEFAULT_SOCKETS = (Path("/run/docker.sock"), Path("/run/podman/podman.sock"))

EngineFailure = (DockerError, aiohttp.ClientError, OSError, TimeoutError)
"""The errors of a call to an engine: it refused, or it can't be reached."""

_OLDEST_API = "v1.40"
"""The API version of Docker 19.03 and Podman 3, used if an engine does not report its own."""

_CALL_SECONDS = 120.0
"""Timeout of calls that don't wait for an event. Creating a container on a slow disk takes long."""

_PUT_ATTEMPTS = 3
_FILE_HEAD_BYTES = 16 * 1024
_LINE_LIMIT_BYTES = 1024 * 1024
_COPY_BYTES = 64 * 1024
_FOR_EVER = aiohttp.ClientTimeout(total=None, sock_connect=10)


class EngineError(AgentError):
    """The engine reported `message` in the middle of an answer that had begun well."""


def find_socket(docker_host: str) -> Path:
    """Return the socket `docker_host` (a path or unix:// URL), or that of an engine here. Raises AgentSettingsError."""
    if not docker_host:
        for path in DEFAULT_SOCKETS:
            if path.exists():
                return path
        tried = " nor ".join(str(path) for path in DEFAULT_SOCKETS)
        raise AgentSettingsError(f"docker host: there is neither {tried}; start the engine or give --docker-host")
    path = Path(docker_host.removeprefix("unix://"))
    if not path.is_absolute():
        raise AgentSettingsError(f"docker host: {docker_host!r} is neither a path nor unix:// and a path")
    return path


class Engine:
    """The engine behind `socket`; its kind and the version of its API are known after `connect`."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.name = "the engine"
        self.is_podman = False
        self._api_version = _OLDEST_API

    async def connect(self) -> None:
        """Find out the kind and API version of the engine. Raises EngineFailure."""
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


async def feed_past_output(
    docker: Docker, container_id: str, feed: Callable[[bytes], None], lines: int, since: int
) -> None:
    """Feed the last `lines` of a container's output, none from before the Unix time `since`. Raises EngineFailure."""
    # Not for later output: when their log is rotated, Podman 4.3 loses some and Docker 20.10 repeats some.
    params = {"stdout": "1", "stderr": "1", "tail": str(lines), "since": str(since)}
    async with _request(docker, "GET", f"containers/{container_id}/logs", params) as response:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                (left,) = struct.unpack(">xxxxL", await response.content.readexactly(8))
                while left and (chunk := await response.content.read(min(left, _COPY_BYTES))):
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
            # Podman 4.3 lets a helper read it, which may end before everything is written.
            if "broken pipe" not in str(error.message) or attempt == _PUT_ATTEMPTS - 1:
                raise


async def read_file(docker: Docker, container_id: str, path: str) -> str:
    """Return the beginning of a small file of the container; "" if there is none. Raises EngineFailure."""
    head = b""
    try:
        async with _request(docker, "GET", f"containers/{container_id}/archive", {"path": path}) as response:
            while len(head) < _FILE_HEAD_BYTES and (chunk := await response.content.read(_FILE_HEAD_BYTES)):
                head += chunk
            response.close()  # the file may be as large as the disk
    except DockerError as error:
        if error.status == 404:
            return ""
        raise
    return text_of_archive(head)


async def pull_reports(
    docker: Docker, path: str, params: Mapping[str, str], headers: Mapping[str, str]
) -> AsyncIterator[dict[str, Any]]:
    """Yield the engine's progress reports of a pull, one JSON object each.

    Raises EngineError for a failure that the engine reports, and EngineFailure, also if the answer breaks off.
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
    """Yield an answer with a status below 400. Raises DockerError for others."""
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


# --- Pulls ---
#
# Pulls images into a container engine: which failures pass, and progress for the action's output.
#
# The engine fetches and unpacks. The agent repeats the request with growing pauses if a network or registry failure may
# pass. Credentials are only sent with a pull from the registry that they belong to. Podman receives the insecure
# registries with each pull; Docker only knows those of its own configuration (`insecure-registries`).
#
# An image that cannot be pulled, but that the engine has (an OSIE may bring it along), is used as it is. When there is
# no room, the images that this agent pulled before are removed and the pull is tried once more: a Workflow's earlier
# actions have ended, and a later one pulls its image again.


_NO_SPACE = ("no space left on device", "disk quota exceeded")
_UNAUTHORIZED = ("unauthorized", "authentication required", "no basic auth credentials")
_FINAL = (
    "manifest unknown", "not found", "name unknown", "repository does not exist", *_UNAUTHORIZED, "access denied",
    "denied:", "forbidden", "http response to https client", "x509:", "no matching manifest", "no image found in",
    "invalid reference", "unsupported", *_NO_SPACE,
)  # fmt: skip
"""Parts of engines' messages about failures that do not pass by waiting."""

_LAYER_LIMIT = 1024


class Puller:
    """Pulls images into `engine`, and removes earlier ones when there is no room."""

    def __init__(
        self, engine: Engine, registries: Registries, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._engine = engine
        self._registries = registries
        self._sleep = sleep
        self._pulled: set[str] = set()

    async def pull(self, image: str, progress: PullProgress) -> None:
        """Pull `image` in the registry's current version. Raises ActionError."""
        reference, name = parse(image), image_name(image)
        try:
            async with self._engine.open() as docker:
                if reference.digest and await _is_here(docker, name):
                    progress.note("is here already")
                    return
                try:
                    await self._attempts(docker, reference, name, progress)
                except (*EngineFailure, EngineError) as error:
                    if not await _is_here(docker, name):
                        raise
                    progress.note(f"cannot be pulled ({self._explain(error, reference)}); the engine's copy is used")
            self._pulled.add(name)
        except (*EngineFailure, EngineError) as error:
            message = f"image {image}: {self._explain(error, reference)}"
            raise ActionError(Reason.IMAGE_PULL_FAILED, message) from error

    async def _attempts(self, docker: Docker, reference: Reference, name: str, progress: PullProgress) -> None:
        backoff = retry_backoff()
        for number in range(1, ATTEMPTS + 1):
            try:
                await self._once(docker, reference, name, progress)
            except (*EngineFailure, EngineError) as error:
                reason = describe(error)
                if any(sign in reason.lower() for sign in _NO_SPACE) and await self._make_room(docker, name):
                    progress.note("no room; the images of earlier actions were removed, trying again")
                    continue
                if number == ATTEMPTS or any(sign in reason.lower() for sign in _FINAL):
                    raise
            else:
                return
            progress.note(f"{reason}; trying again")
            await self._sleep(backoff.next())

    async def _once(self, docker: Docker, reference: Reference, name: str, progress: PullProgress) -> None:
        path, params = "images/create", {"fromImage": name}
        if self._engine.is_podman and self._registries.is_insecure(reference.host):
            # Podman's own API; its Docker-compatible one has no word for this.
            path, params = "/v4.0.0/libpod/images/pull", {"reference": name, "tlsVerify": "false"}
        headers = {}
        if (own := self._registries.credentials_for(reference)) is not None:
            login = {"username": own.username, "password": own.password, "serveraddress": reference.host}
            headers["X-Registry-Auth"] = base64.urlsafe_b64encode(json.dumps(login).encode()).decode()
        layers: dict[str, tuple[int, int]] = {}
        complete = False
        progress.waits_for(reference.host)
        async for report in pull_reports(docker, path, params, headers):
            complete = _is_last(report)
            if _count(report, layers):
                done, total = (sum(counts) for counts in zip(*layers.values(), strict=True))
                progress.bytes(done, total)
                if total and done >= total:
                    progress.waits_for("")  # the rest is for the engine to unpack
        if not complete:
            raise EngineError("the engine stopped in the middle of the pull")

    async def _make_room(self, docker: Docker, wanted: str) -> bool:
        """Remove the other images that were pulled. Return True if there were any."""
        others = self._pulled - {wanted}
        for name in others:
            self._pulled.discard(name)
            try:
                await docker.images.delete(name)
            except EngineFailure as error:
                log.info("image %s: cannot be removed: %s", name, describe(error))
        return bool(others)

    def _explain(self, error: BaseException, reference: Reference) -> str:
        reason = describe(error)
        if "http response to https client" in reason.lower():
            where = "--insecure-registry" if self._engine.is_podman else "insecure-registries of the Docker daemon"
            return f"{reason} ({reference.host} speaks plain HTTP; name it in {where})"
        if "x509:" in reason.lower():
            place = "/etc/containers" if self._engine.is_podman else "/etc/docker"
            return f"{reason} (put the certificate that signs it into {place}/certs.d/{reference.host}/ca.crt)"
        is_unauthorized = any(sign in reason.lower() for sign in _UNAUTHORIZED)
        if is_unauthorized and self._registries.credentials_for(reference) is None:
            return f"{reason} (if it is private, {how_to_log_in(reference, self._registries)})"
        return reason


def describe(error: BaseException) -> str:
    """Return the message of an error of the engine or of the connection to it."""
    if isinstance(error, DockerError):
        return one_line(str(error.message))
    return one_line(str(error)) or type(error).__name__


async def _is_here(docker: Docker, name: str) -> bool:
    try:
        await docker.images.inspect(name)
    except EngineFailure:
        return False
    return True


def _count(report: Mapping[str, Any], layers: dict[str, tuple[int, int]]) -> bool:
    """Record a report about the bytes of a layer. Return True if it contained any."""
    layer, detail = report.get("id"), report.get("progressDetail")
    if not isinstance(layer, str) or (layer not in layers and len(layers) >= _LAYER_LIMIT):
        return False
    if report.get("status") == "Downloading" and isinstance(detail, dict):
        done, total = detail.get("current"), detail.get("total")
        if isinstance(done, int) and isinstance(total, int) and 0 <= done <= total:
            layers[layer] = (done, total)
            return True
    if report.get("status") in ("Download complete", "Pull complete") and layer in layers:
        total = layers[layer][1]
        layers[layer] = (total, total)
        return True
    return False


def _is_last(report: Mapping[str, Any]) -> bool:
    """Return True for an engine's last report of a pull."""
    status = report.get("status")
    # Docker ends with "Status: ...", Podman with the image's id alone.
    if isinstance(status, str) and status.startswith("Status: "):
        return True
    return isinstance(report.get("id"), str) and (
        isinstance(report.get("images"), list) or status in ("Download complete", "Pull complete", None)
    )


# --- Runtime ---
#
# Actions in containers of Docker or Podman.
#
# The container is created with its failure files, started, and waited for; its output is followed meanwhile. The engine
# knows how the container ended: a restarted agent finds it by its labels and takes over (`resume`). After the action
# its container is removed, with its anonymous volumes and the failure files in it. Named volumes and pulled images stay
# for the next action.
#
# An engine may be restarted during an action (it keeps containers, or ends them and reports that): calls are repeated
# for a minute before the action fails.


RECONNECT_SECONDS = 60.0
"""Maximum seconds without the engine: at the agent's start (the OSIE starts both at once), and while an action runs."""

_INVALID = ("no command or entrypoint", "unable to find user", "unable to find group")
"""Signs of an invalid action or image, which engines answer with 500."""

_PAUSE_SECONDS = 0.5
_STOP_PULL_SECONDS = 2.0
_KILL_SECONDS = 10.0
_DRAIN_SECONDS = 5.0
_PAST_LINES = 100
"""Number of lines of earlier output that are read again: enough for a failure message."""


class DockerRuntime:
    """A `protocol.Runtime` that runs actions in the engine at `docker_host`, as the agent `agent_id`."""

    def __init__(
        self,
        docker_host: str,
        agent_id: str,
        registries: Registries,
        *,
        host: ContainerHost | None = None,
        grace_seconds: float = STOP_GRACE_SECONDS,
        reconnect_seconds: float = RECONNECT_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._docker_host = docker_host
        self._agent_id = agent_id
        self._registries = registries
        self._host = host or ContainerHost.this()
        self._grace_seconds = grace_seconds
        self._reconnect_seconds = reconnect_seconds
        self._sleep = sleep
        self._engine: Engine
        self._puller: Puller
        self._capability_mask: int | None = None

    async def prepare(self, held: str = "") -> None:
        """Find the engine; remove the containers of an earlier agent, except that of the action `held`."""
        await self._connect()
        self._puller = Puller(self._engine, self._registries, sleep=self._sleep)
        async with self._engine.open() as docker:
            try:
                for container in await self._containers(docker):
                    if container["Labels"].get(LABEL_ACTION) != held:
                        log.warning("removing the container %s that an earlier agent has left", container.id)
                        await self._remove(container)
            except EngineFailure as error:
                raise AgentSettingsError(f"docker host: {self._engine.socket}: {describe(error)}") from error

    async def pull(self, image: str, stop: asyncio.Event) -> None:
        progress = PullProgress(image, thread_safe_sink())
        work = asyncio.create_task(self._puller.pull(image, progress))
        silences = asyncio.create_task(progress.report_silences())
        try:
            if await done_before(work, stop):
                work.result()
        finally:
            silences.cancel()
            work.cancel()  # the engine stops when the connection closes
            await asyncio.wait({work}, timeout=_STOP_PULL_SECONDS)

    def check(self, action: RenderedAction) -> None:
        # The sources of volumes are on the engine's machine, so they are not checked.
        container_request(action, self._agent_id, self._capability_mask)

    async def run(self, action: RenderedAction, stop: asyncio.Event) -> RunResult:
        async with self._engine.open() as docker:
            container, attached = await self._start(docker, action, stop)
            return await self._supervise(docker, container, action, stop, attached)

    async def resume(self, action: RenderedAction, stop: asyncio.Event) -> RunResult | None:
        async with self._engine.open() as docker:
            try:
                found = await self._containers(docker, action.id)
                states = [(await container.show())["State"]["Status"] for container in found]
            except EngineFailure as error:
                raise self._failed(action, error) from error
            begun = [item for item, state in zip(found, states, strict=True) if state not in ("created", "configured")]
            for container in found:
                if container not in begun[:1]:
                    await self._remove(container)
            if not begun:
                return None
            log.info("action %s: its container %s is still there", action.name, begun[0].id[:12])
            return await self._supervise(docker, begun[0], action, stop)

    async def _connect(self) -> None:
        deadline = asyncio.get_running_loop().time() + self._reconnect_seconds
        while True:
            try:
                self._engine = Engine(find_socket(self._docker_host))
                await self._engine.connect()
                break
            except (*EngineFailure, AgentSettingsError) as error:
                if asyncio.get_running_loop().time() >= deadline:
                    if isinstance(error, AgentSettingsError):
                        raise
                    raise AgentSettingsError(f"docker host: {self._engine.socket}: {describe(error)}") from error
            await self._sleep(_PAUSE_SECONDS)
        log.info("actions run in %s at %s", self._engine.name, self._engine.socket)

    async def _containers(self, docker: Docker, action_id: str = "") -> list[DockerContainer]:
        labels = [f"{LABEL_AGENT}={self._agent_id}"]
        if action_id:
            labels.append(f"{LABEL_ACTION}={action_id}")
        return await docker.containers.list(all="true", filters=json.dumps({"label": labels}))

    async def _start(
        self, docker: Docker, action: RenderedAction, stop: asyncio.Event
    ) -> tuple[DockerContainer, Stream]:
        """Create a container and start it unless `stop` is set; return it and its output. Raises ActionError."""
        name = re.sub(r"[^a-zA-Z0-9_.-]", "-", action.name)[:40]
        body = container_request(action, self._agent_id, self._capability_mask)
        container, attached = None, None
        try:
            container = await docker.containers.create(body, name=f"tinkedge-{name}-{secrets.token_hex(4)}")
            await put_archive(docker, container.id, failure_archive())
            attached = await self._attach(container)
            if not stop.is_set():
                await container.start()
        except BaseException as error:
            if attached is not None:
                await attached.close()
            if container is not None:
                await asyncio.shield(self._remove(container))
            if not isinstance(error, EngineFailure):
                raise
            # An engine in a container may lack capabilities; the action has not run yet.
            if self._capability_mask is None and "unable to apply caps" in describe(error):
                self._capability_mask = self._host.capability_mask
                log.warning("%s cannot make privileged containers; actions get what it has", self._engine.name)
                return await self._start(docker, action, stop)
            raise self._failed(action, error) from error
        return container, attached

    async def _attach(self, container: DockerContainer) -> Stream:
        return await container.attach(stdout=True, stderr=True).__aenter__()

    async def _supervise(
        self,
        docker: Docker,
        container: DockerContainer,
        action: RenderedAction,
        stop: asyncio.Event,
        attached: Stream | None = None,
    ) -> RunResult:
        """Wait for the end of a started container, or stop it; then remove it."""
        output = Output(action.name)
        following = asyncio.create_task(self._follow(docker, container, output, attached))
        try:
            if stop.is_set() and (await container.show())["State"]["Status"] in ("created", "configured"):
                return RunResult(1, Reason.CANCELED, "stopped before it began")
            code = await self._end_of(container, stop)
            await asyncio.wait({following}, timeout=_DRAIN_SECONDS)
            output.finish()
            if code == 0:
                return RunResult(0)
            files = (read_file(docker, container.id, f"/tinkerbell/{name}") for name in FAILURE_FILES)
            reason, message = await asyncio.gather(*files)
            return judge(code, reason, message, output.tail)
        except EngineFailure as error:
            raise self._failed(action, error) from error
        finally:
            following.cancel()
            await asyncio.wait({following})
            await asyncio.shield(self._remove(container))

    async def _end_of(self, container: DockerContainer, stop: asyncio.Event) -> int:
        """Return the exit code, after TERM, a grace period and KILL if `stop` is set. Raises EngineFailure."""
        ended = asyncio.create_task(self._exit_code(container))
        try:
            await done_before(ended, stop)
            for signal, seconds in (("SIGTERM", self._grace_seconds), ("SIGKILL", _KILL_SECONDS)):
                if ended.done():
                    break
                try:
                    await container.kill(signal=signal)
                except EngineFailure as error:  # it has just ended
                    log.info("container %s: %s: %s", container.id[:12], signal, describe(error))
                await asyncio.wait({ended}, timeout=seconds)
            if not ended.done():
                log.error("container %s does not end after SIGKILL", container.id[:12])
                return 137
            return ended.result()
        finally:
            ended.cancel()

    async def _exit_code(self, container: DockerContainer) -> int:
        """Wait for the end, also while the engine is away for a limited time. Raises EngineFailure."""
        clock = asyncio.get_running_loop().time
        away_since: float | None = None
        while True:
            try:
                return int((await container.wait())["StatusCode"])
            except EngineFailure as error:
                if isinstance(error, DockerError) and error.status == 404:
                    raise
                away_since = away_since if away_since is not None else clock()
                if clock() - away_since >= self._reconnect_seconds:
                    raise
                log.info("waiting for container %s: %s; trying again", container.id[:12], describe(error))
            await self._sleep(_PAUSE_SECONDS)
            with contextlib.suppress(*EngineFailure):
                await container.show()
                away_since = None

    async def _follow(
        self, docker: Docker, container: DockerContainer, output: Output, attached: Stream | None
    ) -> None:
        """Feed `output` until the container ends.

        Begin with the engine's log if nothing is `attached`, because the container runs already, or after the engine
        was away.
        """
        since = 0
        while True:
            try:
                if attached is None:
                    if (await container.show())["State"]["Running"]:
                        attached = await self._attach(container)
                    # The log is read after attaching: a line of this moment may come twice, and none is lost.
                    await feed_past_output(docker, container.id, output.feed, _PAST_LINES, since)
                    if attached is None:
                        return
                while (message := await attached.read_out()) is not None:
                    output.feed(message.data)
                since = int(time.time())
                await container.show()  # an engine that answers has sent everything
            except EngineFailure as error:
                log.debug("output of container %s: %s", container.id[:12], describe(error))
            else:
                return
            finally:
                if attached is not None:
                    await attached.close()
                    attached = None
            await self._sleep(_PAUSE_SECONDS)

    async def _remove(self, container: DockerContainer) -> None:
        """Kill and remove `container`, if it exists, and its anonymous volumes."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._reconnect_seconds
        while True:
            try:
                # Before `delete`, which Podman begins with TERM and ten seconds of grace.
                with contextlib.suppress(DockerError):  # it does not run
                    await container.kill(signal="SIGKILL")
                await container.delete(force=True, v=True)
            except EngineFailure as error:
                if isinstance(error, DockerError) and error.status == 404:
                    return
                if clock() >= deadline:
                    log.error("container %s cannot be removed: %s", container.id[:12], describe(error))
                    return
            else:
                return
            await self._sleep(_PAUSE_SECONDS)

    def _failed(self, action: RenderedAction, error: BaseException) -> ActionError:
        message = describe(error)
        invalid = isinstance(error, DockerError) and error.status == 400 and "OCI runtime" not in error.message
        invalid = invalid or any(sign in message for sign in _INVALID)
        reason = Reason.INVALID_ACTION if invalid else Reason.RUNTIME_ERROR
        return ActionError(reason, f"action {action.name}: {self._engine.name}: {message}")

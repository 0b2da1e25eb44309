"""Images into a container engine: what is asked for, which failures pass, and progress for the action's output.

The engine fetches and unpacks; here it is asked again when a network or registry failed in a way that may pass, with
growing pauses. Credentials are sent along with a pull from the one registry that they belong to. Insecure registries:
Podman is told with each pull; Docker only knows those of its own configuration (`insecure-registries`), and says so.

An image that cannot be pulled, but that the engine has (an OSIE may bring it along), is used as it is. When there is no
room, the images that this agent pulled before are removed and the pull is tried once more: a Workflow's earlier actions
have ended, and a later one pulls its image again.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiodocker import Docker, DockerError

from tink.agent.images import ATTEMPTS, Reference, Registries, how_to_log_in, parse, retry_backoff
from tink.agent.model import ActionError, Reason
from tink.agent.output import PullProgress
from tink.agent.runtimes.docker.engine import Engine, EngineError, EngineFailure, pull_reports
from tink.agent.runtimes.docker.request import image_name
from tink.agent.runtimes.failure import one_line

log = logging.getLogger(__name__)

_NO_SPACE = ("no space left on device", "disk quota exceeded")
_UNAUTHORIZED = ("unauthorized", "authentication required", "no basic auth credentials")
_FINAL = (
    "manifest unknown", "not found", "name unknown", "repository does not exist", *_UNAUTHORIZED, "access denied",
    "denied:", "forbidden", "http response to https client", "x509:", "no matching manifest", "no image found in",
    "invalid reference", "unsupported", *_NO_SPACE,
)  # fmt: skip
"""Signs, in what an engine says, of failures that do not pass by waiting."""

_LAYER_LIMIT = 1024


class Puller:
    """Brings images into `engine`. Remembers which, to remove them when there is no room."""

    def __init__(
        self, engine: Engine, registries: Registries, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._engine = engine
        self._registries = registries
        self._sleep = sleep
        self._pulled: set[str] = set()

    async def pull(self, image: str, progress: PullProgress) -> None:
        """Have `image` as the registry has it now. Raises ActionError."""
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
        layers: dict[str, tuple[int, int]] = {}
        complete = False
        progress.waits_for(reference.host)
        async for report in pull_reports(docker, path, params, self._authorization(reference)):
            complete = _is_last(report)
            if _count(report, layers):
                done, total = (sum(counts) for counts in zip(*layers.values(), strict=True))
                progress.bytes(done, total)
                if total and done >= total:
                    progress.waits_for("")  # the rest is for the engine to unpack
        if not complete:
            raise EngineError("the engine stopped in the middle of the pull")

    async def _make_room(self, docker: Docker, wanted: str) -> bool:
        """Remove the other images that were pulled; whether there were any."""
        others = self._pulled - {wanted}
        for name in others:
            self._pulled.discard(name)
            try:
                await docker.images.delete(name)
            except EngineFailure as error:
                log.info("image %s: cannot be removed: %s", name, describe(error))
        return bool(others)

    def _authorization(self, reference: Reference) -> Mapping[str, str]:
        credentials = self._registries.credentials_for(reference)
        if credentials is None:
            return {}
        login = {"username": credentials.username, "password": credentials.password, "serveraddress": reference.host}
        return {"X-Registry-Auth": base64.urlsafe_b64encode(json.dumps(login).encode()).decode()}

    def _explain(self, error: BaseException, reference: Reference) -> str:
        reason = describe(error)
        if "http response to https client" in reason.lower():
            where = "--insecure-registry" if self._engine.is_podman else "insecure-registries of the Docker daemon"
            return f"{reason} ({reference.host} speaks plain HTTP; name it in {where})"
        if "x509:" in reason.lower():
            place = "/etc/containers" if self._engine.is_podman else "/etc/docker"
            return f"{reason} (put the certificate that signs it into {place}/certs.d/{reference.host}/ca.crt)"
        if (
            any(sign in reason.lower() for sign in _UNAUTHORIZED)
            and self._registries.credentials_for(reference) is None
        ):
            return f"{reason} (if it is private, {how_to_log_in(reference, self._registries)})"
        return reason


def describe(error: BaseException) -> str:
    """What an engine, or the way to it, said."""
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
    """Take what `report` says of the bytes of a layer; whether it said anything."""
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
    """Docker ends with "Status: ..."; Podman with the image's id, and with nothing else but it."""
    status = report.get("status")
    if isinstance(status, str) and status.startswith("Status: "):
        return True
    return isinstance(report.get("id"), str) and (
        isinstance(report.get("images"), list) or status in ("Download complete", "Pull complete", None)
    )

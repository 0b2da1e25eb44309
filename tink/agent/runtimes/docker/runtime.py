"""Actions in containers of Docker or Podman.

The container is made, given its failure files, started, and waited for; its output is followed meanwhile. Everything
that is needed to know how it ended is in the engine: an agent that was killed and started again finds the container by
its labels and takes over (`resume`). When an action is over, its container goes, with its anonymous volumes and, as
they were files in it, its failure files. Named volumes and pulled images stay for the next action.

An engine may be restarted under a running action (it keeps containers, or ends them and says so): calls are repeated
for a minute before the action fails.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable

from aiodocker import Docker, DockerError
from aiodocker.containers import DockerContainer
from aiodocker.stream import Stream

from tink.agent.images import Registries
from tink.agent.model import Action, ActionError, Reason, RunResult, SettingsError
from tink.agent.output import Output, PullProgress, thread_safe_sink
from tink.agent.runtimes.docker.engine import (
    Engine,
    EngineFailure,
    feed_live_output,
    feed_past_output,
    find_socket,
    put_archive,
    read_file,
)
from tink.agent.runtimes.docker.pull import Puller, describe
from tink.agent.runtimes.docker.request import (
    FAILURE_FILES,
    LABEL_ACTION,
    LABEL_AGENT,
    container_request,
    failure_archive,
)
from tink.agent.runtimes.failure import judge
from tink.agent.runtimes.host import Host
from tink.agent.runtimes.protocol import STOP_GRACE_SECONDS
from tink.waiting import done_before

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 60.0
"""How long an engine may be away: when the agent starts (the OSIE starts both at once) and while an action runs."""

_INVALID = ("no command or entrypoint", "unable to find user", "unable to find group")
"""Signs of an action, or an image, that cannot be; engines answer with 500 to these."""

_PAUSE_SECONDS = 0.5
_STOP_PULL_SECONDS = 2.0
_KILL_SECONDS = 10.0
_DRAIN_SECONDS = 5.0
_PAST_LINES = 100
"""Of the output that an agent before may have seen already: enough for a failure message."""


class DockerRuntime:
    """A `protocol.Runtime` that runs actions in the engine at `docker_host`, as the agent `agent_id`."""

    def __init__(
        self,
        docker_host: str,
        agent_id: str,
        registries: Registries,
        *,
        host: Host | None = None,
        grace_seconds: float = STOP_GRACE_SECONDS,
        reconnect_seconds: float = RECONNECT_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._docker_host = docker_host
        self._agent_id = agent_id
        self._registries = registries
        self._host = host or Host.this()
        self._grace_seconds = grace_seconds
        self._reconnect_seconds = reconnect_seconds
        self._sleep = sleep
        self._engine: Engine
        self._puller: Puller
        self._capability_mask: int | None = None

    async def prepare(self, held: str = "") -> None:
        """Find the engine; remove the containers of this agent's earlier life, but that of the action `held`."""
        await self._connect()
        self._puller = Puller(self._engine, self._registries, sleep=self._sleep)
        async with self._engine.open() as docker:
            try:
                for container in await self._containers(docker):
                    if container["Labels"].get(LABEL_ACTION) != held:
                        log.warning("removing the container %s that an earlier agent has left", container.id)
                        await self._remove(container)
            except EngineFailure as error:
                raise SettingsError(f"docker host: {self._engine.socket}: {describe(error)}") from error

    async def pull(self, image: str, stop: asyncio.Event) -> None:
        progress = PullProgress(image, thread_safe_sink())
        work = asyncio.create_task(self._puller.pull(image, progress))
        silences = asyncio.create_task(progress.tell_silences())
        try:
            if await done_before(work, stop):
                work.result()
        finally:
            silences.cancel()
            work.cancel()  # hanging up makes the engine stop
            await asyncio.wait({work}, timeout=_STOP_PULL_SECONDS)

    def check(self, action: Action) -> None:
        """Without asking the engine, on whose machine the sources of volumes are."""
        container_request(action, self._agent_id, self._capability_mask)

    async def run(self, action: Action, stop: asyncio.Event) -> RunResult:
        async with self._engine.open() as docker:
            container, attached = await self._start(docker, action, stop)
            return await self._supervise(docker, container, action, stop, attached)

    async def resume(self, action: Action, stop: asyncio.Event) -> RunResult | None:
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
            except (*EngineFailure, SettingsError) as error:
                if asyncio.get_running_loop().time() >= deadline:
                    if isinstance(error, SettingsError):
                        raise
                    raise SettingsError(f"docker host: {self._engine.socket}: {describe(error)}") from error
            await self._sleep(_PAUSE_SECONDS)
        log.info("actions run in %s at %s", self._engine.name, self._engine.socket)

    async def _containers(self, docker: Docker, action_id: str = "") -> list[DockerContainer]:
        labels = [f"{LABEL_AGENT}={self._agent_id}"]
        if action_id:
            labels.append(f"{LABEL_ACTION}={action_id}")
        return await docker.containers.list(all="true", filters=json.dumps({"label": labels}))

    async def _start(self, docker: Docker, action: Action, stop: asyncio.Event) -> tuple[DockerContainer, Stream]:
        """The container of `action` and its output, started unless `stop` is set. Raises ActionError, leaving none."""
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
            # An engine that runs in a container itself may lack capabilities; nothing of the action has run yet.
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
        action: Action,
        stop: asyncio.Event,
        attached: Stream | None = None,
    ) -> RunResult:
        """Wait for the end of a container that was started, or stop it; then remove it."""
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
        """The container's exit code, after TERM, grace and KILL when `stop` is set. Raises EngineFailure."""
        ended = asyncio.create_task(self._exit_code(container))
        try:
            await done_before(ended, stop)
            for signal, seconds in (("SIGTERM", self._grace_seconds), ("SIGKILL", _KILL_SECONDS)):
                if ended.done():
                    break
                await self._signal(container, signal)
                await asyncio.wait({ended}, timeout=seconds)
            if not ended.done():
                log.error("container %s does not end after SIGKILL", container.id[:12])
                return 137
            return ended.result()
        finally:
            ended.cancel()

    async def _exit_code(self, container: DockerContainer) -> int:
        """Wait for the end; an engine that is away for a while is waited for, too."""
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
            if await self._answers(container):
                away_since = None

    async def _answers(self, container: DockerContainer) -> bool:
        try:
            await container.show()
        except EngineFailure:
            return False
        return True

    async def _signal(self, container: DockerContainer, signal: str) -> None:
        try:
            await container.kill(signal=signal)
        except EngineFailure as error:
            log.info("container %s: %s: %s", container.id[:12], signal, describe(error))  # it has just ended

    async def _follow(
        self, docker: Docker, container: DockerContainer, output: Output, attached: Stream | None
    ) -> None:
        """Feed `output` until the container ends.

        Where nothing is `attached`, as the container runs already, and when an engine that went away is back: begin
        with what it has kept since.
        """
        since = 0
        while True:
            try:
                if attached is None:
                    await feed_past_output(docker, container.id, output.feed, _PAST_LINES, since)
                    if not (await container.show())["State"]["Running"]:
                        return
                    attached = await self._attach(container)
                await feed_live_output(attached, output.feed)
                since = int(time.time())
                await container.show()  # an engine that answers has closed its end because there is no more
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
        """Kill and remove `container` and its anonymous volumes, if it is still there."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._reconnect_seconds
        while True:
            try:
                await self._kill(container)
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

    async def _kill(self, container: DockerContainer) -> None:
        try:
            # Before `delete`, which Podman begins with TERM and ten seconds of grace.
            await container.kill(signal="SIGKILL")
        except DockerError:
            return  # it does not run

    def _failed(self, action: Action, error: BaseException) -> ActionError:
        message = describe(error)
        invalid = isinstance(error, DockerError) and error.status == 400 and "OCI runtime" not in error.message
        invalid = invalid or any(sign in message for sign in _INVALID)
        reason = Reason.INVALID_ACTION if invalid else Reason.RUNTIME_ERROR
        return ActionError(reason, f"action {action.name}: {self._engine.name}: {message}")

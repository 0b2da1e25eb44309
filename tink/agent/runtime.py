"""What every way of running actions has in common, and which one is used.

`agent` asks for `pull` and then `run`, one action at a time. Both end early when `stop` is set; a stop is a state,
not a call, so that it cannot slip through between the two. Runtimes: `oci.runc` (runc and crun) for the small OSIE,
`docker` for one with a container engine, `process` for tests and simulation.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Protocol

from tink.agent.model import Action, RunResult, SettingsError
from tink.agent.settings import AgentSettings

if TYPE_CHECKING:
    from tink.agent.oci.registry import Registries

STOP_GRACE_SECONDS = 10.0
"""Between TERM and KILL, when an action is stopped; Docker's default."""


class Runtime(Protocol):
    """Runs actions."""

    async def prepare(self, held: str = "") -> None:
        """Clear away what an agent that died has left behind; called once, before anything is run.

        `held`: the id of the action that `resume` will be asked for next, by the agent's journal; what is left of that
        action stays. Raises SettingsError when the runtime cannot be used on this machine.
        """
        ...

    async def pull(self, image: str, stop: asyncio.Event) -> None:
        """Have `image` ready. Returns early, without it, when `stop` is set. Raises ActionError.

        Tells of its progress in lines at a bounded rate, in the log and to `child.lines_to`.
        """
        ...

    async def run(self, action: Action, stop: asyncio.Event) -> RunResult:
        """Run `action` to its end, or until `stop` is set: TERM, a grace, KILL. Raises ActionError.

        When it returns or raises, nothing of the action is left: no process, no mount, no file.
        """
        ...

    async def resume(self, action: Action, stop: asyncio.Event) -> RunResult | None:
        """Ask back the action that an agent which died was running; called after `prepare`, before anything is run.

        Where the runtime can still know how it ended (an engine kept its container), waits for its end as `run`
        does, with the same `stop`, and leaves nothing of it behind. None when it cannot be known: then nothing of the
        action runs any more either, so that it may be reported as failed. Never starts anything. Raises ActionError.
        """
        ...


def make_runtime(settings: AgentSettings) -> Runtime:
    """The runtime that `settings` ask for. Raises SettingsError when its program is not installed."""
    if settings.runtime == "process":
        from tink.agent.process import ProcessRuntime

        return ProcessRuntime(settings.state_dir)
    if settings.runtime == "docker":
        return _docker_runtime(settings)
    # Imported here because the HTTP and TLS modules cost time on a slow machine, and the process runtime needs none.
    from tink.agent.oci.runc import ContainerRuntime
    from tink.agent.oci.store import ImageStore

    program = shutil.which(settings.runtime)
    if program is None:
        raise SettingsError(f"runtime: the program {settings.runtime} is not on PATH; the OSIE must have it")
    return ContainerRuntime(program, settings.state_dir, ImageStore(settings.state_dir, _registries(settings)))


def _docker_runtime(settings: AgentSettings) -> Runtime:
    try:
        from tink.agent.docker.runtime import DockerRuntime
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"runtime: docker needs the Python package {error.name}: pip install 'tinkedge[docker]'"
        ) from error
    return DockerRuntime(settings.docker_host, settings.agent_id, _registries(settings))


def _registries(settings: AgentSettings) -> Registries:
    from tink.agent.oci.registry import Credentials, Registries

    credentials = None
    if settings.registry_username:
        credentials = Credentials(settings.docker_registry, settings.registry_username, settings.registry_password)
    return Registries(settings.insecure_registries, credentials)

"""What every way of running actions has in common, and which one is used.

`agent` asks for `pull` and then `run`, one action at a time. Both end early when `stop` is set; a stop is a state,
not a call, so that it cannot slip through between the two. Runtimes: `oci.runc` (runc and crun) for the small OSIE,
`process` for tests and simulation.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import Protocol

from tink.agent.model import Action, RunResult, SettingsError
from tink.agent.settings import AgentSettings

STOP_GRACE_SECONDS = 10.0
"""Between TERM and KILL, when an action is stopped; Docker's default."""


class Runtime(Protocol):
    """Runs actions."""

    async def prepare(self) -> None:
        """Clear away what an agent that died has left behind; called once, before anything is run."""
        ...

    async def pull(self, image: str, stop: asyncio.Event) -> None:
        """Have `image` ready. Returns early, without it, when `stop` is set. Raises ActionError."""
        ...

    async def run(self, action: Action, stop: asyncio.Event) -> RunResult:
        """Run `action` to its end, or until `stop` is set: TERM, a grace, KILL. Raises ActionError.

        When it returns or raises, nothing of the action is left: no process, no mount, no file.
        """
        ...


def make_runtime(settings: AgentSettings) -> Runtime:
    """The runtime that `settings` ask for. Raises SettingsError when its program is not installed."""
    if settings.runtime == "process":
        from tink.agent.process import ProcessRuntime

        return ProcessRuntime(settings.state_dir)
    # Imported here because the HTTP and TLS modules cost time on a slow machine, and the process runtime needs none.
    from tink.agent.oci.registry import Credentials, Registries
    from tink.agent.oci.runc import ContainerRuntime
    from tink.agent.oci.store import ImageStore

    program = shutil.which(settings.runtime)
    if program is None:
        raise SettingsError(f"runtime: the program {settings.runtime} is not on PATH; the OSIE must have it")
    credentials = None
    if settings.registry_username:
        credentials = Credentials(settings.docker_registry, settings.registry_username, settings.registry_password)
    registries = Registries(settings.insecure_registries, credentials)
    return ContainerRuntime(program, settings.state_dir, ImageStore(settings.state_dir, registries))

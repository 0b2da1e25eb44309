"""Actions as processes of the host: for tests and for simulated machines; nothing is isolated.

`cmd` is the program and `args` its arguments; the image is only a name. The environment is the action's own plus PATH
and, because there is no container to mount them in, the paths of the failure files: TINKERBELL_FAILURE_REASON and
TINKERBELL_FAILURE_MESSAGE. Volumes and namespaces cannot be had, so an action that asks for them fails.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from tink.agent.model import Action, ActionError, Reason, RunResult
from tink.agent.output import Output
from tink.agent.runtimes.child import run_child
from tink.agent.runtimes.failure import FailureFiles
from tink.agent.runtimes.protocol import STOP_GRACE_SECONDS


class ProcessRuntime:
    """A `protocol.Runtime` without containers. `state_dir` holds the failure files while an action runs."""

    def __init__(self, state_dir: Path, *, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        self._state_dir = state_dir
        self._grace_seconds = grace_seconds

    async def prepare(self, _held: str = "") -> None:
        self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def pull(self, _image: str, _stop: asyncio.Event) -> None:
        """Nothing to fetch."""

    def check(self, action: Action) -> None:
        if not action.cmd:
            raise ActionError(Reason.INVALID_ACTION, f"action {action.name}: cmd: the process runtime needs one")
        # "host" is what a process has anyway.
        if action.volumes or {action.pid_namespace, action.network_namespace} - {"", "host"}:
            message = f"action {action.name}: the process runtime has neither volumes nor namespaces of its own"
            raise ActionError(Reason.INVALID_ACTION, message)

    async def run(self, action: Action, stop: asyncio.Event) -> RunResult:
        self.check(action)
        output = Output(action.name)
        with tempfile.TemporaryDirectory(dir=self._state_dir, prefix="process-") as directory:
            files = FailureFiles(Path(directory))
            files.create()
            env = {
                "PATH": os.environ.get("PATH", os.defpath),
                **action.env,
                "TINKERBELL_FAILURE_REASON": str(files.reason),
                "TINKERBELL_FAILURE_MESSAGE": str(files.message),
            }
            try:
                code = await run_child(
                    [action.cmd, *action.args],
                    output=output,
                    stop=stop,
                    env=env,
                    grace_seconds=self._grace_seconds,
                )
            except OSError as error:
                raise ActionError(
                    Reason.RUNTIME_ERROR, f"action {action.name}: {action.cmd}: {error.strerror}"
                ) from error
            return files.judge(code, output.tail)

    async def resume(self, _action: Action, _stop: asyncio.Event) -> RunResult | None:
        """Nothing is known of a process whose parent has died."""
        return None

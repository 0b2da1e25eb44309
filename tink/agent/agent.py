"""The agent put together: commands in, actions run, events out.

`Agent` carries out what `executor` decides: it starts the runtime for an action, tells it to stop, and puts events
into the spool. `transport` brings the commands and takes the events away. `run` is what `tinkedge agent` calls.

On SIGTERM or SIGINT the running action is stopped and cleared away, and nothing is reported: the machine is going
down, perhaps because an action asked for it. What that means for the workflow is for the server to say when the
machine comes back, or does not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from tink.agent.channel import open_channel
from tink.agent.child import Output, Signals, run_child
from tink.agent.executor import Effect, EndWorkflow, Executor, Publish, RunAction, StopAction
from tink.agent.model import (
    Action,
    ActionError,
    ActionFailed,
    AgentError,
    Command,
    Reason,
    RunResult,
    WorkflowOutcome,
    WorkflowRejected,
)
from tink.agent.process import kill_group, terminate_group
from tink.agent.runtime import Runtime, make_runtime
from tink.agent.settings import AgentSettings
from tink.agent.spool import MemorySpool
from tink.agent.transport import Transport

log = logging.getLogger(__name__)

AFTER_WORKFLOW_TIMEOUT_SECONDS = 300.0
"""An after-workflow command that takes longer is killed: until it ends, the agent takes no new workflow."""


class Agent:
    """Runs workflows with `runtime`, one at a time, and tells of it through `spool`. Belongs to one event loop."""

    def __init__(self, runtime: Runtime, spool: MemorySpool, *, after_workflow: Sequence[str] = ()) -> None:
        self._runtime = runtime
        self._spool = spool
        self._after_workflow = tuple(after_workflow)
        self._executor = Executor(settles=bool(after_workflow))
        self._stop = asyncio.Event()
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_event: asyncio.Future[bool] | None = None

    def handle(self, command: Command) -> None:
        """Take a command of the server."""
        self._carry_out(self._executor.handle(command))

    async def close(self) -> None:
        """Stop what runs, without a report, and wait until nothing of it is left."""
        self._closing.set()
        self._stop.set()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        if self._closing.is_set():
            return
        for effect in effects:
            match effect:
                case Publish(event):
                    if isinstance(event, ActionFailed | WorkflowRejected):
                        log.warning("workflow %s: %s: %s", event.workflow_id, event.reason, event.message)
                    self._last_event = self._spool.append(event)
                case RunAction(workflow_id, action):
                    self._stop = asyncio.Event()
                    self._spawn(self._run(workflow_id, action, self._stop))
                case StopAction():
                    self._stop.set()
                case EndWorkflow(workflow_id, outcome):
                    log.info("workflow %s: %s", workflow_id, outcome)
                    if self._after_workflow and self._last_event is not None:
                        self._spawn(self._settle(workflow_id, outcome, self._last_event))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, workflow_id: str, action: Action, stop: asyncio.Event) -> None:
        log.info("workflow %s: action %s begins: %s", workflow_id, action.name, action.image or action.cmd)
        begun = time.monotonic()
        result = await self._attempt(action, stop)
        seconds = time.monotonic() - begun
        log.info("workflow %s: action %s: exit code %d, %.1f s", workflow_id, action.name, result.exit_code, seconds)
        self._carry_out(self._executor.action_ended(result))

    async def _attempt(self, action: Action, stop: asyncio.Event) -> RunResult:
        try:
            check(action)
            await self._runtime.pull(action.image, stop)
            if stop.is_set():
                return RunResult(1, Reason.CANCELED, "stopped before it began")
            return await self._runtime.run(action, stop)
        except ActionError as error:
            return RunResult(1, error.reason, str(error))
        except Exception as error:  # the workflow must end, whatever is wrong with this machine or with this program
            log.exception("action %s could not be run", action.name)
            return RunResult(1, Reason.RUNTIME_ERROR, f"action {action.name}: {type(error).__name__}: {error}")

    async def _settle(self, workflow_id: str, outcome: WorkflowOutcome, last_event: asyncio.Future[bool]) -> None:
        """Run the after-workflow command once the server has the workflow's last event."""
        closing = asyncio.create_task(self._closing.wait())
        futures: list[asyncio.Future[Any]] = [last_event, closing]
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        if not last_event.done():
            return
        if last_event.result():
            await self._run_after_workflow(workflow_id, outcome)
        else:
            log.warning("workflow %s: the server did not take its last event; no after-workflow command", workflow_id)
        self._executor.settled()

    async def _run_after_workflow(self, workflow_id: str, outcome: WorkflowOutcome) -> None:
        self._stop = stop = asyncio.Event()  # `close` stops this command as it stops an action
        timer = asyncio.get_running_loop().call_later(AFTER_WORKFLOW_TIMEOUT_SECONDS, stop.set)
        try:
            code = await run_child(
                self._after_workflow,
                output=Output("after-workflow"),
                stop=stop,
                signals=Signals(terminate=terminate_group, kill=kill_group),
                env={**os.environ, "TINKEDGE_WORKFLOW_STATE": str(outcome)},
            )
        except OSError as error:
            log.error("workflow %s: after-workflow command %s: %s", workflow_id, self._after_workflow[0], error)
            return
        finally:
            timer.cancel()
        if self._closing.is_set():
            return
        if stop.is_set():
            log.error("workflow %s: the after-workflow command took more than 300 s and was killed", workflow_id)
        elif code != 0:
            log.error("workflow %s: the after-workflow command failed with exit code %d", workflow_id, code)


def check(action: Action) -> None:
    """Raise ActionError for what no runtime could do: a NUL byte in a string, "=" in the name of a variable."""
    texts = {"image": (action.image,), "cmd": (action.cmd,), "args": action.args, "volumes": action.volumes}
    texts["env"] = (*action.env.keys(), *action.env.values())
    texts["namespaces"] = (action.pid_namespace, action.network_namespace)
    for name, values in texts.items():
        if any("\0" in value for value in values):
            raise ActionError(Reason.INVALID_ACTION, f"action {action.name}: {name}: contains a NUL character")
    for key in action.env:
        if not key or "=" in key:
            message = f"action {action.name}: env: {key!r} cannot be the name of a variable"
            raise ActionError(Reason.INVALID_ACTION, message)


async def run_agent(settings: AgentSettings) -> None:
    """Serve the server of `settings` until SIGTERM or SIGINT. Raises SettingsError."""
    asked_to_end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_end.set)
    spool = MemorySpool()
    channel = open_channel(settings.server, settings.tls_roots if settings.tls else None)
    channel.get_state(try_to_connect=True)  # gRPC connects in its own threads while the runtime is made ready
    try:
        runtime = make_runtime(settings)
        await runtime.prepare()
        agent = Agent(runtime, spool, after_workflow=settings.after_workflow)
        transport = Transport(channel, server=settings.server, agent_id=settings.agent_id, spool=spool)
        calls = [asyncio.create_task(transport.commands(agent.handle)), asyncio.create_task(transport.publish())]
        ending = asyncio.create_task(asked_to_end.wait())
        done, _ = await asyncio.wait({*calls, ending}, return_when=asyncio.FIRST_COMPLETED)
        log.info("the agent ends")
        await agent.close()
        for task in (*calls, ending):
            task.cancel()
        for task in done - {ending}:
            task.result()  # a call of the transport only ends by a fault of this program: let it be seen
    finally:
        await channel.close()


def run(settings: AgentSettings) -> int:
    """Run the agent until it is asked to end; the exit code for the command."""
    try:
        asyncio.run(run_agent(settings))
    except AgentError as error:
        log.error("the agent cannot start: %s", error)
        return 1
    return 0

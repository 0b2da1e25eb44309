"""The agent put together: commands in, actions run, events out.

`Agent` carries out what `executor` decides: it starts the runtime for an action, tells it to stop, and puts events
into the spool. `transport` brings the commands and takes the events away. `run` is what `tinkedge agent` calls.

Whatever is to happen is in the `journal` before it happens, so an agent that is killed can be started again: it goes
on with the workflow, and asks the runtime for the action that had begun. An action that nobody knows the end of fails
with the reason AgentRestarted.

On SIGTERM or SIGINT the running action is stopped and cleared away, and nothing is reported: the machine is going
down, perhaps because an action asked for it. What that means for the workflow is for the server to say when the
machine comes back, or does not. When only the agent is started again, the action that was stopped has failed:
AgentRestarted.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio

from tink.agent.connection import Transport, connect, registry_authorities
from tink.agent.executor import Effect, EndWorkflow, Executor, Progress, Publish, RunAction, StopAction
from tink.agent.journal import Journal, Restored, Spool, boot_id
from tink.agent.model import (
    Action,
    ActionError,
    ActionFailed,
    AgentError,
    Command,
    Reason,
    RunResult,
    SettingsError,
    WorkflowOutcome,
    WorkflowRejected,
)
from tink.agent.output import Output, OutputSender
from tink.agent.runtimes import Runtime, make_runtime, run_child
from tink.agent.settings import AgentSettings
from tink.exec_limits import unstartable
from tink.net.proxies import NONE, Proxies
from tink.waiting import done_before

log = logging.getLogger(__name__)

AFTER_WORKFLOW_TIMEOUT_SECONDS = 300.0
"""An after-workflow command that takes longer is killed: until it ends, the agent takes no new workflow."""

ACKNOWLEDGED_WITHIN_SECONDS = 10.0
"""So long a last action, which may take the machine down, waits for the server to know that it has started."""


REBOOT_REQUEST = Path("/worker/reboot")
"""Whoever makes this file asks for a restart of the machine: what HookOS has, and templates were written for."""
REBOOT_LOOK_SECONDS = 1.0
REBOOT_GRACE_SECONDS = 10.0
_SYSRQ = Path("/proc/sysrq-trigger")


def restart_now() -> None:
    """Restart the machine without asking its programs: what they have to write is written. Raises OSError.

    Source: Documentation/admin-guide/sysrq.rst.
    """
    os.sync()
    _SYSRQ.write_text("b")


class Agent:
    """Runs workflows with `runtime`, one at a time, and tells of it through `spool`. Belongs to one event loop.

    `journal` keeps all that on disk; without one the agent begins with nothing each time. `restored` is what the
    journal gave, and what `spool` was made of. `output` takes what actions print.
    """

    def __init__(
        self,
        runtime: Runtime,
        spool: Spool,
        *,
        journal: Journal | None = None,
        restored: Restored | None = None,
        output: OutputSender | None = None,
        after_workflow: Sequence[str] = (),
        proxies: Proxies = NONE,
        reboot_request: Path = REBOOT_REQUEST,
        reboot: Callable[[], None] = restart_now,
    ) -> None:
        """`proxies` are for actions, whose own environment wins.

        `reboot_request` is the file by which actions ask for a restart. `reboot` restarts the machine at once, and
        raises OSError.
        """
        self._reboot_request = reboot_request
        self._reboot = reboot
        self._runtime = runtime
        self._spool = spool
        self._journal = journal
        self._restored = restored or Restored(Progress())
        self._output = output
        self._after_workflow = tuple(after_workflow)
        self._proxies = proxies
        self._executor = Executor(self._restored.progress, after_workflow=bool(after_workflow))
        self._stop = asyncio.Event()
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        spool.on_settle(lambda: self._write(sync=False))

    async def prepare(self) -> None:
        """Have the runtime clear away what an agent that died has left, and go on with its workflow.

        Called once, before `handle`. Raises SettingsError.
        """
        progress = self.progress
        await self._runtime.prepare(progress.action.id if progress.action and progress.begun else "")
        if progress.workflow is not None and progress.action is not None:
            log.info("workflow %s: going on with action %s", progress.workflow.id, progress.action.name)
        self._carry_out(self._executor.resume())

    async def lost_is_reported(self) -> None:
        """Wait until the server has what is known of a workflow that this agent has lost.

        Before that it must not hear that the agent does not hold it: it would judge by less than there is to know.
        """
        if self._restored.lost:
            await asyncio.wait({self._spool.last_of(self._restored.lost)})

    def handle(self, command: Command) -> None:
        """Take a command of the server."""
        if not self._closing.is_set():
            self._carry_out(self._executor.handle(command, backlog=len(self._spool)))

    def held_workflows(self) -> tuple[str, ...]:
        """The workflows that run, or that the server has not heard all of; what matters most comes first."""
        pending = [event for _, event in self._spool.pending]
        pending.sort(key=lambda event: isinstance(event, WorkflowRejected))
        running = self._executor.running
        return tuple(dict.fromkeys([*([running] if running else []), *(event.workflow_id for event in pending)]))

    @property
    def progress(self) -> Progress:
        """Where execution is."""
        return self._executor.progress

    @property
    def is_idle(self) -> bool:
        """True if no action runs, and nothing that follows the end of a workflow."""
        return not self._tasks

    async def close(self) -> None:
        """Stop what runs, without a report, and wait until nothing of it is left."""
        self._closing.set()
        self._stop.set()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _carry_out(self, effects: Sequence[Effect], *, after: asyncio.Future[None] | None = None) -> None:
        """`after`: nothing of it is told before."""
        for effect in effects:
            if isinstance(effect, Publish):
                if isinstance(effect.event, ActionFailed | WorkflowRejected):
                    log.warning(
                        "workflow %s: %s: %s", effect.event.workflow_id, effect.event.reason, effect.event.message
                    )
                self._spool.append(effect.event, after=after)
        self._write()
        for effect in effects:
            match effect:
                case RunAction():
                    self._stop = asyncio.Event()
                    self._spawn(self._run(effect, self._stop, self._spool.last_of(effect.workflow_id)))
                case StopAction():
                    self._stop.set()
                case EndWorkflow(workflow_id, outcome):
                    log.info("workflow %s: %s", workflow_id, outcome)
                    if effect.finally_run is not None or self._after_workflow or self._reboot_request.exists():
                        self._spawn(self._after_last_event(effect, self._spool.last_of(workflow_id)))

    def _write(self, *, sync: bool = True) -> None:
        if self._journal is not None:
            # Not in a thread: nothing may go on before it is on disk, and a record is small.
            self._journal.write(self.progress, self._spool.pending, sync=sync)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, run: RunAction, stop: asyncio.Event, started: asyncio.Future[bool]) -> None:
        """`started` is the fate of the report that the action starts."""
        workflow_id, action = run.workflow_id, run.action
        # What had begun before the agent was started again is looked for, and never run once more.
        begins = "had begun: what became of it is looked at" if run.resumed else "begins"
        log.info("workflow %s: action %s %s: %s", workflow_id, action.name, begins, action.image or action.cmd)
        begun = time.monotonic()
        watching = asyncio.create_task(self._watch_for_restart(workflow_id)) if run.last else None
        try:
            with self._output.action(workflow_id, action.id) if self._output is not None else nullcontext() as buffer:
                result = await self._attempt(run, stop, started)
        finally:
            if watching is not None:
                watching.cancel()
        seconds = time.monotonic() - begun
        log.info("workflow %s: action %s: exit code %d, %.1f s", workflow_id, action.name, result.exit_code, seconds)
        if not self._closing.is_set():  # else the journal keeps saying that it has begun, and nobody knows its end
            effects = self._executor.action_ended(result)
            self._carry_out(effects, after=buffer.sent if buffer is not None else None)

    async def _attempt(self, run: RunAction, stop: asyncio.Event, started: asyncio.Future[bool]) -> RunResult:
        action = run.action
        try:
            if run.resumed:
                return await self._runtime.resume(action, stop) or _end_unknown(action)
            check(run.awaits_end or action)
            known = asyncio.create_task(self._start_is_acknowledged(run, stop, started))
            try:
                await self._runtime.pull(run.awaits_end.image if run.awaits_end is not None else action.image, stop)
                await known
            finally:
                known.cancel()
            if not stop.is_set():
                self._executor.action_begins()
                self._write()
                await self._start_is_durable(run, stop, started)
            if stop.is_set():
                return RunResult(1, Reason.CANCELED, "stopped before it began")
            if run.awaits_end is not None:
                self._runtime.check(run.awaits_end)
                return RunResult(0)  # it is here, and has its turn when the server knows the end
            return await self._run_action(action, stop)
        except ActionError as error:
            return RunResult(1, error.reason, str(error))
        except Exception as error:  # the workflow must end, whatever is wrong with this machine or with this program
            log.exception("action %s could not be run", action.name)
            return RunResult(1, Reason.RUNTIME_ERROR, f"action {action.name}: {type(error).__name__}: {error}")

    async def _run_action(self, action: Action, stop: asyncio.Event) -> RunResult:
        return await self._runtime.run(replace(action, env=self._proxies.added_to(action.env)), stop)

    async def _start_is_acknowledged(self, run: RunAction, stop: asyncio.Event, started: asyncio.Future[bool]) -> None:
        """Return when the server knows that the action has started, or when the action need not wait for that.

        Until it knows of the first one, it sends the workflow again to a machine that has forgotten it: that one waits
        for as long as it takes, for nothing has been begun yet. The last one may reboot the machine, which is a success
        only to a server that knows of it; but it is run once either way, so it waits only a while. Raises ActionError.
        """
        if not run.first and not run.last:
            return
        acknowledged = await _acknowledged(started, stop, within=ACKNOWLEDGED_WITHIN_SECONDS)
        if acknowledged is None and not stop.is_set():
            begins = "does not begin before" if run.first else "begins although"
            no = "" if run.first else "not "
            log.warning(
                "workflow %s: action %s %s the server has %sheard of it", run.workflow_id, run.action.name, begins, no
            )
        if run.first:
            _raise_if_refused(run, acknowledged if acknowledged is not None else await _acknowledged(started, stop))

    async def _start_is_durable(self, run: RunAction, stop: asyncio.Event, started: asyncio.Future[bool]) -> None:
        """Return when it is kept that the action has begun, on disk or at the server: an agent that is started again
        would else run it once more. Raises ActionError if it never will be."""
        while self._journal is not None and not self._journal.durable and not stop.is_set():
            if self._journal.stale:
                message = "nothing can be written to the agent's --state-dir, and what stands there is old"
                raise ActionError(Reason.RUNTIME_ERROR, f"action {run.action.name} was not begun: {message}")
            acknowledged = await _acknowledged(started, stop, within=ACKNOWLEDGED_WITHIN_SECONDS)
            _raise_if_refused(run, acknowledged)
            if acknowledged:
                return
            self._write()

    async def _after_last_event(self, end: EndWorkflow, last_event: asyncio.Future[bool]) -> None:
        """What is due once the server has the workflow's last event: what an action has waited with, a restart that one
        has asked for, the after-workflow command."""
        if not await done_before(last_event, self._closing):
            return
        if last_event.result():
            self._executor.after_workflow_begins()
            self._write()
            if end.finally_run is not None:
                await self._run_finally(end.workflow_id, end.finally_run)
            if self._reboot_request.exists() and not self._closing.is_set():
                await self._restart_machine(end.workflow_id)
            if self._after_workflow:
                await self._run_after_workflow(end.workflow_id, end.outcome)
        elif end.finally_run is not None or self._after_workflow:
            log.warning("workflow %s: the server did not take its last event; nothing is run after it", end.workflow_id)
        self._executor.after_workflow_ended()
        self._write()

    async def _run_finally(self, workflow_id: str, action: Action) -> None:
        """Run what has waited for the end of its workflow: a restart, as a rule, that ends this agent, too."""
        log.info("workflow %s: its end is known, so %s begins: %s", workflow_id, action.name, action.image)
        self._stop = stop = asyncio.Event()
        try:
            await self._runtime.pull(action.image, stop)  # once more: an agent before this one may have fetched it
            result = await self._run_action(action, stop)
        except ActionError as error:
            result = RunResult(1, error.reason, str(error))
        except Exception as error:  # the agent must take the next workflow, whatever is wrong
            log.exception("action %s could not be run", action.name)
            result = RunResult(1, Reason.RUNTIME_ERROR, f"{type(error).__name__}: {error}")
        if result.exit_code != 0 and not self._closing.is_set():
            log.error("workflow %s: %s, after its end: %s", workflow_id, action.name, result.message)

    async def _watch_for_restart(self, workflow_id: str) -> None:
        """The last action may ask for a restart and wait for it, as under HookOS, which restarts at once."""
        while not self._reboot_request.exists():  # noqa: ASYNC110 - a file, which an action makes
            await asyncio.sleep(REBOOT_LOOK_SECONDS)
        await asyncio.sleep(REBOOT_GRACE_SECONDS)  # if it ends by itself, its end is told first
        await self._restart_machine(workflow_id)

    async def _restart_machine(self, workflow_id: str) -> None:
        """An action has asked for it, as HookOS takes it: by a file."""
        log.warning("workflow %s: an action has made %s: the machine restarts", workflow_id, self._reboot_request)
        try:
            self._reboot_request.unlink()
            await asyncio.to_thread(self._reboot)
        except OSError as error:
            log.error("workflow %s: the machine can't be restarted: %s", workflow_id, error)

    async def _run_after_workflow(self, workflow_id: str, outcome: WorkflowOutcome) -> None:
        self._stop = stop = asyncio.Event()  # `close` stops this command as it stops an action
        timer = asyncio.get_running_loop().call_later(AFTER_WORKFLOW_TIMEOUT_SECONDS, stop.set)
        try:
            code = await run_child(
                self._after_workflow,
                output=Output("after-workflow"),
                stop=stop,
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


def _end_unknown(action: Action) -> RunResult:
    message = f"the agent was restarted while action {action.name} ran, and nobody knows how it ended"
    return RunResult(1, Reason.AGENT_RESTARTED, message)


async def _acknowledged(
    started: asyncio.Future[bool], stop: asyncio.Event, *, within: float | None = None
) -> bool | None:
    """Whether the server has taken the report, or refuses to for good; None when the action is to stop, or so many
    seconds are over."""
    return started.result() if await done_before(started, stop, within) else None


def _raise_if_refused(run: RunAction, acknowledged: bool | None) -> None:
    if acknowledged is False:
        message = f"action {run.action.name} was not begun: the server does not take the report that it starts"
        raise ActionError(Reason.RUNTIME_ERROR, message)


def check(action: Action) -> None:
    """Raise ActionError for what no runtime can do: a NUL character in a text, "=" in the name of a variable, or more
    bytes than execve(2) takes."""
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
    if excess := unstartable({"cmd": action.cmd, "args": action.args, "env": action.env}, action.name):
        raise ActionError(Reason.INVALID_ACTION, f"action {excess[0]}")


async def run_agent(settings: AgentSettings) -> None:
    """Serve the server of `settings` until SIGTERM or SIGINT. Raises SettingsError."""
    asked_to_end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_end.set)
    # A terminal that closes, or somebody who asks to read files again: no reason to leave a Workflow half done.
    loop.add_signal_handler(signal.SIGHUP, log.warning, "SIGHUP: the agent goes on, with the settings that it has")
    with only_agent_in(settings.state_dir):
        channel = await connect(settings, asked_to_end)
        if channel is None:
            return
        channel.get_state(try_to_connect=True)  # gRPC connects in its own threads while the runtime is made ready
        try:
            await _serve(settings, channel, asked_to_end)
        finally:
            await channel.close()


async def _serve(settings: AgentSettings, channel: grpc.aio.Channel, asked_to_end: asyncio.Event) -> None:
    settings = replace(settings, registry_authorities=await registry_authorities(settings, asked_to_end))
    runtime = make_runtime(settings)
    journal = Journal(settings.state_dir, boot_id())
    restored = journal.restore()
    spool = Spool(restored.pending)
    output = OutputSender(channel)
    agent = Agent(
        runtime,
        spool,
        journal=journal,
        restored=restored,
        output=output,
        after_workflow=settings.after_workflow,
        proxies=settings.proxies,
    )
    await agent.prepare()
    transport = Transport(
        channel,
        server=settings.server,
        agent_id=settings.agent_id,
        spool=spool,
        held_workflows=agent.held_workflows,
        anonymous=settings.tls and settings.tls_cert is None,
        certificate=settings.tls_cert if settings.tls else None,
    )

    async def commands() -> None:
        await agent.lost_is_reported()
        await transport.commands(agent.handle)

    calls = [asyncio.create_task(call) for call in (commands(), transport.publish(), output.run())]
    ending = asyncio.create_task(asked_to_end.wait())
    done, _ = await asyncio.wait({*calls, ending}, return_when=asyncio.FIRST_COMPLETED)
    log.info("the agent ends")
    await agent.close()
    for task in (*calls, ending):
        task.cancel()
    journal.close()
    for task in done - {ending}:
        task.result()  # a call of the transport only ends by a fault of this program: let it be seen


@contextmanager
def only_agent_in(state_dir: Path) -> Iterator[None]:
    """Keep a second agent out of `state_dir` for as long as this lasts. Raises SettingsError if there is one already.

    The lock goes with the process that holds it, however that ends; an action does not inherit it.
    """
    try:
        # What actions get in their environment is in there, and user-data may be.
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (state_dir / "agent.lock").open("a+")
    except OSError as error:
        raise SettingsError(f"state dir: {state_dir}: {error.strerror}; give a --state-dir to write in") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            message = f"state dir: {state_dir} is used by another agent, process {lock.read(20).strip() or 'unknown'}"
            raise SettingsError(f"{message}; stop that one, or give this one a --state-dir of its own") from error
        with suppress(OSError):  # on a full disk the message above will lack the number
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
        yield


def run(settings: AgentSettings) -> int:
    """Run the agent until it is asked to end; the exit code for the command."""
    try:
        asyncio.run(run_agent(settings))
    except AgentError as error:
        log.error("the agent cannot start: %s", error)
        return 1
    return 0

"""The agent: commands in, actions run, events out.

`Agent` carries out the decisions of `executor`: it starts the runtime for an action, stops it, and appends events to
the spool. `connection` delivers the commands and sends the events. `run` is called by `tinkedge agent`.

Every step is in the `journal` before it happens, so an agent that was killed can be started again: it continues the
workflow, and asks the runtime for the action that had begun. If the end of that action is unknown, it fails with the
reason AgentRestarted.

On SIGTERM or SIGINT the running action is stopped and removed, and no event is sent: the machine is going down, perhaps
because an action requested it. The server decides what that means for the workflow when the machine returns, or does
not. If only the agent is started again, the stopped action has failed with AgentRestarted.
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
from tink.agent.executor import Effect, EndWorkflow, ExecutionProgress, Executor, Publish, RunAction, StopAction
from tink.agent.inventory.reporter import InventoryReporter, LocalMachine
from tink.agent.journal import Journal, Spool, boot_id
from tink.agent.model import (
    ActionError,
    ActionFailed,
    AgentError,
    AgentSettingsError,
    Command,
    Reason,
    RenderedAction,
    RunResult,
    WorkflowOutcome,
    WorkflowRejected,
)
from tink.agent.output import Output, OutputSender
from tink.agent.runtimes import Runtime, make_runtime, run_child
from tink.agent.settings import AgentSettings
from tink.exec_limits import unstartable
from tink.net.proxies import NONE, Proxies
from tink.waiting import done_before, log_failure

log = logging.getLogger(__name__)

AFTER_WORKFLOW_TIMEOUT_SECONDS = 300.0
"""Timeout of the after-workflow command. Until it ends, the agent accepts no new workflow."""

ACKNOWLEDGED_WITHIN_SECONDS = 10.0
"""Seconds that the last action, which may reboot the machine, waits for the server to acknowledge its start."""


REBOOT_REQUEST = Path("/worker/reboot")
"""An action creates this file to request a restart of the machine; templates for HookOS do so."""
REBOOT_LOOK_SECONDS = 1.0
REBOOT_GRACE_SECONDS = 10.0
_SYSRQ = Path("/proc/sysrq-trigger")


def restart_now() -> None:
    """Restart the machine without stopping its programs, after writing its buffers to disk. Raises OSError."""
    os.sync()
    _SYSRQ.write_text("b")  # Documentation/admin-guide/sysrq.rst


class Agent:
    """Runs workflows with `runtime`, one at a time, and reports events through `spool`. For one event loop."""

    def __init__(
        self,
        runtime: Runtime,
        journal: Journal,
        *,
        output: OutputSender | None = None,
        after_workflow: Sequence[str] = (),
        proxies: Proxies = NONE,
        reboot_request: Path = REBOOT_REQUEST,
        reboot: Callable[[], None] = restart_now,
    ) -> None:
        """Restore the state in `journal`, which stores the progress on disk.

        `output` receives what actions print. `proxies` are set in the environment of actions, unless an action sets
        them itself. `reboot_request` is the file by which actions request a restart. `reboot` restarts the machine at
        once, or raises OSError.
        """
        self._reboot_request = reboot_request
        self._reboot = reboot
        self._runtime = runtime
        self._journal = journal
        self._restored = journal.restore()
        self.spool = Spool(self._restored.pending)
        self._output = output
        self._after_workflow = tuple(after_workflow)
        self._proxies = proxies
        self._executor = Executor(self._restored.progress, after_workflow=bool(after_workflow))
        self._stop = asyncio.Event()
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.spool.on_settle = lambda: self._write(sync=False)

    async def prepare(self) -> None:
        """Remove what a killed agent has left in the runtime, and continue its workflow.

        Called once, before `handle`. Raises AgentSettingsError.
        """
        progress = self.progress
        await self._runtime.prepare(progress.action.id if progress.action and progress.begun else "")
        if progress.workflow is not None and progress.action is not None:
            log.info("workflow %s: going on with action %s", progress.workflow.id, progress.action.name)
        self._carry_out(self._executor.resume())

    async def lost_is_reported(self) -> None:
        """Wait until the server has the events of a workflow that this agent has lost.

        Before that the server must not learn that the agent does not hold it, because it would decide without these
        events.
        """
        if self._restored.lost:
            await asyncio.wait({self.spool.last_of(self._restored.lost)})

    def handle(self, command: Command) -> None:
        """Handle a command of the server."""
        if not self._closing.is_set():
            self._carry_out(self._executor.handle(command, backlog=len(self.spool)))

    def held_workflows(self) -> tuple[str, ...]:
        """Return the running workflow and those with unsent events, the most important first."""
        pending = [event for _, event in self.spool.pending]
        pending.sort(key=lambda event: isinstance(event, WorkflowRejected))
        running = self._executor.running
        return tuple(dict.fromkeys([*([running] if running else []), *(event.workflow_id for event in pending)]))

    @property
    def progress(self) -> ExecutionProgress:
        """Return the position of the execution."""
        return self._executor.progress

    @property
    def is_idle(self) -> bool:
        """True if no action runs, and nothing that follows the end of a workflow."""
        return not self._tasks

    async def close(self) -> None:
        """Stop the running action without an event, and wait until it is removed."""
        self._closing.set()
        self._stop.set()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _carry_out(self, effects: Sequence[Effect], *, after: asyncio.Future[None] | None = None) -> None:
        """Carry out `effects`. Their events are sent after `after`."""
        for effect in effects:
            if isinstance(effect, Publish):
                event = effect.event
                if isinstance(event, ActionFailed | WorkflowRejected):
                    log.warning("workflow %s: %s: %s", event.workflow_id, event.reason, event.message)
                self.spool.append(event, after=after)
        self._write()
        for effect in effects:
            match effect:
                case RunAction():
                    self._stop = asyncio.Event()
                    self._spawn(self._run(effect, self._stop, self.spool.last_of(effect.workflow_id)))
                case StopAction():
                    self._stop.set()
                case EndWorkflow(workflow_id, outcome):
                    log.info("workflow %s: %s", workflow_id, outcome)
                    if effect.finally_run is not None or self._after_workflow or self._reboot_request.exists():
                        self._spawn(self._after_last_event(effect, self.spool.last_of(workflow_id)))

    def _write(self, *, sync: bool = True) -> None:
        # Not in a thread: the next step must wait until the record is on disk, and a record is small.
        self._journal.write(self.progress, self.spool.pending, sync=sync)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, run: RunAction, stop: asyncio.Event, started: asyncio.Future[bool]) -> None:
        """Run an action. `started` is the result of sending its ActionStarted."""
        workflow_id, action = run.workflow_id, run.action
        # An action that had begun before the agent restarted is looked up, and never run again.
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
        # otherwise the journal still contains the action as begun, and its end is unknown
        if not self._closing.is_set():
            effects = self._executor.action_ended(result)
            self._carry_out(effects, after=buffer.sent if buffer is not None else None)

    async def _attempt(self, run: RunAction, stop: asyncio.Event, started: asyncio.Future[bool]) -> RunResult:
        action = run.action
        try:
            if run.resumed:
                unknown = f"the agent was restarted while action {action.name} ran, so its result is unknown"
                resumed = await self._runtime.resume(action, stop)
                return resumed or RunResult(1, Reason.AGENT_RESTARTED, unknown)
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
                return RunResult(0)  # the image is here; it runs when the server knows the end of the workflow
            return await self._run_action(action, stop)
        except ActionError as error:
            return RunResult(1, error.reason, str(error))
        except Exception as error:  # the workflow must end, even after a fault of this machine or this program
            log.exception("action %s could not be run", action.name)
            return RunResult(1, Reason.RUNTIME_ERROR, f"action {action.name}: {type(error).__name__}: {error}")

    async def _run_action(self, action: RenderedAction, stop: asyncio.Event) -> RunResult:
        return await self._runtime.run(replace(action, env=self._proxies.added_to(action.env)), stop)

    async def _start_is_acknowledged(self, run: RunAction, stop: asyncio.Event, started: asyncio.Future[bool]) -> None:
        """Return when the server has acknowledged the action's start, or if the action need not wait for that.

        The first action waits without limit, because nothing has begun: until the server knows of its start, it would
        send the workflow again to a machine that has lost its state. The last action may reboot the machine, which
        counts as success only if the server knows of its start; but it is run once either way, so it waits a limited
        time. Raises ActionError.
        """
        if not run.first and not run.last:
            return
        acknowledged = await _acknowledged(started, stop, within=ACKNOWLEDGED_WITHIN_SECONDS)
        if acknowledged is None and not stop.is_set():
            how = "does not begin before the server has" if run.first else "begins although the server has not"
            log.warning("workflow %s: action %s %s heard of it", run.workflow_id, run.action.name, how)
        if run.first:
            _raise_if_refused(run, acknowledged if acknowledged is not None else await _acknowledged(started, stop))

    async def _start_is_durable(self, run: RunAction, stop: asyncio.Event, started: asyncio.Future[bool]) -> None:
        """Return when the action's start is stored, on disk or at the server.

        Otherwise a restarted agent would run the action again. Raises ActionError if it can't be stored.
        """
        while not self._journal.ledger.durable and not stop.is_set():
            if self._journal.ledger.stale:
                message = "nothing can be written to the agent's --state-dir, and what stands there is old"
                raise ActionError(Reason.RUNTIME_ERROR, f"action {run.action.name} was not begun: {message}")
            acknowledged = await _acknowledged(started, stop, within=ACKNOWLEDGED_WITHIN_SECONDS)
            _raise_if_refused(run, acknowledged)
            if acknowledged:
                return
            self._write()

    async def _after_last_event(self, end: EndWorkflow, last_event: asyncio.Future[bool]) -> None:
        """Wait for the workflow's last event, then run what follows.

        That is: the action that waited for the end, a requested restart, and the after-workflow command.
        """
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

    async def _run_finally(self, workflow_id: str, action: RenderedAction) -> None:
        """Run the action that waited for the end of its workflow: usually a reboot, which also ends this agent."""
        log.info("workflow %s: its end is known, so %s begins: %s", workflow_id, action.name, action.image)
        self._stop = stop = asyncio.Event()
        try:
            await self._runtime.pull(action.image, stop)  # pulled again: an earlier agent may have pulled it
            result = await self._run_action(action, stop)
        except ActionError as error:
            result = RunResult(1, error.reason, str(error))
        except Exception as error:  # the agent must accept the next workflow in any case
            log.exception("action %s could not be run", action.name)
            result = RunResult(1, Reason.RUNTIME_ERROR, f"{type(error).__name__}: {error}")
        if result.exit_code != 0 and not self._closing.is_set():
            log.error("workflow %s: %s, after its end: %s", workflow_id, action.name, result.message)

    async def _watch_for_restart(self, workflow_id: str) -> None:
        """Restart the machine if the last action requests it and then waits: HookOS restarts it at once."""
        while not self._reboot_request.exists():  # noqa: ASYNC110 - a file, which an action makes
            await asyncio.sleep(REBOOT_LOOK_SECONDS)
        # time for the action to end by itself, so that its end is reported first
        await asyncio.sleep(REBOOT_GRACE_SECONDS)
        await self._restart_machine(workflow_id)

    async def _restart_machine(self, workflow_id: str) -> None:
        """Restart the machine because an action has created `reboot_request`."""
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


async def _acknowledged(
    started: asyncio.Future[bool], stop: asyncio.Event, *, within: float | None = None
) -> bool | None:
    """Return True if the server acknowledges the event, False if it rejects it, None on `stop` or after `within` s."""
    return started.result() if await done_before(started, stop, within) else None


def _raise_if_refused(run: RunAction, acknowledged: bool | None) -> None:
    if acknowledged is False:
        message = f"action {run.action.name} was not begun: the server does not take the report that it starts"
        raise ActionError(Reason.RUNTIME_ERROR, message)


def check(action: RenderedAction) -> None:
    """Raise ActionError for an action that no runtime can run.

    That is: a NUL character in a text, "=" in the name of a variable, or more bytes than execve(2) accepts.
    """
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
    """Serve the server of `settings` until SIGTERM or SIGINT. Raises AgentSettingsError."""
    asked_to_end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_end.set)
    # SIGHUP means a closed terminal, or a request to reload files. Neither is a reason to stop a Workflow.
    loop.add_signal_handler(signal.SIGHUP, log.warning, "SIGHUP: the agent goes on, with the settings that it has")
    with only_agent_in(settings.state_dir):
        channel = await connect(settings, asked_to_end)
        if channel is None:
            return
        channel.get_state(try_to_connect=True)  # gRPC connects in its own threads while the runtime is prepared
        try:
            await _serve(settings, channel, asked_to_end)
        finally:
            await channel.close()


async def _serve(settings: AgentSettings, channel: grpc.aio.Channel, asked_to_end: asyncio.Event) -> None:
    settings = replace(settings, registry_authorities=await registry_authorities(settings, asked_to_end))
    runtime = make_runtime(settings)
    journal = Journal(settings.state_dir, boot_id())
    output = OutputSender(channel)
    after, proxies = settings.after_workflow, settings.proxies
    agent = Agent(runtime, journal, output=output, after_workflow=after, proxies=proxies)
    await agent.prepare()
    transport = Transport(channel, settings, agent.spool, agent.held_workflows)

    async def commands() -> None:
        await agent.lost_is_reported()
        await transport.commands(agent.handle)

    calls = [asyncio.create_task(call) for call in (commands(), transport.publish(), output.run())]
    machine = LocalMachine(in_osie=settings.in_osie)
    reporter = InventoryReporter(channel, settings.agent_id, machine, connected=transport.connected.wait)
    reporting = asyncio.create_task(reporter.run())
    log_failure(reporting, log, "the inventory of this machine is no longer reported")
    ending = asyncio.create_task(asked_to_end.wait())
    done, _ = await asyncio.wait({*calls, ending}, return_when=asyncio.FIRST_COMPLETED)
    log.info("the agent ends")
    await agent.close()
    for task in (*calls, reporting, ending):
        task.cancel()
    journal.ledger.close()
    for task in done - {ending}:
        task.result()  # a call of the transport only ends because of a bug, so raise its error


@contextmanager
def only_agent_in(state_dir: Path) -> Iterator[None]:
    """Lock `state_dir` against a second agent. Raises AgentSettingsError if it is locked already.

    The lock ends with the process, however that ends; actions do not inherit it.
    """
    try:
        # The directory contains the environment of actions, which may include secrets.
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (state_dir / "agent.lock").open("a+")
    except OSError as error:
        raise AgentSettingsError(f"state dir: {state_dir}: {error.strerror}; give a --state-dir to write in") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            message = f"state dir: {state_dir} is used by another agent, process {lock.read(20).strip() or 'unknown'}"
            raise AgentSettingsError(f"{message}; stop that one, or give this one a --state-dir of its own") from error
        with suppress(OSError):  # on a full disk the message above lacks the number
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
        yield


def run(settings: AgentSettings) -> int:
    """Run the agent until it is signalled to end; return the exit code of the command."""
    try:
        asyncio.run(run_agent(settings))
    except AgentError as error:
        log.error("the agent cannot start: %s", error)
        return 1
    return 0

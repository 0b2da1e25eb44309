"""The agent put together with a runtime of the test's own: what is published, and when."""

import asyncio
import os
import signal
import sys
from dataclasses import replace

import pytest

import tink.agent.agent as agent_module
from tests.waiting import until
from tink.agent.agent import Agent, check, run
from tink.agent.durable.spool import Spool
from tink.agent.model import (
    Action,
    ActionError,
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    RunResult,
    StartWorkflow,
    StopWorkflow,
    Workflow,
    awaits_end,
)
from tink.agent.settings import AgentSettings


@pytest.fixture(autouse=True)
def impatience(monkeypatch):
    """Nobody acknowledges in most of these tests."""
    monkeypatch.setattr(agent_module, "ACKNOWLEDGED_WITHIN_SECONDS", 0.05)


class FakeRuntime:
    """Runs nothing; `ends[name]` says how an action ends, "hang" meaning when it is stopped."""

    def __init__(self, **ends):
        self.ends = ends
        self.calls = []

    async def prepare(self, held=""):
        self.calls.append(f"prepare {held}".strip())

    async def pull(self, image, stop):
        self.calls.append(f"pull {image}")
        if image == "missing":
            raise ActionError("ImagePullFailed", "image missing: manifest unknown")
        if image == "slow":
            await stop.wait()

    def check(self, action):
        self.calls.append(f"check {action.name}")
        if "/gone:/gone" in action.volumes:
            raise ActionError("InvalidAction", "this machine has no /gone")

    async def run(self, action, stop):
        self.calls.append(f"run {action.name}")
        end = self.ends.get(action.name, RunResult(0))
        if end == "hang":
            await stop.wait()
            self.calls.append(f"stopped {action.name}")
            return RunResult(143, "NonZeroExit", "exit code 143")
        if isinstance(end, Exception):
            raise end
        return end


def workflow(*names, image="img"):
    return Workflow("w", tuple(Action(f"id-{name}", name, image) for name in names))


async def published(spool, count):
    """The next `count` events, taken as a server would."""
    events = []
    for _ in range(count):
        number, event = await asyncio.wait_for(spool.head(), 20)
        events.append(event)
        spool.settle(number, delivered=True)
    return events


async def test_workflow_from_start_to_end():
    runtime, spool = FakeRuntime(), Spool()
    agent = Agent(runtime, spool)
    agent.handle(StartWorkflow(workflow("one", "two")))
    assert await published(spool, 4) == [
        ActionStarted("w", "id-one"),
        ActionSucceeded("w", "id-one"),
        ActionStarted("w", "id-two"),
        ActionSucceeded("w", "id-two"),
    ]
    assert runtime.calls == ["pull img", "run one", "pull img", "run two"]
    await agent.close()


async def test_execution_goes_on_while_nobody_takes_the_events():
    runtime, spool = FakeRuntime(), Spool()
    agent = Agent(runtime, spool)
    agent.handle(StartWorkflow(workflow("one", "two", "three")))
    await published(spool, 1)
    await until(lambda: len(spool) == 5)
    assert runtime.calls[-1] == "run three"
    await agent.close()


async def test_missing_image_is_the_actions_failure():
    spool = Spool()
    agent = Agent(FakeRuntime(), spool)
    agent.handle(StartWorkflow(workflow("one", image="missing")))
    events = await published(spool, 2)
    assert events[1] == ActionFailed("w", "id-one", "ImagePullFailed", "image missing: manifest unknown")
    await agent.close()


async def test_fault_of_the_runtime_ends_the_workflow_and_not_the_agent():
    spool = Spool()
    agent = Agent(FakeRuntime(one=ZeroDivisionError("boom")), spool)
    agent.handle(StartWorkflow(workflow("one")))
    events = await published(spool, 2)
    assert events[1] == ActionFailed("w", "id-one", "RuntimeError", "action one: ZeroDivisionError: boom")
    agent.handle(StartWorkflow(Workflow("w2", (Action("x", "two", "img"),))))
    assert await published(spool, 2) == [ActionStarted("w2", "x"), ActionSucceeded("w2", "x")]
    await agent.close()


async def test_cancel_stops_the_action_and_reports_only_then():
    runtime, spool = FakeRuntime(one="hang"), Spool()
    agent = Agent(runtime, spool)
    agent.handle(StartWorkflow(workflow("one", "two")))
    await published(spool, 1)
    await until(lambda: "run one" in runtime.calls)
    agent.handle(StopWorkflow("w"))
    [event] = await published(spool, 1)
    assert (event.action_id, event.reason) == ("id-one", "Canceled")
    assert runtime.calls == ["pull img", "run one", "stopped one"]
    await agent.close()


async def test_cancel_during_the_pull_runs_nothing():
    runtime, spool = FakeRuntime(), Spool()
    agent = Agent(runtime, spool)
    agent.handle(StartWorkflow(workflow("one", image="slow")))
    await until(lambda: runtime.calls == ["pull slow"])
    agent.handle(StopWorkflow("w"))
    events = await published(spool, 2)
    assert events[1].reason == "Canceled"
    assert runtime.calls == ["pull slow"]
    await agent.close()


async def test_agent_that_is_told_to_end_stops_the_action_and_reports_nothing():
    runtime, spool = FakeRuntime(one="hang"), Spool()
    agent = Agent(runtime, spool)
    agent.handle(StartWorkflow(workflow("one")))
    assert await published(spool, 1) == [ActionStarted("w", "id-one")]
    await until(lambda: "run one" in runtime.calls)
    await agent.close()
    assert runtime.calls[-1] == "stopped one"
    assert len(spool) == 0
    assert agent.held_workflows() == ("w",), "whoever starts this agent again will hear of it"


@pytest.fixture
def after(tmp_path):
    """An after-workflow command that writes what it was told, and where."""
    told = tmp_path / "told"
    return told, ("/bin/sh", "-c", f"echo $TINKEDGE_WORKFLOW_STATE >{told}.new; mv {told}.new {told}")


@pytest.mark.parametrize(
    ("end", "state"), [(RunResult(0), "Succeeded"), (RunResult(1, "R", "m"), "Failed"), ("hang", "Canceled")]
)
async def test_after_workflow_command_runs_once_the_server_knows_the_end(after, end, state):
    told, command = after
    runtime, spool = FakeRuntime(one=end), Spool()
    agent = Agent(runtime, spool, after_workflow=command)
    agent.handle(StartWorkflow(workflow("one")))
    await published(spool, 1)
    if end == "hang":
        await until(lambda: "run one" in runtime.calls)
        agent.handle(StopWorkflow("w"))
    await until(lambda: len(spool) == 1)
    await asyncio.sleep(0.1)
    assert not told.exists(), "the server has not acknowledged the end yet"
    agent.handle(StartWorkflow(Workflow("w2", (Action("x", "two", "img"),))))
    rejected = (await published(spool, 2))[1]
    assert (rejected.workflow_id, rejected.reason) == ("w2", "AlreadyRunning")
    await until(told.exists)
    assert told.read_text().strip() == state
    await until(lambda: not agent._tasks)
    agent.handle(StartWorkflow(Workflow("w2", (Action("x", "two", "img"),))))
    assert await published(spool, 1) == [ActionStarted("w2", "x")]
    await agent.close()


async def test_after_workflow_command_does_not_run_when_the_server_refused_the_end(after):
    told, command = after
    spool = Spool()
    agent = Agent(FakeRuntime(), spool, after_workflow=command)
    agent.handle(StartWorkflow(workflow("one")))
    await published(spool, 1)
    number, _ = await spool.head()
    spool.settle(number, delivered=False)
    await until(lambda: not agent._tasks)
    assert not told.exists()
    await agent.close()


@pytest.mark.parametrize("command", [("/no/such/program",), ("/bin/false",)])
async def test_after_workflow_command_that_fails_is_logged_and_the_agent_goes_on(command, caplog):
    spool = Spool()
    agent = Agent(FakeRuntime(), spool, after_workflow=command)
    agent.handle(StartWorkflow(workflow("one")))
    await published(spool, 2)
    await until(lambda: not agent._tasks)
    assert "after-workflow command" in caplog.text
    agent.handle(StartWorkflow(Workflow("w2", (Action("x", "two", "img"),))))
    assert await published(spool, 1) == [ActionStarted("w2", "x")]
    await agent.close()


async def test_after_workflow_command_that_hangs_ends_with_the_agent():
    spool = Spool()
    agent = Agent(FakeRuntime(), spool, after_workflow=("/bin/sleep", "600"))
    agent.handle(StartWorkflow(workflow("one")))
    await published(spool, 2)
    await asyncio.sleep(0.1)
    await agent.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cmd", "a\0b"),
        ("args", ("a\0b",)),
        ("image", "a\0b"),
        ("volumes", ("a\0b",)),
        ("env", {"a": "\0"}),
        ("env", {"a=b": "c"}),
        ("env", {"": "c"}),
        ("network_namespace", "\0"),
    ],
)
def test_what_no_runtime_can_do_is_named(field, value):
    with pytest.raises(ActionError, match="action act") as caught:
        check(Action(**{"id": "a", "name": "act", "image": "i", field: value}))
    assert caught.value.reason == "InvalidAction"


def test_sigterm_ends_the_command_cleanly(tmp_path, monkeypatch):
    settings = AgentSettings(agent_id="a", server="127.0.0.1:1", runtime="process", state_dir=tmp_path)

    class TermSoon(FakeRuntime):
        async def prepare(self, held=""):
            asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(agent_module, "make_runtime", lambda _: TermSoon())
    assert run(settings) == 0


def test_missing_runtime_program_is_named(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(AgentSettings(agent_id="a", server="127.0.0.1:1", state_dir=tmp_path)) == 1
    assert "runc is not on PATH" in caplog.text


def test_agent_imports_nothing_that_the_osie_does_not_have():
    code = (
        "import sys, tink.agent, tink.agent.runtimes.oci.runc, tink.agent.runtimes.process\n"
        "heavy = {'aiohttp', 'pydantic', 'kubernetes_asyncio', 'click', 'yaml', 'jinja2', 'orjson', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


NERDCTL_ENV = {"CONTAINER_RUNTIME": "nerdctl", "NERDCTL_NAMESPACE": "tinkerbell", "NERDCTL_HOST": "false"}
NERDCTL = (
    "/run/containerd/containerd.sock:/run/containerd/containerd.sock",
    "/var/lib/containerd:/var/lib/containerd",
    "/var/lib/nerdctl:/var/lib/nerdctl",
    "/opt/cni/bin:/opt/cni/bin",
    "/etc/cni/net.d:/etc/cni/net.d",
    "/a:/b:ro",
)
"""As waitdaemon's own documentation has them."""

WAITDAEMON = Action(
    "id-two",
    "two",
    "ghcr.io/x/waitdaemon:0.2.1",
    env={"IMAGE": "kexec:v1", "WAIT_SECONDS": "10", "BLOCK_DEVICE": "/dev/sda3"},
    volumes=("/var/run/docker.sock:/var/run/docker.sock", "/a:/b"),
)


async def test_what_waits_for_the_end_runs_when_the_server_knows_it_and_nothing_else_begins_before():
    runtime, spool = FakeRuntime(two="hang"), Spool()
    agent = Agent(runtime, spool)
    agent.handle(StartWorkflow(Workflow("w", (Action("id-one", "one", "img"), WAITDAEMON))))
    await published(spool, 3)
    await until(lambda: len(spool) == 1)
    assert "pull kexec:v1" in runtime.calls
    assert "run two" not in runtime.calls, "the server has not acknowledged the end yet"
    agent.handle(StartWorkflow(Workflow("w2", (Action("x", "three", "img"),))))
    end, rejected = await published(spool, 2)
    assert (end, rejected.workflow_id, rejected.reason) == (ActionSucceeded("w", "id-two"), "w2", "AlreadyRunning")
    await until(lambda: "run two" in runtime.calls)
    await agent.close()
    assert runtime.calls[-1] == "stopped two"


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("env", {"IMAGE": "missing"}, "ImagePullFailed"),
        ("volumes", ("/gone:/gone",), "InvalidAction"),
        ("env", {"IMAGE": "kexec", "A\0": "b"}, "InvalidAction"),
    ],
)
async def test_what_waits_for_the_end_and_could_not_be_run_then_fails_the_workflow_now(field, value, reason):
    spool = Spool()
    agent = Agent(FakeRuntime(), spool)
    agent.handle(StartWorkflow(Workflow("w", (replace(WAITDAEMON, **{field: value}),))))
    started, failed = await published(spool, 2)
    assert (type(started), type(failed), failed.reason) == (ActionStarted, ActionFailed, reason)


async def test_agent_takes_the_next_workflow_whatever_becomes_of_what_waited(caplog):
    runtime, spool = FakeRuntime(two=OSError(28, "No space left on device")), Spool()
    agent = Agent(runtime, spool)
    agent.handle(StartWorkflow(Workflow("w", (WAITDAEMON,))))
    await published(spool, 2)
    await until(lambda: "No space left" in caplog.text and not agent._tasks)
    agent.handle(StartWorkflow(Workflow("w2", (Action("x", "three", "img"),))))
    assert await published(spool, 1) == [ActionStarted("w2", "x")]
    await agent.close()


def test_what_waits_for_the_end_is_the_image_that_waitdaemon_would_start_without_an_engines_socket():
    found = awaits_end(WAITDAEMON)
    assert (found.image, found.env, found.volumes) == ("kexec:v1", {"BLOCK_DEVICE": "/dev/sda3"}, ("/a:/b",))
    assert found.pid_namespace == "host"
    by_digest = replace(WAITDAEMON, image="x/waitdaemon@sha256:ab", volumes=NERDCTL, env=WAITDAEMON.env | NERDCTL_ENV)
    assert awaits_end(by_digest) == replace(found, volumes=("/a:/b:ro",))
    assert awaits_end(replace(WAITDAEMON, image="kexec")) is None
    assert awaits_end(replace(WAITDAEMON, env={})) is None


@pytest.fixture
async def machine(tmp_path):
    """An agent on a machine that is not restarted, and how often it would have been."""
    restarts = []
    request = tmp_path / "reboot"
    spool, runtime = Spool(), FakeRuntime(hangs="hang")
    agent = Agent(runtime, spool, reboot_request=request, reboot=lambda: restarts.append(request.exists()))
    return agent, spool, request, restarts


async def test_machine_restarts_by_the_file_of_hookos_once_the_end_is_known(machine):
    agent, spool, request, restarts = machine
    agent.handle(StartWorkflow(workflow("one")))
    await published(spool, 1)
    request.touch()
    await until(lambda: len(spool) == 1)
    assert not restarts
    await published(spool, 1)
    await until(lambda: restarts)
    assert restarts == [False], "the file must be gone, or the machine restarts for ever"
    agent.handle(StartWorkflow(Workflow("w2", (Action("x", "two", "img"),))))
    await published(spool, 2)
    await agent.close()
    assert restarts == [False]


async def test_last_action_that_waits_for_the_restart_it_has_asked_for_gets_it(machine, monkeypatch):
    monkeypatch.setattr(agent_module, "REBOOT_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(agent_module, "REBOOT_GRACE_SECONDS", 0.01)
    agent, spool, request, restarts = machine
    agent.handle(StartWorkflow(workflow("hangs")))
    await published(spool, 1)
    request.touch()
    await until(lambda: restarts)
    await agent.close()


async def test_machine_that_can_not_be_restarted_goes_on(machine, caplog):
    agent, spool, request, _ = machine

    def refuse():
        raise OSError(30, "Read-only file system")

    agent._reboot = refuse
    request.touch()
    agent.handle(StartWorkflow(workflow("one")))
    await published(spool, 2)
    await until(lambda: "can't be restarted" in caplog.text)
    await until(lambda: not agent._tasks)
    agent.handle(StartWorkflow(Workflow("w2", (Action("x", "two", "img"),))))
    assert await published(spool, 1) == [ActionStarted("w2", "x")]
    await agent.close()

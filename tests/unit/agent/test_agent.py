"""The agent with its real journal and spool: what it runs, reports and keeps, also when it is started again."""

import asyncio
import errno
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace

import pytest

import tink.agent.agent as agent_module
from tests.support.virtual_time import elapse, turns
from tests.unit.agent.world import (
    DEAF,
    HANG,
    MemoryDisk,
    World,
    kill,
    lives,
    restart,
    take_all,
    taken,
    workflow,
)
from tests.waiting import until
from tink.agent.agent import check, only_agent_in, run
from tink.agent.executor import ExecutionProgress
from tink.agent.images.registry import Registries
from tink.agent.images.store import ImageStore
from tink.agent.model import (
    ActionError,
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    RenderedAction,
    RunResult,
    StartWorkflow,
    StopWorkflow,
    Workflow,
    WorkflowOutcome,
    awaits_end,
)
from tink.agent.runtimes.oci import ContainerRuntime
from tink.agent.runtimes.process import ProcessRuntime
from tink.agent.settings import AgentSettings
from tink.net.proxies import Proxies

pytestmark = pytest.mark.looptime
real_time = pytest.mark.looptime(False)  # for tests with child processes

OTHER = StartWorkflow(workflow("other", workflow_id="w2"))


async def started(*names, image="img", ends=None, **more):
    """Start an agent that was just sent a Workflow with these actions."""
    world = World(ends=ends)
    world.workflow = workflow(*names, image=image)
    return await sent(world, **more)


async def sent(world, **more):
    agent, spool = await restart(world, **more)
    agent.handle(StartWorkflow(world.workflow))
    return world, agent, spool


async def takes_another(agent, spool):
    agent.handle(OTHER)
    return (await taken(spool, 1))[-1] == ActionStarted("w2", "id-other")


def rejected(spool):
    event = spool.pending[-1][1]
    return event.workflow_id, event.reason


async def test_actions_run_one_after_the_other_and_each_start_and_end_is_reported():
    world, _, spool = await started("one", "two")
    assert await taken(spool, 4) == [
        ActionStarted("w", "id-one"),
        ActionSucceeded("w", "id-one"),
        ActionStarted("w", "id-two"),
        ActionSucceeded("w", "id-two"),
    ]
    assert world.calls == ["pull img", "run one", "pull img", "run two"]


async def test_action_gets_the_proxies_of_the_machine_unless_it_names_its_own():
    world = World()
    own = RenderedAction("id-own", "own", "img", env={"NO_PROXY": "", "A": "b"})
    world.workflow = Workflow("w", (RenderedAction("id-plain", "plain", "img"), own))
    _, _, spool = await sent(world, proxies=Proxies("http://p:1", no_proxy="10.0.0.0/8"))
    await taken(spool, 4)
    http = {"HTTP_PROXY": "http://p:1", "http_proxy": "http://p:1"}
    assert world.ran[0].env == http | {"NO_PROXY": "10.0.0.0/8", "no_proxy": "10.0.0.0/8"}
    assert world.ran[1].env == http | {"NO_PROXY": "", "A": "b"}


@pytest.mark.parametrize(
    ("call", "error", "reason", "message"),
    [
        ("pull img", ActionError("ImagePullFailed", "image img: gone"), "ImagePullFailed", "image img: gone"),
        ("run one", ZeroDivisionError("boom"), "RuntimeError", "action one: ZeroDivisionError: boom"),
    ],
)
async def test_action_that_can_not_be_run_fails_and_the_agent_goes_on(call, error, reason, message):
    world, agent, spool = await started("one", ends={call: error})
    await turns(30)
    if call.startswith("pull"):
        assert spool.pending[-1][1].reason == reason, "before the server knows of the start"
        assert asyncio.all_tasks() == {asyncio.current_task()}
    failed = (await taken(spool, 2))[1]
    assert (failed.action_id, failed.reason, failed.message) == ("id-one", reason, message)
    world.ends.clear()
    assert await takes_another(agent, spool)


@pytest.mark.parametrize("calls", [["pull img"], ["pull img", "run one"]], ids=["pull", "run"])
async def test_cancel_stops_the_action_and_reports_only_then(calls):
    world, agent, spool = await started("one", "two", ends={calls[-1]: HANG})
    await taken(spool, 1)
    agent.handle(StopWorkflow("w"))
    [event] = await taken(spool, 1)
    assert (event.action_id, event.reason) == ("id-one", "Canceled")
    assert world.calls == [*calls, f"stopped {calls[-1]}"]


async def test_sigterm_stops_the_action_without_a_report_and_the_next_agent_reports_it_as_failed(caplog):
    caplog.set_level("INFO", "tink.agent.agent")
    world, agent, spool = await started("one", ends={"run one": HANG})
    await taken(spool, 1)
    await agent.close()
    assert (world.calls[-1], len(spool), agent.held_workflows()) == ("stopped run one", 0, ("w",))
    assert "workflow w: action one begins: img" in caplog.messages
    caplog.clear()
    agent, spool = await restart(world)
    await turns(30)
    assert "workflow w: action one had begun: what became of it is looked at: img" in caplog.messages
    assert "begins" not in caplog.text, "it is not run again"
    failed = spool.pending[-1][1]
    assert (failed.action_id, failed.reason) == ("id-one", "AgentRestarted")
    assert "one" in failed.message
    assert agent.progress.ended == {"w": WorkflowOutcome.FAILED}


# --- what follows the end of a workflow -------------------------------------------------------------------------------


@pytest.fixture
def after(tmp_path):
    """A file, and an after-workflow command that writes the workflow's state into it."""
    file = tmp_path / "told"
    return file, ("/bin/sh", "-c", f"echo $TINKEDGE_WORKFLOW_STATE >{file}.new; mv {file}.new {file}")


@real_time
@pytest.mark.parametrize(
    ("end", "state"),
    [(RunResult(0), "Succeeded"), (RunResult(1, "R", "m"), "Failed"), (HANG, "Canceled"), (RunResult(0), "")],
    ids=["succeeded", "failed", "canceled", "end refused by the server"],
)
async def test_after_workflow_command_runs_once_the_server_knows_the_end(after, end, state):
    file, command = after
    _, agent, spool = await started("one", ends={"run one": end}, after_workflow=command)
    await taken(spool, 1)
    if end == HANG:
        agent.handle(StopWorkflow("w"))
    await turns(30)
    assert (len(spool), agent.progress.after_workflow.begun) == (1, False)
    agent.handle(OTHER)
    assert rejected(spool) == ("w2", "AlreadyRunning")
    await take_all(spool, delivered=bool(state))
    await until(lambda: agent.is_idle)
    assert file.exists() is bool(state)
    assert not state or file.read_text().strip() == state
    assert await takes_another(agent, spool)


@real_time
@pytest.mark.parametrize("command", [("/no/such/program",), ("/bin/false",)])
async def test_after_workflow_command_that_fails_is_logged_and_the_agent_goes_on(command, caplog):
    _, agent, spool = await started("one", after_workflow=command)
    await taken(spool, 2)
    await until(lambda: agent.is_idle)
    assert "after-workflow command" in caplog.text
    assert await takes_another(agent, spool)


@real_time
async def test_after_workflow_command_of_an_agent_that_died_is_run_by_the_next_and_once_only(after):
    """A machine whose state outlives its reboot would reboot endlessly."""
    file, command = after
    world, _, spool = await started("one", after_workflow=command)
    await taken(spool, 1)
    await kill()
    agent, spool = await restart(world, after_workflow=command)
    agent.handle(OTHER)
    assert rejected(spool) == ("w2", "AlreadyRunning")
    await take_all(spool)
    await until(lambda: agent.is_idle)
    assert file.read_text() == "Succeeded\n"
    agent, _ = await restart(world, after_workflow=command)
    assert (agent.is_idle, agent.progress.after_workflow) == (True, None)


@real_time
@pytest.mark.parametrize("end", [lambda agent: agent.close(), lambda _: kill()], ids=["close", "kill"])
async def test_after_workflow_command_that_hangs_ends_with_the_agent_and_is_not_run_again(tmp_path, end):
    command = ("/bin/sh", "-c", f"touch {tmp_path}/up; exec sleep 3600")
    world, agent, spool = await started("one", after_workflow=command)
    await taken(spool, 2)
    await until((tmp_path / "up").exists)
    assert agent.progress.after_workflow.begun
    await end(agent)
    agent, _ = await restart(world, after_workflow=command)
    assert (agent.is_idle, agent.progress.after_workflow) == (True, None)


WAITDAEMON = RenderedAction(
    "id-two",
    "two",
    "ghcr.io/x/waitdaemon:0.2.1",
    env={"IMAGE": "kexec:v1", "WAIT_SECONDS": "10", "BLOCK_DEVICE": "/dev/sda3"},
    volumes=("/var/run/docker.sock:/var/run/docker.sock", "/a:/b"),
)
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


def test_waitdaemon_gives_the_image_that_it_would_start_without_the_socket_of_an_engine():
    found = awaits_end(WAITDAEMON)
    assert (found.image, found.env, found.volumes) == ("kexec:v1", {"BLOCK_DEVICE": "/dev/sda3"}, ("/a:/b",))
    assert found.pid_namespace == "host"
    by_digest = replace(WAITDAEMON, image="x/waitdaemon@sha256:ab", volumes=NERDCTL, env=WAITDAEMON.env | NERDCTL_ENV)
    assert awaits_end(by_digest) == replace(found, volumes=("/a:/b:ro",))
    assert awaits_end(replace(WAITDAEMON, image="kexec")) is None
    assert awaits_end(replace(WAITDAEMON, env={})) is None


async def sent_waitdaemon(*before, ends=None, **changed):
    world = World(ends=ends)
    world.workflow = Workflow("w", (*workflow(*before).actions, replace(WAITDAEMON, **changed)))
    return await sent(world)


@pytest.mark.parametrize("dies", [False, True])
async def test_waitdaemon_begins_when_the_server_knows_the_end_and_blocks_other_workflows_until_then(dies):
    world, agent, spool = await sent_waitdaemon("one", ends={"run two": HANG})
    await taken(spool, 3)
    assert "pull kexec:v1" in world.calls
    if dies:
        await kill()
        agent, spool = await restart(world)
    assert "run two" not in world.calls, "the server does not know the end yet"
    agent.handle(OTHER)
    end, refusal = await taken(spool, 2)
    assert (end, refusal.workflow_id, refusal.reason) == (ActionSucceeded("w", "id-two"), "w2", "AlreadyRunning")
    assert world.ran[1:] == [awaits_end(WAITDAEMON)]
    await agent.close()
    assert world.calls[-1] == "stopped run two"
    agent, _ = await restart(world)
    assert agent.is_idle, "it is run once"


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("env", {"IMAGE": "missing"}, "ImagePullFailed"),
        ("volumes", ("/gone:/gone",), "InvalidAction"),
        ("env", {"IMAGE": "kexec", "A\0": "b"}, "InvalidAction"),
    ],
)
async def test_waitdaemon_that_could_not_be_run_at_the_end_fails_the_workflow_at_once(field, value, reason):
    ends = {"pull missing": ActionError("ImagePullFailed", "image missing: manifest unknown")}
    if field == "volumes":
        ends["check two"] = ActionError("InvalidAction", "this machine has no /gone")
    _, _, spool = await sent_waitdaemon(ends=ends, **{field: value})
    begun, failed = await taken(spool, 2)
    assert (type(begun), type(failed), failed.reason) == (ActionStarted, ActionFailed, reason)


async def test_agent_takes_the_next_workflow_when_waitdaemon_fails(caplog):
    _, agent, spool = await sent_waitdaemon(ends={"run two": OSError(28, "No space left on device")})
    await taken(spool, 2)
    assert "No space left" in caplog.text
    assert await takes_another(agent, spool)


@pytest.fixture
def reboots(tmp_path):
    """The file by which an action asks for a restart, and a record of the restarts."""
    restarts, request = [], tmp_path / "reboot"
    more = {"reboot_request": request, "reboot": lambda: restarts.append(request.exists())}
    return restarts, request, more


async def test_machine_restarts_once_when_an_action_made_the_file_of_hookos_and_the_end_is_known(reboots):
    restarts, request, more = reboots
    _, agent, spool = await started("one", ends={"run one": request.touch}, **more)
    await taken(spool, 1)
    assert (len(spool), restarts) == (1, [])
    await taken(spool, 1)
    await elapse(1)
    assert restarts == [False], "the file must be gone, or the machine restarts for ever"
    assert await takes_another(agent, spool)
    await agent.close()
    assert restarts == [False]


async def test_last_action_that_waits_for_the_restart_it_has_asked_for_gets_it(reboots):
    restarts, request, more = reboots
    _, _, spool = await started("one", ends={"run one": HANG}, **more)
    await taken(spool, 1)
    await elapse(60)
    request.touch()
    await elapse(9)
    assert not restarts, "if it ends by itself, its end is reported first"
    await elapse(3)
    assert restarts == [False]


async def test_machine_that_can_not_be_restarted_goes_on(reboots, caplog):
    def refuse():
        raise OSError(errno.EROFS, "Read-only file system")

    _, request, more = reboots
    request.touch()
    _, agent, spool = await started("one", **more | {"reboot": refuse})
    await taken(spool, 2)
    await elapse(1)
    assert "can't be restarted" in caplog.text
    assert agent.is_idle
    assert await takes_another(agent, spool)


# --- an action begins when its start is kept on disk or at the server -------------------------------------------------


async def test_last_action_waits_until_the_server_knows_of_it(caplog):
    world, _, spool = await started("one", "two")
    await taken(spool, 1)
    await elapse(9)
    assert (world.runs, len(spool)) == ({"one": 1}, 2)
    await take_all(spool)
    assert world.runs == {"one": 1, "two": 1}
    assert "heard of it" not in caplog.text, "a server that answers is no news"
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing goes on waiting"


async def test_last_action_begins_after_ten_seconds_without_an_answer(caplog):
    world, _, spool = await started("one", "two", "three")
    await taken(spool, 1)
    await elapse(9)
    assert len(world.runs) == 2
    await elapse(2)
    assert (len(world.runs), len(spool), world.calls[-1]) == (3, 5, "run three")
    assert "action three begins although the server has not heard of it" in caplog.text
    assert "two begins" not in caplog.text, "the one in the middle need not be known"


@pytest.mark.parametrize(("names", "dies"), [(["one"], False), (["one", "two"], False), (["one", "two"], True)])
async def test_first_action_waits_until_the_server_knows_of_it_for_as_long_as_it_takes(caplog, names, dies):
    """A machine that restarts and forgets would be sent the Workflow again."""
    world, _, spool = await started(*names)
    if dies:
        await kill()
        _, spool = await restart(world)
    await elapse(60)
    assert not world.runs
    assert "action one does not begin before the server has heard of it" in caplog.text
    await take_all(spool)
    assert world.runs


@pytest.mark.parametrize("names", [["one"], ["one", "two"]])
async def test_workflow_whose_first_action_the_server_refuses_is_not_begun(names):
    """It is gone, or another machine's: its event is dropped after a while."""
    world, agent, spool = await started(*names)
    spool.settle((await spool.head())[0], delivered=False)
    await turns(30)
    assert (agent.is_idle, world.runs) == (True, {})
    failed = spool.pending[-1][1]
    assert (failed.action_id, failed.reason) == ("id-one", "RuntimeError")
    assert "one was not begun" in failed.message


@pytest.mark.parametrize("names", [["one"], ["one", "two"]])
async def test_action_that_is_stopped_before_it_begins_never_counts_as_begun(caplog, names):
    """An agent that died in that moment would report that its end is unknown."""
    world, agent, spool = await started(*names)
    await elapse(len(names) % 2)
    agent.handle(StopWorkflow("w"))
    await turns(30)
    assert (agent.is_idle, world.runs, spool.pending[-1][1].reason) == (True, {}, "Canceled")
    (journal,) = world.files.values()
    assert b'"at":[0,false,true]' in journal
    assert b'"at":[0,true' not in journal
    assert "heard of it" not in caplog.text


class TroubledDisk(MemoryDisk):
    """While `world.trouble` is ENOSPC no file can grow; while it is EROFS nothing can be changed, not even marked."""

    def open(self, path, *, new):
        if self.world.trouble == errno.EROFS:
            raise OSError(errno.EROFS, "Read-only file system")
        return super().open(path, new=new)

    def write(self, descriptor, content, offset):
        grows = offset + len(content) > len(self.descriptors[descriptor])
        if self.world.trouble == errno.EROFS or (self.world.trouble and grows):
            raise OSError(self.world.trouble, os.strerror(self.world.trouble))
        return super().write(descriptor, content, offset)


async def in_trouble_before_the_second_action(trouble):
    """Start an agent whose disk fails when its second action is about to begin; its server knows of the first only."""
    world = World(actions=3)
    world.trouble = 0

    def begins():
        world.trouble = world.trouble or (trouble if world.runs else 0)

    world.ends["pull img"] = begins
    world, agent, spool = await sent(world, disk=TroubledDisk(world))
    await taken(spool, 1)
    await elapse(60)
    assert world.runs == {"one": 1}
    return world, agent, spool


@pytest.mark.parametrize("then", ["room", "known", "refused", "stopped"])
async def test_action_whose_start_is_kept_nowhere_waits_for_room_or_the_server_or_its_end(caplog, then):
    world, agent, spool = await in_trouble_before_the_second_action(errno.ENOSPC)
    if then == "room":
        world.ends.clear()
        world.trouble = 0
        await elapse(11)
        assert len(spool), "the server has received nothing"
    elif then == "known":
        await taken(spool, 2)
    elif then == "refused":
        await take_all(spool, delivered=False)
        assert agent.progress.ended
    else:
        agent.handle(StopWorkflow("w"))
        await turns(30)
        assert (agent.is_idle, spool.pending[-1][1].reason) == (True, "Canceled")
    assert world.runs["two"] == (then in ("room", "known"))
    assert ("can be written again" in caplog.text) is (then == "room")


async def test_full_disk_an_absent_server_and_a_death_run_nothing_twice():
    """The rest of the agent reports nothing, and the server sends the Workflow again."""
    world = World(actions=1)
    world.trouble, world.reachable = errno.ENOSPC, False
    await sent(world, disk=TroubledDisk(world))
    await elapse(60)
    await kill()
    world.reachable = True
    await asyncio.to_thread(lives, world)
    assert (world.runs, world.state) == ({"one": 1}, "Succeeded")


async def test_action_fails_while_the_journal_on_a_read_only_disk_would_have_it_run_again(caplog):
    """Its failure says what to look at; the next workflow is run when the disk can be written again."""
    world, agent, spool = await in_trouble_before_the_second_action(errno.EROFS)
    failed = spool.pending[-1][1]
    assert (failed.action_id, failed.reason, "--state-dir" in failed.message) == ("id-two", "RuntimeError", True)
    await take_all(spool)
    assert agent.progress.ended == {"w": "Failed"}
    world.ends.clear()
    world.trouble = 0
    agent.handle(OTHER)
    await take_all(spool)
    assert world.runs == {"one": 1, "other": 1}
    assert "can be written again" in caplog.text


@pytest.mark.parametrize("trouble", [errno.ENOSPC, errno.EROFS])
async def test_agent_goes_on_with_a_journal_on_a_full_disk_but_not_on_a_read_only_one(trouble):
    """A full disk can be marked incomplete later. A read-only one may be old: the agent before could not write it."""
    world = World()
    world.trouble = 0
    await sent(world, disk=TroubledDisk(world))
    await kill()
    world.trouble = trouble
    agent, spool = await restart(world, disk=TroubledDisk(world))
    goes_on = trouble == errno.ENOSPC
    assert (agent.progress.workflow is not None, "w" in agent.progress.ended) == (goes_on, not goes_on)
    await take_all(spool)
    assert bool(world.runs) == goes_on


# --- an agent that is started again -----------------------------------------------------------------------------------


async def test_events_acknowledged_while_the_agent_closes_do_not_end_the_workflow_in_the_journal():
    world, agent, spool = await started("one", ends={"run one": HANG})
    await taken(spool, 1)
    spool.append(ActionStarted("w", "another"))
    await agent.close()
    await take_all(spool)
    agent, spool = await restart(world)
    assert agent.held_workflows() == ("w",)
    await turns(30)
    assert [type(event) for _, event in spool.pending] == [ActionFailed]


async def test_stop_before_the_death_still_counts_after_it():
    world, agent, spool = await started("one", ends={"run one": DEAF})
    await taken(spool, 1)
    agent.handle(StopWorkflow("w"))
    await kill()
    _, spool = await restart(world)
    await turns(30)
    assert spool.pending[-1][1].reason == "Canceled"
    assert world.runs == {"one": 1}


async def test_stop_reaches_an_action_that_was_asked_back():
    world, _, spool = await started("one", ends={"run one": DEAF, "resume one": HANG})
    await taken(spool, 1)
    await kill()
    agent, spool = await restart(world)
    for command in (StartWorkflow(world.workflow), StopWorkflow("w"), StopWorkflow("w")):
        agent.handle(command)
    await turns(30)
    assert [event.reason for _, event in spool.pending if isinstance(event, ActionFailed)] == ["Canceled"]


async def test_everything_that_an_action_has_is_the_same_after_a_restart():
    odd = RenderedAction("a0", "act\udc80", "img", "cmd", ("a", "\n"), {"K": "v\u2028"}, ("/a:/b",), "host", "host")
    world = World(ends={"pull img": DEAF})
    world.workflow = Workflow("w", (odd, *workflow("two").actions))
    _, agent, _ = await sent(world)
    await kill()
    again, _ = await restart(world)
    assert again.progress == agent.progress == ExecutionProgress(world.workflow)


async def test_ended_workflows_are_remembered_through_restarts():
    world, agent, spool = await started("one")
    await take_all(spool)
    for _ in range(3):
        agent, spool = await restart(world)
    assert agent.held_workflows() == ()
    agent.handle(StartWorkflow(world.workflow))
    assert rejected(spool) == ("w", "AlreadyFinished")
    assert agent.held_workflows() == ("w",), "the server has not received the answer yet"


# --- the command ------------------------------------------------------------------------------------------------------


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
        ("env", {"a": "x" * 131070}),
    ],
)
def test_action_that_no_runtime_can_run_is_named(field, value):
    with pytest.raises(ActionError, match="action act") as caught:
        check(RenderedAction(**{"id": "a", "name": "act", "image": "i", field: value}))
    assert caught.value.reason == "InvalidAction"


def test_sigterm_ends_the_command_cleanly(tmp_path, monkeypatch):
    class TermAtOnce(World):
        async def prepare(self, held=""):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(agent_module, "make_runtime", lambda _: TermAtOnce())
    assert run(AgentSettings(agent_id="a", server="127.0.0.1:1", runtime="process", state_dir=tmp_path)) == 0


def test_missing_runtime_program_is_named(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(AgentSettings(agent_id="a", server="127.0.0.1:1", state_dir=tmp_path)) == 1
    assert "runc is not on PATH" in caplog.text


def test_file_of_credentials_that_has_none_is_named(tmp_path, monkeypatch, caplog):
    (tmp_path / "crun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, logged in (("absent", "No such file"), ("crun", "is not JSON")):
        given = {"runtime": "crun", "state_dir": tmp_path, "registry_config": tmp_path / name}
        assert run(AgentSettings(agent_id="a", server="127.0.0.1:1", **given)) == 1
        assert f"registry config: {tmp_path}/{name}: " in caplog.text
        assert logged in caplog.text


def test_agent_imports_nothing_that_the_osie_does_not_have():
    code = (
        "import sys, tink.agent, tink.agent.runtimes.oci, tink.agent.runtimes.process\n"
        "heavy = {'aiohttp', 'pydantic', 'kubernetes_asyncio', 'click', 'yaml', 'jinja2', 'orjson', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_state_directories_are_made_for_their_owner_alone_and_left_alone_when_they_are_there(tmp_path):
    """The file has the environment of actions."""
    state = tmp_path / "runc"
    before = os.umask(0)
    try:
        with only_agent_in(tmp_path / "agent"):
            pass
        await ProcessRuntime(tmp_path / "process").prepare()
        await ContainerRuntime("crun", state, ImageStore(state, Registries())).prepare()
    finally:
        os.umask(before)
    made = [tmp_path / "agent", tmp_path / "process", state, state / "run"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700}
    tmp_path.chmod(0o755)
    with only_agent_in(tmp_path):
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755

"""Behaviour of runc only: start, stop and clean-up; and the whole agent with runc, as a process of its own that
receives its Workflows from a server in the test's process."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import grpc.aio
import pytest

import tink.agent.runtimes.oci as runc_module
from proto import workflow_pb2 as pb
from proto.workflow_pb2_grpc import WorkflowServiceServicer, add_WorkflowServiceServicer_to_server
from tests.interop.containers.conftest import ROOT, Machine, shell
from tests.interop.containers.engines import run
from tests.waiting import PATIENCE_SECONDS, until
from tink.agent.model import ActionError


async def test_action_of_another_user_has_no_capabilities(machine, caplog):
    caplog.set_level("INFO")
    assert (await machine.sh("grep CapEff /proc/self/status", image="writer")).succeeded
    assert any("CapEff" in message and message.endswith("0000000000000000") for message in caplog.messages)


async def test_silent_failure_shows_both_kinds_of_output(machine):
    result = await machine.sh("echo out; echo err >&2; exit 3")
    # Of two pipes, either may be read first.
    assert sorted(result.message.split(" | ")) == ["err", "exit code 3", "out"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"volumes": ("/run/gone.sock:/x",)}, "this machine has no /run/gone.sock"),
        ({"pid_namespace": "one"}, "'one' is neither"),
    ],
)
async def test_action_that_could_not_be_run_is_known_before_its_turn(machine, fields, why):
    """Actions that run after the end of their Workflow are checked early: a later failure could not be reported."""
    action = shell(machine.registry, "exit 1")
    await machine.runtime.pull(action.image, asyncio.Event())
    machine.runtime.check(action)
    with pytest.raises(ActionError, match=why):
        machine.runtime.check(shell(machine.registry, "true", **fields))


async def test_stop_in_the_moment_of_the_start_is_not_lost(machine):
    action = shell(machine.registry, "sleep 600")
    await machine.runtime.pull(action.image, asyncio.Event())
    for delay in (0, 0.03, 0.08):
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(delay, stop.set)
        await asyncio.wait_for(machine.runtime.run(action, stop), PATIENCE_SECONDS)


async def test_missing_image_is_named(machine):
    image = f"{machine.registry}/alike/nothing:1"
    with pytest.raises(ActionError, match=f"image {image}: manifest unknown") as caught:
        await machine.sh("true", image="nothing")
    assert caught.value.reason == "ImagePullFailed"


async def test_where_no_overlay_can_be_mounted_the_image_is_copied(machine, monkeypatch, caplog):
    def no_overlay(*paths):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(runc_module, "mount_overlay", no_overlay)
    assert (await machine.sh("echo x >/bin/new; test -x /bin/busybox")).succeeded
    assert (await machine.sh("test ! -e /bin/new")).succeeded
    assert "copied instead" in caplog.text


async def test_container_that_a_killed_agent_left_is_removed_before_a_new_one_writes(machine, tmp_path):
    await machine.kill_agent("touch /host/up; sleep 600", tmp_path)
    [left] = (machine.place / "run").iterdir()
    pid = json.loads(run("runc", "--root", machine.place / "containers", "state", left.name))["pid"]
    assert Path(f"/proc/{pid}").exists()
    await machine.runtime.prepare()
    assert not Path(f"/proc/{pid}").exists()
    assert await machine.leftovers() == []


async def test_missing_cgroups_are_explained(machine, tmp_path):
    # As under `ip netns exec`, which hides /sys/fs/cgroup.
    wrapper = tmp_path / "runc-without-cgroups"
    wrapper.write_text('#!/bin/sh\nexec unshare -m sh -c \'umount -R /sys/fs/cgroup; exec runc "$@"\' sh "$@"\n')
    wrapper.chmod(0o755)
    with pytest.raises(ActionError, match=r"cgroup.*nsenter"):
        await Machine(machine.registry, place=machine.place, program=str(wrapper)).sh("true")


# --- the whole agent --------------------------------------------------------------------------------------------------


class Server(WorkflowServiceServicer):
    """Sends the commands in `commands` and keeps the events."""

    def __init__(self):
        self.commands = asyncio.Queue()
        self.events = []

    async def GetWorkflows(self, request, context):  # noqa: N802 - the service's name
        while True:
            yield await self.commands.get()

    async def PublishEvent(self, request, context):  # noqa: N802
        self.events.append(request.event)
        return pb.PublishEventResponse()

    def start(self, workflow_id, *actions):
        command = pb.GetWorkflowsResponse()
        command.start_workflow.workflow.workflow_id = workflow_id
        command.start_workflow.workflow.actions.extend(actions)
        self.commands.put_nowait(command)

    async def reported(self, count):
        """Wait for `count` events; return their kind, action and reason."""
        await until(lambda: len(self.events) >= count, lambda: self.events)
        events = [getattr(event, event.WhichOneof("event")) for event in self.events]
        return [(type(event).__name__, event.action_id, getattr(event, "failure_reason", "")) for event in events]


@pytest.fixture
async def server():
    servicer, grpc_server = Server(), grpc.aio.server()
    add_WorkflowServiceServicer_to_server(servicer, grpc_server)
    servicer.address = f"127.0.0.1:{grpc_server.add_insecure_port('127.0.0.1:0')}"
    await grpc_server.start()
    yield servicer
    await grpc_server.stop(None)


@pytest.fixture
async def agent(server, machine, tmp_path):
    """The agent in a process of its own, configured by a kernel command line."""
    script = (
        "import logging, sys\n"
        "from pathlib import Path\n"
        "from tink.agent import from_kernel_command_line, run\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "sys.exit(run(from_kernel_command_line(sys.argv[1], state_dir=Path(sys.argv[2]), "
        "after_workflow=('sh', '-c', 'echo $TINKEDGE_WORKFLOW_STATE >>' + sys.argv[3]))))\n"
    )
    cmdline = f"quiet worker_id=52:54:00:00:00:01 grpc_authority={server.address}"
    with (tmp_path / "agent.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", script, cmdline, str(machine.place), str(tmp_path / "after")],
            cwd=ROOT,
            stderr=log,
        )
    yield process
    if process.poll() is None:
        process.kill()
        process.wait()


async def test_agent_runs_workflows_and_reports_to_the_server(machine, server, agent, registry, tmp_path):
    image = f"{registry}/alike/plain:1"
    sh = {"image": image, "cmd": "/bin/sh"}
    shared = {**sh, "volumes": ["e2e:/v"]}
    server.start(
        "w1",
        pb.Workflow.Action(id="1", name="one", args=["-c", "echo data >/v/file"], **shared),
        pb.Workflow.Action(
            id="2", name="two", args=["-c", "cat /v/file; test $A = b"], env={"A": "b"}, volumes=["e2e:/v"], **sh
        ),
    )
    assert await server.reported(4) == [
        ("ActionStarted", "1", ""),
        ("ActionSucceeded", "1", ""),
        ("ActionStarted", "2", ""),
        ("ActionSucceeded", "2", ""),
    ]
    await until((tmp_path / "after").exists)

    async def starts_again():
        """Start the Workflow once more. It is rejected until the stop of the last action is complete."""
        del server.events[4:]
        server.start("w2", pb.Workflow.Action(id="1", name="bad", args=["-c", "exit 1"], **sh))
        await until(lambda: len(server.events) > 4)
        return server.events[4].WhichOneof("event") != "workflow_rejected"

    await until(starts_again, every=0.1)
    assert (await server.reported(6))[4:] == [("ActionStarted", "1", ""), ("ActionFailed", "1", "NonZeroExit")]
    await until(lambda: (tmp_path / "after").read_text() == "Succeeded\nFailed\n")
    agent.terminate()
    assert await asyncio.to_thread(agent.wait, PATIENCE_SECONDS) == 0
    log = (tmp_path / "agent.log").read_text()
    assert "two: data" in log
    assert "Traceback" not in log


async def test_agent_that_is_terminated_takes_its_container_with_it(machine, server, agent, registry, tmp_path):
    action = pb.Workflow.Action(
        id="1", name="long", image=f"{registry}/alike/plain:1", cmd="/bin/sh",
        args=["-c", "trap 'exit 0' TERM; touch /host/up; while :; do sleep 0.05; done"], volumes=[f"{tmp_path}:/host"],
    )  # fmt: skip
    server.start("w3", action)  # a unique id: the agents of this file share a state directory, which stores old ids
    await until((tmp_path / "up").exists)
    agent.terminate()
    assert await asyncio.to_thread(agent.wait, PATIENCE_SECONDS) == 0
    assert await server.reported(1) == [("ActionStarted", "1", "")]
    assert await machine.leftovers() == []

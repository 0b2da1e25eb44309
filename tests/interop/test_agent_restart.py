"""`tinkedge agent` as a process of its own, against a server in this one: killed, stopped, and started twice."""

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import grpc
import grpc.aio
import pytest

from proto import metadata, output_pb2
from proto import workflow_pb2 as pb
from proto.output_pb2_grpc import OutputServiceServicer, add_OutputServiceServicer_to_server
from proto.workflow_pb2_grpc import WorkflowServiceServicer, add_WorkflowServiceServicer_to_server
from tests.waiting import PATIENCE_SECONDS, until


class Server(WorkflowServiceServicer, OutputServiceServicer):
    """Hands out Workflows one after the other, each until it has ended, as `tink.server` does."""

    def __init__(self):
        self.workflows = {}
        self.states = {}
        self.events = []
        self.lines = []
        self.held = []
        self.hears = True

    def add(self, workflow_id, *scripts):
        workflow = pb.Workflow(workflow_id=workflow_id)
        for index, script in enumerate(scripts):
            workflow.actions.add(
                id=f"{workflow_id}-{index}", name=f"act{index}", image="i", cmd="/bin/sh", args=["-c", script]
            )
        self.workflows[workflow_id] = workflow
        self.states[workflow_id] = "Scheduled"

    async def GetWorkflows(self, request, context):  # noqa: N802 - the service's name
        held = [value for key, value in context.invocation_metadata() if key == metadata.WORKFLOW]
        self.held.append(held)
        assert held, "the agent must say what it holds, also when that is nothing"
        sent = set()
        for workflow_id, state in self.states.items():
            if state == "Running" and workflow_id not in held:
                self.states[workflow_id] = "Failed AgentLost"
        while True:
            for workflow_id, state in list(self.states.items()):
                if state == "Running" or workflow_id in held:
                    if state in ("Scheduled", "Running"):
                        break  # one at a time
                elif state == "Scheduled":
                    if workflow_id in sent:
                        break
                    sent.add(workflow_id)
                    start = pb.GetWorkflowsResponse.StartWorkflow(workflow=self.workflows[workflow_id])
                    yield pb.GetWorkflowsResponse(start_workflow=start)
                    break
            await asyncio.sleep(0.02)

    async def PublishEvent(self, request, context):  # noqa: N802
        if not self.hears:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        event = request.event
        self.events.append(event)
        kind = event.WhichOneof("event")
        if self.states[event.workflow_id] in ("Scheduled", "Running"):
            last = self.workflows[event.workflow_id].actions[-1].id
            if kind == "action_started":
                self.states[event.workflow_id] = "Running"
            elif kind == "action_failed":
                self.states[event.workflow_id] = f"Failed {event.action_failed.failure_reason}"
            elif kind == "action_succeeded" and event.action_succeeded.action_id == last:
                self.states[event.workflow_id] = "Succeeded"
        return pb.PublishEventResponse()

    async def WriteOutput(self, request_iterator, context):  # noqa: N802
        async for piece in request_iterator:
            self.lines += piece.lines
        return output_pb2.WriteOutputResponse()

    def ended(self):
        return all(state not in ("Scheduled", "Running") for state in self.states.values())


class Rig:
    def __init__(self, state_dir, port):
        self.state_dir = state_dir
        self.port = port
        self.processes = []
        self.within = ()

    async def start(self, *more):
        process = await asyncio.create_subprocess_exec(
            *(*self.within, sys.executable, "-m", "edge.cli", "agent", "--runtime", "process"),
            *("--agent-id", "52:54:00:00:00:01"),
            *("--server", f"127.0.0.1:{self.port}", "--state-dir", str(self.state_dir), *more),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    async def close(self):
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.fixture
async def server():
    return Server()


@pytest.fixture
async def rig(server, tmp_path):
    listening = grpc.aio.server()
    add_WorkflowServiceServicer_to_server(server, listening)
    add_OutputServiceServicer_to_server(server, listening)
    port = listening.add_insecure_port("127.0.0.1:0")
    await listening.start()
    made = Rig(tmp_path / "state", port)
    yield made
    await made.close()
    await listening.stop(None)


def counting(tmp_path, workflow_id, index, seconds=0.1):
    """An action that writes its name to a file when it begins, and again when it ends."""
    return f"echo begun-{workflow_id}-{index} >>{tmp_path}/runs; sleep {seconds}"


def runs(tmp_path):
    with contextlib.suppress(FileNotFoundError):
        return Counter((tmp_path / "runs").read_text().split())
    return Counter()


async def test_workflow_and_its_output(server, rig, tmp_path):
    server.add("w", "echo hello from the action", counting(tmp_path, "w", 1))
    agent = await rig.start()
    await until(server.ended)
    await until(lambda: "hello from the action" in server.lines)
    assert server.states == {"w": "Succeeded"}
    assert server.held == [[""]]
    agent.terminate()
    assert await asyncio.wait_for(agent.wait(), PATIENCE_SECONDS) == 0


async def test_kill_9_at_any_moment_runs_no_action_twice_and_every_workflow_ends(server, rig, tmp_path):
    rng = random.Random(20261122)
    for number in range(6):
        workflow_id = f"w{number}"
        server.add(workflow_id, *(counting(tmp_path, workflow_id, index) for index in range(4)))
    agent = await rig.start()
    for begun in (2, 6, 10):  # at the latest: of six Workflows three are left that nothing happens to
        await until(lambda begun=begun: runs(tmp_path).total() >= begun)
        await asyncio.sleep(rng.uniform(0, 0.15))
        agent.send_signal(signal.SIGKILL)
        await agent.communicate()
        agent = await rig.start()
    await until(server.ended)
    counts = runs(tmp_path)
    assert all(count == 1 for count in counts.values()), counts
    states = Counter(server.states.values())
    assert set(states) <= {"Succeeded", "Failed AgentRestarted"}, states
    assert states["Succeeded"] >= 1, states
    for workflow_id, state in server.states.items():
        if state == "Succeeded":
            assert all(counts[f"begun-{workflow_id}-{index}"] == 1 for index in range(4))


async def test_agent_that_was_killed_says_what_it_holds(server, rig, tmp_path):
    server.add("w", counting(tmp_path, "w", 0, 30))
    agent = await rig.start()
    await until(lambda: runs(tmp_path))
    agent.kill()
    await agent.communicate()
    await rig.start()
    await until(server.ended)
    assert server.states == {"w": "Failed AgentRestarted"}
    assert server.held == [[""], ["w"]]
    message = server.events[-1].action_failed.failure_message
    assert "act0" in message


async def test_sigterm_stops_the_action_and_a_new_agent_reports_it(server, rig, tmp_path):
    server.add("w", f"trap 'echo ended >>{tmp_path}/runs; exit 0' TERM; echo begun >>{tmp_path}/runs; sleep 30 & wait")
    agent = await rig.start()
    await until(lambda: runs(tmp_path))
    agent.terminate()
    assert await asyncio.wait_for(agent.wait(), PATIENCE_SECONDS) == 0
    assert runs(tmp_path) == {"begun": 1, "ended": 1}
    assert server.states == {"w": "Running"}, "the server may not hear that it failed: the machine may be going down"
    await rig.start()
    await until(server.ended)
    assert server.states == {"w": "Failed AgentRestarted"}
    assert runs(tmp_path) == {"begun": 1, "ended": 1}


async def test_second_agent_on_one_state_directory_is_refused_and_the_first_goes_on(server, rig, tmp_path):
    first = await rig.start()
    await until(lambda: server.held)
    second = await rig.start()
    _, said = await asyncio.wait_for(second.communicate(), PATIENCE_SECONDS)
    assert second.returncode == 1
    assert f"is used by another agent, process {first.pid}" in said.decode()
    server.add("w", counting(tmp_path, "w", 0))
    await until(server.ended)
    assert server.states == {"w": "Succeeded"}


async def test_lock_of_an_agent_that_was_killed_is_free_although_its_action_still_runs(server, rig, tmp_path):
    server.add("w", f"echo $$ >{tmp_path}/pid; exec sleep 30")
    agent = await rig.start()
    await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    agent.kill()
    await agent.communicate()
    try:
        await rig.start()
        await until(server.ended)
        assert server.states == {"w": "Failed AgentRestarted"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.fixture
async def small_disk(rig, tmp_path):
    """The state directory is a file system of 64 kB, in a mount namespace that only agents see. Gives its path here."""
    rig.state_dir.mkdir()
    mounting = f"mount -t tmpfs -o size=64k tmpfs {rig.state_dir} && echo mounted && exec sleep 600"
    keeper = await asyncio.create_subprocess_exec(
        *("unshare", "--mount", "--propagation", "private", "sh", "-c", mounting), stdout=asyncio.subprocess.PIPE
    )
    assert await keeper.stdout.readline() == b"mounted\n"
    rig.within = ("nsenter", "--mount", f"--target={keeper.pid}", f"--wd={Path.cwd()}")
    yield Path(f"/proc/{keeper.pid}/root{rig.state_dir}")
    await rig.close()
    keeper.kill()
    await keeper.communicate()


def fill(directory):
    """Leave no block of a file system of 64 kB."""
    with pytest.raises(OSError, match="No space left"):
        (directory / "filler").write_bytes(b"x" * 65536)


@pytest.mark.parametrize("heard", ["nothing", "the first action"])
async def test_full_disk_an_absent_server_and_a_kill_9_run_no_action_twice(server, rig, small_disk, tmp_path, heard):
    """Of what it would begin next the agent can tell neither its disk nor the server: it has to wait."""
    agent = await rig.start()
    await until(lambda: server.held)
    fill(small_disk)
    server.hears = heard != "nothing"
    longer_than_a_block = "true " + "x" * 5000  # else there would be room for it in the file that is there
    held_up = f"until test -e {tmp_path}/go; do sleep 0.02; done"
    server.add("w", *(f"echo begun-{index} >>{tmp_path}/runs; {held_up}; {longer_than_a_block}" for index in range(3)))
    if server.hears:
        await until(lambda: runs(tmp_path))
        server.hears = False
        (tmp_path / "go").touch()
    said = await asyncio.wait_for(agent.stderr.readuntil(b"No space left on device"), PATIENCE_SECONDS)
    await asyncio.sleep(1.5)
    assert runs(tmp_path) == ({"begun-0": 1} if heard != "nothing" else {})
    agent.kill()
    await agent.communicate()
    assert "cannot be written: No space left on device" in said.decode()

    (tmp_path / "go").touch()
    await rig.start()
    await asyncio.sleep(0.5)
    server.hears = True
    await until(server.ended)
    if heard == "nothing":
        assert server.states == {"w": "Succeeded"}, "it had not begun, and needs no disk while the server hears of it"
        assert runs(tmp_path) == {"begun-0": 1, "begun-1": 1, "begun-2": 1}
    else:
        assert server.states == {"w": "Failed AgentLost"}
        assert runs(tmp_path) == {"begun-0": 1}

"""The whole agent, in a process of its own, with runc: Workflows of a server in this one."""

import asyncio
import subprocess
import sys
from pathlib import Path

import grpc.aio
import pytest

from proto import workflow_pb2 as pb
from proto.workflow_pb2_grpc import WorkflowServiceServicer, add_WorkflowServiceServicer_to_server
from tests.waiting import PATIENCE_SECONDS, until


class Server(WorkflowServiceServicer):
    """Sends what is put into `commands` and keeps the events."""

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

    async def told(self, count):
        """Kind, action and reason of the first `count` events."""
        await until(lambda: len(self.events) >= count, lambda: self.events)
        found = [getattr(event, event.WhichOneof("event")) for event in self.events]
        return [(type(event).__name__, event.action_id, getattr(event, "failure_reason", "")) for event in found]


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
            cwd=Path(__file__).parents[3],
            stderr=log,
        )
    yield process
    if process.poll() is None:
        process.kill()
        process.wait()


async def test_agent_runs_workflows_and_tells_the_server(machine, server, agent, registry, tmp_path):
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
    assert await server.told(4) == [
        ("ActionStarted", "1", ""),
        ("ActionSucceeded", "1", ""),
        ("ActionStarted", "2", ""),
        ("ActionSucceeded", "2", ""),
    ]
    await until((tmp_path / "after").exists)

    async def taken():
        """It is rejected until the command after the last one has ended, which nobody tells."""
        del server.events[4:]
        server.start("w2", pb.Workflow.Action(id="1", name="bad", args=["-c", "exit 1"], **sh))
        await until(lambda: len(server.events) > 4)
        return server.events[4].WhichOneof("event") != "workflow_rejected"

    await until(taken, every=0.1)
    assert (await server.told(6))[4:] == [("ActionStarted", "1", ""), ("ActionFailed", "1", "NonZeroExit")]
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
    server.start("w3", action)  # an id of its own: the agents of this file share a state directory, which remembers
    await until((tmp_path / "up").exists)
    agent.terminate()
    assert await asyncio.to_thread(agent.wait, PATIENCE_SECONDS) == 0
    assert await server.told(1) == [("ActionStarted", "1", "")]
    assert await machine.leftovers() == []

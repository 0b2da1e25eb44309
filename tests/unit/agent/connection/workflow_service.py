"""A workflow service for tests of the agent's transport: a real gRPC server in this process that breaks, refuses, and
comes back; and a transport that talks to it without patience."""

import asyncio
import contextlib

import grpc
import grpc.aio

from proto import metadata
from proto import workflow_pb2 as pb
from proto.workflow_pb2_grpc import WorkflowServiceServicer, add_WorkflowServiceServicer_to_server
from tink.agent.connection.channel import connect
from tink.agent.connection.transport import RetryPolicy, Transport
from tink.agent.settings import AgentSettings

FAST = RetryPolicy(
    initial_backoff=0.02,
    max_backoff=0.1,
    refused_backoff=0.05,
    publish_timeout=10.0,
    refusal_timeout=0.3,
    gone_timeout=0.3,
    established_after=0.1,
)


class Server(WorkflowServiceServicer):
    """Streams what is put into `commands` ("break" aborts, "end" ends the stream) and keeps the events it took."""

    def __init__(self):
        self.commands = asyncio.Queue()
        self.agents = []
        self.held = []
        self.events = []
        self.attempts = 0
        self.stalls = 0
        self.stream_status = []
        self.event_status = []

    async def GetWorkflows(self, request, context):  # noqa: N802 - the service's name
        self.agents.append(request.agent_id)
        self.held.append([value for key, value in context.invocation_metadata() if key == metadata.WORKFLOW])
        if self.stream_status:
            await context.abort(*self.stream_status.pop(0))
        while True:
            command = await self.commands.get()
            if command == "break":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "broken by the test")
            if command == "end":
                return
            yield command

    async def PublishEvent(self, request, context):  # noqa: N802
        self.attempts += 1
        if self.stalls:
            self.stalls -= 1
            await asyncio.sleep(3600)
        if self.event_status:
            await context.abort(*self.event_status.pop(0))
        self.events.append(request.event)
        return pb.PublishEventResponse()


def stop(workflow_id):
    return pb.GetWorkflowsResponse(stop_workflow=pb.GetWorkflowsResponse.StopWorkflow(workflow_id=workflow_id))


@contextlib.asynccontextmanager
async def serving(servicer, port):
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0)])
    add_WorkflowServiceServicer_to_server(servicer, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)
        # What gRPC finishes after this event loop is closed fails in the loop, and the log, of the next test.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=1)


async def open_channel(server, tls_roots=None):
    """The agent's channel to `server`; encrypted when `tls_roots` is given."""
    tls = {} if tls_roots is None else {"tls": True, "tls_roots": tls_roots}
    return await connect(AgentSettings("52:54:00:00:00:01", server, **tls), asyncio.Event())


@contextlib.asynccontextmanager
async def transporting(port, spool, received, policy=FAST, held_workflows=tuple, channel=None, **shown):
    channel = channel or await open_channel(f"127.0.0.1:{port}")
    transport = Transport(
        channel,
        server=f"127.0.0.1:{port}",
        agent_id="52:54:00:00:00:01",
        spool=spool,
        held_workflows=held_workflows,
        policy=policy,
        **shown,
    )
    tasks = [asyncio.create_task(transport.commands(received.append)), asyncio.create_task(transport.publish())]
    try:
        yield
        assert not any(task.done() for task in tasks), "the transport gave up"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await channel.close()

"""A workflow service for tests of the agent's transport: a real gRPC server in this process that breaks, refuses, and
comes back; and a transport that talks to it without patience."""

import asyncio
import contextlib

import grpc
import grpc.aio

from proto import metadata
from proto import workflow_pb2 as pb
from proto.workflow_pb2_grpc import (
    WorkflowServiceServicer,
    WorkflowServiceStub,
    add_WorkflowServiceServicer_to_server,
)
from tests.ports import free_port
from tests.support.objects import MAC
from tink.agent.connection import RetryPolicy, Transport, connect
from tink.agent.journal import Spool
from tink.agent.settings import AgentSettings

FAST = RetryPolicy(
    initial_backoff=0.02,
    max_backoff=0.1,
    refused_backoff=0.05,
    publish_timeout=60.0,
    refusal_timeout=0.3,
    gone_timeout=0.3,
    established_after=0.1,
    patience=60.0,
)
PROBE = "probe"


class Server(WorkflowServiceServicer):
    """Streams what is put into `commands` ("break" aborts, "end" ends the stream) and keeps the events it took.

    `before` is awaited with the action's id and gRPC's context before an event is taken.
    """

    def __init__(self):
        self.commands = asyncio.Queue()
        self.agents, self.held = [], []
        self.seen, self.canceled, self.events = [], [], []
        self.stream_status, self.event_status = [], []
        self.before = self.hold()[1]

    def hold(self, *actions):
        """Keep the events of these actions waiting until the event that is returned first is set."""
        go = asyncio.Event()

        async def before(action, _):
            if action in actions:
                await go.wait()

        self.before = before
        return go, before

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
        action = getattr(getattr(request.event, request.event.WhichOneof("event")), "action_id", "rejected")
        if action == PROBE:
            return pb.PublishEventResponse()
        self.seen.append(action)
        try:
            await self.before(action, context)
        except asyncio.CancelledError:
            self.canceled.append(action)
            raise
        if self.event_status:
            await context.abort(*self.event_status.pop(0))
        self.events.append(request.event)
        return pb.PublishEventResponse()


class Link:
    """A server at a free port, and the agent's side of it; `left` is what an earlier agent has left to be sent."""

    def __init__(self, left=()):
        self.server, self.port, self.spool, self.received = Server(), free_port(), Spool([*enumerate(left, 1)]), []

    def serving(self, credentials=None):
        return serving(self.server, self.port, credentials)

    @contextlib.asynccontextmanager
    async def transporting(self, policy=FAST, **more):
        self.channel = more.pop("channel", None) or await open_channel(f"127.0.0.1:{self.port}")
        async with transporting(
            self.port, self.spool, self.received, policy, channel=self.channel, **more
        ) as transport:
            yield transport

    @contextlib.asynccontextmanager
    async def up(self, policy=FAST, **more):
        async with self.serving(), self.transporting(policy, **more):
            yield self.server, self.spool

    async def round_trips(self):
        """Return when the server has what the transport has sent so far: calls that came later are answered."""
        event = pb.Event(action_started=pb.Event.ActionStarted(action_id=PROBE))
        for _ in range(3):  # gRPC hands out calls that came at once in any order
            await WorkflowServiceStub(self.channel).PublishEvent(pb.PublishEventRequest(event=event))


def stop(workflow_id):
    return pb.GetWorkflowsResponse(stop_workflow=pb.GetWorkflowsResponse.StopWorkflow(workflow_id=workflow_id))


@contextlib.asynccontextmanager
async def serving(servicer, port, credentials=None, *, more=lambda server: None):
    """Run the service at a port; `more` adds others to the server of gRPC."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0)])
    add_WorkflowServiceServicer_to_server(servicer, server)
    more(server)
    if credentials is None:
        server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        server.add_secure_port(f"127.0.0.1:{port}", credentials)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(None)
        # What gRPC finishes after this event loop is closed fails in the loop, and the log, of the next test.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=1)


async def open_channel(server, tls_roots=None):
    """Return the agent's channel to `server`; encrypted if `tls_roots` is given."""
    tls = {} if tls_roots is None else {"tls": True, "tls_roots": tls_roots}
    return await connect(AgentSettings(MAC, server, **tls), asyncio.Event())


@contextlib.asynccontextmanager
async def transporting(port, spool, received, policy=FAST, held_workflows=tuple, channel=None, **shown):
    channel = channel or await open_channel(f"127.0.0.1:{port}")
    settings = AgentSettings(MAC, f"127.0.0.1:{port}", **shown)
    transport = Transport(channel, settings, spool, held_workflows, policy)
    tasks = [asyncio.create_task(transport.commands(received.append)), asyncio.create_task(transport.publish())]
    try:
        yield transport
        assert not any(task.done() for task in tasks), "the transport gave up"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await channel.close()

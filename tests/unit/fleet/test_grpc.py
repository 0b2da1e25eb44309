"""The fleet's gRPC against grpcio's own server: calls, streams, statuses, metadata; and headers byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from edge.fleet.protocols import hpack
from edge.fleet.protocols.grpc import UNAVAILABLE, Call, Connection
from proto import workflow_pb2 as pb
from proto.workflow_pb2_grpc import WorkflowServiceServicer, add_WorkflowServiceServicer_to_server

METHOD = b"/internal.proto.workflow.v2.WorkflowService/"


class Owner:
    def __init__(self) -> None:
        self.is_connected = asyncio.Event()
        self.is_lost = asyncio.Event()

    def connected(self) -> None:
        self.is_connected.set()

    def lost(self, why: str) -> None:
        self.is_lost.set()


class Service(WorkflowServiceServicer):
    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.events = 0

    async def GetWorkflows(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802 - gRPC's name
        self.heard.append(dict(context.invocation_metadata()) | {"agent": request.agent_id})
        await context.send_initial_metadata((("tinkedge-token", "next"),))
        for number in range(3):
            yield pb.GetWorkflowsResponse(stop_workflow=pb.GetWorkflowsResponse.StopWorkflow(workflow_id=str(number)))

    async def PublishEvent(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.events += 1
        if request.event.workflow_id == "gone":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such workflow")
        return pb.PublishEventResponse()


@asynccontextmanager
async def connected(service: Service) -> AsyncIterator[tuple[Connection, Owner, grpc.aio.Server]]:
    server = grpc.aio.server()
    add_WorkflowServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    owner = Owner()
    connection = Connection(owner, f"127.0.0.1:{port}")
    await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", port)
    try:
        yield connection, owner, server
    finally:
        connection.close()
        await server.stop(None)


async def ended(connection: Connection, method: bytes, request: bytes, **callbacks: Any) -> tuple[int, str]:
    done: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
    fields = callbacks.pop("fields", ())
    call = Call(lambda status, text: done.set_result((status, text)), **callbacks)
    connection.call(METHOD + method, (request,), fields, call)
    return await asyncio.wait_for(done, 10)


def event(workflow: str) -> bytes:
    return pb.PublishEventRequest(event=pb.Event(workflow_id=workflow)).SerializeToString()


async def test_stream_gives_its_messages_token_and_end():
    service, messages, fields = Service(), [], {}
    async with connected(service) as (connection, _, _):
        request = pb.GetWorkflowsRequest(agent_id="m-1").SerializeToString()
        given = (b"authorization", b"Bearer " + b"x" * 300)
        status = await ended(
            connection, b"GetWorkflows", request, message=messages.append, opened=fields.update, fields=(given,)
        )
    assert status == (0, "")
    assert [pb.GetWorkflowsResponse.FromString(each).stop_workflow.workflow_id for each in messages] == ["0", "1", "2"]
    assert fields["tinkedge-token"] == "next"
    assert (service.heard[0]["agent"], len(service.heard[0]["authorization"])) == ("m-1", 307)


async def test_calls_end_with_the_status_of_the_server():
    async with connected(Service()) as (connection, _, _):
        assert await ended(connection, b"PublishEvent", event("here")) == (0, "")
        assert await ended(connection, b"PublishEvent", event("gone")) == (5, "no such workflow")
        assert (await ended(connection, b"NoSuchMethod", b""))[0] == 12


async def test_more_than_the_servers_window_is_sent_as_it_opens():
    service = Service()
    async with connected(service) as (connection, _, _):
        calls = [ended(connection, b"PublishEvent", event("x" * 20_000)) for _ in range(40)]
        assert await asyncio.gather(*calls) == [(0, "")] * 40
    assert service.events == 40


async def test_calls_under_way_end_when_the_server_goes():
    async with connected(Service()) as (connection, owner, server):
        await asyncio.wait_for(owner.is_connected.wait(), 10)
        await server.stop(None)
        await asyncio.wait_for(owner.is_lost.wait(), 10)
        assert (await ended(connection, b"PublishEvent", event("here")))[0] == UNAVAILABLE


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        """Nothing is there."""

    def data_bytes(self) -> int:
        """Bytes in DATA frames."""
        at, count = self.written.index(b"SM\r\n\r\n") + 6, 0
        while at < len(self.written):
            size = int.from_bytes(self.written[at : at + 3], "big")
            count += size if self.written[at + 3] == 0 else 0
            at += 9 + size
        return count


async def test_no_more_is_sent_than_the_server_has_room_for():
    wire, connection = Wire(), Connection(Owner(), "h:1")
    connection.connection_made(wire)
    for _ in range(5):
        connection.call(METHOD + b"PublishEvent", (bytes(20_000),), (), Call(lambda _status, _text: None))
    sent = wire.data_bytes()
    assert 40_000 < sent <= 65_535, "RFC 9113 section 6.9.2"
    connection.data_received(bytes.fromhex("000004080000000000") + (100_000).to_bytes(4, "big"))
    assert wire.data_bytes() == 5 * 20_005
    connection.close()


def test_header_fields_come_back_as_they_were_written():
    block = hpack.request(b"/a/b", b"h:1", [(b"x-long", b"v" * 500), (b"grpc-status", b"0")])
    assert hpack.fields(block) | {} == {":path": "/a/b", ":authority": "h:1", "x-long": "v" * 500, "grpc-status": "0"}


@pytest.mark.parametrize(
    "block", [b"\x00\x7f", b"\x00\x05ab", b"\x7f\xff\xff\xff\xff\xff\xff", b"\x00\x01a\x7f\x80\x80"]
)
def test_header_block_that_lies_is_an_error(block):
    with pytest.raises(hpack.HpackError):
        hpack.fields(block)


def test_huffman_coded_value_is_passed_over():
    assert hpack.fields(b"\x00\x01a\x82\xff\xff" + hpack.literal(b"b", b"c")) == {"a": "", "b": "c"}

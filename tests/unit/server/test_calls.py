"""The server's shell with real clients: tokens, health, reflection, crowds, garbage, and its end."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from prometheus_client import CollectorRegistry

from proto import metadata
from proto import workflow_pb2 as pb
from tests.support.objects import MAC
from tests.unit.server.conftest import Rig, started
from tests.waiting import PATIENCE_SECONDS, until
from tink.kube.cache import AWAY_SECONDS
from tink.server.auth import AgentAuth, TokenKeys, TokenSettings
from tink.server.connections.accounts import PortLimits
from tink.server.connections.calls import ConcurrencyLimiter
from tink.server.connections.guard import Guard

OTHER = "52:54:00:00:00:09"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


# --- tokens ---


@pytest.fixture
async def keys(rig: Rig, tmp_path: Path) -> TokenKeys:
    """The keys of a server that requires tokens, with two machines."""
    settings = TokenSettings(tmp_path / "key", 3600, create=True)
    await rig.start(agent_auth=AgentAuth.TOKEN, tokens=settings)
    rig.machine(ip="192.0.2.1")
    rig.machine("other", OTHER, ip="192.0.2.9")
    return TokenKeys(settings)


def bearer(token: str) -> Any:
    return ((metadata.AUTHORIZATION, f"Bearer {token}"),)


def open_stream(rig: Rig, token: str | None, agent_id: str = MAC) -> Any:
    request = pb.GetWorkflowsRequest(agent_id=agent_id)
    return rig.agent().stub.GetWorkflows(request, metadata=bearer(token) if token is not None else ())


async def test_a_token_opens_the_stream_and_the_machine_gets_a_new_one(rig: Rig, keys: TokenKeys) -> None:
    call = open_stream(rig, keys.mint(MAC, rig.now - 1800))
    given = dict(await call.initial_metadata())[metadata.TOKEN]
    found = keys.verify(given, rig.now)
    assert (found.mac, found.expires) == (MAC, int(rig.now) + 3600)


async def test_stream_and_events_need_the_machines_token_and_none_is_not_a_wrong_one(rig: Rig, keys: TokenKeys) -> None:
    rig.workflow(state="Scheduled")
    assert await open_stream(rig, None).code() is grpc.StatusCode.UNAUTHENTICATED
    assert (await rig.agent().refused(started("a0")))[0] is grpc.StatusCode.UNAUTHENTICATED
    request, stub = pb.PublishEventRequest(event=started("a0")), rig.agent().stub
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.PublishEvent(request, metadata=bearer(keys.mint(OTHER, rig.now)))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert rig.state() == "Scheduled"
    await stub.PublishEvent(request, metadata=bearer(keys.mint(MAC, rig.now)))
    assert rig.state() == "Running"


async def test_a_stream_ends_in_time_for_its_token_to_be_renewed(
    rig: Rig, keys: TokenKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.server._parts.authorizer._tokens, "lifetime", 0.4)
    call = open_stream(rig, keys.mint(MAC, rig.now))
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert await call.details() == "connect again, and the token is renewed"


async def test_a_stream_lives_by_the_token_that_it_was_given(rig: Rig, keys: TokenKeys) -> None:
    """The one that opened it may have ended when something of the Hardware changes."""
    call = open_stream(rig, keys.mint(MAC, rig.now - 3500))
    await call.initial_metadata()
    rig.now += 1000
    rig.machine(ip="192.0.2.1")
    rig.workflow()
    message = await call.read()
    assert message is not grpc.aio.EOF, await call.details()
    assert message.WhichOneof("cmd") == "start_workflow"


# --- what gRPC's tools ask ---


async def test_health_service_reports_whether_the_server_knows_the_machines_reaches_the_api_and_stops(rig: Rig) -> None:
    rig.workflows.listed(done=False)
    await rig.start(stop_grace=PATIENCE_SECONDS)
    stub: Any = health_pb2_grpc.HealthStub(rig.agent().channel)
    service = pb.DESCRIPTOR.services_by_name["WorkflowService"].full_name
    watch = stub.Watch(health_pb2.HealthCheckRequest())

    async def becomes(status: Any) -> None:
        assert (await watch.read()).status == status
        for name in ("", service):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE_SECONDS)
            assert answer.status == status

    await becomes(NOT_SERVING)
    rig.workflows.listed()
    await becomes(SERVING)
    rig.workflows.failing_for = AWAY_SECONDS + 1
    await becomes(NOT_SERVING)
    rig.workflows.failing_for = 0.0
    await becomes(SERVING)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(health_pb2.HealthCheckRequest(service="what"), timeout=PATIENCE_SECONDS)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    stopping = asyncio.ensure_future(rig.server.stop())
    assert (await watch.read()).status == NOT_SERVING, "before connections break"
    watch.cancel()
    await stopping


async def test_calls_are_counted_by_method_and_by_how_they_ended(rig: Rig) -> None:
    await rig.serve()
    agent = await rig.connected()
    registry = CollectorRegistry()
    registry.register(rig.server)
    assert registry.get_sample_value("tinkedge_agents_connected") == 1
    rig.workflow()
    await agent.command()
    await agent.publish(started("a0"))
    with pytest.raises(grpc.aio.AioRpcError):
        await agent.publish(started("a0", workflow="none"))
    with pytest.raises(grpc.aio.AioRpcError):
        await agent.channel.unary_unary("/x.Y/whatever-a-stranger-writes")(b"")
    service = pb.DESCRIPTOR.services_by_name["WorkflowService"].full_name

    def handled(method: str, code: str, of: str = service) -> float | None:
        labels = {"grpc_type": "unary", "grpc_service": of, "grpc_method": method, "grpc_code": code}
        return registry.get_sample_value("grpc_server_handled_total", labels)

    # Who called has the answer a little before it is counted.
    await until(lambda: handled("unknown", "Unimplemented", "unknown") == 1)
    await until(lambda: (handled("PublishEvent", "OK"), handled("PublishEvent", "NotFound")) == (1, 1))
    unary = {"grpc_type": "unary", "grpc_service": service, "grpc_method": "PublishEvent"}
    assert registry.get_sample_value("grpc_server_handling_seconds_count", unary) == 2
    await agent.channel.close()
    await until(lambda: registry.get_sample_value("tinkedge_agents_connected") == 0)
    stream = {"grpc_type": "server_stream", "grpc_service": service, "grpc_method": "GetWorkflows"}
    assert registry.get_sample_value("grpc_server_started_total", stream) == 1
    assert registry.get_sample_value("grpc_server_handled_total", stream | {"grpc_code": "Canceled"}) == 1


async def test_reflection_lists_the_services(rig: Rig) -> None:
    await rig.start()

    def ask() -> tuple[list[str], Any]:
        with grpc.insecure_channel(f"127.0.0.1:{rig.server.port}") as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            services = list(database.get_services())
            name = pb.DESCRIPTOR.services_by_name["WorkflowService"].full_name
            return services, database.FindFileContainingSymbol(name)

    services, file = await asyncio.to_thread(ask)
    assert {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} < set(services)
    assert [method.name for method in file.service[0].method] == ["GetWorkflows", "PublishEvent"]


# --- crowds ---


async def test_calls_of_all_are_bounded_and_places_come_free(rig: Rig) -> None:
    await rig.start(calls=3)
    for number in range(4):
        rig.machine(f"h{number}", f"52:54:00:00:01:0{number}")
    agents = [rig.agent() for _ in range(4)]
    for number in range(3):
        await agents[number].accepted(f"h{number}")
    agents[3].connect("h3")
    code, words = await agents[3].ending()
    assert (code, words) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "the server serves as many calls as it can: try again later",
    )
    agents[0].call.cancel()

    async def accepted() -> bool:
        try:
            await agents[3].accepted("h3")
        except grpc.aio.AioRpcError:
            return False
        return True

    await until(accepted)


async def test_one_address_can_not_take_the_places_of_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tink.server.connections.calls")
    monkeypatch.setattr("tink.server.connections.calls.is_loopback", lambda _: False)
    await rig.start(calls_per_address=5, agent_auth=AgentAuth.NONE)
    for number in range(40):
        rig.machine(f"h{number}", f"52:54:00:00:01:{number:02x}")
    flood = rig.agent()
    calls = [flood.stub.GetWorkflows(pb.GetWorkflowsRequest(agent_id=f"h{number}")) for number in range(40)]
    await until(lambda: sum(call.done() for call in calls) >= 35)
    over = [call for call in calls if call.done()]
    assert {await call.code() for call in over} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert "127.0.0.1 has 5 calls open already" in await over[0].details()
    assert len(caplog.records) == 1, "a flood is one line"


def test_others_have_their_places_while_one_address_has_used_up_its_own() -> None:
    limiter = ConcurrencyLimiter(8, 3, Guard(PortLimits(100, 100)), time.monotonic)
    with ExitStack() as places:

        def take(address: str) -> None:
            context: Any = SimpleNamespace(peer=lambda: f"ipv4:{address}:4711")
            places.enter_context(limiter._place(context))

        for _ in range(3):
            take("192.0.2.1")
        with pytest.raises(Exception, match=r"192\.0\.2\.1 has 3 calls open already"):
            take("192.0.2.1")
        for address in ("192.0.2.2", *["127.0.0.1"] * 4):
            take(address)
        with pytest.raises(Exception, match="as many calls as it can"):
            take("192.0.2.3")
    assert limiter._calls == 0
    assert not limiter._by_address, "no address is remembered whose calls have ended"


async def test_an_agent_that_connects_a_thousand_times_fills_no_log(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    begin = time.monotonic()
    await rig.serve()
    flood = rig.agent()
    calls = [flood.stub.GetWorkflows(pb.GetWorkflowsRequest(agent_id=MAC)) for _ in range(1000)]
    await until(lambda: sum(call.done() for call in calls) >= 999)
    codes = {await call.code() for call in calls if call.done()}
    assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes
    # Some come before gRPC's client knows how many a connection may have; of those that connect, the newest is served.
    assert codes <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED}
    seconds = time.monotonic() - begin
    assert rig.kinds().count("connected") <= 21 + seconds, "twenty, and one a second"
    assert 1 <= rig.kinds().count("refused") <= 1 + seconds / 10
    assert len(caplog.records) < 5 * (21 + seconds)


# --- what is no message ---


async def raw_call(rig: Rig, method: str, message: bytes) -> tuple[grpc.StatusCode, str]:
    """Bytes as they are."""
    name = f"/{pb.DESCRIPTOR.services_by_name['WorkflowService'].full_name}/{method}"
    channel = rig.agent().channel
    call = channel.unary_unary(name)(message, timeout=PATIENCE_SECONDS)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


@pytest.mark.parametrize("method", ["GetWorkflows", "PublishEvent"])
@pytest.mark.parametrize("message", [b"\x0a\x02\xff\xfe", b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 100])
async def test_what_is_no_message_is_answered_and_not_logged_as_our_fault(
    rig: Rig, caplog: pytest.LogCaptureFixture, method: str, message: bytes
) -> None:
    await rig.start()
    assert (await raw_call(rig, method, message))[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_message_that_is_too_large_is_refused_before_it_is_read(rig: Rig) -> None:
    await rig.start()
    code = grpc.StatusCode.UNAVAILABLE
    while code is grpc.StatusCode.UNAVAILABLE:  # the guard may end the connection while gRPC reads the message
        code, words = await raw_call(rig, "PublishEvent", b"\x0a" * (300 << 10))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in words
    assert (await raw_call(rig, "Nonsense", b""))[0] is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 1000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 500]
)
async def test_garbage_on_the_port_disturbs_no_agent(rig: Rig, garbage: bytes) -> None:
    await rig.serve()
    agent = await rig.connected()
    for _ in range(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.server.port)
        writer.write(garbage)
        async with asyncio.timeout(20):
            try:
                while await reader.read(4096):
                    pass
            except ConnectionResetError:
                pass
        writer.close()
    rig.workflow()
    assert await agent.command() == ("start", "uid-w")


# --- the end ---


async def test_an_event_under_way_is_stored_and_answered_while_the_server_stops(rig: Rig) -> None:
    await rig.serve("Scheduled")
    rig.hold()
    agent, idle = rig.agent(), rig.agent()
    publishing = asyncio.ensure_future(agent.publish(started("a0")))
    await until(lambda: rig.state() == "Running")
    await idle.accepted()
    stopping = asyncio.ensure_future(rig.server.stop())
    assert await idle.ending() == (grpc.StatusCode.UNAVAILABLE, "the server is stopping")
    rig.gate.open()
    await publishing
    await stopping


async def test_an_event_that_can_not_end_does_not_keep_the_server(rig: Rig) -> None:
    await rig.serve("Scheduled", stop_grace=0.3)
    rig.hold()
    publishing = asyncio.ensure_future(rig.agent().publish(started("a0")))
    await until(lambda: rig.state() == "Running")
    await rig.server.stop()
    with pytest.raises(grpc.aio.AioRpcError):
        await publishing

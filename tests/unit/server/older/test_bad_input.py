"""Bytes that no agent would send, to every method of the older services: a status each, and the server goes on."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from itertools import product

import grpc
import pytest

from proto import older_pb2 as pb
from tests.unit.server.conftest import Rig
from tests.unit.server.older.test_agents import MAC, OLDEST, OWN, TinkAgent, hold
from tests.unit.server.older.test_conversations import CONVERSATIONS

METHODS = (
    *(f"{OWN}/{name}" for name in ("GetAction", "GetWorkflowContexts", "GetWorkflowActions", "ReportActionStatus")),
    *(f"{OLDEST}/{name}" for name in ("GetWorkflowContexts", "GetWorkflowActions", "ReportActionStatus")),
    *(f"{OLDEST}/{name}" for name in ("GetWorkflowData", "UpdateWorkflowData")),
)
REQUESTS = sorted(
    {
        bytes.fromhex(call["request"])
        for path in CONVERSATIONS
        for call in json.loads(path.read_text())["calls"]
        if call["request"]
    },
    key=lambda request: (len(request), request),
)
"""Messages of the real programs. Each is tried with the methods of the others, too."""
REFUSALS = {
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
TOO_LARGE = 300_000


def malformed(seed: int) -> Iterator[bytes]:
    drawn = random.Random(seed)
    for request in REQUESTS:
        yield request[: drawn.randrange(len(request))]
        changed = bytearray(request)
        for _ in range(3):
            changed[drawn.randrange(len(changed))] = drawn.randrange(256)
        yield bytes(changed)
        yield request + request  # every field once more
    for _ in range(10):
        yield drawn.randbytes(drawn.randrange(1, 80))
    yield pb.ActionRequest(agent_id="x" * 100_000).SerializeToString()
    yield pb.WorkflowActionsRequest(workflow_id="\x00\u202e").SerializeToString()
    yield b"\x0b" * 5000  # groups within groups


async def status(channel: grpc.aio.Channel, method: str, request: bytes) -> grpc.StatusCode:
    try:
        if method.endswith("/GetWorkflowContexts"):
            async for _ in channel.unary_stream(method)(request, timeout=30):
                pass
        else:
            await channel.unary_unary(method)(request, timeout=30)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.fixture
async def serving(rig: Rig) -> Rig:
    await rig.serve()
    hold(rig, 0.01)
    return rig


async def goes_on(rig: Rig) -> None:
    """An honest agent gets its work done afterwards."""
    hold(rig, 30)
    rig.workflow("after", created=9)
    agent = TinkAgent(rig.agent(apart=True).channel)
    for _ in range(2):
        await agent.run()
    assert rig.state("after") == "Succeeded"


@pytest.mark.parametrize("seed", [1, 2])
async def test_calls_that_no_agent_makes_get_a_status_and_do_not_affect_others(
    serving: Rig, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    channel = serving.agent(apart=True).channel
    for method, request in product(METHODS, [*REQUESTS, *malformed(seed)]):
        code = await status(channel, method, request)
        assert code in REFUSALS | {grpc.StatusCode.OK}, (method, request[:100])
    # What fails in a method of ours is UNKNOWN, and a traceback.
    ours = [record for record in caplog.records if record.exc_info and "deserializ" not in record.getMessage().lower()]
    assert not [record.getMessage() for record in ours if record.name.startswith("tink")]
    await goes_on(serving)


@pytest.mark.parametrize("method", METHODS)
async def test_message_that_is_too_large_is_refused_before_it_is_read(serving: Rig, method: str) -> None:
    channel = serving.agent(apart=True).channel
    large = pb.ActionRequest(agent_id="x" * TOO_LARGE).SerializeToString()
    assert await status(channel, method, large) is grpc.StatusCode.RESOURCE_EXHAUSTED
    await goes_on(serving)


async def test_report_of_one_dialect_to_the_service_of_another_has_its_usual_effect(serving: Rig) -> None:
    serving.workflow()
    hold(serving, 30)
    action = await TinkAgent(serving.agent(apart=True).channel).poll()
    channel = serving.agent(apart=True).channel
    report = pb.ActionStatusRequest(
        workflow_id=action.workflow_id, agent_id=MAC, action_id="a1", action_state=pb.ActionStatusRequest.SUCCESS
    ).SerializeToString()
    cut = [report[:length] for length in range(len(report))]
    for method, request in product((f"{OWN}/ReportActionStatus", f"{OLDEST}/ReportActionStatus"), cut):
        assert await status(channel, method, request) in {grpc.StatusCode.OK, grpc.StatusCode.INTERNAL}
    states = [each["state"] for each in serving.read("w")["status"]["actions"]]
    assert states == ["Pending", "Pending"]

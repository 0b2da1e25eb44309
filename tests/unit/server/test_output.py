"""The output of actions reaches the journey of its own machine, in bounds, and no other agent can add to it."""

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from proto import output_pb2 as pb
from proto.output_pb2_grpc import OutputServiceStub
from tests.unit.server.conftest import Rig
from tests.waiting import PATIENCE_SECONDS
from tink.server.activity import ActivityKind, AgentActivity
from tink.server.service import (
    LINE_CHARACTERS,
    LINES,
    PIECE_CHARACTERS,
    PIECES_AT_ONCE,
    OutputService,
    Speaker,
    fitting,
)


def piece(*lines: str, action: str = "a0", workflow: str = "uid-w", dropped: int = 0) -> pb.WriteOutputRequest:
    return pb.WriteOutputRequest(workflow_id=workflow, action_id=action, lines=lines, dropped=dropped)


async def send(rig: Rig, *pieces: pb.WriteOutputRequest) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{rig.server.port}") as channel:
        stub: Any = OutputServiceStub(channel)
        await stub.WriteOutput(iter(pieces), timeout=PATIENCE_SECONDS)


async def refused(rig: Rig, *pieces: pb.WriteOutputRequest) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send(rig, *pieces)
    return caught.value.code(), caught.value.details() or ""


def outputs(rig: Rig) -> list[AgentActivity]:
    return [each for each in rig.seen if each.kind is ActivityKind.OUTPUT]


async def test_lines_are_told_of_the_machine_the_workflow_and_the_action_by_their_names(rig: Rig) -> None:
    await rig.serve("Running")
    await send(rig, piece("one", "two", dropped=3), piece("three", action="a1"), piece("x", action="no-such"))
    first, second = outputs(rig)
    assert (first.hardware, first.workflow, first.action) == ("d/h", "d/w", "first")
    assert (first.message, first.lines, first.dropped) == ("action first: two", ("one", "two"), 3)
    assert (second.action, second.lines) == ("second", ("three",))
    assert (await refused(rig, piece("x", workflow="no-such")))[0] is grpc.StatusCode.NOT_FOUND


async def test_output_from_elsewhere_than_the_machine_is_marked(rig: Rig) -> None:
    await rig.start(agent_auth="none")
    rig.machine(ip="192.0.2.1")
    rig.machine("near", "52:54:00:00:00:02", "127.0.0.1")
    rig.workflow(state="Running")
    rig.workflow("theirs", state="Running", hardware="near")
    await send(rig, piece("forged"), piece("own", workflow="uid-theirs"))
    assert [(each.lines, each.peer, each.elsewhere) for each in outputs(rig)] == [
        (("forged",), "127.0.0.1", True),
        (("own",), "127.0.0.1", False),
    ]


async def test_right_to_speak_is_asked_for_with_every_piece(rig: Rig) -> None:
    await rig.serve()
    rig.machine("other", "52:54:00:00:00:02", "192.0.2.2")
    rig.workflow(state="Running")
    rig.workflow("theirs", state="Running", hardware="other")
    for pieces in ([piece("mine"), piece("forged", workflow="uid-theirs")], [piece("forged", workflow="uid-theirs")]):
        code, text = await refused(rig, *pieces)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "127.0.0.1 can't speak for the machine of this Workflow" in text
    assert [each.lines for each in outputs(rig)] == [("mine",)]


class Desk:
    """The service without a network: what it told, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.seen: list[AgentActivity] = []
        self.service = OutputService(self._authorise, self.seen.append, lambda: self.now)

    async def _authorise(self, workflow_id: str, _: Any) -> Speaker:
        return Speaker("mac", "192.0.2.1", f"d/{workflow_id}", f"d/{workflow_id}", {"a0": "first"})

    async def take(self, *pieces: pb.WriteOutputRequest) -> None:
        async def each() -> Any:
            for one in pieces:
                yield one

        await self.service.WriteOutput(each(), None)  # type: ignore[arg-type] # an answered call needs no context


async def test_an_agent_that_floods_is_left_out_and_told_how_much_and_others_are_heard() -> None:
    desk = Desk()
    await desk.take(*(piece("x", "y") for _ in range(500)))
    assert len(desk.seen) == PIECES_AT_ONCE
    await desk.take(piece("other machine", workflow="other"))
    assert desk.seen[-1].lines == ("other machine",)
    desk.now += 1
    await desk.take(piece("later"))
    assert (desk.seen[-1].lines, desk.seen[-1].dropped) == (("later",), 2 * (500 - PIECES_AT_ONCE))
    await desk.take(piece("again"))
    assert desk.seen[-1].dropped == 0
    await desk.take(piece(dropped=2**63))
    assert desk.seen[-1].lines == ()
    assert desk.seen[-1].message.endswith("lines of output left out")


async def test_machines_that_once_spoke_do_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tink.server.service.MACHINES", 10)
    monkeypatch.setattr("tink.server.service.PIECES_AT_ONCE", 1)
    desk = Desk()
    for number in range(50):
        await desk.take(piece("x", workflow=f"w{number}"), piece("y", workflow=f"w{number}"))
    assert len(desk.service._buckets) == len(desk.service._left_out) == 10


@pytest.mark.parametrize(
    ("lines", "check"),
    [
        (["\x1b[2Jboo\x07"], lambda kept: kept == ("?[2Jboo?",)),
        (["x" * 10_000], lambda kept: kept == ("x" * LINE_CHARACTERS,)),
        ([str(n) for n in range(1000)], lambda kept: len(kept) == LINES and kept[-1] == "999"),
        (["x" * 300] * 90, lambda kept: 0 < sum(map(len, kept)) <= PIECE_CHARACTERS),
        (["x" * (PIECE_CHARACTERS // 13 - 1)] * 20, lambda kept: len(kept) == 13),  # each with its line feed
        (["", *["x" * (PIECE_CHARACTERS // 13 - 1)] * 13], lambda kept: len(kept) == 13),
        (["tab\there", ""], lambda kept: kept == ("tab\there", "")),
    ],
)
def test_what_is_told_is_bounded_and_printable_and_the_newest(
    lines: list[str], check: Callable[[tuple[str, ...]], bool]
) -> None:
    assert check(fitting(lines))

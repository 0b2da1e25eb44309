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
from tink.server.auth import AgentAuth
from tink.server.service import (
    MAX_LINE_CHARACTERS,
    MAX_LINES,
    MAX_PIECE_CHARACTERS,
    MAX_PIECES_AT_ONCE,
    OutputService,
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


async def test_lines_are_reported_with_the_names_of_machine_workflow_and_action(rig: Rig) -> None:
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
        assert "127.0.0.1 may not act for the machine of this Workflow" in text
    assert [each.lines for each in outputs(rig)] == [("mine",)]


class Call:
    """The context of a call from this host, without a network."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def auth_context(self) -> dict[str, Any]:
        return {}

    def invocation_metadata(self) -> tuple[()]:
        return ()


class Desk:
    """The output service of a started rig, called without a network, and a clock that the test moves."""

    def __init__(self, rig: Rig) -> None:
        self.now = 1000.0
        self.rig = rig
        self.service = OutputService(rig.server._callers, lambda: self.now)

    def machine(self, name: str) -> None:
        """Add a machine and its Workflow of the same name."""
        self.rig.machine(name, ip=None)
        self.rig.workflow(name, "Running", hardware=name)

    @property
    def seen(self) -> list[AgentActivity]:
        return outputs(self.rig)

    async def take(self, *pieces: pb.WriteOutputRequest) -> None:
        async def each() -> Any:
            for one in pieces:
                yield one

        await self.service.WriteOutput(each(), Call())  # type: ignore[arg-type]


async def test_output_above_the_rate_limit_of_one_machine_is_counted_and_other_machines_are_unaffected(
    rig: Rig,
) -> None:
    await rig.serve(agent_auth=AgentAuth.NONE)
    desk = Desk(rig)
    desk.machine("w")
    desk.machine("other")
    await desk.take(*(piece("x", "y") for _ in range(500)))
    assert len(desk.seen) == MAX_PIECES_AT_ONCE
    await desk.take(piece("other machine", workflow="uid-other"))
    assert desk.seen[-1].lines == ("other machine",)
    desk.now += 1
    await desk.take(piece("later"))
    assert (desk.seen[-1].lines, desk.seen[-1].dropped) == (("later",), 2 * (500 - MAX_PIECES_AT_ONCE))
    await desk.take(piece("again"))
    assert desk.seen[-1].dropped == 0
    await desk.take(piece(dropped=2**63))
    assert desk.seen[-1].lines == ()
    assert desk.seen[-1].message.endswith("lines of output left out")


async def test_rate_limits_of_past_machines_do_not_fill_memory(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tink.server.service.MAX_MACHINES", 10)
    monkeypatch.setattr("tink.server.service.MAX_PIECES_AT_ONCE", 1)
    await rig.serve(agent_auth=AgentAuth.NONE)
    desk = Desk(rig)
    for number in range(50):
        desk.machine(f"w{number}")
        await desk.take(piece("x", workflow=f"uid-w{number}"), piece("y", workflow=f"uid-w{number}"))
    assert len(desk.service._buckets) == len(desk.service._left_out) == 10


@pytest.mark.parametrize(
    ("lines", "check"),
    [
        (["\x1b[2Jboo\x07"], lambda kept: kept == ("?[2Jboo?",)),
        (["x" * 10_000], lambda kept: kept == ("x" * MAX_LINE_CHARACTERS,)),
        ([str(n) for n in range(1000)], lambda kept: len(kept) == MAX_LINES and kept[-1] == "999"),
        (["x" * 300] * 90, lambda kept: 0 < sum(map(len, kept)) <= MAX_PIECE_CHARACTERS),
        (["x" * (MAX_PIECE_CHARACTERS // 13 - 1)] * 20, lambda kept: len(kept) == 13),  # each with its line feed
        (["", *["x" * (MAX_PIECE_CHARACTERS // 13 - 1)] * 13], lambda kept: len(kept) == 13),
        (["tab\there", ""], lambda kept: kept == ("tab\there", "")),
    ],
)
def test_reported_lines_are_bounded_printable_and_the_newest(
    lines: list[str], check: Callable[[tuple[str, ...]], bool]
) -> None:
    assert check(fitting(lines))

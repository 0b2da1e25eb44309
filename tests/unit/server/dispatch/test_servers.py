"""Several servers with a stream of one agent each: no Workflow is claimed or sent twice."""

from __future__ import annotations

import grpc
import pytest

from tests.support.virtual_time import elapse
from tests.unit.server.conftest import Rig
from tests.unit.server.dispatch.conftest import Make
from tink.kube.client import UnreachableError

pytestmark = pytest.mark.looptime


async def test_two_servers_with_a_stream_each_never_claim_one_workflow_twice(rig: Rig, side: Make) -> None:
    servers = side(), side()
    await servers[0].calm()
    for name in ("a", "b", "c"):
        rig.workflow(name)
    await servers[0].calm()
    assert sorted(rig.state(name) for name in "abc") == ["Pending", "Pending", "Scheduled"]
    assert rig.patches == 3, "one of two claims failed, and was made anew before it was sent"


async def test_a_workflow_that_a_dead_stream_claimed_is_sent_by_the_living_one(rig: Rig, side: Make) -> None:
    alive = side()
    await alive.calm()
    rig.workflow(state="Scheduled")
    assert await alive.calm() == [("start", "uid-w")]


async def test_a_second_claim_of_a_dead_stream_is_given_back_and_comes_after_the_first(rig: Rig, side: Make) -> None:
    rig.workflow(state="Running")
    alive = side("uid-w")
    rig.workflow("second", state="Scheduled", created=1)
    assert await alive.calm() == []
    assert rig.state("second") == "Pending"
    rig.set_state("w", "Succeeded", actions=[{"id": "a0", "state": "Succeeded"}])
    assert await alive.calm() == [("start", "uid-second")]


async def test_a_workflow_that_was_rejected_here_and_claimed_elsewhere_is_sent_again(rig: Rig, side: Make) -> None:
    rig.workflow()
    there = side()
    assert await there.calm() == [("start", "uid-w")]
    rig.set_state("w", "Pending", dispatchAfter="2027-01-15T08:00:30Z")
    await there.calm()
    rig.set_state("w", "Scheduled")
    assert await there.calm() == [("start", "uid-w"), ("start", "uid-w")]


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_claim_of_a_stream_that_ended_is_taken_back_also_if_it_was_cancelled_meanwhile(
    rig: Rig, side: Make, deleted: bool
) -> None:
    """Of what nobody sent, nobody will ever report the end."""
    rig.workflow(dispatched=False)
    there = side(start=False)

    async def cancelled_meanwhile() -> None:
        there.stream.end(grpc.StatusCode.UNAVAILABLE, "broken")
        if deleted:
            rig.set_state("w", "Cancelling")

    rig.api.around("patch", after=cancelled_meanwhile)
    there.start()
    assert await there.calm() == []
    assert rig.state() == ("Canceled" if deleted else "Pending")


async def test_a_claim_that_another_stream_has_sent_is_not_taken_back(rig: Rig, side: Make) -> None:
    rig.workflow()
    old, new = side(start=False), side(start=False)

    async def sent_elsewhere() -> None:
        old.stream.end(grpc.StatusCode.ABORTED, "another agent connected")
        new.start()
        assert await new.calm() == [("start", "uid-w")]

    rig.api.around("patch", after=sent_elsewhere)
    old.start()
    assert await old.calm() == []
    for _ in range(3):
        await new.calm()
    assert new.commands == [("start", "uid-w")]
    assert rig.state() == "Scheduled"


async def test_a_claim_whose_answer_was_lost_is_sent_all_the_same(rig: Rig, side: Make) -> None:
    rig.workflow()
    rig.api.fail("patch", UnreachableError("broke off"), done=True)
    assert await side().calm() == [("start", "uid-w")]


async def test_an_api_that_is_away_is_asked_ever_more_rarely(rig: Rig, side: Make) -> None:
    rig.workflow()
    rig.api.fail("patch", *[UnreachableError("away")] * 1000)
    there = side()
    await elapse(16)
    assert 4 <= rig.patches <= 9
    rig.api.recover()
    there.stream.wake()
    assert await there.calm() == [("start", "uid-w")]


async def test_a_rejected_workflow_is_held_back_by_a_server_that_was_not_there(rig: Rig, side: Make) -> None:
    rig.workflow(rejections=1, dispatchAfter="2027-01-15T08:00:30Z")
    rig.workflow("younger", created=1)
    there = side()
    assert await there.calm() == []
    rig.now += 30
    there.stream.wake()
    assert await there.calm() == [("start", "uid-w")]

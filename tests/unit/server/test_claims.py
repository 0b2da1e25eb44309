"""Claims of Workflows: of two servers one has it, and what was never sent is taken back."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.server.bench import Bench
from tink.api.v1alpha2 import Raw
from tink.kube.client import NotFoundError, UnreachableError

pytestmark = pytest.mark.looptime


async def test_of_two_servers_that_claim_one_workflow_one_has_it(bench: Bench) -> None:
    bench.rig.workflow()
    other = Bench(bench.rig)
    other.index.apply(bench.seen())
    claims = await asyncio.gather(bench.store.claim(bench.seen()), other.store.claim(other.seen()))
    assert sorted(claim is not None for claim in claims) == [False, True]


NEVER_SENT: Raw = {"status": {"dispatched": False}}


async def claimed_by(bench: Bench) -> Raw:
    bench.rig.workflow()
    claimed = await bench.store.claim(bench.seen())
    assert claimed is not None
    return claimed


async def test_a_claim_is_given_back_unless_somebody_was_faster_or_the_api_is_away(bench: Bench) -> None:
    claimed = await claimed_by(bench)
    assert await bench.store.claim(claimed) is None, "it is not Pending"
    bench.rig.api.fail("patch", UnreachableError("away"), NotFoundError(404, "NotFound", "w"))
    assert await bench.store.give_back(claimed) is False
    assert await bench.store.give_back(claimed) is False
    assert await bench.store.give_back(claimed) is True
    assert bench.status()["state"] == "Pending"
    assert bench.status()["dispatched"] is True, "who claimed it may have sent it"
    assert await bench.store.give_back(claimed) is False, "changed since"
    assert await bench.store.give_back(bench.seen()) is False, "Pending already"


async def test_a_claim_that_was_never_sent_is_taken_back_though_the_api_is_away_and_the_object_changes(
    bench: Bench,
) -> None:
    claimed = await claimed_by(bench)
    bench.rig.set_state("w", "Scheduled")
    bench.rig.api.fail("patch", UnreachableError("away"), UnreachableError("away"))
    await bench.store.take_back(claimed, NEVER_SENT)
    assert (bench.status()["state"], bench.status()["dispatched"]) == ("Pending", False)


@pytest.mark.parametrize("state", ["Pending", "Scheduled", "Running", "Cancelling", "Canceled"])
async def test_a_claim_of_another_is_not_taken_back(bench: Bench, state: str) -> None:
    claimed = await claimed_by(bench)
    other = Bench(bench.rig)
    other.index.apply(bench.seen())
    assert await other.store.reclaim(other.seen()) is not None, "at the same moment"
    bench.rig.set_state("w", state)
    before = dict(bench.status())
    await bench.store.take_back(claimed, NEVER_SENT)
    assert bench.status() == before


async def test_what_was_cancelled_before_its_claim_could_be_sent_ends_with_the_claim(bench: Bench) -> None:
    claimed = await claimed_by(bench)
    bench.rig.set_state("w", "Cancelling")
    await bench.store.take_back(claimed, NEVER_SENT)
    assert bench.status()["state"] == "Canceled"


@pytest.mark.parametrize("state", ["Scheduled", "Cancelling"])
async def test_what_an_agent_may_have_had_before_the_claim_is_not_taken_for_unsent(bench: Bench, state: str) -> None:
    """An earlier claim was given back, and what was sent with it may have arrived."""
    claimed = await claimed_by(bench)
    bench.rig.set_state("w", state)
    await bench.store.take_back(claimed, {"status": {"dispatched": True}})
    assert bench.status()["dispatched"] is True
    assert bench.status()["state"] == {"Scheduled": "Pending"}.get(state, state)


async def test_a_workflow_that_is_gone_or_none_is_not_taken_back_for_ever(bench: Bench) -> None:
    claimed = await claimed_by(bench)
    bench.rig.set_state("w", "Bogus")
    await bench.store.take_back(claimed, NEVER_SENT)
    bench.rig.remove("w")
    await bench.store.take_back(claimed, NEVER_SENT)


async def test_an_api_that_is_away_is_one_line_in_the_log_and_not_one_for_each_machine(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(50):
        bench.rig.workflow(f"w{number}", hardware=f"h{number}")
        bench.rig.api.fail("patch", UnreachableError("away"))
        assert await bench.store.claim(bench.seen(f"w{number}")) is None
    assert len(caplog.records) == 1
    assert "can't be scheduled, trying again: away" in caplog.text

"""Events wait for the server in order, and do not fill the machine's memory."""

import asyncio

import pytest

from tink.agent.model import ActionStarted, ActionSucceeded, WorkflowRejected
from tink.agent.spool import REJECTION_LIMIT, MemorySpool


async def test_events_leave_in_the_order_they_came():
    spool = MemorySpool()
    events = [ActionStarted("w", "1"), ActionSucceeded("w", "1"), ActionStarted("w", "2")]
    for event in events:
        spool.append(event)
    taken = []
    for _ in events:
        number, event = await spool.head()
        assert await spool.head() == (number, event), "the head stays until it is settled"
        spool.settle(number, delivered=True)
        taken.append(event)
    assert taken == events
    assert len(spool) == 0


async def test_publisher_waits_for_the_next_event():
    spool = MemorySpool()
    waiting = asyncio.create_task(spool.head())
    await asyncio.sleep(0)
    assert not waiting.done()
    spool.append(ActionStarted("w", "1"))
    assert (await waiting)[1] == ActionStarted("w", "1")


@pytest.mark.parametrize("delivered", [True, False])
async def test_who_waits_for_an_event_learns_whether_the_server_has_it(delivered):
    spool = MemorySpool()
    future = spool.append(ActionSucceeded("w", "1"))
    number, _ = await spool.head()
    spool.settle(number, delivered=delivered)
    assert await future is delivered


async def test_server_that_repeats_a_command_and_takes_no_answer_does_not_fill_memory():
    spool = MemorySpool()
    for _ in range(10):
        spool.append(WorkflowRejected("w", "AlreadyRunning", "m"))
    assert len(spool) == 1
    for number in range(2 * REJECTION_LIMIT):
        spool.append(WorkflowRejected(f"w{number}", "AlreadyRunning", "m"))
    assert len(spool) == REJECTION_LIMIT
    spool.append(ActionStarted("w", "1"))
    assert len(spool) == REJECTION_LIMIT + 1, "what an action did is never dropped"

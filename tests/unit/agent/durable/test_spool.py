"""Events wait for the server in order, and do not fill the machine's memory."""

import asyncio

import pytest

from tink.agent.durable.spool import REJECTION_LIMIT, Spool
from tink.agent.model import ActionStarted, ActionSucceeded, WorkflowRejected


async def test_events_leave_in_the_order_they_came():
    spool = Spool()
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
    spool = Spool()
    waiting = asyncio.create_task(spool.head())
    await asyncio.sleep(0)
    assert not waiting.done()
    spool.append(ActionStarted("w", "1"))
    assert (await waiting)[1] == ActionStarted("w", "1")


async def test_spool_of_an_agent_that_died_goes_on_with_what_was_left_before_anything_new():
    spool = Spool([(7, ActionStarted("w", "1")), (8, ActionSucceeded("w", "1"))])
    spool.append(ActionStarted("w", "2"))
    assert [number for number, _ in spool.pending] == [7, 8, 9]
    number, event = await spool.head()
    assert (number, event) == (7, ActionStarted("w", "1"))
    spool.settle(number, delivered=True)
    assert len(spool) == 2


async def test_who_asks_for_a_workflows_last_event_waits_for_that_one():
    spool = Spool([(1, ActionStarted("w", "1")), (2, ActionStarted("other", "1"))])
    spool.append(ActionSucceeded("w", "1"))
    last = spool.last_of("w")
    for left in (2, 1, 0):
        assert last.done() == (left < 0)
        number, _ = await spool.head()
        spool.settle(number, delivered=True)
    assert last.result()
    assert spool.last_of("w").result(), "the server has them all"


async def test_what_has_left_the_spool_is_written_down_before_anybody_acts_on_it():
    spool, told = Spool(), []
    future = spool.append(ActionStarted("w", "1"))
    spool.on_settle(lambda: told.append((len(spool), future.done())))
    number, _ = await spool.head()
    spool.settle(number, delivered=True)
    assert told == [(0, False)]


@pytest.mark.parametrize("delivered", [True, False])
async def test_who_waits_for_an_event_learns_whether_the_server_has_it(delivered):
    spool = Spool()
    future = spool.append(ActionSucceeded("w", "1"))
    number, _ = await spool.head()
    spool.settle(number, delivered=delivered)
    assert await future is delivered


async def test_server_that_repeats_a_command_and_takes_no_answer_does_not_fill_memory():
    spool = Spool()
    for _ in range(10):
        spool.append(WorkflowRejected("w", "AlreadyRunning", "m"))
    assert len(spool) == 1
    for number in range(2 * REJECTION_LIMIT):
        spool.append(WorkflowRejected(f"w{number}", "AlreadyRunning", "m"))
    assert len(spool) == REJECTION_LIMIT
    spool.append(ActionStarted("w", "1"))
    assert len(spool) == REJECTION_LIMIT + 1, "what an action did is never dropped"


async def test_event_that_waits_for_something_is_not_sent_before_nor_are_those_behind_it():
    spool, news = Spool(), []
    spool.on_append(lambda: news.append(len(spool.first(8))))
    printed = asyncio.get_running_loop().create_future()
    spool.append(ActionSucceeded("w", "a"), after=printed)
    spool.append(ActionSucceeded("w", "b"))
    assert (spool.first(8), news, len(spool.pending)) == ([], [], 2)
    head = asyncio.create_task(spool.head())
    await asyncio.sleep(0.01)
    assert not head.done()
    printed.set_result(None)
    assert (await asyncio.wait_for(head, 20))[1] == ActionSucceeded("w", "a")
    assert news == [2]
    spool.settle(1, delivered=True)
    assert spool.first(8) == [(2, ActionSucceeded("w", "b"))]
    spool.settle(2, delivered=True)
    assert not spool._after, "nothing is kept of what has been told"


async def test_publisher_that_settles_another_than_the_oldest_is_a_fault_of_this_program():
    spool = Spool([(1, ActionStarted("w", "a")), (2, ActionSucceeded("w", "a"))])
    with pytest.raises(RuntimeError, match="event 2 is settled while 1 is the oldest"):
        spool.settle(2, delivered=True)

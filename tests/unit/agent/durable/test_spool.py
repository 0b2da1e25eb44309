"""Events wait for the server in order, and do not fill the machine's memory."""

import asyncio
import weakref

import pytest

from tests.support.virtual_time import turns
from tink.agent.durable.spool import REJECTION_LIMIT, Spool
from tink.agent.model import ActionStarted, ActionSucceeded, WorkflowRejected

STARTED, SUCCEEDED, NEXT = ActionStarted("w", "1"), ActionSucceeded("w", "1"), ActionStarted("w", "2")


async def settle(spool, *, delivered=True):
    number, event = await spool.head()
    assert await spool.head() == (number, event), "the head stays until it is settled"
    spool.settle(number, delivered=delivered)
    return event


async def test_events_leave_in_the_order_they_came():
    spool = Spool()
    for event in (STARTED, SUCCEEDED, NEXT):
        spool.append(event)
    assert [await settle(spool) for _ in range(3)] == [STARTED, SUCCEEDED, NEXT]
    assert len(spool) == 0


async def test_publisher_waits_for_the_next_event():
    spool = Spool()
    waiting = asyncio.create_task(spool.head())
    await turns(3)
    assert not waiting.done()
    spool.append(STARTED)
    assert (await waiting)[1] == STARTED


async def test_spool_of_an_agent_that_died_goes_on_with_what_was_left_before_anything_new():
    spool = Spool([(7, STARTED), (8, SUCCEEDED)])
    spool.append(NEXT)
    assert spool.pending == ((7, STARTED), (8, SUCCEEDED), (9, NEXT))
    assert await settle(spool) == STARTED
    assert len(spool) == 2


async def test_last_event_of_a_workflow_is_the_one_that_is_waited_for():
    spool = Spool([(1, STARTED), (2, ActionStarted("other", "1"))])
    spool.append(SUCCEEDED)
    last = spool.last_of("w")
    for _ in range(3):
        assert not last.done()
        await settle(spool)
    assert last.result()
    assert spool.last_of("w").result(), "the server has them all"


@pytest.mark.parametrize("delivered", [True, False])
async def test_event_that_leaves_is_kept_as_such_before_its_future_shows_whether_the_server_has_it(delivered):
    spool, told = Spool(), []
    future = spool.append(STARTED)
    spool.on_settle(lambda: told.append((len(spool), future.done())))
    await settle(spool, delivered=delivered)
    assert told == [(0, False)]
    assert await future is delivered


async def test_server_that_repeats_a_command_and_takes_no_answer_does_not_fill_memory():
    spool = Spool()
    for _ in range(10):
        spool.append(WorkflowRejected("w", "AlreadyRunning", "m"))
    assert len(spool) == 1
    for number in range(2 * REJECTION_LIMIT):
        spool.append(WorkflowRejected(f"w{number}", "AlreadyRunning", "m"))
    assert len(spool) == REJECTION_LIMIT
    spool.append(STARTED)
    assert len(spool) == REJECTION_LIMIT + 1, "what an action did is never dropped"


async def test_event_that_waits_for_something_is_not_sent_before_nor_are_those_behind_it():
    spool, news = Spool(), []
    spool.on_append(lambda: news.append(len(spool.first(8))))
    printed = asyncio.get_running_loop().create_future()
    spool.append(STARTED, after=printed)
    spool.append(SUCCEEDED)
    assert (spool.first(8), news, len(spool.pending)) == ([], [], 2)
    head = asyncio.create_task(spool.head())
    await turns(3)
    assert not head.done()
    printed.set_result(None)
    assert (await head)[1] == STARTED
    assert news == [2]
    spool.settle(1, delivered=True)
    assert spool.first(8) == [(2, SUCCEEDED)]
    left = weakref.ref(printed)
    del printed
    assert left() is None, "nothing is kept of an event that has been sent"


async def test_publisher_that_settles_another_than_the_oldest_is_a_fault_of_this_program():
    spool = Spool([(1, STARTED), (2, SUCCEEDED)])
    with pytest.raises(RuntimeError, match="event 2 is settled while 1 is the oldest"):
        spool.settle(2, delivered=True)

"""The work queue: never one key twice at a time, never a key lost."""

from __future__ import annotations

import asyncio

from tink.kube.workqueue import WorkQueue


def queue() -> WorkQueue[str]:
    return WorkQueue(0.01, 0.04, uniform=lambda low, high: high)


async def test_a_key_waits_once_however_often_it_is_added() -> None:
    q = queue()
    for key in ("a", "b", "a", "a"):
        q.add(key)
    assert [await q.take(), await q.take()] == ["a", "b"]
    taking = asyncio.create_task(q.take())
    await asyncio.sleep(0.01)
    assert not taking.done()
    taking.cancel()


async def test_a_key_added_while_it_is_worked_on_comes_again_when_that_is_done() -> None:
    q = queue()
    q.add("a")
    assert await q.take() == "a"
    q.add("a")
    taking = asyncio.create_task(q.take())
    await asyncio.sleep(0.01)
    assert not taking.done(), "two workers on one object"
    q.done("a")
    assert await asyncio.wait_for(taking, 1) == "a"


async def test_each_waiting_worker_gets_a_key() -> None:
    q = queue()
    workers = [asyncio.create_task(q.take()) for _ in range(3)]
    await asyncio.sleep(0)
    for key in "abc":
        q.add(key)
    assert sorted(await asyncio.wait_for(asyncio.gather(*workers), 1)) == ["a", "b", "c"]


async def test_a_later_timer_replaces_an_earlier_one_and_an_add_overtakes_it() -> None:
    q = queue()
    q.add_after("a", 0.01)
    q.add_after("a", 30)
    q.add_after("b", 0.02)
    assert await asyncio.wait_for(q.take(), 1) == "b"
    q.add("a")
    assert await asyncio.wait_for(q.take(), 1) == "a"
    q.done("a")
    q.add_after("c", -5)
    assert await asyncio.wait_for(q.take(), 1) == "c"
    q.close()


async def test_retries_of_a_key_grow_apart_until_it_is_settled() -> None:
    q = queue()
    assert [q.retry("a") for _ in range(4)] == [0.01, 0.02, 0.04, 0.04]
    assert q.retry("b") == 0.01
    q.settle("a")
    assert q.retry("a") == 0.01
    q.forget("a")
    assert await asyncio.wait_for(q.take(), 1) == "b"
    taking = asyncio.create_task(q.take())
    await asyncio.sleep(0.05)
    assert not taking.done(), "the timer of a forgotten key fired"
    taking.cancel()

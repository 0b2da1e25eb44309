"""Lines that take turns: each one's own stay in order, and nobody waits for another's whole line."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tink.kube.runtime import FairSemaphore
from tink.limits.fairness import FairQueue


@given(st.lists(st.tuples(st.integers(0, 4), st.integers())))
def test_everything_comes_out_in_the_order_of_its_line(items: list[tuple[int, int]]) -> None:
    queue: FairQueue[tuple[int, int]] = FairQueue()
    for item in items:
        queue.append(item[0], item)
    assert len(queue) == len(items)
    out = [queue.popleft() for _ in items]
    for flow in range(5):
        assert [each for each in out if each[0] == flow] == [each for each in items if each[0] == flow]
    assert len(queue) == 0
    with pytest.raises(IndexError):
        queue.popleft()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_nobody_is_served_twice_while_another_waits(flows: list[int]) -> None:
    queue: FairQueue[int] = FairQueue()
    for flow in flows:
        queue.append(flow, flow)
    left = {flow: flows.count(flow) for flow in flows}
    while left:
        turn = [queue.popleft() for _ in left]
        assert sorted(turn) == sorted(left)
        left = {flow: count - 1 for flow, count in left.items() if count > 1}


def test_what_is_dropped_is_the_last_of_whoever_has_most() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "b1", "b2", "b3"):
        queue.append(item[0], item)
    queue.drop()
    assert [queue.popleft() for _ in range(3)] == ["a1", "b1", "b2"]
    queue.append("a", "a1")
    queue.drop()
    assert len(queue) == 0


async def test_so_many_are_in_at_once_and_flows_come_in_by_turns() -> None:
    semaphore, inside, came = FairSemaphore(2), set[str](), list[str]()
    leave = asyncio.Event()

    async def go(name: str) -> None:
        async with semaphore.held(name[0]):
            inside.add(name)
            came.append(name)
            assert len(inside) <= 2
            await leave.wait()
            await asyncio.sleep(0)
            inside.discard(name)

    tasks = [asyncio.create_task(go(name)) for name in ("a1", "a2", "a3", "a4", "a5", "b1")]
    await asyncio.sleep(0.01)
    assert came == ["a1", "a2"]
    tasks[2].cancel()
    leave.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert came == ["a1", "a2", "b1", "a4", "a5"]
    async with asyncio.timeout(5), semaphore.held("a"), semaphore.held("b"):
        pass


async def test_one_that_is_cancelled_as_it_is_called_lets_the_next_one_in() -> None:
    semaphore = FairSemaphore(1)
    entered = semaphore.held("a")
    await entered.__aenter__()

    async def go() -> None:
        async with semaphore.held("b"):
            pass

    called, after = asyncio.create_task(go()), asyncio.create_task(go())
    await asyncio.sleep(0.01)
    await entered.__aexit__(None, None, None)
    called.cancel()
    await asyncio.wait_for(asyncio.gather(called, after, return_exceptions=True), 5)
    assert called.cancelled()
    assert after.exception() is None

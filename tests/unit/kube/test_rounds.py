"""Lines that take turns: each one's own stay in order, and nobody waits for another's whole line."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tink.kube.rounds import FairSemaphore, Rounds


@given(st.lists(st.tuples(st.integers(0, 4), st.integers())))
def test_everything_comes_out_in_the_order_of_its_line(items: list[tuple[int, int]]) -> None:
    rounds: Rounds[tuple[int, int]] = Rounds()
    for item in items:
        rounds.append(item[0], item)
    assert len(rounds) == len(items)
    out = [rounds.popleft() for _ in items]
    for whose in range(5):
        assert [each for each in out if each[0] == whose] == [each for each in items if each[0] == whose]
    assert len(rounds) == 0
    with pytest.raises(IndexError):
        rounds.popleft()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_nobody_is_served_twice_while_another_waits(owners: list[int]) -> None:
    rounds: Rounds[int] = Rounds()
    for whose in owners:
        rounds.append(whose, whose)
    left = {whose: owners.count(whose) for whose in owners}
    while left:
        turn = [rounds.popleft() for _ in left]
        assert sorted(turn) == sorted(left)
        left = {whose: count - 1 for whose, count in left.items() if count > 1}


def test_what_is_dropped_is_the_last_of_whoever_has_most() -> None:
    rounds: Rounds[str] = Rounds()
    for item in ("a1", "b1", "b2", "b3"):
        rounds.append(item[0], item)
    rounds.drop()
    assert [rounds.popleft() for _ in range(3)] == ["a1", "b1", "b2"]
    rounds.append("a", "a1")
    rounds.drop()
    assert len(rounds) == 0


async def test_so_many_are_in_at_once_and_owners_come_in_by_turns() -> None:
    semaphore, inside, came = FairSemaphore(2), set[str](), list[str]()
    leave = asyncio.Event()

    async def go(name: str) -> None:
        async with semaphore.entered(name[0]):
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
    async with asyncio.timeout(5), semaphore.entered("a"), semaphore.entered("b"):
        pass


async def test_one_that_is_cancelled_as_it_is_called_lets_the_next_one_in() -> None:
    semaphore = FairSemaphore(1)
    entered = semaphore.entered("a")
    await entered.__aenter__()

    async def go() -> None:
        async with semaphore.entered("b"):
            pass

    called, after = asyncio.create_task(go()), asyncio.create_task(go())
    await asyncio.sleep(0.01)
    await entered.__aexit__(None, None, None)
    called.cancel()
    await asyncio.wait_for(asyncio.gather(called, after, return_exceptions=True), 5)
    assert called.cancelled()
    assert after.exception() is None

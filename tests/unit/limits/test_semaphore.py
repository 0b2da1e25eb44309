"""Who has a slot when more wait than there are slots: nobody is forgotten, and nobody has two."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tink.limits.semaphore import PrioritySemaphore, Waiter


class Bench:
    """Those that wait, by number; each has its slot until `go`."""

    def __init__(self, most: int) -> None:
        self.semaphore = PrioritySemaphore(most)
        self.had: list[int] = []
        self.now = 0
        self.most = 0
        self.waiters: dict[int, Waiter] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.go = asyncio.Event()

    async def _wait(self, number: int) -> None:
        async with self.semaphore.slot(self.waiters[number]):
            self.had.append(number)
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await self.go.wait()
                await asyncio.sleep(0)
            finally:
                self.now -= 1

    async def come(self, number: int, time: float) -> None:
        self.waiters[number] = Waiter(time)
        self.tasks[number] = asyncio.create_task(self._wait(number))
        await asyncio.sleep(0)


async def test_who_is_in_a_hurry_is_next_and_of_others_who_came_first() -> None:
    bench = Bench(1)
    for number, time in enumerate((5.0, 3.0, 1.0, 1.0, 2.0)):
        await bench.come(number, time)
    assert bench.had == [0]
    bench.semaphore.expedite(bench.waiters[1], 0.5)
    standing = len(bench.semaphore._heap)
    bench.semaphore.expedite(bench.waiters[2], 4.0)
    bench.semaphore.expedite(bench.waiters[1], 0.5)
    bench.semaphore.expedite(bench.waiters[0], 0.0)
    assert len(bench.semaphore._heap) == standing, "what changes nothing takes no memory"
    bench.go.set()
    await asyncio.gather(*bench.tasks.values())
    assert bench.had == [0, 1, 2, 3, 4]
    assert bench.most == 1


async def test_a_slot_that_somebody_leaves_at_the_moment_it_comes_goes_to_the_next() -> None:
    bench = Bench(1)
    for number in range(3):
        await bench.come(number, 0.0)
    bench.tasks[0].cancel()
    await asyncio.sleep(0)  # 1 is called; it has not had it yet
    assert bench.waiters[1].called.done()
    bench.tasks[1].cancel()
    bench.go.set()
    with pytest.raises(asyncio.CancelledError):
        await bench.tasks[1]
    await asyncio.wait_for(bench.tasks[2], 10)
    assert bench.had == [0, 2]


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(st.sampled_from(["come", "expedite", "leave"]), st.integers(0, 9), st.floats(0, 5)), max_size=40
    ),
)
@settings(max_examples=60, deadline=None)
def test_after_any_coming_and_leaving_all_slots_are_free_again(most: int, steps: list[tuple[str, int, float]]) -> None:
    async def play() -> None:
        bench = Bench(most)
        for what, number, time in steps:
            if what == "come" and number not in bench.tasks:
                await bench.come(number, time)
            elif what == "expedite" and number in bench.waiters:
                bench.semaphore.expedite(bench.waiters[number], time)
            elif what == "leave" and number in bench.tasks:
                bench.tasks[number].cancel()
                if time > 2:
                    await asyncio.sleep(0)
        bench.go.set()
        await asyncio.wait_for(asyncio.gather(*bench.tasks.values(), return_exceptions=True), 20)
        assert bench.most <= most
        assert len(bench.had) == len(set(bench.had))
        assert all(task.cancelled() or number in bench.had for number, task in bench.tasks.items())
        assert bench.semaphore._semaphore._free == most

    asyncio.run(play())

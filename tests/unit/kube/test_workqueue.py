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
    assert await asyncio.wait_for(taking, 10) == "a"


async def test_each_waiting_worker_gets_a_key() -> None:
    q = queue()
    workers = [asyncio.create_task(q.take()) for _ in range(3)]
    await asyncio.sleep(0)
    for key in "abc":
        q.add(key)
    assert sorted(await asyncio.wait_for(asyncio.gather(*workers), 10)) == ["a", "b", "c"]


async def test_a_later_timer_replaces_an_earlier_one_and_an_add_overtakes_it() -> None:
    q = queue()
    q.add_after("a", 0.01)
    q.add_after("a", 30)
    q.add_after("b", 0.02)
    assert await asyncio.wait_for(q.take(), 10) == "b"
    q.add("a")
    assert await asyncio.wait_for(q.take(), 10) == "a"
    q.done("a")
    q.add_after("c", -5)
    assert await asyncio.wait_for(q.take(), 10) == "c"
    q.close()


async def test_retries_of_a_key_grow_apart_until_it_is_settled() -> None:
    q = queue()
    assert [q.retry("a") for _ in range(4)] == [0.01, 0.02, 0.04, 0.04]
    assert q.retry("b") == 0.01
    q.settle("a")
    assert q.retry("a") == 0.01
    q.forget("a")
    assert await asyncio.wait_for(q.take(), 10) == "b"
    taking = asyncio.create_task(q.take())
    await asyncio.sleep(0.05)
    assert not taking.done(), "the timer of a forgotten key fired"
    taking.cancel()


async def test_keys_whose_timers_ran_out_do_not_hold_up_those_that_something_happened_to() -> None:
    q = queue()
    for number in range(100):
        q.add_after(f"waits{number}", 0)
    await asyncio.sleep(0.01)
    q.add("news1")
    q.add("news2")
    assert {"news1", "news2"} <= {await q.take() for _ in range(4)}


async def test_keys_whose_timers_ran_out_have_every_other_turn() -> None:
    q = queue()
    for number in range(100):
        q.add(f"news{number}")
    q.add_after("waits", 0)
    await asyncio.sleep(0.01)
    assert "waits" in [await q.take() for _ in range(2)]


async def test_a_reserved_worker_is_free_for_what_happens() -> None:
    q = queue()
    taking = asyncio.create_task(q.take(reserved=True))
    q.add_after("waits", 0)
    await asyncio.sleep(0.01)
    assert not taking.done()
    assert await q.take() == "waits"
    q.add("news")
    assert await asyncio.wait_for(taking, 10) == "news"


async def test_a_key_that_something_happens_to_while_its_timer_waits_is_handed_out_once_and_first() -> None:
    q = queue()
    for key in ("x", "y", "z", "a"):
        q.add_after(key, 0)
    await asyncio.sleep(0.01)
    q.add("a")
    taken = [await q.take() for _ in range(4)]
    assert sorted(taken) == ["a", "x", "y", "z"]
    assert taken.index("a") < 2, taken
    taking = asyncio.create_task(q.take())
    await asyncio.sleep(0.01)
    assert not taking.done()
    taking.cancel()


async def test_a_timer_does_not_put_back_a_key_that_something_happened_to() -> None:
    q = queue()
    q.add("a")
    q.add_after("a", 0)
    await asyncio.sleep(0.01)
    q.add_after("b", 0)
    await asyncio.sleep(0.01)
    assert await q.take(reserved=True) == "a"
    assert await q.take() == "b"


async def test_work_that_can_wait_is_postponed_once_behind_what_can_not() -> None:
    q = queue()
    q.add("lost")
    q.add("good")
    assert await q.take() == "lost"
    assert q.postpone("lost")
    q.done("lost")
    assert await q.take() == "good"
    q.done("good")
    assert await asyncio.wait_for(q.take(), 10) == "lost"
    assert not q.postpone("lost")
    q.done("lost")


async def test_a_passed_over_place_in_the_line_does_not_hand_a_key_to_two_workers() -> None:
    q = queue()
    q.add_after("a", 0)
    await asyncio.sleep(0.01)
    q.add("a")
    assert await q.take() == "a"
    q.add_after("a", 0)
    await asyncio.sleep(0.01)
    taking = asyncio.create_task(q.take())
    await asyncio.sleep(0.01)
    assert not taking.done()
    q.done("a")
    assert await asyncio.wait_for(taking, 10) == "a"


async def test_a_key_added_behind_waits_for_no_timer_that_is_set_later() -> None:
    q = queue()
    q.add_behind("a")
    assert await q.take() == "a"
    q.add_behind("a")  # while it is worked on
    q.add_after("a", 300)
    q.done("a")
    assert await asyncio.wait_for(q.take(), 10) == "a"
    q.done("a")
    q.add_behind("b")
    q.add("c")
    assert await asyncio.wait_for(q.take(reserved=True), 10) == "c"
    q.close()


# --- whose they are --------------------------------------------------------------------------------------------------


async def test_owners_take_turns_however_much_one_of_them_has_waiting() -> None:
    q: WorkQueue[tuple[str, int]] = WorkQueue(0.01, 0.04, whose=lambda key: key[0])
    for number in range(1000):
        q.add(("hostile", number))
    q.add(("victim", 0))
    q.add(("victim", 1))
    taken = [await q.take() for _ in range(5)]
    assert [owner for owner, _ in taken].count("victim") == 2
    assert [number for owner, number in taken if owner == "hostile"] == [0, 1, 2], "each one's own stay in order"


async def test_owners_take_turns_among_those_whose_timers_have_run_out() -> None:
    q: WorkQueue[tuple[str, int]] = WorkQueue(0.01, 0.04, whose=lambda key: key[0])
    for number in range(100):
        q.add_behind(("hostile", number))
    q.add_behind(("victim", 0))
    assert ("victim", 0) in [await q.take(), await q.take()]

"""Virtual time passes at once, and only where a test asks for it."""

import asyncio

import pytest

from tests.support.virtual_time import elapse, turns


@pytest.mark.looptime
async def test_an_hour_passes_in_virtual_time_and_timers_fire_in_their_order():
    fired = []
    loop = asyncio.get_running_loop()
    loop.call_later(3599, fired.append, "before")
    loop.call_later(3601, fired.append, "after")
    began = loop.time()
    await elapse(3600)
    assert (fired, loop.time() - began) == (["before"], 3600)


async def test_elapse_refuses_to_sleep_for_real():
    with pytest.raises(AssertionError, match="looptime"):
        await elapse(1)


async def test_turns_let_ready_tasks_go_on():
    seen = []

    async def count():
        for number in range(3):
            seen.append(number)
            await turns()

    task = asyncio.create_task(count())
    await turns(2)
    assert seen == [0, 1]
    await task

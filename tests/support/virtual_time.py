"""Virtual time for tests: an hour passes as soon as the event loop has nothing else to do.

    @pytest.mark.looptime
    async def test_lease_expires_after_an_hour(...):
        ...
        await elapse(3600)

`pytest.mark.looptime` (from the package `looptime`) makes the clock of a test's event loop jump to its next timer. The
loop waits for `run_in_executor` and `asyncio.to_thread`, but not for sockets and child processes: a test that needs one
of these runs in real time and waits for a state (`tests.waiting.until`). Ruff forbids `asyncio.sleep` and `time.sleep`
in `tests/unit`.
"""

from __future__ import annotations

import asyncio


async def elapse(seconds: float) -> None:
    """Let virtual time pass, and run every timer that is due in it.

    Raises AssertionError if the test runs in real time.
    """
    loop = asyncio.get_running_loop()
    assert getattr(loop, "looptime_on", False), "elapse() needs @pytest.mark.looptime"
    await asyncio.sleep(seconds)


async def pause(seconds: float) -> None:
    """Sleep in a background task that may outlive the virtual time of its test by a moment."""
    await asyncio.sleep(seconds)


async def turns(count: int = 1) -> None:
    """Give the event loop `count` turns, so that tasks that are ready go on."""
    for _ in range(count):
        await asyncio.sleep(0)

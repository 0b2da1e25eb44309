"""How transfers share the event loop with each other and with everybody else."""

import asyncio
import time
from collections import Counter
from typing import cast

from edge.tftp.session import TURN_SECONDS, Session, TransferScheduler


class Busy:
    """Stands for a session that always has something to do."""

    def __init__(self, name, scheduler, log, seconds):
        self.scheduled = False
        self.name = name
        self._scheduler = scheduler
        self._log = log
        self._seconds = seconds

    def start(self):
        self._scheduler.schedule(cast(Session, self))

    def step(self):
        self._log.append(self.name)
        until = time.perf_counter() + self._seconds
        while time.perf_counter() < until:
            pass
        if len(self._log) < 200:
            self.start()


async def finished(log):
    async with asyncio.timeout(20):
        while len(log) < 200:
            await asyncio.sleep(0)


async def test_all_transfers_have_the_same_number_of_turns():
    scheduler, log = TransferScheduler(), list[str]()
    for name in "abcdefgh":
        busy = Busy(name, scheduler, log, 0.0004)
        busy.start()
        busy.start()  # is in line already
    await finished(log)
    assert log[:16] == list("abcdefgh") * 2
    assert set(Counter(log).values()) <= {24, 25, 26}


async def test_others_wait_for_the_time_of_a_turn_and_not_for_all_transfers():
    scheduler, log = TransferScheduler(), list[str]()
    for number in range(100):
        Busy(str(number), scheduler, log, TURN_SECONDS / 5).start()
    rounds = 0
    async with asyncio.timeout(20):
        while len(log) < 200:
            await asyncio.sleep(0)
            rounds += 1
    # Five or six turns of a fifth each time, and then it is the others' time.
    assert rounds >= 200 / 7


async def test_turns_that_take_no_time_share_one_of_the_event_loop(monkeypatch):
    monkeypatch.setattr("edge.tftp.session.TURN_SECONDS", 10.0)  # however long this process is kept from its processor
    scheduler, log = TransferScheduler(), list[str]()
    for number in range(20):
        Busy(str(number), scheduler, log, 0).start()
    await asyncio.sleep(0)
    assert len(log) >= 20


async def test_line_that_came_to_its_end_begins_anew():
    scheduler, log = TransferScheduler(), ["x"] * 199
    for _ in range(3):
        Busy("a", scheduler, log, 0).start()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert log[199:] == ["a"] * 3

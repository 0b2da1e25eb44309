"""The operators' web page while 10,000 machines boot at once: the delay of events, and the cost.

The journey, the expectations and the operators' port run in this process, as in the edge; the machines' events are
recorded at the rate of such a boot. Another process plays two browsers: one shows the first machines by name, some of
which record events all the time; the other shows the machines that need attention. An event's delay is measured from
`Journey.record` to the arrival of its message in the browsers' process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import resource
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import aiohttp
import uvloop

from edge.journey.events import Note, Outcome, Step
from tests.bench.bed import BenchError
from tests.bench.results import Round, Row, Sample, row, say
from tests.page_site import BEARER, INSTALLATION, PageSite

MACHINES: Final = 10_000
PROBES: Final = 40
SECONDS: Final = 40.0
PEER: Final = "no page open"
_NUMBER = re.compile(r"probe (\d+)")


def run(_directory: Path, machines: int = MACHINES, seconds: float = SECONDS) -> list[Row]:
    """Measure the page and return its rows of the table."""
    without = uvloop.run(_storm(machines, seconds, pages=0))
    with_pages = uvloop.run(_storm(machines, seconds, pages=2))
    rounds = [Round(with_pages, without)]
    full = uvloop.run(_full(machines))
    alone = [Round(with_pages, None)]
    title = f"{machines:,} machines boot at once, {with_pages['rate']:,.0f} events/s"
    name = "page"
    return [
        row(name, f"{title}: event to page, p99", "ms", alone, "p99", "", less_is_better=True),
        row(name, f"{title}: event to page, median", "ms", alone, "median", "", less_is_better=True),
        row(name, f"{title}: failure to the top of the page, p99", "ms", alone, "trouble", "", less_is_better=True,
            note="within it, the sweep of the expectations, once a second"),
        row(name, f"{title}: processor", "% of one", rounds, "processor", PEER, less_is_better=True),
        row(name, f"{title}: event loop held for, p99", "ms", rounds, "late", PEER, less_is_better=True),
        row(name, f"{title}: event loop held for, most", "ms", rounds, "latest", PEER, less_is_better=True),
        row(name, f"{title}: resident at most", "MB", rounds, "resident", PEER, less_is_better=True),
        row(name, f"others' work in an event loop that is full, {machines:,} machines", "1/s", full, "work", PEER),
        row(name, f"{title}: sent to a page", "kB/s", alone, "bytes", "", less_is_better=True),
    ]  # fmt: skip


class _Load:
    """The machines, and the times of the probes' events."""

    def __init__(self, site: PageSite, machines: int) -> None:
        self.site = site
        self.probes = [site.hardware(f"aaa-{number}", 20_000 + number) for number in range(PROBES)]
        self.failing = [site.hardware(f"aab-{number}", 30_000 + number) for number in range(int(SECONDS) * 2)]
        self.macs = [site.hardware(f"node-{number}", number) for number in range(1, machines + 1)]
        self.notes = [Note(step, outcome, message, detail) for _, step, outcome, message, detail in INSTALLATION]
        self.at: dict[int, float] = {}
        self.failed: dict[str, float] = {}
        self.events = 0
        self.late: list[float] = []
        self.due: list[tuple[float, int, int]] = []

    def prepare(self, seconds: float) -> None:
        """Plan the boot of every machine, each in its own order, spread over `seconds`."""
        steps = [(each[0] / INSTALLATION[-1][0], note) for each, note in zip(INSTALLATION, self.notes, strict=True)]
        spread = 0.4
        self.due = sorted(
            (seconds * (spread * number / len(self.macs) + (1 - spread) * share), number, place)
            for number in range(len(self.macs))
            for place, (share, _) in enumerate(steps)
        )
        gc.collect()
        gc.freeze()  # as the edge does after it has read its machines

    async def boot(self) -> None:
        """Record the planned events."""
        due, began, at = self.due, time.monotonic(), 0
        while at < len(due):
            now = time.monotonic() - began
            while at < len(due) and due[at][0] <= now:
                _, number, place = due[at]
                self.site.journey.note(self.macs[number], self.notes[place])
                self.events += 1
                at += 1
            await asyncio.sleep(0.001)

    async def probe(self) -> None:
        """Record an event of a probe every 20 ms."""
        number = 0
        while True:
            await asyncio.sleep(0.02)
            number += 1
            self.at[number] = time.monotonic()
            self.site.journey.record(self.probes[number % PROBES], Step.TFTP, Outcome.INFO, f"probe {number}")

    async def fail(self) -> None:
        """Let one machine a second fail that no browser shows."""
        for mac in self.failing:
            await asyncio.sleep(1.0)
            self.failed[mac] = time.monotonic()
            self.site.journey.record(mac, Step.KERNEL, Outcome.FAILED, "the upstream answers 404")

    async def sweep(self) -> None:
        """Sweep the journey periodically, as the edge does."""
        while True:
            await asyncio.sleep(1.0)
            for _ in self.site.expectations.sweep():
                await asyncio.sleep(0)

    async def measure(self) -> None:
        """Measure how long other tasks hold the event loop between two turns of this task, one each millisecond.

        The unit is CPU time, since the wall clock depends on the load of the machine.
        """
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            self.late.append(time.thread_time() - before)


async def _full(machines: int, rounds: int = 12) -> list[Round]:
    """Measure the throughput of packets, each of which records an event, with a page open and without.

    Both are measured in turns in one process, since two processes differ by more than the effect of a page.
    """
    site = PageSite(follows_time=True)
    load = _Load(site, machines)
    gc.collect()
    gc.freeze()
    rounds_done = []
    async with site.served() as client:
        url = str(client._base_url)
        for number in range(rounds):
            samples = {}
            for pages in (number % 2, 1 - number % 2):
                async with _browsers(url, ["/live"] * pages):
                    await asyncio.sleep(1.2)  # until the browser has the whole page
                    await _work(load, 0.5)  # warm up
                    samples[pages] = {"work": await _work(load, 2.0)}
                site.rack.close()  # as if no browser had been connected for long
            rounds_done.append(Round(samples[1], samples[0]))
    gc.unfreeze()
    return rounds_done


async def _work(load: _Load, seconds: float) -> float:
    """Process packets as fast as possible; return their number for a second of CPU time."""
    note, done = load.notes[0], 0
    began, spent = time.monotonic(), time.thread_time()
    while time.monotonic() - began < seconds:
        for _ in range(20):
            load.site.journey.note(load.macs[done % len(load.macs)], note)
            hash(tuple(range(600)))  # the other work of a packet
            done += 1
        await asyncio.sleep(0)
    return done / (time.thread_time() - spent)


@asynccontextmanager
async def _browsers(url: str, paths: list[str]) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Processes that follow these pages."""
    readers = []
    for path in paths:
        command = (sys.executable, "-m", "tests.bench.page", url.rstrip("/") + path)
        readers.append(await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE))
    try:
        yield readers
    finally:
        for reader in readers:
            if reader.returncode is None:
                reader.terminate()
                await reader.communicate()


async def _storm(machines: int, seconds: float, pages: int) -> Sample:
    site = PageSite(follows_time=True)
    load = _Load(site, machines)
    load.prepare(seconds)
    paths = ["/live?sort=name", "/live"][:pages]
    async with site.served() as client, _browsers(str(client._base_url), paths) as readers:
        await asyncio.sleep(2.0)  # until the browsers have the whole pages
        load.late.clear()
        processor, began = time.process_time(), time.monotonic()
        beside: list[Coroutine[Any, Any, None]] = [load.probe(), load.fail(), load.sweep(), load.measure()]
        tasks = [asyncio.create_task(each) for each in beside]
        await load.boot()
        took, spent = time.monotonic() - began, time.process_time() - processor
        await asyncio.sleep(2.0)
        for task in tasks:
            task.cancel()
        for reader in readers:
            reader.terminate()
        results = [json.loads((await reader.communicate())[0]) for reader in readers]
    sample: dict[str, float] = {
        "rate": load.events / took,
        "processor": 100 * spent / took,
        "late": 1000 * quantiles(load.late, n=100)[98],
        "latest": 1000 * max(load.late),
        "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }
    if results:
        sample |= _delays(load, results, took)
    return sample


def _delays(load: _Load, results: list[dict[str, Any]], took: float) -> Sample:
    """Return the delays. If a probe records two events before its row is sent, the page shows only the later one."""
    seen = sorted((int(number), at) for number, at in results[0]["probes"].items())
    if len(seen) < PROBES:
        raise BenchError(f"the page has shown {len(seen)} probes only")
    delays = []
    for number, at in load.at.items():
        shown = [when for other, when in seen if other >= number and (other - number) % PROBES == 0]
        if shown:
            delays.append(1000 * (shown[0] - at))
    troubles = [1000 * (at - load.failed[mac]) for mac, at in results[-1]["troubles"].items() if mac in load.failed]
    say(f"page: {len(delays)} events, {len(load.at) - len(delays)} after the end; {len(troubles)} of "
        f"{len(load.failed)} failures, {results[0]['messages']} and {results[-1]['messages']} messages")  # fmt: skip
    return {
        "p99": quantiles(delays, n=100)[98],
        "median": quantiles(delays, n=2)[0],
        "trouble": quantiles(troubles, n=100)[98] if len(troubles) > 1 else 0.0,
        "bytes": max(each["bytes"] for each in results) / took / 1000,
    }


async def _read(url: str) -> None:
    """Act as a browser; at the end, print the observed events with their times."""
    probes: dict[str, float] = {}
    troubles: dict[str, float] = {}
    messages = size = 0
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(15, ended.set)

    async def follow() -> None:
        nonlocal messages, size
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(headers=BEARER, timeout=timeout) as session, session.get(url) as response:
            buffer = b""
            async for data in response.content.iter_any():
                buffer += data
                size += len(data)
                while (end := buffer.find(b"\n\n")) >= 0:
                    block, buffer = buffer[:end], buffer[end + 2 :]
                    if block.startswith(b"data: "):
                        messages += 1
                        now = time.monotonic()
                        for html in json.loads(block[6:]).get("rows", {}).get("html", {}).values():
                            if found := _NUMBER.search(html):
                                probes.setdefault(found[1], now)
                            if 'class="trouble"' in html:
                                troubles.setdefault(html.partition("/machine/")[2][:17], now)

    following = asyncio.create_task(follow())
    await ended.wait()
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    print(json.dumps({"probes": probes, "troubles": troubles, "messages": messages, "bytes": size}))


if __name__ == "__main__":
    asyncio.run(_read(sys.argv[1]))

"""The operators' web page while 10,000 machines boot at once: how soon an event is on it, and what that costs.

The journey, the expectations and the operators' port run in this process, as in the edge; the machines' events are
recorded as fast as they come in such a minute. Two browsers are another process: one looks at the first machines by
name, where a few machines do something all the time; the other at the machines that need attention. An event's time
is that from `Journey.record` to the arrival of its message in the browsers' process.
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
    """All rows of this subject."""
    without = uvloop.run(_storm(machines, seconds, pages=0))
    with_pages = uvloop.run(_storm(machines, seconds, pages=2))
    rounds = [Round(with_pages, without)]
    full = uvloop.run(_full(machines))
    alone = [Round(with_pages, None)]
    what = f"{machines:,} machines boot at once, {with_pages['rate']:,.0f} events/s"
    name = "page"
    return [
        row(name, f"{what}: event to page, p99", "ms", alone, "p99", "", less_is_better=True),
        row(name, f"{what}: event to page, median", "ms", alone, "median", "", less_is_better=True),
        row(name, f"{what}: failure to the top of the page, p99", "ms", alone, "trouble", "", less_is_better=True,
            note="within it, the sweep of the expectations, once a second"),
        row(name, f"{what}: processor", "% of one", rounds, "processor", PEER, less_is_better=True),
        row(name, f"{what}: event loop held for, p99", "ms", rounds, "late", PEER, less_is_better=True),
        row(name, f"{what}: event loop held for, most", "ms", rounds, "latest", PEER, less_is_better=True),
        row(name, f"{what}: resident at most", "MB", rounds, "resident", PEER, less_is_better=True),
        row(name, f"others' work in an event loop that is full, {machines:,} machines", "1/s", full, "work", PEER),
        row(name, f"{what}: sent to a page", "kB/s", alone, "bytes", "", less_is_better=True),
    ]  # fmt: skip


class _Load:
    """The machines, and when which probe did what."""

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
        """All of them boot, each in its own order, spread over the time."""
        steps = [(each[0] / INSTALLATION[-1][0], note) for each, note in zip(INSTALLATION, self.notes, strict=True)]
        spread = 0.4
        self.due = sorted(
            (seconds * (spread * number / len(self.macs) + (1 - spread) * share), number, place)
            for number in range(len(self.macs))
            for place, (share, _) in enumerate(steps)
        )
        gc.collect()
        gc.freeze()  # as the edge does when it knows its machines

    async def boot(self) -> None:
        """As was prepared."""
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
        """One of them does something each 20 ms."""
        number = 0
        while True:
            await asyncio.sleep(0.02)
            number += 1
            self.at[number] = time.monotonic()
            self.site.journey.record(self.probes[number % PROBES], Step.TFTP, Outcome.INFO, f"probe {number}")

    async def fail(self) -> None:
        """One machine a second, of those that are on no page, fails."""
        for mac in self.failing:
            await asyncio.sleep(1.0)
            self.failed[mac] = time.monotonic()
            self.site.journey.record(mac, Step.KERNEL, Outcome.FAILED, "the upstream answers 404")

    async def sweep(self) -> None:
        """As in the edge."""
        while True:
            await asyncio.sleep(1.0)
            for _ in self.site.expectations.sweep():
                await asyncio.sleep(0)

    async def measure(self) -> None:
        """How much others do between two turns of one who wants to have one each millisecond: time of the processor,
        for the wall clock says how busy the machine is."""
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            self.late.append(time.thread_time() - before)


async def _full(machines: int, rounds: int = 12) -> list[Round]:
    """How much others get done, who always have something to do: packets, of which each is an event. In one process,
    with a page open and without, in turns: what two processes get done differs by more than what is looked for."""
    site = PageSite(follows_time=True)
    load = _Load(site, machines)
    gc.collect()
    gc.freeze()
    found = []
    async with site.served() as client:
        url = str(client._base_url)
        for number in range(rounds):
            samples = {}
            for pages in (number % 2, 1 - number % 2):
                async with _browsers(url, ["/live"] * pages):
                    await asyncio.sleep(1.2)  # until it has what there is
                    await _work(load, 0.5)  # as if it had gone on for long
                    samples[pages] = {"work": await _work(load, 2.0)}
                site.rack.close()  # as if no browser had been connected for long
            found.append(Round(samples[1], samples[0]))
    gc.unfreeze()
    return found


async def _work(load: _Load, seconds: float) -> float:
    """Packets, as fast as they are done: how many for a second of the processor."""
    note, done = load.notes[0], 0
    began, spent = time.monotonic(), time.thread_time()
    while time.monotonic() - began < seconds:
        for _ in range(20):
            load.site.journey.note(load.macs[done % len(load.macs)], note)
            hash(tuple(range(600)))  # what a packet costs beside
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
        await asyncio.sleep(2.0)  # until they have what there is
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
    found: dict[str, float] = {
        "rate": load.events / took,
        "processor": 100 * spent / took,
        "late": 1000 * quantiles(load.late, n=100)[98],
        "latest": 1000 * max(load.late),
        "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }
    if results:
        found |= _delays(load, results, took)
    return found


def _delays(load: _Load, heard: list[dict[str, Any]], took: float) -> Sample:
    """A probe that did more before its row was sent is on the page with the later one."""
    seen = sorted((int(number), at) for number, at in heard[0]["probes"].items())
    if len(seen) < PROBES:
        raise BenchError(f"the page has shown {len(seen)} probes only")
    delays = []
    for number, at in load.at.items():
        shown = [when for other, when in seen if other >= number and (other - number) % PROBES == 0]
        if shown:
            delays.append(1000 * (shown[0] - at))
    troubles = [1000 * (at - load.failed[mac]) for mac, at in heard[-1]["troubles"].items() if mac in load.failed]
    say(f"page: {len(delays)} events, {len(load.at) - len(delays)} after the end; {len(troubles)} of "
        f"{len(load.failed)} failures, {heard[0]['messages']} and {heard[-1]['messages']} messages")  # fmt: skip
    return {
        "p99": quantiles(delays, n=100)[98],
        "median": quantiles(delays, n=2)[0],
        "trouble": quantiles(troubles, n=100)[98] if len(troubles) > 1 else 0.0,
        "bytes": max(each["bytes"] for each in heard) / took / 1000,
    }


async def _read(url: str) -> None:
    """A browser: says what it has seen, and when, when it is ended."""
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

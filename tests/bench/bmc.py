"""BMC control: the cost of a poll, of a boot device with power on, and of an inventory, with 10,000 BMCs.

One process simulates the BMCs: Redfish over TLS, each at its own address of loopback, and each takes some seconds to
change its power state. Another is ours: the whole of BMC control (`BmcManager`), with the embedded API and its
objects in the same process. Each has one core. Three phases, each over all BMCs:

    poll        the first poll of each BMC, then two more of each, one round after the other
    set         a Job for each: boot device PXE once in UEFI mode, then power on, each read back from the BMC;
                with all writes to the API, and with the polls that follow
    inventory   the documents of each BMC (30 of a small machine), written to its Hardware, which has been there since
                before the phase and so has its power state

Between the rounds and the phases, control is idle until its copies of the Secrets are too old to be used
(`CACHE_SECONDS`). Polls are minutes apart in use, so each reads its Secret. Without the pause, a run with few BMCs
polls all of them again within that time and reads none, and a run with many reads each.

The simulation reports at the end that every machine has booted PXE once, that no login was refused, and that no session
is left.

The costs are processor time of our process, per BMC. Each is divided by the cost with a tenth of the BMCs, to find work
that grows with their number: the multiple should be 1. The tenth runs once before and once after, and their mean is the
divisor, because a shared machine drifts. The multiple includes one cost that the tenth does not have: an informer keeps
its 1,024 newest objects as they are and compresses the others. That is a step at 1,024 objects, and no growth.

The bars are goals of the project. The published figure nearest to them is an inventory pipeline that reads 13,500 BMCs
in 3.9 hours on 288 cores, 300 core seconds each. It does more (sensors, logs, stores of its own) and reads real BMCs,
which answer slowly. So it is no peer, and the table does not divide by it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from statistics import mean
from typing import Any, Final

import uvloop
from aiohttp import web

from edge.lab.bmc import InstantMachine, MachineDescription, SimulatedBmc, http_response, served_certificate
from edge.run.logs import set_up
from edge.run.process.memory import settle
from tests.bench.bed import BenchError, Cable, Server, cores, measured, pinned, python
from tests.bench.results import Round, Row, Sample, row, say
from tests.support.api import Call, InProcessApi
from tests.support.bmc import PASSWORD, USER
from tests.support.objects import hardware
from tests.unit.bmc.rig import PXE, job, machine, power, secret
from tink.api.annotations import REFRESH_INVENTORY_ANNOTATION
from tink.api.bmc import is_ended
from tink.api.v1alpha2 import Raw, as_mapping
from tink.bmc.credentials import CACHE_SECONDS
from tink.bmc.manager import BmcManager
from tink.bmc.model import BmcConnection, BmcCredentials
from tink.bmc.quirks import Quirks
from tink.bmc.redfish import RedfishClient
from tink.bmc.settings import BmcSettings
from tink.bmc.status import condition
from tink.kube.resources import HARDWARE, JOB, MACHINE, TASK, WORKFLOW

OBJECTS: Final = 10_000
LIMIT_SECONDS: Final = 3600
"""For the whole subject; a run with 10,000 BMCs takes 10 to 20 minutes."""
POLLS: Final = 3
_FIRST: Final = int(IPv4Address("127.1.0.0"))
_PORT: Final = 8443
_POWER_SECONDS: Final = 2.0
_NEVER_SECONDS: Final = 1e7
_LOOK_SECONDS: Final = 0.1
_BARS: Final = {
    "wall": 1800.0, "poll_first": 20.0, "poll": 20.0, "resident": 600.0,
    "more_poll": 1.1, "more_set": 1.1, "more_inventory": 1.1,
}  # fmt: skip


def run(directory: Path, objects: int = OBJECTS) -> list[Row]:
    """Measure BMC control with so many BMCs, and with a tenth of them; return the rows of the table."""
    few = max(objects // 10, 1)
    counts = {"before": few, "all": objects, "after": few}
    samples = {}
    for name, count in counts.items():
        say(f"bmc: {count:,} BMCs")
        samples[name] = _sample(directory / name, count)
    sample = {**samples["all"]}
    for phase in ("poll", "set", "inventory"):
        sample[f"more_{phase}"] = sample[phase] / mean((samples["before"][phase], samples["after"][phase]))
    rounds = [Round(sample, _BARS)]
    note = f"a ratio is to the goal; {sample['requests']:,.0f} requests in all, {sample['logins']:,.0f} logins"
    many = f"{objects:,} BMCs"

    def line(key: str, title: str, unit: str, note: str = note) -> Row:
        peer = "the goal" if key in _BARS else ""
        side = rounds if peer else [Round(sample, None)]
        return row("bmc", f"{many}: {title}", unit, side, key, peer, less_is_better=True, note=note)

    return [
        line("wall", "all polled, set and inventoried", "s"),
        line("poll_first", "CPU of a first poll", "ms"),
        line("poll", "CPU of a poll", "ms"),
        line("set", "CPU of a boot device and power on", "ms"),
        line("inventory", "CPU of an inventory", "ms"),
        *(
            line(f"more_{phase}", f"CPU of each {phase}, as a multiple of that with {few:,}", "")
            for phase in ("poll", "set", "inventory")
        ),
        line("resident", "resident, with the API and all objects", "MB"),
        line("wall_poll", f"wall time of {POLLS} polls each", "s"),
        line("wall_set", "wall time of the boot devices and power on", "s"),
        line("wall_inventory", "wall time of the inventories", "s"),
    ]


def _sample(directory: Path, objects: int) -> Sample:
    directory.mkdir()
    ready, ended = directory / "fingerprint", directory / "ended.json"
    with Cable(clients=0) as cable:
        serve = python("bmc", do="serve", directory=str(directory), count=objects)
        command = cable.anywhere(pinned(cores()[1], serve))
        server = Server(command, directory / "bmcs.log", lambda _: ready.exists())
        try:
            control = python("bmc", do="control", count=objects, fingerprint=ready.read_text())
            found: dict[str, float] = measured(cable.anywhere(pinned(cores()[0], control)), LIMIT_SECONDS)
        finally:
            server.stop()
    return found | _checked(json.loads(ended.read_text()), objects)


def _checked(ended: dict[str, Any], objects: int) -> dict[str, float]:
    """Return the figures of the simulation. Raises BenchError if a BMC is not in the state that it should have."""
    if ended["boots"] != {"Pxe": objects} or ended["failed_logins"] or ended["open_sessions"]:
        raise BenchError(f"the BMCs report {ended}")
    return {name: float(ended[name]) for name in ("requests", "logins")}


# --- the BMCs ---------------------------------------------------------------------------------------------------------


def _address(number: int) -> str:
    return str(IPv4Address(_FIRST + number))


class _BootedMachine(InstantMachine):
    """A machine that remembers the boot device of each start."""

    def __init__(self, bmc: SimulatedBmc) -> None:
        super().__init__(bmc)
        self.boots: list[str] = []

    def power_on(self) -> None:
        """Remember the boot device, and report the start."""
        self.boots.append(self.boot.target)
        super().power_on()


async def _serve(directory: str, count: int) -> None:
    """Serve all BMCs until SIGTERM, each at its own address, by one socket for all of loopback."""
    loop = asyncio.get_running_loop()
    bmcs, machines, requests = [], [], 0
    for number in range(count):
        description = MachineDescription(macs=(_mac(number),), serial=f"C{number:06}")
        bmc = SimulatedBmc(accounts={USER: PASSWORD}, description=description, power_seconds=_POWER_SECONDS)
        bmc.machine = booted = _BootedMachine(bmc)
        bmcs.append(bmc)
        machines.append(booted)

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal requests
        requests += 1
        assert request.transport is not None
        bmc = bmcs[int(IPv4Address(request.transport.get_extra_info("sockname")[0])) - _FIRST]
        answer = bmc.handle(request.method, request.path_qs, request.headers, await request.read(), loop.time())
        return http_response(answer)

    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    served = served_certificate("127.0.0.1")
    # All addresses, in a network namespace without links to others.
    await web.TCPSite(runner, "0.0.0.0", _PORT, ssl_context=served.context(), backlog=1024).start()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    settle(huge_pages=False)
    Path(directory, "fingerprint").write_text(served.fingerprint)
    await stop.wait()
    await runner.cleanup()
    ended = {
        "boots": Counter(",".join(each.boots) for each in machines),
        "requests": requests,
        **{name: sum(getattr(bmc, name) for bmc in bmcs) for name in ("logins", "failed_logins", "open_sessions")},
    }
    Path(directory, "ended.json").write_text(json.dumps(ended))


def _mac(number: int) -> str:
    return f"52:54:00:{number.to_bytes(3, 'big').hex(':')}"


# --- our side ---------------------------------------------------------------------------------------------------------


class _Uncounted(list[Call]):
    """Keeps no calls: the in-process API would keep all, with their bodies."""

    def append(self, _call: Call) -> None:
        """Drop a call."""


@dataclass(frozen=True, slots=True)
class _Cost:
    """The cost of a phase in seconds."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> _Cost:
        """Return the time and the processor time of this process."""
        return cls(time.monotonic(), time.process_time())

    def since(self, start: _Cost) -> _Cost:
        """Return the difference."""
        return _Cost(self.wall - start.wall, self.cpu - start.cpu)


class _CountedClient(RedfishClient):
    """A Redfish client that counts the sessions that have ended."""

    ended = 0

    async def __aexit__(self, *error: Any) -> None:
        await super().__aexit__(*error)
        _CountedClient.ended += 1


def _client(connection: BmcConnection, credentials: BmcCredentials, _quirks: Quirks) -> _CountedClient:
    return _CountedClient(connection, credentials)


class _Control:
    """BMC control over the in-process API. Each phase queues all its work, then measures until the work is done.

    A phase after the first starts when the copies of the Secrets are too old to be used.
    """

    def __init__(self, count: int, fingerprint: str) -> None:
        self._count = count
        self._fingerprint = fingerprint
        self._api = InProcessApi()
        self._api.calls = _Uncounted()
        self._done: set[str] = set()
        """The names of the Jobs, later of the Hardware, whose work is done."""
        self._on: set[str] = set()
        """The names of the Machines whose status has the power on."""
        self._powered: set[str] = set()
        """The names of the Hardware whose status has the power state."""
        for number in range(count):
            self._api.put(secret(name=f"auth-{number}"))
            self._put_machine(number, 1)
        informers = {each: self._api.informer(each) for each in (MACHINE, JOB, TASK, HARDWARE, WORKFLOW)}
        informers[JOB].add_event_handler(partial(_collect, self._done, is_ended))
        informers[HARDWARE].add_event_handler(partial(_collect, self._done, _has_inventory))
        informers[HARDWARE].add_event_handler(partial(_collect, self._powered, _has_power))
        informers[MACHINE].add_event_handler(partial(_collect, self._on, _is_on))
        settings = BmcSettings(poll_interval=_NEVER_SECONDS)
        self._manager = BmcManager(self._api, informers, settings, clients={"redfish": _client})  # type: ignore[arg-type] # it has the calls of KubeClient

    def _put_machine(self, number: int, port: int) -> None:
        """Write a Machine. `port` has no effect on the connection, but a changed spec is polled at once."""
        name, reference = f"bmc-{number}", {"name": f"auth-{number}", "namespace": "default"}
        options = {"redfish": {"port": _PORT}, "preferredOrder": ["gofish"]}
        new = machine(
            name, _address(number), port=port, certificateFingerprint=self._fingerprint, providerOptions=options,
            authSecretRef=reference,
        )  # fmt: skip
        self._api.put((self._api.read(MACHINE, name) or {}) | new)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run BMC control until the block ends."""
        work = asyncio.create_task(self._manager.run())
        try:
            yield
        finally:
            work.cancel()
            await asyncio.wait([work])
            if not work.cancelled():
                work.result()

    async def first_polls(self) -> _Cost:
        """Poll each BMC for the first time."""
        return await self._until(lambda: _CountedClient.ended == self._count)

    async def polls(self, round_: int) -> _Cost:
        """Poll each BMC once more."""
        await asyncio.sleep(CACHE_SECONDS)
        for number in range(self._count):
            self._put_machine(number, 1 + round_)
        before = _CountedClient.ended
        return await self._until(lambda: _CountedClient.ended - before == self._count)

    async def sets(self) -> _Cost:
        """Set the boot device of each machine and power it on; with the polls after that."""
        await asyncio.sleep(CACHE_SECONDS)
        for number in range(self._count):
            self._api.put(job(f"netboot-{number}", PXE, power("on"), machine=f"bmc-{number}"))
        cost = await self._until(lambda: len(self._done) == len(self._on) == self._count)
        failed = [each for each in self._api.objects(JOB) if condition(each, "Completed").get("status") != "True"]
        if failed:
            raise BenchError(f"{len(failed)} Jobs have failed: {failed[0]}")
        return cost

    async def inventories(self) -> _Cost:
        """Read the inventory of each machine. Its Hardware exists before, with the power state of the last poll."""
        for number in range(self._count):
            name = f"bmc-{number}"
            self._api.put(hardware(name, _mac(number), None, bmcRef={"name": name}))
        await self._until(lambda: len(self._powered) == self._count)
        await asyncio.sleep(CACHE_SECONDS)
        self._done.clear()
        for number in range(self._count):
            self._api.change(MACHINE, f"bmc-{number}", metadata={"annotations": {REFRESH_INVENTORY_ANNOTATION: "true"}})
        return await self._until(lambda: len(self._done) == self._count)

    @staticmethod
    async def _until(is_done: Callable[[], bool]) -> _Cost:
        begin = _Cost.now()
        while not is_done():
            await asyncio.sleep(_LOOK_SECONDS)
        return _Cost.now().since(begin)


def _collect(names: set[str], is_done: Callable[[Raw], bool], new: Raw, _old: Raw | None) -> None:
    """Add the name of an object to `names` once its work is done: a handler of an informer."""
    if is_done(new):
        names.add(new["metadata"]["name"])


def _is_on(obj: Raw) -> bool:
    return as_mapping(obj.get("status")).get("powerState") == "on"


def _has_power(obj: Raw) -> bool:
    return bool(as_mapping(obj.get("status")).get("power"))


def _has_inventory(obj: Raw) -> bool:
    inventory = as_mapping(as_mapping(obj.get("status")).get("inventory"))
    return bool(as_mapping(inventory.get("outOfBand")).get("networkInterfaces"))


async def _measure(count: int, fingerprint: str) -> Sample:
    control = _Control(count, fingerprint)
    settle(huge_pages=False)
    async with control.running():
        first = await control.first_polls()
        polls = [await control.polls(number) for number in range(1, POLLS)]
        sets = await control.sets()
        inventories = await control.inventories()
    return {
        "poll_first": 1000 * first.cpu / count,
        "poll": 1000 * sum(each.cpu for each in polls) / count / len(polls),
        "set": 1000 * sets.cpu / count,
        "inventory": 1000 * inventories.cpu / count,
        "wall_poll": first.wall + sum(each.wall for each in polls),
        "wall_set": sets.wall,
        "wall_inventory": inventories.wall,
        "wall": sum(each.wall for each in (first, *polls, sets, inventories)),
        "resident": _resident(),
    }


def _resident() -> float:
    """Return the largest resident memory of this process so far in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e6


def main(arguments: dict[str, Any]) -> None:
    """Serve the BMCs, or control them and print the figures."""
    do = arguments.pop("do")
    gc.set_threshold(50_000, 20, 100)  # as `tinkedge` does
    if do == "serve":
        uvloop.run(_serve(**arguments))
    else:
        set_up("warning", "text")
        print(json.dumps(uvloop.run(_measure(**arguments))))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

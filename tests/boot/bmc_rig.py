"""One machine after the other behind a BMC that lies, in a rack with `tinkedge up`: what happens, and what is reported.

    python -m tests.boot.bmc_rig

A program of its own, because the rack's network namespace becomes that of the process. It prints `ready`. Then it reads
a `Case` as JSON from each line of its input, and prints an `Outcome` as JSON on a line. It ends with its input.

The machine of a case is a QEMU with a disk that boots and reports so on its screen, or with the Linux of the lab's
small disk image, which sends a DISCOVER. It netboots only if its BMC makes it. The case ends when the machine has
requested its iPXE script and the boot is reported as done, or when a sentence matches `Case.cause`. Then the Workflow
is deleted, and BMC control cleans up. `LIMIT_SECONDS` holds for all of it.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edge.admin_token import read, token_file
from edge.building.builder import default_cache
from edge.building.shell import Daemon
from edge.journey.events import JourneyEvent, Step
from edge.journey.events import Outcome as StepOutcome
from edge.journey.follow import follow
from edge.lab.machine import Firmware, MachineSettings, ManagedMachine, VirtualMachine
from edge.lab.rack import HTTP_PORT, Rack, RackNetwork
from tests.support.bmc import ENABLED, PASSWORD, USER, FakeBmc, Fault, Served, serve
from tink.api.v1alpha2 import API_VERSION, Raw
from tink.kube.cache import Informer
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.resources import HARDWARE, MACHINE, SECRET, TEMPLATE, WORKFLOW, ResourceType

_READY_SECONDS = 120.0
_ICOUNT = 5
"""The machine's clock counts instructions, so that waits of its firmware cost little (`tests/boot/netboot.py`)."""
_POLL_SECONDS = 0.1
NAMED_AFTER_SECONDS, NEXT_AFTER_SECONDS = 10, 20
"""Seconds after power-on until the cause is named, and until the next way is tried. The machine needs three to boot."""
LIMIT_SECONDS = 400.0
"""Limit of a whole case with its clean-up. What is not reached by then is never reached, however busy the host is."""
_BMC_API = f"{MACHINE.group}/{MACHINE.version}"
DISK_BOOTED = ">>DISKBOOT"
LINUX = default_cache() / "images" / "tiny.raw.gz"
"""The small disk image of `tinkedge lab`: its Linux sends a DISCOVER."""


@dataclass(frozen=True)
class Case:
    """A lie of a BMC, and what is reported about it.

    faults, settings: names of `Fault`, and keywords of `FakeBmc`.
    heals: the faults end when the machine has started from its disk instead of the network.
    targets: the boot targets that the BMC has; empty: the usual ones.
    power: the power state before.
    password: the one in the Secret. fingerprint: the one in the Machine; empty: that of the certificate.
    reason, cause: reason and message of BootPrepared, `cause` as a regular expression; empty: the machine netboots.
    also: regular expressions of further true sentences.
    further: seconds for which the case goes on after the sentence, so that a retry shows.
    has_linux: the disk has a Linux that sends a DISCOVER, instead of a boot sector.
    """

    name: str
    faults: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    heals: bool = False
    targets: tuple[str, ...] = ()
    firmware: str = Firmware.BIOS
    power: str = "On"
    password: str = PASSWORD
    fingerprint: str = ""
    reason: str = ""
    cause: str = ""
    also: tuple[str, ...] = ()
    further: float = 0.0
    has_linux: bool = False


@dataclass
class Outcome:
    """The end of a case. All times are in seconds since the wish to netboot.

    `netbooted`: the time of the request for the iPXE script, None if it never came. `discovered`: the same of the first
    DISCOVER. `sentences`: time, object, reason and message of each condition and warning in order. `named`: the time
    from the first event of the Workflow to the one that names the cause, both by the clock of `tinkedge up`.
    """

    seconds: float = 0.0
    discovered: float | None = None
    netbooted: float | None = None
    is_done: bool = False
    """True if the boot was reported as done."""
    sentences: list[tuple[float, str, str, str]] = field(default_factory=list)
    named: float | None = None
    journey: list[str] = field(default_factory=list)
    screen: list[str] = field(default_factory=list)
    resets: list[str] = field(default_factory=list)
    boots: list[str] = field(default_factory=list)
    disk_boots: int = 0
    logins: int = 0
    failed_logins: int = 0
    open_sessions: int = 0
    is_released: bool = False
    """True if BMC control has removed its finalizer from the deleted Workflow: it has cleaned up."""
    override: str = ""
    medium: str | None = None
    """The boot override and the medium in the virtual CD drive after the case."""
    log: str = ""


def boot_sector(text: str) -> bytes:
    """Return the first sector of a disk that a BIOS boots: it writes `text` to the serial port and halts."""
    # xor ax,ax; mov ds,ax; mov si,text; mov dx,3F8h; next: lodsb; test al,al; jz halt; out dx,al; jmp next; halt: hlt
    code = bytearray(b"\x31\xc0\x8e\xd8\xbe\0\0\xba\xf8\x03\xac\x84\xc0\x74\x03\xee\xeb\xf8\xf4\xeb\xfd")
    struct.pack_into("<H", code, 5, 0x7C00 + len(code))
    return (bytes(code) + text.encode() + b"\r\n\0").ljust(510, b"\0") + b"\x55\xaa"


@dataclass
class _Running:
    """The present case: its machine and BMC, the number of events before it, its start (monotonic seconds), its end."""

    case: Case
    name: str
    mac: str
    machine: VirtualMachine
    served: Served
    first_event: int
    started: float = field(default_factory=time.monotonic)
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self.started, 2)


class Site:
    """A rack with `tinkedge up`. `directory` has the data of the edge and of the machines."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._network = RackNetwork()
        self._rack = Rack(self._network)
        self._events: list[tuple[float, JourneyEvent]] = []
        self._number = 0
        self._client: KubeClient
        self._running: _Running | None = None

    async def up(self, stack: AsyncExitStack) -> None:
        """Start the stack and follow its journeys until `stack` closes."""
        stack.push_async_callback(self._rack.down)
        await self._rack.up()
        data = self._directory / "data"
        network = f"{self._network.bridge}={self._network.address}"
        command = [sys.executable, "-m", "edge.cli", "up", "--interface", network, "--data-dir", data]
        self._log = self._directory / "up.log"
        command += ["--bmc-boot-named-after", str(NAMED_AFTER_SECONDS)]
        command += ["--bmc-boot-next-after", str(NEXT_AFTER_SECONDS)]
        edge = await Daemon.start("up", command, self._log)
        stack.push_async_callback(edge.stop)
        if not await edge.answers(f"http://{self._network.host}:{HTTP_PORT}/readyz", _READY_SECONDS):
            raise SystemExit(f"tinkedge up is not ready:\n{edge.log_tail(30)}")
        self._client = await stack.enter_async_context(await KubeClient.connect(data / "kubeconfig"))
        following = asyncio.create_task(self._follow(read(token_file(data, None))))
        stack.push_async_callback(_cancelled, following)
        for resource in (MACHINE, WORKFLOW):
            # A watch sees each version, also one that the next replaces within milliseconds.
            informer = Informer(self._client, resource)
            informer.add_event_handler(partial(self._look, resource))
            stack.push_async_callback(_cancelled, asyncio.create_task(informer.run()))
            await informer.wait_for_cache_sync()
        actions = [{"name": "none", "image": "example.org/none"}]
        await self._client.create(TEMPLATE, _object(API_VERSION, "Template", "stub", {"actions": actions}))

    async def _follow(self, token: str) -> None:
        async for event in follow("http://127.0.0.1:7081", token, history=True):
            if isinstance(event, JourneyEvent):
                self._events.append((time.monotonic(), event))

    async def run(self, case: Case) -> Outcome:
        """Carry out a case, and remove its machine."""
        self._number += 1
        directory = self._directory / f"machine-{self._number}"
        directory.mkdir()
        mac = f"52:54:00:77:00:{self._number:02x}"
        memory, disk, icount = (512, 64, None) if case.has_linux else (256, 1, _ICOUNT)
        settings = MachineSettings(
            mac, self._network.tap, Firmware(case.firmware), memory_mib=memory, processors=1, disk_mib=disk,
            icount=icount, is_managed=True,
        )  # fmt: skip
        machine = VirtualMachine(settings, directory)
        machine.screen.touch()
        machine.disk.write_bytes(gzip.decompress(LINUX.read_bytes()) if case.has_linux else boot_sector(DISK_BOOTED))
        async with self._bmc(case, machine, directory) as served:
            log_start = self._log.stat().st_size
            running = _Running(case, f"m{self._number}", mac, machine, served, len(self._events))
            return await self._observed(running, log_start)

    @asynccontextmanager
    async def _bmc(self, case: Case, machine: VirtualMachine, directory: Path) -> AsyncIterator[Served]:
        """Serve the BMC of a machine, which has the power state of the case."""
        managed = ManagedMachine(machine, directory)
        running = asyncio.create_task(managed.run())
        try:
            if case.power == "On":
                managed.power_on()
                while not machine.is_on:
                    await asyncio.sleep(_POLL_SECONDS)
            bmc = FakeBmc(
                faults=[Fault[each] for each in case.faults], machine=managed, power=case.power, **case.settings
            )
            bmc.targets = case.targets or bmc.targets
            async with serve(bmc) as served:
                yield served
        finally:
            await _cancelled(running)

    async def _observed(self, running: _Running, log_start: int) -> Outcome:
        outcome, bmc, name = running.outcome, running.served.bmc, running.name
        objects = list(self._objects(running))
        self._running = running
        with suppress(TimeoutError):
            async with asyncio.timeout(LIMIT_SECONDS):
                for resource, obj in objects:
                    await self._client.create(resource, obj)
                await self._until_known(running)
                self._running = None
                await self._client.delete(WORKFLOW, name, "default")
                outcome.is_released = await self._released(name)
                await self._remove(objects, name)
                while bmc.open_sessions:
                    await asyncio.sleep(_POLL_SECONDS)
        self._running = None
        await self._remove(objects, name)
        outcome.resets, outcome.boots = list(bmc.resets), list(bmc.boots)
        outcome.logins, outcome.failed_logins = bmc.logins, bmc.failed_logins
        outcome.override, outcome.medium = str(bmc.boot[ENABLED]), bmc.slots[0].image
        outcome.open_sessions = bmc.open_sessions
        outcome.screen = running.machine.last_lines(20)
        outcome.disk_boots = _disk_boots(running.machine)
        with self._log.open("rb") as log:
            log.seek(log_start)
            outcome.log = log.read()[-8000:].decode(errors="replace")
        return outcome

    async def _until_known(self, running: _Running) -> None:
        """Wait until the machine has netbooted, or the cause was named."""
        case, outcome = running.case, running.outcome
        disk_boots_before = 0
        while True:
            outcome.seconds = running.seconds
            self._read_journey(running)
            if outcome.netbooted is not None and outcome.is_done:
                return
            if outcome.named is not None and outcome.seconds >= _time_of(case, outcome) + case.further:
                return
            disk_boots = _disk_boots(running.machine)
            if "On" not in running.served.bmc.resets:
                disk_boots_before = disk_boots
            elif case.heals and disk_boots > disk_boots_before:
                running.served.bmc.faults.clear()
            await asyncio.sleep(_POLL_SECONDS)

    async def _released(self, name: str) -> bool:
        """Wait until BMC control has cleaned up after a deleted Workflow, and return True."""
        with suppress(NotFoundError):
            while True:
                await self._client.get(WORKFLOW, name, "default")
                await asyncio.sleep(_POLL_SECONDS)
        return True

    async def _remove(self, objects: Sequence[tuple[ResourceType, Raw]], name: str) -> None:
        """Remove what is left of the objects of a case, the Workflow without a clean-up."""
        with suppress(NotFoundError):
            await self._client.delete(WORKFLOW, name, "default")
            await self._client.patch(WORKFLOW, name, "default", {"metadata": {"finalizers": None}})
        for resource, _ in reversed(objects[:-1]):
            with suppress(NotFoundError):
                await self._client.delete(resource, name, "default")

    def _objects(self, running: _Running) -> Iterator[tuple[ResourceType, Raw]]:
        """Yield the objects of a case; the last one is the wish to netboot."""
        case, name, served = running.case, running.name, running.served
        secret = _object("v1", "Secret", name, None)
        yield SECRET, secret | {"stringData": {"username": USER, "password": case.password}}
        connection = {
            "host": "127.0.0.1",
            "insecureTLS": False,
            "certificateFingerprint": case.fingerprint or served.certificate.fingerprint,
            "authSecretRef": {"name": name, "namespace": "default"},
            "providerOptions": {"redfish": {"port": served.port}, "preferredOrder": ["gofish"]},
        }
        yield MACHINE, _object(_BMC_API, "Machine", name, {"connection": connection})
        dhcp = {"ip": f"172.31.77.{10 + self._number}", "netmask": "255.255.255.0", "gateway": self._network.address}
        hardware = {
            "networkInterfaces": {running.mac: {"dhcp": dhcp}},
            "ipxe": {"inline": "#!ipxe\necho netbooted\nsleep 3600"},
            "bmcRef": {"name": name},
        }
        yield HARDWARE, _object(API_VERSION, "Hardware", name, hardware)
        references = {"hardwareRef": {"name": name}, "templateRef": {"name": "stub"}}
        yield WORKFLOW, _object(API_VERSION, "Workflow", name, references | {"bootOptions": {"bootMode": "netboot"}})

    def _look(self, resource: ResourceType, obj: Raw, _old: Raw | None) -> None:
        """Record new conditions of the objects of the present case."""
        running = self._running
        if running is None or obj["metadata"]["name"] != running.name:
            return
        outcome = running.outcome
        outcome.seconds = running.seconds
        for condition in obj.get("status", {}).get("conditions", ()):
            kind = f"{resource.kind} {condition['type']}={condition['status']}"
            _record(outcome, kind, condition.get("reason", ""), condition.get("message", ""))
            outcome.is_done |= kind == "Workflow BootPrepared=True"

    def _read_journey(self, running: _Running) -> None:
        """Read the events of the machine again."""
        outcome = running.outcome
        outcome.journey.clear()
        began: float | None = None
        for at, event in self._events[running.first_event :]:
            if event.mac != running.mac:
                continue
            seconds = round(at - running.started, 2)
            outcome.journey.append(f"{seconds:7.2f} {event.step} {event.outcome}: {event.message}")
            if event.step is Step.WORKFLOW and began is None:
                began = event.time
            if event.step is Step.POWER and outcome.named is None and began is not None:
                is_named = _is_cause(running.case, str(event.detail.get("reason", "")), event.message)
                outcome.named = round(event.time - began, 3) if is_named else None
            if event.step is Step.DHCP and outcome.discovered is None:
                outcome.discovered = seconds
            if event.step is Step.SCRIPT and event.outcome is StepOutcome.OK and outcome.netbooted is None:
                outcome.netbooted = seconds
            if event.outcome in (StepOutcome.WARNING, StepOutcome.FAILED):
                _record(outcome, f"journey {event.step} {event.outcome}", "", event.message)


def _disk_boots(machine: VirtualMachine) -> int:
    """Return how often the machine has started from its disk."""
    return machine.screen.read_bytes().count(DISK_BOOTED.encode())


def _is_cause(case: Case, reason: str, message: str) -> bool:
    """Return True if a condition BootPrepared with these texts names the cause."""
    return bool(case.cause) and reason == case.reason and re.search(case.cause, message) is not None


def _time_of(case: Case, outcome: Outcome) -> float:
    """Return the time of the first sentence that names the cause; infinity without one."""
    for seconds, kind, reason, message in outcome.sentences:
        if kind == "Workflow BootPrepared=False" and _is_cause(case, reason, message):
            return seconds
    return float("inf")


def _record(outcome: Outcome, kind: str, reason: str, message: str) -> None:
    if not any((kind, reason, message) == tuple(known[1:]) for known in outcome.sentences):
        outcome.sentences.append((outcome.seconds, kind, reason, message))


def _object(version: str, kind: str, name: str, spec: Raw | None) -> Raw:
    obj = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "default"}}
    return obj if spec is None else obj | {"spec": spec}


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def main() -> None:
    """Carry out the cases of the input."""
    with tempfile.TemporaryDirectory(prefix="tinkedge-bmc-") as directory:
        async with AsyncExitStack() as stack:
            site = Site(Path(directory))
            await site.up(stack)
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            while line := await asyncio.to_thread(sys.stdin.readline):
                outcome = await site.run(Case(**json.loads(line)))
                sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())

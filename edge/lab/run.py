"""One lab: set up the rack, start the stack, build artifacts, apply manifests, boot a machine, show its journey.

This file has the order of the journey. Everything that was started is stopped in reverse order in any case. Errors are
raised as `LabError`, which names the last successful step.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
import shutil
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

import aiohttp

from edge.admin_token import read, token_file
from edge.building.builder import Builder, locked, recipes
from edge.building.screen import Screen
from edge.building.shell import CommandError, Daemon, run
from edge.doctor import check_lab, kubectl_path
from edge.journey.events import JourneyEvent, Outcome, Step
from edge.journey.follow import follow
from edge.lab.machine import Drive, Firmware, MachineSettings, VirtualMachine
from edge.lab.rack import DUAL_STACK, HTTP_PORT, IPV6, Rack, RackNetwork, start_depot, start_registry
from tink.errors import TinkedgeError

_COUNTED_BYTES = 64 * 1024
"""More bytes than a DHCP server, router advertisements and a script send to a machine within minutes."""

_SHOWN_BYTES = 1 << 20
_CHANGING = re.compile(rb"[\d.:]+|\x1b\[[0-9;?=]*[A-Za-z]")
"""The parts that change in a repeated line: dots, counters, cursor movements (ECMA-48)."""


class MachineProgress:
    """Detects that a machine gets on between two steps of its journey: it downloads, or shows new lines.

    A slow host may take minutes to load or start a kernel, so time alone is no reason to give up. A machine that
    repeats the same requests does not get on: small packets and repeated lines do not count.

    `counters` is a file in the form of /proc/net/dev (proc(5)); `tap` is the machine's line in it.
    """

    def __init__(self, screen: Path, tap: str, counters: Path = Path("/proc/thread-self/net/dev")) -> None:
        self._screen = screen
        self._tap = tap
        self._counters = counters
        self._served = 0
        self._read = 0
        self._shown: set[bytes] = set()

    def made(self) -> bool:
        """Return True if the machine got on since the last call."""
        # Call both each time: each one remembers what it has seen.
        loaded, showed = self._loaded(), self._showed()
        return loaded or showed

    def _loaded(self) -> bool:
        served = self.bytes_sent()
        if served - self._served < _COUNTED_BYTES:
            return False
        self._served = served
        return True

    def bytes_sent(self) -> int:
        """Return the bytes sent to the machine since power-on; nearly all of them are downloads."""
        for line in self._counters.read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name.strip() == self._tap:
                return int(numbers.split()[8])
        return 0

    def _showed(self) -> bool:
        with self._screen.open("rb") as screen:
            screen.seek(self._read)
            text = screen.read(_SHOWN_BYTES)
        whole, newline, _ = text.rpartition(b"\n")
        self._read += len(whole) + len(newline)
        if len(text) == _SHOWN_BYTES and not newline:
            self._read += len(text)
        lines = {_CHANGING.sub(b"", line).strip() for line in re.split(rb"[\r\n]", whole)} - {b""}
        new = lines - self._shown
        self._shown |= new
        return bool(new)


MAC = "52:54:00:12:34:56"
_ADMIN = "http://127.0.0.1:7081"
_TINY_DISK_MIB = 64
_FULL_DISK_MIB = 2048
_READY_SECONDS = 30.0
_TERMINAL = ("Succeeded", "Failed", "Canceled")


class LabError(TinkedgeError):
    """The lab failed; the message has the place, the cause, and the last successful step."""


@dataclass(frozen=True, slots=True)
class LabSettings:
    """Settings of the lab. `patience`: maximum seconds without a step, a download or a new line on the screen."""

    firmware: Firmware
    full: bool
    cache: Path
    accel: str = "tcg"
    ipxe_dir: Path | None = None
    shim_dir: Path | None = None
    wheel: Path | None = None
    memory_mib: int = 1024
    patience: float = 120.0
    manifests: Path | None = None
    ipv6: bool = False
    """The rack has only IPv6."""
    dual_stack: bool = False
    """The rack has IPv6 beside IPv4."""
    medium: Drive | None = None
    static: bool = False


class Lab:
    """One lab."""

    def __init__(self, settings: LabSettings, screen: Screen) -> None:
        self._settings = settings
        self._screen = screen
        self._last_step = "nothing yet"
        self._workflow = ""
        self._network = IPV6 if settings.ipv6 else DUAL_STACK if settings.dual_stack else RackNetwork()
        self._logs = settings.cache / "lab-logs"
        self._doing: Callable[[], str] = lambda: "looking at this host"

    async def run(self) -> None:
        """Run the whole journey. Raises LabError."""
        # Stopping everything takes time as well.
        async with self._screen.company(lambda: self._doing()), AsyncExitStack() as stack:
            try:
                await self._run(stack)
            except (CommandError, LabError) as error:
                raise LabError(f"{error}\nlast step that worked: {self._last_step}\nlogs: {self._logs}") from error

    async def _run(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        if settings.firmware is Firmware.ARM64 and settings.full:
            raise LabError("--full installs a Debian for x86-64, which no arm64 machine boots: leave one of them out")
        self._examine()
        stack.enter_context(locked(settings.cache))
        shutil.rmtree(self._logs, ignore_errors=True)
        self._logs.mkdir(parents=True)
        directory = settings.cache / "running"
        shutil.rmtree(directory, ignore_errors=True)  # left by a lab that was killed
        directory.mkdir()
        stack.callback(shutil.rmtree, directory)

        rack = Rack(self._network)
        stack.push_async_callback(rack.down)
        await rack.up()
        self._done("rack", f"namespace {rack.namespace}, bridge {self._network.address}/{self._network.prefix}")

        # The stack starts during the builds, which wait for mirrors and disks.
        edge = await self._start_stack(directory)
        stack.push_async_callback(edge.stop)
        builder = Builder(
            settings.cache,
            lambda what: self._screen.step("build", what, Outcome.INFO),
            settings.wheel,
            settings.firmware.arch,
        )
        self._doing = builder.doing
        metadata_url = f"http://{IPV6.host}:{HTTP_PORT}" if settings.ipv6 else ""
        with rack.outside():
            artifacts = await builder.build(
                full=settings.full, metadata_url=metadata_url, dual_stack=settings.dual_stack
            )
        self._done(
            "build", f"OSIE {_megabytes(artifacts.kernel, artifacts.initrd)}, disk image {_megabytes(artifacts.image)}"
        )

        self._doing = lambda: "starting the stack, and filling the registry"
        await asyncio.gather(
            start_registry(stack, self._network.address, settings.cache / "registry", self._logs, artifacts),
            start_depot(stack, self._network.address, artifacts),
        )
        if not await edge.answers(f"http://{self._network.host}:{HTTP_PORT}/readyz", _READY_SECONDS):
            self._check_edge(edge)
            raise LabError(f"tinkedge up is not ready after {_READY_SECONDS:.0f} s:\n{edge.log_tail()}")
        self._done("up", "API, DHCP, TFTP, HTTP, metadata, controller and gRPC server are ready")

        self._doing = lambda: "applying the manifests"
        program = kubectl_path()
        if program is None:
            raise CommandError("kubectl is not on PATH; `make run` brings one")
        kubeconfig, cache = str(directory / "data" / "kubeconfig"), str(directory / "kubectl-cache")

        async def kubectl(*arguments: str) -> str:
            command = [program, "--kubeconfig", kubeconfig, "--cache-dir", cache, *arguments]
            return (await run(command, timeout=30)).rstrip()

        for line in (await kubectl("apply", *self._manifests())).splitlines():
            self._done("kubectl", line)

        medium = await self._medium(directory) if settings.medium is not None else None
        machine = VirtualMachine(self._machine_settings(medium), directory)
        stack.push_async_callback(self._keep_screen, machine)
        stack.push_async_callback(machine.power_off)
        await machine.power_on()
        self._screen.power_on()
        before = edge.cpu_seconds()
        self._done("power", f"machine {MAC} is on ({settings.firmware.upper()}, {settings.accel}, blank disk)")
        await self._follow(edge, machine, read(token_file(directory / "data", None)))
        took = self._screen.since_power_on()
        self._doing = lambda: "comparing and taking down"
        await self._prove(kubectl, machine, artifacts.image)
        if settings.ipv6:
            self._done("rack", f"the machine has sent {rack.ipv4_packets()} packets of IPv4 and ARP since power-on")

        used = edge.cpu_seconds() - before
        self._screen.block("")
        self._screen.block(await kubectl("get", "workflow,hardware"))
        self._screen.block(
            f"{took:.1f} s from power-on; our servers used {used:.2f} s of processor time ({used / took:.1%} of that)"
        )

    # --- preparation ----------------------------------------------------------------------------------------------

    def _examine(self) -> None:
        """Report everything that is missing on this host at once, before building."""
        problems = [
            finding
            for finding in check_lab(
                self._settings.cache,
                uefi=self._settings.firmware not in (Firmware.BIOS, Firmware.ARM64),
                arm64=self._settings.firmware is Firmware.ARM64,
            )
            if not finding.is_fine
        ]
        if problems:
            listed = "\n".join(f"  {found.name}: {found.seen}\n    -> {found.remedy}" for found in problems)
            raise LabError(f"this host can't run the lab:\n{listed}")

    def _done(self, name: str, message: str) -> None:
        self._last_step = f"{name}: {message}"
        self._screen.step(name, message)

    async def _start_stack(self, directory: Path) -> Daemon:
        command: list[str | Path] = [
            *(sys.executable, "-m", "edge.cli", "up"),
            *("--data-dir", directory / "data", "--interface", self._network.bridge),
            *([] if self._settings.ipv6 else ["--public-ip", self._network.address]),
            *(["--ipv6", "--ipv6-router", self._network.bridge] if ":" in "".join(self._network.addresses) else []),
            *("--insecure-registry", f"{self._network.host}:5000", "--router-advertisements"),
            # The depot is on the rack's own address.
            *("--allow-upstream", self._network.address),
        ]
        if self._settings.firmware is Firmware.ARM64:  # which names its serial port differently
            command += ["--kernel-parameters", "console=ttyAMA0"]
        if self._settings.ipxe_dir is not None:
            command += ["--ipxe-dir", self._settings.ipxe_dir]
        if self._settings.firmware.is_secure or self._settings.shim_dir is not None:
            command += ["--boot-path", "grub"]
        if self._settings.shim_dir is not None:
            command += ["--shim-dir", self._settings.shim_dir]
        return await Daemon.start("tinkedge up", command, self._logs / "tinkedge-up.log")

    def _manifests(self) -> list[str]:
        if self._settings.manifests is not None:
            return ["-f", str(self._settings.manifests)]
        examples = recipes() / "examples"
        if self._settings.ipv6:
            names = ["ipv6/full.yaml", "full/template.yaml"] if self._settings.full else []
            names = names or ["ipv6/machine.yaml", "template.yaml"]
            return [argument for name in names for argument in ("-f", str(examples / name))]
        files = ["dual-stack/hardware.yaml" if self._settings.dual_stack else "hardware.yaml", "osie.yaml"]
        files += ["full/template.yaml"] if self._settings.full else ["template.yaml"]
        workflow = "dual-stack/workflow.yaml" if self._settings.dual_stack else "full/workflow.yaml"
        files += [workflow] if self._settings.full else ["workflow.yaml"]
        return [argument for file in files for argument in ("-f", str(examples / file))]

    async def _medium(self, directory: Path) -> Path:
        """Fetch the machine's boot medium as a BMC does. Raises CommandError, LabError."""
        address, data = self._network.address, directory / "data"
        command: list[str | Path] = [sys.executable, "-m", "edge.cli", "iso", "--mac", MAC, "--url"]
        command += ["--data-dir", data, "--public-ip", address, *(["--static"] if self._settings.static else [])]
        url = (await run(command, timeout=30)).strip()
        image = directory / "medium"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            content = await response.read()
            if response.status != 200:
                raise LabError(f"the edge has no boot medium: {content.decode(errors='replace').strip()}")
        image.write_bytes(content)
        self._done("medium", f"fetched by its signed URL, {_megabytes(image)}")
        return image

    def _machine_settings(self, medium: Path | None) -> MachineSettings:
        settings = self._settings
        return MachineSettings(
            mac=MAC,
            tap=self._network.tap,
            firmware=settings.firmware,
            accel=settings.accel,
            memory_mib=settings.memory_mib,
            # Emulated processors wait for each other at every step: two take nearly twice the time of one.
            processors=1 if settings.accel == "tcg" else 2,
            disk_mib=_FULL_DISK_MIB if settings.full else _TINY_DISK_MIB,
            ipv6=settings.ipv6,
            medium=medium,
            drive=settings.medium or Drive.CDROM,
        )

    async def _keep_screen(self, machine: VirtualMachine) -> None:
        """Keep the machine's screen in the lab's logs."""
        if machine.screen.exists():
            shutil.copyfile(machine.screen, self._logs / "screen.log")

    # --- the journey ----------------------------------------------------------------------------------------------

    async def _follow(self, edge: Daemon, machine: VirtualMachine, token: str) -> None:
        """Show each step until the last. Raises LabError if the machine takes a wrong path, or stops."""
        events = follow(_ADMIN, token, history=True)
        reader = asyncio.ensure_future(anext(events))
        progress = MachineProgress(machine.screen, self._network.tap)
        self._doing = lambda: f"{progress.bytes_sent() / 1e6:.1f} MB loaded; its screen: {_last(machine)}"
        waited = 0.0
        try:
            while True:
                done, _ = await asyncio.wait([reader], timeout=1.0)
                self._check(edge, machine)
                if not done:
                    waited = 0.0 if progress.made() else waited + 1.0
                    if waited >= self._settings.patience:
                        raise LabError(self._stuck(machine, waited))
                    continue
                waited = 0.0
                event = reader.result()
                if isinstance(event, JourneyEvent):
                    self._show(event)
                    if self._arrived(event):
                        return
                reader = asyncio.ensure_future(anext(events))
        except StopAsyncIteration:
            raise LabError(f"tinkedge up closed the stream of the journey:\n{edge.log_tail()}") from None
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
                await reader
            await events.aclose()

    def _check_edge(self, edge: Daemon) -> None:
        if edge.returncode is not None:
            raise LabError(f"tinkedge up ended with status {edge.returncode}:\n{edge.log_tail()}")

    def _check(self, edge: Daemon, machine: VirtualMachine) -> None:
        self._check_edge(edge)
        if machine.ended is not None:
            raise LabError(f"the machine went off: {machine.ended}{_quoted(machine.last_lines(12))}")

    def _show(self, event: JourneyEvent) -> None:
        self._screen.step(event.step, event.message, event.outcome)
        manifest = event.detail.get("manifest")
        if manifest:
            self._screen.block(indent(str(manifest), "    "))
        if event.outcome is Outcome.OK:
            self._last_step = f"{event.step}: {event.message}"

    def _arrived(self, event: JourneyEvent) -> bool:
        """Return True if this was the last step. Raises LabError if the Workflow failed."""
        state = event.detail.get("state")
        if event.step is Step.WORKFLOW and state in _TERMINAL:
            if state != "Succeeded":
                raise LabError(f"the Workflow ended {state}: {event.message}")
            self._workflow = str(event.detail["workflow"])
            return not self._settings.full
        # cloud-init reports to the phone_home URL of the user-data when all of it is done.
        return event.step is Step.METADATA and "instance_id" in event.detail

    def _stuck(self, machine: VirtualMachine, waited: float) -> str:
        return (
            f"no step, nothing loaded and nothing new on the screen for {waited:.0f} s; "
            f"on a slow host give it more with --patience SECONDS{_quoted(machine.last_lines(15))}"
        )

    async def _prove(self, kubectl: Callable[..., Awaitable[str]], machine: VirtualMachine, image: Path) -> None:
        """Check that the API reports success, and that the disk has the image's bytes."""
        namespace, name = self._workflow.split("/")
        state = await kubectl("get", "-n", namespace, "workflow", name, "-o", "jsonpath={.status.state}")
        if state != "Succeeded":
            raise LabError(f"the journey ended, but the Workflow's state is {state!r}")
        if self._settings.full:
            return  # the machine has booted from its disk, and changed it
        size = await asyncio.to_thread(_compare, image, machine.disk)
        self._done("disk", f"the machine's disk holds the image: {size / 1e6:.0f} MB compared")


def _compare(image: Path, disk: Path) -> int:
    """Compare a gzip-compressed image with the start of a disk; return the image's size in bytes."""
    size = 0
    with gzip.open(image) as expected, disk.open("rb") as written:
        while chunk := expected.read(1 << 20):
            if written.read(len(chunk)) != chunk:
                raise LabError(f"the machine's disk differs from the image in the MiB at byte {size}")
            size += len(chunk)
    return size


def _megabytes(*paths: Path) -> str:
    return f"{sum(path.stat().st_size for path in paths) / 1e6:.0f} MB"


def _last(machine: VirtualMachine) -> str:
    """Return the last line on the machine's screen."""
    return next(iter(machine.last_lines(1)), "nothing yet")


def _quoted(lines: list[str]) -> str:
    return "\nthe machine's screen shows:\n" + "\n".join(f"  | {line}" for line in lines) if lines else ""

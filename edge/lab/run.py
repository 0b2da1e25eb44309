"""One lab: set up the rack, start the stack, build artifacts, apply manifests, boot a machine, show its journey.

This file has the order of the journey. Everything that was started is stopped in reverse order in any case. Errors are
raised as `LabError`, which names the last successful step.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import indent

import aiohttp

from edge.admin_token import read, token_file
from edge.building.builder import Artifacts, Builder, locked, recipes
from edge.building.screen import Screen
from edge.building.shell import CommandError, Daemon, run
from edge.doctor import check_lab, kubectl_path
from edge.journey.events import JourneyEvent, Notice, Outcome, Step
from edge.journey.follow import Lost, follow
from edge.lab import discovery
from edge.lab.bmc import TARGETS, BmcServer, MachineDescription, SimulatedBmc, served_certificate
from edge.lab.machine import Drive, Firmware, MachineSettings, ManagedMachine, VirtualMachine
from edge.lab.rack import DUAL_STACK, HTTP_PORT, IPV6, Rack, RackNetwork, start_depot, start_registry
from ipxe.binaries import BinariesError, BootBinaries, BootPath, NoBinaryError
from tink.api.v1alpha2 import API_VERSION, BOOT_FINALIZER, BootMode, Raw
from tink.api.yaml import YamlError, objects
from tink.discovery.model import condition_of, discovered_name
from tink.errors import TinkedgeError
from tink.kube.resources import HARDWARE, JOB, MACHINE, SECRET, WORKFLOW

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
_HARDWARE = "lab-machine"
_ADMIN = "http://127.0.0.1:7081"
_IPXE_DIR = Path("/usr/lib/ipxe")
"""The directory of Debian's package ipxe."""
_TINY_DISK_MIB = 64
_FULL_DISK_MIB = 2048
_READY_SECONDS = 30.0
_MANIFESTS = (".json", ".yaml", ".yml")
"""The endings of the files that kubectl reads in a directory."""
_BMC_PORT = 443
_POWER_SECONDS = 120.0
_CLEAN_UP_SECONDS = 120
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
    bmc: bool = False
    """The machine is off until the controller switches it on by its BMC. After the installation, it is switched off
    and on, and boots from its disk. Firmware that can't boot the lab's disk is only switched off."""
    discover: discovery.ApprovalMode | None = None
    """No Hardware names the machine: it is admitted, introduces itself, and is approved."""
    switch_port: str = discovery.PORT
    """The port of the switch that the machine hangs on, for LLDP. The list expects the default."""

    @property
    def boot_path(self) -> BootPath:
        """Return the program by which the machine boots."""
        return BootPath.GRUB if self.firmware.is_secure or self.shim_dir is not None else BootPath.IPXE


def check_boot_program(settings: LabSettings) -> None:
    """Check that there is a boot program for the firmware of the machine. Raises LabError."""
    code = settings.firmware.architecture
    if code is None:
        return
    try:
        binaries = BootBinaries(settings.ipxe_dir or _IPXE_DIR, settings.shim_dir, settings.boot_path)
        binaries.for_architectures((code,), http=settings.firmware.boots_by_http)
    except (BinariesError, NoBinaryError) as error:
        option = "--shim-dir" if settings.boot_path is BootPath.GRUB else "--ipxe-dir"
        raise LabError(f"--firmware {settings.firmware}: {error}; or give another directory with {option}") from error


class LabBmc(BmcServer):
    """The BMC of the lab's machine, with an account and a certificate of its own. It announces each start and stop."""

    NAME = f"{_HARDWARE}-bmc"
    """The name of the Machine and of the Secret."""
    USER = "tinkedge"

    def __init__(self, machine: ManagedMachine, address: str, announce: Callable[[str], None]) -> None:
        settings = machine.machine.settings
        self.address = address
        self._password = secrets.token_urlsafe(18)
        self._certificate = served_certificate(address)
        self._announce = announce
        self._managed = machine
        self._running: asyncio.Task[None] | None = None
        is_bios = settings.firmware is Firmware.BIOS
        has_http = settings.firmware.has_http_uri
        bmc = SimulatedBmc(
            accounts={self.USER: self._password},
            machine=machine,
            description=MachineDescription(
                vendor="tinkedge",
                model="lab",
                serial=settings.serial,
                uuid=settings.uuid,
                macs=settings.macs,
                processors=(settings.processors,),
                dimms=(settings.memory_mib,),
                drives=tuple(size << 20 for size in settings.disks_mib),
            ),
            targets=(*TARGETS, "UefiHttp") if has_http else TARGETS,
            modes=("Legacy",) if is_bios else ("UEFI",),
        )
        super().__init__(bmc, self._certificate.context())

    async def start(self, address: str, port: int = 0) -> int:
        """Listen, and carry out what the BMC asks of the machine. Raises OSError if the port is taken."""
        self._running = asyncio.create_task(self._managed.run(), name="machine of the lab")
        return await super().start(address, port)

    async def stop(self) -> None:
        """Stop to listen, and switch the machine off."""
        await super().stop()
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    def check(self) -> None:
        """Raise LabError if the machine did not do what the BMC asked for."""
        if self._running is not None and self._running.done():
            self._running.result()  # raises what it ended with
        if self._managed.failure:
            raise LabError(f"the machine does not do what its BMC asks for: {self._managed.failure}")

    def machine_started(self) -> None:
        """Announce the start with the boot device that the BMC has set."""
        target = self.bmc.next_boot.target
        order = "in its own boot order" if target == "None" else f"boot device {target} by its BMC"
        self._announce(f"machine {self.bmc.description.macs[0]} starts, {order}")
        super().machine_started()

    def machine_stopped(self) -> None:
        """Announce the power-off."""
        self._announce(f"machine {self.bmc.description.macs[0]} is off")
        super().machine_stopped()

    def manifests(self, files: list[Path]) -> bytes:
        """Return the objects in manifests as a JSON List, and before them a Secret and a Machine for this BMC.

        Hardware with the MAC address of the machine gets the BMC, and Workflows boot their machine by it. Raises
        OSError, YamlError.
        """
        user, password = self.account
        secret = {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.kind,
            "metadata": self._reference(self.NAME),
            "stringData": {"username": user, "password": password},
        }
        others = [self.connected(each) for file in files for each in objects(file.read_bytes())]
        return _list(secret, self.machine(self.NAME), *others)

    @property
    def account(self) -> tuple[str, str]:
        """Return user name and password of the BMC."""
        return self.USER, self._password

    def machine(self, name: str) -> Raw:
        """Return the Machine `name` for this BMC. The Secret with its account is `NAME`."""
        connection = {
            "host": self.address,
            "insecureTLS": False,
            "certificateFingerprint": self._certificate.fingerprint,
            "authSecretRef": self._reference(self.NAME),
        }
        return {
            "apiVersion": MACHINE.api_version,
            "kind": MACHINE.kind,
            "metadata": self._reference(name),
            "spec": {"connection": connection},
        }

    def first_boot(self, machine: str) -> Raw:
        """Return a Job that boots the machine of the Machine `machine` from the network, for a machine that is off."""
        device = {"device": "pxe", "efiBoot": self.bmc.modes == ("UEFI",)}
        return {
            "apiVersion": JOB.api_version,
            "kind": JOB.kind,
            "metadata": self._reference("first-boot"),
            "spec": {
                "machineRef": self._reference(machine),
                "tasks": [{"bootDevice": device}, {"powerAction": "on"}],
            },
        }

    @staticmethod
    def _reference(name: str) -> Raw:
        return {"name": name, "namespace": "default"}

    def connected(self, obj: Raw) -> Raw:
        """Return an object of the lab with its connection to this BMC."""
        spec, kind = obj.get("spec", {}), obj.get("kind")
        if obj.get("apiVersion") != API_VERSION:
            return obj
        if kind == HARDWARE.kind and set(self.bmc.description.macs) & set(spec.get("networkInterfaces", {})):
            return obj | {"spec": spec | {"bmcRef": {"name": self.NAME}}}
        if kind == WORKFLOW.kind:
            options = {"toggleAllowNetboot": True, "bootMode": BootMode.NETBOOT.value}
            return obj | {"spec": spec | {"bootOptions": options}}
        return obj


def _list(*items: Raw) -> bytes:
    """Return objects as a JSON List for kubectl."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()


Kubectl = Callable[..., Awaitable[str]]
"""Runs kubectl with arguments, and with bytes for its standard input as `stdin`; returns its output."""
Events = AsyncGenerator[JourneyEvent | Notice | Lost, None]


class Lab:
    """One lab."""

    def __init__(self, settings: LabSettings, screen: Screen) -> None:
        self._settings = settings
        self._screen = screen
        self._last_step = "nothing yet"
        self._workflow = ""
        self._network = IPV6 if settings.ipv6 else DUAL_STACK if settings.dual_stack else RackNetwork()
        self._logs = settings.cache / "lab-logs"
        self._bmc: LabBmc | None = None
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
        self._examine()
        stack.enter_context(locked(self._settings.cache))
        directory = self._create_directory(stack)
        rack = Rack(self._network)
        stack.push_async_callback(rack.down)
        await rack.up()
        self._done("rack", f"namespace {rack.namespace}, bridge {self._network.address}/{self._network.prefix}")
        # The stack starts during the builds, which wait for mirrors and disks.
        edge = await self._start_stack(directory)
        stack.push_async_callback(edge.stop)
        artifacts = await self._build(rack)
        await self._start_upstreams(stack, edge, artifacts)
        await self._boot_and_prove(stack, rack, edge, artifacts, directory)

    async def _boot_and_prove(
        self, stack: AsyncExitStack, rack: Rack, edge: Daemon, artifacts: Artifacts, directory: Path
    ) -> None:
        """Boot the machine, show its journey, and prove that it ended well. Raises CommandError, LabError."""
        settings, kubeconfig = self._settings, directory / "data" / "kubeconfig"
        self._doing = lambda: "applying the manifests"
        kubectl = _kubectl(kubeconfig, directory / "kubectl-cache")
        if settings.discover is not None:
            await rack.add_tap(discovery.SECOND_TAP)
            await discovery.start_switch(stack, self._network.tap, settings.switch_port, directory, self._logs)
        boot = self._boot_unknown if settings.discover else self._boot_by_bmc if settings.bmc else self._boot
        machine = await boot(stack, kubectl, directory)
        before = edge.cpu_seconds()
        events = follow(_ADMIN, read(token_file(directory / "data", None)), history=True)
        stack.push_async_callback(events.aclose)
        if settings.discover is not None:
            await self._follow(events, edge, machine, self._is_introduced)
            await self._approve(kubectl, edge, machine, kubeconfig)
        await self._follow(events, edge, machine, self._is_last)
        if settings.bmc and not settings.full:  # whose Template restarts the machine
            if settings.firmware.boots_lab_disk:
                await self._switch("cycle", kubeconfig)
                await self._follow(events, edge, machine, self._is_disk_booted)
            else:
                await self._switch("off", kubeconfig)
        took = self._screen.since_power_on()
        self._doing = lambda: "comparing and taking down"
        await self._prove(kubectl, machine, artifacts.image)
        if settings.ipv6:
            self._done("rack", f"the machine has sent {rack.ipv4_packets()} packets of IPv4 and ARP since power-on")
        used = edge.cpu_seconds() - before
        self._screen.block("")
        kinds = f"workflow,hardware,{MACHINE.plural}.{MACHINE.group}" if settings.bmc else "workflow,hardware"
        self._screen.block(await kubectl("get", kinds))
        begun = "the manifests of a machine that was off" if settings.bmc else "power-on"
        if settings.discover is not None:
            shown = await kubectl("get", "-n", "default", "hardware", _HARDWARE, "-o", "json")
            (self._logs / "hardware.json").write_text(shown)
        self._screen.block(
            f"{took:.1f} s from {begun}; our servers used {used:.2f} s of processor time ({used / took:.1%} of that)"
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
                switch=self._settings.discover is not None,
            )
            if not finding.is_fine
        ]
        if problems:
            listed = "\n".join(f"  {found.name}: {found.seen}\n    -> {found.remedy}" for found in problems)
            raise LabError(f"this host can't run the lab:\n{listed}")
        if self._settings.medium is None:
            check_boot_program(self._settings)

    def _create_directory(self, stack: AsyncExitStack) -> Path:
        """Create the directories of the logs and of this run; `stack` removes the latter."""
        shutil.rmtree(self._logs, ignore_errors=True)
        self._logs.mkdir(parents=True)
        directory = self._settings.cache / "running"
        shutil.rmtree(directory, ignore_errors=True)  # left by a lab that was killed
        directory.mkdir()
        stack.callback(shutil.rmtree, directory)
        return directory

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
            *(["--bmc"] if self._settings.bmc else []),
            *(
                ["--discover", discovery.rule(self._settings.discover, self._network)]
                if self._settings.discover
                else []
            ),
            *("--boot-path", self._settings.boot_path.value),
            # The depot is on the rack's own address.
            *("--allow-upstream", self._network.address),
        ]
        if self._settings.firmware is Firmware.ARM64:  # which names its serial port differently
            command += ["--kernel-parameters", "console=ttyAMA0"]
        if self._settings.ipxe_dir is not None:
            command += ["--ipxe-dir", self._settings.ipxe_dir]
        if self._settings.shim_dir is not None:
            command += ["--shim-dir", self._settings.shim_dir]
        log_file = self._logs / "tinkedge-up.log"
        return await Daemon.start("tinkedge up", command, log_file, death_signal=signal.SIGKILL)

    async def _build(self, rack: Rack) -> Artifacts:
        """Build OSIE, actions and disk image. Raises CommandError."""
        settings = self._settings
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
        osie, image = _megabytes(artifacts.kernel, artifacts.initrd), _megabytes(artifacts.image)
        self._done("build", f"OSIE {osie}, disk image {image}")
        return artifacts

    async def _start_upstreams(self, stack: AsyncExitStack, edge: Daemon, artifacts: Artifacts) -> None:
        """Start the servers of the artifacts, and wait for the stack. Raises CommandError, LabError."""
        self._doing = lambda: "starting the stack, and filling the registry"
        await asyncio.gather(
            start_registry(stack, self._network.address, self._settings.cache / "registry", self._logs, artifacts),
            start_depot(stack, self._network.address, artifacts),
        )
        if not await edge.answers(f"http://{self._network.host}:{HTTP_PORT}/readyz", _READY_SECONDS):
            self._check_edge(edge)
            raise LabError(f"tinkedge up is not ready after {_READY_SECONDS:.0f} s:\n{edge.log_tail()}")
        self._done("up", "API, DHCP, TFTP, HTTP, metadata, controller and gRPC server are ready")

    def _manifests(self) -> list[Path]:
        """Return the files with the objects to apply."""
        given = self._settings.manifests
        if given is not None:
            return sorted(each for each in given.iterdir() if each.suffix in _MANIFESTS) if given.is_dir() else [given]
        examples = recipes() / "examples"
        if self._settings.ipv6:
            names = ["ipv6/full.yaml", "full/template.yaml"] if self._settings.full else []
            names = names or ["ipv6/machine.yaml", "template.yaml"]
            return [examples / name for name in names]
        files = ["dual-stack/hardware.yaml" if self._settings.dual_stack else "hardware.yaml", "osie.yaml"]
        files += ["full/template.yaml"] if self._settings.full else ["template.yaml"]
        workflow = "dual-stack/workflow.yaml" if self._settings.dual_stack else "full/workflow.yaml"
        files += [workflow] if self._settings.full else ["workflow.yaml"]
        return [examples / file for file in files]

    async def _boot(self, stack: AsyncExitStack, kubectl: Kubectl, directory: Path) -> VirtualMachine:
        """Apply the manifests and switch the machine on. Raises CommandError, LabError."""
        settings = self._settings
        files = [argument for file in self._manifests() for argument in ("-f", file)]
        for line in (await kubectl("apply", *files)).splitlines():
            self._done("kubectl", line)
        medium = await self._medium(directory) if settings.medium is not None else None
        return await self._power_on(stack, self._machine_settings(medium), directory)

    async def _power_on(
        self, stack: AsyncExitStack, machine_settings: MachineSettings, directory: Path
    ) -> VirtualMachine:
        """Switch a machine without a BMC on. Raises CommandError."""
        settings = self._settings
        machine = VirtualMachine(machine_settings, directory)
        stack.push_async_callback(self._keep_screen, machine)
        stack.push_async_callback(machine.power_off)
        await machine.power_on()
        self._screen.power_on()
        self._done("power", f"machine {MAC} is on ({settings.firmware.upper()}, {settings.accel}, blank disk)")
        return machine

    async def _boot_by_bmc(self, stack: AsyncExitStack, kubectl: Kubectl, directory: Path) -> VirtualMachine:
        """Start the BMC of a machine that is off, and apply the manifests. The controller then switches it on.

        Raises CommandError, LabError.
        """
        machine, bmc = await self._start_bmc(stack, self._machine_settings(None), directory)
        try:
            manifests = bmc.manifests(self._manifests())
        except (OSError, YamlError) as error:
            raise LabError(f"can't read the manifests: {error}") from error
        self._screen.power_on()
        await self._apply(kubectl, manifests)
        return machine

    async def _start_bmc(
        self, stack: AsyncExitStack, machine_settings: MachineSettings, directory: Path
    ) -> tuple[VirtualMachine, LabBmc]:
        """Start the BMC of a machine that is off. Raises CommandError."""
        machine = VirtualMachine(replace(machine_settings, is_managed=True), directory)
        machine.screen.touch()
        stack.push_async_callback(self._keep_screen, machine)
        managed = ManagedMachine(machine, directory)
        bmc = self._bmc = LabBmc(managed, self._network.address, lambda what: self._done("power", what))
        stack.push_async_callback(bmc.stop)
        await bmc.start(bmc.address, _BMC_PORT)
        firmware = self._settings.firmware.upper()
        self._done("bmc", f"Redfish at https://{self._network.host}; machine {MAC} is off ({firmware}, blank disk)")
        return machine, bmc

    async def _apply(self, kubectl: Kubectl, manifests: bytes) -> None:
        for line in (await kubectl("apply", "-f", "-", stdin=manifests)).splitlines():
            self._done("kubectl", line)

    # --- a machine that no Hardware names -------------------------------------------------------------------------

    def _objects(self, *kinds: str) -> list[Raw]:
        """Return the objects in the manifests that have one of `kinds`. Raises LabError."""
        try:
            found = [each for file in self._manifests() for each in objects(file.read_bytes())]
        except (OSError, YamlError) as error:
            raise LabError(f"can't read the manifests: {error}") from error
        return [each for each in found if each.get("kind") in kinds]

    async def _boot_unknown(self, stack: AsyncExitStack, kubectl: Kubectl, directory: Path) -> VirtualMachine:
        """Store the list that expects the machine, if there is one, and switch the machine on, if it can by its BMC.

        Raises CommandError, LabError.
        """
        settings = self._settings
        machine_settings = replace(
            self._machine_settings(None),
            disk_mib=discovery.DISKS_MIB[0],
            more_disks_mib=discovery.DISKS_MIB[1:],
            more_cards=((discovery.SECOND_MAC, discovery.SECOND_TAP),),
        )
        await self._apply(kubectl, _list(*self._objects("OSIE", "Template")))
        account = None
        if settings.bmc:
            machine, bmc = await self._start_bmc(stack, machine_settings, directory)
            account = bmc.account
        if settings.discover is discovery.ApprovalMode.LIST:
            file = directory / "lab.csv"
            file.touch(0o600)  # for the BMC's password
            file.write_text(discovery.expected_machines(_HARDWARE, machine_settings, self._network, account))
            await self._operate("list", directory / "data" / "kubeconfig", "discover", "import", str(file))
        if not settings.bmc:
            return await self._power_on(stack, machine_settings, directory)
        self._screen.power_on()
        # Approval uses the Machine of the same name, which has the fingerprint of the BMC's certificate.
        await self._apply(kubectl, _list(bmc.machine(_HARDWARE), bmc.first_boot(_HARDWARE)))
        return machine

    def _is_introduced(self, event: JourneyEvent) -> bool:
        """Return True if the agent of the machine is connected."""
        return event.step is Step.AGENT and event.outcome is Outcome.OK

    async def _approve(self, kubectl: Kubectl, edge: Daemon, machine: VirtualMachine, kubeconfig: Path) -> None:
        """Wait for the inventory, the approval and the verdict; then create the Workflow. Raises LabError."""
        settings, name = self._settings, discovered_name(MAC)
        assert settings.discover is not None  # noqa: S101 - for the type checker

        async def until(name: str, what: str, holds: Callable[[Raw], bool]) -> Raw:
            self._doing = lambda: f"waiting for {what} of Hardware {name}"
            hardware: Raw = {}
            for _ in range(int(settings.patience)):
                self._check(edge, machine)
                shown = await kubectl("get", "-n", "default", "hardware", name, "-o", "json", "--ignore-not-found")
                hardware = json.loads(shown or "{}")
                if hardware and holds(hardware):
                    return hardware
                await asyncio.sleep(1)
            has = discovery.verdict_of(hardware) or "no verdict" if hardware else "it does not exist"
            raise LabError(f"Hardware {name} has no {what} after {settings.patience:.0f} s: {has}")

        if settings.discover is discovery.ApprovalMode.RULE:
            await until(name, "inventory", lambda each: bool(discovery.in_band(each)))
            await self._operate("discover", kubeconfig, "discover", "list")
            await self._operate("approve", kubeconfig, "discover", "approve", name, _HARDWARE)
        approved = await until(_HARDWARE, "inventory", lambda each: bool(discovery.in_band(each)))
        self._done("approved", f"Hardware {name} is now {_HARDWARE}: {discovery.described(approved)}")
        reason = discovery.expected_reason(settings.discover, settings.switch_port)
        judged = await until(
            _HARDWARE,
            f"LLDP neighbour and verdict {reason}",
            lambda each: discovery.has_neighbours(each) and condition_of(each).get("reason") == reason,
        )
        self._done("inventory", discovery.described(judged))
        self._done("verdict", discovery.verdict_of(judged))
        for each in self._objects("Hardware"):
            patch = json.dumps({"spec": discovery.operators_part(each)})
            line = await kubectl("patch", "-n", "default", "hardware", _HARDWARE, "--type", "merge", "-p", patch)
            self._done("kubectl", line)
        workflows = self._objects("Workflow")
        await self._apply(kubectl, _list(*(map(self._bmc.connected, workflows) if self._bmc else workflows)))

    async def _operate(self, step: str, kubeconfig: Path, *words: str) -> None:
        """Run `tinkedge` with `words` as an operator does, and show its output. Raises CommandError."""
        shown = f"tinkedge {' '.join(Path(word).name for word in words)}"
        self._doing = lambda: shown
        command = [sys.executable, "-m", "edge.cli", *words, "--kubeconfig", str(kubeconfig)]
        reported = (await run(command, timeout=_POWER_SECONDS)).strip()
        self._done(step, f"{shown}: {reported}" if "\n" not in reported else f"{shown}:\n{indent(reported, '    ')}")

    async def _switch(self, action: str, kubeconfig: Path) -> None:
        """Switch the machine by its BMC, as an operator does; `action`: as in `tinkedge power`. Raises CommandError."""
        await self._operate("power", kubeconfig, "power", _HARDWARE, action)

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

    async def _follow(
        self, events: Events, edge: Daemon, machine: VirtualMachine, is_last: Callable[[JourneyEvent], bool]
    ) -> None:
        """Show each step until the last. Raises LabError if the machine takes a wrong path, or stops."""
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
                    if is_last(event):
                        return
                reader = asyncio.ensure_future(anext(events))
        except StopAsyncIteration:
            raise LabError(f"tinkedge up closed the stream of the journey:\n{edge.log_tail()}") from None
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
                await reader

    def _check_edge(self, edge: Daemon) -> None:
        if edge.returncode is not None:
            raise LabError(f"tinkedge up ended with status {edge.returncode}:\n{edge.log_tail()}")

    def _check(self, edge: Daemon, machine: VirtualMachine) -> None:
        self._check_edge(edge)
        if self._bmc is not None:
            self._bmc.check()
        elif machine.ended is not None:
            raise LabError(f"the machine went off: {machine.ended}{_quoted(machine.last_lines(12))}")

    def _show(self, event: JourneyEvent) -> None:
        self._screen.step(event.step, event.message, event.outcome)
        manifest = event.detail.get("manifest")
        if manifest:
            self._screen.block(indent(str(manifest), "    "))
        # An inventory arrives beside the steps of the boot.
        if event.outcome is Outcome.OK and event.step is not Step.DISCOVERY:
            self._last_step = f"{event.step}: {event.message}"

    def _is_last(self, event: JourneyEvent) -> bool:
        """Return True if this was the last step of the installation. Raises LabError if the Workflow failed."""
        state = event.detail.get("state")
        if event.step is Step.WORKFLOW and state in _TERMINAL:
            if state != "Succeeded":
                raise LabError(f"the Workflow ended {state}: {event.message}")
            self._workflow = str(event.detail["workflow"])
            return not self._settings.full
        # cloud-init reports to the phone_home URL of the user-data when all of it is done.
        return event.step is Step.METADATA and "instance_id" in event.detail

    def _is_disk_booted(self, event: JourneyEvent) -> bool:
        """Return True if the system on the tiny image has fetched its instance id; no OSIE does that."""
        return event.step is Step.METADATA and event.outcome is not Outcome.FAILED

    def _stuck(self, machine: VirtualMachine, waited: float) -> str:
        return (
            f"no step, nothing loaded and nothing new on the screen for {waited:.0f} s; "
            f"on a slow host give it more with --patience SECONDS{_quoted(machine.last_lines(15))}"
        )

    async def _prove(self, kubectl: Kubectl, machine: VirtualMachine, image: Path) -> None:
        """Check that the API reports success, and that the disk has the image's bytes."""
        namespace, name = self._workflow.split("/")
        state = await kubectl("get", "-n", namespace, "workflow", name, "-o", "jsonpath={.status.state}")
        if state != "Succeeded":
            raise LabError(f"the journey ended, but the Workflow's state is {state!r}")
        if self._bmc is not None:
            await self._await_clean_up(kubectl, self._bmc.bmc)
        if self._settings.full:
            return  # the machine has booted from its disk, and changed it
        size = await asyncio.to_thread(_compare, image, machine.disk)
        self._done("disk", f"the machine's disk holds the image: {size / 1e6:.0f} MB compared")

    async def _await_clean_up(self, kubectl: Kubectl, bmc: SimulatedBmc) -> None:
        """Wait until the controller has cleaned up after the boot. Raises LabError if something of it is left."""
        namespace, name = self._workflow.split("/")
        self._doing = lambda: "waiting until the controller has cleaned up"
        for _ in range(_CLEAN_UP_SECONDS):
            if BOOT_FINALIZER not in await kubectl("get", "-n", namespace, "workflow", name, "-o", "yaml"):
                break
            await asyncio.sleep(1)
        else:
            raise LabError(f"Workflow {self._workflow} still has the finalizer {BOOT_FINALIZER}")
        hardware = json.loads(await kubectl("get", "-n", namespace, "hardware", _HARDWARE, "-o", "json"))
        if not all(each.get("disableNetboot") for each in hardware["spec"]["networkInterfaces"].values()):
            raise LabError(f"Hardware {_HARDWARE} may still netboot after its installation")
        if bmc.next_boot.target != "None":
            raise LabError(f"the BMC still has the boot device {bmc.next_boot.target}")
        self._done("bmc", "netbooting is disabled again, and no boot device is set")


def _kubectl(kubeconfig: Path, cache: Path) -> Kubectl:
    """Return a function that runs kubectl against the lab's API. Raises CommandError if there is no kubectl."""
    program = kubectl_path()
    if program is None:
        raise CommandError("kubectl is not on PATH; `make run` brings one")

    async def kubectl(*arguments: str | Path, stdin: bytes | None = None) -> str:
        command = [program, "--kubeconfig", kubeconfig, "--cache-dir", cache, *arguments]
        return (await run(command, timeout=30, stdin=stdin)).rstrip()

    return kubectl


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

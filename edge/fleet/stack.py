"""A stack of the fleet's own: tinkedge in one network namespace, the machines in another, joined by a cable.

    tinkedge-fleet-PID-stack      edge0 --- cable --- uplink0      tinkedge-fleet-PID-machines
    `tinkedge up`, or its roles                                    all addresses of the machines' network

Nothing leads out of the two namespaces. Kernel, initrd and boot programs are sparse files of the wanted size.
Everything is removed at the end, including the remains of runs that were killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

from edge.building.shell import CommandError, Daemon, family, run
from edge.fleet.network import PREFIX, FleetError, MachineLink
from edge.fleet.objects import Boots
from edge.fleet.results import Process
from edge.fleet.settings import FleetSettings
from edge.lab.namespaces import NAMESPACES, remove_abandoned

_CABLE: Final = IPv4Network("192.0.2.0/30")
"""Network of the cable, with machines behind a relay: TEST-NET-1 (RFC 5737)."""
UPLINK: Final = "uplink0"
_EDGE: Final = "edge0"
_READY: Final = b"ready: "
_START_SECONDS: Final = 60.0
_BOOT_PROGRAMS: Final = {"undionly.kpxe": 72_000, "snponly.efi": 240_000}
"""Boot programs and their sizes in bytes, about those of Debian's."""
_API_PORT: Final = 6443


class Stack:
    """A stack. `up` starts it; the exit stack given to `up` stops it.

    With `settings.roles` it is API, controller, server and edge as four processes, instead of `tinkedge up`.
    """

    def __init__(self, settings: FleetSettings, directory: Path) -> None:
        self.settings = settings
        self.directory = directory
        self.server = str(_CABLE[1] if settings.link is MachineLink.RELAY else settings.network[1])
        """The edge's address."""
        self.namespace = NAMESPACES / f"{PREFIX}{os.getpid()}-stack"
        """The stack's network namespace; its API listens on loopback there."""
        self.machines = NAMESPACES / f"{PREFIX}{os.getpid()}-machines"
        """The machines' network namespace."""
        self.kubeconfig = directory / "data" / "kubeconfig"
        self.boots = Boots("", f"file://{directory}/osie/kernel", f"file://{directory}/osie/initrd")
        self._daemons: list[tuple[str, Daemon]] = []
        self._used: dict[str, float] = {}

    async def up(self, stack: AsyncExitStack) -> None:
        """Start the stack; it is ready when this returns. Raises FleetError."""
        try:
            await remove_abandoned(PREFIX)
            await self._join(stack)
            await asyncio.to_thread(self._files)
            await self._start(stack)
        except (CommandError, OSError) as error:
            raise FleetError(f"the fleet's own stack can't be started: {error}") from error

    async def _join(self, stack: AsyncExitStack) -> None:
        here, there = self.namespace.name, self.machines.name
        for name in (here, there):
            await run(["ip", "netns", "add", name])
            stack.push_async_callback(run, ["ip", "netns", "delete", name])
            await run(["ip", "-n", name, "link", "set", "lo", "up"])
        cable = ["type", "veth", "peer", "name", _EDGE, "netns", here]
        await run(["ip", "-n", there, "link", "add", UPLINK, *cable])
        relayed = self.settings.link is MachineLink.RELAY
        prefix = _CABLE.prefixlen if relayed else self.settings.network.prefixlen
        await run(["ip", "-n", here, "address", "add", f"{self.server}/{prefix}", "dev", _EDGE])
        if relayed:
            await run(["ip", "-n", there, "address", "add", f"{_CABLE[2]}/{prefix}", "dev", UPLINK])
        await run(["ip", "-n", here, "link", "set", _EDGE, "up"])
        await run(["ip", "-n", there, "link", "set", UPLINK, "up"])
        if relayed:
            await run(["ip", "-n", here, "route", "add", str(self.settings.network), "via", str(_CABLE[2])])

    def _files(self) -> None:
        """Create sparse files of the wanted sizes."""
        osie, boot = self.directory / "osie", self.directory / "boot"
        osie.mkdir()
        boot.mkdir()
        sizes = {osie / "kernel": self.settings.kernel_bytes, osie / "initrd": self.settings.initrd_bytes}
        sizes |= {boot / name: size for name, size in _BOOT_PROGRAMS.items()}
        for path, size in sizes.items():
            with path.open("wb") as file:
                file.truncate(size)

    # --- processes ---

    async def _start(self, stack: AsyncExitStack) -> None:
        directory, settings = self.directory, self.settings
        machines = [
            *("--interface", f"{_EDGE}={self.server}", "--ipxe-dir", str(directory / "boot")),
            *("--osie-dir", str(directory / "osie"), "--netboot-when", "workflow", *settings.stack_options),
        ]
        data = ["--data-dir", str(directory / "data")]
        if not settings.roles:
            await self._run(stack, "up", [*data, *machines])
            return
        await self._run(stack, "apiserver", [*data, "--api-port", str(_API_PORT)])
        client = ["--kubeconfig", str(self.kubeconfig)]
        bmc = ["--bmc"] if settings.bmc else []
        await self._run(stack, "controller", [*client, "--disable", "webhooks", *bmc])
        await self._run(stack, "server", [*client, "--interface", f"{_EDGE}={self.server}"])
        await self._run(stack, "edge", [*client, "--data-dir", str(directory / "edge"), *machines])

    async def _run(self, stack: AsyncExitStack, role: str, options: Sequence[str]) -> None:
        log = self.directory / f"{role}.log"
        command = ["nsenter", f"--net={self.namespace}", sys.executable, "-m", "edge.cli", role, *options]
        # This host's configuration file and variables are not for the stack.
        env = {name: "" for name in os.environ if name.startswith("TINKEDGE_")}
        command += ["--config", os.devnull]
        daemon = await Daemon.start(f"tinkedge {role}", command, log, env=env, death_signal=signal.SIGKILL)
        stack.push_async_callback(daemon.stop)
        self._daemons.append((role, daemon))
        give_up = time.monotonic() + _START_SECONDS
        while _READY not in log.read_bytes():
            if daemon.returncode is not None or time.monotonic() > give_up:
                raise FleetError(f"tinkedge {role} did not become ready:\n{daemon.log_tail()}")
            await asyncio.sleep(0.05)

    def begin(self) -> None:
        """Start to measure processor time."""
        self._used = {role: daemon.cpu_seconds() for role, daemon in self._daemons}

    def processes(self) -> list[Process]:
        """Return the processor time that each role has used since `begin`, including its child processes."""
        found = []
        for role, daemon in self._daemons:
            sizes = [_status(pid) for pid in family(daemon.pid)]
            used = daemon.cpu_seconds() - self._used.get(role, 0.0)
            resident, peak = (sum(each.get(name, 0.0) for each in sizes) for name in ("VmRSS", "VmHWM"))
            found.append(Process(role, used, resident, peak))
        return found


def own_process(began: float) -> Process:
    """Return the fleet's own resources; `began`: its processor time at the start."""
    status = _status(os.getpid())
    return Process("fleet", time.process_time() - began, status.get("VmRSS", 0.0), status.get("VmHWM", 0.0))


def _status(pid: int) -> dict[str, float]:
    """Return the sizes of a process in MB (proc(5), /proc/pid/status)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {line.partition(":")[0]: int(line.split()[1]) * 1024 / 1e6 for line in lines if line.endswith(" kB")}

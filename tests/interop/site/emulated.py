"""A machine of QEMU on a tap, until its kernel speaks: prints how many seconds that took, `null` if it never did.

    python -m tests.interop.site.emulated FIRMWARE MAC TAP DIRECTORY SECONDS

A BIOS without anything to boot restarts after three seconds, as servers are configured to.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from edge.lab.machine import Firmware, MachineSettings, VirtualMachine


class _Retrying(VirtualMachine):
    def _command(self) -> list[str | Path]:
        retry = ["-boot", "reboot-timeout=3000"] if self.settings.firmware is Firmware.BIOS else []
        return [*super()._command(), *retry]


async def booted(machine: VirtualMachine, within: float) -> float | None:
    """Seconds from power-on to the kernel's first line; None: there was none."""
    began = time.monotonic()
    await machine.power_on()
    try:
        while (seconds := time.monotonic() - began) < within:
            if any("Linux version" in line for line in machine.last_lines(200)):
                return round(seconds, 1)
            await asyncio.sleep(0.2)
        return None
    finally:
        await machine.power_off()


def main() -> None:
    firmware, mac, tap, directory, within = sys.argv[1:]
    settings = MachineSettings(mac, tap, Firmware(firmware), memory_mib=512, processors=1, disk_mib=1)
    machine = _Retrying(settings, Path(directory))
    seconds = asyncio.run(booted(machine, float(within)))
    sys.stdout.write(json.dumps({"seconds": seconds, "screen": machine.last_lines(40)}) + "\n")


if __name__ == "__main__":
    main()

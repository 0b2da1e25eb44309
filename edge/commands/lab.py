"""`tinkedge lab`: see `edge.lab.run`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

import click

from edge.building.builder import default_cache
from edge.building.screen import Screen
from edge.lab.machine import Drive, Firmware
from edge.lab.run import Lab, LabError, LabSettings
from edge.settings import FilePath


@click.command()
@click.option(
    "--firmware",
    type=click.Choice([f.value for f in Firmware if "own-keys" not in f]),
    default="bios",
    help="What starts the machine.",
)
@click.option("--ipv6", is_flag=True, help="A rack without IPv4: DHCPv6, and all else over IPv6.")
@click.option("--dual-stack", is_flag=True, help="A rack with IPv4 and IPv6, and a machine with an address of each.")
@click.option("--full", is_flag=True, help="Install Debian, boot it from the disk and wait for its cloud-init.")
@click.option("--accel", default="tcg", help="QEMU's accelerator. kvm may fail in firmware on a virtualised host.")
@click.option("--memory", "memory_mib", type=click.IntRange(512), default=1024, help="The machine's memory in MiB.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0, min_open=True),
    default=120,
    help="Seconds without any step, download or new screen output after which the lab fails.",
)
@click.option("--cache-dir", type=FilePath(), default=None, help="Where the OSIE and images are kept.")
@click.option("--ipxe-dir", type=FilePath(exists=True), default=None, help="Other iPXE binaries.")
@click.option(
    "--shim-dir",
    type=FilePath(exists=True),
    default=None,
    help="Shim and GRUB for the machine to boot by. With Secure Boot it does anyhow, by those of Debian's packages.",
)
@click.option(
    "--medium",
    type=click.Choice([drive.value for drive in Drive]),
    default=None,
    help="Start the machine from its boot medium, in such a drive. Default: from the network.",
)
@click.option("--static", is_flag=True, help="With --medium: do without DHCP.")
@click.option(
    "--wheel",
    type=FilePath(exists=True),
    default=None,
    help="Wheel for the OSIE's agent. Default: this installation's own files.",
)
@click.option(
    "--manifests",
    type=FilePath(exists=True),
    default=None,
    help="Apply these instead of the examples.",
)
def lab(firmware: str, cache_dir: Path | None, medium: str | None, **given: Any) -> None:
    """An isolated virtual rack on this machine: boots a real QEMU machine through the whole path.

    Everything happens in a network namespace that is made for it and removed after it. Needs root and the Debian
    packages that `make run` installs. Exits with 0 if the Workflow succeeded (with --full: if the machine's cloud-init
    has reported too), else with 1 and the name of the last step that worked.
    """
    if given["static"] and medium is None:
        raise click.UsageError("--static is for a machine that starts from a medium: say --medium cdrom, or usb")
    if given["ipv6"] and given["dual_stack"]:
        raise click.UsageError("--ipv6 is a rack without IPv4, --dual-stack one with both: leave one of them out")
    if given["full"] and medium == Drive.USB and firmware == Firmware.BIOS:
        raise click.UsageError("a BIOS starts a USB stick and never the disk after it: say --medium cdrom with --full")
    drive = Drive(medium) if medium is not None else None
    settings = LabSettings(firmware=Firmware(firmware), cache=cache_dir or default_cache(), medium=drive, **given)
    sys.exit(asyncio.run(_run(settings)))


async def _run(settings: LabSettings) -> int:
    screen = Screen()
    task = asyncio.ensure_future(Lab(settings, screen).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except LabError as error:
        screen.error(f"\nlab failed: {error}")
        return 1
    except asyncio.CancelledError:
        screen.error("\nlab interrupted; everything was taken down")
        return 130
    finally:
        with contextlib.suppress(ValueError):
            loop.remove_signal_handler(signal.SIGINT)
    return 0

"""`tinkedge lab`: an isolated virtual rack (`edge.lab.run`)."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from edge.building.builder import default_cache
from edge.building.screen import Screen
from edge.commands.progress import run_interruptible
from edge.lab.discovery import PORT, ApprovalMode
from edge.lab.machine import Drive, Firmware
from edge.lab.run import Lab, LabError, LabSettings
from edge.settings import FilePath


@click.command()
@click.option(
    "--firmware",
    type=click.Choice([f.value for f in Firmware if "own-keys" not in f]),
    default="bios",
    help="Firmware of the machine.",
)
@click.option("--ipv6", is_flag=True, help="Use IPv6 only: DHCPv6, and all else over IPv6.")
@click.option("--dual-stack", is_flag=True, help="Use IPv4 and IPv6; the machine gets an address of each.")
@click.option("--full", is_flag=True, help="Install Debian, boot it from the disk and wait for cloud-init.")
@click.option("--accel", default="tcg", help="QEMU's accelerator. kvm may fail in firmware on a virtualised host.")
@click.option("--memory", "memory_mib", type=click.IntRange(512), default=1024, help="Memory of the machine in MiB.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0, min_open=True),
    default=120,
    help="Seconds without any step, download or new screen output after which the lab fails.",
)
@click.option("--cache-dir", type=FilePath(), help="Directory that keeps the OSIE and images.")
@click.option("--ipxe-dir", type=FilePath(exists=True), help="Directory with other iPXE binaries.")
@click.option(
    "--shim-dir",
    type=FilePath(exists=True),
    help="Directory with shim and GRUB to boot the machine with. With Secure Boot, default: those of Debian's "
    "packages.",
)
@click.option(
    "--medium",
    type=click.Choice([drive.value for drive in Drive]),
    help="Boot the machine from its boot medium, in this drive. Default: from the network.",
)
@click.option(
    "--bmc",
    is_flag=True,
    help="Start with the machine off. The controller boots it by its simulated BMC, and switches it off and on after "
    "the installation. With Secure Boot or arm64, whose firmware can't start the lab's disk, only off.",
)
@click.option(
    "--discover",
    type=click.Choice([each.value for each in ApprovalMode]),
    help="Create no Hardware. The machine is admitted by a rule of `up --discover`, introduces itself, and is approved "
    "by `tinkedge discover approve` (rule), or by a list of expected machines that has its serial number (list). "
    "Needs lldpd, which announces the machine's port as a switch does.",
)
@click.option(
    "--switch-port",
    default=PORT,
    show_default=True,
    help="With --discover list: the port that the switch announces. The list expects the default.",
)
@click.option("--static", is_flag=True, help="With --medium: boot without DHCP.")
@click.option(
    "--wheel",
    type=FilePath(exists=True),
    help="Wheel for the agent in the OSIE. Default: the files of this installation.",
)
@click.option("--manifests", type=FilePath(exists=True), help="Manifests to apply instead of the examples.")
def lab(firmware: str, cache_dir: Path | None, medium: str | None, discover: str | None, **given: Any) -> None:
    """Boot a QEMU machine through the whole path, in an isolated virtual rack on this host.

    Everything happens in a temporary network namespace. Needs root and the Debian packages that `make run` installs.
    Exits with 0 if the Workflow succeeded (with --full: if cloud-init has reported, too), else with 1 and the name of
    the last step that worked.
    """
    if given["static"] and medium is None:
        raise click.UsageError("--static is for a machine that boots from a medium: add --medium cdrom, or usb")
    if given["ipv6"] and given["dual_stack"]:
        raise click.UsageError("--ipv6 is a rack without IPv4, --dual-stack one with both: leave one of them out")
    if given["full"] and medium == Drive.USB and firmware == Firmware.BIOS:
        raise click.UsageError("a BIOS boots a USB stick, but not the disk after it: use --medium cdrom with --full")
    if given["full"] and not Firmware(firmware).boots_lab_disk:
        raise click.UsageError(
            f"--full boots a Debian for x86-64 from the disk, whose loader has no signature, and {firmware} can't do "
            "that: leave one of them out"
        )
    if given["bmc"] and medium is not None:
        raise click.UsageError("--bmc boots the machine from the network, not from a medium: leave one of them out")
    if given["bmc"] and given["ipv6"] and not given["full"]:
        raise click.UsageError("--bmc waits for the system on the disk, and the small one has no IPv6: add --full")
    if discover is not None and (given["ipv6"] or given["dual_stack"] or medium is not None):
        raise click.UsageError(
            "--discover admits a machine by its DHCPv4 DISCOVER: leave --ipv6, --dual-stack and --medium out"
        )
    if given["bmc"] and discover == ApprovalMode.RULE:
        raise click.UsageError(
            "--bmc with --discover needs the list, which has the address of the BMC: use --discover list"
        )
    drive = Drive(medium) if medium is not None else None
    admission = ApprovalMode(discover) if discover is not None else None
    settings = LabSettings(
        firmware=Firmware(firmware), cache=cache_dir or default_cache(), medium=drive, discover=admission, **given
    )
    screen = Screen()
    try:
        run_interruptible(Lab(settings, screen).run())
    except LabError as error:
        screen.error(f"\nlab failed: {error}")
        sys.exit(1)
    except asyncio.CancelledError:
        screen.error("\nlab interrupted; everything was removed")
        sys.exit(130)

"""`tinkedge prepare`: make the OSIE, the action images and a disk image (`edge.building.prepare`)."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from edge.building import packages
from edge.building.builder import Part
from edge.building.prepare import (
    PrepareError,
    Settings,
    announcement,
    apply,
    bring,
    check,
    check_directory,
    outdated,
    run,
)
from edge.building.screen import Screen
from edge.building.shell import CommandError
from edge.commands.options import data_dir as data_dir_option
from edge.commands.progress import run_interruptible
from edge.settings import FilePath


@click.command()
@data_dir_option("Data directory of the edge, which receives the results.")
@click.option(
    "--arch",
    "arches",
    type=click.Choice(["amd64", "arm64"]),
    multiple=True,
    help="Processor of the machines. Repeatable.  [default: that of this host]",
)
@click.option(
    "--kernel",
    metavar="PACKAGE",
    help="Debian's kernel package. linux-image-cloud-amd64 is smaller, for virtual machines.  "
    "[default: linux-image-ARCH, for real hardware]",
)
@click.option(
    "--only",
    type=click.Choice([part.value for part in Part]),
    multiple=True,
    help="Make only this part. Repeatable.  [default: all]",
)
@click.option("--yes", is_flag=True, help="Install missing Debian packages without asking.")
@click.option(
    "--kubeconfig",
    type=FilePath(dir_okay=False),
    help="Kubeconfig of the API that the OSIE is applied to.  [default: DATA_DIR/kubeconfig]",
)
@click.option("--rebuild", is_flag=True, help="Make everything again, with the current packages of Debian.")
@click.option(
    "--cache-dir",
    type=FilePath(file_okay=False),
    default=Path("/var/cache/tinkedge"),
    help="Directory that keeps packages and intermediate results.",
)
def prepare(
    data_dir: Path,
    arches: tuple[str, ...],
    kernel: str | None,
    only: tuple[str, ...],
    yes: bool,
    kubeconfig: Path | None,
    rebuild: bool,
    cache_dir: Path,
) -> None:
    """Make the files that machines boot and run from Debian packages, for real hardware, in the data directory.

    \b
    osie     kernel and initrd with the agent: the OSIE `tinkedge`, and its object
    actions  the images inspect, image2disk, writefile, reboot, wipe: EDGE:7080/actions/NAME:1
    image    Debian 12 with cloud-init and ssh: http://EDGE:7080/files/debian-12-amd64.raw.zst

    Needs root. Parts that are up to date are skipped, so a second run takes seconds. A running edge serves the results
    at once. For another processor than that of this host, the OSIE is named tinkedge-arm64 or tinkedge-amd64.
    """
    if os.geteuid():
        raise click.ClickException(
            "this needs root, because files in the OSIE and in the image belong to root: run it with sudo"
        )
    os.umask(0o022)  # for the files in the OSIE and in the image
    screen = Screen()
    try:
        host = packages.PackageHost.here()
        settings = Settings(
            data_dir=data_dir.absolute(),
            cache=cache_dir.absolute(),
            parts=frozenset(map(Part, only)) or frozenset(Part),
            arches=tuple(dict.fromkeys(arches)) or (host.arch,),
            host_arch=host.arch,
            kernel=kernel or "",
            kubeconfig=kubeconfig,
            again=rebuild,
        )
        check(settings)
        check_directory(settings.data_dir)
        todo = outdated(settings, screen)
        _announce_and_install(todo, host, screen, yes=yes)
        osies = bring(settings, run_interruptible(run(settings, todo, screen)), screen)
        if osies:
            run_interruptible(apply(settings, osies, screen))
    except (PrepareError, CommandError) as error:
        screen.error(f"tinkedge prepare: {error}")
        sys.exit(1)
    except asyncio.CancelledError:
        screen.error("tinkedge prepare: interrupted; complete parts are kept, and the next run continues after them")
        sys.exit(130)


def _announce_and_install(todo: dict[str, set[Part]], host: packages.PackageHost, screen: Screen, *, yes: bool) -> None:
    """Announce the parts to make, and install missing Debian packages. Raises CommandError, PrepareError."""
    needed: set[str] = set()
    for arch, parts in todo.items():
        needed |= packages.needed(parts, [arch], host)
    missing = needed - packages.installed(needed) if needed else set()
    megabytes = asyncio.run(packages.download_bytes(missing)) // 1_000_000 if missing else 0
    if text := announcement(todo, host.arch, megabytes):
        screen.step("plan", text)
    if not missing:
        return
    command = packages.command(missing)
    screen.step("plan", f"missing Debian packages: {' '.join(sorted(missing))}")
    if not yes and not (sys.stdin.isatty() and click.confirm("Install them now?", default=True)):
        raise PrepareError(f"Debian packages are missing. Install them, or run this with --yes:\n  {command}")

    async def install() -> None:
        async with screen.company(lambda: "apt-get installs the packages"):
            await packages.install(missing, lambda _: None)

    run_interruptible(install())
    screen.step("plan", "installed; no service was enabled or started")

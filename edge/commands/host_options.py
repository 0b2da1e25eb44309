"""The options about Metal3's hosts of `tinkedge convert --to hardware` and `tinkedge metal3`."""

from __future__ import annotations

from collections.abc import Callable

import click

from edge.settings import parsed
from tink.convert.constraints import object_name

Command = Callable[..., None]

ARCHITECTURES = ("x86_64", "aarch64")


@parsed("arch=name")
def _osie_of(text: str) -> tuple[str, str]:
    """Parse an architecture and the OSIE that its machines boot: `x86_64=hook`."""
    arch, equals, name = text.partition("=")
    if not equals or arch not in ARCHITECTURES or object_name(name):
        raise ValueError(f"{text!r} must be like {ARCHITECTURES[0]}=hook or {ARCHITECTURES[1]}=hook-arm")
    return arch, name


_OPTIONS = (
    click.option(
        "--osie",
        "osies",
        type=_osie_of,
        multiple=True,
        help="OSIE that hosts of an architecture boot, in their namespace: x86_64=NAME, aarch64=NAME. Repeatable.",
    ),
    click.option("--bmc", is_flag=True, help="Make a Machine of Rufio for each management controller, too."),
    click.option(
        "--consumed", is_flag=True, help="Include hosts that Cluster API uses. They do not netboot while it uses them."
    ),
    click.option(
        "--netboot-unmanaged",
        "unmanaged",
        is_flag=True,
        help="Let hosts without a state and an image netboot, too: no baremetal-operator manages them. Default: only "
        "hosts that Metal3 reports as available netboot.",
    ),
)


def host_options(command: Command) -> Command:
    """Decorate a command with these options: the values for `HostOptions`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def osies_by_architecture(osies: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return the OSIE of each architecture. Raises click.UsageError if --osie names two for one architecture."""
    found: dict[str, str] = {}
    for arch, name in osies:
        if found.setdefault(arch, name) != name:
            raise click.UsageError(f"--osie: {arch} machines can boot one OSIE, {found[arch]} or {name}")
    return found

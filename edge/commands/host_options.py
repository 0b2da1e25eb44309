"""What an operator says of Metal3's hosts: the same for `tinkedge convert --to hardware` and for `tinkedge metal3`."""

from __future__ import annotations

from collections.abc import Callable

import click

from edge.commands.options import parsed
from tink.convert.constraints import object_name

Command = Callable[..., None]

ARCHITECTURES = ("x86_64", "aarch64")


@parsed("arch=name")
def _osie_of(text: str) -> tuple[str, str]:
    """An architecture and the OSIE that its machines boot: `x86_64=hook`."""
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
        help="The OSIE that hosts of an architecture boot, in their namespace: x86_64=NAME, aarch64=NAME. Repeatable.",
    ),
    click.option("--bmc", is_flag=True, help="Make a Machine of Rufio's for each management controller, too."),
    click.option(
        "--consumed", is_flag=True, help="Take hosts that Cluster API uses, too. They do not netboot while it does."
    ),
    click.option(
        "--netboot-unmanaged",
        "unmanaged",
        is_flag=True,
        help="Let hosts netboot that have no state, because no baremetal-operator looks after them, and ask for no "
        "image. Without it only hosts netboot that Metal3 says are available.",
    ),
)


def host_options(command: Command) -> Command:
    """A decorator that gives a command these options: the values for `HostOptions`, but for the OSIEs."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def osies_by_architecture(osies: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """What --osie says. Raises click.UsageError if it says two things of one architecture."""
    found: dict[str, str] = {}
    for arch, name in osies:
        if found.setdefault(arch, name) != name:
            raise click.UsageError(f"--osie: {arch} machines can boot one OSIE, {found[arch]} or {name}")
    return found

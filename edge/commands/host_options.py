"""The options about Metal3's hosts of `tinkedge convert --to hardware` and `tinkedge metal3`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from edge.commands.options import gathered
from edge.settings import parsed
from tink.convert.constraints import object_name

if TYPE_CHECKING:
    from tink.convert.metal3.to_hardware import HostOptions

ARCHITECTURES = ("x86_64", "aarch64")


@parsed("arch=name")
def _osie_of(text: str) -> tuple[str, str]:
    """Parse an architecture and the OSIE that its machines boot: `x86_64=hook`."""
    arch, equals, name = text.partition("=")
    if not equals or arch not in ARCHITECTURES or object_name(name):
        raise ValueError(f"{text!r} must be like {ARCHITECTURES[0]}=hook or {ARCHITECTURES[1]}=hook-arm")
    return arch, name


def _host_options(osies: tuple[tuple[str, str], ...], bmc: bool, consumed: bool, unmanaged: bool) -> HostOptions:
    """Return the options. Raises click.UsageError if --osie names two OSIEs for one architecture."""
    from tink.convert.metal3.to_hardware import HostOptions

    found: dict[str, str] = {}
    for arch, name in osies:
        if found.setdefault(arch, name) != name:
            raise click.UsageError(f"--osie: {arch} machines can boot one OSIE, {found[arch]} or {name}")
    return HostOptions(found, bmc, consumed, unmanaged)


host_options = gathered(
    "hosts",
    _host_options,
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
"""Gives a command these options as its argument `hosts`: HostOptions."""

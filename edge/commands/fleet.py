"""`tinkedge fleet`: simulate machines by the thousand (`edge.fleet`)."""

from __future__ import annotations

import asyncio
import json
import sys
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any

import click
import uvloop

from edge.commands.progress import run_interruptible
from edge.fleet.network import FleetError, MachineLink
from edge.fleet.objects import Boots
from edge.fleet.population import Profile, ProfileError, load, with_faults
from edge.fleet.results import DEFAULT_BARS, BarError, lines, parse
from edge.fleet.run import Fleet
from edge.fleet.settings import DEFAULT_NETWORK, FleetSettings, FleetSettingsError, HardwareSource
from edge.settings import FilePath, parsed, types


@parsed("ipv4")
def _address(text: str) -> IPv4Address:
    """Parse an IPv4 address."""
    return IPv4Address(types.ipv4.read(text))


@parsed("cidr")
def _network(text: str) -> IPv4Network:
    """Parse an IPv4 network such as 10.1.0.0/16."""
    return IPv4Network(text)


@parsed("ipv4/prefix")
def _uplink(text: str) -> str:
    """Parse an address with its prefix, such as 10.0.0.9/24, or an empty text."""
    return IPv4Interface(text).with_prefixlen if text else ""


@parsed("size")
def _size(text: str) -> int:
    """Parse a size in bytes, or with a unit, such as 40MB."""
    factors = {"kB": 10**3, "MB": 10**6, "GB": 10**9}
    unit = next((unit for unit in factors if text.endswith(unit)), "")
    try:
        return int(float(text.removesuffix(unit)) * factors.get(unit, 1))
    except ValueError:
        raise ValueError(f"{text!r} is not a size such as 40MB") from None


@click.command()
@click.option("--machines", type=click.IntRange(1), default=100, help="Number of machines.")
@click.option("--seed", type=click.IntRange(0), default=1, help="The same seed gives the same fleet.")
@click.option(
    "--profile",
    "profile_file",
    type=FilePath(exists=True, dir_okay=False),
    help="File (YAML) that describes the machines and the outcomes of their actions. Default: see docs/fleet.md.",
)
@click.option(
    "--fault",
    "faults",
    metavar="NAME=RATE",
    multiple=True,
    help="A fault and its rate (0 to 1): lost-packets, power-cuts, hanging-firmware, failing-actions, "
    "slow-disks, lying-clocks. Repeatable.",
)
@click.option(
    "--target", type=_address, help="Address of the edge. Default: a stack of the fleet's own, in network namespaces."
)
@click.option(
    "--allow",
    type=_network,
    multiple=True,
    help="Addresses that machines may contact outside of their own network namespace or behind a router: the target's, "
    "and those in its scripts. Repeatable.",
)
@click.option(
    "--hardware",
    type=click.Choice([each.value for each in HardwareSource]),
    default=HardwareSource.GENERATE.value,
    help="generate: make Hardware, Template and Workflows, and remove them. cluster: use existing ones.",
)
@click.option(
    "--selector", "-l", default="", help="With --hardware cluster: label selector of the Hardware and Workflows."
)
@click.option("--kubeconfig", type=FilePath(exists=True), help="With --target: kubeconfig of its API.")
@click.option("--namespace", "-n", "api_namespace", default="default", help="Namespace of the objects.")
@click.option("--osie", default="", help="Name of an existing OSIE that generated machines boot.")
@click.option("--kernel-url", default="", help="Kernel of a new OSIE that generated machines boot.")
@click.option("--initrd-url", default="", help="Initrd of the new OSIE.")
@click.option(
    "--link",
    type=click.Choice([each.value for each in MachineLink]),
    default=MachineLink.RELAY.value,
    help="relay: machines are behind a relay agent. direct: on the target's link, each with its own MAC.",
)
@click.option("--interface", default="", help="With --target: the interface towards it.")
@click.option(
    "--netns",
    default="",
    help="With --target: the network namespace of the machines (ip netns). The API is reached from the current one. "
    "Default: the current one.",
)
@click.option(
    "--uplink-address",
    "uplink",
    type=_uplink,
    default="",
    help="In the host's network namespace: give the machines a namespace of their own, with a macvlan on --interface "
    "that has this address.",
)
@click.option("--network", type=_network, default=DEFAULT_NETWORK, help="Network of the machines' addresses.")
@click.option(
    "--relay-address", "relay", type=_address, help="Address of the relay agent. Default: the first of --network."
)
@click.option(
    "--by-reference",
    is_flag=True,
    help="Fetch only the length and the last byte of kernel and initrd, if the loopback interface is too slow for all.",
)
@click.option("--kernel-size", "kernel_bytes", type=_size, default="10MB", help="Size of the kernel of the own stack.")
@click.option("--initrd-size", "initrd_bytes", type=_size, default="40MB", help="Size of the initrd of the own stack.")
@click.option(
    "--roles", is_flag=True, help="Run the own stack as four processes, as on a cluster, instead of tinkedge up."
)
@click.option(
    "--bmc",
    is_flag=True,
    help="Give each machine a simulated BMC (Redfish). Machines are off until tinkedge powers them on, for their "
    "Workflows.",
)
@click.option(
    "--unknown",
    is_flag=True,
    help="No Hardware describes the machines: a rule of --discover admits them, they report their inventories, and a "
    "list of expected machines approves them.",
)
@click.option(
    "--planted",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="With --unknown: plant N errors in the machines, of all kinds in turn (swapped cables, a missing disk, ...). "
    "The run fails if one is not found, or if a verdict is false.",
)
@click.option(
    "--stack-option", "stack_options", multiple=True, help="Another option for the edge of the own stack. Repeatable."
)
@click.option(
    "--bar",
    "bars",
    metavar="NAME<VALUE",
    multiple=True,
    help="A goal of the run, such as dhcp-offer.p99<1s or provisioned.p99<20m: see docs/fleet.md. Repeatable. "
    f"Default: {', '.join(DEFAULT_BARS)}.",
)
@click.option("--limit", type=click.FloatRange(1), default=7200.0, help="Maximum duration of the run in seconds.")
@click.option(
    "--json", "json_file", type=FilePath(dir_okay=False, writable=True), help="Write the report to this file."
)
@click.option("--quiet", is_flag=True, help="Show no progress.")
def fleet(
    profile_file: Path | None, faults: tuple[str, ...], bars: tuple[str, ...], json_file: Path | None, quiet: bool,
    osie: str, kernel_url: str, initrd_url: str, **given: Any,
) -> None:  # fmt: skip
    """Simulate thousands of machines from power-on to the installed system, to size and to test a site.

    They use the protocols of real machines: firmware's DHCP, TFTP or HTTP Boot, iPXE's script, kernel and initrd, the
    agent's gRPC, cloud-init's metadata. Without --target they boot from a stack of their own, in temporary network
    namespaces. Needs root.

    Exits with 0 if every goal (--bar) was reached, with 1 if one was not, with 2 if the run was not possible.
    """
    try:
        profile = with_faults(load(profile_file) if profile_file else Profile(), dict(map(_fault, faults)))
        found = {
            **given,
            "hardware": HardwareSource(given["hardware"]),
            "link": MachineLink(given["link"]),
            "boots": Boots(osie, kernel_url, initrd_url),
            "bars": [parse(bar) for bar in bars or DEFAULT_BARS],
        }
        settings = FleetSettings(profile=profile, **found)
    except (ProfileError, BarError, FleetSettingsError) as error:
        raise click.UsageError(str(error)) from error
    run = Fleet(settings, shown=not quiet)
    try:
        report = run_interruptible(run.run(), uvloop.run)
    except FleetError as error:
        click.secho(f"the fleet can't run: {error}", fg="red", err=True)
        sys.exit(2)
    except asyncio.CancelledError:
        click.secho("interrupted", fg="red", err=True)
        sys.exit(130)
    counts = {key: len(values) for key, values in run.recorder.seconds.items()}
    click.echo("\n".join(lines(report, counts)))
    if json_file is not None:
        json_file.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if report.broken else 0)


def _fault(text: str) -> tuple[str, float]:
    name, _, rate = text.partition("=")
    try:
        return name, float(rate)
    except ValueError:
        raise click.UsageError(f"--fault {text}: NAME=RATE, such as power-cuts=0.02") from None

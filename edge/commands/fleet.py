"""`tinkedge fleet`: see `edge.fleet`."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import signal
import sys
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

import click
import uvloop

from edge.fleet import (
    DEFAULT_BARS,
    DEFAULT_NETWORK,
    BarError,
    Boots,
    Fleet,
    FleetError,
    FleetSettings,
    HardwareSource,
    Link,
    Profile,
    ProfileError,
    Report,
    SettingsError,
    lines,
    load,
    parse,
    with_faults,
)
from edge.settings import FilePath


class _Parsed(click.ParamType[Any]):
    """A value that a function of the standard library reads."""

    def __init__(self, name: str, read: Any, valid: str) -> None:
        """`valid` is what a value must be, with an example."""
        self.name = name
        self._read = read
        self._valid = valid

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Part of click."""
        try:
            return value if not isinstance(value, str) else self._read(value)
        except ValueError as error:
            self.fail(f"{value!r} is not {self._valid}: {error}", param, ctx)


_ADDRESS = _Parsed("IPV4", IPv4Address, "an IPv4 address such as 10.0.0.1")
_NETWORK = _Parsed("CIDR", ipaddress.IPv4Network, "an IPv4 network such as 10.1.0.0/16")


def _size(text: str) -> int:
    factors = {"kB": 10**3, "MB": 10**6, "GB": 10**9}
    unit = next((unit for unit in factors if text.endswith(unit)), "")
    return int(float(text.removesuffix(unit)) * factors.get(unit, 1))


_SIZE = _Parsed("SIZE", _size, "a size such as 40MB")


@click.command()
@click.option("--machines", type=click.IntRange(1), default=100, help="How many.")
@click.option("--seed", type=click.IntRange(0), default=1, help="The same seed gives the same fleet.")
@click.option(
    "--profile",
    "profile_file",
    type=FilePath(exists=True, dir_okay=False),
    default=None,
    help="What machines are like, and how their actions go (YAML). Default: see docs/fleet.md.",
)
@click.option(
    "--fault",
    "faults",
    metavar="NAME=RATE",
    multiple=True,
    help="What goes wrong, how often (0 to 1): lost-packets, power-cuts, hanging-firmware, failing-actions, "
    "slow-disks, lying-clocks. Repeatable.",
)
@click.option(
    "--target",
    type=_ADDRESS,
    default=None,
    help="The edge's address. Default: a stack of the fleet's own, in network namespaces.",
)
@click.option(
    "--allow",
    type=_NETWORK,
    multiple=True,
    help="Addresses that machines may speak to, though they are reached from the host's own network namespace or by a "
    "router: the target's, and where its scripts lead. Repeatable.",
)
@click.option(
    "--hardware",
    type=click.Choice([each.value for each in HardwareSource]),
    default=HardwareSource.GENERATE.value,
    help="generate: make Hardware, Template and Workflows, and remove them. cluster: take those that are there.",
)
@click.option("--selector", "-l", default="", help="With --hardware cluster: labels of the Hardware and Workflows.")
@click.option("--kubeconfig", type=FilePath(exists=True), default=None, help="With --target: of its API.")
@click.option("--namespace", "-n", "api_namespace", default="default", help="Of the objects.")
@click.option("--osie", default="", help="What generated machines boot: an OSIE that is there.")
@click.option("--kernel-url", default="", help="The same: of an OSIE that is made.")
@click.option("--initrd-url", default="", help="The same.")
@click.option(
    "--link",
    type=click.Choice([each.value for each in Link]),
    default=Link.RELAY.value,
    help="relay: machines are behind a relay agent. direct: on the target's link, each with its own MAC.",
)
@click.option("--interface", default="", help="With --target: the link towards it.")
@click.option(
    "--netns",
    default="",
    help="With --target: the network namespace where machines are (ip netns); the API is spoken to from here. Default: "
    "this one.",
)
@click.option(
    "--uplink-address",
    "uplink",
    type=_Parsed(
        "IPV4/PREFIX",
        lambda text: IPv4Interface(text).with_prefixlen if text else "",
        "an address with its prefix such as 10.0.0.9/24",
    ),
    default="",
    help="From the host's own network namespace: machines get one of their own, with a macvlan on --interface that has "
    "this address.",
)
@click.option("--network", type=_NETWORK, default=DEFAULT_NETWORK, help="The machines' addresses.")
@click.option("--relay-address", "relay", type=_ADDRESS, default=None, help="Default: the first of --network.")
@click.option(
    "--by-reference",
    is_flag=True,
    help="Ask for the length and the last byte of kernel and initrd only: where the loopback can't carry them all.",
)
@click.option("--kernel-size", "kernel_bytes", type=_SIZE, default="10MB", help="Of its own stack.")
@click.option("--initrd-size", "initrd_bytes", type=_SIZE, default="40MB", help="Of its own stack.")
@click.option("--roles", is_flag=True, help="Its own stack is four processes, as on a cluster, and not tinkedge up.")
@click.option("--stack-option", "stack_options", multiple=True, help="One more for its own stack's edge. Repeatable.")
@click.option(
    "--bar",
    "bars",
    metavar="NAME<VALUE",
    multiple=True,
    help="What the run must reach, such as dhcp-offer.p99<1s or provisioned.p99<20m: see docs/fleet.md. Repeatable. "
    f"Default: {', '.join(DEFAULT_BARS)}.",
)
@click.option("--limit", type=click.FloatRange(1), default=7200.0, help="Seconds after which the run is ended.")
@click.option(
    "--json",
    "json_file",
    type=FilePath(dir_okay=False, writable=True),
    default=None,
    help="The report, in this file.",
)
@click.option("--quiet", is_flag=True, help="Show nothing while it runs.")
def fleet(
    profile_file: Path | None, faults: tuple[str, ...], bars: tuple[str, ...], json_file: Path | None, quiet: bool,
    osie: str, kernel_url: str, initrd_url: str, **given: Any,
) -> None:  # fmt: skip
    """Simulated machines by the thousand, from power-on to their installed system: to size a site, and to try it.

    They speak what real ones do: firmware's DHCP, TFTP or HTTP Boot, iPXE's script, kernel and initrd, the agent's
    gRPC, cloud-init's metadata. Without --target they boot from a stack of their own, in network namespaces that are
    made for it and removed after it. Needs root.

    Exits with 0 if every bar was reached, with 1 if one was not, with 2 if the run could not be made.
    """
    try:
        profile = with_faults(load(profile_file) if profile_file else Profile(), dict(map(_fault, faults)))
        found = {
            **given,
            "hardware": HardwareSource(given["hardware"]),
            "link": Link(given["link"]),
            "boots": Boots(osie, kernel_url, initrd_url),
            "bars": [parse(bar) for bar in bars or DEFAULT_BARS],
        }
        settings = FleetSettings(profile=profile, **found)
    except (ProfileError, BarError, SettingsError) as error:
        raise click.UsageError(str(error)) from error
    run = Fleet(settings, shown=not quiet)
    report = uvloop.run(_run(run))
    if isinstance(report, int):
        sys.exit(report)
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


async def _run(fleet: Fleet) -> Report | int:
    """What was found; or the exit status of a run that could not be made."""
    task = asyncio.ensure_future(fleet.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except FleetError as error:
        click.secho(f"the fleet can't run: {error}", fg="red", err=True)
        return 2
    except asyncio.CancelledError:
        click.secho("interrupted", fg="red", err=True)
        return 130
    finally:
        with contextlib.suppress(ValueError):
            loop.remove_signal_handler(signal.SIGINT)

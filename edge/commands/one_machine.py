"""Options and look-ups for the commands about one machine, on the host of an edge: its keys, addresses, Hardware."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge.commands.options import gathered
from edge.settings import FilePath, types
from tink.mac import is_mac

if TYPE_CHECKING:
    from tink.files.key_file import KeyFile

_PATH = FilePath()

interface = click.option(
    "--interface",
    type=types.interface,
    metavar="NAME[=IP]",
    multiple=True,
    help="Interface of the edge on this host: eth1, eth1=10.0.0.1. Repeatable. Default: that of the default route.",
)
http_port = click.option("--http-port", type=click.IntRange(1, 65535), default=7080, help="HTTP port of the edge.")


def known_address(public_ip: str | None, interfaces: tuple[tuple[str, str], ...], ip: str = "") -> tuple[str, str]:
    """Return the edge's address and a description of its source; both are empty if the address is not known here.

    Of several interfaces it is the one in whose network the machine's address `ip` is, else the first.
    """
    from edge.neighbour.host import HostError, Network, default_interface, state_of
    from edge.neighbour.links import look

    if public_ip is not None:
        return public_ip, ""
    try:
        wanted = interfaces or ((default_interface(), ""),)
        states = [state_of(Network(name, address), look(name)) for name, address in wanted]
    except (HostError, OSError):
        return "", ""
    served = [state for state in states if state.address]
    near = [state for state in served if ip and any(IPv4Address(ip) in network for network in state.networks)]
    best = next(iter(near or served), None)
    if best is None:
        return "", ""
    default = "" if interfaces else ", which has the default route"
    return best.address, f"this host's address on {best.interface}{default}"


@dataclass(frozen=True, slots=True)
class EdgeHost:
    """The edge on this host, as the options of a command describe it."""

    namespace: str  # of the Hardware
    public_ip: str | None
    interface: tuple[tuple[str, str], ...]
    http_port: int
    data_dir: Path
    metadata_token_key: Path | None
    kubeconfig: Path | None

    def keys(self) -> KeyFile:
        """Read the keys that sign tokens in URLs. Raises click.ClickException."""
        from edge.callers import token_keys
        from tink.files.key_file import KeyFileError

        try:
            return token_keys(self.data_dir, self.metadata_token_key, create=False)
        except KeyFileError as error:
            advice = (
                "The edge makes it at its start: as root or its user, give its --data-dir, or --metadata-token-key."
            )
            raise click.ClickException(f"{error}. {advice}") from error

    def addresses(self) -> list[str]:
        """Return the addresses of the edge, found as the edge finds them. Raises click.UsageError."""
        from edge.neighbour.host import HostError, addresses_of

        try:
            return [self.public_ip] if self.public_ip is not None else addresses_of(self.interface, None)
        except HostError as error:
            advice = "or give the address at which machines reach the edge with --public-ip"
            raise click.UsageError(f"{error}; {advice}") from error

    def hardware(self, name: str) -> dict[str, Any]:
        """Fetch a Hardware from the API. Raises click.ClickException."""
        import asyncio

        from tink.kube.client import ApiError, KubeClient, KubeConfigError, NotFoundError
        from tink.kube.resources import HARDWARE

        async def fetch() -> dict[str, Any]:
            async with await KubeClient.connect(self.kubeconfig or self.data_dir / "kubeconfig") as client:
                return await client.get(HARDWARE, name, self.namespace)

        if not name:  # The API would return the list of all.
            raise click.UsageError("the name of the Hardware is empty: write its name, or the MAC of the machine")
        named = f"Hardware {self.namespace}/{name}"
        try:
            return asyncio.run(fetch())
        except NotFoundError as error:
            raise click.ClickException(f"there is no {named}; -n names another namespace") from error
        except (ApiError, KubeConfigError) as error:
            raise click.ClickException(f"{named} can't be read: {error}. With its MAC, no API is needed.") from error


def first_mac(found: dict[str, Any]) -> str:
    """Return the first MAC of a Hardware. Raises click.ClickException."""
    macs = found.get("spec", {}).get("networkInterfaces") or {}
    mac = next((mac for mac in macs if is_mac(mac)), None)
    if mac is None:
        named = f"{found['metadata']['namespace']}/{found['metadata']['name']}"
        raise click.ClickException(f"Hardware {named}: spec.networkInterfaces has no MAC address")
    return str(mac)


host = gathered(
    "host",
    EdgeHost,
    click.option("-n", "--namespace", default="default", help="Namespace of the Hardware."),
    click.option("--public-ip", type=types.ip_address, help="Address of the edge, as the machine reaches it."),
    interface,
    http_port,
    click.option(
        "--data-dir",
        type=FilePath(readable=False),
        default=Path("/var/lib/tinkedge"),
        help="Data directory of the edge.",
    ),
    click.option(
        "--metadata-token-key", type=_PATH, help="Key file of the edge. Default: DATA_DIR/metadata-token.key."
    ),
    click.option("--kubeconfig", type=_PATH, help="Kubeconfig of the API. Default: DATA_DIR/kubeconfig."),
)
"""Gives a command the options that describe the edge on this host, as its argument `host`: an EdgeHost."""

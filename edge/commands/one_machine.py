"""What commands about one machine have in common, that run on an edge's host: its keys, its addresses, its Hardware."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge.settings import FilePath, types
from tink.mac import is_mac

if TYPE_CHECKING:
    from tink.files.key_file import KeyFile

_PATH = FilePath()

namespace = click.option("-n", "--namespace", default="default", help="Of the Hardware.")
public_ip = click.option(
    "--public-ip", type=types.ip_address, default=None, help="The address of the edge, as the machine reaches it."
)
interface = click.option(
    "--interface",
    type=types.interface,
    metavar="NAME[=IP]",
    multiple=True,
    help="Or the edge's interface on this host: eth1, eth1=10.0.0.1. Repeatable. Default: of the default route.",
)
http_port = click.option("--http-port", type=click.IntRange(1, 65535), default=7080, help="The port there.")
data_dir = click.option(
    "--data-dir", type=FilePath(readable=False), default=Path("/var/lib/tinkedge"), help="The edge's."
)
token_key = click.option(
    "--metadata-token-key", type=_PATH, default=None, help="The edge's key file. Default: DATA_DIR/metadata-token.key."
)
kubeconfig = click.option("--kubeconfig", type=_PATH, default=None, help="The API's. Default: DATA_DIR/kubeconfig.")


def keys(directory: Path, key: Path | None) -> KeyFile:
    """The keys that sign tokens in URLs. Raises click.ClickException."""
    from edge.callers import token_keys
    from tink.files.key_file import KeyFileError

    try:
        return token_keys(directory, key, create=False)
    except KeyFileError as error:
        advice = (
            "The edge makes it at its start: as root or its user, give the same --data-dir, or --metadata-token-key."
        )
        raise click.ClickException(f"{error}. {advice}") from error


def addresses(given: str | None, interfaces: tuple[tuple[str, str], ...]) -> list[str]:
    """Those of the edge, found as the edge finds them. Raises click.UsageError."""
    from edge.neighbour.host import HostError, addresses_of

    try:
        return [given] if given is not None else addresses_of(interfaces, None)
    except HostError as error:
        raise click.UsageError(f"{error}; --public-ip says at which address machines reach the edge") from error


def known_address(public_ip: str | None, interfaces: tuple[tuple[str, str], ...], ip: str = "") -> tuple[str, str]:
    """Return the edge's address and the words for where it is from; both are empty if nothing on this host tells it.

    It is `public_ip`, else the address of one of `interfaces`, else that of the default route's interface. Of several
    interfaces it is the one in whose network the machine's address `ip` is, else the first.
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
    return (
        best.address,
        f"this host's address on {best.interface}{'' if interfaces else ', which has the default route'}",
    )


def hardware(kubeconfig: Path, namespace: str, name: str) -> dict[str, Any]:
    """The object, of the API. Raises click.ClickException."""
    import asyncio

    if not name:  # the API would give the list of all
        raise click.UsageError("the name of the Hardware is empty: write its name, or the MAC of the machine")
    return asyncio.run(_hardware(kubeconfig, namespace, name))


async def _hardware(kubeconfig: Path, namespace: str, name: str) -> dict[str, Any]:
    from tink.kube.client import ApiError, KubeClient, KubeConfigError, NotFoundError
    from tink.kube.resources import HARDWARE

    try:
        async with await KubeClient.connect(kubeconfig) as client:
            return await client.get(HARDWARE, name, namespace)
    except NotFoundError as error:
        raise click.ClickException(f"there is no Hardware {namespace}/{name}; -n names another namespace") from error
    except (ApiError, KubeConfigError) as error:
        message = f"Hardware {namespace}/{name} can't be read: {error}. With its MAC, no API is needed."
        raise click.ClickException(message) from error


def first_mac(found: dict[str, Any], namespace: str, name: str) -> str:
    """The first MAC that a Hardware names. Raises click.ClickException."""
    macs = found.get("spec", {}).get("networkInterfaces") or {}
    mac = next((mac for mac in macs if is_mac(mac)), None)
    if mac is None:
        raise click.ClickException(f"Hardware {namespace}/{name}: spec.networkInterfaces has no MAC address")
    return str(mac)

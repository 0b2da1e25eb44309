"""Whether a fleet may be let loose on an address: not by accident.

A thousand machines that boot are an attack on whoever did not expect them. So machines are never in the host's own
network namespace, where their addresses would be the host's; and a run begins only where its packets can't get far, to
an address that is the namespace's own or on a link of it, or else the command line names the address. A namespace that
is joined to an interface of the host for the run (`edge.fleet.network.uplink`) leads anywhere, so there it must.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from edge.neighbour.route import Route, RouteKind, route_to

_FIRST = Path("/proc/1/ns/net")
_OWN = Path("/proc/thread-self/ns/net")
_NAMED = Path("/run/netns")


class TargetError(Exception):
    """The address is not one that a fleet may be let loose on; the text says how it could be."""


def is_hosts_namespace(first: Path = _FIRST, own: Path = _OWN, named: Path = _NAMED) -> bool:
    """Whether the calling thread is in the network namespace of process 1.

    Where that can't be seen, a namespace that has a name (ip netns) is taken to be another one, and any other is not.
    """
    here = own.stat().st_ino
    try:
        return here == first.stat().st_ino
    except OSError:
        others = [*named.iterdir()] if named.is_dir() else []
        return here not in {other.stat().st_ino for other in others if other.exists()}


def check(
    target: IPv4Address,
    allowed: tuple[IPv4Network, ...],
    *,
    is_hosts: bool,
    by_uplink: bool = False,
    route: Callable[[IPv4Address], Route] = route_to,
) -> None:
    """Raises TargetError. `is_hosts`: machines would be in the host's own network namespace."""
    if is_hosts:
        raise TargetError(
            f"this is the host's own network namespace, where no machine may be: run inside another one (ip netns "
            f"exec), name one (--netns), or let one be made (--interface, --uplink-address, --allow {target})"
        )
    if any(target in network for network in allowed):
        return
    if by_uplink:
        raise TargetError(
            f"{target} is reached by an interface of the host: say --allow {target} if this is the site that is to be "
            "tried"
        )
    kind = route(target).kind
    if kind not in (RouteKind.OWN, RouteKind.LINK):
        raise TargetError(
            f"{target} is {kind.value} as seen from this network namespace, and not on a link of it: say "
            f"--allow {target} if this is the site that is to be tried"
        )

"""Two interfaces of this host on one Ethernet, where each answers ARP for the addresses of the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Final

from edge.doctor.checks.findings import Finding, warning
from edge.neighbour.links import Link, look, other_ethernets
from edge.neighbour.table import Neighbours4, neighbours4

_SYSTEM: Final = Path("/proc/sys/net/ipv4/conf")


def check_ethernets(
    served: Collection[str],
    *,
    ask: Callable[[str], Link | None] = look,
    others: Callable[[Collection[str]], list[str]] = other_ethernets,
    seen: Callable[[], Neighbours4] = neighbours4,
    system: Path = _SYSTEM,
) -> Iterator[Finding]:
    """A warning for each interface that answers ARP for the address of one that is `served`. Raises OSError.

    That both are on one Ethernet is seen by what is not so elsewhere: networks that overlap, a host that is a
    neighbour of both by the same addresses, or one interface that is the other's neighbour. Linux answers ARP for an
    address of this host on whichever interface it is asked (ip-sysctl, arp_ignore 0), so that machines send to the
    wrong one; what comes in there is not for the servers of the other. `ask` gives an interface, `others` the Ethernets
    beside some, `seen` the kernel's neighbours, and `system` is where the kernel has its settings.
    """
    neighbours = seen()
    candidates = [*served, *others(served)]
    for name in served:
        one = ask(name)
        if one is None or not one.addresses:
            continue
        for candidate in candidates:
            other = ask(candidate) if candidate != name else None
            if other is None or not other.up or _setting(system, candidate) > 0:
                continue
            if (why := _why_one(one, other, neighbours)) is not None:
                said = f"{name} and {candidate} of this host seem to be on one Ethernet ({why})"
                what = f"{said}: {candidate} answers ARP for {one.addresses[0].ip}, and machines lose packets there"
                remedy = "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
                yield warning(f"ARP on {name}", what, f"{remedy}, or take one of them off that network")


def _why_one(one: Link, other: Link, neighbours: Neighbours4) -> str | None:
    """What tells that both are on one Ethernet; None: nothing does."""
    for address in one.addresses:
        same = next((each for each in other.addresses if _overlap(address, each)), None)
        if same is not None:
            return f"{address} and {same} are of one network"
    here, there = neighbours.get(one.index, frozenset()), neighbours.get(other.index, frozenset())
    for ip, mac in sorted(here & there):
        return f"{ip}, {mac}, is a neighbour of both"
    for link, found in ((other, here), (one, there)):
        if one.mac != other.mac and any(mac == link.mac.hex(":") for _, mac in found):
            return f"{link.name} itself is a neighbour of the other"
    return None


def _overlap(one: IPv4Interface, other: IPv4Interface) -> bool:
    return max(one.network.prefixlen, other.network.prefixlen) < 31 and one.network.overlaps(other.network)


def _setting(system: Path, interface: str) -> int:
    """arp_ignore, as the kernel takes it: the larger of that of all and the interface's own."""
    found = 0
    for name in ("all", interface):
        try:
            found = max(found, int((system / name / "arp_ignore").read_text()))
        except (OSError, ValueError):
            continue
    return found

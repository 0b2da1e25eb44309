"""Helpers of the rules: words for numbers, and packets that were captured in front of this host's firewall."""

from __future__ import annotations

from typing import Final

from edge.journey.expectations.facts import Facts, LikelyCause, Why
from edge.journey.expectations.story import MachineBoot

API_CHECKS: Final = ("is the Kubernetes API up, and does this host reach it ('tinkedge doctor')?",)
"""Checks for a Kubernetes API that does not answer."""
_DAY = 86_400
_NTH = {2: "second", 3: "third"}


def seconds(since: float, now: float) -> str:
    """Return a duration, such as "8 s", "3 min" or "9 years"."""
    took = max(0.0, now - since)
    for unit, length, most in ((" s", 1, 120), (" min", 60, 7200), (" h", 3600, 2 * _DAY), (" days", _DAY, 730 * _DAY)):
        if took < most:
            return f"{took / length:.0f}{unit}"
    return f"{took / _DAY / 365.25:.0f} years"


def times(count: int) -> str:
    """Return a count in words: "once", "twice", "3 times"."""
    return "once" if count == 1 else "twice" if count == 2 else f"{count} times"


def nth(count: int) -> str:
    """Return an ordinal: "second", "third", "4th"."""
    return _NTH.get(count, f"{count}th")


def address(facts: Facts) -> str:
    """Return the machine's IPv4 address, or "an address" if it is not known."""
    return facts.registered.ip if facts.registered is not None and facts.registered.ip else "an address"


def overdue(boot: MachineBoot, facts: Facts) -> bool:
    """Return True if the deadline of the next milestone has passed."""
    limit = facts.limit(boot.at) if boot.at is not None else 0.0
    return limit > 0 and facts.now - boot.since >= limit


def size(count: float) -> str:
    """Return a number of bytes with a unit."""
    return (
        f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count:.0f} bytes"
    )


REPEATED = 2
"""Packets from which on a port counts as unreachable: one alone may still be answered, a repetition was not."""


def knocked(facts: Facts, port: str) -> bool:
    """Return True if the machine sent several packets to this port, and no server received them."""
    return (facts.arrived or {}).get(port, 0) >= REPEATED


def has_just_knocked(facts: Facts, port: str) -> bool:
    """Return True if the machine sent one packet to this port, which a server may be about to read."""
    return 0 < (facts.arrived or {}).get(port, 0) < REPEATED and not facts.answered.get(port)


def insists(facts: Facts, port: str) -> bool:
    """Return True if repeated packets prove before the deadline that the port is unreachable.

    That holds for TCP only. A repeated datagram may be waiting for a file that is fetched first.
    """
    return port.startswith("tcp/") and knocked(facts, port)


def why_unheard(facts: Facts, port: str) -> Why:
    """Return why no packets reach a port of this host (`udp/69`, `tcp/7080`), and what to do about it."""
    where = facts.network.interface or "this host"
    if (other := facts.strayed.get(port)) is not None:
        both = f"two interfaces of this host, {where} and {other}, are on the same Ethernet"
        cause = LikelyCause(
            f"{both}, and both answer ARP for {facts.network.address}", f"its packets to {port} arrive on {other}"
        )
        arp = "sysctl net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
        return (cause,), (f"{arp}, or remove {other} from that network",)
    if knocked(facts, port):
        count = (facts.arrived or {})[port]
        if facts.answered.get(port):
            requests = f"{count} requests arrived and were answered"
            cause = LikelyCause(f"the answers from {port} are lost on the way back", requests)
            causes = (cause, "another host has the machine's address, and gets the answers")
            return causes, ("check the firewalls and routers between here and the machine",)
        arrived = f"arrived {times(count)} on {where}, but never at the edge"
        cause = LikelyCause(f"this host's firewall drops {port}", arrived)
        return (cause, "this host is overloaded"), (f"allow {port} on {where} ('nft list ruleset')",)
    if facts.answered.get(port):
        cause = LikelyCause("its data on that connection is lost on the way", f"its connection to {port} was answered")
        return (cause, _STOPPED), ("large packets are lost first: what is the MTU between here and the machine?",)
    found: list[str | LikelyCause] = []
    if facts.registered is not None and facts.registered.unreachable_gateway:
        found.append(facts.registered.unreachable_gateway)
    if facts.is_elsewhere and facts.registered is not None:
        here = ", ".join(map(str, facts.network.served))
        found.append(LikelyCause("its address is not in this network", f"{facts.registered.network} is not {here}"))
    if facts.arrived is None or has_just_knocked(facts, port):
        found.append(f"{port} is blocked on the way, or by this host's firewall")
    else:
        nothing = f"nothing arrived on {where} lately" if not facts.arrived.get(port) else ""
        found.append(LikelyCause(f"{port} is blocked on the way", nothing))
    found.append(_STOPPED)
    return tuple(found), ("look at its screen", "'tinkedge doctor' checks this host's firewall")


_STOPPED: Final = "the machine has stopped, was switched off, or continues with another card or server"

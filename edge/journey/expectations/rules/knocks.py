"""What was seen of a machine's packets in front of this host's firewall: the best evidence there is."""

from __future__ import annotations

from typing import Final

from edge.journey.expectations.facts import Facts
from edge.journey.expectations.finding import Cause
from edge.journey.expectations.rules.words import times

REPEATED = 2
"""One that was not answered may be on its way; what is repeated was not."""

Why = tuple[tuple[Cause, ...], tuple[str, ...]]
"""Causes, and what to check."""


def knocked(facts: Facts, port: str) -> bool:
    """Whether it knocked at this port of ours again and again, and nobody here heard it."""
    return (facts.arrived or {}).get(port, 0) >= REPEATED


def has_just_knocked(facts: Facts, port: str) -> bool:
    """Whether it knocked once, so that it is neither silent nor unheard: what it asked may be about to be read."""
    return 0 < (facts.arrived or {}).get(port, 0) < REPEATED and not facts.answered.get(port)


def insists(facts: Facts, port: str) -> bool:
    """The same, where that says it before the clock does: a connection (TCP) that is asked for again was not heard. Of
    a datagram that can't be told: what it asks for may have to be fetched first."""
    return port.startswith("tcp/") and knocked(facts, port)


def _strayed(facts: Facts, port: str, where: str) -> Why:
    other, address = facts.strayed[port], facts.network.address
    cause = Cause(
        f"two interfaces of this host, {where} and {other}, are on one Ethernet, and both answer ARP for {address}",
        f"it asked {port} by {other}",
    )
    return (cause,), (
        f"sysctl net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2, or take {other} off that network",
    )


def why_unheard(facts: Facts, port: str) -> Why:
    """Why nothing comes to a port of ours (`udp/69`, `tcp/7080`), and what to do about it."""
    where = facts.network.interface or "this host"
    if port in facts.strayed:
        return _strayed(facts, port, where)
    if knocked(facts, port):
        count = (facts.arrived or {})[port]
        if facts.answered.get(port):
            cause = Cause(f"the answers from {port} are lost on the way back", f"{count} times asked, and answered")
            other = Cause("another host has the machine's address, and gets the answers")
            return (cause, other), ("what filters or routes between here and the machine?",)
        cause = Cause(f"this host's firewall drops {port}", f"arrived {times(count)} on {where}, and never here")
        return (cause, Cause("this host has too much to do")), (f"let {port} in on {where} ('nft list ruleset')",)
    if facts.answered.get(port):
        cause = Cause("what it sends by that is lost on the way", f"its connection to {port} was answered")
        return (cause, _STOPPED), ("large packets are lost first: what is the MTU between here and the machine?",)
    causes = []
    if facts.registered is not None and facts.registered.unreachable_gateway:
        causes.append(Cause(facts.registered.unreachable_gateway))
    if facts.is_elsewhere and facts.registered is not None:
        here = ", ".join(map(str, facts.network.served))
        causes.append(Cause("its address is not of this network", f"{facts.registered.network} is not {here}"))
    if facts.arrived is None or has_just_knocked(facts, port):
        causes.append(Cause(f"{port} is blocked on the way, or by this host's firewall"))
    else:
        nothing = f"nothing arrived on {where} lately" if not facts.arrived.get(port) else ""
        causes.append(Cause(f"{port} is blocked on the way", nothing))
    causes.append(_STOPPED)
    return tuple(causes), ("look at its screen", "'tinkedge doctor' looks at this host's firewall")


_STOPPED: Final = Cause("the machine has stopped, was switched off, or goes on by another card or server")

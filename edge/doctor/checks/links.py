"""The interfaces that face machines: whether they are up, have a carrier and an address, and take whole packets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from edge.doctor.checks.findings import Finding, warning
from edge.neighbour.host import Network, state_of
from edge.neighbour.links import look

USUAL_MTU: Final = 1500
"""Of Ethernet. What firmware sends is as large, whatever this side takes."""


def check_links(network: Network) -> Iterator[Finding]:
    """What is so of one interface. Raises OSError if the kernel can't be asked."""
    link = look(network.interface)
    state = state_of(network, link)
    if link is None:
        yield Finding("interface", False, state.problem, "give the machines' interface with --interface")
        return
    if not link.up:
        yield Finding("interface", False, f"{link.name} is down", f"ip link set {link.name} up")
    elif state.problem:
        remedy = f"give it one (ip address add ADDRESS/PREFIX dev {link.name}), or name another with --interface"
        yield Finding("interface", False, state.problem, remedy)
    else:
        yield Finding("interface", True, f"{link.name} has {' and '.join(state.addresses)}")
    if link.up and not link.carrier:
        seen = f"{link.name} has no carrier: nobody is at the other end"
        yield warning("link", seen, "see the cable and the switch; a bridge needs a port that is up")
    if link.mtu < USUAL_MTU:
        seen = f"{link.name} takes packets of {link.mtu} bytes: larger ones, as firmware sends them, are lost"
        yield warning("MTU", seen, f"ip link set {link.name} mtu {USUAL_MTU}, if the network takes that")

"""Identifies the machine behind the source address of a packet or connection.

If this edge assigns the addresses, a machine is at the address that its Hardware reserves. IPv6 is an exception: a
machine makes addresses itself (SLAAC), so it is at every address for which the kernel knows its MAC, even if another
Hardware reserves that address.

If another DHCP server assigns the addresses, there are three sources. The first one with an answer wins:

1. The kernel's neighbour table, for machines on one of our links (`edge.neighbour.table`). DHCP packets can't falsify
   it: a machine that requests an address in another machine's name does not get that machine's metadata.
2. The machine's own DHCP conversation with the other server (`learn`), for machines behind a relay.
3. The address of the Hardware, unless the machine is known to be elsewhere. The other server probably assigns the same
   address.

A machine that adds another machine's address to its interface is not taken for that machine: a host on one of our links
must have the MAC of one of the machine's interfaces, as the kernel knows it. Of interfaces that share the address, the
one with that MAC calls. Only the link counts by which the answer to the address leaves. A host on another link can
claim the address, and does not receive the answer. For hosts behind a router the address is all that is known.

TFTP, HTTP and the metadata service use this module. The TFTP sockets are bound to an interface, so TFTP uses a view for
that interface (`answering_on`).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from edge.callers.addresses import Networks, inside
from edge.machines import DhcpMode, Inventory, Machine
from tink.limits import Newest
from tink.mac import mac_in

MAX_MACHINES = 131_072
"""Maximum number of registered machines whose learnt addresses are stored."""
MAX_STRANGERS = 4096
"""The same for other machines. They have their own pool, so invented MACs displace no registered machine."""
# The other server may give the address to another machine, whose DHCP packets do not reach us.
LEARNT_SECONDS = 86_400.0
"""Time for which an address from a DHCP conversation is valid."""
NEIGHBOUR_SECONDS = 1.0
"""Time for which the kernel's answer is valid, unless the kernel reports a change before."""
_MAX_NEIGHBOURS = 4096


class Neighbours(Protocol):
    """The kernel's knowledge of hosts on our links: `edge.neighbour.table`. By default it knows none.

    `interface` is the interface that the answering socket is bound to. If it is empty, the socket is not bound and the
    route decides.
    """

    def mac(self, _ip: str, _interface: str = "", /) -> str | None:
        """Return the MAC of the host on one of our links that receives packets to the address, or None."""
        return None

    def on_link(self, _ip: str, _interface: str = "", /) -> bool:
        """Return True if packets to the address stay on one of our links, so that a MAC can be known."""
        return False

    def link(self, _ip: str, /) -> str:
        """Return our interface that the route to the address uses directly; "" for a route by a router, or none."""
        return ""


class _Unseen(Neighbours):
    """Knows no neighbours: the process can't read the kernel's table."""


UNSEEN: Final = _Unseen()

_HIDDEN: Final = ""
"""Marker: the address is on a link of ours, but the kernel does not know the MAC at this moment."""
_ELSEWHERE: Final = "elsewhere"
"""Marker: the address is on another link than the one that the answer would leave by. Its machine asks there."""


class _Learnt(NamedTuple):
    ip: str
    since: float


_Neighbour = tuple[str | None, float]
"""A MAC, or None if the address is on no link of ours; and the time of the kernel's answer."""


@dataclass(eq=False)
class Callers:
    """Identifies machines by the addresses from which they send.

    The argument `connected` of its methods is True for a TCP connection: the kernel has exchanged packets with the
    address, so it knows the MAC of a host on our links. For a datagram or an address from a trusted proxy the kernel
    may not know it yet; then the address is believed.

    clock: returns seconds of any epoch.
    by_address: the networks in which MACs on our links are ignored.
    """

    inventory: Inventory
    mode: DhcpMode = DhcpMode.RESERVATION
    neighbours: Neighbours = UNSEEN
    clock: Callable[[], float] = time.monotonic
    by_address: Networks = ()

    def __post_init__(self) -> None:
        self.gives_addresses = self.mode is DhcpMode.RESERVATION
        """True if this edge assigns the machines' addresses."""
        self._machines = _Addresses(MAX_MACHINES)
        self._strangers = _Addresses(MAX_STRANGERS)
        self.interface = ""
        """The interface that the answering sockets are bound to; empty if they are not bound."""
        self._views: dict[str, Callers] = {}
        self._neighbour_of: Newest[str, dict[str, _Neighbour]] = Newest(_MAX_NEIGHBOURS)
        """The known neighbours, by address and by the interface that the answering socket is bound to."""
        self._handlers: list[Callable[[], None]] = []

    def answering_on(self, interface: str) -> Callers:
        """Return a view for answers by sockets that are bound to this interface. All views share what they learn."""
        view = self._views.get(interface)
        if view is None:
            view = self._views[interface] = copy.copy(self)
            view.interface = interface
        return view

    @property
    def sees_neighbours(self) -> bool:
        """Return True if the kernel reports the MAC of an address. If False, every address on a link is believed."""
        return self.neighbours is not UNSEEN

    def machine(self, ip: str, *, connected: bool = False) -> Machine | None:
        """Return the machine at this address, or None if no Hardware is known to be there."""
        if not self.gives_addresses:
            mac = self.mac(ip, connected=connected)
            return self.inventory.by_mac(mac) if mac is not None else None
        if ":" not in ip and self.inventory.by_ip(ip) is None:
            return None
        neighbour = self._neighbour(ip)
        machine = self._reserved(ip, neighbour)
        if machine is not None:
            return machine if neighbour != _HIDDEN or not connected else None
        # With IPv6 a machine has further addresses: a link-local one, and addresses of prefixes that routers advertise.
        return self.inventory.by_mac(neighbour) if neighbour and ":" in ip else None

    def _reserved(self, ip: str, neighbour: str | None) -> Machine | None:
        """Return the machine that reserves this address, unless `neighbour` at the address is another machine."""
        # If no MAC is known, an address that is made from the MAC of another Hardware (RFC 4291 appendix A) is not
        # believed. That other machine has the address as soon as a router advertises the prefix, even if another
        # Hardware reserves it.
        machine = self.inventory.by_ip(ip)
        mac = neighbour or mac_in(ip)
        if machine is None or mac is None:
            return machine
        # A bond, or a host with two cards on the link, answers ARP with the MAC of any of them.
        cards = self.inventory.by_name(machine.name, machine.namespace)
        if (mac == machine.mac and not machine.terminating) or any(mac == card.mac for card in cards):
            return self.inventory.interface_at(machine, ip, mac)
        others = () if neighbour else self.inventory.claimants(mac)
        return machine if not neighbour and all(other.terminating for other in others) else None

    def mac(self, ip: str, *, connected: bool = False) -> str | None:
        """Return the MAC of the host at this address, registered or not; None if it is not known."""
        neighbour = self._neighbour(ip)
        if neighbour == _ELSEWHERE or (neighbour == _HIDDEN and connected):
            return None
        machine = self._reserved(ip, neighbour)
        if self.gives_addresses:
            return machine.mac if machine is not None else neighbour or None
        now = self.clock()
        mac = neighbour or self._machines.mac(ip, now) or self._strangers.mac(ip, now)
        if mac is None and machine is not None and not self._machines.knows(machine.mac, now):
            return machine.mac
        return mac

    def is_hidden(self, ip: str) -> bool:
        """Return True if the address is on a link of ours, and the kernel does not know its MAC now."""
        return self._neighbour(ip) == _HIDDEN

    def is_unresolved(self, ip: str) -> bool:
        """Return True if the kernel has to resolve the MAC of this address before it can send an answer."""
        # That includes an address of another link of ours: a socket that is bound to this link's interface sends there.
        return self._neighbour(ip) in (_HIDDEN, _ELSEWHERE)

    def stranger(self, ip: str, macs: Collection[str]) -> str | None:
        """Return a name of the host at an address on a link of ours, or None if it has one of these MACs."""
        # For a connection from there, as with `connected`: a `tink.server.auth.OtherHost`.
        mac = self._neighbour(ip)
        if mac is None or mac in macs:
            return None
        return mac or "a host whose MAC the kernel does not know now"

    def learn(self, mac: str, ip: str, interface: str | None = None) -> bool:
        """Record the address of a machine from its DHCP conversation.

        A MAC has one address and an address has one MAC; the latest report wins. `interface` is the one that received
        the packet; empty: it came through a relay. A machine behind a relay can't have an address of another link of
        ours, and the result is False then. Without `interface` the caller has checked that before.
        """
        if self.gives_addresses or (interface is not None and self.neighbours.link(ip) not in ("", interface)):
            return False
        now = self.clock()
        registered = bool(self.inventory.claimants(mac))
        pool, other = (self._machines, self._strangers) if registered else (self._strangers, self._machines)
        if pool.mac(ip, now) != mac:
            self._notify()
        other.forget(mac, ip)
        pool.put(mac, ip, now)
        return True

    def changed(self, ip: str | None) -> None:
        """Drop the kernel's answer for this address; None drops all (called by `edge.neighbour.table`)."""
        if ip is None:
            self._neighbour_of.clear()
        else:
            self._neighbour_of.pop(ip, None)
        self._notify()

    def on_change(self, handler: Callable[[], None]) -> None:
        """Call `handler()` when a host may have another address than before. That is often, so it must be quick."""
        self._handlers.append(handler)

    def neighbour(self, ip: str) -> str | None:
        """Return the MAC that the kernel knows for an address on our links, or None."""
        found = self._neighbour(ip)
        return None if found in (_HIDDEN, _ELSEWHERE) else found

    def _notify(self) -> None:
        for handler in self._handlers:
            handler()

    def _neighbour(self, ip: str) -> str | None:
        """Return the MAC at this address on one of our links, _HIDDEN, _ELSEWHERE, or None if it is on no link."""
        now, interface = self.clock(), self.interface
        known = self._neighbour_of.get(ip)
        found = known.get(interface) if known is not None else None
        if found is not None and 0 <= now - found[1] < NEIGHBOUR_SECONDS:
            return found[0]
        is_asked = not inside(ip, self.by_address)
        mac = self.neighbours.mac(ip, interface) if is_asked else None
        # The answer would leave by this view's link all the same, to a gateway or to any host that answers ARP for it.
        if mac is None and interface and self.neighbours.link(ip) not in ("", interface):
            mac = _ELSEWHERE
        elif mac is None and is_asked and self.neighbours.on_link(ip, interface):
            if known is not None:
                known.pop(interface, None)
            return _HIDDEN  # Cached for less than a second: the kernel is about to learn it.
        self._neighbour_of[ip] = {**(known or {}), interface: (mac, now)}
        return mac


class _Addresses:
    """Learnt pairs of MAC and address, each in one pair only; the oldest ones make room beyond `capacity`."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._by_mac: dict[str, _Learnt] = {}  # in the order of time
        self._by_ip: dict[str, str] = {}

    def put(self, mac: str, ip: str, now: float) -> None:
        self.forget(mac, ip)
        if len(self._by_mac) >= self._capacity:
            self.forget(next(iter(self._by_mac)), "")
        self._by_mac[mac] = _Learnt(ip, now)
        self._by_ip[ip] = mac

    def forget(self, mac: str, ip: str) -> None:
        """Remove the pairs with this MAC or this address."""
        old = self._by_mac.pop(mac, None)
        if old is not None:
            del self._by_ip[old.ip]
        other = self._by_ip.pop(ip, None)
        if other is not None:
            del self._by_mac[other]

    def mac(self, ip: str, now: float) -> str | None:
        mac = self._by_ip.get(ip)
        return mac if mac is not None and self.knows(mac, now) else None

    def knows(self, mac: str, now: float) -> bool:
        known = self._by_mac.get(mac)
        return known is not None and 0 <= now - known.since < LEARNT_SECONDS

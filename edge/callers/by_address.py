"""Who is calling: from the address of a packet or connection to the machine.

Where this edge gives out the addresses, a machine is at the address that its Hardware reserves, and nowhere else, but
for IPv6: there it is wherever the kernel knows its MAC to be, also at an address that another Hardware reserves, for a
machine makes addresses itself (SLAAC). Where another DHCP server gives them out, three things tell, the first that says
anything wins:

1. the kernel's neighbour table, for machines on a link of ours (`edge.neighbour.table`): it can't be told lies by
   DHCP, so that a machine that asks for an address in another one's name does not get that one's metadata;
2. what the machine's own DHCP conversation with the other server said (`learn`), for machines behind a relay;
3. the address that its Hardware gives, for then the other server is likely to give the same one, unless the machine
   is known to be elsewhere.

In every mode a second address on a machine is not enough to become the one whose address that is: whoever is on a link
of ours must have the MAC of one of its cards, as the kernel knows it. The kernel is asked about one link alone, the one
by which the answer to the address leaves: a host on another link of ours can say that it has the address, and does not
get the answer. Behind a router there is nothing to be known but the address. TFTP, HTTP and the metadata service all
ask here; TFTP, whose sockets are bound to an interface, asks a view of its own (`answering_on`).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple, Protocol

from edge.callers.addresses import Networks, inside
from edge.machines import DhcpMode, Inventory, Machine
from tink.limits.newest import Newest
from tink.mac import mac_in

MAX_MACHINES = 131_072
"""Registered machines whose addresses are remembered."""
MAX_STRANGERS = 4096
"""And others: in a pool of their own, so that a flood of made-up MACs pushes nobody out who is registered."""
LEARNT_SECONDS = 86_400.0
"""How long what DHCP said is believed: the other server may give the address to somebody whom we don't hear."""
NEIGHBOUR_SECONDS = 1.0
"""How long it is believed what the kernel said, unless it says before that it has changed."""
_MAX_NEIGHBOURS = 4096


class Neighbours(Protocol):
    """The hosts on our links, as the kernel knows them: `edge.neighbour.table`.

    `interface` is the one that the socket which answers is bound to; empty: it is not bound, so the route decides.
    """

    def mac(self, ip: str, interface: str = "") -> str | None:
        """The MAC of the host on a link of ours that gets what is sent to the address; None: it does not know one."""

    def on_link(self, ip: str, interface: str = "") -> bool:
        """Return whether what is sent to the address stays on a link of ours, so that there is a MAC to be known."""

    def link(self, ip: str) -> str:
        """The interface of ours that the route to the address leads to; empty: to none, or to a router."""


class _Unseen:
    """Nobody's neighbours can be known."""

    def mac(self, _ip: str, _interface: str = "") -> str | None:
        return None

    def on_link(self, _ip: str, _interface: str = "") -> bool:
        return False

    def link(self, _ip: str) -> str:
        return ""


UNSEEN: Final = _Unseen()

_HIDDEN: Final = ""
"""On a link of ours, but the kernel does not know the MAC at this moment."""
_ELSEWHERE: Final = "elsewhere"
"""On another link of ours than the one that the answer would leave by: its machine asks there."""


class _Known(NamedTuple):
    what: str
    since: float


_Neighbour = tuple[str | None, float]
"""A MAC, or None on no link of ours; and since when."""


class Callers:
    """Knows machines by where they call from.

    `connected`: the kernel has sent something to that address and heard an answer (TCP's handshake), so it knows who is
    there, if anybody on our links is. Of a datagram, or of what a trusted proxy says, it may not know yet; then the
    address is believed.
    """

    def __init__(
        self,
        inventory: Inventory,
        mode: DhcpMode = DhcpMode.RESERVATION,
        neighbours: Neighbours = UNSEEN,
        clock: Callable[[], float] = time.monotonic,
        by_address: Networks = (),
    ) -> None:
        """`clock` gives seconds, of any epoch. In the networks `by_address`, MACs on our links tell nothing.

        `gives_addresses`: whether it is here that machines get them.
        """
        self._inventory = inventory
        self.gives_addresses = mode is DhcpMode.RESERVATION
        self._neighbours = neighbours
        self._clock = clock
        self._by_address = by_address
        self._machines = _Addresses(MAX_MACHINES)
        self._strangers = _Addresses(MAX_STRANGERS)
        self.interface = ""
        """The interface that the answering sockets are bound to; empty: they are not bound."""
        self._views: dict[str, Callers] = {}
        self._neighbour_of: Newest[str, dict[str, _Neighbour]] = Newest(_MAX_NEIGHBOURS)
        """By address, and by the interface that the answering socket is bound to."""
        self._handlers: list[Callable[[], None]] = []

    def answering_on(self, interface: str) -> Callers:
        """Return a view for requests that are answered by sockets which are bound to this interface.

        All views share what was learnt and what the kernel said.
        """
        view = self._views.get(interface)
        if view is None:
            view = self._views[interface] = copy.copy(self)
            view.interface = interface
        return view

    @property
    def sees_neighbours(self) -> bool:
        """Whether the kernel tells which MAC has an address. If not, every address on a link is believed."""
        return self._neighbours is not UNSEEN

    def machine(self, ip: str, *, connected: bool = False) -> Machine | None:
        """The machine that calls from this address; None if no Hardware is known to be there."""
        if not self.gives_addresses:
            mac = self.mac(ip, connected=connected)
            return self._inventory.by_mac(mac) if mac is not None else None
        if ":" not in ip and self._inventory.by_ip(ip) is None:
            return None
        neighbour = self._neighbour(ip)
        machine = self._reserved(ip, neighbour)
        if machine is not None:
            return machine if neighbour != _HIDDEN or not connected else None
        # With IPv6 a machine has addresses besides: of its link alone, and of a prefix that routers advertise.
        return self._inventory.by_mac(neighbour) if neighbour and ":" in ip else None

    def _reserved(self, ip: str, neighbour: str | None) -> Machine | None:
        """The machine that this address is reserved for, as far as `neighbour` at the address is no other one.

        Where no MAC is known, an address that was made from the MAC of another Hardware (RFC 4291 appendix A) is not
        believed: that machine has it as soon as a router advertises the prefix, whoever reserves it.
        """
        machine = self._inventory.by_ip(ip)
        mac = neighbour or mac_in(ip)
        if machine is None or mac is None or self._has(machine, mac):
            return machine
        others = () if neighbour else self._inventory.claimants(mac)
        return machine if not neighbour and all(other.terminating for other in others) else None

    def mac(self, ip: str, *, connected: bool = False) -> str | None:
        """The MAC of whoever calls from this address, registered or not; None if it is not known."""
        neighbour = self._neighbour(ip)
        if neighbour == _ELSEWHERE or (neighbour == _HIDDEN and connected):
            return None
        machine = self._reserved(ip, neighbour)
        if self.gives_addresses:
            return machine.mac if machine is not None else neighbour or None
        now = self._clock()
        mac = neighbour or self._machines.mac(ip, now) or self._strangers.mac(ip, now)
        if mac is None and machine is not None and not self._machines.knows(machine.mac, now):
            return machine.mac
        return mac

    def is_hidden(self, ip: str) -> bool:
        """Whether a machine on a link of ours has this address, and the kernel does not know now which."""
        return self._neighbour(ip) == _HIDDEN

    def is_unresolved(self, ip: str) -> bool:
        """Return whether the kernel has to ask the link for the MAC of this address before it can send an answer.

        That includes an address of another link of ours: a socket that is bound to this link's interface sends there.
        """
        return self._neighbour(ip) in (_HIDDEN, _ELSEWHERE)

    def stranger(self, ip: str, macs: Collection[str]) -> str | None:
        """Who else than the machine with these MACs is at an address on a link of ours, for people; None: nobody else.

        On a connection from there, as with `connected`. A `tink.server.agents.auth.OtherHost`.
        """
        mac = self._neighbour(ip)
        if mac is None or mac in macs:
            return None
        return mac or "somebody whose MAC the kernel does not know now"

    def learn(self, mac: str, ip: str, interface: str | None = None) -> bool:
        """Take note that the machine with this MAC has this address, as its DHCP conversation says.

        A MAC has one address and an address one MAC; what was said last counts. `interface` is the one that the
        machine was heard on, empty: through a relay. Such a machine can't have an address of another link of ours, and
        the result is False. Without `interface` that was looked at before.
        """
        if self.gives_addresses or (interface is not None and self._neighbours.link(ip) not in ("", interface)):
            return False
        now = self._clock()
        registered = bool(self._inventory.claimants(mac))
        pool, other = (self._machines, self._strangers) if registered else (self._strangers, self._machines)
        if pool.mac(ip, now) != mac:
            self._notify()
        other.forget(mac, ip)
        pool.put(mac, ip, now)
        return True

    def learnt(self) -> Iterator[tuple[str, str]]:
        """MAC and address of all of whom that is remembered, those heard last at the end of each kind."""
        yield from self._strangers.pairs()
        yield from self._machines.pairs()

    def changed(self, ip: str | None) -> None:
        """Ask the kernel again who is at this address; None: at any (`edge.neighbour.table`)."""
        if ip is None:
            self._neighbour_of.clear()
        else:
            self._neighbour_of.pop(ip, None)
        self._notify()

    def on_change(self, handler: Callable[[], None]) -> None:
        """Call `handler()` when somebody may be at another address than a moment ago; often, so it must be quick."""
        self._handlers.append(handler)

    def neighbour(self, ip: str) -> str | None:
        """The MAC of whoever is at an address of our links, as the kernel knows it; None: it does not, now."""
        found = self._neighbour(ip)
        return None if found in (_HIDDEN, _ELSEWHERE) else found

    def _notify(self) -> None:
        for handler in self._handlers:
            handler()

    def _has(self, machine: Machine, mac: str) -> bool:
        """Whether a card of the machine's Hardware has this MAC: a bond, or a host with two cards, answers with any."""
        if mac == machine.mac and not machine.terminating:
            return True
        return any(mac == one.mac for one in self._inventory.by_name(machine.name, machine.namespace))

    def _is_elsewhere(self, ip: str) -> bool:
        """Return whether the address is on another link of ours than the one that this view is for.

        The answer would leave by this link all the same, to a gateway or to whatever host answers ARP for the address.
        """
        return bool(self.interface) and self._neighbours.link(ip) not in ("", self.interface)

    def _neighbour(self, ip: str) -> str | None:
        """The MAC at this address on a link of ours, _HIDDEN or _ELSEWHERE; None: it is on none."""
        now, interface = self._clock(), self.interface
        known = self._neighbour_of.get(ip)
        found = known.get(interface) if known is not None else None
        if found is not None and 0 <= now - found[1] < NEIGHBOUR_SECONDS:
            return found[0]
        is_asked = not inside(ip, self._by_address)
        mac = self._neighbours.mac(ip, interface) if is_asked else None
        if mac is None and self._is_elsewhere(ip):
            mac = _ELSEWHERE
        elif mac is None and is_asked and self._neighbours.on_link(ip, interface):
            if known is not None:
                known.pop(interface, None)
            return _HIDDEN  # not for a second: the kernel is about to know it
        self._neighbour_of[ip] = {**(known or {}), interface: (mac, now)}
        return mac


class _Addresses:
    """Pairs of MAC and address, each in one pair only; at most `capacity`, those heard last."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._by_mac: dict[str, _Known] = {}  # in the order of time
        self._by_ip: dict[str, str] = {}

    def put(self, mac: str, ip: str, now: float) -> None:
        self.forget(mac, ip)
        if len(self._by_mac) >= self._capacity:
            self.forget(next(iter(self._by_mac)), "")
        self._by_mac[mac] = _Known(ip, now)
        self._by_ip[ip] = mac

    def forget(self, mac: str, ip: str) -> None:
        """Let there be no pair with either."""
        old = self._by_mac.pop(mac, None)
        if old is not None:
            del self._by_ip[old.what]
        other = self._by_ip.pop(ip, None)
        if other is not None:
            del self._by_mac[other]

    def pairs(self) -> Iterator[tuple[str, str]]:
        return iter([(mac, known.what) for mac, known in self._by_mac.items()])

    def mac(self, ip: str, now: float) -> str | None:
        mac = self._by_ip.get(ip)
        return mac if mac is not None and self.knows(mac, now) else None

    def knows(self, mac: str, now: float) -> bool:
        known = self._by_mac.get(mac)
        return known is not None and 0 <= now - known.since < LEARNT_SECONDS

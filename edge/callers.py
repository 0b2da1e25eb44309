"""Who is calling: from the address of a packet or connection to the machine.

Where this edge gives out the addresses, a machine is at the address that its Hardware reserves, and nowhere else. Where
another DHCP server does, three things tell, the first that says anything wins:

1. the kernel's neighbour table, for machines on a link of ours (`edge.neighbour.table`): it can't be told lies by
   DHCP, so that a machine that asks for an address in another one's name does not get that one's metadata;
2. what the machine's own DHCP conversation with the other server said (`learn`), for machines behind a relay;
3. the address that its Hardware gives, for then the other server is likely to give the same one, unless the machine
   is known to be elsewhere.

TFTP, HTTP and the metadata service all ask here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from edge.inventory import Inventory, Machine
from edge.policy import DhcpMode

MAX_MACHINES = 131_072
"""Registered machines whose addresses are remembered."""
MAX_STRANGERS = 4096
"""And others: in a pool of their own, so that a flood of made-up MACs pushes nobody out who is registered."""
LEARNT_SECONDS = 86_400.0
"""How long what DHCP said is believed: the other server may give the address to somebody whom we don't hear."""
NEIGHBOUR_SECONDS = 1.0
_MAX_NEIGHBOURS = 4096

Neighbours = Callable[[str], str | None]
"""`neighbours(ip)`: the MAC that answers for an address on our links, as the kernel knows it; None: it does not."""


class _Known(NamedTuple):
    what: str
    since: float


class Callers:
    """Knows machines by where they call from."""

    def __init__(
        self,
        inventory: Inventory,
        mode: DhcpMode = DhcpMode.RESERVATION,
        neighbours: Neighbours = lambda _ip: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives seconds, of any epoch. `neighbours` is not asked in the mode `reservation`."""
        self._inventory = inventory
        self._gives_addresses = mode is DhcpMode.RESERVATION
        self._neighbours = neighbours
        self._clock = clock
        self._machines = _Addresses(MAX_MACHINES)
        self._strangers = _Addresses(MAX_STRANGERS)
        self._neighbour_of: dict[str, _Known] = {}

    def machine(self, ip: str) -> Machine | None:
        """The machine that calls from this IPv4 address; None if no Hardware is known to be there."""
        if self._gives_addresses:
            return self._inventory.by_ip(ip)
        mac = self.mac(ip)
        return self._inventory.by_mac(mac) if mac is not None else None

    def mac(self, ip: str) -> str | None:
        """The MAC of whoever calls from this address, registered or not; None if it is not known."""
        machine = self._inventory.by_ip(ip)
        if self._gives_addresses:
            return machine.mac if machine is not None else None
        now = self._clock()
        mac = self._neighbour(ip, now) or self._machines.mac(ip, now) or self._strangers.mac(ip, now)
        if mac is None and machine is not None and not self._machines.knows(machine.mac, now):
            return machine.mac
        return mac

    def is_at(self, machine: Machine, ip: str) -> bool:
        """Whether `machine` calls from this address."""
        found = self.machine(ip)
        return found is not None and (found.mac, found.name, found.namespace) == (
            machine.mac,
            machine.name,
            machine.namespace,
        )

    def learn(self, mac: str, ip: str) -> None:
        """Take note that the machine with this MAC has this address, as its DHCP conversation says.

        A MAC has one address and an address one MAC; what was said last counts.
        """
        if self._gives_addresses:
            return
        registered = bool(self._inventory.claimants(mac))
        pool, other = (self._machines, self._strangers) if registered else (self._strangers, self._machines)
        other.forget(mac, ip)
        pool.put(mac, ip, self._clock())

    def _neighbour(self, ip: str, now: float) -> str | None:
        known = self._neighbour_of.get(ip)
        if known is not None and 0 <= now - known.since < NEIGHBOUR_SECONDS:
            return known.what
        mac = self._neighbours(ip)
        self._neighbour_of.pop(ip, None)
        if mac is not None:
            if len(self._neighbour_of) >= _MAX_NEIGHBOURS:
                del self._neighbour_of[next(iter(self._neighbour_of))]
            self._neighbour_of[ip] = _Known(mac, now)
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

    def mac(self, ip: str, now: float) -> str | None:
        mac = self._by_ip.get(ip)
        return mac if mac is not None and self.knows(mac, now) else None

    def knows(self, mac: str, now: float) -> bool:
        known = self._by_mac.get(mac)
        return known is not None and 0 <= now - known.since < LEARNT_SECONDS

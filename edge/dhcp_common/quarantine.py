"""Quarantine for addresses at which another host was found, and what differs between IPv4 and IPv6 there. Pure.

A client that finds another host at the address that it was given declines the address (DHCPDECLINE, RFC 2131 section
4.3.3; Decline, RFC 8415 section 18.2.8) and starts again. `edge.dhcp_common.declines` checks that. Offering the address
again would make the client go round in a circle. So the address is not offered until the time is over or the operator
gives the machine another address. A machine that already uses the address can renew its lease.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView
from dataclasses import dataclass
from typing import Final, NamedTuple

from edge.machines import Machine

DEFAULT_SECONDS: Final = 600.0
MAX_ADDRESSES: Final = 4096
"""Maximum number of addresses in quarantine. Only registered machines can put one there, each its own."""


@dataclass(frozen=True, slots=True)
class Family:
    """An address family, in the words of reports.

    name: the protocol.
    decline: the message by which a client declines its address.
    probe: the protocol that finds the host of an address.
    field: the field of a Hardware with the machine's address.
    address: returns a machine's address, or None.
    """

    name: str
    decline: str
    probe: str
    field: str
    address: Callable[[Machine], str | None]


IPV4: Final = Family("DHCP", "DHCPDECLINE", "ARP", "dhcp.ip", lambda machine: machine.ip)
IPV6: Final = Family(
    "DHCPv6", "DHCPv6 DECLINE", "neighbour discovery", "dhcp.ipv6.address", lambda machine: machine.ipv6
)


Changed = Callable[[Machine, str, float | None], None]
"""`changed(machine, address, until)`: a quarantine began that ends at `until` of the clock, or, if that is None, ended.
"""


class _Entry(NamedTuple):
    machine: Machine
    address: str
    until: float


class Quarantine:
    """The machines whose address of one family is not offered. Responders of several networks may share it."""

    def __init__(
        self,
        clock: Callable[[], float],
        seconds: float = DEFAULT_SECONDS,
        changed: Changed = lambda _machine, _address, _until: None,
        family: Family = IPV4,
    ) -> None:
        """Create an empty quarantine.

        `clock` returns seconds; if `until` is shown to people, of the Unix epoch. With 0 `seconds` it stays empty.
        `changed` is called when the quarantine of an address begins or ends.
        """
        self._clock = clock
        self._changed = changed
        self.seconds = seconds
        self.family = family
        self._entries: dict[str, _Entry] = {}  # by MAC, the oldest first
        self.macs: KeysView[str] = self._entries.keys()
        """The MACs of machines in quarantine, including some whose time is over."""

    def begin(self, machine: Machine, seconds: float | None = None) -> None:
        """Put the machine's address into quarantine, for at most `seconds` if that is given."""
        seconds = self.seconds if seconds is None else min(seconds, self.seconds)
        ip = self.family.address(machine)
        if ip is None or seconds <= 0:
            return
        self.expire()
        old = self._entries.pop(machine.mac, None)
        if old is None and len(self._entries) >= MAX_ADDRESSES:
            self._end(next(iter(self._entries)))
        until = self._clock() + seconds
        if old is not None and old.address == ip:
            until = max(until, old.until)  # a short quarantine without a probe does not shorten one after a probe
        self._entries[machine.mac] = _Entry(machine, ip, until)
        self._changed(machine, ip, until)

    def refusal(self, machine: Machine) -> str:
        """Return the reason why the machine does not get its address now; empty if it does."""
        if not self.holds(machine.mac):
            return ""
        family = self.family
        return (
            f"{family.address(machine)} is in quarantine, because another host was found there ({family.decline}). "
            f"Find that host and stop it, or change the Hardware's {family.field}"
        )

    def holds(self, mac: str) -> bool:
        """Return True if the address of the machine with this MAC is in quarantine now."""
        entry = self._entries.get(mac)
        if entry is None:
            return False
        if self._is_over(entry, self._clock()):
            self._end(mac)
            return False
        return True

    def machine_changed(self, mac: str, machine: Machine | None) -> None:
        """End the quarantine if the machine with this MAC, None if there is none, has another address now."""
        entry = self._entries.get(mac)
        if entry is not None and (machine is None or self.family.address(machine) != entry.address):
            self._end(mac)

    def expire(self) -> None:
        """End each quarantine whose time is over. It is called from time to time, because packets may not arrive."""
        now = self._clock()
        for mac in [mac for mac, entry in self._entries.items() if self._is_over(entry, now)]:
            self._end(mac)

    def _is_over(self, entry: _Entry, now: float) -> bool:
        # If the clock was set back, an end looks far away; such a quarantine ends, too.
        return not now < entry.until <= now + self.seconds

    def _end(self, mac: str) -> None:
        entry = self._entries.pop(mac)
        self._changed(entry.machine, entry.address, None)

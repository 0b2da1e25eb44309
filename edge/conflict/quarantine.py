"""Addresses that were declined: given to nobody for a while. Pure; the clock is given.

A client that finds another host at the address it was given says so (DHCPDECLINE, RFC 2131 section 4.3.3; Decline,
RFC 8415 section 18.2.8) and asks anew. `edge.conflict.declined` has looked whether that is so. Offering it again would
make the client go round in a circle, so it is offered no more until the time is over or the operator gives the
machine another address. A machine that has the address and renews its lease is answered as ever. Who is told of it
(`changed`) shows it on the Hardware.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView
from dataclasses import dataclass
from typing import Final

from edge.conflict.family import IPV4, Family
from edge.machines import Machine

DEFAULT_SECONDS: Final = 600.0
MAX_ADDRESSES: Final = 4096
"""Addresses in quarantine at a time. Only registered machines can put one there, each its own."""

Changed = Callable[[Machine, str, float | None], None]
"""`changed(machine, address, until)`: a quarantine has begun that ends at `until` of the clock; or, None, has ended."""


@dataclass(frozen=True, slots=True)
class _Declined:
    machine: Machine
    address: str
    until: float


class Quarantine:
    """Which machines' addresses of one family are not to be given out. Responders of several networks may share it."""

    def __init__(
        self,
        clock: Callable[[], float],
        seconds: float = DEFAULT_SECONDS,
        changed: Changed = lambda _machine, _address, _until: None,
        family: Family = IPV4,
    ) -> None:
        """`clock` gives seconds, of the epoch if `until` is to be shown to people. With 0 `seconds` there is none."""
        self._clock = clock
        self._changed = changed
        self.seconds = seconds
        self.family = family
        self._declined: dict[str, _Declined] = {}  # by MAC, in the order of their beginnings
        self.macs: KeysView[str] = self._declined.keys()
        """The machines whose addresses are in quarantine; some may be over."""

    def begin(self, machine: Machine, seconds: float | None = None) -> None:
        """Another host has the address that the machine's Hardware reserves. `seconds`: less than usual."""
        seconds = self.seconds if seconds is None else min(seconds, self.seconds)
        ip = self.family.address(machine)
        if ip is None or seconds <= 0:
            return
        self.expire()
        old = self._declined.pop(machine.mac, None)
        if old is None and len(self._declined) >= MAX_ADDRESSES:
            self._end(next(iter(self._declined)))
        until = self._clock() + seconds
        if old is not None and old.address == ip:
            until = max(until, old.until)  # what is known for certain is not cut short by what is not
        self._declined[machine.mac] = _Declined(machine, ip, until)
        self._changed(machine, ip, until)

    def refusal(self, machine: Machine) -> str:
        """Why the machine is not given its address now; empty: it may be."""
        if not self.holds(machine.mac):
            return ""
        family = self.family
        return (
            f"{family.address(machine)} is in quarantine, because another host was found there ({family.message}). "
            f"Find that host and stop it, or change the Hardware's {family.field}"
        )

    def holds(self, mac: str) -> bool:
        """Whether the address of the machine with this MAC is in quarantine now."""
        declined = self._declined.get(mac)
        if declined is None:
            return False
        if self._is_over(declined, self._clock()):
            self._end(mac)
            return False
        return True

    def follow(self, mac: str, machine: Machine | None) -> None:
        """The Hardware has changed: `machine` is what `mac` stands for now. With another address, all is well."""
        declined = self._declined.get(mac)
        if declined is not None and (machine is None or self.family.address(machine) != declined.address):
            self._end(mac)

    def expire(self) -> None:
        """End what is over. To be called now and then, so that an end is told that no packet comes to notice."""
        now = self._clock()
        for mac in [mac for mac, declined in self._declined.items() if self._is_over(declined, now)]:
            self._end(mac)

    def _is_over(self, declined: _Declined, now: float) -> bool:
        # A clock that was set back makes an end look far away; such a quarantine ends, too.
        return not now < declined.until <= now + self.seconds

    def _end(self, mac: str) -> None:
        declined = self._declined.pop(mac)
        self._changed(declined.machine, declined.address, None)

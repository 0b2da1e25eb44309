"""Which Hardware has which MAC and IP addresses: an index over the whole cluster, a dictionary access per question.

Fed by the informer of Hardware. An informer is a moment behind the API, so the index also remembers what was admitted
just now: of two Hardware created at the same moment with the same address, the second to be reviewed is refused. That
holds for one process; two controllers that each admit one of them at the same moment can't know of each other, and then
the edge serves neither (`edge.machines.inventory`).

In the process of the embedded API the index is fed by the store's commits (`plugin`), and a write reserves its claims
until it is settled. There two Hardware never get one address, however many writes race.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv6Address
from typing import Any

from tink.api.v1alpha2 import Raw, as_mapping
from tink.kube.objects import NamespacedName

REMEMBERED_SECONDS = 5.0
"""How long an admitted write may take until the informer has it; more than a write and its watch event ever take."""
MOST_REMEMBERED = 10_000


class ClaimKind(StrEnum):
    """What must be unique."""

    MAC = "MAC address"
    IP = "IP address"


Claim = tuple[ClaimKind, str]
"""An address in its canonical form."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """`field` of the reviewed Hardware wants what `holder` has in `held_in`."""

    claim: Claim
    field: str
    holder: NamespacedName
    held_in: str
    terminating: bool = False
    """The holder is being deleted, and not gone yet."""
    arriving: bool = False
    """The holder was admitted a moment ago; whether it was stored is not known yet."""


@dataclass(frozen=True, slots=True, eq=False)
class _Reservation:
    """The claims of one write that is admitted and not settled."""

    holder: NamespacedName
    claims: Mapping[Claim, str]


@dataclass(frozen=True, slots=True)
class _Arrival:
    holder: NamespacedName
    field: str
    expires: float


def claims_of(hardware: Any) -> dict[Claim, str]:
    """The addresses of a Hardware, each with the path of its field; what can't be read claims nothing."""
    claims: dict[Claim, str] = {}
    interfaces = as_mapping(as_mapping(as_mapping(hardware).get("spec")).get("networkInterfaces"))
    for mac, interface in interfaces.items():
        path = f"spec.networkInterfaces[{mac}]"
        claims[(ClaimKind.MAC, mac.lower())] = path
        ip = as_mapping(as_mapping(interface).get("dhcp")).get("ip")
        if isinstance(ip, str) and ip:
            claims.setdefault((ClaimKind.IP, ip), f"{path}.dhcp.ip")
        address = as_mapping(as_mapping(as_mapping(interface).get("dhcp")).get("ipv6")).get("address")
        if isinstance(address, str) and address:
            claims.setdefault((ClaimKind.IP, canonical(address)), f"{path}.dhcp.ipv6.address")
    return claims


def canonical(address: str) -> str:
    """An IPv6 address in its one spelling (RFC 5952); what is none, as it is."""
    try:
        return str(IPv6Address(address))
    except ValueError:
        return address


class Claims:
    """Belongs to one event loop. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._of: dict[NamespacedName, dict[Claim, str]] = {}
        self._holders: dict[Claim, dict[NamespacedName, str]] = {}
        self._terminating: set[NamespacedName] = set()
        self._arrivals: OrderedDict[Claim, _Arrival] = OrderedDict()
        self._reserved: dict[Claim, list[_Reservation]] = {}

    def apply(self, hardware: Raw) -> set[Claim]:
        """Take in a Hardware that was added or changed; what it has given up."""
        key = NamespacedName.of(hardware)
        claims = claims_of(hardware)
        gone = self._replace(key, claims)
        if hardware["metadata"].get("deletionTimestamp"):
            self._terminating.add(key)
        for claim in claims:
            arrival = self._arrivals.get(claim)
            if arrival is not None and arrival.holder == key:
                del self._arrivals[claim]
        return gone

    def remove(self, hardware: Raw) -> set[Claim]:
        """Forget a Hardware that is gone; what it had."""
        return self._replace(NamespacedName.of(hardware), {})

    def conflicts(self, key: NamespacedName, wanted: Mapping[Claim, str], now: float) -> list[Conflict]:
        """What of `wanted` other Hardware than `key` have, in the order of the fields."""
        self._expire(now)
        found: list[Conflict] = []
        for claim, field in wanted.items():
            for holder, held_in in self._holders.get(claim, {}).items():
                if holder != key:
                    found.append(Conflict(claim, field, holder, held_in, terminating=holder in self._terminating))
                    break
            else:
                arrival = self._arrivals.get(claim)
                if arrival is not None and arrival.holder != key:
                    found.append(Conflict(claim, field, arrival.holder, arrival.field, arriving=True))
                    continue
                other = next((each for each in self._reserved.get(claim, ()) if each.holder != key), None)
                if other is not None:
                    found.append(Conflict(claim, field, other.holder, other.claims[claim], arriving=True))
        return found

    def reserve(self, key: NamespacedName, claims: Mapping[Claim, str]) -> Callable[[], None]:
        """Hold `claims` for a write of `key`; the returned function ends that, when the write has been settled.

        For a reviewer in the process of the store: `apply` has been called by then, so the claim is never free between.
        """
        reservation = _Reservation(key, claims)
        for claim in claims:
            self._reserved.setdefault(claim, []).append(reservation)

        def release() -> None:
            for claim in claims:
                others = self._reserved[claim]
                others.remove(reservation)
                if not others:
                    del self._reserved[claim]

        return release

    def admitted(self, key: NamespacedName, claims: Mapping[Claim, str], now: float) -> None:
        """Remember that `key` was let in with these, until the informer says so."""
        for claim, field in claims.items():
            if key in self._holders.get(claim, {}):
                continue
            self._arrivals[claim] = _Arrival(key, field, now + REMEMBERED_SECONDS)
            self._arrivals.move_to_end(claim)
        while len(self._arrivals) > MOST_REMEMBERED:
            self._arrivals.popitem(last=False)

    def _expire(self, now: float) -> None:
        while self._arrivals:
            claim, arrival = next(iter(self._arrivals.items()))
            if arrival.expires > now:
                return
            del self._arrivals[claim]

    def _replace(self, key: NamespacedName, claims: dict[Claim, str]) -> set[Claim]:
        before = self._of.pop(key, {})
        for claim in before:
            holders = self._holders[claim]
            del holders[key]
            if not holders:
                del self._holders[claim]
        self._terminating.discard(key)
        if claims:
            self._of[key] = claims
        for claim, field in claims.items():
            self._holders.setdefault(claim, {})[key] = field
        return before.keys() - claims.keys()

"""The index of all Hardware's MAC addresses, IP addresses and agent ids over the whole cluster.

A look-up is a dictionary access. The index also contains the addresses that machines use as gateway, name server and
the like.

The informer of Hardware feeds it. An informer is a moment behind the API, so the index also remembers claims that were
just admitted: of two Hardware that are created at the same moment with the same address, the second review rejects its
Hardware. That holds for one process. Two controllers that each admit one of them at the same moment can't know of each
other, and then the edge serves neither (`edge.machines.inventory`).

A Hardware that is being deleted gives up its claims: they block no other Hardware, and the edge serves the other one
first. It may gain no claim that another Hardware has.

In the process of the embedded API the store's commits feed the index (`ReviewPlugin`), and a write reserves its claims
until it is settled. There two Hardware never get one address, however many writes race.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv6Address, IPv6Interface
from socket import inet_aton, inet_ntoa
from typing import Any

from tink.api.annotations import AGENT_ID_ANNOTATION
from tink.api.v1alpha2 import Raw, WorkflowState, as_mapping
from tink.kube.cache import Index
from tink.kube.objects import NamespacedName, ObjectReference
from tink.limits import Newest
from tink.mac import mac_in

# --- References ---


_REFERENCES = {"Hardware": (("osie", "OSIE"),), "Workflow": (("hardwareRef", "Hardware"), ("templateRef", "Template"))}
_ENDED = tuple(state.value for state in WorkflowState if state.terminal)


def targets_of(obj: Any) -> list[ObjectReference]:
    """Return the objects that a Hardware or a Workflow refers to; invalid fields refer to nothing."""
    obj = as_mapping(obj)
    spec = as_mapping(obj.get("spec"))
    namespace = as_mapping(obj.get("metadata")).get("namespace", "")
    found = []
    for field, kind in _REFERENCES.get(obj.get("kind", ""), ()):
        name = as_mapping(spec.get(field)).get("name")
        if isinstance(name, str) and name:
            found.append(ObjectReference(kind, namespace, name))
    return found


def ended(workflow: Raw) -> bool:
    """Return True if a Workflow is in a terminal state and no longer needs its Hardware and Template."""
    return as_mapping(workflow.get("status")).get("state") in _ENDED


class References:
    """An index of references: Hardware to OSIEs, Workflows that have not ended to Hardware and Templates.

    Informers feed it. For one event loop.
    """

    def __init__(self) -> None:
        self._referrers: Index[ObjectReference, ObjectReference] = Index()

    def apply(self, obj: Raw) -> frozenset[ObjectReference]:
        """Add or update a Hardware or a Workflow. Return what it no longer refers to."""
        targets = () if obj["kind"] == "Workflow" and ended(obj) else targets_of(obj)
        return self._referrers.set(_reference(obj), targets)

    def remove(self, obj: Raw) -> frozenset[ObjectReference]:
        """Remove a deleted object. Return what it referred to."""
        return self._referrers.set(_reference(obj), ())

    def referrers(self, target: ObjectReference) -> Collection[ObjectReference]:
        """Return the objects that refer to `target`."""
        return self._referrers.keys(target)


def _reference(obj: Raw) -> ObjectReference:
    return ObjectReference(obj["kind"], *NamespacedName.of(obj))


# --- Claims ---


REMEMBERED_SECONDS = 5.0
"""Maximum seconds until the informer delivers an admitted write."""
MAX_REMEMBERED = 10_000
_MAX_SHARED = 4096


class ClaimKind(StrEnum):
    """A kind of value that must be unique."""

    MAC = "MAC address"
    IP = "IP address"
    AGENT_ID = "agent id"

    __hash__ = str.__hash__  # Enum's own __hash__ is Python code that runs for each look-up in an index.


Claim = tuple[ClaimKind, str]
"""An address in its canonical form, or an agent id in lower case."""


class Use(StrEnum):
    """The uses of an address by machines that do not have the address themselves."""

    GATEWAY = "gateway"
    NAME_SERVER = "name server"
    TIME_SERVER = "time server"
    NETWORK = "network address"
    BROADCAST = "broadcast address"

    __hash__ = str.__hash__  # As in the enum above.


@dataclass(frozen=True, slots=True)
class Conflict:
    """A conflict: `field` of the reviewed Hardware claims a value that `holder` has in `held_in`."""

    claim: Claim
    field: str
    holder: NamespacedName
    held_in: str
    held: Claim
    """The holder's claim: `claim`, or the MAC that equals the agent id."""
    arriving: bool = False
    """The holder was admitted a moment ago; whether it was stored is not known yet."""


@dataclass(frozen=True, slots=True, eq=False)
class _Reservation:
    """The claims of one write that is admitted and not yet settled."""

    holder: NamespacedName
    claims: Mapping[Claim, str]


@dataclass(frozen=True, slots=True)
class UsedAddress:
    """An address in `field` of the reviewed Hardware that has another role elsewhere.

    `is_foreign`: the machines that use it belong to Hardware of another namespace.
    """

    claim: Claim
    field: str
    use: Use
    is_foreign: bool


@dataclass(frozen=True, slots=True)
class _Arrival:
    holder: NamespacedName
    field: str
    expires: float


_Uses = frozenset[tuple[str, Use]]


@dataclass(frozen=True, slots=True)
class _Held:
    claims: Mapping[Claim, str]
    uses: _Uses
    terminating: bool


_NOTHING = _Held({}, frozenset(), terminating=False)


def is_terminating(obj: Any) -> bool:
    """Return True if the object is being deleted, and a finalizer holds it."""
    return bool(as_mapping(as_mapping(obj).get("metadata")).get("deletionTimestamp"))


def claims_of(hardware: Any) -> dict[Claim, str]:
    """Return the readable addresses and the agent id of a Hardware, each with the path of its field."""
    claims: dict[Claim, str] = {}
    for mac, interface in _interfaces(hardware).items():
        path = f"spec.networkInterfaces[{mac}]"
        claims[(ClaimKind.MAC, mac.lower())] = path
        dhcp = as_mapping(as_mapping(interface).get("dhcp"))
        ip = dhcp.get("ip")
        if isinstance(ip, str) and ip:
            claims.setdefault((ClaimKind.IP, ip), f"{path}.dhcp.ip")
        address = as_mapping(dhcp.get("ipv6")).get("address")
        if isinstance(address, str) and address:
            address = canonical(address)
            claims.setdefault((ClaimKind.IP, address), f"{path}.dhcp.ipv6.address")
            if (made_of := mac_in(address)) is not None:
                # The machine has this address as soon as a router advertises the prefix (SLAAC, RFC 4862).
                claims.setdefault((ClaimKind.MAC, made_of), f"{path}.dhcp.ipv6.address")
    metadata = as_mapping(as_mapping(hardware).get("metadata"))
    agent_id = as_mapping(metadata.get("annotations")).get(AGENT_ID_ANNOTATION)
    if isinstance(agent_id, str) and (agent_id := agent_id.strip()):
        claims[(ClaimKind.AGENT_ID, agent_id.lower())] = f"metadata.annotations[{AGENT_ID_ANNOTATION}]"
    return claims


def uses_of(hardware: Any) -> dict[tuple[str, Use], str]:
    """Return the addresses that a Hardware's machine uses and does not have itself, each with the path of its field."""
    uses: dict[tuple[str, Use], str] = {}
    for mac, interface in _interfaces(hardware).items():
        for address, use, field in _used_by(interface):
            uses.setdefault((address, use), f"spec.networkInterfaces[{mac}].dhcp.{field}")
    return uses


def _used_by(interface: Any) -> Iterator[tuple[str, Use, str]]:
    """Return the used addresses of one interface, with the field's path below `dhcp`."""
    dhcp = as_mapping(as_mapping(interface).get("dhcp"))
    gateway = dhcp.get("gateway")
    if isinstance(gateway, str) and gateway:
        yield gateway, Use.GATEWAY, "gateway"
    yield from _listed(dhcp, "nameservers", Use.NAME_SERVER, "nameservers")
    yield from _listed(dhcp, "timeservers", Use.TIME_SERVER, "timeservers")
    for use, address in _ends(str(dhcp.get("ip", "")), str(dhcp.get("netmask", ""))):
        yield address, use, "netmask"
    if ipv6 := as_mapping(dhcp.get("ipv6")):
        yield from _listed(ipv6, "nameservers", Use.NAME_SERVER, "ipv6.nameservers")
        for use, address in _ends(str(ipv6.get("address", "")), str(ipv6.get("prefixLength", 64))):
            yield address, use, "ipv6.prefixLength"


def _listed(of: Mapping[str, Any], name: str, use: Use, field: str) -> Iterator[tuple[str, Use, str]]:
    addresses = of.get(name)
    for address in addresses if isinstance(addresses, list) else ():
        if isinstance(address, str):
            yield canonical(address), use, field


def _ends(ip: str, mask: str) -> tuple[tuple[Use, str], ...]:
    """Return the first and last addresses of the network of `ip`, which hosts can't have. `mask`: netmask or length."""
    try:
        if ":" in ip:
            network = IPv6Interface(f"{ip}/{mask}").network
            # RFC 4291 section 2.6.1: the first address is that of any router; RFC 6164: not on a link of two.
            return ((Use.NETWORK, str(network.network_address)),) if network.prefixlen < 127 else ()
        bits = int.from_bytes(inet_aton(mask))
        return _ends4(int.from_bytes(inet_aton(ip)) & bits, bits)
    except (OSError, ValueError):
        return ()


@functools.lru_cache(maxsize=4096)
def _ends4(network: int, bits: int) -> tuple[tuple[Use, str], ...]:
    last = network | bits ^ 0xFFFFFFFF
    if last - network < 2:
        return ()  # RFC 3021: both addresses of a /31 are host addresses.
    first, last_address = (inet_ntoa(each.to_bytes(4)) for each in (network, last))
    return (Use.NETWORK, first), (Use.BROADCAST, last_address)


def canonical(address: str) -> str:
    """An IPv6 address in its one spelling (RFC 5952); what is none, as it is."""
    if ":" not in address:
        return address
    try:
        return str(IPv6Address(address))
    except ValueError:
        return address


def _interfaces(hardware: Any) -> Mapping[str, Any]:
    return as_mapping(as_mapping(as_mapping(hardware).get("spec")).get("networkInterfaces"))


def _rivals(claim: Claim) -> Iterator[Claim]:
    """Yield the claims of another Hardware that conflict with `claim`."""
    kind, value = claim
    yield claim
    if kind is ClaimKind.AGENT_ID:
        yield ClaimKind.MAC, value  # Its agent uses this id if there is no annotation.


class Claims:
    """Belongs to one event loop. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._of: dict[NamespacedName, _Held] = {}
        self._holders: dict[Claim, dict[NamespacedName, str]] = {}
        self._users: dict[str, dict[tuple[str, Use], int]] = {}
        """The number of a namespace's Hardware that have an address in this use, by address."""
        self._shared: Newest[_Uses, _Uses] = Newest(_MAX_SHARED)
        """Shared copies: the machines of one network use the same addresses."""
        self._arrivals: OrderedDict[Claim, _Arrival] = OrderedDict()
        self._reserved: dict[Claim, list[_Reservation]] = {}

    def apply(self, hardware: Raw) -> set[Claim]:
        """Add or update a Hardware. Return the claims that other Hardware may have now."""
        key = NamespacedName.of(hardware)
        terminating = is_terminating(hardware)
        claims = claims_of(hardware)
        uses = frozenset(
            (address, use) for each in _interfaces(hardware).values() for address, use, _ in _used_by(each)
        )
        shared = self._shared.get(uses)
        if shared is None:
            shared = self._shared[uses] = uses
        gone = self._replace(key, _Held(claims, shared, terminating=terminating))
        for claim in claims if not terminating else ():
            arrival = self._arrivals.get(claim)
            if arrival is not None and arrival.holder == key:
                del self._arrivals[claim]
        return gone

    def remove(self, hardware: Raw) -> set[Claim]:
        """Remove a Hardware. Return the claims that other Hardware may have now."""
        return self._replace(NamespacedName.of(hardware), _NOTHING)

    def conflicts(
        self, key: NamespacedName, wanted: Mapping[Claim, str], now: float, *, terminating: bool = False
    ) -> list[Conflict]:
        """Return the conflicts of `wanted` with other Hardware than `key`, in the order of the fields.

        For each claim, stored Hardware come first, then one that was admitted a moment ago. `terminating`: `key` is
        being deleted, so it may not even have claims of others that are being deleted.
        """
        self._expire(now)
        return [
            conflict
            for claim, field in wanted.items()
            for held in _rivals(claim)
            for conflict in self._conflicts(key, claim, field, held, terminating=terminating)
        ]

    def used(self, key: NamespacedName, wanted: Mapping[Claim, str]) -> list[UsedAddress]:
        """Return the addresses in `wanted` that machines of other Hardware use as their gateway and the like.

        There is one use for each address; uses of another namespace come first.
        """
        found = []
        for claim, field in wanted.items():
            users = self._users.get(claim[1], {}) if claim[0] is ClaimKind.IP else {}
            own = self._of.get(key, _NOTHING)
            uses = [
                (namespace == key.namespace, use)
                for (namespace, use), count in users.items()
                if count > (namespace == key.namespace and not own.terminating and (claim[1], use) in own.uses)
            ]
            if uses:
                is_own, use = min(uses, key=lambda each: each[0])
                found.append(UsedAddress(claim, field, use, is_foreign=not is_own))
        return found

    def reserved(self, namespace: str, uses: Mapping[tuple[str, Use], str]) -> list[UsedAddress]:
        """Return the addresses in `uses` that Hardware outside `namespace` reserve for their machines."""
        found = []
        for (address, use), field in uses.items():
            claim = (ClaimKind.IP, address)
            if any(key.namespace != namespace for key in self._live(claim)):
                found.append(UsedAddress(claim, field, use, is_foreign=True))
        return found

    def holds(self, claim: Claim, other_than: NamespacedName) -> bool:
        """Return True if another Hardware that is not being deleted has this claim."""
        return any(key != other_than for key in self._live(claim))

    def reserve(self, key: NamespacedName, claims: Mapping[Claim, str]) -> Callable[[], None]:
        """Reserve `claims` for a write of `key`. The returned function releases them when the write has been settled.

        For a reviewer in the process of the store: `apply` is called before the release, so the claim is never free in
        between.
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
            if key in self._live(claim):
                continue
            self._arrivals[claim] = _Arrival(key, field, now + REMEMBERED_SECONDS)
            self._arrivals.move_to_end(claim)
        while len(self._arrivals) > MAX_REMEMBERED:
            self._arrivals.popitem(last=False)

    def _conflicts(
        self, key: NamespacedName, claim: Claim, field: str, held: Claim, *, terminating: bool
    ) -> Iterator[Conflict]:
        paths = self._holders.get(held, {})
        holders = list(paths) if terminating else self._live(held)
        for holder in holders:
            if holder != key:
                yield Conflict(claim, field, holder, paths[holder], held)
        arrival = self._arrivals.get(held)
        if arrival is not None and arrival.holder not in (key, *holders):
            yield Conflict(claim, field, arrival.holder, arrival.field, held, arriving=True)
        for other in self._reserved.get(held, ()):
            if other.holder not in (key, *holders):
                yield Conflict(claim, field, other.holder, other.claims[held], held, arriving=True)

    def _live(self, claim: Claim) -> list[NamespacedName]:
        return [key for key in self._holders.get(claim, ()) if not self._of[key].terminating]

    def _expire(self, now: float) -> None:
        while self._arrivals:
            claim, arrival = next(iter(self._arrivals.items()))
            if arrival.expires > now:
                return
            del self._arrivals[claim]

    def _replace(self, key: NamespacedName, held: _Held) -> set[Claim]:
        """Return the claims that `key` has given up, by the change or by being deleted."""
        before = self._of.get(key, _NOTHING)
        if before == held:
            return set()
        self._of.pop(key, None)
        for claim in before.claims:
            holders = self._holders[claim]
            del holders[key]
            if not holders:
                del self._holders[claim]
        gone = set(before.claims)
        if not held.terminating:
            gone -= held.claims.keys()
        old, new = (each.uses if not each.terminating else frozenset() for each in (before, held))
        for address, use in new - old:
            users = self._users.setdefault(address, {})
            users[key.namespace, use] = users.get((key.namespace, use), 0) + 1
        for address, use in old - new:
            users = self._users[address]
            users[key.namespace, use] -= 1
            if not users[key.namespace, use]:
                del users[key.namespace, use]
            if not users:
                del self._users[address]  # no machine uses the address any more
                gone.add((ClaimKind.IP, address))
        if held.claims or held.uses:
            self._of[key] = held
        for claim, field in held.claims.items():
            self._holders.setdefault(claim, {})[key] = field
        return gone

"""Admission of unknown machines: the rules of `--discover`, and the decision about each DHCP packet. Pure.

A machine that no Hardware names is admitted by the creation of a Hardware for it (`discovered_hardware`). From then on
it is served as any other machine. `Admission.consider` decides; the caller creates the object.

    claimed     a Hardware has the MAC address, even one that is being deleted       -> never admitted
    rule        the first rule with its network, relay and MAC address               -> else the reason of the nearest
    list        a rule with only=listed: the MAC address is on a list
    deleted     its discovered Hardware was deleted in the last ten minutes          -> not yet, unless it is on a list
    second      the machine was seen before, at least a second ago                   -> else its next packet decides
    address     the range has a free one                                             -> else it waits for a place
    share       its link and its port hold no more than half of the free addresses   -> else it waits for a place
    rate        at most `CREATIONS_PER_SECOND` by this rule                          -> else it waits for a place
    draw        of all machines that wait, chance chooses the one that is admitted

Any host can send packets with invented MAC addresses, millions of them. An address that is sent once creates nothing:
firmware sends its DISCOVER again after two to four seconds. A host that sends each address twice fills at most half of
a range where several links are heard. The number of objects is bounded by the size of the ranges.

A machine that waits for a place takes that of a discovered Hardware whose machine has made the least progress: no
REQUEST within `REQUEST_SECONDS`, or else no boot file within `BOOT_FILE_SECONDS`. The caller deletes that Hardware,
and the place goes to one of the machines that have waited in the last `WAIT_SECONDS`. A machine on a list is drawn
before all others, needs no share, and takes the place of any machine that is on no list and has not introduced itself.
Only a Hardware as the edge has created it gives way: none with an inventory, a Workflow, or a change by an operator.
"""

from __future__ import annotations

import hashlib
import random
import re
import secrets
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from ipaddress import AddressValueError, IPv4Address, IPv4Interface, IPv4Network, NetmaskValueError
from itertools import chain, combinations
from typing import Any, Final, Protocol

from tink.api.annotations import (
    AUTO_DISCOVERED_LABEL,
    DISCOVERED_AS_ANNOTATION,
    DISCOVERY_ADDRESS_ANNOTATION,
    DISCOVERY_RULE_ANNOTATION,
    EXPECTED_MACHINES_LABEL,
)
from tink.api.v1alpha2 import API_VERSION, Raw, as_mapping
from tink.discovery.model import (
    ALL_NAMESPACES,
    DISCOVERY_FINALIZER,
    AdmissionRule,
    RuleError,
    discovered_name,
    has_declined,
    is_discovered,
)
from tink.kube.objects import NamespacedName
from tink.limits import Newest, TokenBuckets
from tink.mac import octets

MAX_RULES: Final = 64
MAX_RANGE: Final = 65_536
"""Maximum number of addresses in the range of a rule."""
MAX_RULE_CHARACTERS: Final = 2000
_MAX_NAMED: Final = 16
"""Maximum number of name servers, MAC prefixes or relays of a rule."""

LEASE_SECONDS: Final = 300
"""The lease of an admitted machine. It is short, because approval may change the address."""
CREATIONS_PER_SECOND: Final = 20.0
"""Maximum rate of admissions by one rule of one edge. Machines on lists have the same rate for themselves."""
DISPLACEMENTS_PER_SECOND: Final = 2.0
"""Maximum rate at which one rule of one edge takes the places of silent machines; the same again for those on lists.

It bounds the writes of an attack that never ends: about five for each place."""
MAX_LEAVING: Final = 8
"""Maximum number of Hardware of a rule that are being deleted at a time to free their places."""
REQUEST_SECONDS: Final = 60.0
"""Time for the first REQUEST of an admitted machine. Its next DISCOVER comes after 32 s at most (PXE 2.1 section
2.2.2.2)."""
BOOT_FILE_SECONDS: Final = 300.0
"""Time for an admitted machine to fetch a boot file or a script, if it has sent a REQUEST."""
WAIT_SECONDS: Final = 10.0
"""Time after its last DISCOVER for which a machine takes part in the draw for a place."""
MAX_WAITING: Final = 4096
"""Maximum number of machines of a rule that take part in it; the ones that were heard last."""
SECOND_PACKET_SECONDS: Final = 1.0
"""Minimum time between the first packet of a machine and the one that admits it."""
DELETED_SECONDS: Final = 600.0
"""Time for which a machine is not admitted after its discovered Hardware was deleted."""
MAX_DELETED: Final = 65_536
"""Maximum number of such machines that are stored."""
OCCUPIED_SECONDS: Final = 600.0
"""Time for which an address is not tried again after the API has rejected it, or its machine has declined it."""
UNUSED_SHARE: Final = 4
"""At most a quarter of a range is left unused because machines have declined the addresses. Beyond that, a machine that
declines its address is not admitted for `DELETED_SECONDS`."""
MAX_OCCUPIED: Final = 1024
"""Maximum number of such addresses that are stored."""
LINK_SECONDS: Final = 3600.0
"""Time after its last machine for which addresses are left to a link."""
MAX_LISTED_SIGHTINGS: Final = 65_536
"""Maximum number of machines on lists whose first packet is remembered."""
MAX_LINKS: Final = 1024
"""Maximum number of links and ports of a rule that are stored."""

# --- rules ------------------------------------------------------------------------------------------------------------

_KEYS: Final = ("range", "osie", "gateway", "nameserver", "mac", "relay", "only", "approve", "lists", "name")
_SINGLE: Final = frozenset({"range", "osie", "gateway", "only", "approve", "name"})
_EXAMPLE: Final = "range=172.31.8.10-172.31.8.250/24,gateway=172.31.8.1,osie=hook"
_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAMESPACE: Final = re.compile(_LABEL)
_OSIE_NAME: Final = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")
_RULE_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_MAC_PREFIX: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){0,5}")
_RANGE: Final = re.compile(r"([0-9.]{7,15})-([0-9.]{7,15})/([0-9]{1,2})")
_MIN_HOST_BITS: Final = 2  # RFC 3021: smaller networks have no network address and no broadcast address


def read_rule(text: str) -> AdmissionRule:
    """Return the rule that `text` describes: pairs KEY=VALUE with commas between them.

    Keys are `range` (FIRST-LAST/BITS) and `osie` ([NAMESPACE/]NAME), which are required, and `gateway`, `nameserver`,
    `mac`, `relay`, `only`, `approve`, `lists` and `name`. `nameserver`, `mac`, `relay` and `lists` may be given several
    times. Raises RuleError.
    """
    values = _values_of(text)
    for key in ("range", "osie"):
        if key not in values:
            raise RuleError(f"{key}= is missing: write a rule such as {_EXAMPLE}")
    network, first, last = _range(values["range"][0])
    gateway = _address("gateway", values["gateway"][0]) if "gateway" in values else None
    if gateway is not None:
        _check_gateway(gateway, network, first, last)
    only = values.get("only", [""])[0]
    if only not in ("", "listed"):
        raise RuleError(f"only={only}: write only=listed to admit machines on a list, or leave it out to admit all")
    approve = values.get("approve", [""])[0]
    if approve not in ("", "all"):
        raise RuleError(f"approve={approve}: write approve=all to approve each machine that reports an inventory")
    if only and approve:
        raise RuleError("only=listed and approve=all contradict each other, for a list approves its machines: take one")
    name = values.get("name", [f"{first}-{last}"])[0]
    if not _RULE_NAME.fullmatch(name):
        raise RuleError(f"name={name}: write at most 63 letters, digits, '-', '_' and '.', such as name=rack7")
    return AdmissionRule(
        name,
        network,
        first,
        last,
        _osie(values["osie"][0]),
        gateway,
        tuple(str(_address("nameserver", each)) for each in values.get("nameserver", ())),
        tuple(map(_mac_prefix, values.get("mac", ()))),
        tuple(_address("relay", each) for each in values.get("relay", ())),
        listed_only=only == "listed",
        approves_all=approve == "all",
        lists=_lists(values.get("lists", [])),
    )


def _values_of(text: str) -> dict[str, list[str]]:
    if len(text) > MAX_RULE_CHARACTERS:
        raise RuleError(f"a rule has at most {MAX_RULE_CHARACTERS} characters: divide it")
    values: dict[str, list[str]] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or key not in _KEYS:
            raise RuleError(f"{pair!r} is no part of a rule: write KEY=VALUE with a key of {', '.join(_KEYS)}")
        if not value:
            raise RuleError(f"{key}= has no value: give one, or leave it out")
        given = values.setdefault(key, [])
        given.append(value)
        if len(given) > 1 and key in _SINGLE:
            raise RuleError(f"{key}= is given {len(given)} times: a rule has one; write a second rule for the other")
        if len(given) > _MAX_NAMED:
            raise RuleError(f"{key}= is given more than {_MAX_NAMED} times: divide the rule")
    return values


def _range(text: str) -> tuple[IPv4Network, IPv4Address, IPv4Address]:
    """Return the network of a range, and its first and last address. Raises RuleError."""
    where, match = f"range={text}", _RANGE.fullmatch(text)
    if match is None:
        raise RuleError(f"{where}: write FIRST-LAST/BITS, such as range=172.31.8.10-172.31.8.250/24")
    first, last = (_address("range", each) for each in match.group(1, 2))
    try:
        network = IPv4Interface(f"{first}/{match[3]}").network
    except NetmaskValueError:
        raise RuleError(
            f"{where}: /{match[3]} is no length of an IPv4 prefix: write the network's, such as /24"
        ) from None
    if last not in network:
        raise RuleError(f"{where}: {last} is not in {network}, the network of {first}: correct the address or the mask")
    if last < first:
        raise RuleError(f"{where}: {last} is before {first}: write the lower address first")
    if int(last) - int(first) >= MAX_RANGE:
        raise RuleError(f"{where}: a range has at most {MAX_RANGE} addresses: make it smaller, or write two rules")
    if network.prefixlen <= network.max_prefixlen - _MIN_HOST_BITS:
        for address, what in ((network.network_address, "network"), (network.broadcast_address, "broadcast")):
            if first <= address <= last:
                raise RuleError(f"{where}: it contains {address}, the {what} address of {network}: leave it out")
    return network, first, last


def _check_gateway(gateway: IPv4Address, network: IPv4Network, first: IPv4Address, last: IPv4Address) -> None:
    if gateway not in network:
        raise RuleError(f"gateway={gateway} is not in {network}, the network of the range: name the router there")
    if first <= gateway <= last:
        raise RuleError(f"gateway={gateway} is in the range {first}-{last}: leave it out of the range")


def _address(key: str, text: str) -> IPv4Address:
    try:
        address = IPv4Address(text)
    except AddressValueError:
        raise RuleError(f"{key}={text}: write an IPv4 address, such as {key}=172.31.8.1") from None
    if address.is_unspecified or address.is_multicast or address.is_loopback or int(address) == 0xFFFFFFFF:
        raise RuleError(f"{key}={text} is not the address of one host: write an address of the machines' network")
    return address


def _osie(text: str) -> NamespacedName:
    namespace, slash, name = text.rpartition("/")
    if not slash:
        namespace = "default"
    if not _NAMESPACE.fullmatch(namespace) or not _OSIE_NAME.fullmatch(name):
        raise RuleError(f"osie={text} is not the name of an OSIE: write NAME or NAMESPACE/NAME, such as default/hook")
    return NamespacedName(namespace, name)


def _lists(names: list[str]) -> tuple[str, ...]:
    for name in names:
        if name != ALL_NAMESPACES and not _NAMESPACE.fullmatch(name):
            raise RuleError(f"lists={name}: write the namespace of lists of expected machines, or lists=* for all")
    if ALL_NAMESPACES in names and len(names) > 1:
        raise RuleError("lists=* counts the lists of all namespaces: leave the other lists= out")
    return tuple(dict.fromkeys(names))


def _mac_prefix(text: str) -> str:
    prefix = text.lower().replace("-", ":")
    if not _MAC_PREFIX.fullmatch(prefix):
        raise RuleError(f"mac={text}: write the first bytes of MAC addresses, such as mac=52:54:00")
    return prefix


def rule_conflicts(rules: Sequence[AdmissionRule]) -> Iterator[tuple[str, str]]:
    """Yield each contradiction between rules of one edge, with the remedy."""
    if len(rules) > MAX_RULES:
        yield f"there are {len(rules)} rules, and an edge takes {MAX_RULES}", "join rules of one network"
    for one, other in combinations(rules[:MAX_RULES], 2):
        if one.first <= other.last and other.first <= one.last:
            ranges = " and ".join(f"{each.first}-{each.last}" for each in (one, other))
            yield f"the ranges {ranges} overlap", "give each rule a range of its own"
        elif one.name == other.name:
            yield f"two rules have the name {one.name}", "give each another name="


# --- the decision -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """A netboot client that no Hardware names, and the way by which its DISCOVER came.

    mac: in lower case with colons.
    networks: those of the interface of the edge that received the packet.
    relay: the address of the relay (giaddr, RFC 2131 section 2); None: the packet came without a relay.
    link: an address of the client's link: the relay's, or its link selection (RFC 3527).
    circuit: the circuit id that a relay or a switch added (RFC 3046 section 3.1); empty if none did.
    """

    mac: str
    networks: tuple[IPv4Network, ...] = ()
    relay: IPv4Address | None = None
    link: IPv4Address | None = None
    circuit: bytes = b""

    @property
    def way(self) -> str:
        """The way of the packet, as text for people."""
        if self.relay is not None:
            selected = f" for the link {self.link}" if self.link not in (None, self.relay) else ""
            return f"through relay {self.relay}{selected}"
        return f"without a relay from {', '.join(map(str, self.networks)) or 'an unknown network'}"


class AdmissionReason(StrEnum):
    """The reasons why a machine is not admitted, or not yet."""

    CLAIMED = "claimed"
    NO_RULE = "no-rule"
    OTHER_RELAY = "other-relay"
    OTHER_MAC = "other-mac"
    NOT_LISTED = "not-listed"
    DELETED = "deleted"
    PLACE = "place"  # a silent machine gives up its place
    RANGE_EXHAUSTED = "range-exhausted"
    SHARE_EXHAUSTED = "share-exhausted"
    REJECTED = "rejected"  # the API rejects its Hardware
    SECOND_PACKET = "second-packet"
    RATE = "rate"
    REGISTERING = "registering"
    API_AWAY = "api-away"


@dataclass(frozen=True, slots=True)
class Admitted:
    """The machine is admitted: its Hardware has to be created with this address."""

    rule: AdmissionRule
    address: IPv4Address


@dataclass(frozen=True, slots=True)
class Refused:
    """The machine is not admitted. `text` has the reason and the remedy."""

    reason: AdmissionReason
    text: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """The machine is not admitted yet, but a later packet of it may be. `text` has the reason."""

    reason: AdmissionReason
    text: str


Decision = Admitted | Refused | Waiting


class Progress(IntEnum):
    """The progress of an admitted machine that has not introduced itself."""

    NONE = 0  # it has sent DISCOVERs alone, or nothing
    REQUESTED = 1  # it has sent a REQUEST
    BOOTING = 2  # it has fetched a boot file or a script


class ListedMachines(Protocol):
    """The lists of expected machines, as far as admission needs them."""

    def lists_mac(self, mac: str, namespaces: Collection[str]) -> bool:
        """Return True if a line of a list of these namespaces has this MAC address."""

    def names_only_macs(self, namespaces: Collection[str]) -> bool:
        """Return True if every line of these lists has a MAC address, so that a MAC on no line is not expected."""


class Sightings:
    """The times at which MAC addresses were first seen, in a table of a fixed size of 2 MB.

    A new address replaces the one that has the same slot. The slots are secret, so no host can choose which address it
    replaces. Of the addresses that are seen, 68 % are still in the table after 100,000 new ones.
    """

    SLOTS: Final = 1 << 18
    MAX_SECONDS: Final = 600.0
    """An address that was seen longer ago counts as new."""
    _TICKS: Final = 8  # a second
    _MASK: Final = 0xFFFF

    def __init__(self, salt: int | None = None) -> None:
        """`salt` determines the slots; None: a random one."""
        self._salt = secrets.randbits(62) if salt is None else salt
        # The MAC address in the upper 48 bits, and the time in the lower 16, in ticks.
        self._entries = array("Q", bytes(8 * self.SLOTS))

    def age(self, mac: bytes, now: float) -> float:
        """Return the seconds since the MAC address (six bytes) was first seen; 0.0 if it is new."""
        slot = hash((self._salt, mac)) % self.SLOTS
        entry, number, tick = self._entries[slot], int.from_bytes(mac, "big"), int(now * self._TICKS) & self._MASK
        if entry >> 16 == number:
            age = ((tick - entry) & self._MASK) / self._TICKS
            if age <= self.MAX_SECONDS:
                return age
        self._entries[slot] = number << 16 | tick
        return 0.0


_Link = tuple[str, ...]
"""A rule, and a link: an address of it, or empty for the edge's own. For a port, also the circuit id in hexadecimal."""


@dataclass(frozen=True, slots=True)
class _Entrant:
    """A machine that takes part in the draw for a place: it could be admitted if there were room.

    links: its link and, if known, its port.
    at: the time of its last DISCOVER.
    """

    candidate: Candidate
    links: tuple[_Link, ...]
    is_listed: bool
    at: float


@dataclass(slots=True)
class _Place:
    """A discovered Hardware that may have to give its address to another machine.

    since: the time at which it was created, or first seen by this process.
    """

    mac: str
    rule: AdmissionRule
    since: float
    progress: Progress


class Admission:
    """Decides which unknown machines are admitted. The owner passes on every change of a Hardware."""

    def __init__(
        self,
        rules: Sequence[AdmissionRule],
        is_claimed: Callable[[str], bool],
        *,
        own_addresses: Callable[[], Iterable[str]] = tuple,
        listed: ListedMachines | None = None,
        progress: Callable[[str], Progress] = lambda _mac: Progress.NONE,
        is_in_use: Callable[[NamespacedName], bool] = lambda _hardware: False,
        salt: int | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """Create the admission by `rules`, whose ranges do not overlap.

        is_claimed: returns True if any Hardware has a MAC address, even one that is being deleted.
        own_addresses: returns addresses in dotted form that no machine may get: those of the edges.
        listed: the lists of expected machines; without them a rule with only=listed admits no machine.
        progress: returns the progress of a machine with a discovered Hardware, by its MAC address.
        is_in_use: returns True if a Workflow names a Hardware.
        chance: decides the draw; None: an unpredictable one.
        """
        self._rules = tuple(rules)
        self._is_claimed = is_claimed
        self._own_addresses = own_addresses
        self._listed = listed
        self._list_namespaces = frozenset[str]().union(*(rule.list_namespaces for rule in self._rules))
        self._progress = progress
        self._is_in_use = is_in_use
        self._chance = chance if chance is not None else random.SystemRandom()
        self._sightings = Sightings(salt)
        self._listed_sightings: Newest[str, float] = Newest(MAX_LISTED_SIGHTINGS)
        """When each machine on a list was first seen, by MAC address. No flood can replace these."""
        self._creations = TokenBuckets(CREATIONS_PER_SECOND, CREATIONS_PER_SECOND)
        self._displacements = TokenBuckets(MAX_LEAVING, DISPLACEMENTS_PER_SECOND)
        self._waiting: dict[tuple[str, bool], Newest[str, _Entrant]] = {
            (rule.name, is_listed): Newest(MAX_WAITING) for rule in self._rules for is_listed in (True, False)
        }
        """The machines that take part in the draws of each rule, on lists and on none, by MAC address.

        The one that was heard last is the last."""
        self._places: dict[NamespacedName, _Place] = {}
        """The Hardware that may have to give way, in the order of their creation."""
        self._leaving: dict[NamespacedName, _Place] = {}
        """The Hardware that the caller is to delete, until they are gone."""
        self._drawn: list[str] = []
        self._displaced: list[NamespacedName] = []
        self._pending: dict[str, Admitted] = {}
        """The admitted machines whose Hardware is not known yet, by MAC address."""
        self._addresses: dict[NamespacedName, tuple[int, ...]] = {}
        self._taken: Counter[int] = Counter()
        """The number of Hardware and of pending machines that have an address of a range, by address."""
        self._taken_of: Counter[str] = Counter()
        """The number of addresses of a range that are taken, by the name of the rule."""
        self._occupied: Newest[int, float] = Newest(MAX_OCCUPIED)
        """Addresses that the API has rejected, or machines have declined, with the time."""
        self._silent: dict[NamespacedName, tuple[str, ...]] = {}
        """The MAC addresses of discovered Hardware whose machines have not introduced themselves."""
        self._deleted: Newest[str, float] = Newest(MAX_DELETED)
        self._links_of: dict[str, tuple[_Link, ...]] = {}
        """The links of machines that have not introduced themselves, by MAC address."""
        self._held: Counter[_Link] = Counter()
        """The number of those machines of each link."""
        self._heard: dict[tuple[str, int], Newest[_Link, float]] = {}
        """The links of each rule and kind (a link, a port) with the time of their last machine."""

    # --- changes of Hardware --------------------------------------------------------------------------------------

    def apply(self, hardware: Raw, now: float) -> None:
        """Note a Hardware that was added or changed at `now`, a time of the clock of `consider`."""
        key, interfaces = NamespacedName.of(hardware), _interfaces(hardware)
        for mac in interfaces:
            self._settle(mac)
        self._set_addresses(key, interfaces, _annotations(hardware))
        is_silent = is_discovered(hardware) and not as_mapping(hardware.get("status")).get("inventory")
        before = self._silent.pop(key, ())
        if is_silent:
            self._silent[key] = tuple(interfaces)
        for mac in {*before, *interfaces} if not is_silent else set(before).difference(interfaces):
            self._leave(mac)
        self._set_place(key, hardware, now)

    def _set_place(self, key: NamespacedName, hardware: Raw, now: float) -> None:
        """Note whether a Hardware may have to give way to another machine."""
        progress = _displaceable(hardware)
        rule = next(filter(None, map(self._rule_at, self._addresses.get(key, ()))), None)
        if progress is None or rule is None:
            self._places.pop(key, None)
            if not as_mapping(hardware["metadata"]).get("deletionTimestamp"):
                self._leaving.pop(key, None)
        elif key not in self._leaving:
            mac = next(iter(_interfaces(hardware)))
            place = self._places.setdefault(key, _Place(mac, rule, now, progress))
            place.rule, place.progress = rule, max(place.progress, progress)

    def remove(self, hardware: Raw, now: float) -> None:
        """Note a Hardware that was deleted at `now`, a time of the clock of `consider`."""
        key, interfaces = NamespacedName.of(hardware), _interfaces(hardware)
        # Of two machines with one address, none is served. The one that loses its Hardware gets another address.
        addresses = self._addresses.get(key, ())
        is_moved = any(self._taken[address] > 1 for address in addresses)
        if has_declined(hardware) and is_discovered(hardware):
            # Another host has the address. The machine gets another one, but declines take a part of a range at most.
            is_moved = is_moved or all(self._may_leave(address, now) for address in addresses)
            self._occupied.update(dict.fromkeys(addresses, now) if is_moved else {})
        self._set_addresses(key, {}, {})
        self._silent.pop(key, None)
        self._places.pop(key, None)
        # The machine may be real and slow: it takes part in the next draws.
        was_displaced = self._leaving.pop(key, None) is not None
        annotations = _annotations(hardware)
        was_discovered = bool(annotations.keys() & {DISCOVERY_RULE_ANNOTATION, DISCOVERED_AS_ANNOTATION})
        for mac in interfaces:
            self._leave(mac)
            if (was_discovered or is_discovered(hardware)) and not is_moved and not was_displaced:
                self._deleted[mac] = now

    def _set_addresses(self, key: NamespacedName, interfaces: Raw, annotations: Raw) -> None:
        texts = [as_mapping(as_mapping(each).get("dhcp")).get("ip") for each in interfaces.values()]
        numbers = map(_number, (*texts, annotations.get(DISCOVERY_ADDRESS_ANNOTATION)))
        found = {each for each in numbers if each is not None and self._rule_at(each) is not None}
        for address in self._addresses.pop(key, ()):
            self._release(address)
        if found:
            self._addresses[key] = tuple(found)
            for address in found:
                self._take(address)

    def _rule_at(self, address: int) -> AdmissionRule | None:
        return next((rule for rule in self._rules if int(rule.first) <= address <= int(rule.last)), None)

    def _may_leave(self, address: int, now: float) -> bool:
        """Return True if a declined address may be left unused: most addresses of its range are for machines."""
        rule = self._rule_at(address)
        if rule is None:
            return True
        self._forget_occupied(now)
        unused = sum(int(rule.first) <= each <= int(rule.last) for each in self._occupied)
        return unused < max(1, (int(rule.last) - int(rule.first) + 1) // UNUSED_SHARE)

    def _take(self, address: int) -> None:
        self._taken[address] += 1
        if self._taken[address] == 1 and (rule := self._rule_at(address)) is not None:
            self._taken_of[rule.name] += 1

    def _release(self, address: int) -> None:
        self._taken[address] -= 1
        if not self._taken[address]:
            del self._taken[address]
            if (rule := self._rule_at(address)) is not None:
                self._taken_of[rule.name] -= 1

    @property
    def silent(self) -> int:
        """The number of discovered Hardware whose machines have not introduced themselves."""
        return len(self._silent)

    def free(self, rule: AdmissionRule, now: float) -> int:
        """Return the number of free addresses of a rule."""
        return self._free(rule, self._blocked(rule, None, now))

    def _free(self, rule: AdmissionRule, blocked: frozenset[int]) -> int:
        untaken = sum(1 for address in blocked if address not in self._taken)
        return int(rule.last) - int(rule.first) + 1 - self._taken_of[rule.name] - untaken

    # --- decisions ------------------------------------------------------------------------------------------------

    def is_returning(self, mac: bytes, now: float) -> bool:
        """Return True if the MAC address (six bytes) was seen at least a second ago, and note that it was seen."""
        return self._sightings.age(mac, now) >= SECOND_PACKET_SECONDS

    def is_listed(self, mac: str) -> bool:
        """Return True if a list that counts for any rule has a MAC address (lower case, colons)."""
        return self._listed is not None and self._listed.lists_mac(mac, self._list_namespaces)

    def consider(self, candidate: Candidate, now: float) -> Decision:
        """Decide about a machine whose DISCOVER arrived at `now` (monotonic seconds).

        After `Admitted`, the caller creates the Hardware, or calls `give_back`. Then it calls `take_drawn` and
        `take_displaced`, because other machines may have been admitted in the same draw.
        """
        mac = candidate.mac
        if self._is_claimed(mac):
            return Refused(AdmissionReason.CLAIMED, "a Hardware has its MAC address")
        if mac in self._pending:
            return Waiting(AdmissionReason.REGISTERING, f"its Hardware {self._key_of(mac)} is being created")
        rule = self._rule_for(candidate)
        if isinstance(rule, Refused):
            return rule
        is_listed = self._is_listed(mac, rule)
        if not is_listed and not self._is_deletion_over(mac, now):
            text = f"its discovered Hardware was deleted less than {DELETED_SECONDS / 60:.0f} minutes ago"
            return Refused(
                AdmissionReason.DELETED, f"{text}; wait, or add its MAC address to a list of expected machines"
            )
        is_second = self._is_listed_returning(mac, now) if is_listed else self.is_returning(octets(mac), now)
        if not is_second:
            return Waiting(AdmissionReason.SECOND_PACKET, f"rule {rule.name} admits it when it sends another DISCOVER")
        entrant = _Entrant(candidate, _links(rule, candidate), is_listed, now)
        self._hear(rule, entrant.links, now)
        self._waiting[rule.name, is_listed][mac] = entrant
        refusal = self._draw(rule, entrant, now)
        return self._pending[mac] if refusal is None else refusal

    def _is_listed(self, mac: str, rule: AdmissionRule) -> bool:
        return self._listed is not None and self._listed.lists_mac(mac, rule.list_namespaces)

    def _is_listed_returning(self, mac: str, now: float) -> bool:
        """Do the same as `is_returning` for a machine on a list, whose sightings no flood replaces."""
        age = now - self._listed_sightings.get(mac, -Sightings.MAX_SECONDS)
        if age >= Sightings.MAX_SECONDS:
            self._listed_sightings[mac] = now
            return False
        return age >= SECOND_PACKET_SECONDS

    def _rule_for(self, candidate: Candidate) -> AdmissionRule | Refused:
        """Return the first rule that the candidate matches, or else the reason of the rule that is nearest."""
        nearest: Refused | None = None
        for rule in self._rules:
            if not _is_of_network(rule, candidate):
                continue
            refused = self._mismatch(rule, candidate)
            if refused is None:
                return rule
            nearest = nearest or refused
        text = f"no rule of --discover is for its network ({candidate.way})"
        return nearest or Refused(
            AdmissionReason.NO_RULE, f"{text}; add a rule with a range there, or create its Hardware"
        )

    def _mismatch(self, rule: AdmissionRule, candidate: Candidate) -> Refused | None:
        mac = candidate.mac
        if rule.relays and candidate.relay not in rule.relays:
            relays = ", ".join(map(str, rule.relays))
            text = f"rule {rule.name} is for machines behind relay {relays}, and this packet came {candidate.way}"
            return Refused(
                AdmissionReason.OTHER_RELAY, f"{text}; add relay={candidate.relay or 'ADDRESS'}, or take relay= out"
            )
        if rule.mac_prefixes and not mac.startswith(rule.mac_prefixes):
            text = f"rule {rule.name} is for MAC addresses that begin with {', '.join(rule.mac_prefixes)}"
            return Refused(AdmissionReason.OTHER_MAC, f"{text}; add mac={mac[:8]} to the rule, or create its Hardware")
        if rule.listed_only:
            listed = self._listed
            # A list may name machines by serial number, and then the machine has to introduce itself first.
            names = rule.list_namespaces
            if listed is None or not (listed.lists_mac(mac, names) or not listed.names_only_macs(names)):
                text = f"rule {rule.name} is for expected machines (only=listed), and no list has this MAC address"
                where = "" if ALL_NAMESPACES in names else f" in namespace {' or '.join(sorted(names))}"
                remedy = f"add it to a ConfigMap{where} with the label {EXPECTED_MACHINES_LABEL}=true"
                return Refused(AdmissionReason.NOT_LISTED, f"{text}; {remedy}")
        return None

    def _is_deletion_over(self, mac: str, now: float) -> bool:
        at = self._deleted.get(mac)
        if at is None:
            return True
        if now - at < DELETED_SECONDS:
            return False
        del self._deleted[mac]
        return True

    # --- the draw -------------------------------------------------------------------------------------------------

    def draw(self, seed: str, now: float) -> None:
        """Admit machines that wait, after a place has become free. The caller then calls `take_drawn`.

        seed: a text that no machine knows, and that is the same at all edges: the uid of the Hardware that is gone. Of
        the same machines, edges with the same seed choose the same one, so that they do not give one place to two.
        """
        for rule in self._rules:
            self._draw(rule, None, now, seed)

    def take_drawn(self) -> list[str]:
        """Return the MAC addresses of machines that were admitted while they waited, since the last call.

        `pending` has their admissions. The caller creates their Hardware, or calls `give_back`.
        """
        taken, self._drawn = self._drawn, []
        return taken

    def _draw(
        self, rule: AdmissionRule, asking: _Entrant | None, now: float, seed: str = ""
    ) -> Refused | Waiting | None:
        """Admit machines that wait, in an order of chance, while there is room.

        asking: the machine that has just sent a DISCOVER. The draw ends with its admission, and begins only if it
        could be admitted, so that packets of machines without a chance cost little.

        Return None if `asking` is admitted, else the reason why it is not.
        """
        while entrants := self._entrants(rule, now):
            if asking is not None and (refusal := self._refusal(rule, asking, now)) is not None:
                return self._make_room(rule, asking, refusal, now)
            if self._free(rule, self._blocked(rule, None, now)) <= 0:
                break
            is_listed = next(iter(entrants.values())).is_listed
            if not self._creations.allows((rule.name, is_listed), now):
                text = f"{CREATIONS_PER_SECOND:.0f} machines were admitted within a second"
                text = f"{text}; rule {rule.name} draws one of the waiting machines at the next DISCOVER"
                return Waiting(AdmissionReason.RATE, text)
            entrant = self._choose(rule, entrants, seed or f"{self._chance.getrandbits(64)}", now)
            if entrant is None:
                break
            mac = entrant.candidate.mac
            del entrants[mac]
            if mac in self._pending or self._is_claimed(mac):
                continue  # another edge, or an operator, has registered it meanwhile
            address = self._free_address(rule, mac, self._blocked(rule, entrant.candidate, now))
            if address is None:
                break
            self._links_of[mac] = entrant.links
            self._held.update(entrant.links)
            self._reserve(mac, Admitted(rule, address))
            if entrant is asking:
                return None
            self._drawn.append(mac)
        return self._exhausted(rule)

    def _entrants(self, rule: AdmissionRule, now: float) -> Newest[str, _Entrant]:
        """Return the machines that take part in the next draw: those on lists if there are any, else all others."""
        for is_listed in (True, False):
            entrants = self._waiting[rule.name, is_listed]
            while entrants and now - next(iter(entrants.values())).at > WAIT_SECONDS:
                entrants.popitem(last=False)
            if entrants:
                break
        return entrants

    def _choose(self, rule: AdmissionRule, entrants: Newest[str, _Entrant], seed: str, now: float) -> _Entrant | None:
        """Return a machine for which there is room: the seed chooses a link first, then a machine of this link.

        The machine with the lowest hash of seed and MAC address wins (rendezvous hashing).
        """
        by_link: dict[_Link, list[_Entrant]] = {}
        for each in entrants.values():
            by_link.setdefault(each.links[0], []).append(each)
        for link in sorted(by_link, key=lambda each: _ticket(seed, *each)):
            of_link = by_link[link]
            if (free := self._free(rule, self._blocked(rule, of_link[0].candidate, now))) <= 0:
                continue
            for each in sorted(of_link, key=lambda each: _ticket(seed, each.candidate.mac)):
                if each.is_listed or self._exhausted_share(rule, each, free, now) is None:
                    return each
        return None

    def _refusal(self, rule: AdmissionRule, entrant: _Entrant, now: float) -> Refused | None:
        """Return the reason why there is no room for a machine now; None if there is."""
        free = self._free(rule, self._blocked(rule, entrant.candidate, now))
        if free <= 0:
            return self._exhausted(rule)
        kind = None if entrant.is_listed else self._exhausted_share(rule, entrant, free, now)
        if kind is None:
            return None
        text = f"half of the free addresses of rule {rule.name} are held by machines of its {('link', 'port')[kind]}"
        remedy = "approve or delete discovered machines (kubectl get hardware -l "
        return Refused(
            AdmissionReason.SHARE_EXHAUSTED,
            f"{text}, and the rest is for others; {remedy}{AUTO_DISCOVERED_LABEL}=true), or widen the range",
        )

    def _exhausted_share(self, rule: AdmissionRule, entrant: _Entrant, free: int, now: float) -> int | None:
        """Return the place in `links` of the link or port of a machine that holds its share already, or None."""
        for kind, link in enumerate(entrant.links):
            held = self._held[link]
            # The first machine of a link always gets an address, even if the range has only one.
            if held and (held + 1) * 2 > free + held and self._hears_others(rule, kind, link, now):
                return kind
        return None

    # --- places ---------------------------------------------------------------------------------------------------

    def take_displaced(self) -> list[NamespacedName]:
        """Return the Hardware that give way, since the last call. The caller deletes them, or calls `keep`."""
        taken, self._displaced = self._displaced, []
        return taken

    def is_leaving(self, hardware: NamespacedName) -> bool:
        """Return True if a Hardware gives way: it has not changed since then, and is not gone."""
        return hardware in self._leaving

    def keep(self, hardware: NamespacedName) -> None:
        """Note that a Hardware was not deleted."""
        place = self._leaving.pop(hardware, None)
        if place is not None:
            self._places[hardware] = place

    def _make_room(self, rule: AdmissionRule, entrant: _Entrant, refusal: Refused, now: float) -> Refused | Waiting:
        """Choose a Hardware that gives way to a machine that waits. Return `refusal` if there is none."""
        leaving = sum(1 for each in self._leaving.values() if each.rule.name == rule.name)
        if leaving >= min(MAX_LEAVING, len(self._entrants(rule, now))):
            return refusal
        if not self._displacements.allows((rule.name, entrant.is_listed), now):
            return refusal
        key = self._least_progress(rule, entrant, now)
        if key is None:
            return refusal
        self._leaving[key] = self._places.pop(key)
        self._displaced.append(key)
        text = f"Hardware {key}, whose machine makes no progress, gives up its address"
        return Waiting(AdmissionReason.PLACE, f"{text}; rule {rule.name} draws among the machines that wait for one")

    def _least_progress(self, rule: AdmissionRule, entrant: _Entrant, now: float) -> NamespacedName | None:
        """Return the Hardware with the least progress that gives way to a machine, the oldest first; None without one.

        If the share of the machine's link is used up, only Hardware of this link does.
        """
        free = self._free(rule, self._blocked(rule, entrant.candidate, now))
        kind = self._exhausted_share(rule, entrant, free, now) if free > 0 and not entrant.is_listed else None
        seconds = (0.0, 0.0, 0.0) if entrant.is_listed else (REQUEST_SECONDS, BOOT_FILE_SECONDS)
        best: NamespacedName | None = None
        least = len(seconds)
        for key, place in self._places.items():
            if now - place.since < seconds[0]:
                break  # all others are younger
            if place.rule.name != rule.name or place.progress >= least or now - place.since < seconds[place.progress]:
                continue
            if kind is not None and entrant.links[kind] not in self._links_of.get(place.mac, ()):
                continue
            place.progress = max(place.progress, self._progress(place.mac))
            is_older = place.progress < least and now - place.since >= seconds[place.progress]
            if is_older and not self._is_listed(place.mac, rule) and not self._is_in_use(key):
                best, least = key, place.progress
                if least is Progress.NONE:
                    break
        return best

    def _exhausted(self, rule: AdmissionRule) -> Refused:
        text = f"the range {rule.first}-{rule.last} of rule {rule.name} has no free address"
        remedy = f"approve or delete discovered machines (kubectl get hardware -l {AUTO_DISCOVERED_LABEL}=true)"
        return Refused(AdmissionReason.RANGE_EXHAUSTED, f"{text}; {remedy}, or widen the range")

    def _reserve(self, mac: str, admitted: Admitted) -> Admitted:
        self._pending[mac] = admitted
        self._take(int(admitted.address))
        return admitted

    # --- addresses ------------------------------------------------------------------------------------------------

    def _blocked(self, rule: AdmissionRule, candidate: Candidate | None, now: float) -> frozenset[int]:
        """Return the addresses of a range that hosts other than machines have, or that the API has rejected."""
        found = {
            number for each in (*self._own_addresses(), *rule.nameservers) if (number := _number(each)) is not None
        }
        found.update(map(int, rule.relays))
        if candidate is not None:
            found.update(int(each) for each in (candidate.relay, candidate.link) if each is not None)
        self._forget_occupied(now)
        found.update(self._occupied)
        return frozenset(each for each in found if int(rule.first) <= each <= int(rule.last))

    def _forget_occupied(self, now: float) -> None:
        while self._occupied and now - next(iter(self._occupied.values())) >= OCCUPIED_SECONDS:
            self._occupied.popitem(last=False)

    def _free_address(self, rule: AdmissionRule, mac: str, blocked: frozenset[int]) -> IPv4Address | None:
        """Return a free address of the range. Edges that see the same machine begin with the same address."""
        first, size = int(rule.first), int(rule.last) - int(rule.first) + 1
        start = zlib.crc32(octets(mac)) % size
        for offset in chain(range(start, size), range(start)):
            if first + offset not in self._taken and first + offset not in blocked:
                return IPv4Address(first + offset)
        return None

    def reject_address(self, mac: str, now: float) -> Admitted | None:
        """Return another address for an admitted machine, whose first one the API has rejected; None: none is free."""
        before = self._pending.pop(mac, None)
        if before is None:
            return None
        self._release(int(before.address))
        self._occupied[int(before.address)] = now
        address = self._free_address(before.rule, mac, self._blocked(before.rule, None, now))
        if address is None:
            self._leave(mac)
            return None
        return self._reserve(mac, Admitted(before.rule, address))

    def give_back(self, mac: str) -> None:
        """Note that an admitted machine gets no Hardware: its address is free again."""
        self._settle(mac)
        self._leave(mac)

    def pending(self, mac: str) -> Admitted | None:
        """Return the admission of a machine whose Hardware is not known yet."""
        return self._pending.get(mac)

    def _settle(self, mac: str) -> None:
        pending = self._pending.pop(mac, None)
        if pending is not None:
            self._release(int(pending.address))

    def _key_of(self, mac: str) -> NamespacedName:
        return NamespacedName(self._pending[mac].rule.osie.namespace, discovered_name(mac))

    # --- shares of links ------------------------------------------------------------------------------------------

    def _hear(self, rule: AdmissionRule, links: tuple[_Link, ...], now: float) -> None:
        """Note that a link and a port were heard."""
        for kind, link in enumerate(links):
            self._heard.setdefault((rule.name, kind), Newest(MAX_LINKS))[link] = now

    def _hears_others(self, rule: AdmissionRule, kind: int, link: _Link, now: float) -> bool:
        """Return True if another link of this kind was heard in the last hour."""
        heard = self._heard.get((rule.name, kind))
        if heard is None:
            return False
        latest = next((at for each, at in reversed(heard.items()) if each != link), None)
        return latest is not None and now - latest < LINK_SECONDS

    def _leave(self, mac: str) -> None:
        """Note that a machine has introduced itself, or has no Hardware any more: its link holds one address less."""
        for link in self._links_of.pop(mac, ()):
            self._held[link] -= 1
            if not self._held[link]:
                del self._held[link]


def _ticket(seed: str, *words: str) -> bytes:
    """Return the place of a machine or of a link in a draw, which no machine can predict without the seed."""
    return hashlib.blake2b("\0".join((seed, *words)).encode(), digest_size=8).digest()


def _is_of_network(rule: AdmissionRule, candidate: Candidate) -> bool:
    """Return True if a packet came from a link of the rule's network."""
    if candidate.relay is None:
        return any(network.overlaps(rule.network) for network in candidate.networks)
    return candidate.link is not None and candidate.link in rule.network


def _links(rule: AdmissionRule, candidate: Candidate) -> tuple[_Link, ...]:
    """Return the link of a candidate and, if its circuit is known, the port."""
    link = (rule.name, str(candidate.link or candidate.relay or ""))
    return (link, (*link, candidate.circuit.hex())) if candidate.circuit else (link,)


def _number(address: Any) -> int | None:
    """Return an IPv4 address in dotted form, with or without a mask, as a number; None if it is none."""
    # Faster than IPv4Address: this is called for every Hardware of a site.
    parts = str(address).partition("/")[0].split(".") if address else ()
    if len(parts) != 4 or not all(part.isdecimal() and len(part) <= 3 and int(part) < 256 for part in parts):
        return None
    return int.from_bytes(bytes(map(int, parts)), "big")


def _annotations(hardware: Raw) -> Raw:
    return as_mapping(as_mapping(hardware.get("metadata")).get("annotations"))


def _interfaces(hardware: Raw) -> Raw:
    return as_mapping(as_mapping(hardware.get("spec")).get("networkInterfaces"))


# --- the object -------------------------------------------------------------------------------------------------------


def discovered_hardware(mac: str, rule: AdmissionRule, address: IPv4Address) -> Raw:
    """Return the Hardware of a machine that `rule` admits with this address. `mac` has lower case and colons."""
    dhcp: dict[str, Any] = {"ip": str(address), "netmask": str(rule.network.netmask)}
    dhcp |= {"gateway": str(rule.gateway)} if rule.gateway is not None else {}
    dhcp |= {"nameservers": list(rule.nameservers)} if rule.nameservers else {}
    return {
        "apiVersion": API_VERSION,
        "kind": "Hardware",
        "metadata": {
            "name": discovered_name(mac),
            "namespace": rule.osie.namespace,
            "labels": {AUTO_DISCOVERED_LABEL: "true"},
            "annotations": {DISCOVERY_RULE_ANNOTATION: rule.text},
            "finalizers": [DISCOVERY_FINALIZER],
        },
        "spec": {
            "networkInterfaces": {mac: {"dhcp": {**dhcp, "leaseTimeSeconds": LEASE_SECONDS}}},
            "osie": {"name": rule.osie.name},
        },
    }


def _displaceable(hardware: Raw) -> Progress | None:
    """Return the progress, as the status has it, of a Hardware that may have to give way; None if it may not.

    It must be as `discovered_hardware` has made it: an operator may need what an operator has changed.
    """
    if not is_discovered(hardware):
        return None
    metadata, spec = as_mapping(hardware["metadata"]), as_mapping(hardware.get("spec"))
    status, interfaces = as_mapping(hardware.get("status")), _interfaces(hardware)
    state = str(status.get("state") or "")
    is_untouched = (
        as_mapping(metadata.get("labels")) == {AUTO_DISCOVERED_LABEL: "true"}
        and _annotations(hardware).keys() <= {DISCOVERY_RULE_ANNOTATION}
        and [discovered_name(mac) for mac in interfaces] == [metadata.get("name")]
        and spec.keys() <= {"networkInterfaces", "osie"}
        and int(metadata.get("generation") or 1) == 1  # it counts the changes of the spec
    )
    if not is_untouched or status.get("inventory") or metadata.get("deletionTimestamp"):
        return None
    return _PROGRESS_OF_STATES.get(state)


_PROGRESS_OF_STATES: Final = {"": Progress.NONE, "Netbooting": Progress.NONE, "InOSIE": Progress.BOOTING}
"""The least progress of a machine by `status.state`, which any edge may have written. Agents of other states work."""

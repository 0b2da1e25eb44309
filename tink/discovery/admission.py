"""Admission of unknown machines: the rules of `--discover`, and the answers to their DHCP packets. Pure.

A DISCOVER of a machine that no Hardware names is answered by an offer (`Admission.offer`). An offer is stored in memory
alone, holds no address, and creates nothing. The REQUEST for the offered address admits the machine
(`Admission.request`): the caller creates a Hardware for it (`discovered_hardware`). From then on it is served as any
other machine.

    claimed   a Hardware has the MAC address, even one that is being deleted        -> never admitted
    rule      the first rule with its network, relay and MAC address                -> else the reason of the nearest
    list      a rule with only=listed: the MAC address is on a list
    deleted   its discovered Hardware was deleted in the last ten minutes           -> not yet, unless it is on a list
    address   the range has a free one, or a silent machine that may give way       -> else no offer
    share     its link and its port hold no more than half of the free addresses    -> else it waits for a place
    offer     the REQUEST is for the address of its offer, and that is free yet     -> else a NAK, and it begins again
    rate      at most `CREATIONS_PER_SECOND` by this rule                           -> else its next REQUEST decides
    draw      of all machines that wait for a place, chance chooses the next one

Any host can send packets with invented MAC addresses, millions of them. Invented DISCOVERs cost nothing but an answer.
A host that reads the answers, and sends the REQUESTs as well, fills the ranges, and no more. Two rules limit that:

    share     of several links or ports, each holds at most half of the free addresses, so that the others go on
    progress  a machine that has fetched no boot file within `BOOT_FILE_SECONDS` gives way to one that waits for a place

A machine waits for a place if its REQUEST arrives when the range is full. If the place that it gets has another address
than its offer, the answer to its REQUEST is a NAK, and it is offered that address. A machine on a list is drawn before
all others, needs no share, and takes the place of any machine that is on no list and has not introduced itself.
Only a Hardware as the edge has created it gives way: none with an inventory, a Workflow, or a change by an operator.
"""

from __future__ import annotations

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
from itertools import chain, combinations, islice
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
WAIT_SECONDS: Final = 10.0
"""Time after its last REQUEST for which a machine takes part in the draw for a place."""
MAX_WAITING: Final = 4096
"""Maximum number of machines of a rule that take part in it; the ones that were heard last."""
OFFER_SECONDS: Final = 60.0
"""Time for the REQUEST after an offer. EDK2 collects offers for up to 4 s; no client repeats a DISCOVER later than 32 s
after the last one (PXE 2.1 section 2.2.2.2)."""
MAX_OFFERS: Final = 32_768
"""Maximum number of machines whose offer is stored; the ones with the newest offers."""
BOOT_FILE_SECONDS: Final = 30.0
"""Time for an admitted machine to fetch a boot file or a script. Firmware does so within a few seconds of its ACK."""
UNKNOWN_SECONDS: Final = 300.0
"""The same time for a machine of another edge that does not pass its journey on."""
MAX_EXAMINED: Final = 1000
"""Maximum number of places that are examined at a time to find one that gives way."""
_MAX_YIELDING: Final = 8
"""Maximum number of places from which chance chooses the one that gives way. Edges of a site choose different ones."""
_MAX_LINKS_DRAWN: Final = 4
"""Maximum number of links in one draw, until there is one whose machine can be admitted."""
HOSTS_SECONDS: Final = 1.0
"""Time for which the addresses of hosts that are no machines are not computed again."""
RETURNING_SECONDS: Final = 1.0
"""Minimum time after the first packet of a machine from which on it is one that sends again."""
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
    """A netboot client that no Hardware names, and the way by which its packet came.

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
    NO_OFFER = "no-offer"  # the REQUEST is for no address that was offered to the machine
    TAKEN = "taken"  # another machine has taken the offered address
    PLACE = "place"  # a silent machine gives up its place
    RANGE_EXHAUSTED = "range-exhausted"
    SHARE_EXHAUSTED = "share-exhausted"
    REJECTED = "rejected"  # the API rejects its Hardware
    RATE = "rate"
    REGISTERING = "registering"
    API_AWAY = "api-away"


@dataclass(frozen=True, slots=True)
class Offered:
    """The answer to a DISCOVER is an offer of this address. The address is not held for the machine."""

    rule: AdmissionRule
    address: IPv4Address


@dataclass(frozen=True, slots=True)
class Admitted:
    """The machine is admitted by its REQUEST: its Hardware has to be created with this address."""

    rule: AdmissionRule
    address: IPv4Address


@dataclass(frozen=True, slots=True)
class Refused:
    """A DISCOVER gets no answer, and a REQUEST gets a NAK. `text` has the reason and the remedy."""

    reason: AdmissionReason
    text: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """The machine gets no answer yet. `text` has the reason."""

    reason: AdmissionReason
    text: str


Decision = Offered | Admitted | Refused | Waiting


class Progress(IntEnum):
    """The progress of an admitted machine that has not introduced itself."""

    NONE = 0  # it has its address, and has fetched nothing
    UNKNOWN = 1  # another edge serves it, and does not pass its journey on
    BOOTING = 2  # it has fetched a boot file or a script


class ListedMachines(Protocol):
    """The lists of expected machines, as far as admission needs them."""

    def lists_mac(self, mac: str, namespaces: Collection[str]) -> bool:
        """Return True if a line of a list of these namespaces has this MAC address."""

    def names_only_macs(self, namespaces: Collection[str]) -> bool:
        """Return True if every line of these lists has a MAC address, so that a MAC on no line is not expected."""


class Sightings:
    """The times at which MAC addresses were first seen, in a table of a fixed size of 2 MB.

    In a flood of packets with new MAC addresses, a machine that sends again is recognised by it. A new address replaces
    the one that has the same slot. The slots are secret, so no host can choose which address it replaces. Of the
    addresses that are seen, 68 % are still in the table after 100,000 new ones.
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
class _Offer:
    """The last offer to a machine: its rule, the address as a number, and the time."""

    rule: AdmissionRule
    address: int
    at: float


@dataclass(slots=True)
class _Place:
    """A discovered Hardware that may have to give its address to another machine.

    since: the time at which it was created, or first seen by this process.
    """

    key: NamespacedName
    mac: str
    address: int
    since: float
    progress: Progress


class _Range:
    """The addresses of a rule, as bits of integers: the bit n is the n-th address."""

    def __init__(self, rule: AdmissionRule) -> None:
        self.rule = rule
        self.first, self.size = int(rule.first), int(rule.last) - int(rule.first) + 1
        self.all = (1 << self.size) - 1
        self.taken = 0
        """Addresses that a Hardware or a pending machine has."""
        self.hosts = 0
        """Addresses that hosts other than machines have, or that the API has rejected."""
        self.offered = 0
        """Addresses that were offered since each free address was offered."""
        self.silent = self.boots = 0
        """The addresses of `places`, and of `booting`."""
        self.places: dict[NamespacedName, _Place] = {}
        """The Hardware that may have to give way, the oldest first, except those in `booting`."""
        self.booting: dict[NamespacedName, _Place] = {}
        """The Hardware of machines that boot. They give way to machines on lists alone."""

    def bit(self, number: int) -> int:
        """Return the bit of an address; 0 if it is not in the range."""
        return 1 << (number - self.first) if 0 <= number - self.first < self.size else 0

    def place(self, key: NamespacedName) -> _Place | None:
        """Return the place of a Hardware that may have to give way."""
        return self.places.get(key) or self.booting.get(key)

    def put(self, place: _Place) -> None:
        """Store a place, or its new progress."""
        boots = place.progress is Progress.BOOTING
        here, other = (self.booting, self.places) if boots else (self.places, self.booting)
        other.pop(place.key, None)
        here[place.key] = place
        bit = self.bit(place.address)
        self.silent = self.silent & ~bit if boots else self.silent | bit
        self.boots = self.boots | bit if boots else self.boots & ~bit

    def drop(self, place: _Place) -> None:
        """Forget a place."""
        self.places.pop(place.key, None)
        self.booting.pop(place.key, None)
        self.silent &= ~self.bit(place.address)
        self.boots &= ~self.bit(place.address)

    def choose(self, mac: str, free: int) -> int | None:
        """Return an address of `free` (bits): one that was not offered lately, if there is one; None: none is free.

        Edges that see the same machine begin with the same address.
        """
        if not free:
            return None
        if not free & ~self.offered:
            self.offered = 0
        free &= ~self.offered
        start = zlib.crc32(octets(mac)) % self.size
        upper = free >> start
        at = start + _lowest(upper) if upper else _lowest(free)
        return self.first + at


def _lowest(bits: int) -> int:
    """Return the number of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1


@dataclass(frozen=True, slots=True)
class _Claim:
    """The claim of a machine by a rule to an address.

    links: its link and, if known, its port.
    free: the free addresses (bits).
    exhausted: the place in `links` of the link or port that holds its share already; None: neither does.
    """

    mac: str
    rule: AdmissionRule
    links: tuple[_Link, ...]
    is_listed: bool
    free: int
    exhausted: int | None


@dataclass(frozen=True, slots=True)
class _Entrant:
    """A machine that takes part in the draw for a place: the address of its offer, and the time of its REQUEST."""

    claim: _Claim
    address: int
    at: float


class Admission:
    """Decides which unknown machines get an offer, and which are admitted. The owner passes on changes of Hardware."""

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
        salt: determines the slots of the sightings; None: a random one.
        chance: decides the draw; None: an unpredictable one.
        """
        self._rules = tuple(rules)
        self._ranges = {rule.name: _Range(rule) for rule in self._rules}
        self._is_claimed = is_claimed
        self._own_addresses = own_addresses
        self._listed = listed
        self._list_namespaces = frozenset[str]().union(*(rule.list_namespaces for rule in self._rules))
        self._progress = progress
        self._is_in_use = is_in_use
        self._sightings = Sightings(salt)
        self._chance = chance if chance is not None else random.SystemRandom()
        self._creations = TokenBuckets(CREATIONS_PER_SECOND, CREATIONS_PER_SECOND)
        self._displacements = TokenBuckets(MAX_LEAVING, DISPLACEMENTS_PER_SECOND)
        self._offers: Newest[str, _Offer] = Newest(MAX_OFFERS)
        """The last offer to each machine without a Hardware, by MAC address."""
        self._pending: dict[str, Admitted] = {}
        """The admitted machines whose Hardware is not known yet, by MAC address."""
        self._waiting: dict[tuple[str, bool], Newest[str, _Entrant]] = {
            (rule.name, is_listed): Newest(MAX_WAITING) for rule in self._rules for is_listed in (True, False)
        }
        """The machines that take part in the draws of each rule, on lists and on none, by MAC address.

        The one that was heard last is the last."""
        self._leaving: dict[NamespacedName, tuple[_Place, str]] = {}
        """The Hardware that the caller is to delete, until they are gone, and the MAC address of the successor."""
        self._displaced: list[NamespacedName] = []
        self._successors: list[str] = []
        self._addresses: dict[NamespacedName, tuple[int, ...]] = {}
        self._taken: Counter[int] = Counter()
        """The number of Hardware and of pending machines that have an address of a range, by address."""
        self._occupied: Newest[int, float] = Newest(MAX_OCCUPIED)
        """Addresses that the API has rejected, or machines have declined, with the time."""
        self._hosts_at = float("-inf")
        """The time at which `_Range.hosts` was computed."""
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
        """Note a Hardware that was added or changed at `now`, a time of the clock of `offer`."""
        key, interfaces = NamespacedName.of(hardware), _interfaces(hardware)
        for mac in interfaces:
            self._settle(mac)
            self._offers.pop(mac, None)
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
        progress, numbers = _displaceable(hardware), self._addresses.get(key, ())
        addresses = self._range_at(numbers[0]) if numbers else None
        if progress is None or addresses is None:
            self._drop_place(key)
            if not as_mapping(hardware["metadata"]).get("deletionTimestamp"):
                _, successor = self._leaving.pop(key, (None, ""))
                self.give_back(successor)
        elif key not in self._leaving:
            place = addresses.place(key) or _Place(key, next(iter(_interfaces(hardware))), numbers[0], now, progress)
            place.progress = max(place.progress, progress)
            addresses.put(place)

    def _drop_place(self, key: NamespacedName) -> None:
        for addresses in self._ranges.values():
            if (place := addresses.place(key)) is not None:
                addresses.drop(place)

    def remove(self, hardware: Raw, now: float) -> None:
        """Note a Hardware that was deleted at `now`, a time of the clock of `offer`.

        Then the caller calls `take_successors`.
        """
        key, interfaces = NamespacedName.of(hardware), _interfaces(hardware)
        # Of two machines with one address, none is served. The one that loses its Hardware gets another address.
        addresses = self._addresses.get(key, ())
        _, successor = self._leaving.pop(key, (None, ""))
        is_moved = any(self._taken[address] > 1 for address in addresses)
        if has_declined(hardware) and is_discovered(hardware):
            # Another host has the address. The machine gets another one, but declines take a part of a range at most.
            is_moved = is_moved or all(self._may_leave(address, now) for address in addresses)
            self._occupied.update(dict.fromkeys(addresses, now) if is_moved else {})
            self._hosts_at = float("-inf")
        self._set_addresses(key, {}, {})
        self._silent.pop(key, None)
        self._drop_place(key)
        annotations = _annotations(hardware)
        was_discovered = bool(annotations.keys() & {DISCOVERY_RULE_ANNOTATION, DISCOVERED_AS_ANNOTATION})
        for mac in interfaces:
            self._leave(mac)
            # A machine that has given way may be real and slow, and comes back.
            if (was_discovered or is_discovered(hardware)) and not is_moved and not successor:
                self._deleted[mac] = now
        if successor in self._pending:
            self._successors.append(successor)

    def _set_addresses(self, key: NamespacedName, interfaces: Raw, annotations: Raw) -> None:
        texts = [as_mapping(as_mapping(each).get("dhcp")).get("ip") for each in interfaces.values()]
        numbers = map(_number, (*texts, annotations.get(DISCOVERY_ADDRESS_ANNOTATION)))
        found = {each for each in numbers if each is not None and self._range_at(each) is not None}
        for address in self._addresses.pop(key, ()):
            self._release(address)
        if found:
            self._addresses[key] = tuple(found)
            for address in found:
                self._take(address)

    def _range_at(self, address: int) -> _Range | None:
        return next((each for each in self._ranges.values() if each.bit(address)), None)

    def _may_leave(self, address: int, now: float) -> bool:
        """Return True if a declined address may be left unused: most addresses of its range are for machines."""
        addresses = self._range_at(address)
        if addresses is None:
            return True
        self._forget_occupied(now)
        unused = sum(1 for each in self._occupied if addresses.bit(each))
        return unused < max(1, addresses.size // UNUSED_SHARE)

    def _take(self, address: int) -> None:
        self._taken[address] += 1
        if (addresses := self._range_at(address)) is not None:
            addresses.taken |= addresses.bit(address)

    def _release(self, address: int) -> None:
        self._taken[address] -= 1
        if not self._taken[address]:
            del self._taken[address]
            if (addresses := self._range_at(address)) is not None:
                addresses.taken &= ~addresses.bit(address)

    @property
    def silent(self) -> int:
        """The number of discovered Hardware whose machines have not introduced themselves."""
        return len(self._silent)

    def free(self, rule: AdmissionRule, now: float) -> int:
        """Return the number of free addresses of a rule."""
        return self._free(rule, None, now).bit_count()

    # --- decisions ------------------------------------------------------------------------------------------------

    def is_returning(self, mac: bytes, now: float) -> bool:
        """Return True if the MAC address (six bytes) was seen at least a second ago, and note that it was seen."""
        return self._sightings.age(mac, now) >= RETURNING_SECONDS

    def is_listed(self, mac: str) -> bool:
        """Return True if a list that counts for any rule has a MAC address (lower case, colons)."""
        return self._listed is not None and self._listed.lists_mac(mac, self._list_namespaces)

    def has_offer(self, mac: str) -> bool:
        """Return True if a REQUEST of a MAC address (lower case, colons) may admit it, or has admitted it."""
        return mac in self._offers or mac in self._pending

    def offer(self, candidate: Candidate, now: float) -> Decision:
        """Decide about a machine whose DISCOVER arrived at `now` (monotonic seconds).

        The answer to `Offered` is an offer of that address. Each free address is offered once before any is offered
        again, so that machines which boot at the same time get different ones.
        """
        mac = candidate.mac
        if self._is_claimed(mac):
            return Refused(AdmissionReason.CLAIMED, "a Hardware has its MAC address")
        if (pending := self._pending.get(mac)) is not None:
            return Offered(pending.rule, pending.address)
        claim = self._claim(candidate, now)
        if isinstance(claim, Refused):
            return claim
        rule, addresses = claim.rule, self._ranges[claim.rule.name]
        self._hear(rule, claim.links, now)
        refusal = self._refusal(claim)
        bits = claim.free
        if refusal is not None:
            # The address of a machine that may have to give way. Its REQUEST takes part in the draw.
            bits = addresses.silent | (addresses.boots if claim.is_listed else 0)
        before = self._offers.get(mac)
        if before is not None and before.rule is rule and addresses.bit(before.address) & bits:
            address: int | None = before.address
        else:
            address = addresses.choose(mac, bits)
        if address is None:
            return refusal or self._exhausted(rule)
        addresses.offered |= addresses.bit(address)
        self._offers[mac] = _Offer(rule, address, now)
        return Offered(rule, IPv4Address(address))

    def request(self, candidate: Candidate, address: IPv4Address, now: float) -> Decision:
        """Decide about a machine whose REQUEST for `address`, in answer to an offer, arrived at `now`.

        After `Admitted`, the caller creates the Hardware, or calls `give_back`. Then it calls `take_displaced`, and
        deletes these Hardware, whose successors were drawn. A machine that waits may be drawn after a later REQUEST.
        """
        mac = candidate.mac
        if self._is_claimed(mac):
            return Refused(AdmissionReason.CLAIMED, "a Hardware has its MAC address")
        pending = self._pending.get(mac)
        if pending is not None and pending.address == address:
            return Waiting(AdmissionReason.REGISTERING, f"its Hardware {self._key_of(mac)} is being created")
        claim = self._claim(candidate, now)
        if isinstance(claim, Refused):
            return claim
        offer = self._offers.get(mac)
        is_offered = offer is not None and offer.rule is claim.rule and offer.address == int(address)
        if offer is None or not is_offered or now - offer.at > OFFER_SECONDS or pending is not None:
            text = f"{address} was not offered to it in the last {OFFER_SECONDS:.0f} s"
            return Refused(AdmissionReason.NO_OFFER, f"{text}; it begins again with a DISCOVER")
        decision = self._grant(claim, address, now)
        if not isinstance(decision, Waiting):
            del self._offers[mac]
        return decision

    def _claim(self, candidate: Candidate, now: float) -> _Claim | Refused:
        """Return what a machine may claim by the first rule that fits, or the reason why none does."""
        mac, rule = candidate.mac, self._rule_for(candidate)
        if isinstance(rule, Refused):
            return rule
        is_listed = self._is_listed(mac, rule)
        if not is_listed and not self._is_deletion_over(mac, now):
            text = f"its discovered Hardware was deleted less than {DELETED_SECONDS / 60:.0f} minutes ago"
            return Refused(
                AdmissionReason.DELETED, f"{text}; wait, or add its MAC address to a list of expected machines"
            )
        free, links = self._free(rule, candidate, now), _links(rule, candidate)
        kind = None if is_listed else self._exhausted_share(rule, links, free.bit_count(), now)
        return _Claim(mac, rule, links, is_listed, free, kind)

    def _grant(self, claim: _Claim, address: IPv4Address, now: float) -> Decision:
        """Admit a machine if the address that was offered to it is free. Let it wait for a place if none is."""
        rule, key = claim.rule, (claim.rule.name, claim.is_listed)
        refusal = self._refusal(claim)
        if refusal is not None:
            self._waiting[key][claim.mac] = _Entrant(claim, int(address), now)
            self._draw(rule, now)
            if claim.mac in self._pending:
                return Waiting(AdmissionReason.PLACE, "a machine that makes no progress gives up its address")
            return Waiting(refusal.reason, f"it waits for a place: {refusal.text}")
        if not self._ranges[rule.name].bit(int(address)) & claim.free:
            text = f"{address} was offered to several machines, and another one has taken it"
            return Refused(AdmissionReason.TAKEN, f"{text}; it begins again with a DISCOVER")
        if not self._creations.allows(key, now):
            text = f"rule {rule.name} admits {CREATIONS_PER_SECOND:.0f} machines a second"
            return Waiting(AdmissionReason.RATE, f"{text}; the next REQUEST may be in time")
        return self._admit(claim, address)

    def _admit(self, claim: _Claim, address: IPv4Address) -> Admitted:
        self._links_of[claim.mac] = claim.links
        self._held.update(claim.links)
        return self._reserve(claim.mac, Admitted(claim.rule, address))

    def _is_listed(self, mac: str, rule: AdmissionRule) -> bool:
        return self._listed is not None and self._listed.lists_mac(mac, rule.list_namespaces)

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

    def _refusal(self, claim: _Claim) -> Refused | None:
        """Return the reason why there is no free address for a machine; None if there is one."""
        if not claim.free:
            return self._exhausted(claim.rule)
        if claim.exhausted is None:
            return None
        kind = ("link", "port")[claim.exhausted]
        text = f"half of the free addresses of rule {claim.rule.name} are held by machines of its {kind}"
        remedy = "approve or delete discovered machines (kubectl get hardware -l "
        return Refused(
            AdmissionReason.SHARE_EXHAUSTED,
            f"{text}, and the rest is for others; {remedy}{AUTO_DISCOVERED_LABEL}=true), or widen the range",
        )

    def _exhausted(self, rule: AdmissionRule) -> Refused:
        text = f"the range {rule.first}-{rule.last} of rule {rule.name} has no free address"
        remedy = f"approve or delete discovered machines (kubectl get hardware -l {AUTO_DISCOVERED_LABEL}=true)"
        return Refused(AdmissionReason.RANGE_EXHAUSTED, f"{text}; {remedy}, or widen the range")

    # --- places ---------------------------------------------------------------------------------------------------

    def take_displaced(self) -> list[NamespacedName]:
        """Return the Hardware that give way, since the last call. The caller deletes them, or calls `keep`."""
        taken, self._displaced = self._displaced, []
        return taken

    def take_successors(self) -> list[str]:
        """Return the MAC addresses of machines whose places have become free, since the last call.

        `pending` has their admissions. The caller creates their Hardware, or calls `give_back`.
        """
        taken, self._successors = self._successors, []
        return taken

    def is_leaving(self, hardware: NamespacedName) -> bool:
        """Return True if a Hardware gives way: it has not changed since then, and is not gone."""
        return hardware in self._leaving

    def keep(self, hardware: NamespacedName) -> None:
        """Note that a Hardware was not deleted. The machine that was to have its place begins again."""
        place, successor = self._leaving.pop(hardware, (None, ""))
        if place is not None:
            self._put(place, place.progress)
            self.give_back(successor)

    def _may_displace(self, rule: AdmissionRule) -> bool:
        addresses = self._ranges[rule.name]
        return sum(1 for place, _ in self._leaving.values() if addresses.bit(place.address)) < MAX_LEAVING

    def _put(self, place: _Place, progress: Progress) -> None:
        place.progress = progress
        if (addresses := self._range_at(place.address)) is not None:
            addresses.put(place)

    def _draw(self, rule: AdmissionRule, now: float) -> None:
        """Give the place of a silent machine to one of the machines that wait, if a place can be freed now.

        Chance chooses a link first, then a machine of this link.
        """
        entrants, is_listed = self._entrants(rule, now)
        oldest = next(iter(self._ranges[rule.name].places.values()), None)
        if not is_listed and (oldest is None or now - oldest.since < BOOT_FILE_SECONDS):
            return  # the usual case in a flood: all places are young
        if not self._may_displace(rule) or not self._displacements.allows((rule.name, is_listed), now):
            return
        by_link: dict[_Link, list[_Entrant]] = {}
        for each in entrants.values():
            by_link.setdefault(each.claim.links[0], []).append(each)
        for link in self._chance.sample(sorted(by_link), min(len(by_link), _MAX_LINKS_DRAWN)):
            entrant = self._chance.choice(by_link[link])
            claim = entrant.claim
            places = self._yielding(claim, now)
            if not places:
                continue
            place = next((each for each in places if each.address == entrant.address), self._chance.choice(places))
            del entrants[claim.mac]
            if claim.mac in self._pending or self._is_claimed(claim.mac):
                return  # an operator, or another edge, has registered it meanwhile
            self._admit(claim, IPv4Address(place.address))
            self._drop_place(place.key)
            self._leaving[place.key] = place, claim.mac
            self._displaced.append(place.key)
            return

    def _entrants(self, rule: AdmissionRule, now: float) -> tuple[Newest[str, _Entrant], bool]:
        """Return the machines of the next draw: those on lists (True) if there are any, else all others (False)."""
        for is_listed in (True, False):
            entrants = self._waiting[rule.name, is_listed]
            while entrants and now - next(iter(entrants.values())).at > WAIT_SECONDS:
                entrants.popitem(last=False)
            if entrants:
                break
        return entrants, is_listed

    def _yielding(self, claim: _Claim, now: float) -> list[_Place]:
        """Return the places that give way to the machine with this claim: the oldest ones with the least progress."""
        addresses = self._ranges[claim.rule.name]
        found: dict[Progress, list[_Place]] = {each: [] for each in Progress}
        booting = addresses.booting.values() if claim.is_listed else ()
        for place in list(islice(chain(addresses.places.values(), booting), MAX_EXAMINED)):
            if not claim.is_listed and now - place.since < BOOT_FILE_SECONDS:
                break  # all others are younger
            if self._gives_way(place, claim, now):
                found[place.progress].append(place)
                if len(found[Progress.NONE]) >= _MAX_YIELDING:
                    break
        return next(filter(None, found.values()), [])[:_MAX_YIELDING]

    def _gives_way(self, place: _Place, claim: _Claim, now: float) -> bool:
        """Return True if a Hardware gives way to the machine with this claim."""
        age = now - place.since
        if not claim.is_listed and age < BOOT_FILE_SECONDS:
            return False
        # If the share of a link is used up, only Hardware of this link gives way.
        kind = claim.exhausted
        if claim.free and kind is not None and claim.links[kind] not in self._links_of.get(place.mac, ()):
            return False
        if self._is_listed(place.mac, claim.rule) or self._is_in_use(place.key):
            return False
        if place.progress is not Progress.BOOTING:
            progress = self._progress(place.mac)
            if progress is Progress.UNKNOWN and place.mac in self._links_of:
                progress = Progress.NONE  # this edge has admitted it
            self._put(place, progress)
        if claim.is_listed:
            return True
        return place.progress is Progress.NONE or (place.progress is Progress.UNKNOWN and age >= UNKNOWN_SECONDS)

    # --- addresses ------------------------------------------------------------------------------------------------

    def _free(self, rule: AdmissionRule, candidate: Candidate | None, now: float) -> int:
        """Return the free addresses of a rule (bits) for a candidate: those of no machine and of no other host."""
        if now - self._hosts_at >= HOSTS_SECONDS:
            self._find_hosts(now)
        addresses = self._ranges[rule.name]
        free = addresses.all & ~(addresses.taken | addresses.hosts)
        if candidate is not None:
            for each in (candidate.relay, candidate.link):
                free &= ~addresses.bit(int(each)) if each is not None else -1
        return free

    def _find_hosts(self, now: float) -> None:
        """Find the addresses of the ranges that hosts other than machines have, or that the API has rejected."""
        self._hosts_at = now
        self._forget_occupied(now)
        own = [number for each in self._own_addresses() if (number := _number(each)) is not None]
        for addresses in self._ranges.values():
            rule = addresses.rule
            servers = [number for each in rule.nameservers if (number := _number(each)) is not None]
            addresses.hosts = 0
            for number in (*own, *servers, *map(int, rule.relays), *self._occupied):
                addresses.hosts |= addresses.bit(number)

    def _forget_occupied(self, now: float) -> None:
        while self._occupied and now - next(iter(self._occupied.values())) >= OCCUPIED_SECONDS:
            self._occupied.popitem(last=False)

    def reject_address(self, mac: str, now: float) -> Admitted | None:
        """Return another address for an admitted machine, whose first one the API has rejected; None: none is free."""
        before = self._pending.pop(mac, None)
        if before is None:
            return None
        self._release(int(before.address))
        self._occupied[int(before.address)] = now
        self._hosts_at = float("-inf")
        address = self._ranges[before.rule.name].choose(mac, self._free(before.rule, None, now))
        if address is None:
            self._leave(mac)
            return None
        return self._reserve(mac, Admitted(before.rule, IPv4Address(address)))

    def give_back(self, mac: str) -> None:
        """Note that an admitted machine gets no Hardware: its address is free again."""
        self._settle(mac)
        self._leave(mac)

    def pending(self, mac: str) -> Admitted | None:
        """Return the admission of a machine whose Hardware is not known yet."""
        return self._pending.get(mac)

    def _reserve(self, mac: str, admitted: Admitted) -> Admitted:
        self._pending[mac] = admitted
        self._take(int(admitted.address))
        return admitted

    def _settle(self, mac: str) -> None:
        pending = self._pending.pop(mac, None)
        if pending is not None:
            self._release(int(pending.address))

    def _key_of(self, mac: str) -> NamespacedName:
        return NamespacedName(self._pending[mac].rule.osie.namespace, discovered_name(mac))

    def _exhausted_share(self, rule: AdmissionRule, links: tuple[_Link, ...], free: int, now: float) -> int | None:
        """Return the place in `links` of the link or port that holds its share already, or None."""
        for kind, link in enumerate(links):
            held = self._held[link]
            # The first machine of a link always gets an address, even if the range has only one.
            if held and (held + 1) * 2 > free + held and self._hears_others(rule, kind, link, now):
                return kind
        return None

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

"""Rules of `--discover`, and the decision about each unknown machine."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest

from tests.support import objects
from tink.api.annotations import AUTO_DISCOVERED_LABEL, DISCOVERED_AS_ANNOTATION, DISCOVERY_ADDRESS_ANNOTATION
from tink.api.v1alpha2 import Raw
from tink.discovery.admission import (
    BOOT_FILE_SECONDS,
    CREATIONS_PER_SECOND,
    DELETED_SECONDS,
    LINK_SECONDS,
    MAX_LEAVING,
    MAX_OFFERS,
    OCCUPIED_SECONDS,
    OFFER_SECONDS,
    UNKNOWN_SECONDS,
    UNUSED_SHARE,
    WAIT_SECONDS,
    Admission,
    AdmissionReason,
    Admitted,
    Candidate,
    Offered,
    Progress,
    Refused,
    Sightings,
    Waiting,
    discovered_hardware,
    read_rule,
    rule_conflicts,
)
from tink.discovery.model import AdmissionRule, RuleError, counts, discovered_name, list_namespaces
from tink.kube.objects import NamespacedName

MAC = "52:54:00:00:00:01"
HERE = (IPv4Network("10.77.0.0/24"),)
RANGE = "range=10.77.0.100-10.77.0.149/24,osie=hook"


def mac(number: int) -> str:
    return f"52:54:00:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}"


def candidate(at: str = MAC, *, relay: str = "", link: str = "", **fields: Any) -> Candidate:
    """Return a candidate at the interface of the edge, or behind a relay."""
    return Candidate(
        at,
        fields.pop("networks", () if relay else HERE),
        IPv4Address(relay) if relay else None,
        IPv4Address(link or relay) if link or relay else None,
        **fields,
    )


class Lists:
    """Lists of expected machines with these MAC addresses; `serials`: other lines name machines by serial number."""

    def __init__(self, *macs: str, serials: bool = False, namespace: str = "default") -> None:
        self.macs = macs
        self.serials = serials
        self.namespace = namespace

    def lists_mac(self, mac: str, namespaces: Collection[str]) -> bool:
        return mac in self.macs and counts(self.namespace, namespaces)

    def names_only_macs(self, namespaces: Collection[str]) -> bool:
        return not (self.serials and counts(self.namespace, namespaces))


class Site:
    """An admission with the Hardware of an API; time is moved by the test."""

    def __init__(self, *rules: str, listed: Lists | None = None, own: tuple[str, ...] = ("10.77.0.1",)) -> None:
        self.rules = [read_rule(each) for each in rules or (RANGE,)]
        self.hardware: dict[NamespacedName, Raw] = {}
        self.now = 1000.0
        self.progress: dict[str, Progress] = {}
        self.workflows: set[NamespacedName] = set()
        self.admission = Admission(
            self.rules,
            lambda mac: mac in self.macs,
            own_addresses=lambda: own,
            listed=listed,
            progress=lambda mac: self.progress.get(mac, Progress.NONE),
            is_in_use=lambda key: key in self.workflows,
            salt=1,
            chance=random.Random(7),
        )

    @property
    def macs(self) -> set[str]:
        return {mac for each in self.hardware.values() for mac in each["spec"]["networkInterfaces"]}

    def put(self, obj: Raw) -> None:
        self.hardware[NamespacedName.of(obj)] = obj
        self.admission.apply(obj, self.now)

    def remove(self, obj: Raw) -> None:
        del self.hardware[NamespacedName.of(obj)]
        self.admission.remove(obj, self.now)

    def offer(self, at: Candidate) -> Any:
        """Return the decision about a DISCOVER of a candidate."""
        return self.admission.offer(at, self.now)

    def ask(self, at: Candidate) -> Any:
        """Return the decision about the REQUEST of a candidate for its offer; without an offer, about its DISCOVER."""
        offered = self.offer(at)
        if not isinstance(offered, Offered):
            return offered
        self.now += 1
        return self.admission.request(at, offered.address, self.now)

    def register(self, at: Candidate, **status: Any) -> Raw:
        """Admit a machine, and create its Hardware."""
        decision = self.ask(at)
        assert isinstance(decision, Admitted), decision
        obj = discovered_hardware(at.mac, decision.rule, decision.address)
        if status:
            obj["status"] = status
        self.put(obj)
        return obj

    def free(self) -> int:
        return self.admission.free(self.rules[0], self.now)


def address_of(obj: Raw) -> str:
    (interface,) = obj["spec"]["networkInterfaces"].values()
    return str(interface["dhcp"]["ip"])


# --- rules ------------------------------------------------------------------------------------------------------------


def test_rule_has_all_its_parts() -> None:
    rule = read_rule(
        "range=172.31.8.10-172.31.8.250/24, gateway=172.31.8.1,nameserver=172.31.8.1,nameserver=9.9.9.9,"
        "osie=berlin/hook,mac=52:54:00,mac=AA-BB,relay=10.1.0.1,only=listed,lists=berlin,lists=racks,name=rack7"
    )
    assert rule == AdmissionRule(
        "rack7",
        IPv4Network("172.31.8.0/24"),
        IPv4Address("172.31.8.10"),
        IPv4Address("172.31.8.250"),
        NamespacedName("berlin", "hook"),
        IPv4Address("172.31.8.1"),
        ("172.31.8.1", "9.9.9.9"),
        ("52:54:00", "aa:bb"),
        (IPv4Address("10.1.0.1"),),
        listed_only=True,
        lists=("berlin", "racks"),
    )


def test_rule_without_a_name_has_that_of_its_range() -> None:
    rule = read_rule(RANGE)
    assert (rule.name, rule.osie, rule.listed_only) == ("10.77.0.100-10.77.0.149", ("default", "hook"), False)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "range= is missing"),
        ("range=10.0.0.5-10.0.0.9/24", "osie= is missing"),
        ("osie=hook", "range= is missing"),
        ("hook", "'hook' is no part of a rule"),
        ("subnet=10.0.0.0/24", "'subnet=10.0.0.0/24' is no part of a rule"),
        ("osie=", "osie= has no value"),
        ("osie=hook,osie=other", "osie= is given 2 times"),
        ("range=10.0.0.5-10.0.0.9,osie=hook", "write FIRST-LAST/BITS"),
        ("range=10.0.0.5/24,osie=hook", "write FIRST-LAST/BITS"),
        ("range=10.0.0.500-10.0.0.9/24,osie=hook", "range=10.0.0.500: write an IPv4 address"),
        ("range=10.0.0.5-10.0.0.9/33,osie=hook", "/33 is no length"),
        ("range=10.0.0.5-10.0.1.9/24,osie=hook", "10.0.1.9 is not in 10.0.0.0/24"),
        ("range=10.0.0.9-10.0.0.5/24,osie=hook", "10.0.0.5 is before 10.0.0.9"),
        ("range=10.0.0.1-10.1.0.1/8,osie=hook", "at most 65536 addresses"),
        ("range=10.0.0.1-10.0.0.255/24,osie=hook", "10.0.0.255, the broadcast address"),
        ("range=10.0.0.0-10.0.0.9/24,osie=hook", "10.0.0.0, the network address"),
        (f"{RANGE},gateway=10.78.0.1", "gateway=10.78.0.1 is not in 10.77.0.0/24"),
        (f"{RANGE},gateway=10.77.0.120", "gateway=10.77.0.120 is in the range"),
        (f"{RANGE},gateway=router", "gateway=router: write an IPv4 address"),
        (f"{RANGE},nameserver=0.0.0.0", "nameserver=0.0.0.0 is not the address of one host"),
        (f"{RANGE},relay=224.0.0.1", "relay=224.0.0.1 is not the address of one host"),
        (f"{RANGE},mac=52:5", "mac=52:5: write the first bytes"),
        (f"{RANGE},mac=52:54:00:12:34:56:78", "write the first bytes"),
        (f"{RANGE},only=known", "only=known: write only=listed"),
        (f"{RANGE},approve=yes", "approve=yes: write approve=all"),
        (f"{RANGE},approve=all,only=listed", "contradict each other"),
        (f"{RANGE},lists=Racks", "lists=Racks: write the namespace"),
        (f"{RANGE},lists=*,lists=racks", "leave the other lists= out"),
        (f"{RANGE},name=rack 7", "name=rack 7: write at most 63"),
        (f"{RANGE},name={'a' * 64}", "write at most 63"),
        ("range=10.0.0.5-10.0.0.9/24,osie=Hook", "osie=Hook is not the name of an OSIE"),
        ("range=10.0.0.5-10.0.0.9/24,osie=/hook", "osie=/hook is not the name of an OSIE"),
        ("range=10.0.0.5-10.0.0.9/24,osie=a/b/c", "osie=a/b/c is not the name of an OSIE"),
        (RANGE + ",mac=52" * 17, "mac= is given more than 16 times"),
        (RANGE + "," * 2000, "at most 2000 characters"),
    ],
)
def test_error_of_a_rule_names_the_part_and_the_remedy(text: str, part: str) -> None:
    with pytest.raises(RuleError) as raised:
        read_rule(text)
    message = str(raised.value)
    assert part in message
    assert len(message) < 400
    assert ":" in message


def test_range_may_be_a_whole_network_without_network_address() -> None:
    rule = read_rule("range=10.0.0.4-10.0.0.5/31,osie=hook")
    assert (str(rule.first), str(rule.last), str(rule.network)) == ("10.0.0.4", "10.0.0.5", "10.0.0.4/31")


def test_rules_of_one_edge_do_not_contradict_each_other() -> None:
    one, other = read_rule(f"{RANGE},name=a"), read_rule("range=10.77.0.149-10.77.0.160/24,osie=hook,name=b")
    third = read_rule("range=10.77.0.150-10.77.0.160/24,osie=hook,name=a")
    assert [seen for seen, _ in rule_conflicts([one, other])] == [
        "the ranges 10.77.0.100-10.77.0.149 and 10.77.0.149-10.77.0.160 overlap"
    ]
    assert [seen for seen, _ in rule_conflicts([one, third])] == ["two rules have the name a"]
    assert list(rule_conflicts([one, read_rule("range=10.77.0.150-10.77.0.160/24,osie=hook")])) == []
    (seen,) = [seen for seen, _ in rule_conflicts([one] * 65) if "65 rules" in seen]
    assert seen


# --- offers and requests ----------------------------------------------------------------------------------------------


def test_offer_creates_nothing_and_holds_no_address() -> None:
    site = Site()
    free = site.free()
    offered = site.offer(candidate())
    assert isinstance(offered, Offered)
    assert offered.rule == site.rules[0]
    assert site.rules[0].first <= offered.address <= site.rules[0].last
    assert site.free() == free
    assert site.admission.pending(MAC) is None


def test_request_for_its_offer_admits_a_machine() -> None:
    site = Site()
    offered = site.offer(candidate())
    free = site.free()
    assert site.admission.request(candidate(), offered.address, site.now) == Admitted(offered.rule, offered.address)
    assert site.free() == free - 1
    assert site.admission.pending(MAC) == Admitted(offered.rule, offered.address)


def test_machine_gets_the_same_offer_again_and_another_one_if_it_was_taken() -> None:
    site = Site()
    first = site.offer(candidate())
    site.now += 4
    assert site.offer(candidate()) == first
    site.put(objects.hardware("m1", mac(9), str(first.address)))
    assert site.offer(candidate()).address != first.address


def test_machines_that_boot_at_the_same_time_get_different_offers() -> None:
    site = Site()
    offers = [site.offer(candidate(mac(number))).address for number in range(50)]
    assert len(set(offers)) == 50


def test_address_is_offered_to_several_machines_in_a_flood_and_the_first_request_takes_it() -> None:
    site = Site(SMALL)
    offers = {mac(number): site.offer(candidate(mac(number))).address for number in range(6)}
    one, other = (each for each in offers if offers[each] == offers[mac(0)])
    assert isinstance(site.admission.request(candidate(one), offers[one], site.now), Admitted)
    refused = site.admission.request(candidate(other), offers[other], site.now)
    assert (refused.reason, type(refused)) == (AdmissionReason.TAKEN, Refused)
    assert isinstance(site.ask(candidate(other)), Admitted), "it begins again, with another address"


@pytest.mark.parametrize("seconds", [None, OFFER_SECONDS + 1], ids=["no offer", "an old offer"])
def test_request_without_an_offer_is_refused(seconds: float | None) -> None:
    site = Site()
    address = site.rules[0].first
    if seconds is not None:
        address = site.offer(candidate()).address
        site.now += seconds
    assert site.admission.request(candidate(), address, site.now).reason is AdmissionReason.NO_OFFER


def test_request_for_another_address_than_its_offer_is_refused() -> None:
    site = Site()
    offered = site.offer(candidate())
    assert site.admission.request(candidate(), offered.address + 1, site.now).reason is AdmissionReason.NO_OFFER


def test_machine_waits_while_its_hardware_is_created_and_its_address_is_offered_to_it_again() -> None:
    site = Site()
    admitted = site.ask(candidate())
    assert isinstance(admitted, Admitted)
    site.now += 3
    assert site.admission.request(candidate(), admitted.address, site.now).reason is AdmissionReason.REGISTERING
    assert site.offer(candidate()) == Offered(admitted.rule, admitted.address)
    assert site.admission.has_offer(MAC)


def test_machine_that_sends_again_is_recognised_for_ten_minutes() -> None:
    site, sender = Site(), bytes.fromhex(MAC.replace(":", ""))
    site.now = 8191.5  # the counter of the table wraps
    assert not site.admission.is_returning(sender, site.now)
    assert not site.admission.is_returning(sender, site.now + 0.5)
    assert site.admission.is_returning(sender, site.now + 4)
    assert not site.admission.is_returning(sender, site.now + Sightings.MAX_SECONDS + 1)


# --- rules match ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "at", "reason"),
    [
        (RANGE, candidate(), None),
        (RANGE, candidate(networks=(IPv4Network("10.78.0.0/24"),)), AdmissionReason.NO_RULE),
        (RANGE, candidate(networks=()), AdmissionReason.NO_RULE),
        (RANGE, candidate(networks=(IPv4Network("10.78.0.0/24"), *HERE)), None),
        (RANGE, candidate(relay="10.77.0.2"), None),
        (RANGE, candidate(relay="10.78.0.2"), AdmissionReason.NO_RULE),
        (RANGE, candidate(relay="10.78.0.2", networks=HERE), AdmissionReason.NO_RULE),
        (RANGE, candidate(relay="192.0.2.1", link="10.77.0.0"), None),
        (RANGE, candidate(relay="10.77.0.2", link="10.78.0.0"), AdmissionReason.NO_RULE),
        (f"{RANGE},relay=10.77.0.2", candidate(relay="10.77.0.2"), None),
        (f"{RANGE},relay=10.77.0.2,relay=10.77.0.3", candidate(relay="10.77.0.3"), None),
        (f"{RANGE},relay=10.77.0.2", candidate(relay="10.77.0.3"), AdmissionReason.OTHER_RELAY),
        (f"{RANGE},relay=10.77.0.2", candidate(), AdmissionReason.OTHER_RELAY),
        (f"{RANGE},mac=52:54:00", candidate(), None),
        (f"{RANGE},mac=aa,mac=52:54", candidate(), None),
        (f"{RANGE},mac=aa:bb:cc", candidate(), AdmissionReason.OTHER_MAC),
        (f"{RANGE},only=listed", candidate(), AdmissionReason.NOT_LISTED),
    ],
)
def test_rule_admits_machines_of_its_network_relay_and_mac(
    rule: str, at: Candidate, reason: AdmissionReason | None
) -> None:
    decision = Site(rule).ask(at)
    assert (None if isinstance(decision, Admitted) else decision.reason) == reason


@pytest.mark.parametrize(
    ("lists", "is_admitted"),
    [(Lists(MAC), True), (Lists(mac(9)), False), (Lists(), False), (Lists(mac(9), serials=True), True)],
)
def test_rule_for_listed_machines_admits_those_that_a_list_may_name(lists: Lists, is_admitted: bool) -> None:
    decision = Site(f"{RANGE},only=listed", listed=lists).ask(candidate())
    assert isinstance(decision, Admitted) == is_admitted


@pytest.mark.parametrize(
    ("lists", "is_admitted"), [("", False), (",lists=racks", True), (",lists=*", True), (",lists=default", False)]
)
@pytest.mark.parametrize("named", [True, False], ids=["its MAC", "a serial number"])
def test_only_lists_of_the_namespaces_of_a_rule_count(lists: str, is_admitted: bool, named: bool) -> None:
    listed = Lists(MAC if named else mac(9), serials=not named, namespace="racks")
    decision = Site(f"{RANGE},only=listed{lists}", listed=listed).ask(candidate())
    assert isinstance(decision, Admitted) == is_admitted
    if not is_admitted:
        assert "add it to a ConfigMap in namespace default with the label" in decision.text


@pytest.mark.parametrize(
    ("rule", "annotation", "namespaces"),
    [
        (RANGE, "rack7", {"default"}),
        (f"{RANGE},only=listed", "rack7,only=listed", {"default"}),
        (f"{RANGE},approve=all", "rack7,approve=all", {"default"}),
        (f"{RANGE},lists=*", "rack7,lists=*", {"*"}),
        (f"{RANGE},only=listed,lists=a,lists=b", "rack7,only=listed,lists=a,lists=b", {"a", "b"}),
    ],
)
def test_hardware_keeps_which_lists_count_until_its_machine_is_approved(
    rule: str, annotation: str, namespaces: set[str]
) -> None:
    obj = discovered_hardware(MAC, read_rule(f"{rule},name=rack7"), IPv4Address("10.77.0.100"))
    assert obj["metadata"]["annotations"] == {"tinkerbell.org/discovery-rule": annotation}
    assert list_namespaces(obj) == namespaces
    obj["metadata"]["labels"] = {}
    assert list_namespaces(obj) == {"default"}


def test_first_rule_that_matches_admits() -> None:
    site = Site(
        "range=10.77.0.10-10.77.0.19/24,osie=hook,mac=aa,name=a",
        "range=10.77.0.20-10.77.0.29/24,osie=hook,mac=52,name=b",
        "range=10.77.0.30-10.77.0.39/24,osie=hook,name=c",
    )
    assert site.ask(candidate()).rule.name == "b"


def test_reason_is_that_of_the_nearest_rule() -> None:
    site = Site("range=10.78.0.10-10.78.0.19/24,osie=hook,name=a", f"{RANGE},mac=aa,name=b")
    refused = site.offer(candidate())
    assert refused.text == (
        "rule b is for MAC addresses that begin with aa; add mac=52:54:00 to the rule, or create its Hardware"
    )


# --- registered machines ----------------------------------------------------------------------------------------------


def test_machine_of_a_hardware_is_never_admitted() -> None:
    site = Site()
    site.put(objects.hardware("m1", MAC, "10.77.0.5"))
    assert site.ask(candidate()).reason is AdmissionReason.CLAIMED
    site.put(objects.hardware("m1", MAC, "10.77.0.5", metadata={"deletionTimestamp": objects.CREATED}))
    assert site.ask(candidate()).reason is AdmissionReason.CLAIMED


def test_admission_ends_when_another_hardware_takes_the_mac() -> None:
    site = Site()
    free = site.free()
    assert isinstance(site.ask(candidate()), Admitted)
    assert site.free() == free - 1
    site.put(objects.hardware("m1", MAC, "10.77.0.5"))
    assert site.admission.pending(MAC) is None
    assert site.free() == free


# --- addresses --------------------------------------------------------------------------------------------------------


def test_no_address_of_another_host_is_given() -> None:
    """Eight addresses of a range of ten belong to others."""
    text = "range=10.77.0.1-10.77.0.10/24,osie=hook,nameserver=10.77.0.3,nameserver=9.9.9.9"
    site = Site(f"{text},relay=10.77.0.4,relay=10.77.0.9", own=("10.77.0.1", "10.77.0.2", "fd00::1", "192.0.2.1"))
    site.put(objects.hardware("m5", mac(5), "10.77.0.5", annotations={DISCOVERY_ADDRESS_ANNOTATION: "10.77.0.6"}))
    site.put(objects.hardware("m7", mac(7), None, annotations={DISCOVERY_ADDRESS_ANNOTATION: "10.77.0.7/24"}))
    given = {address_of(site.register(candidate(mac(n), relay="10.77.0.9"))) for n in (20, 21)}
    assert given == {"10.77.0.8", "10.77.0.10"}
    assert site.free() == 0
    assert site.ask(candidate(mac(22), relay="10.77.0.9")).reason is AdmissionReason.RANGE_EXHAUSTED


def test_edges_that_see_a_machine_offer_the_same_address() -> None:
    one, other = Site(), Site()
    for number in range(30):
        assert one.offer(candidate(mac(number))).address == other.offer(candidate(mac(number))).address


def test_whole_range_is_given_and_given_again() -> None:
    site = Site("range=10.77.0.10-10.77.0.19/24,osie=hook")
    made = [site.register(candidate(mac(number))) for number in range(10)]
    assert len({address_of(each) for each in made}) == 10
    assert site.ask(candidate(mac(11))).reason is AdmissionReason.RANGE_EXHAUSTED
    site.remove(made[3])
    assert address_of(site.register(candidate(mac(11)))) == address_of(made[3])


def test_rejected_address_is_not_tried_again_for_a_while() -> None:
    site = Site("range=10.77.0.10-10.77.0.11/24,osie=hook")
    first = site.ask(candidate())
    second = site.admission.reject_address(MAC, site.now)
    assert second is not None
    assert second.address != first.address
    assert site.admission.reject_address(MAC, site.now) is None
    assert site.ask(candidate()).reason is AdmissionReason.RANGE_EXHAUSTED
    site.now += OCCUPIED_SECONDS
    assert isinstance(site.ask(candidate()), Admitted)


def test_address_that_is_given_back_is_free() -> None:
    site = Site()
    free = site.free()
    site.ask(candidate())
    site.admission.give_back(MAC)
    assert site.free() == free
    assert isinstance(site.ask(candidate()), Admitted)


def test_counts_of_addresses_follow_any_history() -> None:
    """Random changes of Hardware: the number of free addresses stays that of a full count, and none is given twice."""
    chance = random.Random(7)
    site = Site("range=10.77.0.10-10.77.0.29/24,osie=hook", own=())
    for _ in range(3000):
        site.now += 1.2
        at = candidate(mac(chance.randrange(40)), relay=chance.choice(["", "10.77.0.2", "10.77.0.3"]))
        names = sorted(site.hardware)
        match chance.randrange(6):
            case 0 | 1 | 2:
                decision = site.ask(at)
                if isinstance(decision, Admitted) and chance.random() < 0.8:
                    site.put(discovered_hardware(at.mac, decision.rule, decision.address))
                elif isinstance(decision, Admitted) and chance.random() < 0.5:
                    site.admission.give_back(at.mac)
                for key in site.admission.take_displaced():
                    if chance.random() < 0.5:
                        site.remove(site.hardware[key])
                    else:
                        site.admission.keep(key)
                for successor in site.admission.take_successors():
                    admitted = site.admission.pending(successor)
                    assert admitted is not None
                    site.put(discovered_hardware(successor, admitted.rule, admitted.address))
            case 3 if names:
                site.remove(site.hardware[chance.choice(names)])
            case 4 if names:
                site.put(site.hardware[chance.choice(names)] | {"status": {"inventory": {"inBand": {}}}})
            case _:
                site.admission.reject_address(at.mac, site.now)
        taken = [address_of(each) for each in site.hardware.values()]
        taken += [str(each.address) for each in site.admission._pending.values()]
        assert len(set(taken)) == len(taken)
        free = site.free()
        occupied = {str(IPv4Address(each)) for each in site.admission._occupied}
        assert free == 20 - len({*taken, *occupied})
        silent = {key for key, each in site.hardware.items() if "status" not in each}
        assert site.admission.silent == len(silent)
        assert all(count > 0 for count in site.admission._held.values())


# --- shares and rates -------------------------------------------------------------------------------------------------


def fill(site: Site, count: int, **where: Any) -> int:
    """Let invented machines send DISCOVER and REQUEST; return the number that were admitted."""
    admitted = 0
    for _ in range(count):
        at = candidate(mac(len(site.hardware) + 1000), **where)
        decision = site.ask(at)
        if isinstance(decision, Admitted):
            admitted += 1
            site.put(discovered_hardware(at.mac, decision.rule, decision.address))
    return admitted


def test_only_link_may_fill_the_range() -> None:
    assert fill(Site(), 60) == 50


def test_one_of_several_links_holds_at_most_half_of_the_range() -> None:
    site = Site()
    site.register(candidate(mac(1), relay="10.77.0.3"))
    assert fill(site, 60, relay="10.77.0.2") == 24
    site.progress = dict.fromkeys(site.macs, Progress.BOOTING)
    refused = site.ask(candidate(mac(2), relay="10.77.0.2"))
    assert refused.reason is AdmissionReason.SHARE_EXHAUSTED
    assert "kubectl get hardware -l tinkerbell.org/auto-discovered=true" in refused.text
    assert isinstance(site.ask(candidate(mac(2), relay="10.77.0.3")), Admitted)


def test_one_port_holds_at_most_half_of_what_its_link_may_have() -> None:
    site = Site()
    site.register(candidate(mac(1), circuit=b"port 1"))
    assert fill(site, 60, circuit=b"port 2") == 24
    assert isinstance(site.ask(candidate(mac(2), circuit=b"port 3")), Admitted)


def test_invented_ports_do_not_enlarge_the_share_of_a_link() -> None:
    site = Site()
    site.register(candidate(mac(1), relay="10.77.0.3"))
    admitted = sum(fill(site, 1, relay="10.77.0.2", circuit=b"%d" % number) for number in range(60))
    assert admitted == 24


def test_first_machine_of_a_link_gets_the_last_address() -> None:
    site = Site("range=10.77.0.10-10.77.0.11/24,osie=hook")
    site.register(candidate(mac(1), relay="10.77.0.2"))
    assert isinstance(site.ask(candidate(mac(2), relay="10.77.0.3")), Admitted)


def test_machines_that_have_introduced_themselves_leave_their_share() -> None:
    site = Site()
    site.register(candidate(mac(1), relay="10.77.0.3"))
    for number in range(40):
        obj = site.register(candidate(mac(number + 10), relay="10.77.0.2"))
        site.put(obj | {"status": {"inventory": {"inBand": {"product": {}}}}})
    assert (site.admission.silent, len(site.hardware)) == (1, 41)


def test_link_that_was_silent_for_an_hour_leaves_its_share() -> None:
    site = Site()
    first = site.register(candidate(mac(1), relay="10.77.0.3"))
    site.now += LINK_SECONDS
    site.remove(first)
    assert fill(site, 60, relay="10.77.0.2") == 50


def test_rate_of_admissions_is_limited_for_each_rule() -> None:
    site = Site(
        "range=10.77.0.10-10.77.99.200/16,osie=hook,mac=52:54:00:00,name=a",
        "range=10.77.100.10-10.77.255.200/16,osie=hook,name=b",
    )
    networks = (IPv4Network("10.77.0.0/16"),)
    machines = [candidate(mac(number), networks=networks) for number in range(90)]
    others = [candidate(f"aa:00:00:00:00:{number:02x}", networks=networks) for number in range(10)]
    offers = {each.mac: site.offer(each).address for each in (*machines, *others)}
    decisions = [site.admission.request(each, offers[each.mac], site.now) for each in machines]
    assert sum(isinstance(each, Admitted) for each in decisions) == CREATIONS_PER_SECOND
    (reason,) = {each.reason for each in decisions if not isinstance(each, Admitted)}
    assert reason is AdmissionReason.RATE
    of_others = [site.admission.request(each, offers[each.mac], site.now) for each in others]
    assert all(isinstance(each, Admitted) for each in of_others), "the other rule has a rate of its own"
    site.now += 4
    repeated = [site.admission.request(each, offers[each.mac], site.now) for each in machines[20:]]
    assert sum(isinstance(each, Admitted) for each in repeated) == CREATIONS_PER_SECOND, "their REQUESTs come again"


# --- places -----------------------------------------------------------------------------------------------------------

SMALL = "range=10.77.0.10-10.77.0.12/24,osie=hook"
"""A range of three addresses."""


def key_of(obj: Raw) -> NamespacedName:
    return NamespacedName.of(obj)


def full(listed: Lists | None = None, **where: Any) -> tuple[Site, list[Raw]]:
    """Return a site whose range is full of machines that were admitted a second after each other."""
    site = Site(SMALL, listed=listed)
    made = []
    for number in range(3):
        made.append(site.register(candidate(mac(number + 10), **where)))
        site.now += 1
    site.now = 1100.0
    return site, made


def test_machine_takes_the_place_of_a_silent_machine() -> None:
    site, made = full()
    offered = site.offer(candidate())
    decision = site.admission.request(candidate(), offered.address, site.now)
    assert decision.reason is AdmissionReason.PLACE
    ((key,), pending) = site.admission.take_displaced(), site.admission.pending(MAC)
    (obj,) = [each for each in made if key_of(each) == key]
    assert pending is not None
    assert str(pending.address) == address_of(obj) == str(offered.address)
    assert site.admission.take_displaced() == []
    assert site.admission.is_leaving(key)
    assert site.admission.take_successors() == []
    site.remove(obj)
    assert site.admission.take_successors() == [MAC], "it need not send again"


def test_offers_of_a_full_range_displace_nothing() -> None:
    site, _ = full()
    for number in range(1000):
        assert isinstance(site.offer(candidate(mac(number + 100))), Offered)
    assert site.admission.take_displaced() == []


def test_machine_has_half_a_minute_for_its_boot_file() -> None:
    site, made = full()
    site.now = 1001.0 + BOOT_FILE_SECONDS - 2  # the first was registered at 1001
    waiting = site.ask(candidate())
    assert (waiting.reason, type(waiting)) == (AdmissionReason.RANGE_EXHAUSTED, Waiting)
    assert waiting.text.startswith("it waits for a place: the range")
    site.now += 0.5
    assert site.ask(candidate()).reason is AdmissionReason.PLACE
    assert site.admission.take_displaced() == [key_of(made[0])]


def test_machine_that_waits_is_drawn_at_the_request_of_another_one_and_gets_its_address() -> None:
    site, made = full()
    site.now = 1001.0 + BOOT_FILE_SECONDS - 2
    waiting = [candidate(mac(number + 100)) for number in range(2)]
    assert {site.ask(each).reason for each in waiting} == {AdmissionReason.RANGE_EXHAUSTED}
    site.now += 3
    site.ask(candidate())
    site.remove(made[0])
    (mac_drawn,) = site.admission.take_successors()
    assert mac_drawn in {MAC, *(each.mac for each in waiting)}
    assert str(site.admission.pending(mac_drawn).address) == address_of(made[0])  # type: ignore[union-attr]


def test_machine_whose_last_request_is_too_old_is_not_drawn() -> None:
    site, made = full()
    site.now = 1001.0 + BOOT_FILE_SECONDS - 12
    for number in range(100):
        site.ask(candidate(mac(number + 100)))
        site.now -= 1
    site.now += WAIT_SECONDS + 2
    assert site.ask(candidate()).reason is AdmissionReason.PLACE
    assert made


def test_each_waiting_machine_has_the_same_chance() -> None:
    """One of ten waiting machines sends a hundred times as many packets. It is not drawn more often."""
    drawn = dict.fromkeys(range(10), 0)
    for turn in range(300):
        site, _ = full()
        site.admission._chance.seed(turn)
        site.now = 1001.0 + BOOT_FILE_SECONDS - 5  # the first place is free for them after 5 s
        waiting = [candidate(mac(number + 100)) for number in range(10)]
        for each in (*waiting, *[waiting[3]] * 100):
            offered = site.offer(each)
            site.admission.request(each, offered.address, site.now)
        site.admission.request(waiting[0], site.offer(waiting[0]).address, site.now + 6)
        (key,) = site.admission.take_displaced()
        site.remove(site.hardware[key])
        (mac_drawn,) = site.admission.take_successors()
        drawn[[each.mac for each in waiting].index(mac_drawn)] += 1
    assert all(12 <= count <= 55 for count in drawn.values()), drawn


def test_machine_of_another_link_is_drawn_as_often_as_those_of_a_flooded_link() -> None:
    count = 0
    for turn in range(100):
        site, _ = full(relay="10.77.0.4")
        site.admission._chance.seed(turn)
        site.now = 1001.0 + BOOT_FILE_SECONDS - 5  # the first place is free for them after 5 s
        waiting = [candidate(mac(number + 100), relay="10.77.0.2") for number in range(200)]
        waiting.append(candidate(relay="10.77.0.3"))
        for each in waiting:
            site.admission.request(each, site.offer(each).address, site.now)
        site.admission.request(waiting[0], site.offer(waiting[0]).address, site.now + 6)
        site.remove(site.hardware[site.admission.take_displaced()[0]])
        count += site.admission.take_successors() == [MAC]
    assert 30 < count < 70


def test_machine_of_another_edge_gives_way_after_five_minutes_and_after_all_others() -> None:
    site = Site(SMALL)
    rule = site.rules[0]
    for number in range(3):
        site.put(discovered_hardware(mac(number + 10), rule, rule.first + number))
    site.progress = {mac(10): Progress.UNKNOWN, mac(11): Progress.UNKNOWN}
    site.now += 100
    site.ask(candidate())
    (key,) = site.admission.take_displaced()
    assert key.name == discovered_name(mac(12))
    site.now += 100
    assert site.ask(candidate(mac(2))).reason is AdmissionReason.RANGE_EXHAUSTED
    site.now += UNKNOWN_SECONDS
    assert site.ask(candidate(mac(3))).reason is AdmissionReason.PLACE


def test_machine_that_this_edge_has_admitted_gives_way_though_its_journey_has_nothing() -> None:
    site, _ = full()
    site.progress = {mac(number + 10): Progress.UNKNOWN for number in range(3)}
    assert site.ask(candidate()).reason is AdmissionReason.PLACE


def test_machine_with_a_boot_file_keeps_its_place() -> None:
    site, _ = full()
    site.progress = {mac(number + 10): Progress.BOOTING for number in range(3)}
    site.now += 1700
    assert site.ask(candidate()).reason is AdmissionReason.RANGE_EXHAUSTED
    assert site.offer(candidate(mac(2))).reason is AdmissionReason.RANGE_EXHAUSTED, "it gets no offer"
    assert site.admission.take_displaced() == []


@pytest.mark.parametrize(
    "change",
    [
        {"status": {"inventory": {"inBand": {"product": {}}}}},
        {"status": {"state": "InOSIE"}},
        {"status": {"state": "Waiting"}},
        {"metadata": {"annotations": {"tinkerbell.org/approve": "web-1"}}},
        {"metadata": {"annotations": {"note": "mine"}}},
        {"metadata": {"labels": {AUTO_DISCOVERED_LABEL: "true", "rack": "7"}}},
        {"metadata": {"labels": {}}},
        {"metadata": {"generation": 2}},
        {"metadata": {"deletionTimestamp": objects.CREATED}},
        {"spec": {"kernelParams": ["quiet"]}},
    ],
    ids=str,
)
def test_hardware_that_has_an_inventory_or_was_edited_keeps_its_place(change: Raw) -> None:
    site, made = full()
    for each in made:
        changed = {**each, **{part: {**each.get(part, {}), **fields} for part, fields in change.items()}}
        site.put(changed)
    assert site.ask(candidate()).reason is AdmissionReason.RANGE_EXHAUSTED
    assert site.admission.take_displaced() == []


def test_hardware_that_a_workflow_names_keeps_its_place() -> None:
    site, made = full(Lists(MAC))
    site.workflows = {key_of(made[0]), key_of(made[1])}
    site.ask(candidate())
    assert site.admission.take_displaced() == [key_of(made[2])]


def test_hardware_that_changes_before_its_deletion_keeps_its_place() -> None:
    site, _ = full()
    site.ask(candidate())
    (key,) = site.admission.take_displaced()
    site.put({**site.hardware[key], "status": {"inventory": {"inBand": {"product": {}}}}})
    assert not site.admission.is_leaving(key)
    assert site.admission.pending(MAC) is None, "its successor begins again"


def test_hardware_that_was_not_deleted_may_have_to_give_way_later() -> None:
    site, _ = full()
    site.ask(candidate())
    (key,) = site.admission.take_displaced()
    site.admission.keep(key)
    assert site.admission.pending(MAC) is None
    site.now += 4
    assert site.ask(candidate()).reason is AdmissionReason.PLACE


def test_places_are_freed_at_a_limited_rate() -> None:
    site = Site(RANGE)
    assert fill(site, 50) == 50
    site.now += 100
    for number in range(40):
        site.admission.request(candidate(mac(number)), site.offer(candidate(mac(number))).address, site.now)
    assert len(site.admission.take_displaced()) == MAX_LEAVING


def test_machine_that_has_given_way_may_come_back_at_once() -> None:
    site, _ = full()
    site.ask(candidate())
    (key,) = site.admission.take_displaced()
    gone = site.hardware[key]
    site.remove(gone)
    site.admission.give_back(MAC)
    (back,) = gone["spec"]["networkInterfaces"]
    assert isinstance(site.ask(candidate(back)), Admitted)
    (other, *_) = site.hardware.values()
    site.remove(other)
    (deleted,) = other["spec"]["networkInterfaces"]
    assert site.ask(candidate(deleted)).reason is AdmissionReason.DELETED, "an operator has deleted this one"


def test_share_of_a_link_is_freed_by_machines_of_this_link() -> None:
    site = Site()
    other = site.register(candidate(mac(1), relay="10.77.0.3"))
    assert fill(site, 30, relay="10.77.0.2") == 24
    site.now += 100
    site.ask(candidate(mac(2), relay="10.77.0.2"))
    displaced = site.admission.take_displaced()
    assert displaced
    assert key_of(other) not in displaced, "it is the oldest one"


def test_listed_machine_takes_the_place_of_any_that_has_not_introduced_itself() -> None:
    listed = Lists(MAC, mac(10))
    site, made = full(listed)
    site.progress = {mac(11): Progress.BOOTING, mac(12): Progress.UNKNOWN}
    site.now = 1012.0
    assert site.ask(candidate()).reason is AdmissionReason.PLACE
    assert site.admission.take_displaced() == [key_of(made[2])], "the first one is on the list itself"
    site.remove(made[2])
    assert site.admission.take_successors() == [MAC]


def test_listed_machine_is_drawn_before_all_others() -> None:
    site, _ = full(Lists(MAC))
    site.now = 1003.0 + BOOT_FILE_SECONDS - 5
    for number in range(100):
        each = candidate(mac(number + 100))
        site.admission.request(each, site.offer(each).address, site.now)
    assert site.ask(candidate()).reason is AdmissionReason.PLACE, "it needs no old place"


def test_listed_machine_needs_no_share_of_its_link() -> None:
    site = Site(listed=Lists(MAC))
    site.register(candidate(mac(5), relay="10.77.0.3"))
    assert fill(site, 24, relay="10.77.0.2") == 24
    assert isinstance(site.ask(candidate(relay="10.77.0.2")), Admitted)


def test_place_of_a_machine_that_was_registered_meanwhile_is_free_for_others() -> None:
    site, _ = full()
    site.ask(candidate())
    (key,) = site.admission.take_displaced()
    site.put(objects.hardware("m1", MAC, "10.77.0.5"))
    site.remove(site.hardware[key])
    assert site.admission.take_successors() == []
    assert site.free() == 1


# --- deletion ---------------------------------------------------------------------------------------------------------


def test_machine_whose_hardware_was_deleted_is_not_admitted_for_ten_minutes() -> None:
    site = Site()
    site.remove(site.register(candidate()))
    refused = site.ask(candidate())
    assert refused.reason is AdmissionReason.DELETED
    assert "less than 10 minutes ago" in refused.text
    site.now += DELETED_SECONDS
    assert isinstance(site.ask(candidate()), Admitted)


def test_approved_machine_whose_hardware_was_deleted_is_not_admitted_for_ten_minutes() -> None:
    site = Site()
    approved = objects.hardware("m1", MAC, "10.0.0.7", annotations={DISCOVERED_AS_ANNOTATION: "discovery-x"})
    site.put(approved)
    site.remove(approved)
    assert site.ask(candidate()).reason is AdmissionReason.DELETED


def test_machine_with_another_hardware_that_was_deleted_is_admitted() -> None:
    site = Site()
    site.put(objects.hardware("m1", MAC, "10.77.0.110"))
    site.remove(objects.hardware("m1", MAC, "10.77.0.110"))
    assert isinstance(site.ask(candidate()), Admitted)


def test_listed_machine_is_admitted_at_once_after_the_deletion() -> None:
    site = Site(listed=Lists(MAC))
    site.remove(site.register(candidate()))
    assert isinstance(site.ask(candidate()), Admitted)


def test_machine_that_lost_its_hardware_for_a_shared_address_gets_another() -> None:
    """Two edges that can't see each other have given one address to two machines; the controller deletes one."""
    site = Site()
    made = site.register(candidate())
    site.put(objects.hardware("m2", mac(2), address_of(made)))
    site.remove(made)
    assert address_of(site.register(candidate())) != address_of(made)


def declined(hardware: Raw) -> Raw:
    """Return a Hardware whose machine has declined its address, as an edge writes that."""
    message = f"{address_of(hardware)} is used by another host: {MAC} declined it; it is not offered until then"
    condition = {"type": "AddressConflict", "status": "True", "reason": "DeclinedByClient", "message": message}
    return {**hardware, "status": {"conditions": [condition]}}


def test_machine_that_declined_its_address_gets_another_and_the_declined_one_is_free_after_ten_minutes() -> None:
    site = Site()
    made = site.register(candidate())
    site.put(declined(made))
    site.remove(declined(made))
    again = site.register(candidate())
    assert address_of(again) != address_of(made)
    site.now += OCCUPIED_SECONDS
    site.remove(again)
    site.now += DELETED_SECONDS
    assert address_of(made) in {str(site.offer(candidate(mac(number))).address) for number in range(100)}


def test_declines_leave_three_quarters_of_a_range_for_machines() -> None:
    site = Site()
    (rule,) = site.rules
    size = int(rule.last) - int(rule.first) + 1
    for number in range(size // UNUSED_SHARE):
        site.remove(declined(site.register(candidate(mac(number + 1)))))
        assert isinstance(site.ask(candidate(mac(number + 1))), Admitted)
        site.admission.give_back(mac(number + 1))
    made = site.register(candidate(mac(99)))
    site.remove(declined(made))
    assert site.ask(candidate(mac(99))).reason == AdmissionReason.DELETED
    assert site.admission.free(rule, site.now) == size - size // UNUSED_SHARE


def test_address_that_an_operator_changed_after_the_decline_is_not_declined() -> None:
    site = Site()
    other = declined(site.register(candidate()))
    other["spec"]["networkInterfaces"][MAC]["dhcp"]["ip"] = "10.77.0.77"
    site.put(other)
    site.remove(other)
    assert site.ask(candidate()).reason == AdmissionReason.DELETED


# --- attacks ----------------------------------------------------------------------------------------------------------


def test_invented_macs_create_nothing_and_take_little_memory() -> None:
    site = Site()
    free = site.free()
    for number in range(100_000):
        site.now += 0.0001
        assert isinstance(
            site.offer(candidate(f"02:00:00:{number >> 16:02x}:{number >> 8 & 255:02x}:{number & 255:02x}")), Offered
        )
    assert site.free() == free
    assert not site.admission._pending
    assert not site.admission._held
    assert len(site.admission._offers) == MAX_OFFERS
    assert sys.getsizeof(site.admission._sightings._entries) < 2_300_000


def test_most_machines_are_remembered_through_a_flood() -> None:
    table = Sightings(salt=3)
    real = [number.to_bytes(6, "big") for number in range(1, 201)]
    for each in real:
        table.age(each, 1000.0)
    for number in range(100_000):
        table.age(b"\2" + number.to_bytes(5, "big"), 1001.0)
    remembered = sum(table.age(each, 1004.0) == 4.0 for each in real)
    assert remembered > 100


def test_discovered_hardware_is_that_of_the_rule() -> None:
    rule = read_rule(f"{RANGE},gateway=10.77.0.1,nameserver=10.77.0.2,name=rack7")
    assert discovered_hardware(MAC, rule, IPv4Address("10.77.0.100")) == {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": "Hardware",
        "metadata": {
            "name": "discovery-52-54-00-00-00-01",
            "namespace": "default",
            "labels": {AUTO_DISCOVERED_LABEL: "true"},
            "annotations": {"tinkerbell.org/discovery-rule": "rack7"},
            "finalizers": ["tinkerbell.org/discovery"],
        },
        "spec": {
            "networkInterfaces": {
                MAC: {
                    "dhcp": {
                        "ip": "10.77.0.100",
                        "netmask": "255.255.255.0",
                        "gateway": "10.77.0.1",
                        "nameservers": ["10.77.0.2"],
                        "leaseTimeSeconds": 300,
                    }
                }
            },
            "osie": {"name": "hook"},
        },
    }

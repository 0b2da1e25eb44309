"""The inventory decides whom the edge serves: one wrong Hardware must cost only its own machines."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.machines import Inventory, Machine, NetbootPolicy, lookup_values
from tests.support import objects
from tests.support.objects import CREATED
from tink.api.v1alpha2 import Raw
from tink.kube.objects import NamespacedName

MAC, OTHER_MAC = "52:54:00:12:34:56", "52:54:00:12:34:57"
IPS = ["10.0.0.1", "10.0.0.2", "10.0.0.256"]


def hardware(name: str, *macs: str, ip: str = "10.0.0.5", ipv6: str = "", **interface: Any) -> Raw:
    dhcp = {"ipv6": {"address": ipv6}} if ipv6 else {}
    interfaces = {mac: {"dhcp": {"ip": ip, **dhcp}, **interface} for mac in macs}
    return objects.hardware(name, interfaces=interfaces)


@pytest.fixture
def inventory() -> Inventory:
    return Inventory()


def watch(inventory: Inventory) -> list[str]:
    """Return the MACs that handlers hear of from now on."""
    notified: list[str] = []
    inventory.on_change(notified.append)
    return notified


@pytest.mark.parametrize(
    ("first", "then", "served", "words"),
    [
        (("a", MAC), ("b", MAC), {}, ("claimed by several Hardware", "default/a, default/b")),
        (("a", MAC), ("a", MAC, "10.0.0.256"), {}, ("default/a", "dhcp.ip")),
        (("a", MAC), ("a", "52:54:00:12:34:5G", MAC), {MAC: "a"}, ("52:54:00:12:34:5G",)),
        (("a", MAC), ("b", OTHER_MAC), {MAC: "a", OTHER_MAC: "b"}, ("IP 10.0.0.5 is claimed by several",)),
    ],
    ids=["MAC of two", "unreadable", "no MAC", "address of two"],
)
def test_invalid_fields_are_logged_and_only_valid_machines_are_served(
    inventory: Inventory, caplog: pytest.LogCaptureFixture, first: Any, then: Any, served: Any, words: tuple[str, ...]
) -> None:
    for name, *macs in (first, then):
        ip = {"ip": macs.pop()} if macs[-1].startswith("10.") else {}
        inventory.apply(hardware(name, *macs, **ip))
    assert {mac: found.name for mac in (MAC, OTHER_MAC) if (found := inventory.by_mac(mac)) is not None} == served
    assert all(word in caplog.text for word in words)


def test_handlers_are_called_for_macs_that_appear_change_and_go(inventory: Inventory) -> None:
    notified = watch(inventory)
    inventory.apply(hardware("a", MAC))
    inventory.apply(hardware("a", OTHER_MAC))
    inventory.remove(hardware("a", OTHER_MAC))
    assert notified == [MAC, MAC, OTHER_MAC, OTHER_MAC]


@pytest.mark.parametrize(
    ("interface", "reason"),
    [({}, ""), ({"disableNetboot": True}, "disableNetboot"), ({"disableDhcp": True}, "disableDhcp")],
)
def test_policy_names_the_field_that_forbids_netboot(
    inventory: Inventory, interface: dict[str, Any], reason: str
) -> None:
    inventory.apply(hardware("a", MAC, **interface))
    decision = NetbootPolicy().decide(inventory.by_mac(MAC))
    assert decision.allowed is (not reason)
    assert reason in decision.reason


def test_co_claimant_is_notified_when_the_other_gets_another_address(inventory: Inventory) -> None:
    """A machine whose conflict ended must be served at once, not after the next change of its own Hardware."""
    inventory.apply(hardware("a", MAC))
    notified: list[tuple[str, bool]] = []
    inventory.on_change(lambda mac: notified.append((mac, inventory.by_ip("10.0.0.5") is not None)))
    inventory.apply(hardware("b", OTHER_MAC))
    assert sorted(notified) == [(MAC, False), (OTHER_MAC, False)]
    notified.clear()
    inventory.apply(hardware("b", OTHER_MAC, ip="10.0.0.6"))
    assert sorted(notified) == [(MAC, True), (OTHER_MAC, True)]
    notified.clear()
    inventory.apply(hardware("b", OTHER_MAC))
    notified.clear()
    inventory.remove(hardware("b", OTHER_MAC))
    assert sorted(notified) == [(MAC, True), (OTHER_MAC, True)]


def test_change_without_effect_on_answers_calls_no_handler(inventory: Inventory) -> None:
    """Writing a condition must not recompile the machine's answers."""
    obj = hardware("a", MAC)
    inventory.apply(obj)
    before = inventory.by_mac(MAC)
    notified = watch(inventory)
    metadata = obj["metadata"] | {"resourceVersion": "9", "managedFields": [{}]}
    inventory.apply(obj | {"metadata": metadata, "status": {"conditions": "odd"}})
    assert notified == []
    assert inventory.by_mac(MAC) is before
    annotated = obj["metadata"] | {"annotations": {"tinkerbell.org/instance-id": "i-1"}}
    inventory.apply(obj | {"metadata": annotated})
    assert notified == [MAC]
    machine = inventory.by_mac(MAC)
    assert machine.hardware.metadata.annotations == {"tinkerbell.org/instance-id": "i-1"}


def test_hardware_whose_status_was_written_by_hand_is_served(inventory: Inventory) -> None:
    inventory.apply(hardware("a", MAC) | {"status": {"conditions": [{"type": 5}]}})
    assert inventory.by_mac(MAC) is not None


def test_machine_keeps_the_hardware_that_it_was_looked_up_with(inventory: Inventory) -> None:
    """A request may wait for something while its Hardware changes or goes."""
    inventory.apply(hardware("a", MAC, disableNetboot=True))
    machine = inventory.by_mac(MAC)
    inventory.apply(hardware("a", MAC, ip="10.0.0.9"))
    inventory.remove(hardware("a", MAC))
    for number in range(200):  # more than are kept as they were read
        inventory.apply(hardware(f"m-{number}", f"52:54:00:00:01:{number:02x}", ip=f"10.0.1.{number}"))
    dhcp = machine.interface.dhcp
    assert (dhcp.ip, machine.interface.disable_netboot, machine.hardware.metadata.name) == ("10.0.0.5", True, "a")
    assert machine.hardware is machine.hardware, "answers of one boot don't read it again and again"


def test_handler_that_fails_for_one_machine_is_called_for_the_others(
    inventory: Inventory, caplog: pytest.LogCaptureFixture
) -> None:
    notified: list[str] = []

    def fail(mac: str) -> None:
        if mac == MAC:
            raise RuntimeError("oh")

    inventory.on_change(fail)
    inventory.on_change(notified.append)
    inventory.apply(hardware("a", MAC, OTHER_MAC))
    assert notified == [MAC, OTHER_MAC]
    assert MAC in caplog.text


# --- any history ------------------------------------------------------------------------------------------------

MACS = [f"52:54:00:00:00:0{digit}" for digit in range(4)]
INTERFACES = st.dictionaries(
    st.sampled_from([*MACS, "52:54:00:00:00:0A"]),
    st.fixed_dictionaries({}, optional={"dhcp": st.fixed_dictionaries({}, optional={"ip": st.sampled_from(IPS)})}),
    max_size=3,
)
STEPS = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.none() | INTERFACES), max_size=25)


class Naive:
    """The reference for the indexes: it searches all objects."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}

    def machines(self) -> list[tuple[str, str, str | None]]:
        """Hardware, MAC and address of each readable interface."""
        found = []
        for name, interfaces in self.objects.items():
            ips = {mac: interface.get("dhcp", {}).get("ip") for mac, interface in interfaces.items()}
            if "10.0.0.256" not in ips.values():
                found += [(name, mac, ip) for mac, ip in ips.items() if mac in MACS]
        return found

    def only(self, value: str) -> tuple[str, str] | None:
        """Hardware and MAC of the one that has this MAC or address; the first, if one Hardware has it several times."""
        found = [(name, mac) for name, mac, ip in self.machines() if value in (mac, ip)]
        return found[0] if len({name for name, _ in found}) == 1 else None

    def answers(self, mac: str) -> Any:
        """Return everything that the compiled answers of a MAC depend on."""
        mine = self.only(mac)
        if mine is None:
            return None
        ip = next(ip for name, other, ip in self.machines() if (name, other) == mine)
        owner = (self.only(ip) or [None])[0] if ip is not None else None
        return mine, ip, owner, self.objects[mine[0]]


@given(STEPS)
def test_indexes_match_the_objects_after_any_history(steps: list[tuple[str, dict[str, Any] | None]]) -> None:
    inventory, naive = Inventory(), Naive()
    notified: set[str] = set()
    inventory.on_change(notified.add)
    for name, interfaces in steps:
        before = {mac: naive.answers(mac) for mac in MACS}
        notified.clear()
        obj = {"metadata": {"name": name, "namespace": "default"}, "spec": {"networkInterfaces": interfaces or {}}}
        if interfaces is None:
            naive.objects.pop(name, None)
            inventory.remove(obj)
        else:
            naive.objects[name] = interfaces
            inventory.apply(obj)
        changed = {mac for mac in MACS if naive.answers(mac) != before[mac]}
        assert notified >= changed, "somebody's answers are stale"
        where = {(machine.name, machine.mac, machine.ip) for machine in inventory.machines()}
        assert where == set(naive.machines())
        for mac in MACS:
            assert _who(inventory.by_mac(mac)) == naive.only(mac)
            assert {m.name for m in inventory.claimants(mac)} == {m[0] for m in naive.machines() if m[1] == mac}
        for ip in IPS:
            assert _who(inventory.by_ip(ip)) == naive.only(ip)
        for known in "abc":
            assert {m.mac for m in inventory.by_name(known)} == {m[1] for m in naive.machines() if m[0] == known}
        assert len(inventory) == len({m[1] for m in naive.machines()})


def _who(machine: Machine | None) -> tuple[str, str] | None:
    return (machine.name, machine.mac) if machine is not None else None


def test_interfaces_of_one_hardware_may_share_an_address_that_no_other_hardware_has(
    inventory: Inventory, caplog
) -> None:
    inventory.apply(hardware("a", MAC, OTHER_MAC, ipv6="fd00::5"))
    first, second = inventory.by_name("a")
    for ip in first.addresses:
        assert inventory.by_ip(ip) is first
        assert inventory.sharing(second, ip) == (first, second)
        assert inventory.is_served(second, ip)
        assert [inventory.interface_at(first, ip, mac) for mac in (None, MAC, OTHER_MAC)] == [first, first, second]
    assert caplog.records == []
    inventory.apply(hardware("b", "52:54:00:00:00:01"))
    assert inventory.by_ip("10.0.0.5") is None, "another Hardware has it, too"
    assert not inventory.is_served(second, "10.0.0.5")
    assert inventory.is_served(second, "fd00::5")
    assert "IP 10.0.0.5 is claimed by several Hardware" in caplog.text


def test_machine_is_found_by_its_ipv6_address_in_its_one_spelling_unless_another_claims_it(
    inventory: Inventory,
) -> None:
    inventory.apply(hardware("a", MAC, ipv6="fd00:0:0:0:0:0:0:5"))
    machine = inventory.by_mac(MAC)
    assert machine is inventory.by_ip("fd00::5") is inventory.by_ip("10.0.0.5")
    assert machine.addresses == ("10.0.0.5", "fd00::5")
    inventory.apply(hardware("b", OTHER_MAC, ip="10.0.0.6", ipv6="fd00::5"))
    assert (inventory.by_ip("fd00::5"), len(inventory.claimants_of_ip("fd00::5"))) == (None, 2)
    inventory.apply(hardware("a", MAC))
    assert inventory.by_ip("fd00::5").name == "b"


def leaving(name: str, mac: str) -> Raw:
    obj = hardware(name, mac)
    return obj | {"metadata": obj["metadata"] | {"deletionTimestamp": CREATED}}


@pytest.mark.parametrize("terminating_first", [True, False])
def test_hardware_that_is_being_deleted_yields_to_another_with_its_mac_and_address(
    inventory: Inventory, terminating_first: bool
) -> None:
    notified = watch(inventory)
    objects = [leaving("thief", MAC), hardware("victim", MAC)]
    for obj in objects if terminating_first else reversed(objects):
        inventory.apply(obj)
    assert inventory.by_mac(MAC).name == inventory.by_ip("10.0.0.5").name == "victim"
    assert [machine.name for machine in inventory.claimants(MAC)] == ["victim"]
    assert [machine.name for machine in inventory.claimants_of_ip("10.0.0.5")] == ["victim"]
    assert inventory.by_name("thief") == (), "the MAC is no card of it"
    notified.clear()
    inventory.remove(hardware("victim", MAC))
    assert notified == [MAC]
    found = inventory.by_mac(MAC)
    assert (found.name, len(inventory.by_name("thief"))) == ("thief", 1), "until it is gone, and no other one claims it"


def test_of_two_hardware_that_are_being_deleted_neither_is_served(inventory: Inventory) -> None:
    inventory.apply(leaving("a", MAC))
    inventory.apply(leaving("b", MAC))
    assert inventory.by_mac(MAC) is None


def test_both_are_notified_of_a_change_when_one_with_the_same_address_is_being_deleted(inventory: Inventory) -> None:
    inventory.apply(hardware("a", MAC))
    inventory.apply(hardware("b", OTHER_MAC))
    assert inventory.by_ip("10.0.0.5") is None
    notified = watch(inventory)
    inventory.apply(leaving("b", OTHER_MAC))
    assert set(notified) == {MAC, OTHER_MAC}
    found = inventory.by_ip("10.0.0.5")
    assert found.mac == MAC


# --- an inventory whose Hardware are partly in the checkpoint only: each is recalled before it is looked up ---------


def numbered(number: int, ip: str, *, owner: int | None = None, ipv6: str = "") -> Raw:
    return hardware(f"m{number}", f"52:54:00:00:00:0{owner or number}", ip=ip, ipv6=ipv6)


ODD = objects.hardware("odd", interfaces={"52:54:00:00:00:09": {"dhcp": 7}})
SITE = [
    numbered(1, "10.0.0.1"),
    numbered(2, "10.0.0.2", ipv6="fd00:0:0::2"),
    numbered(3, "10.0.0.2"),  # as 2
    numbered(4, "10.0.0.4", owner=1),  # as 1
    ODD,
    objects.hardware("none") | {"spec": {}},
]
ONE, TWO, THREE, NINE = (f"52:54:00:00:00:0{number}" for number in (1, 2, 3, 9))


def recalling() -> Inventory:
    """Return an inventory with no Hardware yet, which recalls those of SITE."""
    made = Inventory()
    recalled: list[str] = []

    def recall(*values: str) -> None:
        for obj in SITE:
            key = NamespacedName.of(obj)
            if key.name not in recalled and {*values} & {str(key), *lookup_values(obj)}:
                recalled.append(key.name)
                made.apply(obj)

    made.recall_with(recall)
    return made


@pytest.mark.parametrize(
    ("method", "value"),
    [
        *(("by_mac", mac) for mac in (ONE, TWO, NINE)),
        ("claimants", ONE),
        *(("by_ip", ip) for ip in ("10.0.0.1", "10.0.0.2", "10.0.0.4", "fd00::2")),
        ("claimants_of_ip", "10.0.0.2"),
        *(("by_name", name) for name in ("m3", "odd", "none")),
    ],
)
def test_first_look_up_has_the_result_of_a_complete_inventory(method: str, value: str) -> None:
    early, late = recalling(), Inventory()
    for obj in SITE:
        late.apply(obj)
    assert repr(getattr(early, method)(value)) == repr(getattr(late, method)(value))


def test_change_recalls_all_values_of_a_hardware_at_once_and_not_for_each_look_up_of_a_handler() -> None:
    recalled: list[set[str]] = []
    made = Inventory()
    made.recall_with(lambda *values: recalled.append({*values}))
    made.on_change(lambda mac: [made.by_mac(mac), made.claimants(mac), made.by_ip("10.0.0.2"), made.by_ip("fd00::2")])
    made.apply(SITE[1])
    assert recalled == [{TWO, "10.0.0.2", "fd00::2"}]
    made.on_change(lambda _mac: made.by_ip("10.0.0.9"))
    made.remove(SITE[1])
    assert recalled[1:] == [{TWO, "10.0.0.2", "fd00::2"}, {"10.0.0.9"}], "another address is recalled by its look-up"
    made.by_mac(TWO)
    assert recalled[3:] == [{TWO}]


def test_machines_are_notified_of_rivals_that_are_read_later() -> None:
    """DHCP keeps what it has compiled until it is notified of a change."""
    made = recalling()
    served: dict[str, Any] = {}
    made.on_change(lambda each: served.update({each: (m := made.by_mac(each)) and made.by_ip(m.ip or "")}))
    for obj in SITE:
        made.by_name(obj["metadata"]["name"])
    assert served == {ONE: None, TWO: None, THREE: None}

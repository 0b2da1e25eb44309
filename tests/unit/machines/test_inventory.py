"""The inventory decides whom the edge serves: one wrong Hardware must cost only its own machines."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.machines import Inventory, Machine, NetbootPolicy
from tink.kube.cache import ObjectCompressor

MAC, OTHER_MAC = "52:54:00:12:34:56", "52:54:00:12:34:57"
IPS = ["10.0.0.1", "10.0.0.2", "10.0.0.256"]


def hardware(name: str, *macs: str, ip: str = "10.0.0.5", **interface: Any) -> dict[str, Any]:
    interfaces = {mac: {"dhcp": {"ip": ip}, **interface} for mac in macs}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"networkInterfaces": interfaces}}


def test_machine_is_found_by_mac_ip_and_name() -> None:
    inventory = Inventory()
    inventory.apply(hardware("a", MAC))
    machine = inventory.by_mac(MAC)
    assert machine is not None
    assert machine is inventory.by_ip("10.0.0.5")
    assert inventory.by_name("a") == (machine,)


def test_changed_hardware_is_no_longer_found_under_its_old_addresses() -> None:
    inventory = Inventory()
    inventory.apply(hardware("a", MAC))
    inventory.apply(hardware("a", OTHER_MAC, ip="10.0.0.6"))
    assert inventory.by_mac(MAC) is None
    assert inventory.by_ip("10.0.0.5") is None
    assert len(inventory) == 1


def test_deleted_hardware_is_forgotten() -> None:
    inventory = Inventory()
    inventory.apply(hardware("a", MAC))
    inventory.remove(hardware("a", MAC))
    assert (len(inventory), inventory.machines()) == (0, [])


def test_mac_claimed_twice_serves_neither_until_one_claim_goes(caplog: pytest.LogCaptureFixture) -> None:
    inventory = Inventory()
    inventory.apply(hardware("a", MAC))
    inventory.apply(hardware("b", MAC, ip="10.0.0.6"))
    assert inventory.by_mac(MAC) is None
    assert [machine.name for machine in inventory.claimants(MAC)] == ["a", "b"]
    assert "default/a, default/b" in caplog.text
    inventory.remove(hardware("a", MAC))
    machine = inventory.by_mac(MAC)
    assert machine is not None
    assert machine.name == "b"


def test_ip_claimed_twice_identifies_nobody() -> None:
    inventory = Inventory()
    inventory.apply(hardware("a", MAC))
    inventory.apply(hardware("b", OTHER_MAC))
    assert inventory.by_ip("10.0.0.5") is None
    assert inventory.by_mac(MAC) is not None


def test_unreadable_hardware_is_named_in_the_log_and_takes_its_machines_out(caplog: pytest.LogCaptureFixture) -> None:
    inventory = Inventory()
    inventory.apply(hardware("a", MAC))
    inventory.apply(hardware("a", MAC, ip="10.0.0.256"))
    assert inventory.by_mac(MAC) is None
    assert "default/a" in caplog.text
    assert "dhcp.ip" in caplog.text


def test_key_that_is_no_mac_is_named_in_the_log_and_the_others_are_served(caplog: pytest.LogCaptureFixture) -> None:
    inventory = Inventory()
    inventory.apply(hardware("a", "52:54:00:12:34:5G", MAC))
    assert [machine.mac for machine in inventory.machines()] == [MAC]
    assert "52:54:00:12:34:5G" in caplog.text


def test_handlers_hear_of_macs_that_came_changed_and_went() -> None:
    inventory = Inventory()
    heard: list[str] = []
    inventory.on_change(heard.append)
    inventory.apply(hardware("a", MAC))
    inventory.apply(hardware("a", OTHER_MAC))
    inventory.remove(hardware("a", OTHER_MAC))
    assert heard == [MAC, MAC, OTHER_MAC, OTHER_MAC]


@pytest.mark.parametrize(
    ("interface", "reason"),
    [({}, ""), ({"disableNetboot": True}, "disableNetboot"), ({"disableDhcp": True}, "disableDhcp")],
)
def test_policy_says_which_field_forbids_netboot(interface: dict[str, Any], reason: str) -> None:
    inventory = Inventory()
    inventory.apply(hardware("a", MAC, **interface))
    decision = NetbootPolicy().decide(inventory.by_mac(MAC))
    assert decision.allowed is (not reason)
    assert reason in decision.reason


def test_policy_refuses_machines_that_are_not_registered() -> None:
    assert not NetbootPolicy().decide(None).allowed


def test_co_claimant_is_told_when_the_other_takes_another_address() -> None:
    """A machine whose conflict ended must be served at once, not after the next change of its own Hardware."""
    inventory = Inventory()
    inventory.apply(hardware("a", MAC))
    heard: list[tuple[str, bool]] = []
    inventory.on_change(lambda mac: heard.append((mac, inventory.by_ip("10.0.0.5") is not None)))
    inventory.apply(hardware("b", OTHER_MAC))
    assert sorted(heard) == [(MAC, False), (OTHER_MAC, False)]
    heard.clear()
    inventory.apply(hardware("b", OTHER_MAC, ip="10.0.0.6"))
    assert sorted(heard) == [(MAC, True), (OTHER_MAC, True)]
    heard.clear()
    inventory.apply(hardware("b", OTHER_MAC))
    heard.clear()
    inventory.remove(hardware("b", OTHER_MAC))
    assert sorted(heard) == [(MAC, True), (OTHER_MAC, True)]


def test_change_that_no_answer_depends_on_is_no_change() -> None:
    """Writing a condition must not make every answer of the machine be compiled anew."""
    inventory = Inventory()
    obj = hardware("a", MAC)
    inventory.apply(obj)
    before = inventory.by_mac(MAC)
    heard: list[str] = []
    inventory.on_change(heard.append)
    metadata = obj["metadata"] | {"resourceVersion": "9", "managedFields": [{}]}
    inventory.apply(obj | {"metadata": metadata, "status": {"conditions": "odd"}})
    assert heard == []
    assert inventory.by_mac(MAC) is before
    annotated = obj["metadata"] | {"annotations": {"tinkerbell.org/instance-id": "i-1"}}
    inventory.apply(obj | {"metadata": annotated})
    assert heard == [MAC]
    machine = inventory.by_mac(MAC)
    assert machine is not None
    assert machine.hardware.metadata.annotations == {"tinkerbell.org/instance-id": "i-1"}


def test_hardware_deleted_and_made_anew_is_served_again() -> None:
    inventory = Inventory()
    inventory.apply(hardware("a", MAC))
    inventory.remove(hardware("a", MAC))
    inventory.apply(hardware("a", MAC))
    assert inventory.by_mac(MAC) is not None


def test_hardware_whose_status_was_written_by_hand_is_served() -> None:
    inventory = Inventory()
    inventory.apply(hardware("a", MAC) | {"status": {"conditions": [{"type": 5}]}})
    assert inventory.by_mac(MAC) is not None


def test_machine_keeps_the_hardware_that_it_was_looked_up_with() -> None:
    """A request may wait for something while its Hardware changes or goes."""
    inventory = Inventory()
    inventory.apply(hardware("a", MAC, disableNetboot=True))
    machine = inventory.by_mac(MAC)
    assert machine is not None
    inventory.apply(hardware("a", MAC, ip="10.0.0.9"))
    inventory.remove(hardware("a", MAC))
    for number in range(200):  # more than are kept as they were read
        inventory.apply(hardware(f"m-{number}", f"52:54:00:00:01:{number:02x}", ip=f"10.0.1.{number}"))
    dhcp = machine.interface.dhcp
    assert dhcp is not None
    assert (dhcp.ip, machine.interface.disable_netboot, machine.hardware.metadata.name) == ("10.0.0.5", True, "a")
    assert machine.hardware is machine.hardware, "answers of one boot don't read it again and again"


def test_hardware_is_read_once_for_all_answers_that_are_compiled_when_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compressor = ObjectCompressor()
    monkeypatch.setattr(compressor, "decompress", lambda _: pytest.fail("read again"))
    inventory = Inventory(compressor)
    seen: list[str | None] = []

    def compiled(mac: str) -> None:
        machine = inventory.by_mac(mac)
        assert machine is not None
        dhcp = machine.interface.dhcp
        seen.append(dhcp.ip if dhcp is not None else None)

    inventory.on_change(compiled)
    for number in range(200):
        inventory.apply(hardware(f"m-{number}", f"52:54:00:00:01:{number:02x}", ip=f"10.0.1.{number}"))
    assert seen == [f"10.0.1.{number}" for number in range(200)]
    assert len(inventory._at_hand) < 100, "and is not kept so for ever"


def test_handler_that_fails_for_one_machine_keeps_no_other_from_being_heard_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inventory = Inventory()
    heard: list[str] = []

    def fail(mac: str) -> None:
        if mac == MAC:
            raise RuntimeError("oh")

    inventory.on_change(fail)
    inventory.on_change(heard.append)
    inventory.apply(hardware("a", MAC, OTHER_MAC))
    assert heard == [MAC, OTHER_MAC]
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
    """What the indexes must answer, searched for in all objects."""

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
        """Hardware and MAC of the one that has this MAC or address."""
        found = [(name, mac) for name, mac, ip in self.machines() if value in (mac, ip)]
        return found[0] if len(found) == 1 else None

    def answers(self, mac: str) -> Any:
        """What compiled answers of a MAC depend on."""
        mine = self.only(mac)
        if mine is None:
            return None
        ip = next(ip for name, other, ip in self.machines() if (name, other) == mine)
        owner = self.only(ip) if ip is not None else None
        return mine, ip, owner, self.objects[mine[0]]


@given(STEPS)
def test_after_any_history_the_indexes_say_what_the_objects_say(steps: list[tuple[str, dict[str, Any] | None]]) -> None:
    inventory, naive = Inventory(), Naive()
    heard: set[str] = set()
    inventory.on_change(heard.add)
    for name, interfaces in steps:
        before = {mac: naive.answers(mac) for mac in MACS}
        heard.clear()
        obj = {"metadata": {"name": name, "namespace": "default"}, "spec": {"networkInterfaces": interfaces or {}}}
        if interfaces is None:
            naive.objects.pop(name, None)
            inventory.remove(obj)
        else:
            naive.objects[name] = interfaces
            inventory.apply(obj)
        changed = {mac for mac in MACS if naive.answers(mac) != before[mac]}
        assert heard >= changed, "somebody's answers are stale"
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


def test_machine_is_found_by_its_ipv6_address_in_its_one_spelling() -> None:
    inventory = Inventory()
    both = hardware("a", MAC)
    both["spec"]["networkInterfaces"][MAC]["dhcp"]["ipv6"] = {"address": "fd00:0:0:0:0:0:0:5"}
    inventory.apply(both)
    machine = inventory.by_mac(MAC)
    assert machine is not None
    assert machine is inventory.by_ip("fd00::5") is inventory.by_ip("10.0.0.5")
    assert machine.addresses == ("10.0.0.5", "fd00::5")
    inventory.apply(hardware("a", MAC))
    assert inventory.by_ip("fd00::5") is None


def test_ipv6_address_claimed_twice_serves_neither(caplog: pytest.LogCaptureFixture) -> None:
    inventory = Inventory()
    for name, mac in (("a", MAC), ("b", OTHER_MAC)):
        claim = {"spec": {"networkInterfaces": {mac: {"dhcp": {"ipv6": {"address": "fd00::5"}}}}}}
        inventory.apply(claim | {"metadata": {"name": name, "namespace": "default"}})
    assert inventory.by_ip("fd00::5") is None
    assert len(inventory.claimants_of_ip("fd00::5")) == 2
    assert "IP fd00::5 is claimed by several" in caplog.text


LEAVING = {"deletionTimestamp": "2027-01-15T08:00:00Z"}


def leaving(name: str, mac: str, ip: str = "10.0.0.5") -> dict[str, Any]:
    obj = hardware(name, mac, ip=ip)
    return {**obj, "metadata": obj["metadata"] | LEAVING}


@pytest.mark.parametrize("terminating_first", [True, False])
def test_hardware_that_is_being_deleted_yields_to_another_with_its_mac_and_address(terminating_first: bool) -> None:
    inventory = Inventory()
    heard: list[str] = []
    inventory.on_change(heard.append)
    objects = [leaving("thief", MAC), hardware("victim", MAC)]
    for obj in objects if terminating_first else reversed(objects):
        inventory.apply(obj)
    for found in (inventory.by_mac(MAC), inventory.by_ip("10.0.0.5")):
        assert found is not None
        assert found.name == "victim"
    assert [machine.name for machine in inventory.claimants(MAC)] == ["victim"]
    assert [machine.name for machine in inventory.claimants_of_ip("10.0.0.5")] == ["victim"]
    assert inventory.by_name("thief") == (), "the MAC is no card of it"
    heard.clear()
    inventory.remove(hardware("victim", MAC))
    assert heard == [MAC]
    found = inventory.by_mac(MAC)
    assert found is not None
    assert (found.name, len(inventory.by_name("thief"))) == ("thief", 1), "until it is gone, and no other one claims it"


def test_of_two_hardware_that_are_being_deleted_neither_is_served(caplog: pytest.LogCaptureFixture) -> None:
    inventory = Inventory()
    inventory.apply(leaving("a", MAC))
    inventory.apply(leaving("b", MAC))
    assert inventory.by_mac(MAC) is None
    assert "claimed by several Hardware" in caplog.text


def test_both_are_notified_of_a_change_when_one_with_the_same_address_is_being_deleted() -> None:
    inventory = Inventory()
    inventory.apply(hardware("a", MAC))
    inventory.apply(hardware("b", OTHER_MAC))
    assert inventory.by_ip("10.0.0.5") is None
    heard: list[str] = []
    inventory.on_change(heard.append)
    inventory.apply(leaving("b", OTHER_MAC))
    assert set(heard) == {MAC, OTHER_MAC}
    found = inventory.by_ip("10.0.0.5")
    assert found is not None
    assert found.mac == MAC

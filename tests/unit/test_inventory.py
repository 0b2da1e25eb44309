"""The inventory decides whom the edge serves: one wrong Hardware must cost only its own machines."""

from __future__ import annotations

from typing import Any

import pytest

from edge.inventory import Inventory
from edge.policy import NetbootPolicy

MAC, OTHER_MAC = "52:54:00:12:34:56", "52:54:00:12:34:57"


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

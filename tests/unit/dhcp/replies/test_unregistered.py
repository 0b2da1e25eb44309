"""The manifest offered for a machine that nobody registered."""

from __future__ import annotations

import yaml

from edge.dhcp.replies.unregistered import proposed
from edge.machines import hardware_manifest
from tink.api.v1alpha2 import Hardware
from tink.limits.once_per import OncePer


def test_manifest_is_a_hardware_that_gives_nobody_an_address_until_it_is_completed() -> None:
    # Digits only: unquoted, YAML 1.1 would read it as a number.
    text = hardware_manifest("52:54:00:12:34:56", proposed("172.31.0.1"))
    hardware = Hardware.model_validate(yaml.safe_load(text))
    assert hardware.metadata.name == "machine-52-54-00-12-34-56"
    interface = hardware.spec.network_interfaces["52:54:00:12:34:56"]
    assert interface.dhcp is not None
    assert interface.dhcp.ip is None


def test_completed_manifest_is_a_reservation() -> None:
    text = (
        hardware_manifest("52:54:00:12:34:56", proposed("172.31.0.1"))
        .replace("# ip:", "ip:")
        .replace("# netmask", "netmask")
    )
    interface = Hardware.model_validate(yaml.safe_load(text)).spec.network_interfaces["52:54:00:12:34:56"]
    assert interface.dhcp is not None
    assert (interface.dhcp.ip, interface.dhcp.netmask) == ("172.31.0.50", "255.255.255.0")


def test_the_same_is_said_once_per_interval_and_only_so_much_is_said_at_all() -> None:
    once = OncePer(60.0, capacity=2)
    assert [once.due(key, 0.0) for key in ("a", "a", "b", "c")] == [True, False, True, False]
    assert not once.due("a", 59.9)
    assert once.due("a", 60.0)
    assert len(once) == 1


def test_a_clock_that_is_set_back_silences_nobody() -> None:
    once = OncePer(60.0, capacity=2)
    assert once.due("a", 1_000_000.0)
    assert once.due("a", 5.0)

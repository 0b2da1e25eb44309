"""The verdict on a machine: each planted error is found, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from edge.fleet.discovery import ERRORS
from tests.support.discovery import Site, plant
from tink.api.v1alpha2 import Raw
from tink.discovery.expected import ExpectedMachines
from tink.discovery.identity import FactsIndex, facts_of
from tink.discovery.model import MachineVerdict, VerdictReason
from tink.discovery.verdict import fact_labels, verdict


def verdicts(site: Site, lines: Mapping[int, str] | None = None) -> list[MachineVerdict]:
    expected, index = ExpectedMachines(), FactsIndex()
    expected.apply(site.config_map(lines))
    objects = [site.hardware(number) for number in range(site.count)]
    for each in objects:
        index.apply(each)
    found = []
    for each in objects:
        facts = facts_of(each)
        result = verdict(facts, expected.match(facts), index, expected)
        assert result is not None
        found.append(result)
    return found


def reasons(result: MachineVerdict) -> set[VerdictReason]:
    return {reason for reason, _ in result.findings}


@pytest.mark.parametrize("discovered", [True, False])
def test_machines_as_ordered_match_their_lines(discovered: bool) -> None:
    for result in verdicts(Site(90, discovered=discovered)):
        assert result.reason is VerdictReason.MATCHES, result.message
        assert result.is_expected


@pytest.mark.parametrize("error", ERRORS)
def test_each_error_is_found_at_its_machine_and_nowhere_else(error: str) -> None:
    site = Site(20)
    wanted = plant(site, error, 7)
    for number, result in enumerate(verdicts(site)):
        if number in wanted:
            assert wanted[number] in reasons(result), (number, result)
            others = reasons(result) - {wanted[number], VerdictReason.CONFLICT}
            assert not others, result
            assert "\n" not in result.message
        else:
            assert result.reason is VerdictReason.MATCHES, (number, result)


def test_fifty_errors_among_a_thousand_machines_are_found_without_a_false_one() -> None:
    site, rng, wanted = Site(1000), random.Random(35), dict[int, VerdictReason]()
    kinds = list(ERRORS)
    for planted, number in enumerate(rng.sample(range(0, 1000, 10), 50)):
        wanted |= plant(site, kinds[planted % len(kinds)], number)
    found = {number: reasons(each) for number, each in enumerate(verdicts(site)) if not each.is_expected}
    assert found.keys() == wanted.keys()
    assert all(reason in found[number] for number, reason in wanted.items())


def test_machine_without_an_inventory_has_no_verdict() -> None:
    hardware = Site(1).hardware(0) | {"status": {}}
    expected = ExpectedMachines()
    assert verdict(facts_of(hardware), expected.match(facts_of(hardware)), FactsIndex(), expected) is None


def test_unknown_facts_are_no_difference() -> None:
    site = Site(3)
    site.attributes[1] = {"product": {"serialNumber": "SN00001"}}
    assert verdicts(site)[1].reason is VerdictReason.MATCHES


def test_discovered_machine_that_no_list_names_is_not_expected() -> None:
    site = Site(3)
    results = verdicts(site, {1: "", 0: site.line(0)})
    assert results[1].reason is VerdictReason.NOT_EXPECTED
    assert "SN00001" in results[1].message


def test_contradicting_line_is_a_conflict_that_names_both() -> None:
    site = Site(2)
    (result, _) = verdicts(site, {0: site.line(0).replace("SN00000", "SN99999")})
    assert result.reason is VerdictReason.CONFLICT
    assert "SN99999" in result.message
    assert "SN00000" in result.message
    assert "line 2" in result.message


def test_uuid_is_known_in_both_byte_orders() -> None:
    """SMBIOS before 2.6 swapped the first three fields."""
    site = Site(1)
    site.attributes[0]["product"] = {"uuid": "44454c4c-0000-1000-8000-000000000000"}
    site.out_of_band[0] = {"product": {"uuid": "4c4c4544-0000-0010-8000-000000000000"}}
    assert verdicts(site)[0].reason is VerdictReason.MATCHES


@pytest.mark.parametrize("size", [470_000_000_000, 500_107_862_016])
def test_disks_of_one_nominal_size_are_the_same(size: int) -> None:
    site = Site(1)
    site.attributes[0]["blockDevices"][0]["sizeBytes"] = size
    assert verdicts(site)[0].is_expected


def test_labels_are_valid_label_values() -> None:
    site = Site(1)
    site.attributes[0]["product"] |= {"vendor": "Dell Inc. (Round Rock) ", "serialNumber": "-_5CG/1-"}
    assert fact_labels(facts_of(site.hardware(0))) == {
        "tinkerbell.org/vendor": "Dell-Inc.-Round-Rock",
        "tinkerbell.org/model": "PowerEdge-R650",
        "tinkerbell.org/serial": "5CG-1",
        "tinkerbell.org/switch": "switch-0",
        "tinkerbell.org/port": "Ethernet1-0",
    }


def test_registered_machine_is_named_when_another_one_has_its_serial_number() -> None:
    site, registered = Site(1), Site(1, discovered=False)
    site.attributes[0]["networkInterfaces"][0]["ports"] = [{"mac": "b0:26:28:77:77:77", "linkStatus": "LinkUp"}]
    intruder: Raw = site.hardware(0)
    intruder["metadata"]["name"] = "discovery-b0-26-28-77-77-77"
    intruder["spec"]["networkInterfaces"] = {"b0:26:28:77:77:77": {}}
    index, expected = FactsIndex(), ExpectedMachines()
    index.apply(registered.hardware(0))
    assert index.apply(intruder) == {("default", "rack-0000")}
    result = verdict(facts_of(intruder), expected.match(facts_of(intruder)), index, expected)
    assert result is not None
    assert result.reason in (VerdictReason.CONFLICT, VerdictReason.DUPLICATE_SERIAL)
    assert "default/rack-0000" in result.message
    own = facts_of(registered.hardware(0))
    for_registered = verdict(own, expected.match(own), index, expected)
    assert for_registered is not None
    assert for_registered.is_expected  # a stranger can't change the verdict on a registered machine


@pytest.mark.parametrize(("namespace", "reason"), [("default", "SwappedCables"), ("berlin", "WrongPort")])
def test_only_lists_that_count_say_whose_a_switch_port_is(namespace: str, reason: str) -> None:
    site, expected, index = Site(1), ExpectedMachines(), FactsIndex()
    expected.apply(site.config_map())
    other = {"metadata": {"name": "other", "namespace": namespace}, "data": {"a.csv": OTHER_LINE}}
    expected.apply(other)
    site.attributes[0]["networkInterfaces"][0]["ports"][0]["lldp"]["portID"] = "Ethernet1/30"
    index.apply(site.hardware(0))
    facts = facts_of(site.hardware(0))
    result = verdict(facts, expected.match(facts), index, expected)
    assert result is not None
    assert result.reason == reason


OTHER_LINE = "name,serial,links\nother,ZZ99887,switch-0/Ethernet1/30\n"

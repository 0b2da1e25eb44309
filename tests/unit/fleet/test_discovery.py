"""Unknown machines of a fleet: the product's own verdicts find each planted error, and nothing else."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from edge.fleet.discovery import DiscoveryPlan, Introduction, ReadyTimes, as_ordered, compare, plan, rule
from edge.fleet.population import identity
from tink.api.annotations import DISCOVERED_AS_ANNOTATION
from tink.api.v1alpha2 import Raw
from tink.discovery.admission import read_rule
from tink.discovery.expected import ExpectedMachines, read_list
from tink.discovery.identity import FactsIndex, facts_of
from tink.discovery.model import VerdictReason, discovered_name
from tink.discovery.verdict import verdict

NETWORK = IPv4Network("10.64.0.0/16")
GATEWAY = "10.64.0.1"


def planned(machines: int, errors: int, seed: int = 1) -> DiscoveryPlan:
    return plan([identity("m", NETWORK, number) for number in range(machines)], NETWORK, GATEWAY, errors, seed)


def hardware(found: DiscoveryPlan, number: int) -> Raw:
    machine, introduction = found.machines[number], found.introductions[number]
    return {
        "metadata": {
            "name": discovered_name(machine.mac_text),
            "namespace": "default",
            "labels": {"tinkerbell.org/auto-discovered": "true"},
        },
        "spec": {"networkInterfaces": {machine.mac_text: {}}},
        "status": {"inventory": {"inBand": introduction.attributes}},
    }


def verdicts(found: DiscoveryPlan) -> dict[str, tuple[str, str]]:
    """Return the verdicts that the controller would write."""
    expected, index = ExpectedMachines(), FactsIndex()
    for number, text in enumerate(found.lists()):
        metadata = {"name": f"list-{number}", "namespace": "default"}
        expected.apply({"metadata": metadata, "data": {"machines.csv": text}})
    assert expected.problems == ()
    objects = [hardware(found, number) for number in range(len(found.machines))]
    for each in objects:
        index.apply(each)
    written = {}
    for each in objects:
        facts = facts_of(each)
        result = verdict(facts, expected.match(facts), index, expected)
        assert result is not None
        written[facts.key.name] = result.reason.value, result.message
    return written


@pytest.mark.parametrize(("machines", "errors"), [(40, 0), (200, 50), (3000, 300)])
def test_each_planted_error_is_found_and_no_other(machines: int, errors: int) -> None:
    found = planned(machines, errors)
    result = compare(found, verdicts(found))
    assert (result.planted, result.found, result.missed, result.false) == (errors, errors, (), ())
    assert len(found.planted) == min(errors, 11)


def test_missed_and_false_verdicts_are_reported() -> None:
    found = planned(40, 11)
    written = verdicts(found)
    (number,) = found.planted["memory short"]
    healthy = next(each for each, one in enumerate(found.introductions) if not one.reasons)
    names = [discovered_name(found.machines[each].mac_text) for each in (number, healthy)]
    written |= {names[0]: ("Matches", ""), names[1]: ("DiskMissing", "one is missing")}
    result = compare(found, written)
    assert result.found == 10
    assert result.missed == (f"m-{number:05d}: expected MemoryShort, is Matches",)
    assert result.false == (f"m-{healthy:05d}: DiskMissing: one is missing",)
    del written[names[1]]
    assert compare(found, written).false == (f"m-{healthy:05d}: no verdict: ",)
    assert "memory short 0/1" in result.summary()["by kind"]


def test_same_seed_gives_the_same_errors() -> None:
    assert planned(100, 20).planted == planned(100, 20).planted
    assert planned(100, 20).planted != planned(100, 20, seed=2).planted


def test_machine_with_the_serial_number_of_another_one_is_not_approved() -> None:
    found = planned(40, 11)
    (number,) = found.planted["duplicate serial number"]
    assert {f"m-{number:05d}", f"m-{number + 1:05d}"} <= found.unapproved()
    assert Introduction({}, 1.0, reasons={VerdictReason.MEMORY_SHORT}).is_approved


def test_switch_port_is_in_the_second_report_and_the_clock_in_none() -> None:
    found = planned(40, 11)
    (number,) = found.planted["clock"]
    introduction = found.introductions[number]
    first, second = (introduction.report(has_lldp=each)["networkInterfaces"][0]["ports"] for each in (False, True))
    assert [each.get("lldp", {}).get("systemName") for each in (*first, *second)] == [None, None, "switch-0", None]
    assert introduction.clock_ahead == -86_400
    assert introduction.report(has_lldp=True).keys() == introduction.attributes.keys() - {"clockOffsetSeconds"}


@pytest.mark.parametrize(
    ("nominal", "sectors"), [(250, 488_397_168), (480, 937_703_088), (1000, 1_953_525_168), (3840, 7_501_476_528)]
)
def test_disk_of_a_simulated_machine_has_the_size_of_a_real_one(nominal: int, sectors: int) -> None:
    (line,), _ = read_list(f"name,serial,disks\nm,S1,{nominal}GB SSD\n", "default", "list")
    (disk,) = as_ordered(line)["blockDevices"]
    assert disk["sizeBytes"] == 512 * sectors


def test_rule_has_room_for_all_machines_beside_their_reserved_addresses() -> None:
    made = read_rule(rule(NETWORK, 1000, GATEWAY, "default/fleet"))
    assert int(made.last) - int(made.first) >= 1000
    assert made.listed_only
    with pytest.raises(ValueError, match="has no room"):
        rule(IPv4Network("10.64.0.0/24"), 1000, GATEWAY, "default/fleet")


def test_time_until_approval_counts_from_the_first_inventory() -> None:
    now = [0.0]
    times = ReadyTimes(lambda: now[0])
    found = planned(1, 0)
    discovered = hardware(found, 0)
    times.observe(discovered | {"status": {}})
    now[0] = 5.0
    times.observe(discovered)
    now[0] = 6.5
    times.observe(discovered)
    annotations = {DISCOVERED_AS_ANNOTATION: discovered["metadata"]["name"]}
    times.observe({"metadata": {"name": "m", "annotations": annotations}})
    assert times.seconds() == [1.5]

"""`tinkedge doctor` on discovery: rules that can admit no machine, and lists with lines that can't be used."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from edge.doctor import ExaminedServices, Finding, Severity, check_discovery
from edge.doctor.discovery import DiscoveryObjects, DiscoverySite, judge_lists, judge_rules
from tests.support.api import InProcessApi
from tests.support.discovery import Site, mac
from tests.support.objects import hardware, osie
from tink.api.v1alpha2 import Raw
from tink.discovery.admission import discovered_hardware, read_rule
from tink.kube.client import KubeClient

RULE = read_rule("range=10.7.0.200-10.7.0.219/24,gateway=10.7.0.1,osie=default/hook,name=rack7")
OSIES = frozenset({"default/hook"})
HERE = DiscoverySite((IPv4Network("10.7.0.0/24"),), ("10.7.0.1",))


def waiting(count: int) -> list[Raw]:
    addresses = [RULE.first + number for number in range(count)]
    return [discovered_hardware(mac(number), RULE, address) for number, address in enumerate(addresses)]


def judged(
    *objects: Raw, lists: tuple[Raw, ...] = (), osies: frozenset[str] = OSIES, site: DiscoverySite = HERE, **rule: Any
) -> list[Finding]:
    return list(judge_rules([replace(RULE, **rule)], DiscoveryObjects(objects, lists, osies), site))


def wrong(findings: list[Finding]) -> list[tuple[Severity, str, str]]:
    assert all(each.name == "--discover rack7" for each in findings)
    return [(each.severity, each.seen, each.remedy) for each in findings if each.severity is not Severity.OK]


def test_rule_that_can_admit_machines_has_no_problem() -> None:
    assert [each.seen for each in judged(*waiting(3))] == [
        "its OSIE default/hook is there",
        "17 of 20 addresses are free, 3 are those of machines that wait for their approval",
    ]


@pytest.mark.parametrize(
    ("count", "severity"), [(18, Severity.OK), (19, Severity.WARNING), (20, Severity.ERROR)], ids=str
)
def test_full_range_is_a_problem_and_a_nearly_full_one_a_warning(count: int, severity: Severity) -> None:
    found = judged(*waiting(count))[-1]
    assert found.severity is severity
    assert found.seen.startswith(f"{20 - count} of 20 addresses are free, {count} are those of machines that wait")
    assert ("discover list" in found.remedy) is (severity is not Severity.OK)


def test_missing_osie_is_a_problem() -> None:
    ((severity, seen, remedy),) = wrong(judged(osies=frozenset({"other/hook"})))
    assert severity is Severity.ERROR
    assert seen == "its OSIE default/hook does not exist: machines are admitted, and boot nothing"
    assert remedy == "create that OSIE, or correct osie= of the rule"


def test_reservations_in_the_range_are_named_unless_they_come_from_discovery() -> None:
    kept = hardware("web-1", mac(9), "10.7.0.209", annotations={"tinkerbell.org/discovered-as": "discovery-x"})
    assert wrong(judged(kept, hardware("m1", mac(1), "10.7.0.20"))) == []
    by_hand = [hardware(f"m{number}", mac(number), f"10.7.0.{200 + number}") for number in range(5)]
    ((severity, seen, _),) = wrong(judged(kept, *by_hand, hardware("odd", mac(8), "not an address")))
    assert severity is Severity.WARNING
    names = "Hardware default/m0 (10.7.0.200), default/m1 (10.7.0.201), default/m2 (10.7.0.202) and 2 more"
    assert seen == f"its range has addresses that are reserved: {names}"


def test_range_in_no_network_of_this_host_needs_a_relay() -> None:
    away = DiscoverySite((IPv4Network("192.0.2.0/24"),), ("192.0.2.1",))
    ((severity, seen, remedy),) = wrong(judged(site=away))
    assert severity is Severity.WARNING
    assert "no interface that faces machines is in 10.7.0.0/24 (192.0.2.0/24)" in seen
    assert "--relays" in remedy
    assert [each[0] for each in wrong(judged(site=replace(away, has_relays=True)))] == [Severity.NOTE]
    assert wrong(judged(site=DiscoverySite())) == [], "the kernel does not describe the interfaces"


def test_rule_for_listed_machines_needs_a_list() -> None:
    ((severity, seen, remedy),) = wrong(judged(listed_only=True))
    assert (severity, "discover import" in remedy) == (Severity.WARNING, True)
    assert "namespace default has no list of expected machines" in seen
    there = Site(1).config_map()
    assert wrong(judged(listed_only=True, lists=(there,))) == []
    there["metadata"]["namespace"] = "elsewhere"
    assert len(wrong(judged(listed_only=True, lists=(there,)))) == 1, "lists of other namespaces do not count"


def test_lists_are_reported_with_the_number_of_problems_and_the_first() -> None:
    assert list(judge_lists([])) == []
    (found,) = judge_lists([Site(3).config_map()])
    assert (found.severity, found.seen) == (Severity.OK, "3 machines on 1 lists, no problem")
    (found,) = judge_lists([Site(3).config_map({0: "rack-0000,,,,", 2: "rack-0002,SN2,not-a-mac"})])
    assert found.severity is Severity.WARNING
    assert found.seen.startswith("2 lines or columns can't be used; the first: ConfigMap default/rack, rack.csv line 2")
    assert "tinkedge discover list" in found.remedy


def test_api_that_is_not_there_is_a_note_and_without_rules_nothing_is_said(tmp_path: Path) -> None:
    serving, nowhere = ExaminedServices([("lo", "")], tmp_path), tmp_path / "kubeconfig"
    found = list(check_discovery([RULE], serving, nowhere, None, has_relays=True))
    assert [each.severity for each in found] == [Severity.NOTE, Severity.NOTE]
    assert found[1].seen == f"ranges, OSIEs and lists are not examined: there is no {nowhere}"
    assert list(check_discovery([], serving, nowhere, None, has_relays=False)) == []
    nowhere.write_text("{")
    (_, found_broken) = check_discovery([RULE], serving, nowhere, None, has_relays=True)
    assert found_broken.seen.startswith("ranges, OSIEs and lists are not examined: ")


def test_objects_are_read_from_the_api_and_osies_from_the_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = InProcessApi(osie("other"), *waiting(20))
    api.put(Site(1).config_map())

    @contextlib.asynccontextmanager
    async def connected(_kubeconfig: Path) -> AsyncIterator[InProcessApi]:
        yield api

    async def connect(kubeconfig: Path) -> Any:
        return connected(kubeconfig)

    monkeypatch.setattr(KubeClient, "connect", connect)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.touch()
    serving = ExaminedServices([("lo", "")], tmp_path)
    found = list(check_discovery([RULE], serving, kubeconfig, None, has_relays=True))
    assert [each.severity for each in found] == [Severity.NOTE, Severity.ERROR, Severity.ERROR, Severity.OK]
    (tmp_path / "osie.yaml").write_text(
        "apiVersion: tinkerbell.org/v1alpha2\nkind: OSIE\nmetadata: {name: hook, namespace: default}\n"
        "spec: {kernelUrl: 'http://192.0.2.9/k', initrdUrl: 'http://192.0.2.9/i'}\n"
    )
    found = list(check_discovery([RULE], serving, kubeconfig, tmp_path, has_relays=True))
    assert found[1].seen == "its OSIE default/hook is there"
    (only_lists,) = check_discovery([], serving, kubeconfig, tmp_path, has_relays=False)
    assert only_lists.name == "lists of expected machines"

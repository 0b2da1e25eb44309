"""The host controller and the migration: plan, definition, report, addresses, readiness."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.api import serving
from tests.support.objects import hardware
from tests.unit.metal3.hosts import V1ALPHA1, hosts
from tests.waiting import until
from tink.api.metal3.crds import generate
from tink.api.v1alpha2 import Raw
from tink.convert.metal3.versions import ConversionSettings
from tink.kube.objects import NamespacedName
from tink.metal3 import controller, migration
from tink.metal3.compare import Trip, differences
from tink.metal3.controller import Follower
from tink.metal3.definition import Definition
from tink.metal3.migration import (
    MAX_DIFFERENCES,
    Done,
    MigrationPlan,
    MigrationResult,
    MigrationSettings,
    Phase,
    Survey,
    details,
)
from tink.metal3.reconciler import Addresses, without
from tink.metal3.settings import Metal3Settings
from tink.webhooks import conversion
from tink.webhooks.claims import ClaimKind
from tink.webhooks.registration import Address

WEBHOOK = conversion.conversion(Address("/convert", url="https://h"), b"pem")


@cache
def generated() -> Raw:
    return generate(WEBHOOK)[0]


def defined(*, storage: str = "v1alpha1", stored: Any = ("v1alpha1",), served: Any = ("v1alpha1", "v1beta1")) -> Any:
    raw = copy.deepcopy(generated())
    raw["metadata"]["resourceVersion"] = "7"
    raw["status"] = {"storedVersions": list(stored)}
    for version in raw["spec"]["versions"]:
        version |= {"storage": version["name"] == storage, "served": version["name"] in served}
    return raw


def surveyed(raw: Any = None, **fields: Any) -> Survey:
    return Survey(Definition.of(raw or defined()), details_defined=True, **{"hosts": 5, **fields})


def planned(survey: Survey, **settings: Any) -> MigrationPlan:
    return migration.make_plan(survey, MigrationSettings(**settings))


def todo(made: MigrationPlan) -> dict[str, int]:
    return {step.phase.value: step.todo for step in made.steps}


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_plan_has_the_remaining_steps_for_each_state_of_the_cluster() -> None:
    missing = [NamespacedName("m", f"h{number}") for number in range(5)]
    first = planned(surveyed(missing=missing))
    assert todo(first) == {"hardware-data": 5, "storage": 1, "rewrite": 5, "stored-versions": 1}
    assert first.steps[0].text == "create 5 HardwareData: m/h0, m/h1, m/h2 and 2 more"
    assert first.problems == ()
    flipped = defined(storage="v1beta1", stored=("v1alpha1", "v1beta1"))
    assert todo(planned(surveyed(flipped))) == {"hardware-data": 0, "storage": 0, "rewrite": 5, "stored-versions": 1}
    done = defined(storage="v1beta1", stored=("v1beta1",))
    assert planned(surveyed(done)).finished
    stopping = planned(surveyed(done), through=Phase.SERVED)
    assert (todo(stopping)["served"], stopping.finished) == (1, False)
    faulty = planned(surveyed(done, fault="refused"))
    assert (faulty.finished, faulty.notes) == (True, ("hosts can't be converted: refused",))
    flipped_back = defined(storage="v1alpha1", stored=("v1beta1",))
    assert todo(planned(surveyed(flipped_back)))["rewrite"] == 5
    stopped = defined(storage="v1beta1", stored=("v1beta1",), served=("v1beta1",))
    assert planned(surveyed(stopped), through=Phase.SERVED).finished


@pytest.mark.parametrize(
    ("survey", "said"),
    [
        (Survey(None), "there is no CustomResourceDefinition baremetalhosts.metal3.io"),
        (surveyed(defined(served=("v1alpha1",))), "does not serve v1beta1"),
        (surveyed(defined(stored=("v1alpha1", "v1alpha0"))), "has hosts stored as v1alpha0, which is not known here"),
        (surveyed(defined(served=("v1beta1",))), "does not serve v1alpha1, so hosts can't be compared"),
        (surveyed(fault="refused"), "hosts can't be converted: refused. Does the webhook run?"),
        (surveyed(more_differences=3), "changes 3 fields"),
    ],
)
def test_dangerous_states_are_problems_with_advice(survey: Survey, said: str) -> None:
    (problem,) = planned(survey).problems
    assert said in problem
    assert (planned(survey, accept_differences=True).problems == ()) is ("fields" in said), "no other is accepted"


# --- what differs -----------------------------------------------------------------------------------------------------


def test_hosts_of_every_shape_come_back_without_a_difference() -> None:
    settings = ConversionSettings("auto")
    for host in hosts(V1ALPHA1, 500, 3):
        assert Trip.of(host, settings).differences(settings) == []


def test_difference_names_the_innermost_field_on_either_side_and_is_cut_short() -> None:
    server = {"name": "n", "uid": "1", "resourceVersion": "1"}
    before = {"metadata": {**server, "labels": {"a": "b"}}, "spec": {"a": [{"b": 1}, 2], "c": "x" * 500, "t": 1}}
    after = {"metadata": {"name": "n", "uid": "2"}, "spec": {"a": [{"b": 3}, 2], "t": True, "d": 4}}
    found = {each.path: (each.before[:6], each.after) for each in differences(before, after, "r")}
    assert found.pop("spec.c") == ('"xxxxx', "")
    assert found.pop("metadata.labels") == ('{"a":"', "")
    assert found == {"spec.a[0].b": ("1", "3"), "spec.t": ("1", "true"), "spec.d": ("", "4")}
    assert all(len(each.before) <= 120 for each in differences(before, after, "r"))
    many = {"metadata": {"name": "n"}, "spec": {str(number): number for number in range(100)}}
    assert len(differences(many, {"spec": {}}, "r")) == 20


def test_differences_of_very_many_hosts_are_counted_and_not_kept() -> None:
    before = {"metadata": {"name": "n"}, "spec": 1}
    survey = surveyed()
    for _ in range(MAX_DIFFERENCES + 5):
        survey.add(differences(before, {"spec": 2}, "r"))
    assert (len(survey.differences), survey.more_differences) == (MAX_DIFFERENCES, 5)
    lines = list(migration.plan_lines(survey, planned(survey)))
    assert len(lines) < 70
    assert f"... and {MAX_DIFFERENCES + 5 - 50} more differences" in lines


# --- the definition ---------------------------------------------------------------------------------------------------


def test_patches_of_the_definition_change_one_thing_of_the_state_that_was_read() -> None:
    now = Definition.of(defined())
    flipped = now.with_storage("v1beta1")
    assert flipped["metadata"] == {"resourceVersion": "7"}
    assert [each["storage"] for each in flipped["spec"]["versions"]] == [False, True]
    assert [each["schema"] for each in flipped["spec"]["versions"]] == [
        v["schema"] for v in now.raw["spec"]["versions"]
    ]
    stopped = now.without_served("v1alpha1")
    assert [each["served"] for each in stopped["spec"]["versions"]] == [False, True]
    assert [each["storage"] for each in stopped["spec"]["versions"]] == [True, False]
    assert now.with_stored("v1beta1")["status"] == {"storedVersions": ["v1beta1"]}


def test_update_keeps_foreign_versions_and_served_and_stored_flags() -> None:
    found = defined(storage="v1beta1", served=("v1beta1",))
    found["spec"]["versions"].append({"name": "v1", "served": True, "storage": False})
    updated = conversion.updated(found, generate(WEBHOOK)[0])
    assert {each["name"]: (each["served"], each["storage"]) for each in updated["spec"]["versions"]} == {
        "v1alpha1": (False, False),
        "v1beta1": (True, True),
        "v1": (True, False),
    }
    assert "conversion" not in updated["spec"], "it is registered apart"
    found["spec"]["versions"] = [{**generate()[0]["spec"]["versions"][0], "storage": True}]
    added = conversion.updated(found, generate()[0])["spec"]["versions"]
    assert [each["storage"] for each in added] == [True, False]


def test_registration_with_a_service_takes_the_url_away_and_the_other_way_round() -> None:
    service = conversion.conversion(Address("/convert", namespace="n", name="s"), b"pem")
    patched = conversion.conversion_patch(service)["spec"]["conversion"]["webhook"]
    assert patched["clientConfig"]["url"] is None
    assert patched["clientConfig"]["service"]["name"] == "s"
    assert patched["conversionReviewVersions"] == ["v1"]
    patched = conversion.conversion_patch(WEBHOOK)["spec"]["conversion"]["webhook"]
    assert (patched["clientConfig"]["url"], patched["clientConfig"]["service"]) == ("https://h/convert", None)


# --- HardwareData and the report --------------------------------------------------------------------------------------


def test_hardware_data_belongs_to_its_host_and_goes_with_it() -> None:
    made = details({"metadata": {"name": "n", "namespace": "m", "uid": "u"}}, {"hostname": "x"})
    assert made["metadata"]["namespace"] == "m"
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("u", True)
    assert made["spec"] == {"hardware": {"hostname": "x"}}


def test_failures_are_shown_the_first_ten_and_all_in_json() -> None:
    failed = Done(Phase.REWRITE, done=3, unneeded=2, failures=[f"f{number}" for number in range(30)])
    lines = list(migration.done_lines(failed))
    assert lines[0] == "rewrite: 3 done, 2 were so already, 30 failed"
    assert len(lines) == 11
    survey = surveyed(missing=[NamespacedName("m", "h")])
    made = json.loads(migration.as_json(survey, planned(survey), [failed], MigrationResult.FAILED, "why", applied=True))
    assert len(made["done"][0]["failures"]) == 30
    assert (made["outcome"], made["error"], made["applied"]) == ("failed", "why", True)
    assert made["before"]["storedVersions"] == ["v1alpha1"]
    assert made["hardwareDataMissing"] == ["m/h"]
    assert [step["phase"] for step in made["plan"]] == ["hardware-data", "storage", "rewrite", "stored-versions"]
    assert json.loads(migration.as_json(None, None, [], MigrationResult.FAILED, "why", applied=False))["done"] == []


KEY = NamespacedName("e", "host")
LEAVING = {"deletionTimestamp": "2027-01-15T08:00:00Z", "finalizers": ["example.org/held"]}
AGENT_ID = "tinkerbell.org/agent-id"


def wanted(mac: str = "m2", **dhcp: Any) -> Raw:
    return hardware(KEY.name, mac, "10.0.0.9", namespace=KEY.namespace, dhcp=dhcp)


def test_address_that_another_hardware_has_is_claimed_when_it_yields_it_and_the_waiting_host_is_notified() -> None:
    addresses = Addresses(lambda: 0.0)
    addresses.apply(hardware("a", "m2", None))
    assert [each.claim for each in addresses.claim(KEY, wanted(), None)] == [(ClaimKind.MAC, "m2")]
    assert addresses.apply(hardware("a", "m2", None, metadata=LEAVING)) == {KEY}
    assert addresses.claim(KEY, wanted(), None) == []
    # The Hardware of a host that is itself being deleted gains nothing of another, not even of one that leaves.
    addresses.apply(hardware("a", "m1", "10.0.0.9", metadata=LEAVING))
    own = hardware(KEY.name, "m2", None, namespace=KEY.namespace, metadata=LEAVING)
    addresses.apply(own)
    assert [each.claim for each in addresses.claim(KEY, wanted(), own)] == [(ClaimKind.IP, "10.0.0.9")]
    # Machines of another namespace use it as their gateway.
    addresses = Addresses(lambda: 0.0)
    there = hardware("a", "m1", "10.0.0.2", dhcp={"netmask": "255.255.255.0", "gateway": "10.0.0.9"})
    addresses.apply(there)
    assert [each.claim for each in addresses.claim(KEY, wanted(), None)] == [(ClaimKind.IP, "10.0.0.9")]
    assert addresses.remove(there) == {KEY}


def test_addresses_of_others_are_left_out_and_nothing_else() -> None:
    made = wanted(hostname="h", netmask="255.255.255.0", ipv6={"address": "fd00::0:9"})
    made["metadata"]["annotations"] = {AGENT_ID: "Rack1", "a": "b"}
    without(made, {(ClaimKind.IP, "fd00::9")})
    served = {"ip": "10.0.0.9", "hostname": "h", "netmask": "255.255.255.0"}
    assert made["spec"]["networkInterfaces"]["m2"]["dhcp"] == served
    without(made, {(ClaimKind.IP, "10.0.0.9"), (ClaimKind.AGENT_ID, "rack1")})
    assert made["spec"]["networkInterfaces"]["m2"]["dhcp"] == {"hostname": "h"}
    assert made["metadata"]["annotations"] == {"a": "b"}
    made = wanted(ipv6={"address": "fd00::9"})
    without(made, {(ClaimKind.IP, "10.0.0.9")})
    assert made["spec"]["networkInterfaces"]["m2"]["dhcp"] == {"ipv6": {"address": "fd00::9"}}


async def test_wrong_token_is_logged_repeatedly_with_advice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "_LOG_AGAIN_FIRST", 0.1)
    monkeypatch.setattr(controller, "_LOG_AGAIN_LONGEST", 0.1)
    async with serving(tmp_path / "state") as (api, _):
        content = api.kubeconfig.read_text()
        wrong = tmp_path / "wrong.kubeconfig"
        wrong.write_text(content.replace((tmp_path / "state" / "token").read_text().strip(), "tinkedge.wrong"))
        follower = Follower(wrong, None, (), Metal3Settings(), None)
        running = asyncio.create_task(follower.run())
        try:
            with caplog.at_level(logging.WARNING):
                await until(lambda: caplog.text.count("is what --kubeconfig has") >= 3)
            assert "Unauthorized" in follower.not_ready
            assert " s now" in caplog.text
        finally:
            running.cancel()
            await asyncio.wait([running])

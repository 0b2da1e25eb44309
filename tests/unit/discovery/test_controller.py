"""The discovery controller over the in-process API with its admission reviews, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client.core import CollectorRegistry

from edge.fleet.discovery import ERRORS
from tests.support import objects
from tests.support.api import InProcessApi
from tests.support.discovery import Site, mac, name, plant
from tests.support.virtual_time import elapse
from tink.api.annotations import DISCOVERY_ADDRESS_ANNOTATION, DISCOVERY_BOOT_ANNOTATION
from tink.api.v1alpha2 import Raw
from tink.discovery.controller import INTRODUCTION_SECONDS, UNLISTED_SECONDS, DiscoveryController
from tink.discovery.model import DISCOVERY_FINALIZER, VerdictReason, discovered_name
from tink.kube.client import ApiError, ConflictError, UnreachableError
from tink.kube.resources import CONFIG_MAP, EVENT, HARDWARE, LEASE, MACHINE, WORKFLOW
from tink.kube.runtime import LeaderElectionConfig, LeaderElector
from tink.timestamps import rfc3339
from tink.webhooks.admission import ReviewPlugin
from tink.workflow.status import parse_timestamp

pytestmark = [pytest.mark.looptime, pytest.mark.long]

NOW = 1_800_000_000.0
MAC, NAME = objects.MAC, discovered_name(objects.MAC)
OTHER = "52:54:00:00:00:02"
FACTS = {"product": {"vendor": "Dell Inc.", "model": "R650", "serialNumber": "ABC1234"}, "bmc": {"address": "10.9.0.7"}}
HEADER = "name,serial,mac,ip,gateway,hostname,osie,labels,model,bmc_address,bmc_secret\n"
LINE = "m1,ABC1234,,192.0.2.10/24,192.0.2.254,m1,hook,rack=7,R650,,\n"


# --- objects ----------------------------------------------------------------------------------------------------------


def discovered(
    mac: str = MAC,
    ip: str = "192.0.2.200",
    facts: Raw | None = FACTS,
    *,
    namespace: str = "default",
    rule: str = "rack7",
    created: float = NOW,
    **annotations: str,
) -> Raw:
    """Return a discovered Hardware; without `facts`, its machine has reported no inventory."""
    found = objects.hardware(
        discovered_name(mac),
        mac,
        ip,
        namespace=namespace,
        dhcp={"netmask": "255.255.255.0", "leaseTimeSeconds": 300},
        annotations={
            "tinkerbell.org/discovery-rule": rule,
            **{f"tinkerbell.org/{name}": value for name, value in annotations.items()},
        },
        metadata={
            "labels": {"tinkerbell.org/auto-discovered": "true"},
            "finalizers": [DISCOVERY_FINALIZER],
            "creationTimestamp": rfc3339(created),
        },
        osie={"name": "hook"},
    )
    return found | ({"status": {"inventory": {"inBand": facts}}} if facts is not None else {})


def listed(*lines: str, name: str = "rack7", namespace: str = "default", header: str = HEADER) -> Raw:
    """Return a ConfigMap with one list."""
    labels = {"tinkerbell.org/expected-machines": "true"}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"list.csv": header + "".join(lines)},
    }


# --- the rig ----------------------------------------------------------------------------------------------------------


class Rig:
    """The API with objects and its admission reviews, and one discovery controller or two."""

    def __init__(self, *there: Raw) -> None:
        self._loop = asyncio.get_event_loop()
        self._begun = self._loop.time()
        kinds = {"tinkerbell.org/hardware": HARDWARE}

        async def find(key: str, namespace: str, name: str) -> Raw | None:
            return self.api.read(kinds[key], name, namespace) if key in kinds else None

        self.api = InProcessApi(plugin=ReviewPlugin(find), now=lambda: datetime.fromtimestamp(self.now(), UTC))
        for obj in there:
            self.api.put(obj)
        self.controllers: list[DiscoveryController] = []

    def now(self) -> float:
        return NOW + self._loop.time() - self._begun

    @contextlib.asynccontextmanager
    async def running(self, *, replicas: int = 1) -> AsyncIterator[None]:
        """Run the controller until the block ends; a further `running` is a restart of the process."""
        tasks = []
        self.controllers = []
        informers = {each: self.api.informer(each) for each in (CONFIG_MAP, WORKFLOW, HARDWARE)}
        for number in range(replicas):
            elector = None
            if replicas > 1:
                config = LeaderElectionConfig("tinkedge-discovery")
                elector = LeaderElector(
                    self.api,  # type: ignore[arg-type] # it has the calls of KubeClient
                    config,
                    identity=f"replica {number}",
                    clock=self._loop.time,
                    now=self.now,
                )
            controller = DiscoveryController(
                self.api,  # type: ignore[arg-type]
                informers,
                elector=elector,
                now=self.now,
                elapsed=self._loop.time,
            )
            self.controllers.append(controller)
            tasks.append(asyncio.create_task(controller.run()))
        self.tasks = tasks
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.result()

    def hardware(self, name: str = NAME, namespace: str = "default") -> Raw | None:
        return self.api.read(HARDWARE, name, namespace)

    def there(self, name: str = NAME, namespace: str = "default") -> Raw:
        found = self.hardware(name, namespace)
        assert found is not None, [each["metadata"]["name"] for each in self.api.objects(HARDWARE)]
        return found

    def names(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.api.objects(HARDWARE)]

    def judged(self, name: str = NAME) -> Raw:
        conditions = (self.hardware(name) or {}).get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == "AsExpected"), {})

    def events(self, reason: str = "") -> list[str]:
        found = [each for each in self.api.objects(EVENT) if reason in ("", each["reason"])]
        return [f"{each['involvedObject']['name']}: {each['reason']}: {each['message']}" for each in found]

    async def approve(self, name: str) -> None:
        """Approve the discovered machine, as `kubectl annotate` does."""
        await self.api.patch(HARDWARE, NAME, "default", {"metadata": {"annotations": {"tinkerbell.org/approve": name}}})

    def metric(self, name: str, **labels: str) -> float | None:
        registry = CollectorRegistry()
        registry.register(self.controllers[0])
        return registry.get_sample_value(f"tinkedge_discovery_{name}", labels)

    async def until(self, holds: Callable[[], Any], within: float = 300.0) -> Any:
        end = self._loop.time() + within
        while not (value := holds()):
            assert self._loop.time() < end, ("it did not happen", self.api.objects(HARDWARE), self.events())
            await elapse(0.25)
        return value


# --- approval by a list -----------------------------------------------------------------------------------------------


async def test_machine_on_a_list_becomes_the_hardware_of_its_line() -> None:
    rig = Rig(discovered(), listed(LINE))
    async with rig.running():
        await rig.until(lambda: rig.names() == ["m1"])
        await elapse(5)
    made = rig.there("m1")
    assert made["spec"] == {
        "networkInterfaces": {
            MAC: {
                "dhcp": {
                    "ip": "192.0.2.10",
                    "netmask": "255.255.255.0",
                    "gateway": "192.0.2.254",
                    "hostname": "m1",
                    "leaseTimeSeconds": 86400,
                },
                "disableDhcp": False,
                "disableNetboot": False,
            }
        },
        "osie": {"name": "hook"},
    }
    metadata = made["metadata"]
    assert "finalizers" not in metadata
    assert metadata["annotations"] == {
        "tinkerbell.org/discovered-as": NAME,
        "tinkerbell.org/discovery-address": "192.0.2.200",
    }
    expected = {"rack": "7", "tinkerbell.org/model": "R650", "tinkerbell.org/serial": "ABC1234"}
    assert expected.items() <= metadata["labels"].items()
    assert "tinkerbell.org/auto-discovered" not in metadata["labels"]
    assert made["status"]["inventory"]["inBand"]["product"] == FACTS["product"]
    assert rig.judged("m1")["reason"] == "Matches"
    assert [
        each
        for each in rig.events("Approved")
        if each.startswith(f"m1: Approved: discovered as Hardware default/{NAME}")
    ]


async def test_machine_without_an_inventory_is_not_approved_by_a_list() -> None:
    rig = Rig(discovered(facts=None), listed(LINE, f"m2,,{MAC},192.0.2.11/24,,,,,,,\n"))
    async with rig.running():
        await elapse(60)
        assert rig.names() == [NAME]
        rig.api.change(HARDWARE, NAME, status={"inventory": {"inBand": {"product": {"serialNumber": "OTHER99"}}}})
        await rig.until(lambda: rig.names() == ["m2"])


async def test_corrected_line_is_looked_at_again_at_once() -> None:
    rig = Rig(discovered(), listed(LINE.replace("ABC1234", "ABC1243")))
    async with rig.running():
        await rig.until(lambda: rig.judged().get("reason") == "NotExpected")
        assert rig.judged()["status"] == "False"
        rig.api.put(listed(LINE))
        await elapse(1)
        assert rig.names() == ["m1"]


async def test_machine_moves_to_the_namespace_of_its_list() -> None:
    rig = Rig(discovered(rule="rack7,lists=berlin"), listed(LINE.replace("hook", ""), namespace="berlin"))
    async with rig.running():
        await rig.until(lambda: rig.names() == ["m1"])
    made = rig.there("m1", "berlin")
    assert "osie" not in made["spec"], "the OSIE of the rule is in another namespace"


async def test_list_of_a_namespace_that_the_rule_does_not_count_approves_no_machine() -> None:
    """Another tenant knows the serial number, and has a machine of the same name and serial number on a list."""
    foreign = listed(LINE, f"m2,,{MAC},,,,,,,,\n", namespace="berlin")
    rig = Rig(discovered(), foreign, discovered(OTHER, "192.0.2.201", {"product": {"serialNumber": "DEF5678"}}))
    async with rig.running():
        await elapse(60)
        assert rig.names() == [NAME, discovered_name(OTHER)]
        assert rig.judged()["reason"] == "NoExpectations", "the list of another tenant demands nothing of the machine"
        rig.api.put(listed(LINE))
        await rig.until(lambda: "m1" in rig.names())
        assert rig.there("m1")["spec"]["networkInterfaces"][MAC]["dhcp"]["ip"] == "192.0.2.10"
        assert rig.judged("m1")["reason"] == "Matches", "the same line elsewhere is no conflict"
        await rig.until(lambda: rig.judged(discovered_name(OTHER)).get("reason") == "NotExpected")
        assert "no list of expected machines in namespace default has" in rig.judged(discovered_name(OTHER))["message"]


async def test_lines_of_two_namespaces_that_a_rule_counts_are_a_conflict() -> None:
    lists = listed(LINE), listed(LINE, namespace="berlin")
    rig = Rig(discovered(rule="rack7,lists=*"), *lists)
    async with rig.running():
        await rig.until(lambda: rig.judged().get("reason") == "Conflict")
        assert "several lines fit" in rig.judged()["message"]
        assert rig.names() == [NAME]


async def test_name_that_an_operator_gives_applies_no_line_that_the_rule_does_not_count() -> None:
    rig = Rig(discovered(rule="rack7,lists=berlin"), listed(LINE.replace("ABC1234", "OTHER99")))
    async with rig.running():
        await elapse(5)
        await rig.approve("m1")
        await rig.until(lambda: rig.names() == ["m1"])
        assert rig.there("m1")["spec"]["networkInterfaces"][MAC]["dhcp"]["ip"] == "192.0.2.200"


async def test_registered_machine_is_compared_with_the_lists_of_its_own_namespace() -> None:
    hardware = objects.hardware("m1", MAC, "192.0.2.10", namespace="berlin")
    rig = Rig(
        hardware | {"status": {"inventory": {"inBand": FACTS}}},
        listed(LINE.replace("R650", "R750")),
        listed(LINE, namespace="berlin"),
    )
    async with rig.running():
        await rig.until(lambda: rig.there("m1", "berlin").get("status", {}).get("conditions"))
        (condition,) = rig.there("m1", "berlin")["status"]["conditions"]
        assert (condition["type"], condition["reason"]) == ("AsExpected", "Matches")


async def test_bmc_machine_is_made_of_the_list_and_belongs_to_the_hardware() -> None:
    rig = Rig(discovered(), listed(LINE.replace("R650,,", "R650,bmc1.example.org,bmc-auth")))
    async with rig.running():
        await rig.until(lambda: rig.names() == ["m1"])
    made = rig.there("m1")
    assert made["spec"]["bmcRef"] == {"name": "m1"}
    machine = rig.api.read(MACHINE, "m1")
    assert machine is not None
    assert machine["spec"]["connection"] == {
        "host": "bmc1.example.org",
        "port": 623,
        "insecureTLS": False,
        "authSecretRef": {"name": "bmc-auth", "namespace": "default"},
    }
    assert machine["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]


@pytest.mark.parametrize(
    ("address", "is_used"),
    [("10.9.0.7", True), ("127.0.0.1", False), ("169.254.169.254", False), ("224.0.0.1", False), ("x", False)],
)
async def test_password_goes_to_a_reported_bmc_only_by_verified_redfish_and_only_to_a_host(
    address: str, is_used: bool
) -> None:
    facts = {**FACTS, "bmc": {"address": address}}
    rig = Rig(discovered(facts=facts), listed(LINE.replace("R650,,", "R650,,bmc-auth")))
    async with rig.running():
        await rig.until(lambda: rig.names() == ["m1"])
    machine = rig.api.read(MACHINE, "m1")
    assert ("bmcRef" in rig.there("m1")["spec"]) == is_used == (machine is not None)
    if machine is not None:
        connection = machine["spec"]["connection"]
        assert (connection["host"], connection["insecureTLS"]) == (address, False)
        assert connection["providerOptions"] == {"preferredOrder": ["gofish"]}


async def test_machine_of_an_operator_stays_and_a_refused_one_does_not_hold_up_the_approval() -> None:
    own = {
        "apiVersion": MACHINE.api_version,
        "kind": "Machine",
        "metadata": {"name": "m1", "namespace": "default"},
        "spec": {"connection": {"host": "10.9.0.1", "insecureTLS": True}},
    }
    lines = LINE.replace("R650,,", "R650,10.9.0.7,bmc-auth"), "m2,DEF,,192.0.2.11/24,,,,,,10.9.0.8,bmc-auth\n"
    second = discovered(OTHER, "192.0.2.201", {"product": {"serialNumber": "DEF"}})
    rig = Rig(discovered(), second, own, listed(*lines))
    rig.api.fail("create", ConflictError(409, "AlreadyExists", "there"), ApiError(403, "Forbidden", "no"), of=MACHINE)
    async with rig.running():
        await rig.until(lambda: rig.names() == ["m1", "m2"])
        await elapse(5)
    assert (rig.api.read(MACHINE, "m1") or {})["spec"]["connection"]["host"] == "10.9.0.1"
    assert len(rig.events("BmcNotCreated")) == 1


# --- approval by an operator ------------------------------------------------------------------------------------------


async def test_annotation_approves_a_machine_under_a_name_and_keeps_its_address() -> None:
    rig = Rig(discovered())
    async with rig.running():
        await rig.until(lambda: rig.judged().get("reason") == "NoExpectations")
        await rig.approve("web1")
        await rig.until(lambda: rig.names() == ["web1"])
    made = rig.there("web1")
    assert made["spec"]["networkInterfaces"][MAC]["dhcp"]["ip"] == "192.0.2.200"
    assert made["metadata"]["annotations"] == {"tinkerbell.org/discovered-as": NAME}
    assert "tinkerbell.org/auto-discovered" not in made["metadata"].get("labels", {})
    assert rig.metric("approved_total", by="annotation") == 1


async def test_annotation_true_keeps_the_name() -> None:
    rig = Rig(discovered(approve="true"), listed(LINE))
    async with rig.running():
        await rig.until(lambda: "finalizers" not in rig.there()["metadata"])
        await elapse(UNLISTED_SECONDS + INTRODUCTION_SECONDS)
    kept = rig.there()
    assert "tinkerbell.org/auto-discovered" not in kept["metadata"]["labels"]
    assert "tinkerbell.org/approve" not in kept["metadata"]["annotations"]
    assert kept["spec"]["networkInterfaces"][MAC]["dhcp"]["ip"] == "192.0.2.200"


async def test_annotation_with_the_name_of_a_line_applies_the_line() -> None:
    rig = Rig(discovered(facts=None, approve="m1"), listed(LINE))
    async with rig.running():
        await rig.until(lambda: rig.names() == ["m1"])
    assert rig.there("m1")["spec"]["networkInterfaces"][MAC]["dhcp"]["ip"] == "192.0.2.10"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Web_1", "'Web_1' is no name of an object"),
        ("x" * 254, "is no name of an object"),
        ("a/b", "is no name of an object"),
        ("discovery-x", "is a name for discovered machines"),
        ("taken", "a Hardware of this name exists already"),
    ],
)
async def test_name_that_cannot_be_used_is_reported_and_changes_nothing(name: str, text: str) -> None:
    there = objects.hardware("taken", OTHER, "192.0.2.2")
    rig = Rig(discovered(facts=None, approve=name), there)
    async with rig.running():
        await rig.until(lambda: rig.events("NotApproved"))
        assert text in rig.judged()["message"]
        assert rig.judged()["status"] == "False"
        assert text in rig.events("NotApproved")[0]
        await elapse(2 * INTRODUCTION_SECONDS)
        assert rig.names() == [NAME, "taken"], "an operator who annotates it wants to keep it"
        assert rig.there("taken")["spec"] == there["spec"]
        assert len(rig.events("NotApproved")) == 1
        await rig.approve("web1")
        await rig.until(lambda: rig.names() == ["taken", "web1"])


async def test_name_on_a_list_that_exists_is_a_conflict_until_the_other_hardware_is_gone() -> None:
    there = objects.hardware("m1", OTHER, "192.0.2.2")
    rig = Rig(discovered(), there, listed(LINE))
    async with rig.running():
        await rig.until(lambda: rig.judged().get("reason") == "Conflict")
        assert "Hardware default/m1 exists already" in rig.judged()["message"]
        await elapse(60)
        assert rig.there("m1")["spec"] == there["spec"]
        rig.api.remove(HARDWARE, "m1")
        await elapse(1)
        assert rig.names() == ["m1"]
        assert MAC in rig.there("m1")["spec"]["networkInterfaces"]


async def test_address_of_another_hardware_is_an_obstacle_before_anything_changes() -> None:
    rig = Rig(discovered(), objects.hardware("other", OTHER, "192.0.2.10"), listed(LINE))
    async with rig.running():
        await rig.until(lambda: rig.judged().get("reason") == "Conflict")
        assert "IP address 192.0.2.10 is that of Hardware default/other" in rig.judged()["message"]
        assert "deletionTimestamp" not in rig.there()["metadata"]
        rig.api.put(objects.hardware("other", OTHER, "192.0.2.11"))
        await elapse(1)
        assert rig.names() == ["m1", "other"]


async def test_approval_waits_for_the_end_of_a_workflow_of_the_discovered_hardware() -> None:
    rig = Rig(discovered(), objects.workflow("w", "Running", hardware=NAME), listed(LINE))
    async with rig.running():
        await rig.until(lambda: "Workflow default/w names" in rig.judged().get("message", ""))
        rig.api.put(objects.workflow("w", "Succeeded", hardware=NAME))
        await elapse(1)
        assert rig.names() == ["m1"]


async def test_conflict_refuses_approval_by_list_and_by_annotation() -> None:
    known = objects.hardware("known", OTHER, "192.0.2.2") | {"status": {"inventory": {"outOfBand": FACTS}}}
    rig = Rig(discovered(), known, listed(LINE))
    async with rig.running():
        await rig.until(lambda: rig.judged().get("status") == "False")
        await rig.approve("web1")
        await elapse(60)
        assert rig.names() == [NAME, "known"]
        assert list(rig.there("known")["spec"]["networkInterfaces"]) == [OTHER]
        # The other Hardware is judged again when this one is gone.
        await rig.until(lambda: rig.judged("known").get("status") == "False")
        rig.api.remove(CONFIG_MAP, "rack7")
        rig.api.remove(HARDWARE, NAME)
        await elapse(1)
        assert rig.judged("known")["reason"] == "NoExpectations"


async def test_rule_approves_each_machine_that_has_introduced_itself_under_its_own_name() -> None:
    rig = Rig(discovered(facts=None, rule="rack7,approve=all"))
    async with rig.running():
        await elapse(60)
        assert "tinkerbell.org/auto-discovered" in rig.there()["metadata"]["labels"], "it has reported nothing yet"
        rig.api.change(HARDWARE, NAME, status={"inventory": {"inBand": FACTS}})
        await rig.until(lambda: "tinkerbell.org/auto-discovered" not in rig.there()["metadata"]["labels"])
        assert rig.there()["metadata"].get("finalizers") in (None, [])
        (event,) = await rig.until(lambda: rig.events("Approved"))
        assert event.endswith(f"discovered as Hardware default/{NAME}, approved by rule rack7 of --discover")
        assert rig.metric("approved_total", by="rule") == 1


async def test_list_and_conflict_come_before_a_rule_that_approves_all() -> None:
    rig = Rig(discovered(rule="rack7,approve=all"), listed(LINE))
    async with rig.running():
        await rig.until(lambda: rig.names() == ["m1"])
    known = objects.hardware("known", OTHER, "192.0.2.2") | {"status": {"inventory": {"outOfBand": FACTS}}}
    rig = Rig(discovered(rule="rack7,approve=all"), known)
    async with rig.running():
        await rig.until(lambda: rig.judged().get("status") == "False")
        await elapse(60)
        assert "tinkerbell.org/auto-discovered" in rig.there()["metadata"]["labels"]


# --- crashes and replicas ---------------------------------------------------------------------------------------------

STEPS = {
    "mark": ("patch", HARDWARE, 1),
    "delete": ("delete", HARDWARE, 1),
    "create": ("create", HARDWARE, 1),
    "inventory": ("patch", HARDWARE, 2),
    "machine": ("create", MACHINE, 1),
    "finalizer": ("patch", HARDWARE, 3),
}


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
async def test_approval_continues_after_a_crash_at_each_step(step: str, done: bool) -> None:
    rig = Rig(discovered(), listed(LINE.replace("R650,,", "R650,10.9.0.7,bmc-auth")))
    verb, resource, number = STEPS[step]
    reached = asyncio.Event()

    async def crash() -> None:
        reached.set()
        for task in rig.tasks:
            task.cancel()
        await asyncio.Event().wait()

    async def nothing() -> None:
        pass

    for _ in range(number - 1):
        rig.api.around(verb, before=nothing, of=resource)
    rig.api.around(verb, of=resource, **{"after" if done else "before": crash})
    with contextlib.suppress(asyncio.CancelledError):
        async with rig.running():
            await rig.until(reached.is_set)
    assert reached.is_set()
    async with rig.running():
        await rig.until(lambda: rig.names() == ["m1"])
        await elapse(5)
    made = rig.there("m1")
    assert made["status"]["inventory"]["inBand"]["product"] == FACTS["product"]
    assert made["spec"]["bmcRef"] == {"name": "m1"}
    assert rig.api.read(MACHINE, "m1") is not None
    assert rig.judged("m1")["reason"] == "Matches"


async def test_name_that_another_hardware_takes_during_the_approval_is_left_alone() -> None:
    rig = Rig(discovered(), listed(LINE))

    async def take_the_name() -> None:
        rig.api.put(objects.hardware("m1", OTHER, "192.0.2.2"))

    rig.api.around("create", before=take_the_name, of=HARDWARE)
    async with rig.running():
        await rig.until(lambda: rig.events("NotApproved"))
        assert rig.names() == [NAME, "m1"]
        assert list(rig.there("m1")["spec"]["networkInterfaces"]) == [OTHER]
        rig.api.remove(HARDWARE, "m1")
        await rig.until(lambda: rig.names() == ["m1"])
        assert list(rig.there("m1")["spec"]["networkInterfaces"]) == [MAC]


async def test_one_of_two_machines_that_fit_one_line_is_approved_and_the_other_is_shown() -> None:
    second = discovered(OTHER, "192.0.2.201", {"product": {"serialNumber": "XYZ9876", "model": "R650"}})
    rig = Rig(discovered(), second, listed(LINE.replace("ABC1234", "ABC1234|XYZ9876")))
    async with rig.running():
        await rig.until(lambda: "m1" in rig.names() and len(rig.names()) == 2)
        (left,) = [each for each in rig.names() if each != "m1"]
        await rig.until(lambda: rig.judged(left).get("reason") == "Conflict")
        await elapse(UNLISTED_SECONDS)
        assert "deletionTimestamp" not in rig.there(left)["metadata"]
        assert rig.metric("approved_total", by="list") == 1


async def test_errors_of_the_api_at_each_write_delay_the_approval_and_nothing_else() -> None:
    other = discovered(OTHER, "192.0.2.201", {"product": {"serialNumber": "DEF"}})
    rig = Rig(discovered(), other, listed(LINE, "m2,DEF,,192.0.2.11/24,,,,,,,\n"))
    for verb in ("patch", "delete", "create"):
        rig.api.fail(verb, UnreachableError("away"), UnreachableError("away"), of=HARDWARE)
        rig.api.fail(verb, UnreachableError("no answer"), ConflictError(409, "Conflict", "x"), of=HARDWARE, done=True)
    async with rig.running():
        await rig.until(lambda: rig.names() == ["m1", "m2"])
    assert rig.there("m1")["status"]["inventory"]["inBand"]["product"] == FACTS["product"]


async def test_one_of_two_replicas_approves_and_the_other_takes_over() -> None:
    rig = Rig(discovered(), listed(LINE))
    async with rig.running(replicas=2):
        await rig.until(lambda: rig.names() == ["m1"])
        approved = [each._approved["list",] for each in rig.controllers]
        assert sorted(approved) == [0, 1]
        rig.tasks[approved.index(1)].cancel()
        second = discovered(OTHER, "192.0.2.201", {"product": {"serialNumber": "DEF"}})
        rig.api.put(second)
        rig.api.put(listed(LINE, "m2,DEF,,192.0.2.11/24,,,,,,,\n"))
        await rig.until(lambda: rig.names() == ["m1", "m2"])


async def test_lease_is_taken_when_there_is_a_machine_or_a_list() -> None:
    rig = Rig(objects.hardware("m1", OTHER, "192.0.2.2"))
    async with rig.running(replicas=2):
        await elapse(60)
        assert rig.api.objects(LEASE) == []
        rig.api.put(listed(LINE))
        await rig.until(lambda: rig.api.objects(LEASE))
        rig.api.put(discovered())
        await rig.until(lambda: "Hardware default/m1 exists already" in rig.judged().get("message", ""))


async def test_object_that_the_api_refuses_stops_no_other_one() -> None:
    rig = Rig(discovered(), listed(LINE, "m2,DEF,,192.0.2.11/24,,,,,,,\n"))
    rig.api.put(discovered(OTHER, "192.0.2.201", {"product": {"serialNumber": "DEF"}}))
    rig.api.fail("create", *[ApiError(422, "Invalid", "spec: refused")] * 6, of=HARDWARE)
    async with rig.running():
        await rig.until(lambda: rig.events("NotApproved"))
        assert "spec: refused" in rig.events("NotApproved")[0]
        await rig.until(lambda: rig.names() == ["m1", "m2"])


# --- the end of discovered Hardware -----------------------------------------------------------------------------------


async def test_operator_deletes_a_discovered_hardware() -> None:
    rig = Rig(discovered(facts=None))
    async with rig.running():
        await elapse(1)
        await rig.api.delete(HARDWARE, NAME, "default")
        await elapse(0.1)
        assert rig.names() == []


async def test_mark_of_an_approval_moves_no_machine_to_a_namespace_whose_lists_do_not_name_it() -> None:
    rig = Rig(discovered(**{"approved-as": "berlin/m1"}), listed(LINE.replace("m1", "m3"), namespace="berlin"))
    await rig.api.delete(HARDWARE, NAME, "default")
    async with rig.running():
        await elapse(5)
    assert rig.names() == []


async def test_approval_does_not_hold_up_the_deletion_of_its_namespace() -> None:
    rig = Rig(discovered(**{"approve": "m7", "approved-as": "default/m7"}))
    await rig.api.delete(HARDWARE, NAME, "default")
    text = "unable to create new content in namespace default because it is being terminated"
    rig.api.fail("create", *[ApiError(403, "Forbidden", f'hardware "m7" is forbidden: {text}')] * 3, of=HARDWARE)
    async with rig.running():
        await elapse(5)
        assert rig.names() == []
        assert any(text in each for each in rig.events("NotApproved"))


async def test_mark_of_an_approval_moves_no_machine_that_the_line_of_that_name_does_not_fit() -> None:
    """A user who may annotate Hardware in one namespace has no rights in that of the list."""
    stranger = {"product": {"serialNumber": "OTHER99"}}
    rig = Rig(discovered(facts=stranger, **{"approved-as": "berlin/m1"}), listed(LINE, namespace="berlin"))
    await rig.api.delete(HARDWARE, NAME, "default")
    async with rig.running():
        await elapse(5)
    assert rig.names() == []


async def test_hardware_with_the_label_that_discovery_has_not_named_is_never_removed() -> None:
    """An operator has registered a machine by an edited copy of a discovered Hardware, and the machine is off."""
    copied = discovered(facts=None)
    copied["metadata"]["name"] = "web-1"
    rig = Rig(copied, discovered(OTHER, "192.0.2.201", facts=None))
    async with rig.running():
        await elapse(INTRODUCTION_SECONDS + 60)
        assert rig.names() == ["web-1"]


@pytest.mark.parametrize("skew", [3600.0, 1e8])
async def test_machine_has_its_time_to_introduce_itself_although_the_clock_is_ahead(skew: float) -> None:
    rig = Rig(discovered(facts=None, created=NOW - skew))
    async with rig.running():
        await elapse(INTRODUCTION_SECONDS - 60)
        assert rig.names() == [NAME]
        await elapse(61)
        assert rig.names() == []


async def test_machine_that_never_introduces_itself_is_removed_after_half_an_hour() -> None:
    rig = Rig(discovered(facts=None), discovered(OTHER, "192.0.2.201", facts=None))
    rig.api.put(objects.workflow("w", "Pending", hardware=discovered_name(OTHER)))
    async with rig.running():
        await elapse(INTRODUCTION_SECONDS - 60)
        assert rig.names() == [NAME, discovered_name(OTHER)]
        await elapse(61)
        assert rig.names() == [discovered_name(OTHER)], "a Workflow names it"
        assert rig.metric("expired_total", reason="NotIntroduced") == 1
        rig.api.remove(WORKFLOW, "w")
        await elapse(1)
        assert rig.names() == []


async def test_hardware_of_a_machine_that_declined_its_address_is_deleted_at_once_unless_it_is_in_use() -> None:
    def conflict(address: str) -> Raw:
        message = f"{address} is used by another host: {MAC} declined it; it is not offered until then"
        found = {"type": "AddressConflict", "status": "True", "reason": "DeclinedByClient", "message": message}
        return {"inventory": {"inBand": FACTS}, "conditions": [found]}

    other = discovered_name(OTHER)
    rig = Rig(discovered(), discovered(OTHER, "192.0.2.201"), objects.workflow("w", "Pending", hardware=other))
    async with rig.running():
        await elapse(5)
        rig.api.change(HARDWARE, NAME, status=conflict("192.0.2.99"))
        await elapse(5)
        assert rig.names() == [NAME, other], "the operator has changed the address"
        rig.api.change(HARDWARE, NAME, status=conflict("192.0.2.200"))
        rig.api.change(HARDWARE, other, status=conflict("192.0.2.201"))
        await elapse(5)
        assert rig.names() == [other], "a Workflow names it"
        assert rig.metric("expired_total", reason="AddressDeclined") == 1
        assert len(rig.events("AddressDeclined")) == 1


async def test_machine_that_introduces_itself_stays() -> None:
    rig = Rig(discovered(facts=None))
    async with rig.running():
        await elapse(60)
        rig.api.change(HARDWARE, NAME, status={"inventory": {"inBand": FACTS}})
        await elapse(2 * UNLISTED_SECONDS)
        assert rig.names() == [NAME]


async def test_machine_of_a_rule_for_listed_machines_is_not_booted_and_is_removed_after_a_day() -> None:
    rig = Rig(discovered(rule="rack7,only=listed"), listed("m9,XYZ,,192.0.2.19/24,,,,,,,\n"))
    async with rig.running():
        await rig.until(lambda: rig.judged().get("reason") == "NotExpected")
        await rig.until(lambda: rig.there()["spec"]["networkInterfaces"][MAC].get("disableNetboot"))
        await elapse(UNLISTED_SECONDS - 60)
        assert rig.names() == [NAME]
        await elapse(120)
        assert rig.names() == []
        assert rig.metric("expired_total", reason="NotExpected") == 1


async def test_machine_that_was_not_listed_netboots_after_its_line_is_corrected() -> None:
    rig = Rig(discovered(rule="rack7,only=listed"), listed(LINE.replace("ABC1234", "ABC1243")))
    async with rig.running():
        await rig.until(lambda: rig.there()["spec"]["networkInterfaces"][MAC].get("disableNetboot"))
        rig.api.put(listed(LINE))
        await rig.until(lambda: rig.names() == ["m1"])
    assert not rig.there("m1")["spec"]["networkInterfaces"][MAC]["disableNetboot"]


@pytest.mark.parametrize("approve", ["web1", "true"])
async def test_machine_that_no_list_names_netboots_after_an_operator_has_approved_it(approve: str) -> None:
    rig = Rig(discovered(rule="rack7,only=listed"), listed("m9,XYZ,,192.0.2.19/24,,,,,,,\n"))
    async with rig.running():
        await rig.until(lambda: rig.there()["spec"]["networkInterfaces"][MAC].get("disableNetboot"))
        await rig.approve(approve)
        after = NAME if approve == "true" else approve
        await rig.until(lambda: rig.names() == [after] and "finalizers" not in rig.there(after)["metadata"])
        await elapse(UNLISTED_SECONDS)
    assert rig.names() == [after]
    assert not rig.there(after)["spec"]["networkInterfaces"][MAC].get("disableNetboot")


# --- condition, labels, address ---------------------------------------------------------------------------------------


async def test_condition_is_written_on_change_alone_and_bad_news_are_events() -> None:
    known = objects.hardware("m1", MAC) | {
        "status": {"inventory": {"inBand": FACTS}, "conditions": [{"type": "X", "status": "True"}]}
    }
    rig = Rig(known, listed(LINE))
    async with rig.running():
        await rig.until(lambda: rig.judged("m1").get("reason") == "Matches")
        since = rig.judged("m1")["lastTransitionTime"]
        assert rig.events() == []
        writes = rig.api.count("patch")
        rig.api.change(HARDWARE, "m1", metadata={"labels": {"a": "b"}})
        await elapse(60)
        assert rig.api.count("patch") == writes
        rig.api.put(listed(LINE.replace("R650", "R750")))
        await rig.until(lambda: rig.judged("m1").get("reason") == "WrongModel")
        assert rig.judged("m1")["lastTransitionTime"] > since
        await rig.until(lambda: rig.events("WrongModel"))
        rig.api.put(listed(LINE))
        await rig.until(lambda: rig.judged("m1").get("reason") == "Matches")
        assert [each["type"] for each in rig.there("m1")["status"]["conditions"]] == ["X", "AsExpected"]


async def test_registered_machine_is_judged_again_when_another_one_reports_its_serial_number() -> None:
    rig = Rig(objects.hardware("m1", MAC) | {"status": {"inventory": {"inBand": FACTS}}})
    async with rig.running():
        await rig.until(lambda: rig.judged("m1").get("reason") == "NoExpectations")
        rig.api.put(objects.hardware("m2", OTHER, "192.0.2.201") | {"status": {"inventory": {"inBand": FACTS}}})
        await rig.until(lambda: rig.judged("m1").get("reason") == "DuplicateSerial", within=2)
        rig.api.change(HARDWARE, "m2", status={"inventory": {"inBand": {"product": {}}}})
        await rig.until(lambda: rig.judged("m1").get("reason") == "NoExpectations", within=2)


async def test_stranger_with_the_serial_number_of_a_registered_machine_changes_no_verdict_but_its_own() -> None:
    rig = Rig(objects.hardware("m1", MAC) | {"status": {"inventory": {"inBand": FACTS}}})
    async with rig.running():
        await rig.until(lambda: rig.judged("m1").get("reason") == "NoExpectations")
        rig.api.put(discovered(OTHER, "192.0.2.201"))
        await rig.until(lambda: rig.judged(discovered_name(OTHER)).get("reason") == "DuplicateSerial", within=2)
        await elapse(60)
        assert rig.judged("m1").get("reason") == "NoExpectations"


async def test_hundred_strangers_that_claim_to_be_a_registered_machine_cost_it_no_write() -> None:
    """Each reports the serial number, the UUID, the ports and the BMC of the registered machine."""
    uuid = "4c4c4544-0035-4710-8052-b7c04f4e3532"
    card = {"ports": [{"mac": MAC}]}
    bmc = {"nic": {"ports": [{"mac": "b0:26:28:00:00:01"}]}}
    facts = {"product": {**FACTS["product"], "uuid": uuid}, "networkInterfaces": [card], "bmc": bmc}
    rig = Rig(objects.hardware("m1", MAC) | {"status": {"inventory": {"inBand": facts}}})
    async with rig.running():
        await rig.until(lambda: rig.judged("m1").get("reason") == "NoExpectations")
        before = rig.there("m1")["metadata"]["resourceVersion"]
        strangers = [f"52:54:00:00:01:{number:02x}" for number in range(100)]
        for number, each in enumerate(strangers):
            rig.api.put(discovered(each, f"192.0.2.{number + 101}", facts))
            await elapse(0.1)
        await rig.until(lambda: all(rig.judged(discovered_name(each)) for each in strangers))
        await elapse(60)
        assert {rig.judged(discovered_name(each))["status"] for each in strangers} == {"False"}
        assert rig.there("m1")["metadata"]["resourceVersion"] == before
        await rig.api.patch(
            HARDWARE,
            discovered_name(strangers[0]),
            "default",
            {"metadata": {"annotations": {"tinkerbell.org/approve": "m9"}}},
        )
        await elapse(60)
        assert "m9" not in rig.names()
        assert [each for each in rig.events() if each.startswith("m1:")] == []


async def test_hardware_that_was_not_discovered_keeps_its_labels() -> None:
    known = objects.hardware("m1", MAC, metadata={"labels": {"tinkerbell.org/model": "mine"}})
    rig = Rig(known | {"status": {"inventory": {"inBand": FACTS}}})
    async with rig.running():
        await rig.until(lambda: rig.judged("m1"))
    assert rig.there("m1")["metadata"]["labels"] == {"tinkerbell.org/model": "mine"}


async def test_labels_follow_the_facts_of_discovered_and_approved_machines() -> None:
    rig = Rig(discovered())
    async with rig.running():
        await rig.until(lambda: rig.there()["metadata"]["labels"].get("tinkerbell.org/model") == "R650")
        await rig.approve("web1")
        await rig.until(lambda: rig.names() == ["web1"])
        assert rig.there("web1")["metadata"]["labels"]["tinkerbell.org/model"] == "R650"
        rig.api.change(HARDWARE, "web1", status={"inventory": {"inBand": {"product": {"vendor": "HPE"}}}})
        await rig.until(lambda: "tinkerbell.org/model" not in rig.there("web1")["metadata"]["labels"])
        assert rig.there("web1")["metadata"]["labels"]["tinkerbell.org/vendor"] == "HPE"


async def test_address_of_the_discovery_is_removed_at_the_next_boot() -> None:
    rig = Rig(discovered(), listed(LINE))
    async with rig.running():
        await rig.until(lambda: rig.names() == ["m1"])
        rig.api.change(HARDWARE, "m1", status={"lastBoot": {"at": rfc3339(NOW - 60)}})
        await elapse(60)
        assert rig.there("m1")["metadata"]["annotations"][DISCOVERY_ADDRESS_ANNOTATION] == "192.0.2.200"
        # The edge writes the boot in which the machine was approved after the approval, with a clock that is ahead.
        created = parse_timestamp(rig.there("m1")["metadata"]["creationTimestamp"])
        rig.api.change(HARDWARE, "m1", status={"lastBoot": {"at": rfc3339(created + 5, "milliseconds")}})
        await elapse(1)
        assert DISCOVERY_ADDRESS_ANNOTATION in rig.there("m1")["metadata"]["annotations"]
        rig.api.change(HARDWARE, "m1", status={"lastBoot": {"at": rfc3339(rig.now())}})
        await elapse(1)
        assert DISCOVERY_ADDRESS_ANNOTATION not in rig.there("m1")["metadata"]["annotations"]


async def test_address_of_the_discovery_is_removed_at_a_boot_soon_after_the_approval() -> None:
    at = rfc3339(NOW - 20, "milliseconds")
    machine = discovered()
    machine["status"]["lastBoot"] = {"at": at}
    rig = Rig(machine, listed(LINE))
    async with rig.running():
        await rig.until(lambda: rig.names() == ["m1"])
        assert rig.there("m1")["metadata"]["annotations"][DISCOVERY_BOOT_ANNOTATION] == at
        # The edge writes the boot of the approval into the new Hardware, too.
        rig.api.change(HARDWARE, "m1", status={"lastBoot": {"at": at}})
        await elapse(1)
        assert DISCOVERY_ADDRESS_ANNOTATION in rig.there("m1")["metadata"]["annotations"]
        rig.api.change(HARDWARE, "m1", status={"lastBoot": {"at": rfc3339(NOW + 10, "milliseconds")}})
        await elapse(1)
        left = rig.there("m1")["metadata"]["annotations"]
        assert not {DISCOVERY_ADDRESS_ANNOTATION, DISCOVERY_BOOT_ANNOTATION} & left.keys()


async def test_condition_goes_with_the_inventory() -> None:
    rig = Rig(objects.hardware("m1", MAC) | {"status": {"inventory": {"inBand": FACTS}}})
    async with rig.running():
        await rig.until(lambda: rig.judged("m1"))
        rig.api.put(objects.hardware("m1", MAC) | {"status": {"conditions": [rig.judged("m1")]}})
        await rig.until(lambda: not rig.judged("m1"))


# --- many machines ----------------------------------------------------------------------------------------------------


async def test_thousand_machines_are_approved_and_fifty_planted_errors_are_found_and_no_other() -> None:
    site, planted = Site(1000), dict[int, VerdictReason]()
    for index in range(50):
        error = list(ERRORS)[index % len(ERRORS)]
        planted |= plant(site, error, 20 * index)
    machines = []
    for number in range(site.count):
        made = site.hardware(number)
        made["metadata"] |= {"uid": f"uid-{number}", "creationTimestamp": rfc3339(NOW)}
        made["metadata"] |= {"finalizers": [DISCOVERY_FINALIZER]}
        machines.append(made)
    refused = {number for number, reason in planted.items() if reason in ("DuplicateSerial", "OtherBmc")}
    rig = Rig(*machines, site.config_map())
    async with rig.running():
        await rig.until(lambda: len([each for each in rig.names() if each.startswith("rack-")]) == 1000 - len(refused))
        await elapse(5)
        assert rig.metric("approved_total", by="list") == 1000 - len(refused)
    names = {number: discovered_name(mac(number)) if number in refused else name(number) for number in range(1000)}
    found = {number: rig.judged(each) for number, each in names.items()}
    assert {number for number, each in found.items() if each["status"] == "False"} == planted.keys()
    for number, reason in planted.items():
        assert reason.value == found[number]["reason"] or reason.value in found[number]["message"], number

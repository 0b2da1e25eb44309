"""Moves between two embedded APIs: every object arrives once, and only one side may run a Workflow."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api import serving
from tink.api.annotations import PAUSED_ANNOTATION
from tink.api.crds import generate, generate_bmc
from tink.api.v1alpha2 import Raw
from tink.kube.client import ConflictError, KubeClient, UnreachableError
from tink.kube.resources import (
    CONFIG_MAP,
    HARDWARE,
    JOB,
    MACHINE,
    NAMESPACE,
    OSIE,
    SECRET,
    TASK,
    TEMPLATE,
    WORKFLOW,
    WORKFLOW_RULE_SET,
    ResourceType,
)
from tink.move.mover import MoveError, Mover

API = "tinkerbell.org/v1alpha2"


def quiet(*_: Any) -> None:
    pass


@contextlib.asynccontextmanager
async def two(directory: Path) -> AsyncIterator[tuple[KubeClient, KubeClient]]:
    async with serving(directory / "a", generate()) as (_, a), serving(directory / "b") as (_, b):
        yield a, b


def obj(kind: str, name: str, spec: Raw, **metadata: Any) -> Raw:
    return {
        "apiVersion": API,
        "kind": kind,
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": spec,
    }


ACTIONS = [{"id": "a0", "state": "Running", "startedAt": "2026-11-23T10:00:00Z"}, {"id": "a1", "state": "Pending"}]


async def populate(client: KubeClient) -> dict[str, Raw]:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ud", "namespace": "default"}}
    await client.create(SECRET, {**secret, "stringData": {"userdata": "x"}})
    await client.create(OSIE, obj("OSIE", "o", {"kernelUrl": "http://h/k", "initrdUrl": "http://h/i"}))
    await client.create(TEMPLATE, obj("Template", "t", {"actions": [{"name": "n", "image": "i"}]}))
    mac = {"52:54:00:00:00:01": {"dhcp": {"ip": "192.168.1.5", "netmask": "255.255.255.0"}}}
    annotations = {"tinkerbell.org/userdata-secret": "ud/userdata"}
    hardware = await client.create(
        HARDWARE, obj("Hardware", "h", {"networkInterfaces": mac}, annotations=annotations, labels={"rack": "1"})
    )
    owner = {"apiVersion": API, "kind": "Hardware", "name": "h", "uid": hardware["metadata"]["uid"]}
    made = {}
    spec = {"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}}
    for name, state in (("run", "Running"), ("wait", "Pending"), ("new", None)):
        metadata = {"finalizers": ["tinkerbell.org/workflow"], "ownerReferences": [owner]}
        created = await client.create(WORKFLOW, obj("Workflow", name, spec, **metadata))
        if state:
            actions = ACTIONS if state == "Running" else [{"id": "b0", "state": "Pending"}]
            status = {"state": state, "actions": actions, "observedGeneration": 1, "dispatched": state == "Running"}
            created = await client.patch(WORKFLOW, name, "default", {"status": status}, subresource="status")
        made[name] = created
    return made


async def workflows(client: KubeClient) -> dict[str, Raw]:
    return {each["metadata"]["name"]: each for each in (await client.list(WORKFLOW))["items"]}


def paused(workflow: Raw) -> bool:
    return PAUSED_ANNOTATION in workflow["metadata"].get("annotations", {})


async def test_everything_comes_with_status_and_owners_and_one_side_alone_has_the_workflows(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        made = await populate(a)
        report = await Mover(a, b, quiet, second=0).run(install_crds=True)
        assert report.problems == []
        assert report.created == {"Secret": 1, "OSIE": 1, "Template": 1, "Hardware": 1, "Workflow": 3}
        before, after = await workflows(a), await workflows(b)
        assert all(map(paused, before.values()))
        assert not any(map(paused, after.values()))
        running = after["run"]
        assert running["status"]["id"] == made["run"]["metadata"]["uid"], "what its agent knows it by"
        assert running["status"]["actions"] == ACTIONS
        assert running["metadata"]["finalizers"] == ["tinkerbell.org/workflow"]
        hardware = await b.get(HARDWARE, "h", "default")
        assert running["metadata"]["ownerReferences"][0]["uid"] == hardware["metadata"]["uid"]
        assert hardware["metadata"]["labels"] == {"rack": "1"}
        assert (await b.get(SECRET, "ud", "default"))["data"] == {"userdata": "eA=="}
        assert after["new"]["status"]["state"] == "Pending"


def expected(name: str, text: str, **labels: str) -> Raw:
    metadata = {"name": name, "namespace": "default", "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"rack.csv": text}}


LISTED = {"tinkerbell.org/expected-machines": "true"}
RULES: Raw = {
    "apiVersion": "tinkerbell.org/v1alpha1",
    "kind": "WorkflowRuleSet",
    "metadata": {"name": "rules", "namespace": "default"},
    "spec": {"rules": ['{"chassis": {"serial": ["123"]}}'], "workflow": {"namespace": "default"}},
}
RULE_SETS = [each for each in generate(serve_v1alpha1=True) if each["spec"]["names"]["kind"] == "WorkflowRuleSet"]


async def test_lists_of_expected_machines_and_rule_sets_are_moved_and_other_config_maps_are_not(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "a", [*generate(), *RULE_SETS]) as (_, a),
        serving(tmp_path / "b", generate()) as (_, b),
    ):
        await a.create(CONFIG_MAP, expected("rack7", "serial,name\n123,m1\n", **LISTED))
        await a.create(CONFIG_MAP, expected("other", "x"))
        await a.create(WORKFLOW_RULE_SET, RULES)
        lacks = await Mover(a, b, quiet, second=0).run()
        (problem,) = lacks.problems
        assert "the target has no workflowrulesets.tinkerbell.org" in problem
        assert "'tinkedge crds --v1alpha1'" in problem
        report = await Mover(a, b, quiet, second=0).run(install_crds=True, delete_source=True)
        assert report.created == {"ConfigMap": 1, "WorkflowRuleSet": 1}
        moved = await b.get(CONFIG_MAP, "rack7", "default")
        assert (moved["data"], moved["metadata"]["labels"]) == ({"rack.csv": "serial,name\n123,m1\n"}, LISTED)
        assert (await b.get(WORKFLOW_RULE_SET, "rules", "default"))["spec"] == RULES["spec"]
        left = {each["metadata"]["name"] for each in (await a.list(CONFIG_MAP, "default"))["items"]}
        assert "rack7" not in left
        assert "other" in left
        assert (await a.list(WORKFLOW_RULE_SET))["items"] == []
        assert "other" not in {each["metadata"]["name"] for each in (await b.list(CONFIG_MAP, "default"))["items"]}


async def test_list_that_a_move_has_left_at_its_source_is_replaced_on_the_way_back(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await a.create(CONFIG_MAP, expected("rack7", "first", **LISTED))
        await Mover(a, b, quiet, second=0).run(install_crds=True)
        await a.patch(CONFIG_MAP, "rack7", "default", {"data": {"rack.csv": "later"}})
        back = await Mover(b, a, quiet, second=0).run()
        assert back.problems == []
        assert (await a.get(CONFIG_MAP, "rack7", "default"))["data"] == {"rack.csv": "first"}


async def test_dry_run_and_problems_change_nothing(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await populate(a)
        report = await Mover(a, b, quiet).run(dry_run=True)
        assert any("--install-crds" in problem for problem in report.problems)
        assert not any(map(paused, (await workflows(a)).values()))
        await Mover(a, b, quiet, second=0).run(dry_run=True, install_crds=True)
        assert (await a.list(CONFIG_MAP, "kube-system"))["items"] == []


async def test_object_of_another_at_the_target_is_in_the_way(tmp_path: Path) -> None:
    async with serving(tmp_path / "a", generate()) as (_, a), serving(tmp_path / "b", generate()) as (_, b):
        await populate(a)
        await b.create(OSIE, obj("OSIE", "o", {"kernelUrl": "http://other/k", "initrdUrl": "http://h/i"}))
        await b.create(TEMPLATE, obj("Template", "t", {"actions": [{"name": "n", "image": "i"}]}))
        report = await Mover(a, b, quiet).run()
        assert [problem.split(" is ")[0] for problem in report.problems] == ["OSIE default/o"], (
            "the Template is the same"
        )
        assert not any(map(paused, (await workflows(a)).values()))


class Dying:
    """A client that fails, like a killed process, before or after its nth write."""

    def __init__(self, client: KubeClient, budget: list[int]) -> None:
        self._client, self._budget = client, budget

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)
        if name not in ("create", "patch", "delete"):
            return call

        async def write(*arguments: Any, **options: Any) -> Any:
            self._budget[0] -= 1
            if self._budget[0] < 0:
                raise UnreachableError("killed")
            return await call(*arguments, **options)

        return write


async def test_killed_after_any_write_no_workflow_is_free_on_both_sides_and_the_next_run_finishes(tmp_path) -> None:
    async with serving(tmp_path / "a", generate()) as (_, a), serving(tmp_path / "b", generate()) as (_, b):
        made = await populate(a)
        writes, finished = 0, False
        while not finished:
            budget = [3]  # three writes further each time
            try:
                await Mover(Dying(a, budget), Dying(b, budget), quiet, second=0).run()  # type: ignore[arg-type]
                finished = True
            except UnreachableError:
                writes += 1
            before, after = await workflows(a), await workflows(b)
            for name in made:
                there = name in after and not paused(after[name])
                assert not (there and not paused(before[name])), f"{name} is free on both sides"
            assert writes < 30
        assert writes > 3
        assert not any(map(paused, (await workflows(b)).values()))
        assert (await Mover(a, b, quiet, second=0).run()).created == {}, "run once more it does nothing"


async def test_abort_gives_the_workflows_back_and_is_refused_when_they_are_handed_over(tmp_path: Path) -> None:
    async with serving(tmp_path / "a", generate()) as (_, a), serving(tmp_path / "b", generate()) as (_, b):
        await populate(a)
        budget = [11]
        with pytest.raises(UnreachableError):
            await Mover(Dying(a, budget), Dying(b, budget), quiet, second=0).run()  # type: ignore[arg-type]
        assert all(map(paused, (await workflows(a)).values()))
        await Mover(a, b, quiet).abort()
        assert not any(map(paused, (await workflows(a)).values()))
        assert await workflows(b) == {}
        await Mover(a, b, quiet, second=0).run()
        with pytest.raises(MoveError, match="move it back"):
            await Mover(a, b, quiet).abort()


async def test_move_back_brings_the_new_status_of_workflows(tmp_path: Path) -> None:
    async with serving(tmp_path / "a", generate()) as (_, a), serving(tmp_path / "b", generate()) as (_, b):
        made = await populate(a)
        await Mover(a, b, quiet, second=0).run()
        actions = [{**each, "state": "Succeeded"} for each in ACTIONS]
        done = {"status": {"state": "Succeeded", "actions": actions}}
        await b.patch(WORKFLOW, "run", "default", done, subresource="status")
        await b.patch(WORKFLOW, "new", "default", {"metadata": {"finalizers": None}})
        await b.delete(WORKFLOW, "new", "default")
        report = await Mover(b, a, quiet, second=0).run(delete_source=True)
        assert report.problems == []
        assert report.deleted == 5
        back = await workflows(a)
        assert back["run"]["status"]["state"] == "Succeeded"
        assert back["run"]["status"]["id"] == made["run"]["metadata"]["uid"]
        assert not any(map(paused, back.values()))
        assert sorted(back) == ["run", "wait"], "what was deleted there does not hold up its machine here"
        assert await workflows(b) == {}


async def test_same_api_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path / "a", generate()) as (_, a):
        with pytest.raises(MoveError, match="same API"):
            await Mover(a, a, quiet).run()


# --- BMCs -------------------------------------------------------------------------------------------------------------

RUFIO = "bmc.tinkerbell.org/v1alpha1"
ENDED = {"conditions": [{"type": "Running", "status": "True"}, {"type": "Completed", "status": "True"}]}


@contextlib.asynccontextmanager
async def two_with_bmcs(directory: Path) -> AsyncIterator[tuple[KubeClient, KubeClient]]:
    definitions = [*generate(), *generate_bmc()]
    async with serving(directory / "a", definitions) as (_, a), serving(directory / "b") as (_, b):
        yield a, b


async def populate_bmcs(client: KubeClient) -> None:
    await client.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "secrets"}})
    for name in ("auth", "ca", "rpc", "other"):
        metadata = {"name": name, "namespace": "secrets"}
        await client.create(
            SECRET, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"a": name}}
        )
    connection = {
        "host": "192.168.2.10",
        "insecureTLS": True,
        "authSecretRef": {"name": "auth", "namespace": "secrets"},
        "caSecretRef": {"name": "ca", "namespace": "secrets"},
        "providerOptions": {
            "rpc": {
                "consumerURL": "http://h/",
                "hmac": {"secrets": {"sha256": [{"name": "rpc", "namespace": "secrets"}]}},
            }
        },
    }
    await client.create(MACHINE, obj("Machine", "m", {"connection": connection}) | {"apiVersion": RUFIO})
    await client.patch(MACHINE, "m", "default", {"status": {"powerState": "on"}}, subresource="status")
    spec = {"machineRef": {"name": "m", "namespace": "default"}, "tasks": [{"powerAction": "off"}]}
    await client.create(JOB, obj("Job", "off", spec) | {"apiVersion": RUFIO})
    await client.create(TASK, obj("Task", "off-task-0", {"task": {"powerAction": "off"}}) | {"apiVersion": RUFIO})
    for resource, name in ((JOB, "off"), (TASK, "off-task-0")):
        await client.patch(resource, name, "default", {"status": ENDED}, subresource="status")


async def items(client: KubeClient, resource: ResourceType) -> list[str]:
    return [each["metadata"]["name"] for each in (await client.list(resource))["items"]]


async def test_machine_comes_with_its_secrets_and_an_ended_job_is_not_executed_at_the_target(tmp_path: Path) -> None:
    async with two_with_bmcs(tmp_path) as (a, b):
        await populate_bmcs(a)
        report = await Mover(a, b, quiet, second=0).run(install_crds=True)
        assert (report.problems, report.created) == ([], {"Secret": 3, "Machine": 1})
        assert "2 Jobs and Tasks of BMCs have ended, and are not moved" in report.notes
        (machine,) = (await b.list(MACHINE))["items"]
        assert machine["spec"] == (await a.get(MACHINE, "m", "default"))["spec"]
        assert "status" not in machine, "the controller there writes it"
        assert sorted(await items(b, SECRET)) == ["auth", "ca", "rpc"]
        assert (await items(b, JOB), await items(b, TASK)) == ([], [])
        await b.patch(MACHINE, "m", "default", {"status": {"powerState": "off"}}, subresource="status")
        again = await Mover(a, b, quiet, second=0).run(delete_source=True)
        assert again.deleted == 3
        for resource in (MACHINE, JOB, TASK):
            assert await items(a, resource) == []


async def test_status_of_machines_neither_delays_nor_fails_a_move(tmp_path: Path) -> None:
    async with two_with_bmcs(tmp_path) as (a, b):
        await populate_bmcs(a)

        class Polling(Dying):
            """A source whose controller writes a Machine's status before each list."""

            power = "on"

            async def list(self, *arguments: Any, **options: Any) -> Raw:
                self.power = "off" if self.power == "on" else "on"
                await a.patch(MACHINE, "m", "default", {"status": {"powerState": self.power}}, subresource="status")
                return await a.list(*arguments, **options)

        source: Any = Polling(a, [100])
        report = await Mover(source, b, quiet, second=0).run(install_crds=True)
        assert report.created == {"Secret": 3, "Machine": 1}


@pytest.mark.parametrize("resource", [JOB, TASK])
async def test_job_or_task_that_has_not_ended_prevents_a_move(tmp_path: Path, resource: ResourceType) -> None:
    async with two_with_bmcs(tmp_path) as (a, b):
        await populate_bmcs(a)
        name = "off" if resource is JOB else "off-task-0"
        running = {"conditions": [{"type": "Running", "status": "True"}]}
        await a.patch(resource, name, "default", {"status": running}, subresource="status")
        report = await Mover(a, b, quiet, second=0).run(install_crds=True)
        assert report.problems == [f"{resource.kind} default/{name} has not ended: wait until it has, or delete it"]
        assert await items(b, MACHINE) == []
        assert "tinkedge-move" not in await items(a, CONFIG_MAP)


async def test_job_that_is_created_during_a_move_prevents_the_hand_over(tmp_path: Path) -> None:
    definitions = [*generate(), *generate_bmc()]
    async with serving(tmp_path / "a", definitions) as (_, a), serving(tmp_path / "b", definitions) as (_, b):
        await populate_bmcs(a)
        spec = {"machineRef": {"name": "m", "namespace": "default"}, "tasks": [{"powerAction": "off"}]}

        class Meanwhile(Dying):
            async def create(self, *arguments: Any, **options: Any) -> Raw:
                with contextlib.suppress(ConflictError):
                    await a.create(JOB, obj("Job", "late", spec) | {"apiVersion": RUFIO})
                return await b.create(*arguments, **options)

        target: Any = Meanwhile(b, [100])
        with pytest.raises(MoveError, match="Job default/late was created meanwhile"):
            await Mover(a, target, quiet, second=0).run()
        assert (await a.get(CONFIG_MAP, "tinkedge-move", "kube-system"))["data"]["phase"] == "copying"
        await a.patch(JOB, "late", "default", {"status": ENDED}, subresource="status")
        await Mover(a, b, quiet, second=0).run()
        assert (await a.get(CONFIG_MAP, "tinkedge-move", "kube-system"))["data"]["phase"] == "handed over"


async def test_target_needs_the_definitions_of_bmcs_only_if_there_are_machines(tmp_path: Path) -> None:
    definitions = [*generate(), *generate_bmc()]
    async with serving(tmp_path / "a", definitions) as (_, a), serving(tmp_path / "b", generate()) as (_, b):
        assert (await Mover(a, b, quiet, second=0).run(dry_run=True)).problems == []
        await populate_bmcs(a)
        problems = (await Mover(a, b, quiet, second=0).run(dry_run=True)).problems
        assert "the target has no machines.bmc.tinkerbell.org: --install-crds, or 'tinkedge crds --bmc'" in problems


async def populate_boot(client: KubeClient) -> Raw:
    """Create a Workflow whose machine is being booted by its BMC, and return it."""
    await populate(client)
    last = {"at": "2026-11-30T18:00:00.25Z", "client": "OperatingSystem", "mac": "52:54:00:00:00:01"}
    await client.patch(HARDWARE, "h", "default", {"status": {"power": "on", "lastBoot": last}}, subresource="status")
    options = {"toggleAllowNetboot": True, "bootMode": "netboot"}
    spec = {"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}, "bootOptions": options}
    finalizers = ["tinkerbell.org/boot", "tinkerbell.org/workflow"]
    await client.create(WORKFLOW, obj("Workflow", "boot", spec, finalizers=finalizers))
    boot = {"way": "pxe", "attempt": 2, "since": "2026-11-30T18:01:00Z", "lastBoot": last["at"], "message": "waits"}
    conditions = [{"type": "BootPrepared", "status": "False", "reason": "WaitingForDiscover", "message": "waits"}]
    status = {"state": "Pending", "boot": boot, "conditions": conditions}
    return await client.patch(WORKFLOW, "boot", "default", {"status": status}, subresource="status")


async def test_boot_by_a_bmc_continues_at_the_target_with_its_finalizer_and_progress(tmp_path: Path) -> None:
    async with two_with_bmcs(tmp_path) as (a, b):
        made = await populate_boot(a)
        report = await Mover(a, b, quiet, second=0).run(install_crds=True)
        assert report.problems == []
        there = (await workflows(b))["boot"]
        assert there["metadata"]["finalizers"] == made["metadata"]["finalizers"]
        assert there["status"]["boot"] == made["status"]["boot"]
        assert there["status"]["conditions"] == made["status"]["conditions"]
        hardware = await b.get(HARDWARE, "h", "default")
        assert hardware["status"]["lastBoot"]["at"] == there["status"]["boot"]["lastBoot"], "no later boot was seen"
        assert paused((await workflows(a))["boot"])
        note = "Workflow default/boot has bootOptions (1 in all): it waits until BMC control runs at the target"
        assert note in report.notes


async def test_target_of_an_older_release_that_would_drop_the_progress_of_a_boot_is_refused(tmp_path: Path) -> None:
    older = generate()
    for definition in older:
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for field in ("boot", "lastBoot"):
            schema["properties"].get("status", {}).get("properties", {}).pop(field, None)
        rules = schema.get("x-kubernetes-validations", [])
        rules[:] = [rule for rule in rules if ".status.boot" not in rule["rule"]]
    async with serving(tmp_path / "a", generate()) as (_, a), serving(tmp_path / "b", older) as (_, b):
        await populate_boot(a)
        assert (await Mover(a, b, quiet, second=0).run()).problems == [
            f"{plural}.tinkerbell.org of the target is of an older release: --install-crds updates it"
            for plural in ("hardware", "workflows")
        ]
        await Mover(a, b, quiet, second=0).run(install_crds=True)
        assert (await workflows(b))["boot"]["status"]["boot"]["attempt"] == 2


async def test_workflow_that_no_boot_is_left_for_needs_no_bmc_control_at_the_target(tmp_path: Path) -> None:
    async with two_with_bmcs(tmp_path) as (a, b):
        await populate_boot(a)
        await a.patch(WORKFLOW, "boot", "default", {"metadata": {"finalizers": ["tinkerbell.org/workflow"]}})
        await a.patch(WORKFLOW, "boot", "default", {"status": {"state": "Failed"}}, subresource="status")
        report = await Mover(a, b, quiet, second=0).run(install_crds=True)
        assert not any("bootOptions" in note for note in report.notes)

"""Which machines have work: with `--netboot-when=workflow` this decides who netboots, and what the others are told."""

from __future__ import annotations

from typing import Any

import pytest

from edge.machines import DhcpMode, Inventory, NetbootPolicy, NetbootWhen, PendingWorkflows
from tink.api.v1alpha2 import WorkflowState

MAC = "52:54:00:12:34:56"


def workflow(name: str, state: str | None = None, *, hardware: str = "a", ended: str = "") -> dict[str, Any]:
    status = {} if state is None else {"state": state} | ({"lastTransitioned": ended} if ended else {})
    metadata = {"name": name, "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": {"hardwareRef": {"name": hardware}}, "status": status}


@pytest.fixture
def work() -> PendingWorkflows:
    return PendingWorkflows()


def test_workflow_that_nobody_has_prepared_yet_is_work(work: PendingWorkflows) -> None:
    work.apply(workflow("w"), None)
    assert work.has_pending("default", "a")
    assert not work.has_pending("default", "b")
    assert not work.has_pending("other", "a")


@pytest.mark.parametrize("state", list(WorkflowState))
def test_workflow_is_work_until_its_end(work: PendingWorkflows, state: WorkflowState) -> None:
    work.apply(workflow("w", state))
    assert work.has_pending("default", "a") is not state.terminal


def test_workflow_of_a_state_that_nobody_knows_keeps_its_machine_netbooting(work: PendingWorkflows) -> None:
    work.apply(workflow("w", "Later"))
    assert work.has_pending("default", "a")


def test_machine_with_two_workflows_has_work_until_both_ended(work: PendingWorkflows) -> None:
    work.apply(workflow("w"))
    work.apply(workflow("x"))
    work.apply(workflow("w", "Succeeded"))
    assert work.has_pending("default", "a")
    work.apply(workflow("x", "Failed"))
    assert not work.has_pending("default", "a")


def test_deleted_workflow_is_no_work(work: PendingWorkflows) -> None:
    work.apply(workflow("w"))
    work.remove(workflow("w"))
    work.remove(workflow("w"))
    assert not work.has_pending("default", "a")
    assert work.why_none("default", "a") == "no Workflow for default/a: create one"


def test_workflow_moved_to_another_machine_while_pending(work: PendingWorkflows) -> None:
    work.apply(workflow("w"))
    work.apply(workflow("w", hardware="b"))
    assert (work.has_pending("default", "a"), work.has_pending("default", "b")) == (False, True)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("Succeeded", "Workflow default/w has Succeeded: create another"),
        ("Failed", "Workflow default/w has Failed: create another"),
        ("Canceled", "Workflow default/w was Canceled: create another"),
    ],
)
def test_reason_names_the_workflow_and_how_it_ended(work: PendingWorkflows, state: str, why: str) -> None:
    work.apply(workflow("w", state))
    assert work.why_none("default", "a") == why


def test_reason_names_the_workflow_that_ended_last_whatever_the_order_of_the_list(work: PendingWorkflows) -> None:
    work.apply(workflow("late", "Failed", ended="2026-02-03T00:00:00Z"))
    work.apply(workflow("early", "Succeeded", ended="2026-02-02T00:00:00Z"))
    assert "default/late has Failed" in work.why_none("default", "a")
    work.remove(workflow("early"))
    assert "default/late has Failed" in work.why_none("default", "a")
    work.remove(workflow("late"))
    assert "late" not in work.why_none("default", "a")


@pytest.mark.parametrize("spec", [None, {}, {"hardwareRef": None}, {"hardwareRef": {}}, {"hardwareRef": {"name": ""}}])
def test_workflow_that_names_no_machine_is_nobodys_work(work: PendingWorkflows, spec: Any) -> None:
    work.apply(workflow("w"))
    work.apply(workflow("w") | {"spec": spec})
    assert not work.has_pending("default", "a")


def test_machine_boots_while_it_has_work_and_its_screen_says_why_it_does_not(work: PendingWorkflows) -> None:
    inventory = Inventory()
    inventory.apply(
        {"metadata": {"name": "a", "namespace": "default"}, "spec": {"networkInterfaces": {MAC: {"dhcp": {}}}}}
    )
    policy = NetbootPolicy(DhcpMode.RESERVATION, NetbootWhen.WORKFLOW, work.has_pending, work.why_none)
    machine = inventory.by_mac(MAC)
    assert policy.decide(machine).reason == "no Workflow for default/a: create one"
    work.apply(workflow("w"))
    assert policy.decide(machine).allowed
    work.apply(workflow("w", "Succeeded"))
    assert "default/w has Succeeded" in policy.decide(machine).reason
    assert NetbootPolicy(when=NetbootWhen.ALLOWED, has_pending=work.has_pending).decide(machine).allowed


def test_machine_without_hardware_boots_in_auto_proxy_mode_only() -> None:
    allowed = {mode: NetbootPolicy(mode).decide(None).allowed for mode in DhcpMode}
    assert allowed == {mode: mode is DhcpMode.AUTO_PROXY for mode in DhcpMode}


def test_held_workflow_is_no_work_and_the_machine_is_told_why(work: PendingWorkflows) -> None:
    held = workflow("w", "Pending")
    held["metadata"]["annotations"] = {"tinkerbell.org/hold": "restored"}
    work.apply(held)
    assert not work.has_pending("default", "a")
    assert work.why_none("default", "a") == "Workflow default/w is held: see its annotation tinkerbell.org/hold"
    work.apply(workflow("w", "Pending"), held)
    assert work.has_pending("default", "a")
    work.remove(held)
    assert "create one" in work.why_none("default", "a")


def test_of_those_that_have_ended_only_the_last_of_each_machine_is_kept(work: PendingWorkflows) -> None:
    for day in (3, 1, 5, 2):
        work.apply(workflow(f"w{day}", "Succeeded", ended=f"2026-01-{day:02}T00:00:00Z"))
        work.apply(workflow(f"v{day}", "Failed", hardware="b", ended=f"2026-01-{day:02}T00:00:00Z"))
    assert (len(work._hardware_of), len(work._ended)) == (0, 2)
    assert "w5" in work.why_none("default", "a")
    work.remove(workflow("w1", "Succeeded"))
    work.remove(workflow("w5", "Succeeded"))
    assert "create one" in work.why_none("default", "a")
    assert len(work._ended) == 1

"""May a machine netboot, and by which program: its Workflows, and boot paths that are found out."""

from __future__ import annotations

from typing import Any

import pytest

from edge.journey.events import Outcome, Step
from edge.machines import BootPaths, DhcpMode, Inventory, Machine, NetbootPolicy, NetbootWhen, PendingWorkflows
from ipxe.binaries import BootPath
from tests.support.objects import MAC, OTHER_MAC, hardware, workflow
from tink.api.annotations import BOOT_PATH_ANNOTATION
from tink.api.v1alpha2 import WorkflowState

# --- Workflows --------------------------------------------------------------------------------------------------------


@pytest.fixture
def work() -> PendingWorkflows:
    return PendingWorkflows()


def test_workflow_that_nobody_has_prepared_yet_is_work(work: PendingWorkflows) -> None:
    work.apply(workflow("w"), None)
    assert work.has_pending("default", "m1")
    assert not work.has_pending("default", "b")
    assert not work.has_pending("other", "m1")


@pytest.mark.parametrize("state", [*WorkflowState, "a state of later versions"])
def test_workflow_is_work_until_its_end(work: PendingWorkflows, state: str) -> None:
    work.apply(workflow("w", state))
    assert work.has_pending("default", "m1") is (state not in ("Succeeded", "Failed", "Canceled"))


def test_machine_with_two_workflows_has_work_until_both_ended(work: PendingWorkflows) -> None:
    work.apply(workflow("w"))
    work.apply(workflow("x"))
    work.apply(workflow("w", "Succeeded"))
    assert work.has_pending("default", "m1")
    work.apply(workflow("x", "Failed"))
    assert not work.has_pending("default", "m1")


def test_deleted_workflow_is_no_work(work: PendingWorkflows) -> None:
    work.apply(workflow("w"))
    work.remove(workflow("w"))
    work.remove(workflow("w"))
    assert not work.has_pending("default", "m1")
    assert work.why_none("default", "m1") == "no Workflow for default/m1: create one"


def test_workflow_moved_to_another_machine_while_pending(work: PendingWorkflows) -> None:
    work.apply(workflow("w"))
    work.apply(workflow("w", hardware="b"))
    assert (work.has_pending("default", "m1"), work.has_pending("default", "b")) == (False, True)


@pytest.mark.parametrize(
    ("state", "why"), [("Succeeded", "has Succeeded"), ("Failed", "has Failed"), ("Canceled", "was Canceled")]
)
def test_reason_names_the_workflow_and_how_it_ended(work: PendingWorkflows, state: str, why: str) -> None:
    work.apply(workflow("w", state))
    assert work.why_none("default", "m1") == f"Workflow default/w {why}: create another"


@pytest.mark.parametrize("spec", [None, {}, {"hardwareRef": None}, {"hardwareRef": {}}, {"hardwareRef": {"name": ""}}])
def test_workflow_that_names_no_machine_is_nobodys_work(work: PendingWorkflows, spec: Any) -> None:
    work.apply(workflow("w"))
    work.apply(workflow("w") | {"spec": spec})
    assert not work.has_pending("default", "m1")


def test_machine_boots_while_it_has_work_and_its_screen_says_why_it_does_not(work: PendingWorkflows) -> None:
    inventory = Inventory()
    inventory.apply(hardware())
    policy = NetbootPolicy(DhcpMode.RESERVATION, NetbootWhen.WORKFLOW, work.has_pending, work.why_none)
    machine = inventory.by_mac(MAC)
    assert policy.decide(machine).reason == "no Workflow for default/m1: create one"
    work.apply(workflow("w"))
    assert policy.decide(machine).allowed
    work.apply(workflow("w", "Succeeded"))
    assert "default/w has Succeeded" in policy.decide(machine).reason
    assert NetbootPolicy(when=NetbootWhen.ALLOWED, has_pending=work.has_pending).decide(machine).allowed


def test_machine_without_hardware_boots_in_auto_proxy_mode_only() -> None:
    allowed = {mode: NetbootPolicy(mode).decide(None).allowed for mode in DhcpMode}
    assert allowed == {mode: mode is DhcpMode.AUTO_PROXY for mode in DhcpMode}


def test_held_workflow_is_no_work_and_the_machine_is_told_why(work: PendingWorkflows) -> None:
    held = workflow("w", "Pending", annotations={"tinkerbell.org/hold": "restored"})
    work.apply(held)
    assert not work.has_pending("default", "m1")
    assert work.why_none("default", "m1") == "Workflow default/w is held: see its annotation tinkerbell.org/hold"
    work.apply(workflow("w", "Pending"), held)
    assert work.has_pending("default", "m1")
    work.remove(held)
    assert "create one" in work.why_none("default", "m1")


def test_of_those_that_have_ended_only_the_last_of_each_machine_is_kept(work: PendingWorkflows) -> None:
    for day in (3, 1, 5, 2):
        work.apply(workflow(f"w{day}", "Succeeded", lastTransitioned=f"2026-01-{day:02}T00:00:00Z"))
        work.apply(workflow(f"v{day}", "Failed", hardware="b", lastTransitioned=f"2026-01-{day:02}T00:00:00Z"))
    assert "w5" in work.why_none("default", "m1")
    assert [*work.names] == [], "nothing else is kept"
    work.remove(workflow("w1", "Succeeded"))
    work.remove(workflow("w5", "Succeeded"))
    assert "create one" in work.why_none("default", "m1")
    assert "v5" in work.why_none("default", "b")


# --- boot paths -------------------------------------------------------------------------------------------------------


class Site:
    def __init__(self, usual: BootPath = BootPath.IPXE, *, has_grub: bool = True) -> None:
        self.inventory, self.said, self.changed = Inventory(), [], []
        self.paths = BootPaths(self.inventory, self._record, usual, has_grub=has_grub, changed=self.changed.append)

    def _record(self, mac: str, step: Step, outcome: Outcome, message: str, **_: Any) -> None:
        self.said.append((mac, step, outcome, message))

    def machine(self, path: str | None, mac: str = MAC) -> Machine:
        annotations = {} if path is None else {BOOT_PATH_ANNOTATION: path}
        self.inventory.apply(hardware(f"m{mac[-1]}", mac, None, annotations=annotations))
        return self.inventory.by_mac(mac)


def test_machine_whose_firmware_refuses_ipxe_is_offered_shim_and_grub_and_the_other_way_round() -> None:
    site = Site()
    machine = site.machine("auto")
    assert site.paths.of(machine) is BootPath.AUTO, "which is iPXE for those who choose the file"
    site.paths.not_started(MAC)
    assert site.paths.of(machine) is BootPath.GRUB
    message = "boot path auto: iPXE was not started, so it is offered shim and GRUB from now on"
    assert site.said == [(MAC, Step.DHCP, Outcome.INFO, message)]
    site.paths.not_started(MAC)
    assert site.paths.of(machine) is BootPath.IPXE
    assert site.changed == [MAC, MAC]


def test_of_an_edge_that_finds_out_by_itself_only_the_machines_that_need_it_leave_the_usual_way() -> None:
    site = Site(BootPath.AUTO)
    one, other = site.machine(None), site.machine(None, OTHER_MAC)
    assert (site.paths.of(one), site.paths.of(other)) == (None, None)
    site.paths.not_started(MAC)
    assert (site.paths.of(one), site.paths.of(other)) == (BootPath.GRUB, None)
    assert site.paths.of(site.machine("ipxe")) is BootPath.IPXE, "what its Hardware says comes first"


def test_nothing_is_found_out_where_the_path_is_given_or_the_machine_unknown() -> None:
    site = Site()
    for path in (None, "ipxe", "grub"):
        machine = site.machine(path)
        site.paths.not_started(MAC)
        assert site.paths.of(machine) is (BootPath(path) if path is not None else None)
    site.paths.not_started(OTHER_MAC)
    assert (site.said, site.changed) == ([], [])


def test_edge_without_shim_and_grub_says_what_to_install_and_stays_with_ipxe() -> None:
    site = Site(has_grub=False)
    machine = site.machine("auto")
    site.paths.not_started(MAC)
    assert site.paths.of(machine) is BootPath.AUTO
    assert "there is no shim and GRUB here to offer instead (packages shim-signed" in site.said[0][3]
    assert site.changed == []

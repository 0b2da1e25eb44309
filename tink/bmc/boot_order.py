"""The order in which the Workflows of one machine are booted.

A machine is switched off for one Workflow at a time, and never while an agent may run another one. `BootOrder` follows
the Workflows and Hardware of the informers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tink.api.v1alpha2 import Raw
from tink.bmc.boot_status import (
    BootCase,
    former_of,
    hardware_of,
    has_begun_boot,
    is_over,
    is_protected,
    machine_of,
    occupies,
    prepared_machine_of,
)
from tink.kube.cache import Index, Informer
from tink.kube.objects import NamespacedName
from tink.workflow.guards import boot_begun, held, holds_up_until, paused
from tink.workflow.status import InvalidStatusError, creation_order, deleted, state_of


class BootOrder:
    """Decides which Workflow of a machine goes before another one's boot."""

    def __init__(self, workflows: Informer, now: Callable[[], float]) -> None:
        """`now` returns Unix seconds."""
        self._workflows = workflows
        self._now = now
        self._on_hardware: Index[NamespacedName, NamespacedName] = Index()
        """Workflows that have not ended, or are not cleaned up, by their Hardware."""
        self._of_machine: Index[NamespacedName, NamespacedName] = Index()
        """Hardware, by the Machine that they name."""
        self._unclean: Index[NamespacedName, NamespacedName] = Index()
        """Workflows that have ended and are not cleaned up, by the Machine whose BMC was changed for them."""

    def follow(self, workflow: Raw) -> None:
        """Take a new or changed Workflow into account."""
        key, has_ended = NamespacedName.of(workflow), is_over(workflow)
        is_present = not has_ended or is_protected(workflow)
        self._on_hardware.set(key, (hardware_of(workflow),) if is_present else ())
        machine = prepared_machine_of(workflow) if has_ended and is_present and not paused(workflow) else None
        self._unclean.set(key, (machine,) if machine is not None else ())

    def forget(self, key: NamespacedName) -> None:
        """Leave a Workflow out of account from now on: it was deleted, or is cleaned up."""
        self._on_hardware.set(key, ())
        self._unclean.set(key, ())

    def follow_hardware(self, hardware: Raw) -> None:
        """Take a new or changed Hardware into account."""
        key, machine = NamespacedName.of(hardware), machine_of(hardware)
        self._of_machine.set(key, (key._replace(name=machine),) if machine else ())

    def forget_hardware(self, key: NamespacedName) -> None:
        """Leave a deleted Hardware out of account from now on."""
        self._of_machine.set(key, ())

    def workflows_on(self, hardware: NamespacedName) -> list[NamespacedName]:
        """Return the Workflows of a Hardware that have not ended, or are not cleaned up."""
        return list(self._on_hardware.keys(hardware))

    def first(self, case: BootCase) -> NamespacedName | None:
        """Return another Workflow of the machine that goes before this one's boot; None if there is none.

        A boot that has begun is finished before older Workflows that have not: the machine is off, or about to boot.
        """
        own_order, is_begun = creation_order(case.workflow), boot_begun(case.workflow)
        for key, other in self._others_on(case, hardware_of(case.workflow)):
            is_older = creation_order(other) < own_order
            if occupies(other) or (is_over(other) and is_protected(other) and not paused(other)):
                return key
            if has_begun_boot(other) and (is_older or not is_begun):
                return key
            if is_older and not is_begun and self._is_next(other):
                return key
        for key, other in self._others_with_machine(case, case.machine):
            if occupies(other) or (has_begun_boot(other) and (creation_order(other) < own_order or not is_begun)):
                return key
        unclean = self._unclean.keys(case.machine) if case.machine is not None else ()
        return next((key for key in unclean if key != case.key), None)

    def user_of(self, case: BootCase, machine: NamespacedName) -> NamespacedName | None:
        """Return a Workflow of another Hardware that uses the machine of a Machine; None if there is none.

        An agent may have the Workflow, or the machine is being booted for it.
        """
        others = self._others_with_machine(case, machine)
        return next((key for key, other in others if occupies(other) or has_begun_boot(other)), None)

    def is_former(self, case: BootCase, machine: NamespacedName) -> bool:
        """Return True if a Machine is still one that the Workflow's Hardware named before (`status.boot.former`)."""
        workflow = self._workflows.get(*case.key)
        return workflow is not None and machine in [each.machine for each in former_of(workflow)]

    def occupant(self, case: BootCase) -> NamespacedName | None:
        """Return another Workflow that an agent of the machine may have; None if there is none."""
        others = self._others_on(case, hardware_of(case.workflow))
        return next((key for key, other in others if occupies(other)), None)

    def _others_on(self, case: BootCase, hardware: NamespacedName) -> Iterator[tuple[NamespacedName, Raw]]:
        for key in self.workflows_on(hardware):
            workflow = self._workflows.get(*key)
            if workflow is not None and key != case.key:
                yield key, workflow

    def _others_with_machine(
        self, case: BootCase, machine: NamespacedName | None
    ) -> Iterator[tuple[NamespacedName, Raw]]:
        """Yield the Workflows of other Hardware that name the same Machine."""
        for hardware in list(self._of_machine.keys(machine)) if machine is not None else ():
            if hardware != hardware_of(case.workflow):
                yield from self._others_on(case, hardware)

    def _is_next(self, workflow: Raw) -> bool:
        """Return True if the server sends a Workflow before those created after it (`tink.server.decision`)."""
        try:
            if deleted(workflow) or is_over(workflow) or held(workflow):
                return False
            return state_of(workflow) is not None or holds_up_until(workflow, self._now()) >= self._now()
        except InvalidStatusError:
            return False

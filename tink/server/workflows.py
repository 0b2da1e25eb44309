"""The Workflows of each machine, in the order of their creation, and each Workflow by its uid.

Fed by an informer of Workflows. On the wire a Workflow is known by its uid: a Workflow that is deleted and created
again under the same name must not take the events of the first. One that was moved here from another API is known by
the uid that it had there (`status.id`), because its agent may know it already.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

from tink.api.v1alpha2 import Raw, as_mapping
from tink.kube.objects import NamespacedName
from tink.workflow.guards import paused
from tink.workflow.status import name_of, status_of

log = logging.getLogger(__name__)

_REMEMBERED = 4096


@dataclass(slots=True)
class _Entry:
    workflow: Raw
    hardware: NamespacedName | None
    order: tuple[str, int]
    ahead: bool = False
    """Whether it is an answer to a call of ours, which the informer has yet to hear of."""


class WorkflowIndex:
    """What the server knows of Workflows."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._by_hardware: dict[NamespacedName, dict[str, _Entry]] = {}
        self._ids: dict[str, str] = {}
        """The ids on the wire, by uid."""
        self._gone: OrderedDict[str, str] = OrderedDict()
        self._seen = 0

    def apply(self, workflow: Raw) -> None:
        """Take in a Workflow that was added or changed, unless what is known of it is newer."""
        entry = self._entries.get(uid_of(workflow))
        if entry is not None and entry.ahead and _newer(entry.workflow, workflow) is True:
            return
        if entry is not None and _another(entry.workflow, workflow) and uid_of(workflow) != _own_uid(workflow):
            text = "Workflow %s: status.id is that of Workflow %s; it is left alone until that is mended"
            log.error(text, name_of(workflow), name_of(entry.workflow))
            return
        self._put(workflow, ahead=False)

    def refresh(self, workflow: Raw) -> None:
        """Take in what the API answered to a call, ahead of the informer, unless the Workflow is gone already."""
        entry = self._entries.get(uid_of(workflow))
        if entry is None or _another(entry.workflow, workflow):
            return
        if _newer(workflow, entry.workflow) is not False:
            self._put(workflow, ahead=True)

    def _put(self, workflow: Raw, *, ahead: bool) -> None:
        uid = uid_of(workflow)
        hardware = hardware_of(workflow)
        before = self._ids.get(_own_uid(workflow))
        if before is not None and before != uid:  # its status.id has come since
            self._discard(before, self._entries.pop(before).hardware)
        self._ids[_own_uid(workflow)] = uid
        old = self._entries.get(uid)
        if old is not None and old.hardware == hardware:
            old.workflow, old.ahead = workflow, ahead
            return
        if old is not None:
            self._discard(uid, old.hardware)
            order = old.order
        else:
            # Creation times are whole seconds; within one, informers tell of objects in the order of their creation.
            self._seen += 1
            order = (str(workflow["metadata"].get("creationTimestamp", "")), self._seen)
        entry = self._entries[uid] = _Entry(workflow, hardware, order, ahead)
        if hardware is not None:
            self._by_hardware.setdefault(hardware, {})[uid] = entry

    def remove(self, workflow: Raw) -> None:
        """Forget a Workflow that is gone. One that was paused lives on in another API: nobody is to stop it."""
        uid = uid_of(workflow)
        entry = self._entries.get(uid)
        if entry is None or _another(entry.workflow, workflow):
            return
        del self._entries[uid], self._ids[_own_uid(workflow)]
        self._discard(uid, entry.hardware)
        if paused(workflow):
            return
        self._gone[uid] = name_of(workflow)
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)

    def get(self, uid: str) -> Raw | None:
        """The Workflow with that uid, as last seen."""
        entry = self._entries.get(uid)
        return entry.workflow if entry is not None else None

    def name_of_gone(self, uid: str) -> str | None:
        """namespace/name of a Workflow that was deleted not long ago; None for any other uid."""
        return self._gone.get(uid)

    def of(self, hardware: NamespacedName) -> list[Raw]:
        """The Workflows of a machine, oldest first."""
        entries = sorted(self._by_hardware.get(hardware, {}).values(), key=lambda entry: entry.order)
        return [entry.workflow for entry in entries]

    def _discard(self, uid: str, hardware: NamespacedName | None) -> None:
        if hardware is None:
            return
        entries = self._by_hardware[hardware]
        del entries[uid]
        if not entries:
            del self._by_hardware[hardware]


def _newer(workflow: Raw, other: Raw) -> bool | None:
    """Whether `workflow` is a newer version of the same object than `other`; None where versions are no numbers, which
    Kubernetes' are (KEP-5504: those of one resource type can be compared)."""
    versions = [version_of(obj) for obj in (workflow, other)]
    return int(versions[0]) > int(versions[1]) if all(version.isdecimal() for version in versions) else None


def uid_of(workflow: Raw) -> str:
    """The Workflow's id on the wire: its uid, or the one that it had where it was moved from."""
    moved = status_of(workflow).get("id")
    return moved if isinstance(moved, str) and moved else _own_uid(workflow)


def _own_uid(workflow: Raw) -> str:
    uid: str = workflow["metadata"]["uid"]
    return uid


def _another(workflow: Raw, other: Raw) -> bool:
    """Whether these are two Workflows: whoever may write the status of one could give it the id of another's."""
    return _own_uid(workflow) != _own_uid(other)


def version_of(workflow: Raw) -> str:
    """The resourceVersion, empty if there is none."""
    return str(workflow["metadata"].get("resourceVersion", ""))


def hardware_of(workflow: Raw) -> NamespacedName | None:
    """The Hardware that a Workflow is for; None if its spec does not say."""
    name = as_mapping(as_mapping(workflow.get("spec")).get("hardwareRef")).get("name")
    return NamespacedName(workflow["metadata"].get("namespace", ""), name) if name else None

"""Who refers to an object: Hardware to OSIEs, Workflows that have not ended to Hardware and Templates.

Fed by the informers; a question is a dictionary access, however many objects there are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tink.api.v1alpha2 import Raw, WorkflowState
from tink.kube.cache import Index
from tink.kube.objects import NamespacedName, ObjectReference

_ENDED = tuple(state.value for state in WorkflowState if state.terminal)


def targets_of(obj: Any) -> list[ObjectReference]:
    """What a Hardware or a Workflow refers to, by its `kind`; what can't be read refers to nothing."""
    if not isinstance(obj, dict) or not isinstance(obj.get("spec"), dict):
        return []
    metadata, spec = obj.get("metadata"), obj["spec"]
    namespace = metadata.get("namespace", "") if isinstance(metadata, dict) else ""
    fields: tuple[tuple[str, str], ...] = ()
    if obj.get("kind") == "Hardware":
        fields = (("osie", "OSIE"),)
    elif obj.get("kind") == "Workflow":
        fields = (("hardwareRef", "Hardware"), ("templateRef", "Template"))
    found = []
    for field, kind in fields:
        reference = spec.get(field)
        name = reference.get("name") if isinstance(reference, dict) else None
        if isinstance(name, str) and name:
            found.append(ObjectReference(kind, namespace, name))
    return found


def ended(workflow: Raw) -> bool:
    """Whether a Workflow is in an end state: it needs its Hardware and its Template no more."""
    status = workflow.get("status")
    return isinstance(status, dict) and status.get("state") in _ENDED


class References:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._referrers: Index[ObjectReference, ObjectReference] = Index()

    def apply(self, obj: Raw) -> frozenset[ObjectReference]:
        """Take in a Hardware or a Workflow that was added or changed; what it refers to no more."""
        targets = () if obj["kind"] == "Workflow" and ended(obj) else targets_of(obj)
        return self._referrers.set(_reference(obj), targets)

    def remove(self, obj: Raw) -> frozenset[ObjectReference]:
        """Forget one that is gone; what it referred to."""
        return self._referrers.set(_reference(obj), ())

    def referrers(self, target: ObjectReference) -> Collection[ObjectReference]:
        """Those that refer to `target`."""
        return self._referrers.keys(target)


def _reference(obj: Raw) -> ObjectReference:
    return ObjectReference(obj["kind"], *NamespacedName.of(obj))

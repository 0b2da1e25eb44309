"""Who refers to an object: Hardware to OSIEs, Workflows that have not ended to Hardware and Templates.

Fed by the informers; a question is a dictionary access, however many objects there are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tink.api.v1alpha2 import Raw, WorkflowState, as_mapping
from tink.kube.cache import Index
from tink.kube.objects import NamespacedName, ObjectReference

_REFERENCES = {
    "Hardware": (("osie", "OSIE"),),
    "Workflow": (("hardwareRef", "Hardware"), ("templateRef", "Template")),
}
_ENDED = tuple(state.value for state in WorkflowState if state.terminal)


def targets_of(obj: Any) -> list[ObjectReference]:
    """What a Hardware or a Workflow refers to, by its `kind`; what can't be read refers to nothing."""
    obj = as_mapping(obj)
    spec = as_mapping(obj.get("spec"))
    namespace = as_mapping(obj.get("metadata")).get("namespace", "")
    found = []
    for field, kind in _REFERENCES.get(obj.get("kind", ""), ()):
        name = as_mapping(spec.get(field)).get("name")
        if isinstance(name, str) and name:
            found.append(ObjectReference(kind, namespace, name))
    return found


def ended(workflow: Raw) -> bool:
    """Whether a Workflow is in an end state: it needs its Hardware and its Template no more."""
    return as_mapping(workflow.get("status")).get("state") in _ENDED


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

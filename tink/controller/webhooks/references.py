"""Who refers to an object: Hardware to OSIEs, Workflows that have not ended to Hardware and Templates.

Fed by the informers; a question is a dictionary access, however many objects there are.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from tink.api.v1alpha2 import Raw, WorkflowState

Target = tuple[str, str, str]
"""Kind, namespace and name of what is referred to."""
Referrer = tuple[str, str, str]
"""Kind, namespace and name of what refers."""

_ENDED = tuple(state.value for state in WorkflowState if state.terminal)


def targets_of(obj: Any) -> list[Target]:
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
            found.append((kind, namespace, name))
    return found


def ended(workflow: Raw) -> bool:
    """Whether a Workflow is in an end state: it needs its Hardware and its Template no more."""
    status = workflow.get("status")
    return isinstance(status, dict) and status.get("state") in _ENDED


class References:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._of: dict[Referrer, list[Target]] = {}
        self._referrers: dict[Target, dict[Referrer, None]] = {}

    def apply(self, obj: Raw) -> None:
        """Take in a Hardware or a Workflow that was added or changed."""
        self._replace(_name(obj), [] if obj["kind"] == "Workflow" and ended(obj) else targets_of(obj))

    def remove(self, obj: Raw) -> None:
        """Forget one that is gone."""
        self._replace(_name(obj), [])

    def referrers(self, target: Target, most: int) -> tuple[list[Referrer], int]:
        """Up to `most` of those that refer to `target`, and how many there are."""
        found = self._referrers.get(target, {})
        return list(islice(found, most)), len(found)

    def _replace(self, referrer: Referrer, targets: list[Target]) -> None:
        for target in self._of.pop(referrer, ()):
            referrers = self._referrers[target]
            referrers.pop(referrer, None)
            if not referrers:
                del self._referrers[target]
        if targets:
            self._of[referrer] = targets
        for target in targets:
            self._referrers.setdefault(target, {})[referrer] = None


def _name(obj: Raw) -> Referrer:
    return obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]

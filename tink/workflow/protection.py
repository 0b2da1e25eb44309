"""The finalizer of Workflows: without it a deletion would not stop the agent.

The controller adds it before it prepares a Workflow. An API that adds it to each new one (the embedded one does,
by `protect`) saves that write, and everybody who waits for the Workflow the time that it takes.
"""

from __future__ import annotations

from tink.api.v1alpha2 import API_VERSION, FINALIZER, Raw
from tink.workflow.guards import paused


def protected(workflow: Raw) -> bool:
    """Whether it has the finalizer."""
    return FINALIZER in (workflow["metadata"].get("finalizers") or ())


def protect(obj: Raw) -> None:
    """Add the finalizer, in place, if the object is a Workflow; to none that is being moved from another API, for the
    copy is to be as the original is."""
    if obj.get("kind") != "Workflow" or obj.get("apiVersion") != API_VERSION or paused(obj) or protected(obj):
        return
    metadata = obj["metadata"]
    metadata["finalizers"] = [*(metadata.get("finalizers") or ()), FINALIZER]

"""What a delete does to the dependents of an object: the finalizers that stand for it, and who works them off.

A client says Background (dependents go after their owner), Foreground (the owner goes after the dependents that block
it) or Orphan (dependents stay, without the reference). The last two are finalizers on the owner, for the garbage
collector (Kubernetes documentation, "Garbage Collection"; k8s.io/apiserver, pkg/registry/generic/registry). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"


def finalizers(meta: Mapping[str, Any], policy: str) -> list[str]:
    """Give the finalizers that an object has once it is deleted by `policy` ("": as its finalizers say already)."""
    have: list[str] = meta.get("finalizers") or []
    if not policy:
        return have
    added = {"Orphan": [ORPHAN], "Foreground": [FOREGROUND]}.get(policy, [])
    return [item for item in have if item not in (ORPHAN, FOREGROUND)] + added

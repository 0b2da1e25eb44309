"""What is common to the tests of `reconcile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tink.api.v1alpha2 import Raw
from tink.controller.reconcile import Outcome, reconcile
from tink.controller.settings import ControllerSettings

CREATED = 1_800_000_000.0
STAMP = "2027-01-15T08:00:00.000Z"
SETTINGS = ControllerSettings()
Make = Callable[..., Raw]
Rendered = Callable[..., list[Raw]]


def never(*_: Any) -> list[Raw]:
    raise AssertionError("rendered without need")


def look(workflow: Raw, now: float, settings: ControllerSettings = SETTINGS) -> Outcome:
    """Reconcile a Workflow that has been prepared: what it refers to does not matter any more."""
    return reconcile(workflow, None, None, settings, now, never)


def status_in(outcome: Outcome) -> Raw:
    bodies = [patch.body["status"] for patch in outcome.patches if patch.subresource == "status"]
    assert len(bodies) == 1, outcome
    status: Raw = bodies[0]
    return status


def condition(status: Raw, kind: str) -> Raw:
    return next(c for c in status["conditions"] if c["type"] == kind)


def finalizers_in(outcome: Outcome) -> list[str] | None:
    lists = [patch.body["metadata"].get("finalizers") for patch in outcome.patches if patch.subresource is None]
    return lists[0] if lists else None

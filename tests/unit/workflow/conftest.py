"""Workflows in any state, for the tests of the state machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tink.api.v1alpha2 import Raw

Make = Callable[..., Raw]


@pytest.fixture
def make_workflow() -> Make:
    """`make_workflow(state, actions=("Pending", ...), **status)`: a Workflow with actions a0, a1, ...

    With `reboots` its last action reboots the machine."""

    def make(
        state: str | None, actions: tuple[str, ...] = ("Pending", "Pending"), *, reboots: bool = False, **status: Any
    ) -> Raw:
        workflow: Raw = {
            "apiVersion": "tinkerbell.org/v1alpha2",
            "kind": "Workflow",
            "metadata": {"name": "w", "namespace": "default", "uid": "u-1", "resourceVersion": "7"},
            "spec": {"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}},
        }
        if state is not None:
            workflow["status"] = {
                "state": state,
                "lastTransitioned": "2026-01-01T00:00:00.000Z",
                "actions": [
                    {"id": f"a{i}", "rendered": {"name": f"action-{i}", "image": "i"}, "state": action_state}
                    for i, action_state in enumerate(actions)
                ],
                **status,
            }
            if reboots:
                workflow["status"]["actions"][-1]["rendered"]["reboots"] = True
        return workflow

    return make

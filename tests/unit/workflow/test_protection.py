"""Which new objects get the finalizer of Workflows."""

from __future__ import annotations

from typing import Any

import pytest

from tink.api.annotations import PAUSED_ANNOTATION
from tink.api.v1alpha2 import API_VERSION, FINALIZER
from tink.workflow.protection import protect, protected


def workflow(**metadata: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "Workflow", "metadata": {"name": "w", **metadata}, "spec": {}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, [FINALIZER]),
        ({"finalizers": None}, [FINALIZER]),
        ({"finalizers": ["other/one"]}, ["other/one", FINALIZER]),
        ({"finalizers": [FINALIZER, "other/one"]}, [FINALIZER, "other/one"]),
    ],
)
def test_a_new_workflow_has_it_once_and_keeps_those_of_others(before: dict[str, Any], after: list[str]) -> None:
    new = workflow(**before)
    protect(new)
    assert new["metadata"]["finalizers"] == after
    assert protected(new)


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "Hardware"},
        {"apiVersion": "tinkerbell.org/v1alpha1"},
        {"apiVersion": "argoproj.io/v1alpha1"},
        {"metadata": {"name": "w", "annotations": {PAUSED_ANNOTATION: "moved from here"}}},
    ],
)
def test_nothing_else_gets_it_and_no_copy_of_a_workflow_that_is_moved(other: dict[str, Any]) -> None:
    obj = workflow() | other
    protect(obj)
    assert not protected(obj)

"""Reading and writing the fields of a status."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.workflow.cases import in_state
from tink.api.v1alpha2 import ConditionStatus
from tink.workflow.status import (
    ConditionType,
    InvalidStatusError,
    check_states,
    dispatch_after,
    parse_timestamp,
    rejections,
    set_condition,
    status_patch,
    timestamp,
)


def test_timestamps_keep_milliseconds_so_that_short_timeouts_do_not_fire_early() -> None:
    assert timestamp(1_800_000_000.987) == "2027-01-15T08:00:00.987Z"
    assert parse_timestamp("2027-01-15T08:00:00.987Z") == pytest.approx(1_800_000_000.987)


@pytest.mark.parametrize("value", [None, "", "yesterday", 5, "2027-13-01T00:00:00Z", [], "0000-00-00"])
def test_an_unreadable_timestamp_counts_as_absent(value: object) -> None:
    assert parse_timestamp(value) is None


def test_the_times_of_kubernetes_are_read() -> None:
    assert parse_timestamp("2027-01-15T08:00:00Z") == 1_800_000_000
    assert parse_timestamp("2027-01-15T09:00:00+01:00") == 1_800_000_000


@pytest.mark.parametrize(
    ("status", "count", "after"),
    [
        ({}, 0, 0.0),
        ({"rejections": 3, "dispatchAfter": "2027-01-15T08:00:00.500Z"}, 3, 1_800_000_000.5),
        ({"rejections": "3", "dispatchAfter": "soon"}, 0, 0.0),
        ({"rejections": -3, "dispatchAfter": 5}, 0, 0.0),
        ({"rejections": True, "dispatchAfter": None}, 0, 0.0),
    ],
)
def test_rejection_count_and_dispatch_time_are_read_or_absent(status, count, after) -> None:
    assert rejections(status) == count
    assert dispatch_after(status) == after


def test_a_state_that_is_none_is_named_with_its_object() -> None:
    check_states(in_state("Running", "RP"))
    check_states(in_state(None))
    with pytest.raises(InvalidStatusError, match=r"Workflow default/w: status.state is 'Runing'"):
        check_states(in_state("Runing"))
    odd = in_state("Running")
    odd["status"]["actions"][1]["state"] = "Odd"
    with pytest.raises(InvalidStatusError, match=r"Workflow default/w: status.actions\[a1\].state is 'Odd'"):
        check_states(odd)


def test_patch_has_changed_fields_and_removes_absent_ones() -> None:
    workflow = in_state("Running", extra="x", currentAction="a")
    status = {k: v for k, v in workflow["status"].items() if k != "extra"} | {"state": "Failed"}
    assert status_patch(workflow, status) == {
        "metadata": {"resourceVersion": "7"},
        "status": {"state": "Failed", "extra": None},
    }


def test_a_condition_takes_the_place_of_the_one_of_its_type_and_leaves_the_shared_list_alone() -> None:
    old = [{"type": "Started", "status": "False"}, {"type": "Foreign", "status": "True"}]
    status: dict[str, Any] = {"conditions": old}
    set_condition(status, ConditionType.STARTED, ConditionStatus.TRUE)
    assert status["conditions"] == [{"type": "Started", "status": "True"}, {"type": "Foreign", "status": "True"}]
    assert old[0]["status"] == "False"

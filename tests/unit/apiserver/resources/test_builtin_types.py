"""What kubectl prints when a built-in object holds a value of the wrong type."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.apiserver.conftest import Client

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        (MAPS, {"data": {"a": 1}}, "data.a: must be a string, not number"),
        (MAPS, {"data": []}, "data: must be an object, not array"),
        (MAPS, {"immutable": "yes"}, "immutable: must be a boolean, not string"),
        (MAPS, {"binaryData": {"a": "?"}}, "binaryData.a: is not base64"),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            {"spec": {"leaseDurationSeconds": "x"}},
            "spec.leaseDurationSeconds: must be an integer of 32 bits, not string",
        ),
        (
            "/api/v1/namespaces/default/events",
            {"involvedObject": {"namespace": "default"}, "firstTimestamp": "soon"},
            "firstTimestamp: is not a time such as 2006-01-02T15:04:05Z",
        ),
    ],
)
async def test_wrong_type_in_a_built_in_object_is_a_bad_request(bare: Client, path: str, body: Any, why: str) -> None:
    answer = await bare("POST", path, {"metadata": {"name": "x"}, **body})
    assert answer.status == 400
    assert answer.json["reason"] == "BadRequest"
    assert answer.json["message"].endswith(why)


async def test_update_creates_leases_and_events_but_nothing_else(bare: Client) -> None:
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    assert (await bare("PUT", f"{leases}/a", {"metadata": {"name": "a"}})).status == 201
    assert (await bare("PUT", f"{leases}/a", {"metadata": {"name": "a"}})).status == 422  # no resourceVersion
    assert (await bare("PUT", f"{MAPS}/a", {"metadata": {"name": "a"}})).status == 404

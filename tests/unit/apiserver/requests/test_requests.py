"""Requests that are wrong: each gets the answer that Kubernetes gives, and none breaks the server."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.apiserver.conftest import Client
from tink.apiserver.errors import StatusError
from tink.apiserver.requests import decode
from tink.apiserver.requests.options import parse_bool

HARDWARE = "/apis/tinkerbell.org/v1alpha2/namespaces/default/hardware"


async def test_refused_values_do_not_reach_the_log(api: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    body = {"metadata": {"name": "m"}, "spec": {"storageDevices": ["hunter2"]}}
    assert (await api("POST", HARDWARE, body)).status == 422
    assert "spec.storageDevices[0]" in caplog.text
    assert "hunter2" not in caplog.text


def test_booleans_of_queries_are_those_of_kubernetes() -> None:
    assert all(parse_bool(text) for text in ("1", "t", "T", "TRUE", "true", "True", "yes"))
    assert not any(parse_bool(text) for text in ("", "0", "false", "False", "FALSE"))


# What kubectl 1.32 sends for `create namespace rack-b` and `create secret generic s --from-literal=a=b`.
NAMESPACE = bytes.fromhex(
    "6b3873000a0f0a02763112094e616d657370616365121e0a160a067261636b2d6212001a0022002a0032003800420012001a020a001a002200"
)
SECRET = bytes.fromhex(
    "6b3873000a0c0a0276311206536563726574121d0a110a017312001a0022002a0032003800420012060a01611201621a001a002200"
)


def test_protobuf_of_kubectl_is_read() -> None:
    body = decode("application/vnd.kubernetes.protobuf", NAMESPACE, strict=False)
    assert body.value["metadata"]["name"] == "rack-b"
    assert (body.value["apiVersion"], body.value["kind"]) == ("v1", "Namespace")
    assert decode("application/vnd.kubernetes.protobuf", SECRET, strict=False).value["data"] == {"a": "Yg=="}


@given(st.text(max_size=60))
def test_no_yaml_breaks_the_reader(text: str) -> None:
    with suppress(StatusError):
        json.dumps(decode("application/yaml", text.encode(), strict=True).value)


@pytest.mark.parametrize(
    ("raw", "content", "refused"),
    [
        (b"[" * 20_001, "application/json", True),
        (b'{"a": [' + b"0," * 20_000 + b"0]}", "application/json", True),
        (b'{"a": [' + b"[]," * 12_000 + b"0]}", "application/json", True),
        (b"a: [" + b"x," * 20_000 + b"x]", "application/yaml", True),
        (b'{"a": [' + b"0," * 19_000 + b"0]}", "application/json", False),
        (b'{"a": "' + b"," * 500_000 + b'"}', "application/json", False),
        (b'{"a": "' + b'\\",[{' * 100_000 + b'"}', "application/json", False),
        (b"a: '" + b"," * 500_000 + b"'", "application/yaml", False),
    ],
)
def test_body_of_more_values_than_can_be_read_at_once_is_refused(raw: bytes, content: str, *, refused: bool) -> None:
    if refused:
        with pytest.raises(StatusError) as error:
            decode(content, raw, strict=True)
        assert (error.value.code, error.value.reason) == (413, "RequestEntityTooLarge")
        assert "more than 20000 values; write several objects instead of one" in error.value.message
    else:
        assert isinstance(decode(content, raw, strict=True).value, dict)
    if raw[:1] == b"{":
        assert decode("application/json", raw, strict=False, values=len(raw)).value, "definitions have many"


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

"""Wrong requests get Kubernetes' answers, and none breaks the server; the protobuf of real clients."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kubeapi.apiserver.conftest import Client
from tink.kubeapi.apiserver import serializer
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.media import decode
from tink.kubeapi.apiserver.options import parse_bool
from tink.kubeapi.apiserver.serializer import KINDS, MESSAGES, SCALARS

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
        value = decode("application/yaml", text.encode(), strict=True).value
        assert json.dumps(value)


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
def test_body_with_too_many_values_is_refused(raw: bytes, content: str, *, refused: bool) -> None:
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


# --- protobuf

DATA = Path(__file__).with_name("data")
CASES = json.loads((DATA / "client_go.json").read_text())
PROTOBUF = "application/vnd.kubernetes.protobuf"


def without_empty(value: Any) -> Any:
    """Remove empty values, which Go's JSON and its protobuf write differently."""
    if isinstance(value, dict):
        kept = {key: without_empty(part) for key, part in value.items()}
        return {key: part for key, part in kept.items() if part not in (None, "", False, 0, {}, [])}
    return [without_empty(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_body_of_client_go_is_read_and_written_unchanged(case: Any) -> None:
    """data/client_go.json: recorded with data/client_go/main.go."""
    assert case["contentType"] == PROTOBUF
    made = serializer.load_protobuf(base64.b64decode(case["body"]))
    assert without_empty(made) == without_empty(case["object"])
    assert serializer.load_protobuf(serializer.dump_protobuf(made)) == made
    if "managedFields" in case["object"].get("metadata", {}):  # with the empty sets that they consist of
        assert made["metadata"]["managedFields"] == case["object"]["metadata"]["managedFields"]


def test_pointers_keep_empty_values_apart_from_none() -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {}, "spec": {"holderIdentity": ""}}
    assert serializer.load_protobuf(serializer.dump_protobuf(lease))["spec"] == {"holderIdentity": ""}
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "orphanDependents": False}
    for seconds in (0, -1):
        given_options = options | {"gracePeriodSeconds": seconds}
        assert serializer.load_protobuf(serializer.dump_protobuf(given_options)) == given_options


def test_lists_and_refusals_are_written_for_clients_that_read_nothing_else() -> None:
    item = {"metadata": {"name": "a"}, "data": {"k": "v"}}
    listed = {"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "7"}, "items": [item, item]}
    raw = serializer.dump_protobuf(listed)
    assert raw.startswith(b"k8s\x00\x0a\x13\x0a\x02v1\x12\x0dConfigMapList")
    assert raw.count(b"\x0a\x01a") == 2
    refusal = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404, "details": {"name": "x"}}
    assert serializer.load_protobuf(serializer.dump_protobuf(refusal)) == refusal


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "does not begin"),
        (b"k8s\x00\x0a\x05\x0a\x02v1\x12", "middle"),
        (b"k8s\x00" + bytes([0x0F]), "wire type 7"),
        (b"k8s\x00" + b"\x80" * 11, "too long"),
        (b"k8s\x00\x0a\x0b\x0a\x02v1\x12\x05Thing", "send it as application/json"),
        (b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12\x04\x0a\x02\x0a\x07", "middle"),
        (b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12\x05\x0a\x03\x0a\x01\xff", "UTF-8"),
        (b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12\x04\x0a\x02\x08\x01", "wrong wire type"),
        (b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12\x05\x0a\x03\x3a\x01x", "wrong wire type"),
        (b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12\x0f\x0a\x0d\x42\x0b\x08" + b"\xff" * 9 + b"\x01", ""),
        (
            b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12\x0e\x0a\x0c\x42\x0a\x08" + b"\xff" * 8 + b"\x7f",
            "out of range",
        ),
    ],
)
def test_broken_body_is_refused_with_a_reason(raw: bytes, why: str) -> None:
    if not why:
        assert "1969-12-31T23:59:59Z" in json.dumps(serializer.load_protobuf(raw))
        return
    with pytest.raises(serializer.BodyError, match=why):
        serializer.load_protobuf(raw)


def test_millions_of_tiny_fields_do_not_fill_the_memory() -> None:
    def length(size: int) -> bytes:
        return bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21])

    owners = b"\x6a\x00" * 1_400_000
    metadata = b"\x0a" + length(len(owners)) + owners
    raw = b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12" + length(len(metadata)) + metadata
    with pytest.raises(serializer.BodyError, match="more than 500000 fields"):
        serializer.load_protobuf(raw)


@given(st.binary(max_size=200), st.sampled_from(CASES))
@settings(max_examples=200, deadline=None)
def test_no_bytes_break_the_reader(noise: bytes, case: Any) -> None:
    whole = base64.b64decode(case["body"])
    for raw in (noise, serializer.MAGIC + noise, whole[: len(noise)] + noise, whole + noise):
        with suppress(serializer.BodyError):
            assert isinstance(json.loads(json.dumps(serializer.load_protobuf(raw))), dict)


@given(st.sampled_from(CASES), st.sampled_from([None, 5, "x", [], {}, [1], {"a": 1}, True, "ü"]))
@settings(max_examples=100, deadline=None)
def test_no_object_breaks_the_writer(case: Any, odd: Any) -> None:
    for key in case["object"]:
        if key in ("apiVersion", "kind"):
            continue
        with suppress(serializer.BodyError):
            assert serializer.dump_protobuf({**case["object"], key: odd}).startswith(serializer.MAGIC)


def test_every_referenced_message_is_defined() -> None:
    for fields in MESSAGES.values():
        assert len({field.number for field in fields}) == len({field.name for field in fields}) == len(fields)
        assert {field.type for field in fields} <= SCALARS | MESSAGES.keys()
    assert set(KINDS.values()) <= MESSAGES.keys()


async def test_protobuf_is_accepted_and_sent_over_http(bare: Client) -> None:
    def packed(kind: str, version: str = "v1", **fields: Any) -> bytes:
        return serializer.dump_protobuf({"apiVersion": version, "kind": kind, **fields})

    maps = "/api/v1/namespaces/default/configmaps"
    body = packed("ConfigMap", metadata={"name": "a"}, data={"k": "v"})
    made = await bare("POST", maps, body, content=PROTOBUF, accept=PROTOBUF)
    assert (made.status, made.headers["Content-Type"]) == (201, [PROTOBUF])
    assert serializer.load_protobuf(made.text)["data"] == {"k": "v"}
    listed = await bare("GET", maps, accept=PROTOBUF)
    assert (listed.status, listed.text.count(b"\x0a\x01k\x12\x01v")) == (200, 1)
    options = packed("DeleteOptions", preconditions={"uid": "other"})
    assert (await bare("DELETE", f"{maps}/a", options, content=PROTOBUF)).status == 409
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods"}}
    asked = packed("SelfSubjectAccessReview", "authorization.k8s.io/v1", spec=spec)
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = await bare("POST", reviews, asked, content=PROTOBUF, accept=f"{PROTOBUF},application/json")
    assert (answer.status, answer.json["status"]) == (201, {"allowed": True})

"""Protobuf of Kubernetes: what real clients send is read, and what is written they could read back."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.apiserver.conftest import Client
from tink.apiserver.serializer import protobuf
from tink.apiserver.serializer.protobuf_messages import KINDS, MESSAGES, SCALARS

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "client_go.json").read_text())
PROTOBUF = "application/vnd.kubernetes.protobuf"


def told(value: Any) -> Any:
    """Leave out what says nothing: Go's JSON has empty values that its protobuf has not, and the other way round."""
    if isinstance(value, dict):
        kept = {key: told(part) for key, part in value.items()}
        return {key: part for key, part in kept.items() if part not in (None, "", False, 0, {}, [])}
    return [told(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_body_of_client_go_is_read_as_the_object_that_it_was_and_written_back(case: Any) -> None:
    """data/client_go.json: recorded with data/client_go/main.go."""
    assert case["contentType"] == PROTOBUF
    made = protobuf.load_protobuf(base64.b64decode(case["body"]))
    assert told(made) == told(case["object"])
    assert protobuf.load_protobuf(protobuf.dump_protobuf(made)) == made
    if "managedFields" in case["object"].get("metadata", {}):  # with the empty sets that they consist of
        assert made["metadata"]["managedFields"] == case["object"]["metadata"]["managedFields"]


def test_pointers_keep_empty_values_apart_from_none() -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {}, "spec": {"holderIdentity": ""}}
    assert protobuf.load_protobuf(protobuf.dump_protobuf(lease))["spec"] == {"holderIdentity": ""}
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "orphanDependents": False}
    for seconds in (0, -1):
        given_options = options | {"gracePeriodSeconds": seconds}
        assert protobuf.load_protobuf(protobuf.dump_protobuf(given_options)) == given_options


def test_lists_and_refusals_are_written_for_clients_that_read_nothing_else() -> None:
    item = {"metadata": {"name": "a"}, "data": {"k": "v"}}
    listed = {"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "7"}, "items": [item, item]}
    raw = protobuf.dump_protobuf(listed)
    assert raw.startswith(b"k8s\x00\x0a\x13\x0a\x02v1\x12\x0dConfigMapList")
    assert raw.count(b"\x0a\x01a") == 2
    refusal = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404, "details": {"name": "x"}}
    assert protobuf.load_protobuf(protobuf.dump_protobuf(refusal)) == refusal


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
        assert "1969-12-31T23:59:59Z" in json.dumps(protobuf.load_protobuf(raw))
        return
    with pytest.raises(protobuf.ProtobufError, match=why):
        protobuf.load_protobuf(raw)


def test_millions_of_tiny_fields_do_not_fill_the_memory() -> None:
    def length(size: int) -> bytes:
        return bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21])

    owners = b"\x6a\x00" * 1_400_000
    metadata = b"\x0a" + length(len(owners)) + owners
    raw = b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12" + length(len(metadata)) + metadata
    with pytest.raises(protobuf.ProtobufError, match="more than 500000 fields"):
        protobuf.load_protobuf(raw)


@given(st.binary(max_size=200), st.sampled_from(CASES))
@settings(max_examples=200, deadline=None)
def test_no_bytes_break_the_reader(noise: bytes, case: Any) -> None:
    whole = base64.b64decode(case["body"])
    for raw in (noise, protobuf.MAGIC + noise, whole[: len(noise)] + noise, whole + noise):
        with suppress(protobuf.ProtobufError):
            json.dumps(protobuf.load_protobuf(raw))


@given(st.sampled_from(CASES), st.sampled_from([None, 5, "x", [], {}, [1], {"a": 1}, True, "ü"]))
@settings(max_examples=100, deadline=None)
def test_no_object_breaks_the_writer(case: Any, odd: Any) -> None:
    for key in case["object"]:
        if key in ("apiVersion", "kind"):
            continue
        with suppress(protobuf.ProtobufError):
            protobuf.dump_protobuf({**case["object"], key: odd})


def test_every_message_that_is_named_is_described() -> None:
    for fields in MESSAGES.values():
        assert len({field.number for field in fields}) == len({field.name for field in fields}) == len(fields)
        assert {field.type for field in fields} <= SCALARS | MESSAGES.keys()
    assert set(KINDS.values()) <= MESSAGES.keys()


async def test_protobuf_goes_in_and_comes_out_over_the_wire(bare: Client) -> None:
    def packed(kind: str, version: str = "v1", **fields: Any) -> bytes:
        return protobuf.dump_protobuf({"apiVersion": version, "kind": kind, **fields})

    maps = "/api/v1/namespaces/default/configmaps"
    body = packed("ConfigMap", metadata={"name": "a"}, data={"k": "v"})
    made = await bare("POST", maps, body, content=PROTOBUF, accept=PROTOBUF)
    assert (made.status, made.headers["Content-Type"]) == (201, [PROTOBUF])
    assert protobuf.load_protobuf(made.text)["data"] == {"k": "v"}
    listed = await bare("GET", maps, accept=PROTOBUF)
    assert (listed.status, listed.text.count(b"\x0a\x01k\x12\x01v")) == (200, 1)
    options = packed("DeleteOptions", preconditions={"uid": "other"})
    assert (await bare("DELETE", f"{maps}/a", options, content=PROTOBUF)).status == 409
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods"}}
    asked = packed("SelfSubjectAccessReview", "authorization.k8s.io/v1", spec=spec)
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = await bare("POST", reviews, asked, content=PROTOBUF, accept=f"{PROTOBUF},application/json")
    assert (answer.status, answer.json["status"]) == (201, {"allowed": True})

"""Packed objects are what they were, whatever they hold, and small where they resemble each other."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from tink.kube.cache import ObjectCompressor
from tink.kube.cache.compression import strip

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abäö.~", max_size=5), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text("abc", max_size=3), VALUES, max_size=5)


@given(st.lists(OBJECTS, min_size=1, max_size=5))
def test_what_is_packed_comes_back(objects: list[dict[str, Any]]) -> None:
    compressor = ObjectCompressor()
    packed = [compressor.compress(obj) for obj in objects]
    assert [compressor.decompress(one) for one in packed] == objects


def test_objects_that_resemble_the_first_take_few_bytes() -> None:
    compressor = ObjectCompressor()

    def machine(number: int) -> dict[str, Any]:
        return {"name": f"machine-{number}", "spec": {f"field-{i}": f"what all machines say {i}" for i in range(50)}}

    first = compressor.compress(machine(0))
    assert len(compressor.compress(machine(1))) < len(orjson.dumps(machine(1))) / 20
    assert len(first) < 100
    assert compressor.decompress(first) == machine(0)


def test_objects_larger_than_the_window_come_back() -> None:
    compressor = ObjectCompressor()
    large = [{"text": "".join(str(i * k) for i in range(30_000))} for k in (7, 11, 13)]
    assert [compressor.decompress(packed) for packed in [compressor.compress(obj) for obj in large]] == large


def test_an_object_packed_twice_in_a_row_has_one_copy() -> None:
    compressor, obj = ObjectCompressor(), {"a": 1}
    packed = compressor.compress(obj)
    assert compressor.compress(obj) is packed
    assert compressor.decompress(compressor.compress({"a": 2})) == {"a": 2}


def test_strip_leaves_the_annotations_of_others() -> None:
    last = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    obj = {"metadata": {"managedFields": [], "annotations": last | {"a": "b"}}, "spec": {"managedFields": 1}}
    assert strip(obj) == {"metadata": {"annotations": {"a": "b"}}, "spec": {"managedFields": 1}}
    assert strip({"metadata": {"annotations": None}}) == {"metadata": {"annotations": None}}
    assert strip({"metadata": {"annotations": {}}}) == {"metadata": {"annotations": {}}}

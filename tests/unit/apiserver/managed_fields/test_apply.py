"""What must hold for every apply and update, whatever is in them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.apiserver.managed_fields.conftest import DEFINITION, Object
from tink.apiserver.errors import StatusError
from tink.apiserver.managed_fields import FieldManager, entries, fields, openapi
from tink.schema.structural.compiler import root_schema

Raw = dict[str, Any]
_ROOT = root_schema(DEFINITION["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
LATER = "2026-01-01T00:00:05Z"

VALUES = st.sampled_from(["1", "2"])
PORTS = st.lists(
    st.fixed_dictionaries({"port": st.sampled_from([80, 443])}, optional={"name": VALUES}),
    max_size=2,
    unique_by=lambda port: port["port"],
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "text": VALUES,
        "number": st.integers(0, 2),
        "labels": st.dictionaries(st.sampled_from("abc"), VALUES, min_size=1),
        "whole": st.dictionaries(st.sampled_from("ab"), VALUES, min_size=1),
        "tags": st.lists(st.sampled_from("pqr"), unique=True, min_size=1),
        "order": st.lists(st.sampled_from("xyz"), max_size=2),
        "ports": PORTS,
        "free": st.recursive(VALUES | st.booleans(), lambda inner: st.dictionaries(st.sampled_from("de"), inner)).map(
            lambda value: {"root": value}
        ),
    },
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["text", "tags", "ports", "port", "labels", "free", "a", "name", "spec"]), inner
        )
    ),
    max_leaves=12,
)


def _spec(obj: Object) -> Raw:
    return obj.live.get("spec") or {}


def _owned(obj: Object, manager: str) -> set[str]:
    for entry in obj.live["metadata"].get("managedFields", []):
        if entry.get("manager") == manager:
            return {fields.render(path) for path in fields.paths(entry["fieldsV1"])}
    return set()


def _there(obj: Object) -> set[str]:
    """Return all fields that the object has."""
    return {fields.render(path) for path in fields.paths(openapi.compile_root(_ROOT).applied(obj.live) or {})}


async def _is_refused(write: Awaitable[Any]) -> bool:
    try:
        await write
    except StatusError:
        return True
    return False


@given(SPECS, SPECS)
@settings(max_examples=40, deadline=None)
async def test_applying_the_same_again_changes_nothing_not_even_a_time(first: Raw, other: Raw) -> None:
    obj = Object()
    await obj.do("apply", "a", {"spec": first})
    await _is_refused(obj.do("apply", "b", {"spec": other}, force=True))
    await _is_refused(obj.do("apply", "a", {"spec": first}, force=True))
    before = obj.live
    await obj.do("apply", "a", {"spec": first}, force=True, now=LATER)
    await obj.do("put", "a", {"spec": _spec(obj), "metadata": before["metadata"]}, now=LATER)
    await obj.do("merge", "c", {"spec": _spec(obj)}, now=LATER)
    assert obj.live == before


@given(SPECS, st.data())
@settings(max_examples=40, deadline=None)
async def test_manager_that_applies_other_fields_never_gets_a_conflict(spec: Raw, data: st.DataObject) -> None:
    mine = data.draw(st.sets(st.sampled_from(sorted(spec) or ["text"])))
    obj = Object()
    await obj.do("apply", "a", {"spec": {name: value for name, value in spec.items() if name in mine}})
    await obj.do("apply", "b", {"spec": {name: value for name, value in spec.items() if name not in mine}})
    await obj.do("apply", "a", {"spec": {name: value for name, value in spec.items() if name in mine}})
    assert _owned(obj, "a") & _owned(obj, "b") <= {".spec"}  # an empty spec is owned as a whole
    assert {name: value for name, value in _spec(obj).items() if value} == {
        name: _completed(name, value) for name, value in spec.items() if value
    }


def _completed(name: str, value: Any) -> Any:
    return [{"protocol": "TCP", **port} for port in value] if name == "ports" else value


@given(SPECS, SPECS, SPECS)
@settings(max_examples=50, deadline=None)
async def test_field_that_is_no_longer_applied_goes_unless_another_manager_owns_it(one, two, rest) -> None:
    obj = Object()
    await obj.do("apply", "a", {"spec": one})
    await _is_refused(obj.do("apply", "b", {"spec": two}))
    kept = {name: value for name, value in one.items() if name in rest}
    had, others, before = _owned(obj, "a"), _owned(obj, "b"), _there(obj) - {".spec"}
    if await _is_refused(obj.do("apply", "a", {"spec": kept})):
        return
    there = _there(obj)
    dropped = had - _owned(obj, "a")
    assert dropped & there <= others
    assert others & before <= there


def _code(manager: FieldManager, live: Raw | None, body: Raw) -> int:
    try:
        manager.apply(live, body, "n", "", LATER, force=True)
    except StatusError as refused:
        return refused.code
    return 200


@given(JSON, JSON)
@settings(max_examples=50, deadline=None)
def test_nothing_that_is_applied_is_worse_than_a_refusal(config: Any, metadata: Any) -> None:
    manager = FieldManager(_ROOT, "managed.example/v1", status=True, kind="Thing")
    head = {"apiVersion": "managed.example/v1", "kind": "Thing"}
    live = manager.apply(None, {**head, "metadata": {"name": "x"}, "spec": {"text": "a"}}, "m", "", LATER, force=False)
    for body in ({**head, "metadata": {"name": "x"}, "spec": config}, {**head, "metadata": metadata, "status": config}):
        for old in (None, live):
            assert _code(manager, old, body) in (200, 400, 409, 500)


@given(JSON, JSON, JSON)
@settings(max_examples=50, deadline=None)
def test_an_update_is_never_refused_for_its_managed_fields(sent: Any, was: Any, spec: Any) -> None:
    manager = FieldManager(_ROOT, "managed.example/v1", status=True)
    new = {"metadata": {"name": "x", "managedFields": [sent]}, "spec": spec, "status": spec}
    live = {"metadata": {"name": "x", "managedFields": [was]}, "spec": was, "status": was}
    manager.update(live, new, "m", "", LATER)
    manager.update(None, new, "m", "", LATER)
    listed = new["metadata"].get("managedFields") or []
    assert entries.write(entries.parse(listed)) == listed

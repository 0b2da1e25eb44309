"""What must hold for every apply and update, whatever is in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.apiserver.managed_fields.conftest import Api
from tink.apiserver.errors import StatusError
from tink.apiserver.managed_fields import FieldManager, entries, fields, openapi
from tink.schema.structural.compiler import root_schema

Raw = dict[str, Any]
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


def _spec(object_: Any) -> Raw:
    assert object_.live is not None
    return object_.live.get("spec") or {}


def _owned(object_: Any, manager: str) -> set[str]:
    assert object_.live is not None
    for entry in object_.live["metadata"].get("managedFields", []):
        if entry.get("manager") == manager:
            return {fields.render(path) for path in fields.paths(entry["fieldsV1"])}
    return set()


def _there(object_: Any) -> set[str]:
    """All fields that the object has."""
    assert object_.live is not None
    return {fields.render(path) for path in fields.paths(openapi.compile_root(_ROOT).applied(object_.live) or {})}


def _try(write: Callable[[], Any]) -> StatusError | None:
    try:
        write()
    except StatusError as refused:
        return refused
    except Exception as refused:
        if type(refused).__name__ != "RefusedError":
            raise
    return None


@given(SPECS, SPECS)
@settings(max_examples=40, deadline=None)
def test_applying_the_same_again_changes_nothing_not_even_a_time(
    api: Callable[[str], Api], do: Any, first: Raw, other: Raw
) -> None:
    object_ = api("things")
    do(object_, "apply", "a", {"spec": first})
    _try(lambda: do(object_, "apply", "b", {"spec": other}, force=True))
    _try(lambda: do(object_, "apply", "a", {"spec": first}, force=True))
    before = orjson.dumps(object_.live, option=orjson.OPT_SORT_KEYS)
    do(object_, "apply", "a", {"spec": first}, force=True, now=LATER)
    do(object_, "put", "a", {"spec": _spec(object_), "metadata": object_.live["metadata"]}, now=LATER)
    do(object_, "merge", "c", {"spec": _spec(object_)}, now=LATER)
    assert orjson.dumps(object_.live, option=orjson.OPT_SORT_KEYS) == before


@given(SPECS, st.data())
@settings(max_examples=40, deadline=None)
def test_who_applies_other_fields_never_gets_a_conflict(
    api: Callable[[str], Api], do: Any, spec: Raw, data: st.DataObject
) -> None:
    mine = data.draw(st.sets(st.sampled_from(sorted(spec) or ["text"])))
    object_ = api("things")
    do(object_, "apply", "a", {"spec": {name: value for name, value in spec.items() if name in mine}})
    do(object_, "apply", "b", {"spec": {name: value for name, value in spec.items() if name not in mine}})
    do(object_, "apply", "a", {"spec": {name: value for name, value in spec.items() if name in mine}})
    assert _owned(object_, "a") & _owned(object_, "b") <= {".spec"}  # an empty spec is owned as a whole
    assert {name: value for name, value in _spec(object_).items() if value} == {
        name: _completed(name, value) for name, value in spec.items() if value
    }


def _completed(name: str, value: Any) -> Any:
    return [{"protocol": "TCP", **port} for port in value] if name == "ports" else value


@given(st.sampled_from(["text", "labels", "whole", "free"]))
@settings(max_examples=10, deadline=None)
def test_what_is_taken_by_force_is_a_conflict_for_who_had_it(api: Callable[[str], Api], do: Any, name: str) -> None:
    def value(text: str) -> Any:
        return text if name == "text" else {"a": text}

    object_ = api("things")
    do(object_, "apply", "a", {"spec": {name: value("1")}})
    do(object_, "apply", "b", {"spec": {name: value("2")}}, force=True)
    with pytest.raises(StatusError) as refused:
        do(object_, "apply", "a", {"spec": {name: value("1")}})
    assert refused.value.code == 409
    assert refused.value.details is not None
    assert [cause["message"] for cause in refused.value.details["causes"]] == ['conflict with "b"']


@given(SPECS, SPECS, SPECS)
@settings(max_examples=50, deadline=None)
def test_what_is_applied_no_more_goes_unless_another_owns_it(
    api: Callable[[str], Api], do: Any, one: Raw, two: Raw, rest: Raw
) -> None:
    object_ = api("things")
    do(object_, "apply", "a", {"spec": one})
    _try(lambda: do(object_, "apply", "b", {"spec": two}))
    kept = {name: value for name, value in one.items() if name in rest}
    had = _owned(object_, "a")
    others = _owned(object_, "b")
    before = _there(object_) - {".spec"}
    if _try(lambda: do(object_, "apply", "a", {"spec": kept})) is not None:
        return
    there = _there(object_)
    dropped = had - _owned(object_, "a")
    assert dropped & there <= others
    assert others & before <= there


_DEFINITION = json.loads((Path(__file__).parent / "schemas.json").read_text())["definition"]
_ROOT = root_schema(_DEFINITION["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


@given(JSON, JSON)
@settings(max_examples=50, deadline=None)
def test_nothing_that_is_applied_is_worse_than_a_refusal(config: Any, metadata: Any) -> None:
    manager = FieldManager(_ROOT, "managed.example/v1", status=True, kind="Thing")
    head = {"apiVersion": "managed.example/v1", "kind": "Thing"}
    live = manager.apply(None, {**head, "metadata": {"name": "x"}, "spec": {"text": "a"}}, "m", "", LATER, force=False)
    for body in ({**head, "metadata": {"name": "x"}, "spec": config}, {**head, "metadata": metadata, "status": config}):
        for old in (None, live):
            refused = _try(lambda body=body, old=old: manager.apply(old, body, "n", "", LATER, force=True))  # type: ignore[misc]
            assert refused is None or refused.code in (400, 409, 500)


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

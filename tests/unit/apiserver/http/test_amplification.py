"""A few bytes in must not be much work, or much memory: defaults, lists that are merged, rules, definitions."""

from __future__ import annotations

import resource
import threading
from typing import Any

import pytest

from tests.unit.apiserver.conftest import CRDS, Client
from tink.apiserver import patch
from tink.apiserver.requests import MAX_GROWN_VALUES, MAX_VALUES, decode, decode_patch
from tink.apiserver.serializer import load_json
from tink.apiserver.write import completion
from tink.schema.outcome import MAX_ADDED, Outcome, TooMuchAddedError
from tink.schema.structural.checks import VALUE_CHECKS
from tink.schema.structural.compiler import compile_schema
from tink.schema.validations import compile_rules


def definition(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"spec": spec}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{name}s.attack.test"},
        "spec": {
            "group": "attack.test",
            "scope": "Namespaced",
            "names": {"plural": f"{name}s", "kind": name.capitalize()},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


MANY = 200_000
"""To compare so many with each other takes longer than a test may; in one pass it is done in a moment."""


def _texts(prefix: str) -> list[str]:
    return [f"{prefix}{number}" for number in range(MANY)]


# --- defaults


def test_defaults_of_many_items_stop_at_their_budget() -> None:
    """50,000 empty items and a default of 100 kB were 10 GB."""
    item = {"type": "object", "properties": {"d": {"type": "string", "default": "x" * 100_000}}}
    node = compile_schema({"type": "object", "properties": {"items": {"type": "array", "items": item}}})
    value: dict[str, Any] = {"items": [{} for _ in range(200)]}
    with pytest.raises(TooMuchAddedError, match=r"^the defaults of items\[31\]\.d and "):
        node(value, None, Outcome())
    assert sum("d" in each for each in value["items"]) * 100_000 <= MAX_ADDED


async def test_refusal_names_the_object_the_field_and_the_bound(api: Client) -> None:
    item = {"type": "object", "properties": {"d": {"type": "string", "default": "x" * 100_000}}}
    spec = {"type": "object", "properties": {"items": {"type": "array", "items": item}}}
    assert (await api("POST", CRDS, definition("amp", spec))).status == 201
    path = "/apis/attack.test/v1/namespaces/default/amps"
    body = {"apiVersion": "attack.test/v1", "kind": "Amp", "metadata": {"name": "a"}, "spec": {"items": [{}] * 200}}
    answer = await api("POST", path, body)
    assert (answer.status, answer.json["reason"]) == (413, "RequestEntityTooLarge")
    said = answer.json["message"]
    assert 'amps.attack.test "a"' in said
    assert "spec.items[31].d" in said
    assert str(MAX_ADDED) in said
    body["spec"]["items"] = [{}] * 20  # type: ignore[index]
    assert (await api("POST", path, body)).status == 201


async def test_object_cannot_be_made_larger_without_end_by_patches(api: Client) -> None:
    spec = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert (await api("POST", CRDS, definition("grow", spec))).status == 201
    path = "/apis/attack.test/v1/namespaces/default/grows"
    head = {"apiVersion": "attack.test/v1", "kind": "Grow", "metadata": {"name": "a"}}
    assert (await api("POST", path, head)).status == 201
    codes = [(await api.merge(f"{path}/a", {"spec": {f"k{n}": "x" * 2_500_000}})).status for n in range(4)]
    assert codes == [200, 200, 413, 413]
    assert (await api.merge(f"{path}/a", {"spec": {"k0": None}})).status == 200


async def test_object_gets_no_more_values_by_patches_than_can_be_read_at_once(api: Client) -> None:
    """Each patch may have 20,000, and each write parses the object in one call that holds the interpreter's lock."""
    spec = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert (await api("POST", CRDS, definition("many", spec))).status == 201
    path = "/apis/attack.test/v1/namespaces/default/manys"
    head = {"apiVersion": "attack.test/v1", "kind": "Many", "metadata": {"name": "a"}}
    assert (await api("POST", path, head)).status == 201
    answers = [await api.merge(f"{path}/a", {"spec": {f"k{n}": [0] * 18_000}}) for n in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 413]
    said = answers[-1].json["message"]
    assert f'manys.attack.test "a" is too large: it would have more than {MAX_GROWN_VALUES} values' in said
    assert (await api.merge(f"{path}/a", {"spec": {"k0": None}})).status == 200
    assert (await api("DELETE", f"{path}/a")).status == 200


async def test_apply_of_too_many_values_reports_the_limit_if_the_object_does_not_exist(api: Client) -> None:
    path = "/api/v1/namespaces/default/configmaps/none"
    apply = {"content": "application/apply-patch+yaml", "fieldManager": "m"}
    assert (await api("PATCH", path, b"a: [" + b"x," * MAX_VALUES + b"x]", **apply)).status == 413
    assert (await api("PATCH", path, b"a: [", **apply)).status == 400


# --- lists that are compared


def test_owners_that_stand_twice_are_found_in_one_pass() -> None:
    """30,000 of them kept the loop busy for a minute."""
    owners = [{"apiVersion": "v1", "kind": "K", "name": f"a{i // 2}", "uid": f"u{i // 2}"} for i in range(MANY)]
    fields = {"ownerReferences": owners}
    completion.dedup_owners(fields)
    assert [owner["uid"] for owner in fields["ownerReferences"]] == [f"u{i}" for i in range(MANY // 2)]


@pytest.mark.parametrize(
    ("target", "change"),
    [
        ({"finalizers": _texts("a/")}, {"$deleteFromPrimitiveList/finalizers": _texts("b/")}),
        ({"finalizers": _texts("a/")}, {"finalizers": _texts("b/")}),
        (
            {"ownerReferences": [{"uid": a} for a in _texts("a")]},
            {"ownerReferences": [{"uid": b} for b in _texts("b")]},
        ),
        (dict.fromkeys(_texts("a"), 1), {"$retainKeys": _texts("b")}),
    ],
)
def test_strategic_patches_compare_lists_in_one_pass(target: Any, change: Any) -> None:
    assert len(patch.merge_strategic(target, change)) == (0 if "$retainKeys" in change else 1)


def test_values_of_an_enumeration_take_no_more_memory_than_they_are_long() -> None:
    """A definition of 2 MB took 1.6 GB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check = VALUE_CHECKS["enum"]([f"v{index}" for index in range(100_000)], {})
    found = Outcome()
    check("v99999", None, found)
    assert not found.errors
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


# --- rules


@pytest.mark.parametrize("start", ["self.l", "dyn(self.l)", "dyn(self.s)"])
def test_sums_in_rules_cannot_double_without_end(start: str) -> None:
    """Twenty doublings of a list, 270 bytes of a definition, took 1.7 GB; thirty would have taken all there is."""
    words = {"type": "array", "maxItems": 100, "items": {"type": "string", "maxLength": 10}}
    properties = {"l": words, "s": {"type": "string", "maxLength": 1000}}
    rule = f"[{start}]" + ".map(a, a + a)" * 30 + "[0].size() > 0"
    schema = {"type": "object", "properties": properties, "x-kubernetes-validations": [{"rule": rule}]}
    rules = compile_rules({"type": "object", "properties": {"spec": schema}})
    assert rules is not None
    (error,) = rules.check_after([], {"spec": {"l": ["a"] * 100, "s": "a" * 1000}}, None)
    assert "cost limit exceeded" in error.message or "result is too large" in error.message


# --- the loop


async def test_large_definition_is_compiled_beside_the_loop(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who compiles is what is looked at; how long the loop is held depends on the machine."""
    threads: set[str] = set()

    def noted(*args: Any) -> Any:
        threads.add(threading.current_thread().name)
        return compile_rules(*args)

    monkeypatch.setattr("tink.schema.checker.compile_rules", noted)
    rules = [{"rule": f"self.a != 'x{index}'"} for index in range(500)]
    spec = {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 10}},
        "x-kubernetes-validations": rules,
    }
    assert (await api("POST", CRDS, definition("many", spec))).status == 201
    assert threads
    assert all(name.startswith("large") for name in threads)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_large_body_is_read_beside_the_loop(api: Client, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Duplicate fields are searched in Python: 2 MB of nearly MAX_VALUES small lists take 30 ms."""
    threads: set[str] = set()

    def note(read: Any) -> Any:
        def noted(*args: Any, **options: Any) -> Any:
            threads.add(threading.current_thread().name)
            return read(*args, **options)

        return noted

    monkeypatch.setattr("tink.apiserver.http.app.decode", note(decode))
    monkeypatch.setattr("tink.apiserver.http.app.decode_patch", note(decode_patch))
    path = "/api/v1/namespaces/default/configmaps"
    assert (await api("POST", path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})).status == 201
    threads.clear()
    lists = b"[1 ],".ljust(200) * ((MAX_VALUES - 100) // 2)
    text = b'{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "a": [' + lists + b'0], "a": 1}'
    one = path if method == "POST" else f"{path}/a"
    content = "application/merge-patch+json" if method == "PATCH" else "application/json"
    answer = await api(method, one, text, content=content, fieldValidation="Strict")
    assert answer.status in (400, 422), "it was read: its values are too few to be refused for their number"
    assert 'duplicate field "a"' in answer.json["message"]
    assert threads
    assert all(name.startswith("large") for name in threads)


async def test_body_of_too_many_values_is_refused_before_it_is_read(
    api: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million lists held the interpreter's lock for 110 ms, in any thread."""
    read: list[int] = []

    def noted(raw: bytes) -> Any:
        read.append(len(raw))
        return load_json(raw)

    monkeypatch.setattr("tink.apiserver.requests.body.load_json", noted)
    path = "/api/v1/namespaces/default/configmaps"
    answer = await api("POST", path, b"[" + b"[1]," * 500_000 + b"!")
    assert answer.status == 413
    assert f"{MAX_VALUES}" in answer.json["message"]
    assert read == []
    assert (await api("POST", path, b"[" + b"[1]," * (MAX_VALUES // 2 - 1) + b"!")).status == 400
    assert len(read) == 1

"""A few bytes of input must not cause much work or memory: defaults, merged lists, rules, definitions."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.kubeapi.apiserver.conftest import CRDS, Client
from tink.kubeapi.apiserver import patch
from tink.kubeapi.apiserver.media import MAX_GROWN_VALUES, MAX_VALUES, decode, decode_patch
from tink.kubeapi.apiserver.serializer import load_json
from tink.kubeapi.apiserver.write import submission
from tink.kubeapi.schema.field_errors import MAX_ADDED, TooMuchAddedError, WalkResult
from tink.kubeapi.schema.rules import compile_rules
from tink.kubeapi.schema.structural import VALUE_CHECKS, compile_schema


def definition(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": f"{name}s", "kind": name.capitalize()}
    return {
        "metadata": {"name": f"{name}s.attack.test"},
        "spec": {"group": "attack.test", "scope": "Namespaced", "names": names, "versions": [version]},
    }


FREE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFAULTED = {"type": "object", "properties": {"d": {"type": "string", "default": "x" * 100_000}}}
LIST = {"type": "object", "properties": {"items": {"type": "array", "items": DEFAULTED}}}


async def served(api: Client, name: str, spec: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Serve a definition; return the path of its objects, and one of them."""
    assert (await api("POST", CRDS, definition(name, spec))).status == 201
    made = {"apiVersion": "attack.test/v1", "kind": name.capitalize(), "metadata": {"name": "a"}}
    return f"/apis/attack.test/v1/namespaces/default/{name}s", made


MAPS = "/api/v1/namespaces/default/configmaps"
Threads = Callable[[str, Any], set[str]]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    """Return a function that records the threads in which a function runs."""

    def watch(where: str, function: Any) -> set[str]:
        names: set[str] = set()

        def recorded(*args: Any, **options: Any) -> Any:
            names.add(threading.current_thread().name)
            return function(*args, **options)

        monkeypatch.setattr(where, recorded)
        return names

    return watch


MANY = 200_000
"""To compare so many with each other takes longer than a test may; in one pass it is done in a moment."""


def _texts(prefix: str) -> list[str]:
    return [f"{prefix}{number}" for number in range(MANY)]


# --- defaults


async def test_defaults_of_many_items_stop_at_their_budget(api: Client) -> None:
    """50,000 empty items and a default of 100 kB were 10 GB."""
    value: dict[str, Any] = {"items": [{} for _ in range(200)]}
    with pytest.raises(TooMuchAddedError, match=r"^the defaults up to items\[31\]\.d add "):
        compile_schema(LIST)(value, None, WalkResult())
    assert sum("d" in each for each in value["items"]) * 100_000 <= MAX_ADDED
    path, made = await served(api, "amp", LIST)
    answer = await api("POST", path, {**made, "spec": {"items": [{}] * 200}})
    assert (answer.status, answer.json["reason"]) == (413, "RequestEntityTooLarge")
    for part in ('amps.attack.test "a"', "spec.items[31].d", str(MAX_ADDED)):
        assert part in answer.json["message"]
    assert (await api("POST", path, {**made, "spec": {"items": [{}] * 20}})).status == 201


async def test_object_cannot_be_made_larger_without_end_by_patches(api: Client) -> None:
    """Each patch may have 20,000 values, and each write parses the object in one call that holds the interpreter's
    lock."""
    path, made = await served(api, "grow", FREE)
    assert (await api("POST", path, made)).status == 201
    codes = [(await api.merge(f"{path}/a", {"spec": {f"k{n}": "x" * 2_500_000}})).status for n in range(4)]
    assert codes == [200, 200, 413, 413]
    assert (await api.merge(f"{path}/a", {"spec": {"k0": None, "k1": None}})).status == 200
    answers = [await api.merge(f"{path}/a", {"spec": {f"k{n}": [0] * 18_000}}) for n in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 413]
    message = answers[-1].json["message"]
    assert f'grows.attack.test "a" is too large: it would have more than {MAX_GROWN_VALUES} values' in message
    assert (await api.merge(f"{path}/a", {"spec": {"k0": None}})).status == 200
    assert (await api("DELETE", f"{path}/a")).status == 200


# --- lists that are compared


def test_duplicate_owners_are_found_in_one_pass() -> None:
    """30,000 of them kept the loop busy for a minute."""
    owners = [{"apiVersion": "v1", "kind": "K", "name": f"a{i // 2}", "uid": f"u{i // 2}"} for i in range(MANY)]
    fields = {"ownerReferences": owners}
    submission.dedup_owners(fields)
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
    found = WalkResult()
    check("v99999", None, found)
    assert not found.errors
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


# --- rules


@pytest.mark.parametrize("start", ["self.l", "dyn(self.l)", "dyn(self.s)"])
def test_concatenations_in_rules_cannot_double_without_end(start: str) -> None:
    """Twenty doublings of a list, 270 bytes of a definition, took 1.7 GB; thirty would have exhausted the memory."""
    words = {"type": "array", "maxItems": 100, "items": {"type": "string", "maxLength": 10}}
    properties = {"l": words, "s": {"type": "string", "maxLength": 1000}}
    rule = f"[{start}]" + ".map(a, a + a)" * 30 + "[0].size() > 0"
    schema = {"type": "object", "properties": properties, "x-kubernetes-validations": [{"rule": rule}]}
    rules = compile_rules({"type": "object", "properties": {"spec": schema}})
    (error,) = rules.check_after([], {"spec": {"l": ["a"] * 100, "s": "a" * 1000}}, None)
    assert "cost limit exceeded" in error.message or "result is too large" in error.message


# --- the loop


async def test_large_definition_is_compiled_beside_the_loop(api: Client, threads: Threads) -> None:
    names = threads("tink.kubeapi.schema.checker.compile_rules", compile_rules)
    rules = [{"rule": f"self.a != 'x{index}'"} for index in range(500)]
    properties = {"a": {"type": "string", "maxLength": 10}}
    await served(api, "many", {"type": "object", "properties": properties, "x-kubernetes-validations": rules})
    assert names
    assert all(name.startswith("large") for name in names)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_large_body_is_read_beside_the_loop(api: Client, threads: Threads, method: str) -> None:
    """Duplicate fields are searched in Python: 2 MB of nearly MAX_VALUES small lists take 30 ms."""
    assert (await api("POST", MAPS, {"metadata": {"name": "a"}})).status == 201
    read = threads("tink.kubeapi.apiserver.media.decode", decode)
    patched = threads("tink.kubeapi.apiserver.media.decode_patch", decode_patch)
    lists = b"[1 ],".ljust(200) * ((MAX_VALUES - 100) // 2)
    text = b'{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "a": [' + lists + b'0], "a": 1}'
    content = "application/merge-patch+json" if method == "PATCH" else "application/json"
    one = MAPS if method == "POST" else f"{MAPS}/a"
    answer = await api(method, one, text, content=content, fieldValidation="Strict")
    assert answer.status in (400, 422), "it was read: its values are too few to be refused for their number"
    assert 'duplicate field "a"' in answer.json["message"]
    assert read | patched
    assert all(name.startswith("large") for name in read | patched)


async def test_body_of_too_many_values_is_refused_before_it_is_read(api: Client, threads: Threads) -> None:
    """A million lists held the interpreter's lock for 110 ms, in any thread."""
    read = threads("tink.kubeapi.apiserver.media.load_json", load_json)
    answer = await api("POST", MAPS, b"[" + b"[1]," * 500_000 + b"!")
    assert (answer.status, f"{MAX_VALUES}" in answer.json["message"]) == (413, True)
    assert not read
    assert (await api("POST", MAPS, b"[" + b"[1]," * (MAX_VALUES // 2 - 1) + b"!")).status == 400
    assert read
    apply = {"content": "application/apply-patch+yaml", "fieldManager": "m"}  # of an object that is not there
    assert (await api("PATCH", f"{MAPS}/none", b"a: [" + b"x," * MAX_VALUES + b"x]", **apply)).status == 413
    assert (await api("PATCH", f"{MAPS}/none", b"a: [", **apply)).status == 400

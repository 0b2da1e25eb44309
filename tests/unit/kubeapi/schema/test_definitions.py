"""Errors of definitions are the same, word for word, as those of a real kube-apiserver, apart from its internals.

`data/definitions` holds the recorded answers; `data/record.py` records them.
"""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests import recordings
from tests.implementation_details import in_common
from tink.golang import bad_value, number, to_json
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.resources import definitions
from tink.kubeapi.apiserver.resources.registry import Rules
from tink.kubeapi.cel.types import min_json_size
from tink.kubeapi.schema import definition as definition_checks
from tink.kubeapi.schema import meta
from tink.kubeapi.schema.declarations import declare
from tink.kubeapi.schema.field_errors import FieldError, WalkResult
from tink.kubeapi.schema.structs import MistypedError

CASES = [case for cases in recordings.read(Path(__file__).parent / "data" / "definitions").values() for case in cases]
RESOURCE = definitions.definition_resource(lambda _: definitions.NamesInUse())
NOW = datetime(2026, 1, 1, tzinfo=UTC)

ANY_ORDER = ("cost of all rules",)
"""Kubernetes names a random one of several rules of equal cost."""
UNLIKE = {
    "rule on names that cannot be escaped": "the parser goes on after has() less far than Kubernetes' does",
}
"""Answers in which our CEL engine differs."""


def write(new: dict[str, Any], old: dict[str, Any] | None) -> tuple[list[FieldError], WalkResult]:
    """Run the steps of a write that check the object."""
    rules: Rules = RESOURCE.rules
    walk = WalkResult()
    new.setdefault("metadata", {})
    RESOURCE.compiled(new, None, walk)
    rules.complete(new)
    found = list(walk.errors)
    if old is None:
        found += meta.check(new["metadata"], rules.name)
        new["metadata"]["generation"] = 1
    else:
        new["status"] = copy.deepcopy(old["status"])
    if not found:
        rules.prepare(new, old, NOW)
        found += rules.check(new, old)
    return found, walk


def distinct_causes(causes: list[list[str]]) -> list[list[str]]:
    """Return each cause once. Kubernetes reports faults that all versions share once, or at the top and per version."""
    return sorted(map(list, {tuple(in_common(cause)) for cause in causes}))


BY_VERBS = "no resourceVersion"
"""Reasons of errors that the verbs report, not the checks of definitions."""


def _case(case: dict[str, Any]) -> Any:
    unlike = UNLIKE.get(case["name"])
    marks = [pytest.mark.xfail(strict=True, reason=unlike)] if unlike else []
    return pytest.param(case, id=case["name"], marks=marks)


@pytest.mark.parametrize("case", [_case(case) for case in CASES if case["name"] != BY_VERBS])
def test_errors_of_a_definition_are_the_same_as_in_a_cluster(case: dict[str, Any]) -> None:
    new = copy.deepcopy(case["new"])
    if case["code"] == 400:
        with pytest.raises(StatusError) as rejected:
            write(new, case.get("old"))
        assert in_common(rejected.value.message) == in_common(case["message"])
        return
    found, walk = write(new, case.get("old"))
    reported = [[error.reason, error.field, error.message] for error in found]
    wanted = case.get("causes") or []
    if case["name"] in ANY_ORDER:
        reported, wanted = reported[-1:], wanted[-1:]
    assert distinct_causes(reported) == distinct_causes(wanted)
    warned = [f'unknown field "{name}"' for name in walk.unknown]
    if not wanted and "old" not in case:
        warned += RESOURCE.rules.warn(new)
        assert sorted(f"299 - {json.dumps(text)}" for text in warned) == sorted(case["warnings"])


Raw = dict[str, Any]

# --- corners that no recorded answer reaches ---

BASE: Raw = next(case["new"] for case in CASES if case["name"] == "right")
ESTABLISHED = [{"type": "Established", "status": "True"}]


def definition(**changes: Any) -> Raw:
    made = copy.deepcopy(BASE)
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    made["spec"] |= {"names": names, "conversion": {"strategy": "None"}, **changes}
    made["status"] = {"storedVersions": ["v1"], "conditions": ESTABLISHED}
    return made


def with_version(**changes: Any) -> Raw:
    made = definition()
    made["spec"]["versions"][0] |= changes
    return made


def openapi(**properties: Any) -> Raw:
    return {"openAPIV3Schema": {"type": "object", "properties": properties}}


def test_schema_of_maximum_depth_is_checked_and_a_deeper_one_is_rejected() -> None:
    node: Raw = {"type": "array", "items": {"type": "string"}}
    for _ in range(definition_checks.MAX_DEPTH - 3):
        node = {"type": "object", "properties": {"a": node}}
    made = with_version(schema=openapi(a=node))
    definition_checks.read(made)
    assert definition_checks.check(made, None) == []
    for _ in range(4):
        node = {"type": "object", "properties": {"a": node}}
    with pytest.raises(MistypedError, match="nested at most 64 deep"):
        definition_checks.read(with_version(schema=openapi(a=node)))


def test_update_may_keep_a_rule_that_is_too_expensive() -> None:
    dear = {"rule": "self.all(x, self.all(y, x == y))"}
    listed = {"type": "array", "items": {"type": "string"}, "maxItems": 10, "x-kubernetes-validations": [dear]}
    old = with_version(schema=openapi(l=listed))
    assert "estimated rule cost exceeds budget" in str(definition_checks.check(old, None))
    new = copy.deepcopy(old)
    new["spec"]["names"]["shortNames"] = ["wd"]
    assert definition_checks.check(new, old) == []
    new["spec"]["versions"][0]["schema"] = openapi(l=listed, b={"type": "string"})
    assert "estimated rule cost exceeds budget" in str(definition_checks.check(new, old))


def test_update_may_keep_invalid_certificates_of_a_served_webhook() -> None:
    config = {"url": "https://example.org/", "caBundle": "bm90IGEgY2VydGlmaWNhdGU="}
    webhook = {"clientConfig": config, "conversionReviewVersions": ["v1"]}
    bad = definition(conversion={"strategy": "Webhook", "webhook": webhook})
    assert definition_checks.check(bad, bad) == []
    good = copy.deepcopy(bad)
    del good["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"]
    found = definition_checks.check(bad, good)
    assert [error.field for error in found] == ["spec.conversion.webhookClientConfig.caBundle"]


def test_update_may_keep_too_many_selectable_fields() -> None:
    fields = [{"jsonPath": f".f{index}"} for index in range(9)]
    schema = openapi(**{f"f{index}": {"type": "string"} for index in range(9)})
    old = with_version(selectableFields=fields, schema=schema)
    assert [error.reason for error in definition_checks.check(old, None)] == ["FieldValueTooMany"]
    assert definition_checks.check(old, old) == []


def test_error_message_never_repeats_a_huge_definition() -> None:
    made = with_version(schema=openapi(**{f"f{index}": {"type": "string"} for index in range(2000)}))
    made["spec"]["versions"].append({**BASE["spec"]["versions"][0], "name": "v2"})
    assert max(len(error.message) for error in definition_checks.check(made, None)) < 2_000


def test_smallest_object_contains_required_fields_without_default() -> None:
    text = {"type": "string"}
    schema = {
        "type": "object",
        "required": ["name", "mode"],
        "properties": {"name": text, "size": text, "mode": {**text, "default": "x"}},
    }
    kind = declare(schema, root=False)
    assert min_json_size(kind) == 2 + len("name") + 2 + 4


def test_values_in_messages_look_like_in_go() -> None:
    numbers = {1.5: "1.5", 1.0: "1", 1e21: "1e+21", 1e-7: "1e-07", 123456789.25: "123456789.25", -2.0: "-2"}
    assert {value: number(value) for value in numbers} == numbers
    assert to_json({"a": "<&>\u2028"}) == '{"a":"\\u003c\\u0026\\u003e\\u2028"}'
    assert bad_value({"b": 1, "a": [True, None]}) == '{"a":[true,null],"b":1}'
    assert bad_value("<a>\n") == '"<a>\\n"'

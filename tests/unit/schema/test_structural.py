"""Definitions, in the corners that no recorded answer of a cluster reaches."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tink.cel.types import min_json_size
from tink.golang import bad_value, number, to_json
from tink.schema.definition import spec, typed
from tink.schema.structs import MistypedError
from tink.schema.validations.declarations import declare

Raw = dict[str, Any]

BASE: Raw = next(
    case["new"]
    for case in json.loads((Path(__file__).parent / "data" / "definitions" / "spec.json").read_text())
    if case["name"] == "right"
)
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


def test_schema_too_deep_for_any_walk_is_refused_before_anything_walks_it() -> None:
    node: Raw = {"type": "string"}
    for _ in range(typed.MAX_DEPTH + 1):
        node = {"type": "object", "properties": {"a": node}}
    made = with_version(schema=openapi(a=node))
    with pytest.raises(MistypedError, match="nested at most 64 deep"):
        typed.read(made)


def test_deepest_schema_that_is_allowed_can_be_checked() -> None:
    node: Raw = {"type": "array", "items": {"type": "string"}}
    for _ in range(typed.MAX_DEPTH - 3):
        node = {"type": "object", "properties": {"a": node}}
    made = with_version(schema=openapi(a=node))
    typed.read(made)
    assert spec.check(made, None) == []


def test_definition_with_a_dear_rule_can_still_be_changed_elsewhere() -> None:
    dear = {"rule": "self.all(x, self.all(y, x == y))"}
    listed = {"type": "array", "items": {"type": "string"}, "maxItems": 10, "x-kubernetes-validations": [dear]}
    old = with_version(schema=openapi(l=listed))
    assert "estimated rule cost exceeds budget" in str(spec.check(old, None))
    new = copy.deepcopy(old)
    new["spec"]["names"]["shortNames"] = ["wd"]
    assert spec.check(new, old) == []
    new["spec"]["versions"][0]["schema"] = openapi(l=listed, b={"type": "string"})
    assert "estimated rule cost exceeds budget" in str(spec.check(new, old))


def test_webhook_with_bad_certificates_that_is_served_already_can_be_changed_elsewhere() -> None:
    config = {"url": "https://example.org/", "caBundle": "bm90IGEgY2VydGlmaWNhdGU="}
    webhook = {"clientConfig": config, "conversionReviewVersions": ["v1"]}
    bad = definition(conversion={"strategy": "Webhook", "webhook": webhook})
    assert spec.check(bad, bad) == []
    good = copy.deepcopy(bad)
    del good["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"]
    assert [error.field for error in spec.check(bad, good)] == ["spec.conversion.webhookClientConfig.caBundle"]


def test_definition_with_too_many_selectable_fields_can_still_be_changed_elsewhere() -> None:
    fields = [{"jsonPath": f".f{index}"} for index in range(9)]
    schema = openapi(**{f"f{index}": {"type": "string"} for index in range(9)})
    old = with_version(selectableFields=fields, schema=schema)
    assert [error.reason for error in spec.check(old, None)] == ["FieldValueTooMany"]
    assert spec.check(old, old) == []


def test_message_never_repeats_a_huge_definition() -> None:
    schema = openapi(**{f"f{index}": {"type": "string"} for index in range(2000)})
    other = {**BASE["spec"]["versions"][0], "name": "v2"}
    made = with_version(schema=schema)
    made["spec"]["versions"].append(other)
    assert max(len(error.message) for error in spec.check(made, None)) < 2_000


def test_smallest_object_counts_what_is_required_and_not_filled_in() -> None:
    text = {"type": "string"}
    schema = {
        "type": "object",
        "required": ["name", "mode"],
        "properties": {"name": text, "size": text, "mode": {**text, "default": "x"}},
    }
    kind = declare(schema, root=False)
    assert kind is not None
    assert min_json_size(kind) == 2 + len("name") + 2 + 4


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.5, "1.5"), (1.0, "1"), (1e21, "1e+21"), (1e-7, "1e-07"), (123456789.25, "123456789.25"), (-2.0, "-2")],
)
def test_number_is_written_as_go_writes_it(value: float, text: str) -> None:
    assert number(value) == text


def test_value_is_written_as_go_writes_it() -> None:
    assert to_json({"a": "<&>\u2028"}) == '{"a":"\\u003c\\u0026\\u003e\\u2028"}'
    assert bad_value({"b": 1, "a": [True, None]}) == '{"a":[true,null],"b":1}'
    assert bad_value("<a>\n") == '"<a>\\n"'

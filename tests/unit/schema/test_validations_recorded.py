"""What a real kube-apiserver says about objects that break CEL rules, and what we say: word for word.

The answers are in data/validations; data/record.py asked for them.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests import recordings
from tests.implementation_details import in_common
from tink.schema.outcome import Outcome
from tink.schema.structural.compiler import compile_schema, root_schema
from tink.schema.validations import Validations, compile_rules, ratcheted

GROUPS = list(recordings.read(Path(__file__).parent / "data" / "validations").values())
CASES = [
    pytest.param(group["name"], case, id=f"{group['name']}: {case['name']}")
    for group in GROUPS
    for case in group["cases"]
]

SCHEMAS = {group["name"]: {"type": "object", "properties": {"spec": group["schema"]}} for group in GROUPS}
NODES = {name: compile_schema(root_schema(openapi)) for name, openapi in SCHEMAS.items()}
COMPILED: dict[str, Validations] = {}


def thing(spec: Any) -> dict[str, Any]:
    return {"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": copy.deepcopy(spec)}


@pytest.mark.parametrize(("group", "case"), CASES)
def test_operator_reads_what_a_cluster_would_say_about_an_object(group: str, case: dict[str, Any]) -> None:
    if group not in COMPILED:
        rules = compile_rules(SCHEMAS[group])
        assert rules is not None
        COMPILED[group] = rules
    new = thing(case["new"])
    old = None if case["old"] is None else thing(case["old"])
    walk = Outcome()
    NODES[group](new, None, walk)
    if old is not None:
        NODES[group](old, None, Outcome())
    found = ratcheted(walk.errors, new, old, SCHEMAS[group])
    found = found + COMPILED[group].check_after(found, new, old)
    said = [[error.reason, error.field, error.message] for error in found]
    assert sorted(in_common(said)) == sorted(in_common(case["causes"]))

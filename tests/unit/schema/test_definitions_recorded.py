"""What a real kube-apiserver says to right and wrong definitions, and what we say: word for word, but for its insides.

The answers are in data/definitions; data/record.py asked for them.
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
from tink.apiserver.errors import StatusError
from tink.apiserver.resources import definitions
from tink.apiserver.resources.registry import Rules
from tink.schema import meta
from tink.schema.field_errors import FieldError
from tink.schema.outcome import Outcome

CASES = [case for cases in recordings.read(Path(__file__).parent / "data" / "definitions").values() for case in cases]
RESOURCE = definitions.definition_resource(lambda _: definitions.Claimed())
NOW = datetime(2026, 1, 1, tzinfo=UTC)

ANY_ORDER = ("cost of all rules",)
"""Which of many rules of equal cost Kubernetes names is random."""
UNLIKE = {
    "rule on names that cannot be escaped": "the parser goes on after has() less far than Kubernetes' does",
}
"""Answers in which the CEL engine still differs."""


def write(new: dict[str, Any], old: dict[str, Any] | None) -> tuple[list[FieldError], Outcome]:
    """Take the steps of `verbs` that look at the object."""
    rules: Rules = RESOURCE.rules
    walk = Outcome()
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


def unlike_ones(causes: list[list[str]]) -> list[list[str]]:
    """Each cause once: what all versions say alike, Kubernetes finds once, or above them and in each."""
    return sorted(map(list, {tuple(in_common(cause)) for cause in causes}))


BY_VERBS = "no resourceVersion"
"""What the verbs check, not the rules of definitions."""


def _case(case: dict[str, Any]) -> Any:
    unlike = UNLIKE.get(case["name"])
    marks = [pytest.mark.xfail(strict=True, reason=unlike)] if unlike else []
    return pytest.param(case, id=case["name"], marks=marks)


@pytest.mark.parametrize("case", [_case(case) for case in CASES if case["name"] != BY_VERBS])
def test_operator_reads_what_a_cluster_would_say_about_a_definition(case: dict[str, Any]) -> None:
    new = copy.deepcopy(case["new"])
    if case["code"] == 400:
        with pytest.raises(StatusError) as refused:
            write(new, case.get("old"))
        assert in_common(refused.value.message) == in_common(case["message"])
        return
    found, walk = write(new, case.get("old"))
    said = [[error.reason, error.field, error.message] for error in found]
    wanted = case.get("causes") or []
    if case["name"] in ANY_ORDER:
        said, wanted = said[-1:], wanted[-1:]
    assert unlike_ones(said) == unlike_ones(wanted)
    warned = [f'unknown field "{name}"' for name in walk.unknown]
    if not wanted and "old" not in case:
        warned += RESOURCE.rules.warn(new)
        assert sorted(f"299 - {json.dumps(text)}" for text in warned) == sorted(case["warnings"])

"""`docs/resources.md` says what the definitions say, and its examples are what it says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tink.api import v1alpha2
from tink.api.crds import generate
from tink.api.yaml import objects
from tink.template.fields import parse_fields

DOC = (Path(__file__).parents[3] / "docs" / "resources.md").read_text()


def fields(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, child in node.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        yield below, child
        yield from fields(child, below)
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if key in node:
            yield from fields(node[key], path + mark)


@pytest.mark.parametrize("kind", ["Hardware", "OSIE", "Template", "Workflow"])
def test_operator_finds_every_field_with_its_description_and_bounds(kind: str) -> None:
    crd = next(crd for crd in generate() if crd["spec"]["names"]["kind"] == kind)
    section = DOC[DOC.index(f"\n## {kind}\n") :]
    for part in ("spec", "status"):
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].get(part, {})
        for path, field in fields(schema, ""):
            if ".rendered." in path:
                continue  # as spec.actions of Template
            rows = [line for line in section.splitlines() if line.startswith(f"| `{path}` |")]
            assert any(field["description"].replace("|", "\\|") in row for row in rows), f"{kind}.{part}.{path}"
            for bound in ("maxLength", "maxItems", "maxProperties", "maximum", "default"):
                if bound in field:
                    assert any(str(field[bound]).lower() in row for row in rows), f"{kind}.{part}.{path}: {bound}"


def test_operator_finds_every_message() -> None:
    def messages(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            yield from (rule["message"] for rule in node.get("x-kubernetes-validations", ()))
            for child in node.values():
                yield from messages(child)

    for crd in generate():
        for message in messages(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]):
            assert message.replace("|", "\\|") in DOC


def test_examples_are_objects_of_their_kinds() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL)
    kinds = []
    for block in blocks:
        (found,) = objects(block)
        getattr(v1alpha2, found["kind"]).model_validate(found)
        if found["kind"] == "Template":
            assert parse_fields(found) == []
        kinds.append(found["kind"])
    assert kinds == ["Hardware", "OSIE", "Template", "Workflow"]

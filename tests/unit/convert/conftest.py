"""Helpers of the conversion tests: the API's verdict about an object, and short ways to run a conversion."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tink.api.crds import generate
from tink.api.v1alpha2 import Raw
from tink.convert.documents import InputDocument, read
from tink.convert.findings import ConversionFinding
from tink.convert.run import ConversionResult, convert_documents
from tink.kubeapi.schema.field_errors import WalkResult
from tink.kubeapi.schema.rules import compile_rules
from tink.kubeapi.schema.structural import compile_schema


@cache
def _checks(kind: str) -> tuple[Any, Any]:
    definition = next(crd for crd in generate() if crd["spec"]["names"]["kind"] == kind)
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return compile_schema(schema), compile_rules(schema)


def refusals(obj: Raw) -> list[str]:
    """Return the reasons why the embedded API would refuse a v1alpha2 object, and the fields that it would drop."""
    assert obj["apiVersion"] == "tinkerbell.org/v1alpha2"
    walk, rules = _checks(obj["kind"])
    obj = copy.deepcopy({**obj, "metadata": {}})
    found = WalkResult()
    walk(obj, None, found)
    errors = [str(error) for error in found.errors] + [f"unknown: {path}" for path in found.unknown]
    return errors + ([str(error) for error in rules.check(obj)] if rules is not None else [])


@pytest.fixture
def refused() -> Callable[[Raw], list[str]]:
    return refusals


def documents(text: str | bytes, file: str = "in.yaml") -> list[InputDocument | ConversionFinding]:
    return list(read(file, text.encode() if isinstance(text, str) else text))


@pytest.fixture
def reading() -> Callable[..., list[InputDocument | ConversionFinding]]:
    return documents


@pytest.fixture
def converting() -> Callable[..., ConversionResult]:
    """Convert a text, or objects."""

    def run(*sources: str | Raw, to: str | None = None, **settings: Any) -> ConversionResult:
        texts = [source if isinstance(source, str) else json.dumps(source) for source in sources]
        return convert_documents(documents("\n---\n".join(texts)), to=to, **settings)

    return run

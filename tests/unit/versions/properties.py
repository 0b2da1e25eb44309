"""Properties of the conversion of a kind, for random objects; the number is that of OBJECTS."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable
from functools import cache
from typing import Any

from tink.api.annotations import V1ALPHA1_ANNOTATION, V1ALPHA2_ANNOTATION
from tink.api.crds import generate
from tink.api.v1alpha2 import Raw
from tink.kubeapi.schema.checker import Checker, compile_definition
from tink.versions import NEW, OLD, convert

OBJECTS = int(os.environ.get("TINKEDGE_VERSIONS_OBJECTS", "300"))
"""Random objects of each property; 100,000 for a long run."""
JSON: list[Any] = [None, True, False, 0, 1, -1, 1.5, 2**70, "", "x", "{{", [], {}, [1], [None], {"name": []}, {"a": {}}]


@cache
def _checker(kind: str) -> Checker:
    definition = next(each for each in generate() if each["spec"]["names"]["kind"] == kind)
    return compile_definition(definition)["v1alpha2"]


def refusals(obj: Raw) -> list[str]:
    """Return the reasons why the API would refuse a v1alpha2 object, and the fields that it would drop."""
    found = _checker(obj["kind"]).check({**obj, "metadata": {"name": "x", "namespace": "y"}})
    return [*map(str, found.errors), *(f"unknown: {path}" for path in found.unknown)]


def random_objects(make: Callable[[random.Random], Raw], seed: int) -> list[Raw]:
    rng = random.Random(seed)
    return [make(rng) for _ in range(OBJECTS)]


def without_residue(obj: Raw) -> Raw:
    """Return a v1alpha2 object without the residue of its v1alpha1 form, from which void entries disappear."""
    annotations = obj["metadata"].get("annotations", {})
    left = {key: value for key, value in annotations.items() if key != V1ALPHA1_ANNOTATION}
    metadata = {key: value for key, value in obj["metadata"].items() if key != "annotations"}
    return {**obj, "metadata": {**metadata, **({"annotations": left} if left else {})}}


def completed(obj: Raw) -> Raw:
    """Return a v1alpha2 object with the default that the API adds to the spec of a Workflow."""
    if obj["kind"] != "Workflow" or not isinstance(obj.get("spec"), dict):
        return obj
    return {**obj, "spec": {"timeout": 0, **obj["spec"]}}


def damaged(obj: Raw, rng: random.Random) -> Raw:
    """Return a copy of an object with JSON of other types in one to three places, the apiVersion and kind excepted."""
    obj = copy.deepcopy(obj)
    for _ in range(rng.randrange(1, 4)):
        places = [place for key in ("metadata", "spec", "status") for place in _places(obj, key)]
        container, key = rng.choice(places) if places else (obj, "spec")
        container[key] = copy.deepcopy(rng.choice(JSON))
    return obj


def _places(container: Any, key: Any) -> list[tuple[Any, Any]]:
    if isinstance(container, dict) and key not in container:
        return []
    value = container[key]
    found = [(container, key)]
    inner = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for each in inner:
        found += _places(value, each)
    return found


def partial(obj: Raw, rng: random.Random) -> Raw:
    """Return a copy of an object without some of its fields, as server-side apply makes it."""
    if not isinstance(obj, dict):
        return obj
    kept = {key: partial(value, rng) for key, value in obj.items() if rng.random() < 0.6}
    return {**kept, **{key: obj[key] for key in ("apiVersion", "kind") if key in obj}}


def check_up_and_down(old: Raw, *, is_valid: bool = True) -> None:
    """Check that a v1alpha1 object comes back as it was, is valid in v1alpha2, and is stable there."""
    before = copy.deepcopy(old)
    new = convert(old, NEW)
    assert old == before, "the input was changed"
    if is_valid:
        assert refusals(new) == []
    view = convert(new, OLD)
    assert without_status(view) == without_status(old)
    assert convert(view, NEW) == new


def check_down_and_up(new: Raw) -> None:
    """Check that a v1alpha2 object comes back as it was, also if a label was set in v1alpha1."""
    before = copy.deepcopy(new)
    view = convert(new, OLD)
    assert new == before, "the input was changed"
    assert without_residue(completed(convert(view, NEW))) == without_residue(completed(new))
    view = copy.deepcopy(view)
    view.setdefault("metadata", {}).setdefault("labels", {})["a"] = "b"
    labelled = completed(convert(view, NEW))
    assert labelled["metadata"]["labels"]["a"] == "b"
    assert {**labelled, "metadata": 0} == {**completed(new), "metadata": 0}


def without_status(obj: Raw) -> Raw:
    """Return an object without its status, and without the annotation of the v1alpha1 view."""
    found = {key: value for key, value in obj.items() if key != "status"}
    metadata = found.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("annotations"), dict):
        annotations = {key: value for key, value in metadata["annotations"].items() if key != V1ALPHA2_ANNOTATION}
        metadata = {**metadata, "annotations": annotations}
        if not annotations:
            del metadata["annotations"]
        found["metadata"] = metadata
    return found

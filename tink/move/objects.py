"""What becomes of one object on its way to another API. Pure.

What the API itself gives does not come along: uid, resourceVersion, generation, creation time and order, managed
fields. So owner references name the owner's new uid, as with `clusterctl move`; what a status says of the generation is
said of the new one; and a Workflow that its agent may know by its uid keeps that as `status.id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tink.api.annotations import (
    ORIGIN_ANNOTATION,
    PAUSED_ANNOTATION,
    USERDATA_SECRET_ANNOTATION,
    VENDORDATA_SECRET_ANNOTATION,
)
from tink.api.v1alpha2 import Raw, as_mapping
from tink.kube.objects import NamespacedName
from tink.workflow.status import actions_of, creation_order, outdated, status_of

_MARKS = (PAUSED_ANNOTATION, ORIGIN_ANNOTATION)
_BY_THE_API = ("apiVersion", "kind", "metadata", "status")


def origin(cluster: str, obj: Raw) -> str:
    """The value of the annotation that says where an object is from."""
    return f"{cluster}/{obj['metadata']['uid']}"


def annotations_of(obj: Raw) -> dict[str, str]:
    """The annotations, empty if there are none."""
    return dict(as_mapping(obj["metadata"].get("annotations")))


def content(obj: Raw) -> Raw:
    """All that is an object's own but its metadata and its status: `spec`, or `data` and `type`."""
    return {field: value for field, value in obj.items() if field not in _BY_THE_API}


def copy_of(obj: Raw, cluster: str, pause: str | None) -> Raw:
    """What is created at the target: without owners, whose uids are not known yet. `pause` is for Workflows."""
    metadata = obj["metadata"]
    annotations = {name: value for name, value in annotations_of(obj).items() if name not in _MARKS}
    annotations[ORIGIN_ANNOTATION] = origin(cluster, obj)
    if pause is not None:
        annotations[PAUSED_ANNOTATION] = pause
    made: Raw = {"name": metadata["name"], "annotations": annotations}
    for field in ("namespace", "labels", "finalizers"):
        if metadata.get(field):
            made[field] = metadata[field]
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": made, **content(obj)}


def owners_of(obj: Raw, uids: Mapping[str, str]) -> tuple[list[Raw], list[str]]:
    """Its owner references with the owners' uids at the target, and the names of owners that are not moved."""
    found, missing = [], []
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("uid") in uids:
            found.append({**owner, "uid": uids[owner["uid"]]})
        else:
            missing.append(f"{owner.get('kind')} {owner.get('name')}")
    return found, missing


def status_at_target(obj: Raw, generation: int) -> Raw:
    """The status as it is to be at the target, where the object has this generation."""
    status = dict(status_of(obj))
    if obj["kind"] != "Workflow" or not status:
        return status
    status.pop("creationVersion", None)  # a number of the source's API, which orders nothing at the target
    if actions_of(status) and "id" not in status:
        status["id"] = obj["metadata"]["uid"]
    if "observedGeneration" in status:
        # What is outdated must stay so: its actions were rendered from another spec.
        status["observedGeneration"] = generation - 1 if outdated(obj) else generation
    return status


def merge_patch(before: Any, after: Any) -> Raw:
    """The patch (RFC 7386) that makes `after` of `before`; both are objects."""
    patch: Raw = {field: None for field in before if field not in after}
    for field, value in after.items():
        old = before.get(field)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := merge_patch(old, value):
                patch[field] = inner
        elif old != value or field not in before:
            patch[field] = value
    return patch


def differences(source: Raw, target: Raw, uids: Mapping[str, str]) -> list[str]:
    """The parts of an object that are not at the target as they are at the source."""
    wanted, found = source["metadata"], target["metadata"]
    wrong = [] if content(source) == content(target) else ["spec"]
    wrong += [field for field in ("labels", "finalizers") if (wanted.get(field) or None) != (found.get(field) or None)]
    theirs, ours = ({k: v for k, v in annotations_of(obj).items() if k not in _MARKS} for obj in (source, target))
    wrong += [] if theirs == ours else ["annotations"]
    wrong += [] if owners_of(source, uids)[0] == (found.get("ownerReferences") or []) else ["ownerReferences"]
    if status_at_target(source, found.get("generation", 1)) != dict(status_of(target)):
        wrong.append("status")
    return wrong


def secrets_named(hardware: Iterable[Raw]) -> set[NamespacedName]:
    """The Secrets that Hardware refers to."""
    named = set()
    for obj in hardware:
        annotations = annotations_of(obj)
        for annotation in (USERDATA_SECRET_ANNOTATION, VENDORDATA_SECRET_ANNOTATION):
            if name := annotations.get(annotation, "").partition("/")[0]:
                named.add(NamespacedName(obj["metadata"].get("namespace", ""), name))
    return named


def ranks(workflows: Iterable[Raw]) -> list[list[Raw]]:
    """Workflows in groups to be created one after the other: of one machine the older first, as they run there."""
    seen: dict[tuple[str, str], int] = {}
    groups: list[list[Raw]] = []
    for workflow in sorted(workflows, key=creation_order):
        machine = (
            workflow["metadata"].get("namespace", ""),
            str(as_mapping(as_mapping(workflow.get("spec")).get("hardwareRef")).get("name")),
        )
        rank = seen[machine] = seen.get(machine, -1) + 1
        groups[rank:] = groups[rank:] or [[]]
        groups[rank].append(workflow)
    return groups

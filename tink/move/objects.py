"""The changes of one object during a move to another API. Pure.

The fields that an API sets do not move: uid, resourceVersion, generation, creation time and order, managed fields. So
owner references get the new uid of the owner, as with `clusterctl move`. The `observedGeneration` of a status gets the
new generation. A Workflow whose agent may know it by its uid keeps that as `status.id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

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
_SET_BY_API = ("apiVersion", "kind", "metadata", "status")


def origin(cluster: str, obj: Raw) -> str:
    """Return the value of the annotation with the origin of an object."""
    return f"{cluster}/{obj['metadata']['uid']}"


def annotations_of(obj: Raw) -> dict[str, str]:
    """Return the annotations of an object, maybe none."""
    return dict(as_mapping(obj["metadata"].get("annotations")))


def content(obj: Raw) -> Raw:
    """Return the fields of an object without metadata and status: `spec`, or `data` and `type`."""
    return {field: value for field, value in obj.items() if field not in _SET_BY_API}


def copy_of(obj: Raw, cluster: str, pause: str | None) -> Raw:
    """Return the object to create at the target, without owners, whose uids are not known yet.

    `pause` is the value of the pause annotation of a Workflow.
    """
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
    """Return the owner references of an object with the uids at the target, and the names of owners that don't move."""
    found, missing = [], []
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("uid") in uids:
            found.append({**owner, "uid": uids[owner["uid"]]})
        else:
            missing.append(f"{owner.get('kind')} {owner.get('name')}")
    return found, missing


def status_at_target(obj: Raw, generation: int) -> Raw:
    """Return the status for the target, where the object has this generation."""
    status = dict(status_of(obj))
    if obj["kind"] != "Workflow" or not status:
        return status
    status.pop("creationVersion", None)  # a number of the source's API, without meaning at the target
    if actions_of(status) and "id" not in status:
        status["id"] = obj["metadata"]["uid"]
    if "observedGeneration" in status:
        # An outdated status must stay outdated, because its actions were rendered from another spec.
        status["observedGeneration"] = generation - 1 if outdated(obj) else generation
    return status


def merge_patch(before: Any, after: Any) -> Raw:
    """Return the merge patch (RFC 7386) from `before` to `after`; both are objects."""
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
    """Return the names of the parts of an object that differ between source and target."""
    wanted, found = source["metadata"], target["metadata"]
    wrong = [] if content(source) == content(target) else ["spec"]
    wrong += [field for field in ("labels", "finalizers") if (wanted.get(field) or None) != (found.get(field) or None)]
    theirs, ours = ({k: v for k, v in annotations_of(obj).items() if k not in _MARKS} for obj in (source, target))
    wrong += [] if theirs == ours else ["annotations"]
    wrong += [] if owners_of(source, uids)[0] == (found.get("ownerReferences") or []) else ["ownerReferences"]
    # The status of a Machine is the observation of its own API's controller.
    if source["kind"] != "Machine" and status_at_target(source, found.get("generation", 1)) != dict(status_of(target)):
        wrong.append("status")
    return wrong


def fingerprint(obj: Raw) -> str:
    """Return a text that changes with everything in an object that is moved, apart from its status."""
    metadata = obj["metadata"]
    parts = [
        content(obj),
        *(metadata.get(field) for field in ("labels", "annotations", "finalizers", "ownerReferences")),
    ]
    return orjson.dumps(parts, option=orjson.OPT_SORT_KEYS).decode()


def secrets_named(hardware: Iterable[Raw]) -> set[NamespacedName]:
    """Return the Secrets that Hardware refer to."""
    named = set()
    for obj in hardware:
        annotations = annotations_of(obj)
        for annotation in (USERDATA_SECRET_ANNOTATION, VENDORDATA_SECRET_ANNOTATION):
            if name := annotations.get(annotation, "").partition("/")[0]:
                named.add(NamespacedName(obj["metadata"].get("namespace", ""), name))
    return named


def secrets_of_machines(machines: Iterable[Raw]) -> set[NamespacedName]:
    """Return the Secrets that Machines refer to: passwords, certificate authorities, keys of Rufio's provider rpc."""
    return {
        NamespacedName(reference["namespace"], reference["name"])
        for obj in machines
        for reference in _references(as_mapping(obj.get("spec")).get("connection"))
        if reference.get("name") and reference.get("namespace")
    }


def _references(connection: Any) -> Iterator[Raw]:
    connection = as_mapping(connection)
    for field in ("authSecretRef", "caSecretRef"):
        yield as_mapping(connection.get(field))
    rpc = as_mapping(as_mapping(connection.get("providerOptions")).get("rpc"))
    for references in as_mapping(as_mapping(rpc.get("hmac")).get("secrets")).values():
        yield from map(as_mapping, references if isinstance(references, list) else ())


def ranks(workflows: Iterable[Raw]) -> list[list[Raw]]:
    """Return Workflows in groups to create one after the other, so that the older ones of a machine come first."""
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

"""Read the objects to convert from a live cluster, and apply the results there.

Reads the objects of the old controllers: Tinkerbell v1alpha1, or Metal3's hosts. Writes by server-side apply, so that a
second run changes only what the conversion made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tink.api.v1alpha2 import Raw
from tink.convert.documents import DEFAULT_NAMESPACE, Converted, InputDocument, validated
from tink.convert.findings import ConversionFinding, FindingKind, ObjectPlace
from tink.convert.metal3.to_hardware import secrets_to_read
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError, UnreachableError, each_list_item
from tink.kube.objects import NamespacedName
from tink.kube.resources import (
    HARDWARE,
    HARDWARE_DATA,
    HOST_V1ALPHA1,
    HOST_V1BETA1,
    JOB,
    MACHINE,
    OSIE,
    SECRET,
    TASK,
    TEMPLATE,
    WORKFLOW,
)

FIELD_MANAGER = "tinkedge-convert"
CLUSTER = "cluster"

_MAX_CONCURRENT = 8
_FORBIDDEN = 403

_TINKERBELL = tuple(replace(each, version="v1alpha1") for each in (HARDWARE, TEMPLATE, WORKFLOW))
_METAL3 = (HOST_V1ALPHA1, HARDWARE_DATA)
_RESOURCES = {
    (each.api_version, each.kind): each
    for each in (HARDWARE, OSIE, TEMPLATE, WORKFLOW, SECRET, *_METAL3, HOST_V1BETA1, MACHINE, JOB, TASK)
}


async def read_cluster(
    client: KubeClient, namespace: str | None, *, metal3: bool, on_read: Callable[[int], None]
) -> list[InputDocument | ConversionFinding]:
    """Read all objects to convert in a namespace, or in all namespaces (None). Call `on_read` with the number so far.

    A kind that may not be read is a finding. Raises ApiError if the API does not answer, or if none of the kinds is
    served or may be read.
    """
    found: list[InputDocument | ConversionFinding] = []
    missing, denied = 0, 0
    types = _METAL3 if metal3 else _TINKERBELL
    for resource in types:
        try:
            async for obj in each_list_item(client, resource, namespace):
                found.append(_document(obj, len(found) + 1))
                on_read(len(found))
        except NotFoundError:
            missing += 1
        except ApiError as error:
            denied += 1
            if error.status != _FORBIDDEN or missing + denied == len(types):
                raise
            source = ObjectPlace(CLUSTER, 0, resource.kind, namespace or "")
            found.append(ConversionFinding(FindingKind.ERROR, source, "", f"none of this kind was read: {error}"))
    if missing == len(types):
        raise NotFoundError(404, "NotFound", f"the cluster does not serve {types[0].api_version}")
    if metal3:
        found += await _network_secrets(client, found)
    return found


async def _network_secrets(
    client: KubeClient, found: Iterable[InputDocument | ConversionFinding]
) -> list[InputDocument | ConversionFinding]:
    """Read the Secrets with the hosts' network data and metadata. No other Secret is read."""
    secrets: dict[NamespacedName, InputDocument | ConversionFinding] = {}
    for document in list(found):
        if isinstance(document, ConversionFinding) or document.obj["kind"] != "BareMetalHost":
            continue
        for key, path in secrets_to_read(document.obj, document.source.namespace).items():
            if key in secrets:
                continue
            try:
                secret = await client.get(SECRET, key.name, key.namespace)
            except UnreachableError:
                raise
            except ApiError as error:
                secrets[key] = ConversionFinding(FindingKind.ERROR, document.source, path, f"its Secret {key}: {error}")
            else:
                secrets[key] = _document({"apiVersion": "v1", "kind": "Secret"} | secret, 1)
    return list(secrets.values())


def _document(obj: Raw, number: int) -> InputDocument | ConversionFinding:
    metadata = obj.get("metadata") or {}
    source = ObjectPlace(CLUSTER, number, obj["kind"], metadata.get("namespace") or "", metadata.get("name") or "")
    return validated(InputDocument(source, obj))


@dataclass(slots=True)
class Applied:
    """The result of `apply_all`."""

    count: int = 0
    """The number of objects that were applied."""
    refused: list[ConversionFinding] = field(default_factory=list)


async def apply_all(
    client: KubeClient,
    converted: list[Converted],
    namespace: str | None,
    *,
    force: bool,
    on_applied: Callable[[int], None],
) -> Applied:
    """Apply all objects, OSIEs before the others. Call `on_applied` with the number of objects processed so far.

    `namespace` is used for objects that name none. An object that the API refuses is a finding. If the API stops
    answering, that is a finding too, and the remaining objects are not tried.
    """
    result = Applied()
    osies = sum(each.obj["kind"] == "OSIE" for each in converted)
    for part in (converted[:osies], converted[osies:]):
        for start in range(0, len(part), _MAX_CONCURRENT):
            batch = part[start : start + _MAX_CONCURRENT]
            answers = await asyncio.gather(
                *(_apply(client, one, namespace, force=force) for one in batch), return_exceptions=True
            )
            result.count += answers.count(None)
            result.refused += [answer for answer in answers if isinstance(answer, ConversionFinding)]
            for answer in answers:
                if isinstance(answer, UnreachableError):
                    reason = f"{answer}: {result.count} of {len(converted)} objects were applied. Apply it once more"
                    result.refused.append(ConversionFinding(FindingKind.ERROR, ObjectPlace(CLUSTER, 0), "", reason))
                    return result
                if isinstance(answer, BaseException):
                    raise answer
            on_applied(result.count + len(result.refused))
    return result


async def _apply(
    client: KubeClient, converted: Converted, namespace: str | None, *, force: bool
) -> ConversionFinding | None:
    """Apply one object. Return None if it was applied, or else the finding. Raises UnreachableError."""
    obj = converted.obj
    metadata = obj["metadata"]
    own = metadata.get("namespace") or namespace or DEFAULT_NAMESPACE
    if converted.document is not None:
        source = converted.document.source
    else:
        source = ObjectPlace(CLUSTER, 0, obj["kind"], own, metadata["name"])
    resource = _RESOURCES.get((obj["apiVersion"], obj["kind"]))
    if resource is None:
        reason = f"{obj['apiVersion']} {obj['kind']} is not applied: write it to a file, and use kubectl"
        return ConversionFinding(FindingKind.ERROR, source, "", reason)
    obj = {**obj, "metadata": {**metadata, "namespace": own}}
    try:
        await client.apply(resource, metadata["name"], own, obj, manager=FIELD_MANAGER, force=force)
    except UnreachableError:
        raise
    except ConflictError as error:
        return ConversionFinding(
            FindingKind.ERROR, source, "", f"not applied: {error}: --force-conflicts takes these fields over"
        )
    except ApiError as error:
        return ConversionFinding(FindingKind.ERROR, source, "", f"not applied: {error}")
    return None

"""A live cluster as a source of documents, and as the place where results go.

What is read is what the old controllers work with: v1alpha1 of Tinkerbell, or the hosts of Metal3. What is written goes
by server-side apply, so that a second run changes what the conversion made and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from tink.api.v1alpha2 import GROUP, Raw
from tink.convert.documents import Document, checked
from tink.convert.host_surroundings import secrets_to_read
from tink.convert.report import Finding, Findings, Kind, Source
from tink.convert.run import DEFAULT_NAMESPACE, METAL3_GROUP, RUFIO_GROUP, Converted
from tink.kube import pages
from tink.kube.client import ApiError, KubeClient, NotFoundError, UnreachableError
from tink.kube.resources import HARDWARE, OSIE, SECRET, TEMPLATE, WORKFLOW, ResourceType

FIELD_MANAGER = "tinkedge-convert"
CLUSTER = "cluster"

_AT_ONCE = 8

_TINKERBELL = tuple(
    ResourceType(GROUP, "v1alpha1", plural, kind)
    for plural, kind in (("hardware", "Hardware"), ("templates", "Template"), ("workflows", "Workflow"))
)
_METAL3 = tuple(
    ResourceType(METAL3_GROUP, "v1alpha1", plural, kind)
    for plural, kind in (("baremetalhosts", "BareMetalHost"), ("hardwaredata", "HardwareData"))
)
_RUFIO = tuple(
    ResourceType(RUFIO_GROUP, "v1alpha1", plural, kind)
    for plural, kind in (("machines", "Machine"), ("jobs", "Job"), ("tasks", "Task"))
)
_METAL3_NEW = tuple(ResourceType(METAL3_GROUP, "v1beta1", each.plural, each.kind) for each in _METAL3)
_WRITTEN = {
    (each.api_version, each.kind): each
    for each in (HARDWARE, OSIE, TEMPLATE, WORKFLOW, SECRET, *_METAL3, *_METAL3_NEW, *_RUFIO)
}


async def read_cluster(
    client: KubeClient, namespace: str | None, *, metal3: bool, seen: Callable[[int], None]
) -> list[Document | Finding]:
    """All objects to convert of a namespace, or of all (None). `seen` is told how many there are so far.

    Raises ApiError: the API does not answer, or none of the resources is served there.
    """
    found: list[Document | Finding] = []
    missing = 0
    types = _METAL3 if metal3 else _TINKERBELL
    for resource in types:
        try:
            async for obj in pages.each(client, resource, namespace):
                found.append(_document(obj, len(found) + 1))
                seen(len(found))
        except NotFoundError:
            missing += 1
    if missing == len(types):
        raise NotFoundError(404, "NotFound", f"the cluster does not serve {types[0].api_version}")
    if metal3:
        found += await _network_secrets(client, found)
    return found


async def _network_secrets(client: KubeClient, found: Iterable[Document | Finding]) -> list[Document | Finding]:
    """The Secrets with the hosts' network data and metadata. No other Secret is read."""
    secrets: dict[tuple[str, str], Document | Finding] = {}
    for document in list(found):
        if isinstance(document, Finding) or document.obj["kind"] != "BareMetalHost":
            continue
        for (namespace, name), path in secrets_to_read(document.obj, document.source.namespace).items():
            if (namespace, name) in secrets:
                continue
            try:
                secret = await client.get(SECRET, name, namespace)
            except UnreachableError:
                raise
            except ApiError as error:
                secrets[namespace, name] = Finding(
                    Kind.ERROR, document.source, path, f"its Secret {namespace}/{name}: {error}"
                )
            else:
                secrets[namespace, name] = _document({"apiVersion": "v1", "kind": "Secret"} | secret, 1)
    return list(secrets.values())


def _document(obj: Raw, number: int) -> Document | Finding:
    metadata = obj.get("metadata") or {}
    source = Source(CLUSTER, number, obj["kind"], metadata.get("namespace") or "", metadata.get("name") or "")
    return checked(Document(source, obj))


async def apply_all(
    client: KubeClient, converted: list[Converted], namespace: str | None, *, force: bool, done: Callable[[int], None]
) -> AsyncIterator[Finding]:
    """Apply all objects, OSIEs before the others; a finding for each that the API refuses. `done` is told how many.

    `namespace` is that of objects which name none. Raises UnreachableError: the rest has not been applied.
    """
    finished = 0
    osies = sum(each.obj["kind"] == "OSIE" for each in converted)
    for part in (converted[:osies], converted[osies:]):
        for start in range(0, len(part), _AT_ONCE):
            batch = part[start : start + _AT_ONCE]
            for refused in await asyncio.gather(*(_apply(client, one, namespace, force=force) for one in batch)):
                if refused is not None:
                    yield refused
            finished += len(batch)
            done(finished)


async def _apply(client: KubeClient, converted: Converted, namespace: str | None, *, force: bool) -> Finding | None:
    obj = converted.obj
    metadata = obj["metadata"]
    own = metadata.get("namespace") or namespace or DEFAULT_NAMESPACE
    if converted.document is not None:
        source = converted.document.source
    else:
        source = Source(CLUSTER, 1, obj["kind"], own, metadata["name"])
    findings = Findings(source)
    resource = _WRITTEN.get((obj["apiVersion"], obj["kind"]))
    if resource is None:
        findings.error("", f"{obj['apiVersion']} {obj['kind']} is not applied: write it to a file, and use kubectl")
    else:
        obj = {**obj, "metadata": {**metadata, "namespace": own}}
        try:
            await client.apply(resource, metadata["name"], own, obj, manager=FIELD_MANAGER, force=force)
        except UnreachableError:
            raise
        except ApiError as error:
            findings.error("", f"not applied: {error}")
    return next(iter(findings), None)

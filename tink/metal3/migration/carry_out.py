"""Carry out a plan, phase by phase. A finished phase is recognised, and repeating it changes nothing.

Hosts are written by an empty patch: the API server reads the host, converts it and stores it, and retries by itself
after a concurrent write, so no change is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from tink.api.metal3 import V1ALPHA1, V1BETA1
from tink.api.v1alpha2 import Raw
from tink.convert.metal3 import convert_version
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError, UnreachableError, each_list_item
from tink.kube.objects import NamespacedName
from tink.kube.resources import CRD, HARDWARE_DATA, HOST_V1ALPHA1, HOST_V1BETA1
from tink.limits.backoff import Backoff
from tink.metal3.definition import NAME, NEW, OLD, Definition
from tink.metal3.migration.plan import Done, MigrationSettings, Phase, Plan
from tink.metal3.migration.survey import Progress, Survey

_MAX_CONCURRENT = 8
_ATTEMPTS = 6
_RETRY_FIRST_SECONDS = 0.2
_RETRY_LONGEST_SECONDS = 10.0
_RETRIED_STATUSES = frozenset({0, 409, 429, 500, 503, 504})
MAX_FAILURES = 100
"""The most failures of single hosts in a phase. After that the phase stops."""

_Act = Callable[[NamespacedName, str], Awaitable[bool]]
"""Acts on a host. Returns True if there was anything to do."""


async def carry_out(
    client: KubeClient, plan: Plan, survey: Survey, settings: MigrationSettings, progress: Progress
) -> AsyncIterator[Done]:
    """Do the phases of a plan without problems, and yield each result. Stop after a phase with failures.

    Raises ApiError if the API does not answer, or refuses to change the definition.
    """
    for step in plan.steps:
        if not step.todo:
            continue
        done = await _phase(client, step.phase, survey, settings, progress)
        yield done
        if done.failures:
            return


async def _phase(
    client: KubeClient, phase: Phase, survey: Survey, settings: MigrationSettings, progress: Progress
) -> Done:
    match phase:
        case Phase.HARDWARE_DATA:
            hosts = dict.fromkeys(survey.missing, "")
            return await _for_all(phase, hosts, lambda at, _: _give_details(client, survey, settings, at), progress)
        case Phase.STORAGE:
            return await _change(client, phase, lambda now: now.storage == NEW, lambda now: now.with_storage(NEW))
        case Phase.REWRITE:
            await asyncio.sleep(settings.settle)
            hosts = {
                NamespacedName.of(host): host["metadata"]["resourceVersion"]
                async for host in each_list_item(client, HOST_V1BETA1)
            }
            return await _for_all(phase, hosts, lambda at, version: _rewrite(client, at, version), progress)
        case Phase.STORED_VERSIONS:
            return await _change(
                client, phase, lambda now: now.stored == (NEW,), lambda now: now.with_stored(NEW), subresource="status"
            )
        case Phase.SERVED:
            return await _change(client, phase, lambda now: OLD not in now.served, lambda now: now.without_served(OLD))


async def _for_all(phase: Phase, hosts: dict[NamespacedName, str], act: _Act, progress: Progress) -> Done:
    """Act on each host, with its resourceVersion, a few at a time."""
    found, waiting = Done(phase), list(hosts.items())
    for start in range(0, len(waiting), _MAX_CONCURRENT):
        batch = waiting[start : start + _MAX_CONCURRENT]
        for result in await asyncio.gather(*(_tried(act, *each) for each in batch)):
            if isinstance(result, str):
                found.failures.append(result)
            elif result:
                found.done += 1
            else:
                found.unneeded += 1
        progress(phase.value, start + len(batch), len(waiting))
        if len(found.failures) >= MAX_FAILURES:
            break
    return found


async def _tried(act: _Act, at: NamespacedName, version: str) -> bool | str:
    """Return True if there was anything to do, False if not, or the reason of a failure. Raises UnreachableError."""
    backoff = Backoff(_RETRY_FIRST_SECONDS, _RETRY_LONGEST_SECONDS)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return await act(at, version)
        except ApiError as error:
            if error.status not in _RETRIED_STATUSES or attempt == _ATTEMPTS:
                if isinstance(error, UnreachableError):
                    raise
                return f"BareMetalHost {at}: {error}"
        await asyncio.sleep(backoff.next())
    raise AssertionError


# --- single objects -------------------------------------------------------------------------------------------------


async def _give_details(client: KubeClient, survey: Survey, settings: MigrationSettings, at: NamespacedName) -> bool:
    """Write a host's present hardware details into a HardwareData of its name."""
    namespace, name = at
    resource = HOST_V1ALPHA1 if OLD in survey.served else HOST_V1BETA1
    try:
        host = convert_version(await client.get(resource, name, namespace), V1ALPHA1, settings.conversion)
    except NotFoundError:
        return False
    hardware = (host.get("status") or {}).get("hardware")
    if not hardware:
        return False
    try:
        await client.create(HARDWARE_DATA, details(host, hardware))
    except ConflictError:
        there = await client.get(HARDWARE_DATA, name, namespace)
        if (there.get("spec") or {}).get("hardware"):
            return False
        await client.patch(HARDWARE_DATA, name, namespace, {"spec": {"hardware": hardware}})
    return True


def details(host: Raw, hardware: Raw) -> Raw:
    """Return the HardwareData of a host, which owns it.

    The owner reference does not set blockOwnerDeletion: clusters with the admission plugin
    OwnerReferencesPermissionEnforcement, such as OpenShift's, require rights on the host's finalizers for that.
    """
    metadata = host["metadata"]
    owner = {
        "apiVersion": V1BETA1,  # v1alpha1 may not be served any more when the host is deleted
        "kind": "BareMetalHost",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {
        "apiVersion": HARDWARE_DATA.api_version,
        "kind": HARDWARE_DATA.kind,
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "ownerReferences": [owner]},
        "spec": {"hardware": hardware},
    }


async def _rewrite(client: KubeClient, at: NamespacedName, version: str) -> bool:
    """Store a host again. Return True if it was stored in another form before."""
    namespace, name = at
    try:
        written = await client.patch(HOST_V1BETA1, name, namespace, {})
    except NotFoundError:
        return False
    return bool(written["metadata"]["resourceVersion"] != version)


async def _change(
    client: KubeClient,
    phase: Phase,
    is_so: Callable[[Definition], bool],
    patch: Callable[[Definition], Raw],
    *,
    subresource: str | None = None,
) -> Done:
    """Patch the present definition. Raises ApiError."""
    for _ in range(_ATTEMPTS):
        now = Definition.of(await client.get(CRD, NAME, None))
        if is_so(now):
            return Done(phase, unneeded=1)
        try:
            await client.patch(CRD, NAME, None, patch(now), subresource=subresource)
        except ConflictError:
            continue
        return Done(phase, done=1)
    raise ConflictError(409, "Conflict", f"{NAME} was changed by another client again and again")

"""Survey a cluster: the definitions, every host in both versions, every HardwareData. Reads only, page by page.

Only a digest is kept of each host, so that 100,000 hosts can be compared in both versions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tink.api.metal3 import V1ALPHA1
from tink.api.v1alpha2 import Raw
from tink.convert.metal3 import ConversionSettings, convert_version
from tink.kube.client import ApiError, KubeClient, NotFoundError, UnreachableError, each_list_item
from tink.kube.objects import NamespacedName
from tink.kube.resources import CRD, HARDWARE_DATA, HOST_V1ALPHA1, HOST_V1BETA1
from tink.metal3.definition import HARDWARE_DATA_NAME, NAME, NEW, OLD, Definition
from tink.metal3.migration.compare import Difference, Trip, differences, digest, state

Progress = Callable[[str, int, int], None]
"""Called with the activity, the number done, and the total (0 if unknown)."""

MAX_DIFFERENCES = 1000
"""The most differences that are kept. Further ones are only counted."""
_ATTEMPTS = 5
_NAMED = 3
_FORBIDDEN = (401, 403)


@dataclass(slots=True)
class Survey:
    """The result of a survey.

    `definition` is None if there is no definition of BareMetalHost; then nothing else is known. `missing`: hosts with
    hardware details and without a HardwareData. `differing`: hosts whose HardwareData differs from them. `fault`: the
    reason why hosts can't be read as v1beta1.
    """

    definition: Definition | None
    details_defined: bool = False
    hosts: int = 0
    missing: list[NamespacedName] = field(default_factory=list)
    differing: list[NamespacedName] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    more_differences: int = 0
    compared: int = 0
    fault: str = ""

    @property
    def served(self) -> frozenset[str]:
        """The versions in which hosts can be read."""
        return frozenset() if self.definition is None else self.definition.served

    def add(self, found: list[Difference]) -> None:
        """Keep differences, or count them."""
        room = MAX_DIFFERENCES - len(self.differences)
        self.differences += found[:room]
        self.more_differences += len(found[room:])


@dataclass(frozen=True, slots=True)
class _Seen:
    """A host that was read: its resourceVersion, and digests of its conversions to v1beta1 and back."""

    resource_version: str
    up: bytes
    back: bytes


async def survey(client: KubeClient, settings: ConversionSettings, progress: Progress) -> Survey:
    """Survey the cluster. Raises ApiError if the API does not answer or refuses to be read."""
    found = Survey(await _definition(client, NAME))
    if found.definition is None:
        return found
    found.details_defined = await _definition(client, HARDWARE_DATA_NAME) is not None
    if not found.served & {OLD, NEW}:
        return found
    details = await _details(client, progress) if found.details_defined else {}
    seen = await _hosts(client, settings, found, details, progress)
    if seen and found.definition.by_webhook and NEW in found.served:
        await _compare(client, settings, found, seen, progress)
    return found


async def _definition(client: KubeClient, name: str) -> Definition | None:
    try:
        return Definition.of(await client.get(CRD, name, None))
    except NotFoundError:
        return None


async def _details(client: KubeClient, progress: Progress) -> dict[NamespacedName, bytes]:
    """Return digests of the hardware details in all HardwareData."""
    found = {}
    async for each in each_list_item(client, HARDWARE_DATA):
        hardware = (each.get("spec") or {}).get("hardware")
        if hardware:
            found[NamespacedName.of(each)] = digest(hardware)
        progress("HardwareData read", len(found), 0)
    return found


async def _hosts(
    client: KubeClient,
    settings: ConversionSettings,
    found: Survey,
    details: dict[NamespacedName, bytes],
    progress: Progress,
) -> dict[NamespacedName, _Seen]:
    """Read all hosts as v1alpha1, if that version is served. Return the digests to compare with."""
    seen = {}
    served = OLD in found.served
    try:
        async for host in each_list_item(client, HOST_V1ALPHA1 if served else HOST_V1BETA1):
            found.hosts += 1
            progress("hosts read", found.hosts, 0)
            old = convert_version(host, V1ALPHA1, settings)
            _look_for_details(found, details, old)
            if served:
                trip = Trip.of(old, settings)
                found.add(trip.differences(settings))
                version = host["metadata"]["resourceVersion"]
                seen[NamespacedName.of(host)] = _Seen(version, digest(state(trip.up)), digest(state(trip.back)))
    except ApiError as error:
        _note_fault(found, error)
    return seen


def _look_for_details(found: Survey, details: dict[NamespacedName, bytes], host: Raw) -> None:
    hardware = (host.get("status") or {}).get("hardware")
    if not hardware:
        return
    there = details.get(NamespacedName.of(host))
    if there is None:
        found.missing.append(NamespacedName.of(host))
    elif there != digest(hardware):
        found.differing.append(NamespacedName.of(host))


async def _compare(
    client: KubeClient,
    settings: ConversionSettings,
    found: Survey,
    seen: dict[NamespacedName, _Seen],
    progress: Progress,
) -> None:
    """Read all hosts as v1beta1, and compare them with the expected conversion."""
    try:
        async for host in each_list_item(client, HOST_V1BETA1):
            was = seen.get(NamespacedName.of(host))
            if was is None:
                continue
            found.compared += 1
            progress("hosts compared", found.compared, len(seen))
            if host["metadata"]["resourceVersion"] != was.resource_version or not _is(host, was, settings):
                found.add(await _look_closer(client, settings, NamespacedName.of(host)))
    except ApiError as error:
        _note_fault(found, error)


def _is(host: Raw, was: _Seen, settings: ConversionSettings) -> bool:
    return digest(state(host)) == was.up and digest(state(convert_version(host, V1ALPHA1, settings))) == was.back


async def _look_closer(client: KubeClient, settings: ConversionSettings, at: NamespacedName) -> list[Difference]:
    """Compare one host, read in both versions without a change in between."""
    namespace, name = at
    for _ in range(_ATTEMPTS):
        try:
            old = await client.get(HOST_V1ALPHA1, name, namespace)
            new = await client.get(HOST_V1BETA1, name, namespace)
        except NotFoundError:
            return []
        if old["metadata"]["resourceVersion"] == new["metadata"]["resourceVersion"]:
            break
    trip = Trip.of(old, settings)
    found = differences(
        {"metadata": {"name": name, "namespace": namespace}, **state(trip.up)},
        state(new),
        "v1beta1 as it is served: another webhook or setting converts, or its schema lacks the field",
    )
    back = convert_version(new, V1ALPHA1, settings)
    return found or differences(
        {"metadata": {"name": name, "namespace": namespace}, **state(trip.back)},
        state(back),
        "v1beta1 as it is served does not lead back: another webhook or setting converts",
    )


def _note_fault(found: Survey, error: ApiError) -> None:
    """Record a failed conversion as the fault. Raises the error if the API does not answer or refuses access."""
    if isinstance(error, UnreachableError) or error.status in _FORBIDDEN:
        raise error
    found.fault = found.fault or str(error)


def names(keys: list[NamespacedName]) -> str:
    """Return the first few names, and the number of the others."""
    shown = ", ".join(map(str, keys[:_NAMED]))
    return shown if len(keys) <= _NAMED else f"{shown} and {len(keys) - _NAMED} more"

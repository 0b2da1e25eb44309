"""Which converter takes which object: one table by apiVersion and kind, one for Metal3's hosts by what they become.

A converter changes nothing in the object that it is given and raises nothing for odd input; an object with an error
finding may have no result at all. What it makes of one object starts with the object itself; others that it needs (an
OSIE) follow. What can't be converted has a converter, too: it says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tink.api import metal3 as metal3_api
from tink.api.v1alpha2 import API_VERSION, RUFIO_GROUP, Raw, as_mapping
from tink.convert import metal3, v1alpha1, v1alpha2
from tink.convert.documents import Lookup
from tink.convert.fields import Fields
from tink.convert.findings import Findings
from tink.convert.metadata import carried

TO_HARDWARE = "hardware"
TARGETS = (TO_HARDWARE, *metal3_api.HOST_VERSIONS)
"""What `--to` takes: Hardware of Metal3's hosts, or these hosts in their other version."""

_HOST, _HARDWARE_DATA = "BareMetalHost", "HardwareData"
_SECRET = ("v1", "Secret")


@dataclass(frozen=True, slots=True)
class Context:
    """What a converter may know besides its object."""

    lookup: Lookup
    to: str | None = None
    """One of TARGETS."""
    hosts: metal3.HostOptions = field(default_factory=metal3.HostOptions)
    versions: metal3.ConversionSettings = field(default_factory=metal3.ConversionSettings)
    image_registry: str = ""
    """Where images of v1alpha1's Templates are that name no registry."""


Converter = Callable[[Raw, Findings, Context], list[Raw]]


def converter_of(api_version: str, kind: str, to: str | None) -> Converter:
    """The converter of such objects. `to` is one of TARGETS or None."""
    if (converter := _CONVERTERS.get((api_version, kind))) is not None:
        return converter
    group = api_version.rpartition("/")[0]
    if group == metal3_api.GROUP and kind in (_HOST, _HARDWARE_DATA):
        return _HOST_CONVERTERS[to, kind]
    if (api_version, kind) == _SECRET and to == TO_HARDWARE:
        return _looked_up
    if group == RUFIO_GROUP or (api_version, kind) == _SECRET:
        return _passed_on
    return _refused(f"{api_version} {kind} is nothing that can be converted: take it out of the input")


def _of_object_alone(convert: Callable[[Raw, Findings], list[Raw]]) -> Converter:
    return lambda obj, findings, _context: convert(obj, findings)


def _to_version(version: str) -> Converter:
    """To another version, with a word about what would be lost on the way back."""

    def convert(obj: Raw, findings: Findings, context: Context) -> list[Raw]:
        settings = context.versions
        made = metal3.convert_version(obj, f"{metal3_api.GROUP}/{version}", settings)
        if obj["apiVersion"] != made["apiVersion"] and made["apiVersion"] != metal3_api.V1ALPHA1:
            if settings.empty_checksum_type == "md5":
                for path in metal3.wrongly_md5(obj):
                    reason = "empty means md5, and this checksum is none: say its type, or --empty-checksum-type auto"
                    findings.changed(f"{path}.checksumType", reason)
            back = metal3.convert_version(made, obj["apiVersion"], settings)
            if as_mapping(back.get("status")).get("hardware") != as_mapping(obj.get("status")).get("hardware"):
                reason = "too large for the annotation that keeps it; a HardwareData of the host's name is to hold it"
                findings.dropped("status.hardware", reason)
        return [made]

    return convert


def _looked_up(_obj: Raw, _findings: Findings, _context: Context) -> list[Raw]:
    """Other objects need it; by itself it becomes nothing."""
    return []


def _passed_on(obj: Raw, findings: Findings, _context: Context) -> list[Raw]:
    """What is no affair of ours, without what the API server has written that it was read from: another one refuses to
    create an object with a uid, and deletes one whose owner it does not have.
    """
    return [{**obj, "metadata": carried(Fields(obj, findings), findings)}]


def _refused(reason: str) -> Converter:
    def refuse(_obj: Raw, findings: Findings, _context: Context) -> list[Raw]:
        findings.error("", reason)
        return []

    return refuse


def _without_target(kind: str) -> Converter:
    return _refused(f"{kind} of Metal3: say what to make of it: --to {', --to '.join(TARGETS)}")


_CONVERTERS: dict[tuple[str, str], Converter] = {
    (v1alpha1.API_VERSION, "Hardware"): _of_object_alone(v1alpha1.convert_hardware),
    (v1alpha1.API_VERSION, "Template"): lambda obj, findings, around: v1alpha1.convert_template(
        obj, findings, around.image_registry
    ),
    # A Workflow's Template says how long it may take.
    (v1alpha1.API_VERSION, "Workflow"): lambda obj, findings, around: v1alpha1.convert_workflow(
        obj, findings, around.lookup
    ),
    (API_VERSION, "Hardware"): _of_object_alone(v1alpha2.convert),
    (API_VERSION, "OSIE"): _of_object_alone(v1alpha2.convert),
    (API_VERSION, "Template"): _of_object_alone(v1alpha2.convert),
    (API_VERSION, "Workflow"): _of_object_alone(v1alpha2.convert),
    **{(API_VERSION, kind): _refused(v1alpha2.UPSTREAM) for kind in v1alpha2.UPSTREAM_KINDS},
}

_HOST_CONVERTERS: dict[tuple[str | None, str], Converter] = {
    (TO_HARDWARE, _HOST): lambda obj, findings, around: metal3.convert_to_hardware(
        obj, findings, around.lookup, around.hosts
    ),
    (TO_HARDWARE, _HARDWARE_DATA): _looked_up,
    (None, _HOST): _without_target(_HOST),
    (None, _HARDWARE_DATA): _without_target(_HARDWARE_DATA),
    **{(version, _HOST): _to_version(version) for version in metal3_api.HOST_VERSIONS},
    **{(version, _HARDWARE_DATA): lambda obj, _findings, _context: [obj] for version in metal3_api.HOST_VERSIONS},
}
"""(What it is to become, kind) -> converter, for all versions of Metal3's kinds."""

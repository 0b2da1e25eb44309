"""Convert Metal3's BareMetalHost from v1alpha1 to v1beta1 and back without loss: the core of the conversion webhook.

v1alpha1 -> v1beta1: fields get their new names. The hardware profile becomes the root device hints that it stood for.
An empty checksum type becomes the type that it meant. v1beta1 has no hardware profile and no hardware details. The
whole v1alpha1 object is kept in an annotation: cluster-api's util/conversion has the same annotation and the same form,
the old object as JSON without its metadata. Users can edit, copy and delete the annotation. So its content is used only
where it makes sense, and never causes an error: an object that can't be converted can't be listed or deleted.

v1beta1 -> v1alpha1: the object itself is the truth for every field that v1beta1 has. What users changed or removed
stays so. The annotation supplies only the fields that v1beta1 does not have (profile, hardware details), and shows
which values the conversion to v1beta1 made up: these go, if the object means the same without them. An object without
the annotation was created in v1beta1, or lost the annotation. Its profile becomes `empty`, or the controller would
choose a root device by itself.

Pure: no lookups, no clock, no validation, and no exception for any object, because one that fails would break every
list, deletion and migration of all hosts. The result shares unchanged parts with its source, which is not modified.

Design: the proposal "BareMetalHost API v1beta1" of Metal3. Fields that the target version does not know are copied,
unless another field there has the same name: the API prunes them anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from tink.api.annotations import MAX_ANNOTATIONS_BYTES
from tink.api.metal3 import V1ALPHA1, V1BETA1
from tink.api.metal3.crds import generate
from tink.api.metal3.profiles import EMPTY, has_root_volume, profile_hints
from tink.api.v1alpha2 import Raw, as_mapping

if TYPE_CHECKING:
    from tink.kubeapi import CompiledSchema

CONVERSION_DATA_ANNOTATION = "cluster.x-k8s.io/conversion-data"

_METADATA = "metadata"
_ANNOTATIONS = "annotations"
_EXTRA_LEVELS = 32
"""Extra nesting levels that an answer may add around the kept object: orjson reads more levels than it writes."""


def keep(obj: Raw, old: Raw, forms: Iterable[tuple[Raw, int]]) -> None:
    """Put the first of `forms` that fits into an object's annotations; none if none fits.

    Each form has a maximum for the bytes of all annotations. `old` is the object of the older version: `restore` makes
    the annotations as they were, even if there were none. `obj` gets metadata of its own.
    """
    metadata, annotations = _split(obj)
    stale = annotations.pop(CONVERSION_DATA_ANNOTATION, None)
    used = sum(_size(key) + _size(value) for key, value in annotations.items()) + len(CONVERSION_DATA_ANNOTATION)
    place = _place(old)
    for form, limit in forms:
        text = _text(form | place)
        if text is not None and used + len(text) <= limit:
            obj[_METADATA] = {**metadata, _ANNOTATIONS: {**annotations, CONVERSION_DATA_ANNOTATION: text.decode()}}
            return
    if stale is not None:
        obj[_METADATA] = {**metadata, _ANNOTATIONS: annotations}


def restore(obj: Raw, api_version: str, kind: str) -> Raw | None:
    """Remove the annotation from an object and return the older version in it, without metadata.

    Return None without an annotation, or if it is not of this version and kind. `obj` gets metadata of its own.
    """
    metadata, annotations = _split(obj)
    if CONVERSION_DATA_ANNOTATION not in annotations:
        return None
    kept = _parsed(annotations.pop(CONVERSION_DATA_ANNOTATION), api_version, kind)
    obj[_METADATA] = metadata
    metadata[_ANNOTATIONS] = annotations
    if not annotations:
        del metadata[_ANNOTATIONS]
    if kept is not None and _METADATA in kept:
        place = kept.pop(_METADATA)
        metadata = obj[_METADATA]
        if place is None and not metadata:
            del obj[_METADATA]
        elif isinstance(place, dict) and _ANNOTATIONS in place and _ANNOTATIONS not in metadata:
            metadata[_ANNOTATIONS] = {} if place[_ANNOTATIONS] == {} else None
    return kept


def _split(obj: Raw) -> tuple[Raw, Raw]:
    """Return copies of an object's metadata and annotations; empty ones if they are no mappings."""
    metadata = obj.get(_METADATA)
    metadata = dict(metadata) if isinstance(metadata, dict) else {}
    annotations = metadata.get(_ANNOTATIONS)
    return metadata, dict(annotations) if isinstance(annotations, dict) else {}


def _place(old: Raw) -> Raw:
    """Return the form of old metadata without annotations, if `restore` could not tell that form; mostly {}."""
    metadata = old.get(_METADATA)
    if not isinstance(metadata, dict):
        return {_METADATA: None}
    if _ANNOTATIONS not in metadata or (isinstance(metadata[_ANNOTATIONS], dict) and metadata[_ANNOTATIONS]):
        return {}
    return {_METADATA: {_ANNOTATIONS: {} if metadata[_ANNOTATIONS] == {} else None}}


def _size(text: Any) -> int:
    """Return the bytes of a key or value. Kubernetes admits strings only; any other value counts as 0."""
    return len(text.encode(errors="replace")) if isinstance(text, str) else 0


def _text(value: Raw) -> bytes | None:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # what JSON has no place for
        return None


def _parsed(text: Any, api_version: str, kind: str) -> Raw | None:
    try:
        value = orjson.loads(text)
        deep = value
        for _ in range(_EXTRA_LEVELS):
            deep = [deep]
        orjson.dumps(deep)
    except (TypeError, ValueError):
        return None
    if not isinstance(value, dict):
        return None
    fits = value.get("apiVersion", api_version) == api_version and value.get("kind", kind) == kind
    return value if fits else None


KIND = "BareMetalHost"

_HINTS = {"deviceName": "devicePath", "model": "modelContains", "vendor": "vendorContains"}
_SPEC = {"online": "poweredOn"}
_OLD_HINTS = {new: old for old, new in _HINTS.items()}
_OLD_SPEC = {new: old for old, new in _SPEC.items()}
_AUTO = "auto"
_PROFILE = "hardwareProfile"
_HARDWARE = "hardware"
_ROOT_HINTS = "rootDeviceHints"
_CHECKSUM_TYPE = "checksumType"

_IMAGES = (("spec", "image"), ("status", "provisioning", "image"), ("status", "lastAttemptedImage"))
_MD5_DIGITS = 32
_HEX: Final = frozenset("0123456789abcdefABCDEF")


@dataclass(frozen=True, slots=True)
class ConversionSettings:
    """The options of a version conversion.

    `empty_checksum_type` is what v1alpha1 means by an image without a checksum type: md5 as in the proposal, auto for a
    baremetal-operator that detects the type. `annotations_budget`: bytes of annotations above which hardware details
    are not kept in v1beta1, because HardwareData has them too.
    """

    empty_checksum_type: Literal["md5", "auto"] = "md5"
    annotations_budget: int = 200 << 10


def convert_version(obj: Raw, desired: str, settings: ConversionSettings) -> Raw:
    """Return a BareMetalHost in the version `desired` (`metal3.io/v1beta1`).

    An object that already has that version, or any other version than these two, is returned unchanged.
    """
    version = obj.get("apiVersion") if isinstance(obj, dict) else None
    if (version, desired) == (V1ALPHA1, V1BETA1):
        return _up(obj, settings)
    if (version, desired) == (V1BETA1, V1ALPHA1):
        return _down(obj, settings)
    return obj


def wrongly_md5(host: Raw) -> list[str]:
    """Return the paths of images of a v1alpha1 host whose checksum type is empty and whose checksum can't be MD5.

    With `empty_checksum_type` md5 the converted images could not be deployed.
    """
    images = {".".join(path): _at(host, path) for path in _IMAGES}
    found: list[str] = []
    for path, image in images.items():
        checksum = image.get("checksum") if image and not image.get(_CHECKSUM_TYPE) else None
        # Other characters are a URL's.
        if isinstance(checksum, str) and _HEX.issuperset(checksum) and len(checksum) not in (0, _MD5_DIGITS):
            found.append(path)
    return found


# --- What is the same in both directions: names, in all places of hints and images --------------------------------


def _with_names(obj: Raw, spec_names: Raw, hint_names: Raw, empty_checksum_type: str) -> Raw:
    """Return a host with new names for fields and a type for each checksum. Changed mappings are copies."""

    def hints(value: Any) -> Any:
        return _renamed(value, hint_names)

    def disks(volume: Any) -> Any:
        return _changed(volume, {"physicalDisks": lambda disks: _each(disks, hints)})

    def raid(value: Any) -> Any:
        # The disks of hardware RAID are names, not hints.
        return _changed(value, {"softwareRAIDVolumes": lambda volumes: _each(volumes, disks)})

    def image(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = value.get(_CHECKSUM_TYPE) not in (None, "")
        return dict(value) if given else {**value, _CHECKSUM_TYPE: empty_checksum_type}

    def provisioning(value: Any) -> Any:
        return _changed(value, {_ROOT_HINTS: hints, "raid": raid, "image": image})

    def status(value: Any) -> Any:
        return _changed(value, {"provisioning": provisioning, "lastAttemptedImage": image})

    host: Raw = _changed(obj, {"spec": lambda spec: provisioning(_renamed(spec, spec_names)), "status": status})
    return host


def _changed(value: Any, changes: Mapping[str, Callable[[Any], Any]]) -> Any:
    """Return a mapping with some of its fields changed, if they exist; any other value unchanged."""
    if not isinstance(value, dict):
        return value
    return {key: changes[key](item) if key in changes else item for key, item in value.items()}


def _renamed(value: Any, names: Raw) -> Any:
    """Return a mapping with other names for some of its fields; any other value unchanged."""
    if not isinstance(value, dict):
        return value
    taken = names.values()
    return {names.get(key, key): item for key, item in value.items() if key not in taken}


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    return [change(item) for item in value] if isinstance(value, list) else value


def _without(value: Any, *fields: str) -> Any:
    """Return a copy of a mapping without some of its fields; any other value unchanged."""
    if not isinstance(value, dict):
        return value
    return {key: item for key, item in value.items() if key not in fields}


def _at(obj: Any, path: tuple[str, ...]) -> Raw | None:
    """Return the mapping at a path; None if there is none."""
    for field in path:
        obj = as_mapping(obj).get(field)
    return obj if isinstance(obj, dict) else None


# --- Up: v1alpha1 -> v1beta1 --------------------------------------------------------------------------------------


def _up(old: Raw, settings: ConversionSettings) -> Raw:
    host = _with_names(old, _SPEC, _HINTS, settings.empty_checksum_type)
    host["apiVersion"] = V1BETA1
    if "spec" in host:
        host["spec"] = spec = _without(host["spec"], _PROFILE)
        if isinstance(spec, dict) and spec.get(_ROOT_HINTS) is None and (hints := profile_hints(old)):
            spec[_ROOT_HINTS] = _renamed(hints, _HINTS)
    if "status" in host:
        host["status"] = _without(host["status"], _PROFILE, _HARDWARE)
    keep(host, old, _forms(old, settings.annotations_budget))
    return host


def _forms(old: Raw, budget: int) -> Iterator[tuple[Raw, int]]:
    """Yield the parts of a v1alpha1 host to keep, the fullest first, each with the maximum bytes of all annotations."""
    whole = _without(old, "metadata")
    yield whole, min(budget, MAX_ANNOTATIONS_BYTES)
    yield _changed(whole, {"status": lambda status: _without(status, _HARDWARE)}), MAX_ANNOTATIONS_BYTES
    yield _essence(whole), MAX_ANNOTATIONS_BYTES


def _essence(whole: Raw) -> Raw:
    """Return the parts that the conversion to v1alpha1 needs, without hardware details."""
    spec, status = as_mapping(whole.get("spec")), as_mapping(whole.get("status"))
    wanted = {field: spec[field] for field in (_PROFILE, _ROOT_HINTS, "bmc", "image") if field in spec}
    observed: Raw = {field: status[field] for field in (_PROFILE, "lastAttemptedImage") if field in status}
    if (image := _at(status, ("provisioning", "image"))) is not None:
        observed["provisioning"] = {"image": image}
    return {"apiVersion": V1ALPHA1, "kind": KIND, "spec": wanted, "status": observed}


# --- Down: v1beta1 -> v1alpha1 ------------------------------------------------------------------------------------


def _down(obj: Raw, settings: ConversionSettings) -> Raw:
    host = _with_names(obj, _OLD_SPEC, _OLD_HINTS, _AUTO)
    host["apiVersion"] = V1ALPHA1
    old = restore(host, V1ALPHA1, KIND)
    for part, *fields in (("spec", _PROFILE), ("status", _PROFILE, _HARDWARE)):
        if part not in host:
            continue
        host[part] = there = _without(host[part], *fields)
        # A host without a status is new: nothing was observed, even if its annotations are copies of another host's.
        if old is not None and isinstance(there, dict):
            was = as_mapping(old.get(part))
            there.update({field: was[field] for field in fields if field in was and _is_valid(field, was[field])})
    if old is not None:
        _settle_hints(host, old)
        _settle_checksum_types(host, old, settings.empty_checksum_type)
    elif isinstance(host.get("spec"), dict):
        host["spec"][_PROFILE] = EMPTY
    return host


def _is_valid(field: str, value: Any) -> bool:
    """Return True if the API would accept a profile or hardware details.

    The API does not check values that users write into annotations. The controller would fail on them: it could read no
    host at all, or not write this one.
    """
    if value is None:
        return True
    if field == _PROFILE:
        return isinstance(value, str)
    from tink.kubeapi import WalkResult, deep_copy

    found = WalkResult()
    try:
        _details()(deep_copy(value), None, found)
    except orjson.JSONEncodeError:  # nested deeper than an API server takes
        return False
    return not found.errors


@cache
def _details() -> CompiledSchema:
    """Return the schema of hardware details."""
    from tink.kubeapi import compile_schema  # here, because it takes 0.3 s to load, and only some hosts need it

    details = generate()[1]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return compile_schema(details["properties"]["spec"]["properties"]["hardware"])


def _settle_hints(host: Raw, old: Raw) -> None:
    """Remove hints that only stand for the profile. Remove the profile's hints if the user removed them."""
    spec = host.get("spec")
    if not isinstance(spec, dict):
        return
    hints, by_itself = spec.get(_ROOT_HINTS), profile_hints(host)
    if hints is None:
        if by_itself is not None:
            spec[_PROFILE] = EMPTY
            if _PROFILE in as_mapping(host.get("status")):
                host["status"][_PROFILE] = EMPTY  # the controller uses the status first
        return
    before = as_mapping(old.get("spec"))
    made_up = before.get(_ROOT_HINTS) is None and hints == profile_hints(old)
    # A change of the BMC's address may change the default profile: then the hints must stay, because only they keep
    # the root disk that users saw. A host with a root volume must not have hints, and the user wrote none.
    if made_up and (hints == by_itself or has_root_volume(host)):
        del spec[_ROOT_HINTS]
        if _ROOT_HINTS in before:
            spec[_ROOT_HINTS] = None


def _settle_checksum_types(host: Raw, old: Raw, empty_checksum_type: str) -> None:
    """Restore an empty checksum type, if it is still the type of the same checksum."""
    for path in _IMAGES:
        image, before = _at(host, path), _at(old, path)
        if image is None or before is None or before.get(_CHECKSUM_TYPE) not in (None, ""):
            continue
        if image.get(_CHECKSUM_TYPE) == empty_checksum_type and image.get("checksum") == before.get("checksum"):
            del image[_CHECKSUM_TYPE]
            if _CHECKSUM_TYPE in before:
                image[_CHECKSUM_TYPE] = before[_CHECKSUM_TYPE]

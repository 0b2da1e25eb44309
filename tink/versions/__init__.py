"""Convert objects between tinkerbell.org/v1alpha1 and v1alpha2 while both are served.

The API stores v1alpha2. A client of v1alpha1, such as Cluster API's provider (CAPT), reads and writes the same objects
in its version. Each of its writes converts the stored object to v1alpha1, changes that, and converts it back, so the
conversion loses nothing in either direction: a change of one field must not move another one.

`hardware`, `template` and `workflow` map the fields of a kind. `rendering` makes the actions of a v1alpha1 Template for
a machine. `residue` keeps what the other version has no place for, in an annotation, and explains how. What one version
requires and the other one lacks is filled in and marked (INCOMPLETE_ANNOTATION).

Pure: no clock, no look-ups, no validation, and no exception for an object of a known kind and version, because one
object that fails would break each list of all objects.
"""

from __future__ import annotations

from typing import Final

from tink.api.annotations import (
    MAX_ANNOTATIONS_BYTES,
    OVERSIZED_LABEL,
    TEMPLATE_TEXT_ANNOTATION,
    V1ALPHA1_ANNOTATION,
    V1ALPHA2_ANNOTATION,
    annotation_size,
    annotations_size,
)
from tink.api.mistakes import Mistake
from tink.api.mistakes import Reason as MistakeReason
from tink.api.v1alpha2 import GROUP, Raw, as_mapping
from tink.convert.fields import LAST_APPLIED
from tink.errors import TinkedgeError
from tink.versions.hardware import HARDWARE, ignored_fields, is_uefi
from tink.versions.residue import MAX_RESIDUE_BYTES, NEW, OLD, Kind, translate
from tink.versions.template import TEMPLATE, text_of
from tink.versions.workflow import WORKFLOW

KINDS: Final[dict[str, Kind]] = {"Hardware": HARDWARE, "Template": TEMPLATE, "Workflow": WORKFLOW}
"""The kinds that both versions have."""
DEFINITIONS: Final = tuple(f"{plural}.{GROUP}" for plural in ("hardware", "templates", "workflows"))
"""The names of their CustomResourceDefinitions."""
_OLD_VERSION, _NEW_VERSION = (each.rpartition("/")[2] for each in (OLD, NEW))
MAX_NAMED: Final = 5
"""Maximum number of fields that a mistake names."""
_MAX_NAMED_ANNOTATIONS: Final = 3
_SOURCES: Final = {
    TEMPLATE_TEXT_ANNOTATION: "spec.data",
    V1ALPHA1_ANNOTATION: "the fields that v1alpha2 has no place for (docs/migrating.md)",
}
"""The fields of the v1alpha1 object that an annotation of the v1alpha2 object holds."""
_MAX_SHOWN: Final = 80
"""Characters of a value in a message."""
_WEIGHT: Final = 2
_TEMPLATE_WEIGHT: Final = 16
"""Time of a conversion, as a multiple of that to check JSON of the same size."""
_UNPACKED: Final = MAX_RESIDUE_BYTES


class ConversionError(TinkedgeError):
    """The object has another kind, or one of the two versions is neither v1alpha1 nor v1alpha2."""


def convert(obj: Raw, api_version: str) -> Raw:
    """Return an object of one version in the version `api_version`; OLD and NEW are the versions.

    The spec, the status, and annotations differ from the object's. The object is not changed; unchanged parts are
    shared. Fields that the target version does not know are left out. No field of the object is required.

    Raises ConversionError for another kind or version.
    """
    source, kind = obj.get("apiVersion"), obj.get("kind")
    found = KINDS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise ConversionError(f"no conversion of the kind {_shown(kind)}: there are {', '.join(sorted(KINDS))}")
    for each in (source, api_version):
        if each not in (OLD, NEW):
            raise ConversionError(f"no conversion of a {kind} from {_shown(source)} to {_shown(api_version)}")
    return dict(obj) if source == api_version else translate(obj, found, api_version)


def convert_within_limits(obj: Raw, api_version: str) -> Raw:
    """Convert as `convert` does, for an API server that rejects objects with more annotations than Kubernetes permits.

    Such an object in v1alpha1 would break each list and watch. So its annotation with the fields of v1alpha2 is left
    out, and OVERSIZED_LABEL says so. A write in v1alpha1 would lose these fields, so an object with the label can't be
    converted to v1alpha2. The API server does that for a deletion in v1alpha1, too.

    Raises ConversionError also for an object of v1alpha1 that can't be stored; the message has the remedy.
    """
    made = convert(obj, api_version)
    if obj.get("apiVersion") == api_version:
        return made
    metadata = as_mapping(made.get("metadata"))
    annotations, labels = as_mapping(metadata.get("annotations")), as_mapping(metadata.get("labels"))
    where = f"{obj['kind']} {'/'.join(str(metadata.get(key))[:_MAX_SHOWN] for key in ('namespace', 'name'))}"
    if api_version == NEW and OVERSIZED_LABEL in labels:
        raise ConversionError(
            f"{where}: metadata.annotations: the fields of v1alpha2 do not fit beside the other annotations: write the "
            "object in v1alpha2, or remove annotations there first"
        )
    if annotations_size(annotations) <= MAX_ANNOTATIONS_BYTES:
        return made
    if api_version == NEW:
        raise ConversionError(f"{where}: metadata.annotations: {too_large(annotations)}")
    kept = {name: text for name, text in annotations.items() if name != V1ALPHA2_ANNOTATION}
    return {**made, "metadata": {**metadata, "annotations": kept, "labels": {**labels, OVERSIZED_LABEL: "true"}}}


def too_large(annotations: Raw) -> str:
    """Return the reason why an object of v1alpha1 with these annotations as v1alpha2 is refused, with the remedy."""
    sizes = {name: annotation_size(name, text) for name, text in annotations.items()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_MAX_NAMED_ANNOTATIONS]
    named = ", ".join(f"{name} has {sizes[name]}" for name in largest)
    sources = [text for name, text in _SOURCES.items() if name in annotations]
    remedy = f"shorten {sources[0] if sources else 'an annotation'}"
    if LAST_APPLIED in annotations:
        remedy = f"use `kubectl apply --server-side`, which does not need {LAST_APPLIED}, or {remedy}"
    limit = f"the annotations of the stored v1alpha2 object would have {sum(sizes.values())} bytes"
    return f"{limit}, more than {MAX_ANNOTATIONS_BYTES} ({named}): {remedy}"


def restore(new: Raw, old: Raw) -> None:
    """Add to `new`, in place, what its version can't hold of the stored object `old`.

    `new` is the body of an update, or the result of a patch. Both objects are in one version. A client of v1alpha1 that
    replaces an object does not know the annotation with the fields of v1alpha2, and must not remove them. Neither must
    a client that patches with `annotations: null`, as CAPT does if it has seen no annotation but its own. A client that
    sends the annotation decides itself.
    """
    kept = as_mapping(as_mapping(old.get("metadata")).get("annotations")).get(V1ALPHA2_ANNOTATION)
    if new.get("apiVersion") != OLD or kept is None or not isinstance(new.get("metadata"), dict):
        return
    annotations = new["metadata"].get("annotations")
    annotations = annotations if isinstance(annotations, dict) else {}
    new["metadata"]["annotations"] = {V1ALPHA2_ANNOTATION: kept, **annotations}


def weight(body: bytes) -> int:
    """Return the time that the conversion of an object's JSON takes at most, in bytes of JSON (`tink.offload`).

    A residue or text that is compressed may be a thousand times as long as it seems. The text of a Template is parsed.
    """
    if b"gzip" in body:
        return _UNPACKED
    return len(body) * (_TEMPLATE_WEIGHT if b'"kind":"Template"' in body else _WEIGHT)


def keep_served(definition: Raw, stored: Raw | None) -> None:
    """Add v1alpha1 and its labels to a definition of DEFINITIONS that lacks it, in place.

    `stored` is the definition so far, None for a new one. The embedded API does this at each write: definitions of
    `tinkedge crds`, which have v1alpha2 alone, must not end v1alpha1 for its clients. Other objects are not changed,
    nor is a definition that does not store v1alpha2, nor a `served: false` of v1alpha1.
    """
    name = as_mapping(definition.get("metadata")).get("name")
    if definition.get("kind") != "CustomResourceDefinition" or name not in DEFINITIONS:
        return
    found = as_mapping(definition.get("spec")).get("versions")
    versions = {each.get("name"): each for each in found if isinstance(each, dict)} if isinstance(found, list) else {}
    if _OLD_VERSION in versions or as_mapping(versions.get(_NEW_VERSION)).get("storage") is not True:
        return
    # The schemas take a tenth of a second, and few definitions are written.
    from tink.api.crds import generate

    ours = next(each for each in generate(serve_v1alpha1=True) if each["metadata"]["name"] == name)
    known = as_mapping(as_mapping(stored).get("spec")).get("versions") or ours["spec"]["versions"]
    # The lists are new: another caller may hold the definition's.
    definition["spec"]["versions"] = [*versions.values(), *(each for each in known if each["name"] == _OLD_VERSION)]
    if labels := ours["metadata"].get("labels"):
        definition["metadata"]["labels"] = labels | (definition["metadata"].get("labels") or {})


def ignored_field_mistakes(hardware: Raw) -> list[Mistake]:
    """Return the mistake of a stored Hardware with fields of v1alpha1 that have no effect, if it has any."""
    found = ignored_fields(hardware)
    if not found:
        return []
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    message = f"no effect here, see docs/migrating.md: {', '.join(found[:MAX_NAMED])}{more}"
    return [Mistake(MistakeReason.IGNORED_FIELDS, OLD, message)]


def _shown(value: object) -> str:
    return repr(value)[:_MAX_SHOWN]


__all__ = [
    "DEFINITIONS",
    "NEW",
    "OLD",
    "ConversionError",
    "Kind",
    "convert",
    "convert_within_limits",
    "ignored_field_mistakes",
    "is_uefi",
    "keep_served",
    "restore",
    "text_of",
    "too_large",
    "weight",
]

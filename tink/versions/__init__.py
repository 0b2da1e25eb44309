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

from tink.api.annotations import V1ALPHA2_ANNOTATION
from tink.api.mistakes import Mistake
from tink.api.mistakes import Reason as MistakeReason
from tink.api.v1alpha2 import GROUP, Raw, as_mapping
from tink.errors import TinkedgeError
from tink.versions.hardware import HARDWARE, ignored_fields, is_uefi
from tink.versions.residue import MAX_RESIDUE_BYTES, NEW, OLD, Kind, translate
from tink.versions.template import TEMPLATE, text_of
from tink.versions.workflow import WORKFLOW

KINDS: Final[dict[str, Kind]] = {"Hardware": HARDWARE, "Template": TEMPLATE, "Workflow": WORKFLOW}
"""The kinds that both versions have."""
DEFINITIONS: Final = tuple(f"{plural}.{GROUP}" for plural in ("hardware", "templates", "workflows"))
"""The names of their CustomResourceDefinitions."""
MAX_NAMED: Final = 5
"""Maximum number of fields that a mistake names."""
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
    "ignored_field_mistakes",
    "is_uefi",
    "restore",
    "text_of",
    "weight",
]

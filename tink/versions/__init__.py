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

from tink.api.v1alpha2 import Raw, as_mapping
from tink.errors import TinkedgeError
from tink.versions.hardware import HARDWARE
from tink.versions.residue import INCOMPLETE_ANNOTATION, NEW, NEW_ANNOTATION, OLD, OLD_ANNOTATION, Kind, translate
from tink.versions.template import TEMPLATE, TEMPLATE_ANNOTATION, text_of
from tink.versions.workflow import WORKFLOW

KINDS: Final[dict[str, Kind]] = {"Hardware": HARDWARE, "Template": TEMPLATE, "Workflow": WORKFLOW}
"""The kinds that both versions have."""
_MAX_SHOWN: Final = 80
"""Characters of a value in a message."""


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


def inherit_residue(old: Raw, stored: Raw) -> Raw:
    """Return a v1alpha1 object with the residue of the v1alpha2 object that it replaces.

    A client that replaces the whole object (`kubectl replace`) drops the annotation of a view, and with it the fields
    that v1alpha2 alone has. An object that has the annotation is returned unchanged.

    Raises ConversionError as `convert` does.
    """
    metadata = as_mapping(old.get("metadata"))
    annotations = as_mapping(metadata.get("annotations"))
    view = as_mapping(as_mapping(convert(stored, OLD).get("metadata")).get("annotations"))
    if NEW_ANNOTATION in annotations or NEW_ANNOTATION not in view:
        return old
    return old | {"metadata": metadata | {"annotations": annotations | {NEW_ANNOTATION: view[NEW_ANNOTATION]}}}


def _shown(value: object) -> str:
    return repr(value)[:_MAX_SHOWN]


__all__ = [
    "INCOMPLETE_ANNOTATION",
    "NEW",
    "NEW_ANNOTATION",
    "OLD",
    "OLD_ANNOTATION",
    "TEMPLATE_ANNOTATION",
    "ConversionError",
    "Kind",
    "convert",
    "inherit_residue",
    "text_of",
]

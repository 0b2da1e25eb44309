"""What a newer version of an object can't hold, kept in an annotation of it: Cluster API's way of losing nothing.

The annotation and its form are those of cluster-api's util/conversion: the object of the older version as JSON,
without its metadata. Users can edit it, copy it to other objects and delete it, so whatever is in it is only believed
as far as it makes sense, and never a reason to fail: an object that can't be converted can't be listed or deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from tink.api.v1alpha2 import Raw

ANNOTATION = "cluster.x-k8s.io/conversion-data"
MAX_ANNOTATIONS_BYTES = 256 << 10
"""Bytes that the keys and values of an object's annotations may have in all (k8s.io/apimachinery, api/validation)."""

_METADATA = "metadata"
_ANNOTATIONS = "annotations"
_DEEPER = 32
"""So many levels deeper may what is kept stand in an answer: orjson reads more levels than it writes."""


def keep(obj: Raw, old: Raw, forms: Iterable[tuple[Raw, int]]) -> None:
    """Put the first of `forms` that fits into an object's annotations; none if none does.

    A form comes with the bytes that all annotations may have with it. `old` is the object of the older version:
    `restore` makes the annotations as they were, also where there were none. `obj` gets metadata of its own.
    """
    metadata, annotations = _split(obj)
    stale = annotations.pop(ANNOTATION, None)
    used = sum(_size(key) + _size(value) for key, value in annotations.items()) + len(ANNOTATION)
    place = _place(old)
    for form, limit in forms:
        text = _text(form | place)
        if text is not None and used + len(text) <= limit:
            obj[_METADATA] = {**metadata, _ANNOTATIONS: {**annotations, ANNOTATION: text.decode()}}
            return
    if stale is not None:
        obj[_METADATA] = {**metadata, _ANNOTATIONS: annotations}


def restore(obj: Raw, api_version: str, kind: str) -> Raw | None:
    """Take the annotation away from an object and give the older version that it holds, without metadata.

    None if there is none, or none that is of this version and kind. `obj` gets metadata of its own.
    """
    metadata, annotations = _split(obj)
    if ANNOTATION not in annotations:
        return None
    kept = _parsed(annotations.pop(ANNOTATION), api_version, kind)
    obj[_METADATA] = metadata
    metadata[_ANNOTATIONS] = annotations
    if not annotations:
        del metadata[_ANNOTATIONS]
    if kept is not None and _METADATA in kept:
        _leave_place(obj, kept.pop(_METADATA))
    return kept


def _split(obj: Raw) -> tuple[Raw, Raw]:
    """Copies of an object's metadata and annotations, empty if they are none."""
    metadata = obj.get(_METADATA)
    metadata = dict(metadata) if isinstance(metadata, dict) else {}
    annotations = metadata.get(_ANNOTATIONS)
    return metadata, dict(annotations) if isinstance(annotations, dict) else {}


def _place(old: Raw) -> Raw:
    """How the metadata was without annotations, where taking the field away again would not do; mostly nothing."""
    metadata = old.get(_METADATA)
    if not isinstance(metadata, dict):
        return {_METADATA: None}
    if _ANNOTATIONS not in metadata or (isinstance(metadata[_ANNOTATIONS], dict) and metadata[_ANNOTATIONS]):
        return {}
    return {_METADATA: {_ANNOTATIONS: {} if metadata[_ANNOTATIONS] == {} else None}}


def _leave_place(obj: Raw, place: Any) -> None:
    """Leave metadata as `_place` found it, if it is empty again."""
    metadata = obj[_METADATA]
    if place is None and not metadata:
        del obj[_METADATA]
    elif isinstance(place, dict) and _ANNOTATIONS in place and _ANNOTATIONS not in metadata:
        metadata[_ANNOTATIONS] = {} if place[_ANNOTATIONS] == {} else None


def _size(text: Any) -> int:
    """Bytes of a key or value; Kubernetes lets in strings only, of anything else the size is not asked for."""
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
        for _ in range(_DEEPER):
            deep = [deep]
        orjson.dumps(deep)
    except (TypeError, ValueError):
        return None
    if not isinstance(value, dict):
        return None
    fits = value.get("apiVersion", api_version) == api_version and value.get("kind", kind) == kind
    return value if fits else None

"""Answer a ConversionReview (apiextensions.k8s.io/v1): convert hosts to the requested version.

The answer has the same number of objects in the same order, whatever their versions. The API server accepts changed
labels and annotations only, and refuses objects without metadata.

Pure and deterministic. An unreadable review is a ReviewError. No object, however odd, causes a failure: an object that
can't be converted would make all hosts unreadable, and none of them could be deleted.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from tink.api.metal3 import V1ALPHA1, V1BETA1
from tink.api.v1alpha2 import Raw
from tink.convert.metal3.versions import ConversionSettings, convert_version
from tink.errors import TinkedgeError

API_VERSION = "apiextensions.k8s.io/v1"
KIND = "ConversionReview"

_SHOWN = 200


class ReviewError(TinkedgeError, ValueError):
    """The request is no ConversionReview; the message says why."""


def answer(body: bytes, settings: ConversionSettings) -> bytes:
    """Convert the objects of a review and return the review to answer with. Raises ReviewError."""
    request = _request(body)
    desired, objects = request["desiredAPIVersion"], request.get("objects") or []
    if desired in (V1ALPHA1, V1BETA1):
        converted = [_converted(obj, desired, settings) for obj in objects]
        response: Raw = {"convertedObjects": converted, "result": {"status": "Success"}}
    else:
        message = f"BareMetalHost has the versions {V1ALPHA1} and {V1BETA1}, not {desired[:_SHOWN]}"
        response = {"result": {"status": "Failure", "message": message}}
    try:
        return orjson.dumps({"apiVersion": API_VERSION, "kind": KIND, "response": {"uid": request["uid"], **response}})
    except orjson.JSONEncodeError as error:  # more levels than any schema has: orjson reads more than it writes
        raise ReviewError(f"an object is nested too deeply: {error}") from error


def _request(body: bytes) -> Raw:
    """Return the request of a review, with fields of the right types. Raises ReviewError."""
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ReviewError(f"it is not JSON: {error}") from error
    if not isinstance(review, dict):
        raise ReviewError("it is not an object")
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if review.get(field) != wanted:
            raise ReviewError(f"{field} must be {wanted}, not {_shown(review.get(field))}")
    request = review.get("request")
    if not isinstance(request, dict):
        raise ReviewError("request is missing")
    for field in ("uid", "desiredAPIVersion"):
        if not isinstance(request.get(field), str) or not request[field]:
            raise ReviewError(f"request.{field} must be a string, not {_shown(request.get(field))}")
    objects = request.get("objects")
    if objects is not None and not isinstance(objects, list):
        raise ReviewError(f"request.objects must be a list, not {_shown(objects)}")
    return request


def _converted(obj: Any, desired: str, settings: ConversionSettings) -> Any:
    if not isinstance(obj, dict):
        return obj
    made = convert_version(obj, desired, settings)
    # The API server sends partial objects, made from managed fields, without metadata (kubernetes issue 117356).
    return made if isinstance(made.get("metadata"), dict) else {**made, "metadata": {}}


def _shown(value: Any) -> str:
    return json.dumps(value)[:_SHOWN] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"

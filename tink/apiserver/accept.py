"""What a client wants to get: its Accept header, read (RFC 9110 section 12.5.1, with Kubernetes' own parameters).

kubectl asks for `application/json;as=Table;v=v1;g=meta.k8s.io` before plain JSON, and some clients for protobuf first,
which is not served: the first form that is, in the order of the header, is taken. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from tink.apiserver import errors

SERVED = ("application/json",)


class Form(Enum):
    """Form of an answer."""

    OBJECT = "object"
    TABLE = "Table"
    PARTIAL = "PartialObjectMetadata"


def _offers(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    for part in header.split(",")[:32]:
        media, *parameters = (piece.strip() for piece in part.split(";"))
        yield media.lower(), {key.strip(): value.strip() for key, _, value in (p.partition("=") for p in parameters)}


def negotiate(header: str) -> Form:
    """Choose the form of an answer with objects. Raises StatusError (406) when none is served."""
    if not header.strip():
        return Form.OBJECT
    for media, parameters in _offers(header):
        if media not in ("application/json", "application/*", "*/*"):
            continue
        match parameters.get("as"):
            case None:
                return Form.OBJECT
            case "Table" if parameters.get("v", "v1") in ("v1", "v1beta1"):
                return Form.TABLE
            case "PartialObjectMetadata" | "PartialObjectMetadataList" if parameters.get("v", "v1") == "v1":
                return Form.PARTIAL
    raise errors.not_acceptable(SERVED)


def wants_aggregated(header: str) -> bool:
    """Whether discovery is to be answered in the aggregated form, v2."""
    return any(
        media == "application/json" and p.get("as") == "APIGroupDiscoveryList" and p.get("v") == "v2"
        for media, p in _offers(header)
    )

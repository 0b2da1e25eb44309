"""What a client wants to get: its Accept header, read (RFC 9110 section 12.5.1, with Kubernetes' own parameters).

kubectl asks for `application/json;as=Table;v=v1;g=meta.k8s.io` before plain JSON, and most clients of the built-in
types for protobuf before JSON. Clauses are taken in the order of k8s.io/apiserver (pkg/endpoints/handlers/negotiation,
which sorts by quality, named types before `*`); JSON goes before protobuf wherever both will do, because it is what
the store holds. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.requests.media_types import JSON, PROTOBUF, YAML

SERVED = (JSON, YAML, PROTOBUF)
STREAMS = (f"{JSON};stream=watch", f"{PROTOBUF};stream=watch")
MAX_CLAUSES = 32
"""Clauses of a header after these are not read."""
META_GROUP = "meta.k8s.io"


class Form(Enum):
    """Form of an answer."""

    OBJECT = "object"
    TABLE = "Table"
    PARTIAL = "PartialObjectMetadata"


@dataclass(frozen=True, slots=True)
class Clause:
    """One alternative of a header: `media` in lower case, e.g. `application/json` or `*/*`, and its parameters."""

    media: str
    quality: float
    parameters: Mapping[str, str]

    def matches(self, media: str) -> bool:
        """Whether the clause means this media type."""
        return self.media in (media, "*/*") or (self.media.endswith("/*") and media.startswith(self.media[:-1]))


@dataclass(frozen=True, slots=True)
class Accepted:
    """What an answer is to be: its media type, its form, and for tables and metadata the version of meta.k8s.io."""

    media: str = JSON
    form: Form = Form.OBJECT
    version: str = "v1"
    pretty: bool = False


def clauses(header: str) -> list[Clause]:
    """Read a header; the best clause first. Clauses that make no sense are left out, as k8s.io/apiserver does."""
    found: list[Clause] = []
    for part in header.split(",", MAX_CLAUSES)[:MAX_CLAUSES]:
        media, *parameters = part.split(";")
        kind, slash, subtype = (piece.strip(" ") for piece in media.partition("/"))
        if kind == "*" and not subtype:
            subtype = "*"
        if not subtype or "/" in subtype or (not slash and kind != "*"):
            continue
        named = {key.strip(" "): value.strip(" ") for key, _, value in (p.partition("=") for p in parameters) if value}
        quality = _quality(named.pop("q", "1"))
        found.append(Clause(f"{kind}/{subtype}".lower(), quality, named))
    return sorted(found, key=_rank)


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _rank(clause: Clause) -> tuple[bool, bool, float]:
    """Order clauses as Kubernetes does: named types before `*`, whatever their quality."""
    return (clause.media.startswith("*/"), clause.media.endswith("/*"), -clause.quality)


@lru_cache(256)  # clients have few headers, and send them with each request
def negotiate(header: str, *, protobuf: bool = False, many: bool = False, watch: bool = False) -> Accepted:
    """Choose the media type and form of an answer with objects.

    `protobuf`: they can be written as protobuf here; `many`: a list; `watch`: a watch.
    Raises StatusError (406) when nothing that the client accepts is served.
    """
    if not header:
        return Accepted()
    wanted = clauses(header)
    for offers in ((JSON,) if watch else (JSON, YAML), (PROTOBUF,) if protobuf and not watch else ()):
        for clause in wanted:
            for media in offers:
                made = _accepted(clause, media, many) if clause.matches(media) else None
                if made is not None:
                    return made
    raise errors.not_acceptable(STREAMS if watch else SERVED)


def _accepted(clause: Clause, media: str, many: bool) -> Accepted | None:
    """Say what a clause asks for, or None when that is not served."""
    asked = clause.parameters
    pretty = asked.get("pretty") == "1"
    if asked.get("stream", "watch") != "watch" or asked.get("sv", "v1") != "v1":
        return None
    kind, group, version = asked.get("as", ""), asked.get("g", ""), asked.get("v", "")
    if not (kind or group or version):
        return Accepted(media, pretty=pretty)
    if group != META_GROUP or version not in ("v1", "v1beta1") or media == PROTOBUF:
        return None
    if kind == "Table":
        return Accepted(media, Form.TABLE, version, pretty)
    if kind in ("PartialObjectMetadata", "PartialObjectMetadataList"):
        _check_partial(kind, many)
        return Accepted(media, Form.PARTIAL, version, pretty)
    return None


def _check_partial(kind: str, many: bool) -> None:
    """Refuse a list of metadata where there is one object, and the other way round."""
    if kind.endswith("List") == many:
        return
    is_not = "is a list" if many else "is not a list"
    raise StatusError(406, "NotAcceptable", f"you requested {kind}, but the requested object {is_not}")


@lru_cache(64)
def discovery_form(header: str) -> tuple[str, str]:
    """Choose how discovery is answered: the media type, and the version of apidiscovery.k8s.io ("": the classic form).

    Raises StatusError (406).
    """
    for clause in clauses(header) if header else (Clause(JSON, 1, {}),):
        for media in (JSON, YAML):
            if not clause.matches(media):
                continue
            asked = (clause.parameters.get("g", ""), clause.parameters.get("v", ""), clause.parameters.get("as", ""))
            if asked == ("", "", ""):
                return media, ""
            if asked in _AGGREGATED:
                return media, asked[1]
    raise errors.not_acceptable(SERVED)


_AGGREGATED = [("apidiscovery.k8s.io", version, "APIGroupDiscoveryList") for version in ("v2", "v2beta1")]


def wants_gzip(header: str) -> bool:
    """Whether an answer may be compressed: `gzip` stands in Accept-Encoding (k8s.io/apiserver reads no more of it)."""
    return any(part.strip() == "gzip" for part in header.split(",", MAX_CLAUSES))

"""Discovery, OpenAPI and version as HTTP documents, with the headers for client caches. Pure.

Each document is built once and kept until the registry changes. A client that has it already (If-None-Match) gets 304
without a body. kubectl requests these documents before nearly every command.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from email.utils import format_datetime
from hashlib import sha512

import orjson

from tink.kubeapi.apiserver.discovery import groups
from tink.kubeapi.apiserver.discovery.openapi import OpenAPI, Text, url
from tink.kubeapi.apiserver.media import JSON, YAML, clauses, discovery_form, wants_gzip
from tink.kubeapi.apiserver.resources.registry import Registry
from tink.kubeapi.apiserver.serializer import dump_yaml
from tink.kubeapi.schema.shapes import Raw
from tink.limits import shrink_to_fit

OPENAPI_2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_OPENAPI_2_OLD = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
MIN_GZIP = 1400
"""Minimum size of compressed documents: smaller ones fit into one packet."""
MAX_KEPT = 4096  # Maximum number of cached texts. Beyond it, documents are built for each request.


@dataclass(frozen=True, slots=True)
class HttpDocument:
    """An answer: HTTP status, body, media type, and further headers."""

    body: bytes = b""
    media: str = JSON
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


_NOT_ACCEPTABLE = HttpDocument(status=406, headers={"Vary": "Accept"})


@dataclass(frozen=True, slots=True)
class DocumentRequest:
    """A request for a document: its path without a final slash, and the relevant headers."""

    path: str
    accept: str = ""
    known_tag: str = ""
    encoding: str = ""
    host: str = ""
    hash: str = ""


class Documents:
    """The documents of a registry. `now` returns the time, from which their expiry is computed."""

    def __init__(self, registry: Registry, now: Callable[[], datetime]) -> None:
        self._registry = registry
        self._openapi = OpenAPI(registry)
        self._now = now
        self._revision = -1
        self._kept: dict[tuple[str, str], Text] = {}
        self._compressed: dict[bytes, bytes] = {}

    def answer(self, request: DocumentRequest) -> HttpDocument | None:
        """Answer a GET. Return None if the path is no document. Raises StatusError (406)."""
        if self._revision != self._registry.revision:
            self._kept.clear()
            self._compressed.clear()
            self._revision = self._registry.revision
        made = self._build(request)
        if made is None or made.status != 200:
            return made
        tag = made.headers.get("ETag")
        if tag and (request.known_tag == "*" or tag in [one.strip() for one in request.known_tag.split(",")[:32]]):
            # With the media type: kubectl overwrites its cached headers with those of a 304.
            return HttpDocument(b"", made.media, 304, made.headers)
        if len(made.body) < MIN_GZIP or not wants_gzip(request.encoding):
            return made
        compressed = self._compressed.get(made.body)
        if compressed is None:
            compressed = gzip.compress(made.body, 1, mtime=0)
            if len(self._compressed) < MAX_KEPT:
                self._compressed[made.body] = compressed
        vary = ", ".join(filter(None, (made.headers.get("Vary", ""), "Accept-Encoding")))
        return replace(made, body=compressed, headers={**made.headers, "Content-Encoding": "gzip", "Vary": vary})

    def _build(self, request: DocumentRequest) -> HttpDocument | None:
        match request.path.strip("/").split("/"):
            case ["version"]:
                return HttpDocument(orjson.dumps(groups.VERSION, option=orjson.OPT_INDENT_2))
            case ["openapi", "v2"]:
                wanted = clauses(request.accept or "*/*")
                for clause in wanted:
                    if clause.matches(JSON):
                        return _tagged(self._openapi.two(), JSON)
                    if clause.matches(OPENAPI_2) or clause.matches(_OPENAPI_2_OLD):
                        return _tagged(self._openapi.two_binary(), OPENAPI_2)
                return _NOT_ACCEPTABLE
            case ["openapi", "v3"]:
                index = self._openapi.index()
                return HttpDocument(index.body, headers={"ETag": f'"{index.tag}"'})
            case ["openapi", "v3", *rest]:
                return self._openapi_3("/".join(rest), request)
            case ["api"] | ["apis"] | ["api", _] | ["apis", _] | ["apis", _, _]:
                return self._discovery(request)
            case [""]:
                return HttpDocument(orjson.dumps({"paths": self._paths()}, option=orjson.OPT_INDENT_2))
        return None

    def _paths(self) -> list[str]:
        paths = ["/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/openapi/v3/", "/readyz"]
        for group, versions in groups.served_groups(self._registry).items():
            base = f"/apis/{group}" if group else "/api"
            paths += [base, *(f"{base}/{version}" for version in versions)]
        return sorted({*paths, "/version"})

    # --- OpenAPI ---

    def _openapi_3(self, path: str, request: DocumentRequest) -> HttpDocument | None:
        text = self._openapi.three(path)
        if text is None:
            return None
        if not any(clause.matches(JSON) for clause in clauses(request.accept or "*/*")):
            return _NOT_ACCEPTABLE
        made = _tagged(text, JSON)
        if not request.hash:
            return made
        if request.hash != text.tag:
            return HttpDocument(status=301, headers={**made.headers, "Location": url(path, text.tag)})
        expires = format_datetime(self._now() + timedelta(days=365), usegmt=True)
        return replace(made, headers={**made.headers, "Cache-Control": "public, immutable", "Expires": expires})

    # --- discovery ---

    def _discovery(self, request: DocumentRequest) -> HttpDocument | None:
        steps = request.path.strip("/").split("/")
        media, version = discovery_form(request.accept)
        aggregated = bool(version) and len(steps) == 1
        core = request.path == "/api" and not aggregated
        key = (request.path, version if aggregated else "")
        text = self._kept.get(key)
        if text is None:
            made = self._listed(steps, key[1], request.host)
            if made is None:
                return None
            body = shrink_to_fit(orjson.dumps(made))
            text = Text(body, sha512(body).hexdigest().upper())
            if not core and len(self._kept) < MAX_KEPT:
                self._kept[key] = text
        body = dump_yaml(text.body) if media == YAML else text.body
        if not aggregated:
            return HttpDocument(body, media, headers={"Cache-Control": "no-cache, private"})
        media = f"{media};g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
        return HttpDocument(body, media, headers={"ETag": f'"{text.tag}"', "Vary": "Accept", "Cache-Control": "public"})

    def _listed(self, steps: list[str], version: str, host: str) -> Raw | None:
        if version:
            return groups.aggregated(self._registry, core=steps == ["api"], version=version)
        found = groups.served_groups(self._registry)
        match steps:
            case ["api"]:
                return groups.core_versions(host)
            case ["apis"]:
                return groups.groups(self._registry)
            case ["apis", group] if group and group in found:
                return groups.group(group, list(found[group]))
            case ["api", version] if version in found.get("", {}):
                return groups.resource_list(version, found[""][version])
            case ["apis", group, version] if group and version in found.get(group, {}):
                return groups.resource_list(f"{group}/{version}", found[group][version])
        return None


def _tagged(text: Text, media: str) -> HttpDocument:
    return HttpDocument(text.body, media, headers={"ETag": f'"{text.tag}"', "Vary": "Accept"})

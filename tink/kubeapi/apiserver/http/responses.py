"""Forms and headers of responses: Status bodies, tables and partial metadata, media types, warnings, caching."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import orjson
from aiohttp import web

from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.media import JSON, PROTOBUF, YAML, Accepted, Form, negotiate
from tink.kubeapi.apiserver.resources.registry import Resource
from tink.kubeapi.apiserver.serializer import dump_protobuf, dump_yaml, message_of
from tink.kubeapi.apiserver.tables import partial, row, table
from tink.kubeapi.schema.field_errors import quote
from tink.printable import printable

MAX_TOTAL = 4 * 1024
MAX_EACH = 256
"""If all warnings together exceed MAX_TOTAL characters, each is cut to MAX_EACH."""


def limited_warnings(warnings: Iterable[str]) -> list[str]:
    """Return the warnings for the client, in their order. Each text occurs once, and texts that no header can hold are
    dropped (k8s.io/apiserver, pkg/endpoints/filters/warning.go)."""
    unique: dict[str, None] = {}
    written, cutting = 0, False
    for text in warnings:
        if cutting and written >= MAX_TOTAL:
            break
        if not text or text in unique:
            continue
        unique[text] = None
        if not _fits_header(text):
            continue
        size = min(len(text), MAX_EACH) if cutting else len(text)
        if not cutting and written + size > MAX_TOTAL:
            cutting = True
            written = sum(min(len(other), MAX_EACH) for other in unique if _fits_header(other))
        else:
            written += size
    return [text[:MAX_EACH] if cutting else text for text in unique if _fits_header(text)]


def _fits_header(text: str) -> bool:
    """Return True if a header can hold the text: no control characters and no surrogates."""
    return not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)


DEPRECATED = web.RequestKey("deprecated", str)
"""The warning about the version that a request uses, if the version is deprecated."""

_FOR_BROWSERS = (
    "<!doctype html><title>tinkedge</title><p>This is a Kubernetes API, for kubectl and other programs with a token."
    "<p>'kubectl --kubeconfig DATA_DIR/kubeconfig get hardware' asks it on its own host; 'tinkedge kubeconfig' makes "
    "a kubeconfig for a user. 'tinkedge page' prints a link to the page for people.\n"
)
_SANDBOX = {"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff"}


def error_response(error: StatusError) -> web.Response:
    """Return the response to a refused request: a Status."""
    headers = {"Retry-After": "1"} if error.code in (429, 504) else {}
    response = web.Response(status=error.code, body=orjson.dumps(error.body()), content_type=JSON, headers=headers)
    for text in limited_warnings(error.warnings or ()):
        response.headers.add("Warning", warning(text))
    return response


def unauthorized_response(request: web.Request, error: StatusError) -> web.Response:
    """Return the response to an unauthenticated request: a page for a browser, a Status for any other client. A browser
    is recognised by its Accept header; Kubernetes clients do not ask for HTML."""
    if "text/html" not in request.headers.get("Accept", ""):
        return error_response(error)
    return web.Response(status=error.code, text=_FOR_BROWSERS, content_type="text/html", headers=_SANDBOX)


def render(body: bytes, accepted: Accepted) -> bytes:
    """Return an answer (JSON) in the media type that the client accepts."""
    if accepted.media == YAML:
        return dump_yaml(body)
    if accepted.media == PROTOBUF:
        return dump_protobuf(orjson.loads(body))
    return orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2) + b"\n" if accepted.pretty else body


def body_response(body: bytes, accepted: Accepted, status: int = 200) -> web.Response:
    """Return the response with a body (JSON) in the media type that the client accepts."""
    return web.Response(status=status, body=render(body, accepted), content_type=accepted.media)


def warning(text: str) -> str:
    """Return the value of a Warning header (RFC 7234 section 5.5, code 299), which kubectl prints."""
    return '299 - "' + printable(text, " ").replace("\\", "\\\\").replace('"', '\\"') + '"'


async def finish_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Forbid caching unless the answer allows it, and warn about a deprecated version. Sources: k8s.io/apiserver,
    filters: WithCacheControl; apiextensions-apiserver, customresource_handler."""
    headers = response.headers
    headers.setdefault("Cache-Control", "no-cache, private")
    if text := request.get(DEPRECATED):
        others = headers.popall("Warning", [])
        for line in (warning(text), *others):
            headers.add("Warning", line)


def for_log(error: StatusError) -> str:
    """Return what was wrong, without the refused values: they may be secret or long."""
    causes = (error.details or {}).get("causes") or []
    fields = [cause["field"] for cause in causes if cause.get("field")]
    return f"{error.reason}: {', '.join(fields)[:500]}" if fields else error.message[:500]


def accepted_form(request: web.Request, resource: Resource, *, many: bool = False, watch: bool = False) -> Accepted:
    """Choose the media type and form of a response. Raises StatusError (406, 400)."""
    header = ",".join(request.headers.getall("Accept", ()))
    written = message_of(resource.api_version, resource.kind) is not None
    accepted = negotiate(header, protobuf=written, many=many, watch=watch)
    if accepted.form is Form.TABLE:
        include_object(request)  # Checked before the write whose result the table would show.
    return accepted


def include_object(request: web.Request) -> str:
    """Return which part of its object a table row includes: the query's `includeObject`. Raises StatusError (400)."""
    include = request.query.get("includeObject") or "Metadata"
    if include not in ("None", "Metadata", "Object"):
        why = "must be 'Metadata', 'Object', 'None', or empty"
        raise errors.bad_request(
            f"Unable to convert to Table as requested: includeObject: Invalid value: {quote(include)}: {why}"
        )
    return include


def in_meta_version(made: dict[str, Any], accepted: Accepted) -> dict[str, Any]:
    """Return a table or partial metadata in the version of meta.k8s.io that the client asked for."""
    version = made["apiVersion"] = f"meta.k8s.io/{accepted.version}"
    for one in made.get("rows", ()) if accepted.version != "v1" else ():
        if (one["object"] or {}).get("kind") == "PartialObjectMetadata":
            one["object"]["apiVersion"] = version
    return made


def as_form(request: web.Request, resource: Resource, obj: Any, accepted: Accepted, now: datetime) -> dict[str, Any]:
    """Return one object as a table or as partial metadata. Raises StatusError (400)."""
    if accepted.form is Form.PARTIAL:
        return in_meta_version(partial(obj), accepted)
    rows = [row(obj, resource.columns, now, include_object(request))]
    metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
    return in_meta_version(table(resource.columns, rows, metadata), accepted)

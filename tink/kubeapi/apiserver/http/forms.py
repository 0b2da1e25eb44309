"""The form of objects in a response: as they are, as a Table, or as partial metadata (Accept header, `negotiation`)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from aiohttp import web

from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.requests import Accepted, Form, negotiate
from tink.kubeapi.apiserver.resources import Resource
from tink.kubeapi.apiserver.serializer import message_of
from tink.kubeapi.apiserver.tables import partial, row, table
from tink.kubeapi.schema import quote


def accepted_form(request: web.Request, resource: Resource, *, many: bool = False, watch: bool = False) -> Accepted:
    """Choose the media type and form of a response. Raises StatusError (406, 400)."""
    header = ",".join(request.headers.getall("Accept", ()))
    written = message_of(resource.api_version, resource.kind) is not None
    accepted = negotiate(header, protobuf=written, many=many, watch=watch)
    if accepted.form is Form.TABLE:
        included(request)  # Checked before the write whose result the table would show.
    return accepted


def included(request: web.Request) -> str:
    """Read what a row of a table is to hold of its object. Raises StatusError (400)."""
    include = request.query.get("includeObject") or "Metadata"
    if include not in ("None", "Metadata", "Object"):
        why = "must be 'Metadata', 'Object', 'None', or empty"
        raise errors.bad_request(
            f"Unable to convert to Table as requested: includeObject: Invalid value: {quote(include)}: {why}"
        )
    return include


def in_meta_version(made: dict[str, Any], accepted: Accepted) -> dict[str, Any]:
    """Give a table or metadata in the version of meta.k8s.io that the client asked for."""
    version = made["apiVersion"] = f"meta.k8s.io/{accepted.version}"
    for one in made.get("rows", ()) if accepted.version != "v1" else ():
        if (one["object"] or {}).get("kind") == "PartialObjectMetadata":
            one["object"]["apiVersion"] = version
    return made


def formed(request: web.Request, resource: Resource, obj: Any, accepted: Accepted, now: datetime) -> dict[str, Any]:
    """Give one object as a table or as partial metadata. Raises StatusError (400)."""
    if accepted.form is Form.PARTIAL:
        return in_meta_version(partial(obj), accepted)
    rows = [row(obj, resource.columns, now, included(request))]
    metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
    return in_meta_version(table(resource.columns, rows, metadata), accepted)

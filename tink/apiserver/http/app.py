"""The HTTP shell: from a request to a verb, from its result or refusal to an answer.

Everything that Kubernetes decides by headers is here: authentication, the form of the answer (object, list, table,
partial metadata), warnings, Status bodies. Handlers hold no state; a watch is a response that goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import orjson
from aiohttp import web

from tink.apiserver import errors
from tink.apiserver.admission.warnings import limited
from tink.apiserver.discovery.documents import Asked, Documents
from tink.apiserver.errors import StatusError
from tink.apiserver.http.accept import YAML, Accepted, Form, accept
from tink.apiserver.http.answers import DEPRECATED, finish_headers, for_log, refusal, warning
from tink.apiserver.http.options import DeleteOptions, ListOptions, OptionsKind, WriteOptions, parse_version
from tink.apiserver.http.protobuf import message_of
from tink.apiserver.http.refusals import Refusals
from tink.apiserver.http.render import rendered, yaml_item, yaml_list
from tink.apiserver.http.request import APPLY_PATCH, MAX_BODY, Body, Target, decode, decode_patch, parse_path
from tink.apiserver.read.lists import Change, Listing, Lists, select
from tink.apiserver.read.table import partial, row, table
from tink.apiserver.resources.registry import Registry, Resource
from tink.apiserver.store.storage import StorageError, Store
from tink.apiserver.write.reviews import Reviewer, find_review
from tink.apiserver.write.scale import Scales
from tink.apiserver.write.strategy import Result
from tink.apiserver.write.verbs import Verbs
from tink.offload import offload, weight
from tink.schema.field_errors import quote

log = logging.getLogger(__name__)

JSON = "application/json"
BODY_S = 60.0
"""How long a body may take to arrive, in seconds (Kubernetes: --request-timeout)."""
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_QUIET = (404, 409, 410)
"""Answers that belong to normal work: not worth a line in the log."""


class Api:
    """The handlers, over the parts that do the work."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        verbs: Verbs,
        lists: Lists,
        token: str,
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._registry = registry
        self._verbs = verbs
        self._scales = Scales(verbs)
        self._lists = lists
        self._documents = Documents(registry, now)
        self._reviewer = Reviewer(token.encode(), now)
        self._token = token.encode()
        self._now = now
        self.refusals = Refusals(log)

    def application(self) -> web.Application:
        """Give the aiohttp application."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.on_response_prepare.append(finish_headers)
        return app

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except StatusError as error:
            if error.code not in _QUIET:
                self.refusals.tell(request.method, request.path, f"{error.code} {for_log(error)}")
            return refusal(error)
        except web.HTTPRequestEntityTooLarge:
            self.refusals.tell(request.method, request.path, f"the body is larger than {MAX_BODY} bytes")
            return refusal(errors.too_large_body(MAX_BODY))
        except StorageError as error:
            return refusal(errors.internal(str(error)))
        except (web.HTTPException, ConnectionError):
            raise
        except Exception:
            log.exception("%s %s: a fault of this server", request.method, request.path)
            return refusal(errors.internal("see the log of the API server"))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path.rstrip("/")
        if path in ("/healthz", "/livez", "/readyz"):
            await self._store.current()  # says whether the thread of the store still answers
            return web.Response(text="ok")
        self._authenticate(request)
        document = self._document(request, path)
        if document is not None:
            if request.method != "GET":
                raise errors.method_not_allowed()
            return document
        resource, target = self._route(request, path)
        if resource.warning:
            request[DEPRECATED] = resource.warning
        if resource.virtual:
            return await self._review(request, resource, target)
        if target.name:
            return await self._single(request, resource, target)
        return await self._collection(request, resource, target)

    def _route(self, request: web.Request, path: str) -> tuple[Resource, Target]:
        """Find what a path means. Raises StatusError: 404 in the manner of who would serve it in Kubernetes; 400."""
        if "%" in request.raw_path and _BAD_ESCAPE.search(request.raw_path):
            raise errors.bad_request("400 Bad Request")
        target = parse_path(path)
        resource = None
        if target is not None:
            resource = self._registry.find(target.group, target.version, target.plural)
            if resource is None:
                resource = find_review(target.group, target.version, target.plural)
        if (
            target is None
            or resource is None
            or (target.namespace and not resource.namespaced)
            or (target.name and resource.namespaced and not target.namespace)
        ):
            raise self._nowhere(path)
        if target.name in (".", ".."):
            raise errors.bad_request(f"Name parameter invalid: \"{target.name}\": may not be '{target.name}'")
        if (target.subresource and target.subresource not in resource.parts) or target.more:
            if resource.custom:
                raise errors.not_found(resource.group, resource.plural, target.name)
            raise errors.no_such_path()
        return resource, target

    def _nowhere(self, path: str) -> StatusError:
        """Refuse a path that means nothing: built-in groups have a router of their own, with answers of its own."""
        match path.split("/"):
            case ["", "api" | "version", *_]:
                return errors.no_such_path()
            case ["", "apis", group, _, *_] if any(r.group == group and not r.custom for r in self._registry.all()):
                return errors.no_such_path()
        return errors.NoPageError()

    def _authenticate(self, request: web.Request) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        given = token.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given, self._token):
            raise errors.unauthorized()

    # --- documents ---

    def _document(self, request: web.Request, path: str) -> web.Response | None:
        """Answer discovery, OpenAPI and version; None for other paths."""
        if not self._documents.may_know(path):
            return None
        headers = request.headers
        asked = Asked(
            path,
            ",".join(headers.getall("Accept", [])),
            headers.get("If-None-Match", ""),
            headers.get("Accept-Encoding", ""),
            request.host,
            request.query.get("hash", ""),
        )
        made = self._documents.answer(asked)
        if made is None:
            return None
        return web.Response(status=made.status, body=made.body, headers={"Content-Type": made.media, **made.headers})

    # --- objects ---

    async def _review(self, request: web.Request, review: Resource, target: Target) -> web.StreamResponse:
        if target.name or review.namespaced != bool(target.namespace):
            raise errors.no_such_path()
        if request.method != "POST":
            raise errors.method_not_allowed()
        accepted = _accepted(request, review)
        options = _write_options(request, "CreateOptions")
        body = await self._body(request, review, options)
        made, warnings = self._reviewer.answer(
            review, target.namespace, body.value, body.duplicates, options.validation
        )
        return self._result(request, review, Result(orjson.dumps(made), 201, warnings), accepted)

    def _on(self, target: Target) -> Verbs | Scales:
        return self._scales if target.subresource == "scale" else self._verbs

    async def _single(self, request: web.Request, resource: Resource, target: Target) -> web.StreamResponse:
        accepted = _accepted(request, resource)
        match request.method:
            case "GET":
                await self._check_version(request.query.get("resourceVersion", ""))
                result = await self._on(target).get(resource, target)
            case "HEAD" if resource.custom:
                result = await self._verbs.get(resource, target)
            case "PUT":
                options = _write_options(request, "UpdateOptions")
                body = await self._body(request, resource, options)
                result = await self._on(target).update(resource, target, body, options)
            case "PATCH":
                result = await self._patch(request, resource, target)
            case "DELETE" if not target.subresource:
                result = await self._verbs.delete(resource, target, await self._delete_options(request))
            case "POST" if resource.custom and not target.subresource:
                # Kubernetes asks the object for its name, not the path.
                return await self._create(request, resource, target)
            case _:
                raise _not_allowed(request, resource)
        return self._result(request, resource, result, accepted)

    async def _check_version(self, version: str) -> None:
        """Check that the state is as new as a reader wants it. Raises StatusError (400, 504)."""
        wanted = parse_version(version, watch=True)
        if wanted and wanted > (newest := await self._store.current()):
            raise errors.too_large_version(wanted, newest)

    async def _patch(self, request: web.Request, resource: Resource, target: Target) -> Result:
        kind = request.headers.get("Content-Type", "").partition(";")[0]
        self._verbs.check_patch_type(resource, kind)
        options = _write_options(request, "PatchOptions", apply=kind == APPLY_PATCH)
        raw = await _sent(request)
        try:
            patch = await offload(weight(raw), decode_patch, kind, raw, strict=options.validation != "Ignore")
        except StatusError:
            await self._verbs.get(resource, target)  # what does not exist is the more important news
            raise
        return await self._on(target).patch(resource, target, kind, patch, options)

    async def _create(self, request: web.Request, resource: Resource, target: Target) -> web.Response:
        options = _write_options(request, "CreateOptions")
        accepted = _accepted(request, resource)
        body = await self._body(request, resource, options)
        return self._result(request, resource, await self._verbs.create(resource, target, body, options), accepted)

    async def _collection(self, request: web.Request, resource: Resource, target: Target) -> web.StreamResponse:
        writes = request.method in ("POST", "DELETE")
        if writes and resource.namespaced and not target.namespace:
            raise errors.NoPageError() if resource.custom else errors.method_not_allowed()
        match request.method:
            case "GET":
                return await self._read(request, resource, target)
            case "HEAD" if resource.custom:
                return await self._read(request, resource, target)
            case "POST":
                return await self._create(request, resource, target)
            case "DELETE" if "deletecollection" in resource.verbs:
                return await self._delete_collection(request, resource, target)
            case "PUT" | "PATCH" if resource.custom:
                raise errors.bad_request("name must be provided")
        raise _not_allowed(request, resource)

    async def _read(self, request: web.Request, resource: Resource, target: Target) -> web.StreamResponse:
        options = ListOptions.of(request.query)
        select(resource, target, options)  # what is wrong with a watch's selectors is said before it begins
        if request.method == "HEAD":
            return web.Response(content_type=JSON)
        if options.watch:
            return await self._watch(request, resource, target, options)
        return await self._list(request, resource, target, options)

    async def _body(self, request: web.Request, resource: Resource, options: WriteOptions) -> Body:
        raw = await _sent(request)
        return await offload(
            weight(raw),
            decode,
            request.headers.get("Content-Type", ""),
            raw,
            strict=options.validation != "Ignore",
            kind=resource.kind,
            custom=resource.custom,
        )

    async def _delete_options(self, request: web.Request) -> DeleteOptions:
        raw = await _sent(request)
        content = request.headers.get("Content-Type", "")
        body = await offload(weight(raw), decode, content, raw, strict=False) if raw else None
        return DeleteOptions.of(request.query, body.value if body else None)

    async def _delete_collection(self, request: web.Request, resource: Resource, target: Target) -> web.StreamResponse:
        options = ListOptions.of(request.query)
        how = await self._delete_options(request)
        listing = await self._lists.read(resource, target, options)
        gone: list[bytes] = []
        async for part in listing.parts:
            for body in part:
                fields = orjson.loads(body)["metadata"]
                one = Target(
                    resource.group, resource.version, resource.plural, fields.get("namespace", ""), fields["name"]
                )
                try:
                    await self._verbs.delete(resource, one, how, of_many=True)
                except StatusError as error:
                    if error.code != 404:
                        raise
                gone.append(body)
        return web.Response(
            body=_list_head(resource, {"resourceVersion": str(listing.version)}) + b",".join(gone) + b"]}",
            content_type=JSON,
        )

    def _result(self, request: web.Request, resource: Resource, result: Result, accepted: Accepted) -> web.Response:
        body = result.body
        if accepted.form is not Form.OBJECT and b'"kind":"Status"' not in body[:64]:
            obj = orjson.loads(body)
            body = orjson.dumps(self._formed(request, resource, [obj], obj["metadata"], accepted))
        response = _rendered(body, accepted, result.code)
        for text in limited(result.warnings):
            response.headers.add("Warning", warning(text))
        return response

    def _formed(
        self, request: web.Request, resource: Resource, objects: list[Any], of: dict[str, Any], accepted: Accepted
    ) -> dict[str, Any]:
        """Give one object, or a watch's, as a table or as partial metadata."""
        if accepted.form is Form.PARTIAL:
            return _in_meta(partial(objects[0]), accepted)
        include = _included(request)
        rows = [row(obj, resource.columns, self._now(), include) for obj in objects]
        metadata = {"resourceVersion": of.get("resourceVersion", "")}
        return _in_meta(table(resource.columns, rows, metadata), accepted)

    # --- lists and watches ---

    async def _list(
        self, request: web.Request, resource: Resource, target: Target, options: ListOptions
    ) -> web.StreamResponse:
        accepted = _accepted(request, resource, many=True)
        listing = await self._lists.read(resource, target, options)
        metadata = _list_metadata(listing)
        if accepted.form is Form.TABLE:
            include = _included(request)
            now = self._now()
            rows = [row(orjson.loads(body), resource.columns, now, include) async for body in _each(listing.parts)]
            made = _in_meta(table(resource.columns, rows, metadata), accepted)
            return _rendered(orjson.dumps(made), accepted)
        if accepted.form is Form.PARTIAL:
            items = [partial(orjson.loads(body)) async for body in _each(listing.parts)]
            kind = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
            made = _in_meta({**kind, "metadata": metadata, "items": items or None}, accepted)
            return _rendered(orjson.dumps(made), accepted)
        head = _list_head(resource, metadata)
        if accepted.media == YAML:
            return await self._yaml_list(request, head + b"]}", await _begun(listing.parts))
        if accepted != Accepted():
            whole = b",".join([body async for body in _each(listing.parts)])
            made_body = await asyncio.to_thread(rendered, head + whole + b"]}", accepted)
            return web.Response(body=made_body, content_type=accepted.media)
        # A list may be larger than memory should hold twice: it goes out part by part, as it is read.
        parts = await _begun(listing.parts)
        response = web.StreamResponse(headers={"Content-Type": JSON})
        await response.prepare(request)
        await response.write(head)
        comma = b""
        async for part in parts:
            if part:
                await response.write(comma + b",".join(part))
                comma = b","
        await response.write(b"]}")
        await response.write_eof()
        return response

    async def _yaml_list(
        self, request: web.Request, head: bytes, parts: AsyncIterator[list[bytes]]
    ) -> web.StreamResponse:
        """Write a list as YAML item by item: that takes a hundred times as long as JSON, and others must get a turn."""
        response = web.StreamResponse(headers={"Content-Type": YAML})
        await response.prepare(request)
        before, after = yaml_list(head)
        await response.write(before)
        first = True
        async for body in _each(parts):
            await response.write(yaml_item(body, first=first))
            await asyncio.sleep(0)
            first = False
        await response.write((b" []\n" if first else b"") + after)
        await response.write_eof()
        return response

    async def _watch(
        self, request: web.Request, resource: Resource, target: Target, options: ListOptions
    ) -> web.StreamResponse:
        accepted = _accepted(request, resource, watch=True)
        response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"})
        watch = self._lists.watch(resource, target, options)
        with contextlib.suppress(ConnectionError):  # whoever watched has gone: that is how most watches end
            try:
                await response.prepare(request)
                async for changes in watch:
                    await response.write(
                        b"".join([self._line(request, resource, change, accepted) for change in changes])
                    )
            except StatusError as error:
                # Kubernetes reports what is wrong with a watch inside of it, once the request itself was right.
                await response.write(orjson.dumps({"type": "ERROR", "object": error.body()}) + b"\n")
            finally:
                await watch.aclose()
            await response.write_eof()
        return response

    def _line(self, request: web.Request, resource: Resource, change: Change, accepted: Accepted) -> bytes:
        body = change.body
        if accepted.form is not Form.OBJECT:
            obj = orjson.loads(body)
            if change.type == "BOOKMARK" and accepted.form is Form.TABLE:
                # The row has no name to show; its metadata may say that the initial events are over.
                cells = ["", *[None] * (len(resource.columns) - 1)]
                rows = [{"cells": cells, "object": partial(obj)}]
                made = _in_meta(table((), rows, {"resourceVersion": obj["metadata"]["resourceVersion"]}), accepted)
            else:
                made = self._formed(request, resource, [obj], obj["metadata"], accepted)
            body = orjson.dumps(made)
        return b'{"type":"' + change.type.encode() + b'","object":' + body + b"}\n"


async def _begun(parts: AsyncIterator[list[bytes]]) -> AsyncIterator[list[bytes]]:
    """Read the first part of a list: objects that can't be converted are refused before an answer begins.

    Afterwards there is no other way to tell than to break off.
    """
    first = await anext(parts, None)

    async def rest() -> AsyncIterator[list[bytes]]:
        if first is not None:
            yield first
        try:
            async for part in parts:
                yield part
        except StatusError as error:
            raise ConnectionAbortedError(str(error)) from error

    return rest()


async def _sent(request: web.Request) -> bytes:
    """Read a body. Raises StatusError (408) when it does not come."""
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError as error:
        raise StatusError(408, "Timeout", f"the body did not arrive within {BODY_S:.0f} s") from error


def _write_options(request: web.Request, kind: OptionsKind, *, apply: bool = False) -> WriteOptions:
    return WriteOptions.of(request.query, kind, request.headers.get("User-Agent", ""), apply=apply)


def _accepted(request: web.Request, resource: Resource, *, many: bool = False, watch: bool = False) -> Accepted:
    header = ",".join(request.headers.getall("Accept", ()))
    written = message_of(resource.api_version, resource.kind) is not None
    return accept(header, builtin=not resource.stored_version, protobuf=written, many=many, watch=watch)


def _included(request: web.Request) -> str:
    """Read what a row of a table is to hold of its object. Raises StatusError (400)."""
    include = request.query.get("includeObject") or "Metadata"
    if include not in ("None", "Metadata", "Object"):
        why = "must be 'Metadata', 'Object', 'None', or empty"
        raise errors.bad_request(
            f"Unable to convert to Table as requested: includeObject: Invalid value: {quote(include)}: {why}"
        )
    return include


def _in_meta(made: dict[str, Any], accepted: Accepted) -> dict[str, Any]:
    """Give a table or metadata in the version of meta.k8s.io that the client asked for."""
    version = made["apiVersion"] = f"meta.k8s.io/{accepted.version}"
    for one in made.get("rows", ()) if accepted.version != "v1" else ():
        if (one["object"] or {}).get("kind") == "PartialObjectMetadata":
            one["object"]["apiVersion"] = version
    return made


def _rendered(body: bytes, accepted: Accepted, status: int = 200) -> web.Response:
    return web.Response(status=status, body=rendered(body, accepted), content_type=accepted.media)


async def _each(parts: AsyncIterator[list[bytes]]) -> AsyncIterator[bytes]:
    async for part in parts:
        for body in part:
            yield body


def _list_metadata(listing: Listing) -> dict[str, Any]:
    metadata = {
        "resourceVersion": str(listing.version),
        "continue": listing.continues,
        "remainingItemCount": listing.remaining,
    }
    return {key: value for key, value in metadata.items() if value}


def _list_head(resource: Resource, metadata: dict[str, Any]) -> bytes:
    if resource.custom:
        metadata = {"continue": "", **metadata}
    head = {"apiVersion": resource.api_version, "kind": resource.list_kind, "metadata": metadata, "items": []}
    return orjson.dumps(head)[:-2]


def _not_allowed(request: web.Request, resource: Resource) -> StatusError:
    if not resource.custom:
        return errors.method_not_allowed()
    verb = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    return errors.not_supported(resource.group, resource.plural, verb.get(request.method, ""))

"""The HTTP shell: from a request to a verb, from its result or refusal to an answer.

Everything that Kubernetes decides by headers is here: authentication, the form of the answer (object, list, table,
partial metadata), warnings, Status bodies. Handlers hold no state; a watch is a response that goes on.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import orjson
from aiohttp import web

from tink.apiserver import discovery, errors
from tink.apiserver.accept import Form, negotiate, wants_aggregated
from tink.apiserver.errors import StatusError
from tink.apiserver.lists import Change, Lists
from tink.apiserver.openapi import OpenAPI
from tink.apiserver.options import DeleteOptions, ListOptions, OptionsKind, WriteOptions
from tink.apiserver.registry import Registry, Resource
from tink.apiserver.request import (
    APPLY_PATCH,
    MAX_BODY,
    YAML,
    Body,
    Target,
    decode,
    decode_json,
    media_type,
    parse_path,
)
from tink.apiserver.storage import StorageError, Store
from tink.apiserver.table import partial, row, table
from tink.apiserver.verbs import Result, Verbs

log = logging.getLogger(__name__)

JSON = "application/json"
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
        self._lists = lists
        self._openapi = OpenAPI(registry)
        self._token = token.encode()
        self._now = now

    def application(self) -> web.Application:
        """Give the aiohttp application."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except StatusError as error:
            if error.code not in _QUIET:
                log.info("%s %s: %d %s", request.method, request.path, error.code, _for_log(error))
            return _refusal(error)
        except web.HTTPRequestEntityTooLarge:
            log.info("%s %s: the body is larger than %d bytes", request.method, request.path, MAX_BODY)
            return _refusal(errors.too_large_body(MAX_BODY))
        except StorageError as error:
            return _refusal(errors.internal(str(error)))
        except (web.HTTPException, ConnectionError):
            raise
        except Exception:
            log.exception("%s %s: a fault of this server", request.method, request.path)
            return _refusal(errors.internal("see the log of the API server"))

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
        target = parse_path(path)
        if target is None:
            raise errors.no_such_path()
        resource = self._registry.find(target.group, target.version, target.plural)
        if resource is None or (target.namespace and not resource.namespaced):
            raise errors.no_such_path()
        if target.subresource and not (target.subresource == "status" and resource.status):
            raise errors.no_such_path()
        if target.name:
            if resource.namespaced and not target.namespace:
                raise errors.no_such_path()
            return await self._single(request, resource, target)
        return await self._collection(request, resource, target)

    def _authenticate(self, request: web.Request) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        given = token.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given, self._token):
            raise errors.unauthorized()

    # --- documents ---

    def _document(self, request: web.Request, path: str) -> web.Response | None:
        """Answer discovery, OpenAPI and version; None for other paths."""
        accept = request.headers.get("Accept", "")
        registry = self._registry
        match path.strip("/").split("/"):
            case ["version"]:
                return _json(discovery.VERSION)
            case ["api"] | ["apis"] if wants_aggregated(accept):
                listed = discovery.aggregated(registry, core=path == "/api")
                return web.Response(body=orjson.dumps(listed), headers={"Content-Type": discovery.AGGREGATED})
            case ["api"]:
                return _json(discovery.core_versions())
            case ["apis"]:
                return _json(discovery.groups(registry))
            case ["apis", group] if group in (found := registry.groups()):
                return _json(discovery.group(group, list(found[group])))
            case ["api", version] if version in (found := registry.groups())[""]:
                return _json(discovery.resource_list(version, found[""][version]))
            case ["apis", group, version] if version in (found := registry.groups()).get(group, {}):
                return _json(discovery.resource_list(f"{group}/{version}", found[group][version]))
            case ["openapi", "v3"]:
                return _json(self._openapi.index())
            case ["openapi", "v3", *rest] if (text := self._openapi.text("/".join(rest))) is not None:
                return web.Response(body=text, content_type=JSON)
            case [""]:
                paths = ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]
                return _json({"paths": paths})
        return None

    # --- objects ---

    async def _single(self, request: web.Request, resource: Resource, target: Target) -> web.StreamResponse:
        form = negotiate(request.headers.get("Accept", ""))
        match request.method:
            case "GET":
                result = await self._verbs.get(resource, target)
            case "PUT":
                options = _write_options(request, "UpdateOptions")
                body = await self._body(request, options)
                result = await self._verbs.update(resource, target, body, options)
            case "PATCH":
                kind = media_type(request.headers.get("Content-Type", ""))
                options = _write_options(request, "PatchOptions", apply=kind == APPLY_PATCH)
                strict = options.validation != "Ignore"
                raw = await request.read()
                patch = decode(YAML, raw, strict=strict) if kind == APPLY_PATCH else decode_json(raw, strict=strict)
                result = await self._verbs.patch(resource, target, kind, patch, options)
            case "DELETE" if not target.subresource:
                result = await self._verbs.delete(resource, target, await self._delete_options(request))
            case _:
                raise errors.method_not_allowed()
        return self._result(request, resource, result, form)

    async def _collection(self, request: web.Request, resource: Resource, target: Target) -> web.StreamResponse:
        form = negotiate(request.headers.get("Accept", ""))
        match request.method:
            case "GET":
                options = ListOptions.of(request.query)
                if options.watch:
                    return await self._watch(request, resource, target, options, form)
                return await self._list(request, resource, target, options, form)
            case "POST":
                if resource.namespaced and not target.namespace:
                    raise errors.method_not_allowed()
                write = _write_options(request, "CreateOptions")
                body = await self._body(request, write)
                return self._result(request, resource, await self._verbs.create(resource, target, body, write), form)
            case "DELETE":
                if resource.namespaced and not target.namespace:
                    raise errors.method_not_allowed()
                return await self._delete_collection(request, resource, target)
        raise errors.method_not_allowed()

    async def _body(self, request: web.Request, options: WriteOptions) -> Body:
        raw = await request.read()
        return decode(request.headers.get("Content-Type", ""), raw, strict=options.validation != "Ignore")

    async def _delete_options(self, request: web.Request) -> DeleteOptions:
        raw = await request.read()
        body = decode(request.headers.get("Content-Type", ""), raw, strict=False).value if raw else None
        return DeleteOptions.of(request.query, body)

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
                    await self._verbs.delete(resource, one, how)
                except StatusError as error:
                    if error.code != 404:
                        raise
                gone.append(body)
        return web.Response(body=_list_head(resource, listing.version, "") + b",".join(gone) + b"]}", content_type=JSON)

    def _result(self, request: web.Request, resource: Resource, result: Result, form: Form) -> web.Response:
        body = result.body
        if form is not Form.OBJECT and b'"kind":"Status"' not in body[:64]:
            obj = orjson.loads(body)
            body = orjson.dumps(self._formed(request, resource, [obj], obj["metadata"], form))
        response = web.Response(status=result.code, body=body, content_type=JSON)
        for warning in result.warnings:
            response.headers.add("Warning", _warning(warning))
        return response

    def _formed(
        self, request: web.Request, resource: Resource, objects: list[Any], of: dict[str, Any], form: Form
    ) -> dict[str, Any]:
        """Give one object, or a watch's, as a table or as partial metadata."""
        if form is Form.PARTIAL:
            return partial(objects[0])
        include = request.query.get("includeObject", "Metadata")
        rows = [row(obj, resource.columns, self._now(), include) for obj in objects]
        metadata = {"resourceVersion": of.get("resourceVersion", "")}
        return table(resource.columns, rows, metadata)

    # --- lists and watches ---

    async def _list(
        self, request: web.Request, resource: Resource, target: Target, options: ListOptions, form: Form
    ) -> web.StreamResponse:
        listing = await self._lists.read(resource, target, options)
        if form is Form.TABLE:
            include = request.query.get("includeObject", "Metadata")
            now = self._now()
            rows = [row(orjson.loads(body), resource.columns, now, include) async for body in _each(listing.parts)]
            metadata = {"resourceVersion": str(listing.version), "continue": listing.continues}
            return _json(table(resource.columns, rows, {key: value for key, value in metadata.items() if value}))
        if form is Form.PARTIAL:
            items = [partial(orjson.loads(body)) async for body in _each(listing.parts)]
            metadata = {"resourceVersion": str(listing.version), "continue": listing.continues}
            kind = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
            return _json({**kind, "metadata": metadata, "items": items})
        # A list may be larger than memory should hold twice: it goes out part by part, as it is read.
        response = web.StreamResponse(headers={"Content-Type": JSON})
        await response.prepare(request)
        await response.write(_list_head(resource, listing.version, listing.continues))
        comma = b""
        async for part in listing.parts:
            if part:
                await response.write(comma + b",".join(part))
                comma = b","
        await response.write(b"]}")
        await response.write_eof()
        return response

    async def _watch(
        self, request: web.Request, resource: Resource, target: Target, options: ListOptions, form: Form
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"})
        watch = self._lists.watch(resource, target, options)
        with contextlib.suppress(ConnectionError):  # whoever watched has gone: that is how most watches end
            try:
                await response.prepare(request)
                async for changes in watch:
                    await response.write(b"".join([self._line(request, resource, change, form) for change in changes]))
            except StatusError as error:
                # Kubernetes reports what is wrong with a watch inside of it, once the request itself was right.
                await response.write(orjson.dumps({"type": "ERROR", "object": error.body()}) + b"\n")
            finally:
                await watch.aclose()
            await response.write_eof()
        return response

    def _line(self, request: web.Request, resource: Resource, change: Change, form: Form) -> bytes:
        body = change.body
        if form is not Form.OBJECT:
            obj = orjson.loads(body)
            shown = [] if change.type == "BOOKMARK" and form is Form.TABLE else [obj]
            body = orjson.dumps(self._formed(request, resource, shown, obj["metadata"], form))
        return b'{"type":"' + change.type.encode() + b'","object":' + body + b"}\n"


def _write_options(request: web.Request, kind: OptionsKind, *, apply: bool = False) -> WriteOptions:
    return WriteOptions.of(request.query, kind, request.headers.get("User-Agent", ""), apply=apply)


async def _each(parts: AsyncIterator[list[bytes]]) -> AsyncIterator[bytes]:
    async for part in parts:
        for body in part:
            yield body


def _list_head(resource: Resource, version: int, continues: str) -> bytes:
    metadata = {"resourceVersion": str(version), **({"continue": continues} if continues else {})}
    head = {"apiVersion": resource.api_version, "kind": resource.list_kind, "metadata": metadata, "items": []}
    return orjson.dumps(head)[:-2]


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type=JSON)


def _warning(text: str) -> str:
    """Write a warning header (RFC 7234 section 5.5, code 299), which kubectl prints."""
    printable = "".join(char if char.isprintable() else " " for char in text[:500])
    return '299 - "' + printable.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _for_log(error: StatusError) -> str:
    """Say what was wrong without the values that were refused: they may be secret, and may be long."""
    causes = (error.details or {}).get("causes") or []
    fields = [cause["field"] for cause in causes if cause.get("field")]
    return f"{error.reason}: {', '.join(fields)[:500]}" if fields else error.message[:500]


def _refusal(error: StatusError) -> web.Response:
    headers = {"Retry-After": "1"} if error.code in (429, 504) else {}
    return web.Response(status=error.code, body=orjson.dumps(error.body()), content_type=JSON, headers=headers)

"""The HTTP handlers: from a request to a verb, and from its result or refusal to an answer.

Everything that Kubernetes decides by headers is here: the caller and the caller's rights, the form of the
answer (object, list, table, partial metadata), warnings, Status bodies. Handlers hold no state.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from aiohttp import web

from tink.kubeapi.apiserver import errors, media
from tink.kubeapi.apiserver.access import (
    ADMIN,
    Authenticator,
    Caller,
    PathAction,
    ResourceAction,
    allowed,
    forbidden,
    impersonate,
)
from tink.kubeapi.apiserver.core import Core
from tink.kubeapi.apiserver.discovery.documents import DocumentRequest, Documents
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.http import responses
from tink.kubeapi.apiserver.http.audit import Audit, RequestOrigin
from tink.kubeapi.apiserver.http.monitoring import MetricLabels, RequestCounts, RequestLog, metric_labels
from tink.kubeapi.apiserver.options import (
    DeleteOptions,
    ListOptions,
    OptionsKind,
    Target,
    WriteOptions,
    parse_bool,
    parse_path,
    parse_version,
)
from tink.kubeapi.apiserver.resources import definitions
from tink.kubeapi.apiserver.resources.registry import Resource
from tink.kubeapi.apiserver.store.objects import StorageError
from tink.kubeapi.apiserver.write.pipeline import ORIGIN, VerbResult
from tink.kubeapi.apiserver.write.reviews import Reviewer, find_review
from tink.kubeapi.apiserver.write.scale import SCALE, Scales
from tink.kubeapi.apiserver.write.verbs import Verbs
from tink.offload import flow, offload, weight

log = logging.getLogger(__name__)

BODY_SECONDS = 60.0  # Time limit for a body to arrive, in seconds (Kubernetes: --request-timeout)
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_CALLER = web.RequestKey("caller", Caller)
"""The caller of the request, once it is authenticated."""
_LABELS = web.RequestKey("labels", tuple)
"""The metric labels of the request, once its resource is known."""
_ORIGIN = web.RequestKey("origin", RequestOrigin)
"""The caller and the action of the request, which are logged with each of its writes."""
_QUIET = (404, 409, 410)  # Status codes of normal work, which are not logged


# --- callers: before anything but the head of a request is read -------------------------------------------------------

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get", "HEAD": "get"}


def _authenticate(request: web.Request, authenticator: Authenticator) -> Caller:
    """Return the caller whose token the request has. Raises StatusError (401)."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    token = (
        text.strip().encode("utf-8", "surrogateescape") if scheme.lower() == "bearer" else responses.token_of(request)
    )
    if token is None:
        raise errors.unauthorized()
    return authenticator.caller(token)


def requested_action(
    method: str, path: str, target: Target | None, query: Mapping[str, str]
) -> ResourceAction | PathAction:
    """Return the action of a request in Kubernetes' terms (k8s.io/apiserver, pkg/endpoints/request/requestinfo.go)."""
    if target is None:
        return PathAction(method.lower(), path or "/")
    verb = _VERBS.get(method, "")
    if not target.name and verb == "get":
        verb = "watch" if parse_bool(query.get("watch", "")) else "list"
    elif not target.name and verb == "delete":
        verb = "deletecollection"
    namespace = target.namespace
    if not target.group and target.plural == "namespaces":
        namespace = target.name  # a role in a namespace includes reading the namespace itself
    return ResourceAction(verb, target.group, target.plural, target.subresource, namespace, target.name)


class Sessions:
    """The open requests of users. A watch or a long list ends when its user loses the rights."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._open: dict[asyncio.Task[None], Caller] = {}

    def begin(self, caller: Caller) -> None:
        """Register the running task as a request of this caller."""
        task = asyncio.current_task()
        if caller.credential and task is not None:
            self._open[task] = caller

    def end(self) -> None:
        """Remove the running task: its request has been answered."""
        task = asyncio.current_task()
        if task is not None:
            self._open.pop(task, None)

    def recheck(self) -> None:
        """Cancel the requests of users who have lost their rights. The server calls this once a second."""
        self._authenticator.recheck()
        for task, caller in list(self._open.items()):
            if not self._authenticator.holds(caller):
                task.cancel()


# --- handlers ---------------------------------------------------------------------------------------------------------


def may_be_document(path: str) -> bool:
    """Return True if a path may be that of a discovery document. A fast check, before each request of a resource."""
    return path.startswith("/openapi/v3/") or (path.count("/") < 4 and not path.startswith("/api/v1/"))


class Api:
    """The HTTP handlers over the parts of the API."""

    def __init__(self, core: Core, authenticator: Authenticator, clock: Callable[[], float] = time.monotonic) -> None:
        """Make the handlers. `clock` returns monotonic seconds, by which the duration of answers is measured."""
        self.counts = RequestCounts(clock)
        self._core = core
        self._scales = Scales(core.verbs)
        self._list_responses = responses.ListResponses(core.lists, core.now)
        self._documents = Documents(core.registry, core.now)
        self._reviewer = Reviewer(authenticator, core.now)
        self._authenticator = authenticator
        self.audit = Audit()
        self.request_log = RequestLog(log)
        self.sessions = Sessions(authenticator)

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(client_max_size=media.MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.on_response_prepare.append(responses.finish_headers)
        return app

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        counts, status = self.counts, 0
        begun = counts.clock()
        counts.in_flight += 1
        try:
            response = await self._respond(request)
            status = response.status
            return response
        finally:
            about: MetricLabels | None = request.get(_LABELS)
            if about is not None and about[0] == "WATCH":
                counts.watches[about] -= 1
            else:
                counts.in_flight -= 1
            counts.end(request.method, about, status, counts.clock() - begun)

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except StatusError as error:
            self._log_error(request, error)
            return (
                responses.unauthorized_response(request, error)
                if error.code == 401
                else responses.error_response(error)
            )
        except web.HTTPRequestEntityTooLarge:
            self._log_refusal(request, f"the body is larger than {media.MAX_BODY} bytes")
            return responses.error_response(errors.too_large(f"limit is {media.MAX_BODY}"))
        except StorageError as error:
            return responses.error_response(errors.internal(str(error)))
        except (web.HTTPException, ConnectionError):
            raise
        except Exception:
            self.request_log.failed(request.method, request.path)
            return responses.error_response(errors.internal("see the log of the API server"))
        finally:
            self.sessions.end()

    def _log_error(self, request: web.Request, error: StatusError) -> None:
        caller = request.get(_CALLER)
        if error.code == 401:
            self.request_log.unauthorized(request.remote or "?", error.message)
        elif error.code == 403 and caller is not None and caller != ADMIN:
            path = _path(request)
            action = requested_action(request.method, path, parse_path(path), request.query)
            self.audit.refused(caller, request.remote or "?", action, responses.for_log(error))
        elif error.code not in _QUIET:
            self._log_refusal(request, f"{error.code} {responses.for_log(error)}")

    def _log_refusal(self, request: web.Request, what: str) -> None:
        caller = request.get(_CALLER)
        owner = (caller.by or caller.name) if caller is not None else ""
        self.request_log.refused(request.method, request.path, what, owner)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = _path(request)
        if path in ("/healthz", "/livez", "/readyz"):
            await self._core.store.current()  # fails if the thread of the store does not answer
            return web.Response(text="ok")
        caller = _authenticate(request, self._authenticator)
        self.sessions.begin(caller)
        request[_CALLER] = caller
        caller = request[_CALLER] = impersonate(caller, request.headers, self._authenticator.user)
        target = parse_path(path)
        action = requested_action(request.method, path, target, request.query)
        if not allowed(caller, action):
            raise forbidden(caller, action)
        origin = request[_ORIGIN] = RequestOrigin.of(request, caller, action)
        token = ORIGIN.set(origin)
        try:
            response = await self._authorized(request, path, target)
        finally:
            ORIGIN.reset(token)
        self.audit.answered(origin, response)
        return response

    async def _authorized(self, request: web.Request, path: str, target: Target | None) -> web.StreamResponse:
        document = self._document(request, path)
        if document is not None:
            if request.method != "GET":
                raise errors.method_not_allowed()
            return document
        resource, target = self._route(request, target)
        flow.set(target.namespace)
        watch = request.query.get("watch", "") in ("1", "true")
        apply = request.headers.get("Content-Type", "").startswith(media.APPLY_PATCH) and request.method == "PATCH"
        about = request[_LABELS] = metric_labels(request.method, resource, target, watch=watch, apply=apply)
        if about[0] == "WATCH":
            self.counts.watches[about] += 1
            self.counts.in_flight -= 1
        if resource.warning:
            request[responses.DEPRECATED] = resource.warning
        if resource.virtual:
            return await self._review(request, resource, target)
        if target.name:
            return await self._single(request, resource, target)
        return await self._collection(request, resource, target)

    def _route(self, request: web.Request, target: Target | None) -> tuple[Resource, Target]:
        if "%" in request.raw_path and _BAD_ESCAPE.search(request.raw_path):
            raise errors.bad_request("400 Bad Request")
        resource = None
        if target is not None:
            resource = self._core.registry.find(target.group, target.version, target.plural)
            if resource is None:
                resource = find_review(target.group, target.version, target.plural)
        if (
            target is None
            or resource is None
            or (target.namespace and not resource.namespaced)
            or (target.name and resource.namespaced and not target.namespace)
        ):
            raise errors.no_such_path()
        if target.name in (".", ".."):
            raise errors.bad_request(f"Name parameter invalid: \"{target.name}\": may not be '{target.name}'")
        if (target.subresource and target.subresource not in resource.parts) or target.more:
            if resource.custom:
                raise errors.not_found(resource.group, resource.plural, target.name)
            raise errors.no_such_path()
        return resource, target

    # --- documents ---

    def _document(self, request: web.Request, path: str) -> web.Response | None:
        """Answer discovery, OpenAPI and version. Return None for other paths."""
        if not may_be_document(path):
            return None
        headers = request.headers
        wanted = DocumentRequest(
            path,
            ",".join(headers.getall("Accept", [])),
            headers.get("If-None-Match", ""),
            headers.get("Accept-Encoding", ""),
            request.host,
            request.query.get("hash", ""),
        )
        made = self._documents.answer(wanted)
        if made is None:
            return None
        return web.Response(status=made.status, body=made.body, headers={"Content-Type": made.media, **made.headers})

    # --- objects ---

    async def _review(self, request: web.Request, review: Resource, target: Target) -> web.StreamResponse:
        if target.name or review.namespaced != bool(target.namespace):
            raise errors.no_such_path()
        if request.method != "POST":
            raise errors.method_not_allowed()
        accepted = responses.accepted_form(request, review)
        options = _write_options(request, "CreateOptions")
        body = await self._body(request, review, options)
        arguments = (review, target.namespace, body, options.validation, request[_CALLER])
        made, warnings = await offload(body.size, self._reviewer.answer, *arguments)
        return self._result(request, review, VerbResult(orjson.dumps(made), 201, warnings), accepted)

    async def _single(self, request: web.Request, resource: Resource, target: Target) -> web.StreamResponse:
        shown, verbs = (SCALE, self._scales) if target.subresource == "scale" else (resource, self._core.verbs)
        accepted = responses.accepted_form(request, shown)
        match request.method:
            case "GET":
                wanted = parse_version(request.query.get("resourceVersion", ""), watch=True)
                if wanted and wanted > (newest := await self._core.store.current()):
                    raise errors.too_large_version(wanted, newest)
                result = await verbs.get(resource, target)
            case "HEAD" if resource.custom:
                result = await self._core.verbs.get(resource, target)
            case "PUT":
                options = _write_options(request, "UpdateOptions")
                body = await self._body(request, shown, options)
                result = await verbs.update(resource, target, body, options)
            case "PATCH":
                result = await self._patch(request, resource, target, verbs)
            case "DELETE" if not target.subresource:
                result = await self._core.verbs.delete(resource, target, await self._delete_options(request))
            case "POST" if resource.custom and not target.subresource:
                # Kubernetes takes the name from the object, not from the path.
                return await self._create(request, resource, target)
            case _:
                raise errors.method_not_allowed()
        return self._result(request, shown, result, accepted)

    async def _patch(
        self, request: web.Request, resource: Resource, target: Target, verbs: Verbs | Scales
    ) -> VerbResult:
        kind = request.headers.get("Content-Type", "").partition(";")[0]
        self._core.verbs.check_patch_type(resource, kind)
        options = _write_options(request, "PatchOptions", apply=kind == media.APPLY_PATCH)
        raw = await _sent(request)
        try:
            patch = await offload(
                weight(raw),
                media.decode_patch,
                kind,
                raw,
                strict=options.validation != "Ignore",
                values=_values(resource),
            )
        except StatusError:
            if kind != media.APPLY_PATCH:  # an apply creates the object
                await self._core.verbs.get(resource, target)  # a missing object is the more important error
            raise
        return await verbs.patch(resource, target, kind, patch, options)

    async def _create(self, request: web.Request, resource: Resource, target: Target) -> web.Response:
        options = _write_options(request, "CreateOptions")
        accepted = responses.accepted_form(request, resource)
        body = await self._body(request, resource, options)
        return self._result(request, resource, await self._core.verbs.create(resource, target, body, options), accepted)

    async def _collection(self, request: web.Request, resource: Resource, target: Target) -> web.StreamResponse:
        writes = request.method in ("POST", "DELETE")
        if writes and resource.namespaced and not target.namespace:
            raise errors.no_such_path() if resource.custom else errors.method_not_allowed()
        match request.method:
            case "GET":
                return await self._list_responses.respond(request, resource, target)
            case "HEAD" if resource.custom:
                return await self._list_responses.respond(request, resource, target)
            case "POST":
                return await self._create(request, resource, target)
            case "DELETE" if "deletecollection" in resource.verbs:
                return await self._delete_collection(request, resource, target)
            case "PUT" | "PATCH" if resource.custom:
                raise errors.bad_request("name must be provided")
        raise errors.method_not_allowed()

    async def _body(self, request: web.Request, resource: Resource, options: WriteOptions) -> media.Body:
        raw, content = await _sent(request), request.headers.get("Content-Type", "")
        how: dict[str, Any] = {"kind": resource.kind, "custom": resource.custom, "values": _values(resource)}
        return await offload(weight(raw), media.decode, content, raw, strict=options.validation != "Ignore", **how)

    async def _delete_options(self, request: web.Request) -> DeleteOptions:
        raw = await _sent(request)
        content = request.headers.get("Content-Type", "")
        body = await offload(weight(raw), media.decode, content, raw, strict=False) if raw else None
        options = DeleteOptions.of(request.query, body.value if body else None, request[_CALLER])
        request[_ORIGIN].dry_run = options.dry_run
        return options

    async def _delete_collection(self, request: web.Request, resource: Resource, target: Target) -> web.StreamResponse:
        options = ListOptions.of(request.query)
        how = await self._delete_options(request)
        listing = await self._core.lists.read(resource, target, options)
        gone: list[bytes] = []
        async for part in listing.parts:
            for body in part:
                fields = orjson.loads(body)["metadata"]
                one = Target(
                    resource.group, resource.version, resource.plural, fields.get("namespace", ""), fields["name"]
                )
                try:
                    await self._core.verbs.delete(resource, one, how, of_many=True)
                except StatusError as error:
                    if error.code != 404:
                        raise
                gone.append(body)
        return web.Response(
            body=responses.list_head(resource, {"resourceVersion": str(listing.version)}) + b",".join(gone) + b"]}",
            content_type=media.JSON,
        )

    def _result(
        self, request: web.Request, resource: Resource, result: VerbResult, accepted: media.Accepted
    ) -> web.Response:
        body = result.body
        if accepted.form is not media.Form.OBJECT and b'"kind":"Status"' not in body[:64]:
            obj = orjson.loads(body)
            body = orjson.dumps(responses.as_form(request, resource, obj, accepted, self._core.now()))
        response = responses.body_response(body, accepted, result.code)
        for text in responses.limited_warnings(result.warnings):
            response.headers.add("Warning", responses.warning(text))
        return response


def _values(resource: Resource) -> int:
    """Return the maximum number of values in a body. Definitions have many values, and tenants do not write them."""
    return media.MAX_BODY if resource.key == definitions.KEY else media.MAX_VALUES


def _path(request: web.Request) -> str:
    return request.rel_url.raw_path.rstrip("/")


async def _sent(request: web.Request) -> bytes:
    """Read the body of a request. Raises StatusError (408) if it does not arrive in time."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError as error:
        raise StatusError(408, "Timeout", f"the body did not arrive within {BODY_SECONDS:.0f} s") from error


def _write_options(request: web.Request, kind: OptionsKind, *, apply: bool = False) -> WriteOptions:
    agent = request.headers.get("User-Agent", "")
    options = WriteOptions.of(request.query, kind, agent, apply=apply, caller=request[_CALLER])
    request[_ORIGIN].dry_run = options.dry_run
    return options

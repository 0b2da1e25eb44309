"""What HTTP responses have in common: Status bodies, the media type of a body, warnings, headers for caches."""

from __future__ import annotations

import orjson
from aiohttp import web

from tink.kubeapi.apiserver.admission.warnings import limited
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.requests import JSON, PROTOBUF, YAML, Accepted
from tink.kubeapi.apiserver.serializer import dump_protobuf, dump_yaml
from tink.printable import printable

DEPRECATED = web.RequestKey("deprecated", str)
"""The warning of the version that a request uses, when it is deprecated."""

_FOR_BROWSERS = (
    "<!doctype html><title>tinkedge</title><p>This is a Kubernetes API, for kubectl and other programs with a token."
    "<p>'kubectl --kubeconfig DATA_DIR/kubeconfig get hardware' asks it on its own host; 'tinkedge kubeconfig' makes "
    "a kubeconfig for a user. 'tinkedge page' prints a link to the page for people.\n"
)
_SANDBOX = {"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff"}


def error_response(error: StatusError) -> web.Response:
    """Give the response to a request that is refused: a Status."""
    headers = {"Retry-After": "1"} if error.code in (429, 504) else {}
    response = web.Response(status=error.code, body=orjson.dumps(error.body()), content_type=JSON, headers=headers)
    for text in limited(error.warnings or ()):
        response.headers.add("Warning", warning(text))
    return response


def stranger_response(request: web.Request, error: StatusError) -> web.Response:
    """Give the response to a caller that is not known: a page for a browser, a Status for all others.

    A browser is recognised by its Accept header; no client of Kubernetes asks for HTML.
    """
    if "text/html" not in request.headers.get("Accept", ""):
        return error_response(error)
    return web.Response(status=error.code, text=_FOR_BROWSERS, content_type="text/html", headers=_SANDBOX)


def rendered(body: bytes, accepted: Accepted) -> bytes:
    """Write an answer (JSON) in the form that its client accepts."""
    if accepted.media == YAML:
        return dump_yaml(body)
    if accepted.media == PROTOBUF:
        return dump_protobuf(orjson.loads(body))
    return orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2) + b"\n" if accepted.pretty else body


def body_response(body: bytes, accepted: Accepted, status: int = 200) -> web.Response:
    """Give the response with a body (JSON) in the form that its client accepts."""
    return web.Response(status=status, body=rendered(body, accepted), content_type=accepted.media)


def warning(text: str) -> str:
    """Write a warning header (RFC 7234 section 5.5, code 299), which kubectl prints."""
    return '299 - "' + printable(text, " ").replace("\\", "\\\\").replace('"', '\\"') + '"'


async def finish_headers(request: web.Request, response: web.StreamResponse) -> None:
    """No answer may be kept by a cache, unless it says otherwise; every answer in an old version warns of that.

    (k8s.io/apiserver, filters: WithCacheControl; apiextensions-apiserver, customresource_handler.)
    """
    headers = response.headers
    headers.setdefault("Cache-Control", "no-cache, private")
    if text := request.get(DEPRECATED):
        others = headers.popall("Warning", [])
        for line in (warning(text), *others):
            headers.add("Warning", line)


def for_log(error: StatusError) -> str:
    """Say what was wrong without the values that were refused: they may be secret, and may be long."""
    causes = (error.details or {}).get("causes") or []
    fields = [cause["field"] for cause in causes if cause.get("field")]
    return f"{error.reason}: {', '.join(fields)[:500]}" if fields else error.message[:500]

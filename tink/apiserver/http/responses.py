"""What HTTP responses have in common: Status bodies, the media type of a body, warnings, headers for caches."""

from __future__ import annotations

import orjson
from aiohttp import web

from tink.apiserver.admission.warnings import limited
from tink.apiserver.errors import StatusError
from tink.apiserver.requests import JSON, PROTOBUF, YAML, Accepted
from tink.apiserver.serializer import dump_protobuf, dump_yaml
from tink.printable import printable

DEPRECATED = web.RequestKey("deprecated", str)
"""The warning of the version that a request uses, when it is deprecated."""


def error_response(error: StatusError) -> web.Response:
    """Give the response to a request that is refused: a Status."""
    headers = {"Retry-After": "1"} if error.code in (429, 504) else {}
    response = web.Response(status=error.code, body=orjson.dumps(error.body()), content_type=JSON, headers=headers)
    for text in limited(error.warnings or ()):
        response.headers.add("Warning", warning(text))
    return response


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

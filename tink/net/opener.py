"""Handlers for `urllib.request`: unchanged URLs, logins in them, proxies with NO_PROXY, and safe redirects.

Standard library only: the container image of the action image2disk has a copy of this module.
"""

from __future__ import annotations

import http.client
import urllib.request
from typing import IO, Any
from urllib.parse import urlsplit

from tink.net.proxies import Proxies
from tink.net.urls import as_written, without_login


class UrlsAsWritten(urllib.request.BaseHandler):
    """Requests a URL byte for byte, and sends its user and password by Basic (RFC 7617)."""

    handler_order = 100  # before the handler that writes the Host header

    def http_request(self, req: urllib.request.Request) -> urllib.request.Request:
        """Return the request without a login in its URL, and otherwise unchanged. Raises ValueError."""
        bare, authorization = without_login(req.full_url)
        req.full_url = as_written(bare.partition("#")[0])
        if authorization and not req.has_header("Authorization"):
            req.add_unredirected_header("Authorization", authorization)
        return req

    https_request = http_request


class ThroughProxies(urllib.request.ProxyHandler):
    """Sends a request to its proxy, instead of urllib's own handler.

    That ignores networks in NO_PROXY, and sends the proxy's password to the target of a redirect.
    """

    def __init__(self, proxies: Proxies) -> None:
        super().__init__({})
        self._proxies_by_scheme = proxies

    def http_open(self, req: urllib.request.Request) -> None:
        """Direct the request to its proxy, and leave it to the next handler. Raises ProxyError."""
        proxy = self._proxies_by_scheme.proxy_of(req.full_url, with_tls=False)
        if proxy is not None:
            if proxy.authorization:
                req.add_unredirected_header("Proxy-authorization", proxy.authorization)
            req.set_proxy(proxy.url.partition("//")[2], proxy.scheme)

    https_open = http_open


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects without reading their bodies, which urllib would read to their end, however large.

    The Authorization header stays with its origin: scheme, host and port.
    """

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage
    ) -> Any:
        """Follow one redirect."""
        fp.close()
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the next request. Raises HTTPError."""
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        authorization = req.unredirected_hdrs.get("Authorization", "")
        if following is not None and authorization and _origin(newurl) == _origin(req.full_url):
            following.add_unredirected_header("Authorization", authorization)
        return following


def handlers(proxies: Proxies) -> tuple[urllib.request.BaseHandler, ...]:
    """Return the handlers for `urllib.request.build_opener`."""
    return UrlsAsWritten(), ThroughProxies(proxies), Redirects()


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2].lower()

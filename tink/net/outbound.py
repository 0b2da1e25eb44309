"""HTTP clients for URLs of other authors, with a check of each address that they connect to.

The author of an OSIE makes the edge fetch the URLs in it. Without a check, the edge would also fetch them from its own
loopback, from other services of its host, and from the metadata service of a cloud. `Reach` refuses such addresses, and
`session` returns an HTTP client that checks each of its connections.

The check is on the address that a socket is about to connect to: after name resolution, for any way to write an
address, for each redirect, and without a moment in which a name server could change its answer. If HTTP_PROXY or
HTTPS_PROXY applies (`tink.net.proxies`), the proxy connects. Its own address is not checked, because it is the
operator's. Names that can be resolved here are checked here; others must be refused by the proxy.

The servers are not trusted. The parts of an answer beside its body (headers, interim answers, chunk sizes and
extensions, trailers) are limited in relation to the body, because they cost processor time and memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Network, IPv6Network
from types import MappingProxyType
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import set_exception
from aiohttp.streams import EMPTY_PAYLOAD
from multidict import CIMultiDict
from yarl import URL

from tink.errors import TinkedgeError
from tink.net.addresses import LOOPBACK, UNSPECIFIED, Address, carried, join_host_port, parsed, special
from tink.net.proxies import Proxies, ProxyError
from tink.net.urls import as_written, without_login

log = logging.getLogger(__name__)

Networks = tuple[IPv4Network | IPv6Network, ...]

OWN = "an address of this host"

_to_proxy: ContextVar[bool] = ContextVar("to_proxy", default=False)
"""True while the connection of this context goes to the operator's proxy."""

_attempts: ContextVar[_Attempts | None] = ContextVar("attempts", default=None)
"""The addresses that the request of this context tried. For a name with several addresses, aiohttp raises one error
that has only the texts of the others.
"""


MAX_WASTE_BYTES = 128 * 1024
"""Maximum size of an answer beside its body and a quarter of the body, which allows chunks of 20 bytes or more."""
_STEP_BYTES = 16 * 1024
"""Bytes that are parsed at once outside of a body: up to 650 interim answers, which take milliseconds."""


# These two attributes of aiohttp are private. With a version that lacks them, a warning is logged.
_MEASURES = (
    "_factory" in aiohttp.BaseConnector.__init__.__code__.co_names
    and "_payload" in ResponseHandler.__init__.__code__.co_names
)


class WastefulAnswerError(TinkedgeError, aiohttp.ClientPayloadError):
    """A server sends too many bytes that are not the body of its answer."""


class UnusableProxyError(TinkedgeError, aiohttp.ClientError):
    """HTTP_PROXY or HTTPS_PROXY applies to a request, and its value is not a usable proxy."""


class RefusedAddressError(TinkedgeError, OSError):
    """A connection is refused; the message names its address and the reason.

    `allowable` has the addresses that an operator can allow, separated by commas; empty if that is not possible.
    """

    def __init__(self, message: str, allowable: str = "") -> None:
        super().__init__(message)
        self.allowable = allowable


@dataclass(frozen=True, slots=True)
class _Attempts:
    """The attempts to connect to the addresses of one name."""

    refused: list[RefusedAddressError] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)

    def refusal(self) -> RefusedAddressError:
        """Return one error for all addresses."""
        reasons = [f"{address} does not answer" for address in self.allowed] + [str(each) for each in self.refused]
        allowable = dict.fromkeys(each.allowable for each in self.refused if each.allowable)
        return RefusedAddressError(" and ".join(dict.fromkeys(reasons)), ",".join(allowable))


@dataclass(frozen=True, slots=True)
class Reach:
    """The addresses that may be connected to: all except special ones, and those of this host (`is_own`).

    The `allowed` networks are exceptions, but never the `own_ports` of this host, where this program itself listens.
    """

    allowed: Networks = ()
    is_own: Callable[[Address], bool] = lambda _address: False
    own_ports: frozenset[int] = frozenset()

    def check(self, host: str, port: int) -> None:
        """Raise RefusedAddressError if `host`, the address of a socket, may not be connected to on `port`."""
        address = parsed(host)
        if address is None:
            raise RefusedAddressError(f"{host} is not an IP address")
        embedded = carried(address)
        forms = [address] if embedded is None else [address, embedded]
        why = special(address)
        try:
            why = why or (OWN if any(self.is_own(each) for each in forms) else "")
        except OSError as error:
            why = f"an address that may be this host's: the kernel can't be asked ({error.strerror})"
        if port in self.own_ports and why in (LOOPBACK, UNSPECIFIED, OWN):
            raise RefusedAddressError(f"{host} is this host, where port {port} is tinkedge's own")
        if why and not any(each in network for each in forms for network in self.allowed):
            raise RefusedAddressError(f"{host} is {why}", allowable=str(embedded or address))


async def through_proxies(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request, or one that follows a redirect, through the proxy of the environment for its URL.

    A middleware. aiohttp's own `trust_env` ignores networks in NO_PROXY and https:// proxies, and sends the login of
    `default` in ~/.netrc to any server. Raises UnusableProxyError.
    """
    try:
        proxy = Proxies.of(os.environ).proxy_of(str(request.url)) if request.proxy is None else None
    except ProxyError as error:
        raise UnusableProxyError(str(error)) from None
    if proxy is not None:
        login = CIMultiDict({"Proxy-Authorization": proxy.authorization} if proxy.authorization else {})
        request.update_proxy(URL(proxy.url), None, login)
        if request.url.scheme == "http":  # the proxy gets the request itself; for https it gets a CONNECT before
            request.headers.update(login)
    return await handler(request)


def target(url: str, headers: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return aiohttp's arguments `url` and `headers` for a request of an absolute URL byte for byte.

    yarl alone would decode escapes such as `%40`. User and password are sent as `without_login` returns them; aiohttp
    alone would send them as Latin-1, or fail. Raises ValueError.
    """
    bare, login = without_login(url)
    if login:
        headers = {**headers, "Authorization": login}
    known = URL(bare)  # yarl also encodes a host's name (IDNA)
    written = URL(as_written(bare), encoded=True)
    if known.host and known.raw_host != written.raw_host:
        written = written.with_host(known.host)
    return {"url": written, "headers": headers}


def session(reach: Reach, *, trust_env: bool = False, **settings: Any) -> aiohttp.ClientSession:
    """Return an HTTP client that connects to no address that `reach` refuses; `settings` are aiohttp's.

    URLs from `target` are requested byte for byte, and those of redirects always. With `trust_env`, the proxies of the
    environment are used. A refused request raises an aiohttp.ClientError or RefusedAddressError, which `refusal` tells
    from others.
    """

    def socket_for(addr_info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, address = addr_info
        attempts = _attempts.get()
        if not _to_proxy.get():
            try:
                reach.check(address[0], address[1])
            except RefusedAddressError as error:
                if attempts is not None:
                    attempts.refused.append(error)
                raise
        if attempts is not None:
            attempts.allowed.append(str(address[0]))
        return socket.socket(family, kind, protocol)

    async def as_redirected(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> Any:
        # `requote_redirect_url=False` leaves a Location unchanged, even blanks, which a request line can't have.
        request.url = URL(as_written(str(request.url)), encoded=True)
        return await handler(request)

    async def with_refusals(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> Any:
        attempts = _Attempts()
        token = _attempts.set(attempts)
        try:
            return await handler(request)
        except aiohttp.ClientConnectorError as error:
            # An error with a number is about the last address, which is allowed and does not answer.
            if attempts.refused and not error.os_error.errno:
                raise attempts.refusal() from error
            raise
        finally:
            _attempts.reset(token)

    async def checked(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> Any:
        if request.proxy is None:
            return await handler(request)
        await _check_name(reach, request.url.raw_host or "", request.url.port or 0)
        token = _to_proxy.set(True)
        try:
            return await handler(request)
        finally:
            _to_proxy.reset(token)

    return aiohttp.ClientSession(
        connector=_Connector(socket_for),
        middlewares=(as_redirected, with_refusals, *((through_proxies,) if trust_env else ()), checked),
        requote_redirect_url=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        **settings,
    )


class _Connector(aiohttp.TCPConnector):
    """Makes connections that count the received bytes before they are parsed; aiohttp has no public way to do that."""

    def __init__(self, socket_for: Callable[[tuple[Any, ...]], socket.socket]) -> None:
        super().__init__(limit=0, socket_factory=socket_for)
        if _MEASURES:
            self._factory = cast("partial[ResponseHandler]", partial(_Connection, asyncio.get_running_loop()))
        else:
            log.warning("this version of aiohttp can't count received bytes: the headers of answers are not limited")


class _Connection(ResponseHandler):
    """A connection that is aborted if an answer has too many bytes beside its body."""

    _received = 0

    def set_response_params(self, **params: Any) -> None:
        """Start with the answer of the next request."""
        self._received = 0
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Pass on received bytes, as long as enough of them are of the body."""
        at = 0
        while True:
            step = data[at : at + _STEP_BYTES] if self._body is None else data[at:]
            self._received += len(step)
            super().data_received(step)
            at += len(step)
            body = self._body.total_bytes if self._body is not None else 0
            if self._received - body > MAX_WASTE_BYTES + body // 4:
                self._abort()
                return
            if at >= len(data):
                return

    @property
    def _body(self) -> aiohttp.StreamReader | None:
        return self._payload if self._payload is not EMPTY_PAYLOAD else None

    def _abort(self) -> None:
        error = WastefulAnswerError("more around the body than in it")
        if self._payload is not None:
            set_exception(self._payload, error)
            self._payload = None  # otherwise the error would be about the end of the connection
        self.set_exception(error)
        if self.transport is not None:
            self.transport.abort()


async def _check_name(reach: Reach, host: str, port: int) -> None:
    """Check the addresses of a name, if it can be resolved here. Raises RefusedAddressError."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    for *_, address in found:
        reach.check(str(address[0]), port)


def refusal(error: BaseException) -> RefusedAddressError | None:
    """Return the RefusedAddressError that caused an error, or None."""
    behind = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    for each in (behind, error.__cause__):
        if isinstance(each, RefusedAddressError):
            return each
    return None


def no_answer(error: Exception) -> str:
    """Return in one phrase why a request got no answer, without the words of aiohttp's connector."""
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        where, reason = join_host_port(error.host or "?", error.port or 0), error.os_error
        if isinstance(reason, ConnectionRefusedError):
            return f"{where} refuses the connection: nothing listens there"
        # asyncio's text has the address in it again; the text of errno has not.
        number = reason.errno or 0  # negative: an error of getaddrinfo
        why = os.strerror(number) if number > 0 else reason.strerror or reason
        return f"can't connect to {where}: {why}"
    return str(error) or type(error).__name__

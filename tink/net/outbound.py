"""Where this program connects to because somebody else wrote a URL, and where it does not.

Who may write an OSIE makes the edge fetch what it names, from where the edge stands: without a check, also from the
edge's own loopback, from other services of its host, and from a cloud's metadata service. `Reach` says which addresses
are refused; `session` gives an HTTP client that asks it about each connection that it makes.

The check is made on the address that a socket is about to be connected to: after names are resolved, in whatever way an
address is written, for each redirect, and with no moment between in which a name server could say another thing.
Where HTTP_PROXY or HTTPS_PROXY applies (`tink.net.proxies`), the proxy connects: its own address is the operator's, and
what can be resolved here is checked here too, but what the proxy itself makes of a name is the proxy's to refuse.

Servers there are strangers. What an answer has besides its body (headers, interim answers, chunk sizes and what may
stand beside them, trailers) is bounded by the body, because it costs processor time and memory that no body's length
shows.
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

from tink.net.host_port import join_host_port
from tink.net.proxies import Proxies, ProxyError
from tink.net.special_addresses import LOOPBACK, UNSPECIFIED, Address, carried, parsed, special
from tink.net.urls import as_written, without_login

log = logging.getLogger(__name__)

Networks = tuple[IPv4Network | IPv6Network, ...]

OWN = "an address of this host"

_to_proxy: ContextVar[bool] = ContextVar("to_proxy", default=False)
"""Whether the connection that is made in this context goes to the operator's proxy."""

_attempts: ContextVar[_Attempts | None] = ContextVar("attempts", default=None)
"""Where the request of this context was to go. Where a name has several addresses, aiohttp makes one error of all that
went wrong, and keeps no more of them than their text.
"""


WASTE_BYTES = 128 * 1024
"""An answer may have so many bytes besides its body, and a quarter of the body's: chunks of 20 bytes or more."""
_STEP_BYTES = 16 * 1024
"""So much is looked at in one go where no body is: 650 interim answers have room in it, which take milliseconds."""


# aiohttp has no public word for these two. A version that has them no more is used as it is, and says so.
_MEASURES = (
    "_factory" in aiohttp.BaseConnector.__init__.__code__.co_names
    and "_payload" in ResponseHandler.__init__.__code__.co_names
)


class WastefulAnswerError(aiohttp.ClientPayloadError):
    """A server sends much that is not the body of its answer."""


class UnusableProxyError(aiohttp.ClientError):
    """HTTP_PROXY or HTTPS_PROXY applies to a request, and names no proxy that can be used."""


class RefusedAddressError(OSError):
    """A connection that is not made; the message says where it would have gone, and what is wrong with that.

    `allowable` is the address that an operator may allow it by, or several with commas between; empty if that can't be
    allowed.
    """

    def __init__(self, said: str, allowable: str = "") -> None:
        super().__init__(said)
        self.allowable = allowable


@dataclass(frozen=True, slots=True)
class _Attempts:
    """To connect to the addresses of one name."""

    refused: list[RefusedAddressError] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)

    def refusal(self) -> RefusedAddressError:
        """One for all addresses, each named once."""
        said = [f"{address} does not answer" for address in self.allowed] + [str(each) for each in self.refused]
        allowable = dict.fromkeys(each.allowable for each in self.refused if each.allowable)
        return RefusedAddressError(" and ".join(dict.fromkeys(said)), ",".join(allowable))


@dataclass(frozen=True, slots=True)
class Reach:
    """What may be connected to: all but special addresses, and those that `is_own` says are this host's.

    `allowed` networks are excepted from that, but not the `own_ports` of this host, where this program itself answers.
    """

    allowed: Networks = ()
    is_own: Callable[[Address], bool] = lambda _address: False
    own_ports: frozenset[int] = frozenset()

    def check(self, host: str, port: int) -> None:
        """Raises RefusedAddressError if `host`, an address as sockets name it, may not be connected to on `port`."""
        address = parsed(host)
        if address is None:
            raise RefusedAddressError(f"{host} is no IP address")
        embedded = carried(address)
        forms = [address] if embedded is None else [address, embedded]
        why = special(address) or self._own(forms)
        if port in self.own_ports and why in (LOOPBACK, UNSPECIFIED, OWN):
            raise RefusedAddressError(f"{host} is this host, where port {port} is tinkedge's own")
        if why and not any(each in network for each in forms for network in self.allowed):
            raise RefusedAddressError(f"{host} is {why}", allowable=str(embedded or address))

    def _own(self, forms: list[Address]) -> str:
        try:
            return OWN if any(self.is_own(each) for each in forms) else ""
        except OSError as error:
            return f"an address that may be this host's: the kernel does not say ({error.strerror})"


async def through_proxies(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request, or one that follows a redirect, through the proxy that the environment names for its URL.

    A middleware. aiohttp's own `trust_env` knows no networks in NO_PROXY, passes by https:// proxies, and sends what
    ~/.netrc has for `default` to strangers. Raises UnusableProxyError.
    """
    try:
        proxy = Proxies.of(os.environ).proxy_of(str(request.url)) if request.proxy is None else None
    except ProxyError as error:
        raise UnusableProxyError(str(error)) from None
    if proxy is not None:
        login = CIMultiDict({"Proxy-Authorization": proxy.authorization} if proxy.authorization else {})
        request.update_proxy(URL(proxy.url), None, login)
        if request.url.scheme == "http":  # the request itself is for the proxy; for https that gets a CONNECT before
            request.headers.update(login)
    return await handler(request)


def target(url: str, headers: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return aiohttp's arguments `url` and `headers` for a request of an absolute URL as it is written.

    yarl alone would decode `%40` and the like. A user and password are sent as `without_login` gives them; aiohttp
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
    """An HTTP client that connects to nothing that `reach` refuses; `settings` are aiohttp's.

    URLs are requested as they are written if `target` gives them; those of redirects always are. `trust_env`: whether
    proxies of the environment are used. A request that is refused raises an aiohttp.ClientError or RefusedAddressError;
    `refusal` tells it from others.
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
        # `requote_redirect_url=False` leaves a Location as it came, also with blanks that a request line can't have.
        request.url = URL(as_written(str(request.url)), encoded=True)
        return await handler(request)

    async def with_refusals(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> Any:
        attempts = _Attempts()
        token = _attempts.set(attempts)
        try:
            return await handler(request)
        except aiohttp.ClientConnectorError as error:
            # One with a number is of the last address, which may be asked and does not answer.
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
    """Makes connections that are measured: there is no other way to see what one brings before it is parsed."""

    def __init__(self, socket_for: Callable[[tuple[Any, ...]], socket.socket]) -> None:
        super().__init__(limit=0, socket_factory=socket_for)
        if _MEASURES:
            self._factory = cast("partial[ResponseHandler]", partial(_Connection, asyncio.get_running_loop()))
        else:
            log.warning("this aiohttp can't measure answers: what is no body in them is not bounded")


class _Connection(ResponseHandler):
    """One connection, which is broken off when an answer is not worth what it costs."""

    _received = 0

    def set_response_params(self, **params: Any) -> None:
        """Begin with the next request's answer."""
        self._received = 0
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Hand on what came, as long as enough of it is body."""
        at = 0
        while True:
            step = data[at : at + _STEP_BYTES] if self._body is None else data[at:]
            self._received += len(step)
            super().data_received(step)
            at += len(step)
            body = self._body.total_bytes if self._body is not None else 0
            if self._received - body > WASTE_BYTES + body // 4:
                self._break_off()
                return
            if at >= len(data):
                return

    @property
    def _body(self) -> aiohttp.StreamReader | None:
        return self._payload if self._payload is not EMPTY_PAYLOAD else None

    def _break_off(self) -> None:
        error = WastefulAnswerError("more around the body than in it")
        if self._payload is not None:
            set_exception(self._payload, error)
            self._payload = None  # or the end of the connection is what is said of it
        self.set_exception(error)
        if self.transport is not None:
            self.transport.abort()


async def _check_name(reach: Reach, host: str, port: int) -> None:
    """Check what a name means here. Where it means nothing here, the proxy may know more."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    for *_, address in found:
        reach.check(str(address[0]), port)


def refusal(error: BaseException) -> RefusedAddressError | None:
    """The refusal that `error` is, or that is behind it."""
    behind = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    for each in (behind, error.__cause__):
        if isinstance(each, RefusedAddressError):
            return each
    return None


def no_answer(error: Exception) -> str:
    """Return why a request got no answer, in one phrase: for aiohttp's errors, without the words of its connector."""
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        where, reason = join_host_port(error.host or "?", error.port or 0), error.os_error
        if isinstance(reason, ConnectionRefusedError):
            return f"{where} refuses the connection: nothing listens there"
        # asyncio's text for several addresses, and for one, has the address in it again; errno alone has not.
        number = reason.errno or 0  # negative: getaddrinfo's
        why = os.strerror(number) if number > 0 else reason.strerror or reason
        return f"can't connect to {where}: {why}"
    return str(error) or type(error).__name__

"""Selects the HTTP proxy of a URL by HTTP_PROXY, HTTPS_PROXY and NO_PROXY, as Go's programs and curl do.

    HTTP_PROXY, http_proxy      for http:// URLs      [http://][USER:PASSWORD@]HOST[:PORT], or https://...
    HTTPS_PROXY, https_proxy    for https:// URLs     the same; the connection goes through CONNECT
    NO_PROXY, no_proxy          connect directly      a list with commas or blanks:

        *                       all
        example.org             this host and its subdomains
        .example.org            its subdomains; *.example.org is the same
        10.0.0.1, ::1, [::1]    this address
        10.0.0.0/8, fd00::/8    the addresses of this network; names are not looked up for that
        example.org:8080        any of these except networks, with this port only

Lower case has priority (curl, Python). Connections to `localhost` and loopback addresses are always direct (Go).
Pure, and standard library only: the container image of the action image2disk has a copy of this module.
Source: golang.org/x/net/http/httpproxy; curl's manual, `--noproxy`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tink.errors import TinkedgeError
from tink.net.urls import shown, without_login

if TYPE_CHECKING:  # slow to import, and an agent without a proxy does not need it
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

NAMES: Final = ("http_proxy", "https_proxy", "no_proxy")
"""The variables. They are also read in upper case."""
MAX_RULES: Final = 1000
"""Maximum number of entries of NO_PROXY. Further ones are ignored."""
_PORTS: Final = {"http": 80, "https": 443}
_HOST_PORT: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::(\d{1,5}))?", re.ASCII)


class ProxyError(TinkedgeError, ValueError):
    """The value of the variable for a URL is not a usable proxy; the message names the variable and the remedy."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy. `authorization` is the value of Proxy-Authorization, empty without a login; `url` has no login in it."""

    url: str
    scheme: str
    host: str
    port: int
    authorization: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Proxies:
    """The values of the variables; empty if they are not set."""

    http: str = field(default="", repr=False)
    https: str = field(default="", repr=False)
    no_proxy: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Proxies:
        """Return the proxies of an environment, or of another mapping with these names."""
        return cls(*(environment.get(name) or environment.get(name.upper(), "") for name in NAMES))

    def __bool__(self) -> bool:
        """Return True if any proxy is set."""
        return bool(self.http or self.https)

    def variables(self) -> dict[str, str]:
        """Return the environment for a program, in upper and in lower case: curl reads only `http_proxy`."""
        if not self:
            return {}
        pairs = zip(NAMES, (self.http, self.https, self.no_proxy), strict=True)
        return {each: value for name, value in pairs if value for each in (name.upper(), name)}

    def added_to(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the environment `given` with `variables`. A name that `given` has in either case stays as it is."""
        named = {name.lower() for name in given}
        return {name: value for name, value in self.variables().items() if name.lower() not in named} | dict(given)

    def proxy_of(self, url: str, *, with_tls: bool = True) -> Proxy | None:
        """Return the proxy for `url`; None for a direct connection.

        `with_tls` is False for a client that cannot speak TLS with a proxy. Raises ProxyError, and ValueError if `url`
        is malformed.
        """
        parts = urlsplit(url)
        variable, value = {"http": ("HTTP_PROXY", self.http), "https": ("HTTPS_PROXY", self.https)}.get(
            parts.scheme, ("", "")
        )
        if not value or not self._is_proxied(parts.hostname or "", parts.port or _PORTS[parts.scheme]):
            return None
        return _proxy(variable, value.strip(), _PORTS if with_tls else {"http": 80})

    def _is_proxied(self, host: str, port: int) -> bool:
        host = _ascii(host)
        address = _address(host)
        if host == "localhost" or (address is not None and address.is_loopback):
            return False
        return not any(rule.matches(host, address, port) for rule in _rules(self.no_proxy))


NONE: Final = Proxies()
"""No proxy for any URL."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """An entry of NO_PROXY: one of `network`, `name` (of a host), `below` (a suffix with a dot). `port` None: any."""

    network: IPv4Network | IPv6Network | None = None
    name: str = ""
    below: str = ""
    port: int | None = None

    def matches(self, host: str, address: IPv4Address | IPv6Address | None, port: int) -> bool:
        if self.port not in (None, port):
            return False
        if self.network is not None:
            return address is not None and address in self.network
        # An IPv6 address can have a zone that looks like a name: fe80::1%25.example.org
        return ":" not in host and (host == self.name or host.endswith(self.below))


@lru_cache(maxsize=16)
def _rules(no_proxy: str) -> tuple[_Rule, ...]:
    from ipaddress import ip_network

    entries = re.split(r"[,\s]+", no_proxy.strip().lower(), maxsplit=MAX_RULES)[:MAX_RULES]
    if "*" in entries:
        return (_Rule(below=""), _Rule(ip_network("0.0.0.0/0")), _Rule(ip_network("::/0")))
    return tuple(rule for entry in entries if (rule := _rule(entry)) is not None)


def _rule(entry: str) -> _Rule | None:
    """Return the rule of an entry; None for a malformed entry, which Go and curl ignore, too."""
    from ipaddress import ip_network

    found = _HOST_PORT.fullmatch(entry)
    host, port = entry, None
    if found is not None:
        host, port = found[1] or found[2], int(found[3]) if found[3] else None
    try:
        if "/" in host:
            return _Rule(ip_network(host, strict=False)) if port is None else None
        if (address := _address(host)) is not None:
            return _Rule(ip_network(address), port=port)
    except ValueError:
        return None
    name = host.removeprefix("*").strip()
    suffix = _ascii(name.removeprefix("."))
    if not suffix or found is None or found[1]:
        return None
    return _Rule(name="" if name.startswith(".") else suffix, below=f".{suffix}", port=port)


def _proxy(variable: str, value: str, ports: Mapping[str, int]) -> Proxy:
    try:
        url, authorization = without_login(value if "://" in value else f"http://{value}")
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or ports.get(parts.scheme, 0)
    except ValueError:
        raise ProxyError(f"{variable} is not the URL of a proxy: write http://HOST:PORT") from None
    if parts.scheme not in ports:
        kinds = {
            "https": "TLS with a proxy is",
            **dict.fromkeys(("socks4", "socks4a", "socks5", "socks5h"), "SOCKS is"),
        }
        kind = kinds.get(parts.scheme, "that is")
        raise ProxyError(f"{variable} is {shown(url)}: {kind} not supported; write http://HOST:PORT of an HTTP proxy")
    if not re.fullmatch(r"[A-Za-z0-9._:%-]{1,255}", _ascii(host)):
        raise ProxyError(f"{variable} names no host: write http://HOST:PORT")
    bracketed = f"[{host}]" if ":" in host else host
    return Proxy(f"{parts.scheme}://{bracketed}:{port}", parts.scheme, host, port, authorization)


def _ascii(host: str) -> str:
    """Return a host name for look-ups: in lower case, without a dot at its end, in IDNA unless it is ASCII."""
    host = host.strip().lower().removesuffix(".")
    try:
        return host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        return host


def _address(host: str) -> IPv4Address | IPv6Address | None:
    from ipaddress import ip_address

    try:
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address

"""IP addresses, prefixes and URLs: Kubernetes' `ip`, `cidr`, `url`, `isIP`, `isCIDR`, `isURL` and their methods.

Addresses follow Go's net/netip: no leading zeros, no zone, no IPv4 inside IPv6. URLs follow Go's net/url, as request
URIs.
"""

import ipaddress
import re
import socket
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import quote_from_bytes, unquote_to_bytes

from tink.errors import TinkedgeError
from tink.golang import quote
from tink.kubeapi.cel.errors import EvaluationError
from tink.kubeapi.cel.values import OpaqueValue

_BITS = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


@dataclass(slots=True, unsafe_hash=True)
class Ip(OpaqueValue):
    """An address: its number, and 32 or 128 bits."""

    number: int
    bits: int
    type_name: ClassVar[str] = "net.IP"

    def __str__(self) -> str:
        if self.bits == 32:
            return socket.inet_ntop(socket.AF_INET, self.number.to_bytes(4, "big"))
        return ipaddress.IPv6Address(self.number).compressed

    def size_for_cost(self) -> int:
        """The length of the address in bytes."""
        return self.bits // 8


@dataclass(slots=True, unsafe_hash=True)
class Cidr(OpaqueValue):
    """An address with the length of its prefix."""

    ip: Ip
    length: int
    type_name: ClassVar[str] = "net.CIDR"

    def __str__(self) -> str:
        return f"{self.ip}/{self.length}"

    def size_for_cost(self) -> int:
        """The length of the prefix in bytes."""
        return (self.length + 7) // 8

    def contains(self, ip: Ip) -> bool:
        """Return True if the prefix contains an address of the same family."""
        shift = self.ip.bits - self.length
        return self.ip.bits == ip.bits and self.ip.number >> shift == ip.number >> shift

    def masked(self) -> "Cidr":
        """Return the prefix with all other bits zero."""
        shift = self.ip.bits - self.length
        return Cidr(Ip(self.ip.number >> shift << shift, self.ip.bits), self.length)


def _number(text: str) -> tuple[int, int] | None:
    """Return the number and the bits of an address without zone, or None if the text is not an address."""
    try:
        if ":" in text:
            return int.from_bytes(socket.inet_pton(socket.AF_INET6, text), "big"), 128
        return int.from_bytes(socket.inet_pton(socket.AF_INET, text), "big"), 32
    except (OSError, ValueError):
        return None


def address(text: str) -> tuple[Ip | None, str]:
    """Return the address and its zone. The address is None if the text is not one."""
    bare, percent, zone = text.partition("%")
    found = _number(bare) if ":" in bare or not percent else None
    if found is None or "\0" in text or (percent and not zone):
        return None, ""
    return Ip(*found), zone


def _mapped(ip: Ip) -> bool:
    return ip.bits == 128 and ip.number >> 32 == 0xFFFF


def parse_ip(text: str) -> Ip:
    """Parse an address. Raises EvaluationError for other text, a zone, and IPv4 inside IPv6."""
    ip, zone = address(text)
    if ip is None:
        raise EvaluationError(f"{quote(text)} is not an IP address")
    if zone:
        raise EvaluationError(f"IP address {quote(text)} with zone value is not allowed")
    if _mapped(ip):
        raise EvaluationError(f"IPv4-mapped IPv6 address {quote(text)} is not allowed")
    return ip


def is_ip(text: str) -> bool:
    """Return True if `parse_ip` accepts the text."""
    found = _number(text)
    return found is not None and "%" not in text and not (found[1] == 128 and found[0] >> 32 == 0xFFFF)


def parse_cidr(text: str) -> Cidr:
    """Parse an address with the length of its prefix. Raises EvaluationError for other text."""
    head, _, tail = text.rpartition("/")
    ip, zone = address(head)
    if ip is None or zone or not _BITS.fullmatch(tail) or int(tail) > ip.bits:
        raise EvaluationError(f"{quote(text)} is not an IP address with the length of a prefix")
    if _mapped(ip):
        raise EvaluationError(f"IPv4-mapped IPv6 address {quote(text)} is not allowed")
    return Cidr(ip, int(tail))


def is_loopback(ip: Ip) -> bool:
    """Return True for 127.0.0.0/8 and ::1."""
    return ip.number >> 24 == 127 if ip.bits == 32 else ip.number == 1


def is_link_local_multicast(ip: Ip) -> bool:
    """Return True for 224.0.0.0/24, and ff02::/16 with any flags."""
    return ip.number >> 8 == 0xE00000 if ip.bits == 32 else ip.number >> 112 & 0xFF0F == 0xFF02


def is_link_local_unicast(ip: Ip) -> bool:
    """Return True for 169.254.0.0/16 and fe80::/10."""
    return ip.number >> 16 == 0xA9FE if ip.bits == 32 else ip.number >> 118 == 0x3FA


def is_global_unicast(ip: Ip) -> bool:
    """Return True unless unspecified, loopback, multicast, link-local or broadcast. Private addresses count."""
    multicast = ip.number >> 28 == 0xE if ip.bits == 32 else ip.number >> 120 == 0xFF
    broadcast = ip.bits == 32 and ip.number == 0xFFFFFFFF
    return bool(ip.number) and not (broadcast or multicast or is_loopback(ip) or is_link_local_unicast(ip))


_ALNUM = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~")
_PATH_SAFE = _ALNUM | frozenset(b"$&+,/:;=@")
_PATH_VALID = _PATH_SAFE | frozenset(b"!'()*[]%")
_HOST_SAFE = _ALNUM | frozenset(b"!$&'()*+,;=:[]<>\"")
_USER_SAFE = _ALNUM | frozenset(b"$&+,;=")
_USER_VALID = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*", re.ASCII)
_PORT = re.compile(r"(:[0-9]*)?", re.ASCII)
_PERCENT = re.compile(r"%(?![0-9a-fA-F]{2}).{0,2}", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:", re.ASCII)
MAX_QUERY = 10_000
"""Maximum number of parameters in a query. Longer queries have none, as in Go."""


class UrlError(TinkedgeError):
    """The text is not a URL. The message is Go's."""


@dataclass(slots=True, unsafe_hash=True)
class Url(OpaqueValue):
    """The parts of a URL that expressions can read. `text` is the URL as Go writes it."""

    scheme: str = field(compare=False)
    host: str = field(compare=False)
    escaped_path: str = field(compare=False)
    query: str = field(compare=False)
    text: str
    type_name: ClassVar[str] = "kubernetes.URL"

    def host_and_port(self) -> tuple[str, str]:
        """Return the host without port and brackets, and the port as written, or ""."""
        host, colon, port = self.host.rpartition(":")
        if not colon or not _PORT.fullmatch(colon + port):
            host, port = self.host, ""
        return (host[1:-1] if host.startswith("[") and host.endswith("]") else host), port

    def parameters(self) -> dict[str, list[str]]:
        """Return the parameters of the query. Unreadable ones are left out."""
        found: dict[str, list[str]] = {}
        if self.query.count("&") >= MAX_QUERY:
            return found
        for pair in self.query.split("&"):
            if not pair or ";" in pair:
                continue
            key, _, value = pair.partition("=")
            try:
                name, content = _unescaped(key.replace("+", " ")), _unescaped(value.replace("+", " "))
            except UrlError:
                continue
            found.setdefault(name, []).append(content)
        return found


def _unescaped(text: str) -> str:
    if "%" not in text:
        return text
    wrong = _PERCENT.search(text)
    if wrong:
        raise UrlError(f"invalid URL escape {quote(wrong.group())}")
    return unquote_to_bytes(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


def _escaped(data: bytes, safe: frozenset[int]) -> str:
    return quote_from_bytes(data, bytes(safe))


def _host(text: str) -> str:
    """Check a host and return it without its escapes."""
    wrong = _PERCENT.search(text)
    for at, char in enumerate(text):
        if char == "%":
            if wrong and wrong.start() == at:
                raise UrlError(f"invalid URL escape {quote(wrong.group())}")
            if int(text[at + 1], 16) < 8 and text[at : at + 3] != "%25":
                raise UrlError(f"invalid URL escape {quote(text[at : at + 3])}")
        elif char < "\x80" and ord(char) not in _HOST_SAFE:
            raise UrlError(f"invalid character {quote(char)} in host name")
    return _unescaped(text)


def _check_port(text: str) -> None:
    if not _PORT.fullmatch(text):
        raise UrlError(f"invalid port {quote(text)} after host")


def _literal_host(text: str) -> str:
    close = text.rfind("]")
    if close < 0:
        raise UrlError("missing ']' in host")
    _check_port(text[close + 1 :])
    head, percent, zone = text[1:close].partition("%25")
    name = _host(head) + (_unescaped(percent + zone) if percent else "")
    ip, _ = address(name)
    if ip is None:
        raise UrlError(f"invalid host: {quote(name)} is not an IP address")
    if ip.bits == 32:
        raise UrlError("invalid IP-literal")
    return f"[{name}]{text[close + 1 :]}"


def _authority(scheme: str, text: str) -> tuple[str, str]:
    """Return the host, and the user information as Go writes it."""
    user, at, host = text.rpartition("@")
    bracket = host.rfind("[")
    if bracket > 0:
        raise UrlError("invalid IP-literal")
    if bracket == 0:
        plain = _literal_host(host)
    else:
        if ":" in host:
            colon = host.find(":") if scheme in ("http", "https") else host.rfind(":")
            _check_port(host[colon:])
        plain = _host(host)
    if at and not _USER_VALID.fullmatch(user):
        raise UrlError("net/url: invalid userinfo")
    name, mark, password = user.partition(":")
    parts = (_escaped(_unescaped(part).encode("utf-8", "surrogatepass"), _USER_SAFE) for part in (name, password))
    return plain, f"{mark.join(parts) if mark else next(parts)}@" if at else ""


def _path(text: str) -> str:
    """Return the path as Go writes it."""
    _unescaped(text)
    data = text.encode("utf-8", "surrogatepass")
    return text if _PATH_VALID.issuperset(data) else _escaped(unquote_to_bytes(data), _PATH_SAFE)


def _parsed(text: str, *, request: bool = True) -> Url:
    if any(char < " " or char == "\x7f" for char in text):
        raise UrlError("net/url: invalid control character in URL")
    if not text:
        raise UrlError("empty url")
    if text == "*":
        return Url("", "", "*", "", "*")
    if text.startswith(":"):
        raise UrlError("missing protocol scheme")
    match = _SCHEME.match(text)
    scheme = match.group()[:-1].lower() if match else ""
    rest, mark, query = (text[match.end() :] if match else text).partition("?")
    if not rest.startswith("/"):
        if not scheme and request:
            raise UrlError("invalid URI for request")
        return Url(scheme, "", "", query, f"{scheme}:{rest}{mark}{query}")
    host = user = ""
    slashes = ""
    if rest.startswith("//") and (scheme or not (request or rest.startswith("///"))):
        authority, slash, tail = rest[2:].partition("/")
        rest = slash + tail
        host, user = _authority(scheme, authority)
        slashes = "//" if host or rest or user else ""
    path = _path(rest)
    head = f"{scheme}:" if scheme else ""
    head += f"{slashes}{user}{_escaped(host.encode('utf-8', 'surrogatepass'), _HOST_SAFE)}"
    return Url(scheme, host, path, query, f"{head}{path}{mark}{query}")


def url(text: str) -> Url:
    """Parse a request URI or an absolute path. Go reads the fragment in a second pass.

    Raises EvaluationError for other text.
    """
    why = problem(text)
    bare, _, fragment = text.partition("#")
    try:
        plain = _parsed(bare, request=False) if bare and not why else Url("", "", "", "", "")
        _unescaped(fragment)
    except UrlError as error:
        why = why or f"parse {quote(bare)}: {error}"
    if why:
        raise EvaluationError(f"URL parse error during conversion from string: {why}")
    plain.text += f"#{fragment}" if fragment else ""
    return plain


def problem(text: str) -> str:
    """Return why a text is not a request URI, or ""."""
    try:
        _parsed(text)
    except UrlError as error:
        return f"parse {quote(text)}: {error}"
    return ""

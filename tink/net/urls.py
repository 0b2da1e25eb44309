"""URLs that others wrote: in a request line, the login in them, and what a log, a screen or a status may show of them.

A URL is requested byte for byte. Many servers take `%2F` and `/`, `%40` and `@`, or `%2B` and `+` for two names. RFC
3986 section 6.2.2.2 makes only escapes of letters, digits and `-._~` equal to the character itself. What is signed (S3,
Azure, GitHub) is the text. So a client must neither decode nor encode what is a URL already.

Both a user with a password and a query can be a secret: S3, Azure, Google and Cloudflare sign a download in its query.
Standard library only: the container image of the action image2disk has a copy of this module.
"""

from __future__ import annotations

import base64
import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes, urlsplit

MOST_SHOWN = 300
"""Maximum number of characters that `shown` returns."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>\\]+")
_HOST = re.compile(r"(?:\[[^\[\]@]*\]|[^\[\]:@]*)(?::[0-9]*)?")

_AUTHORITY: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?//[^/?#]*")
_NO_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ALLOWED: Final = "%:/?#[]@!$&'()*+,;=~"
"""RFC 3986 section 2.2, and the escape itself; `quote` adds letters, digits, `-._~`."""


def as_written(url: str, encoding: str = "utf-8") -> str:
    """Return the URL or relative reference `url` with only those characters encoded that no URL may have.

    These are blanks, control and non-ASCII characters (as bytes of `encoding`; a surrogate is the byte that it stands
    for), marks that RFC 3986 does not list, and `%` without two hexadecimal digits. The authority stays as it is: names
    of hosts are encoded in another way.
    """
    found = _AUTHORITY.match(url)
    start = found.end() if found is not None else 0
    rest = _NO_ESCAPE.sub("%25", url[start:])
    return url[:start] + quote(rest, safe=_ALLOWED, encoding=encoding, errors="surrogateescape")


def shown(url: str) -> str:
    """Return `url` for logs and screens: scheme, host, port and path. `?…` stands for a query."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*:)?//([^/?#]*)([^?#]*)(\?)?", url)
    if found is None:  # a relative reference, as in a Location
        return _printable(re.split(r"[?#]", url, maxsplit=1)[0].rpartition("@")[2] + ("?…" if "?" in url else ""))
    scheme, authority, path, query = found.groups(default="")
    host = authority.rpartition("@")[2]
    if not _HOST.fullmatch(host):
        # A password with a raw `/`: what looks like a port and a path is the rest of it.
        host, path = "…", ""
    return _printable(f"{scheme}//{host}{path}{'?…' if query else ''}")


def redacted(text: str) -> str:
    """Return `text` with each URL in it as `shown` returns it."""
    return _URL.sub(lambda match: shown(match[0]), text)


def without_login(url: str) -> tuple[str, str]:
    """Return `url` without user and password, and the Authorization header's value for these; empty if there are none.

    User and password are percent-decoded (RFC 3986 section 3.2.1), and sent as the bytes that they are: UTF-8 as a rule
    (RFC 7617 section 2). Raises ValueError if `url` is none.
    """
    authority = urlsplit(url).netloc
    login, at, host = authority.rpartition("@")
    if not at:
        return url, ""
    user, _, password = login.partition(":")
    pair = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
    bare = url.replace(f"//{authority}", f"//{host}", 1)
    return bare, f"Basic {base64.b64encode(pair).decode()}" if pair != b":" else ""


def _printable(text: str) -> str:
    clean = "".join(each if each.isprintable() else "?" for each in text[: MOST_SHOWN + 1])
    return clean if len(clean) <= MOST_SHOWN else f"{clean[:MOST_SHOWN]}…"

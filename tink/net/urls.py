"""URLs of other authors: how to request them, the login in them, and their form for logs, screens and a status.

A URL is requested byte for byte. For many servers `%2F` and `/`, `%40` and `@`, or `%2B` and `+` are different
names: by RFC 3986 section 6.2.2.2, only escapes of letters, digits and `-._~` equal the character itself. Signatures
(S3, Azure, GitHub) are of the text. So a client must neither decode nor encode a URL again.

Login and query can both be secret: S3, Azure, Google and Cloudflare sign a download in its query.
Standard library only: the container image of the action image2disk has a copy of this module.
"""

from __future__ import annotations

import base64
import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes, urlsplit

MAX_SHOWN = 300
"""Maximum number of characters that `shown` returns."""

# The limit of the scheme keeps the search linear.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}://[^\s\"'<>\\]+")
_HOST = re.compile(r"(?:\[[^\[\]@]*\]|[^\[\]:@]*)(?::[0-9]*)?")

_AUTHORITY: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?//[^/?#]*")
_NO_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ALLOWED: Final = "%:/?#[]@!$&'()*+,;=~"
"""RFC 3986 section 2.2 and `%`; `quote` adds letters, digits and `-._~`."""


def as_written(url: str, encoding: str = "utf-8") -> str:
    """Return a URL or a relative reference with only those characters encoded that a URL must not have.

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

    User and password are percent-decoded (RFC 3986 section 3.2.1) to bytes, mostly UTF-8 (RFC 7617 section 2). Raises
    ValueError if `url` is malformed.
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
    clean = "".join(each if each.isprintable() else "?" for each in text[: MAX_SHOWN + 1])
    return clean if len(clean) <= MAX_SHOWN else f"{clean[:MAX_SHOWN]}…"

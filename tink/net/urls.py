"""URLs of strangers: the login in them, and what a log, a screen or a status may show of them.

Both a user with a password and a query can be a secret: S3, Azure, Google and Cloudflare sign a download in its query.
Standard library only: the container image of the action image2disk has a copy of this module.
"""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote_to_bytes, urlsplit

MOST_SHOWN = 300
"""Maximum number of characters that `shown` returns."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>\\]+")
_HOST = re.compile(r"(?:\[[^\[\]@]*\]|[^\[\]:@]*)(?::[0-9]*)?")


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

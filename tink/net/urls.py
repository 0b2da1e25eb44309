"""URLs that others wrote, as they go into a request line: byte for byte.

Many servers take `%2F` and `/`, `%40` and `@`, or `%2B` and `+` for two names. RFC 3986 section 6.2.2.2 makes only
escapes of letters, digits and `-._~` equal to the character itself. What is signed (S3, Azure, GitHub) is the text. So
a client must neither decode nor encode what is a URL already.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

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

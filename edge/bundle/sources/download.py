"""Files by their URLs, fetched once; an interrupted download goes on where it was if the file is the same."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from edge.bundle.manifest import BundleError
from tink.net.opener import handlers
from tink.net.proxies import Proxies, ProxyError
from tink.net.urls import redacted, shown

_CHUNK = 1 << 18
_SECONDS = 60.0
"""Without a byte."""
_ATTEMPTS = 4

Progress = Callable[[str, int, int], None]


def is_url(text: str) -> bool:
    """Whether this is something to fetch."""
    return text.startswith(("http://", "https://"))


def fetch(url: str, cache: Path, progress: Progress) -> Path:
    """The file at `url`, in `cache`. Raises BundleError, OSError.

    A file that is there whole is asked about: where the server says that it has not changed (RFC 9110, section 13.1.2),
    or says nothing of changes, it is not fetched again.
    """
    cache.mkdir(parents=True, exist_ok=True)
    kept = cache / hashlib.sha256(url.encode()).hexdigest()[:32]
    part, notes = kept.with_suffix(".part"), kept.with_suffix(".json")
    for left in range(_ATTEMPTS - 1, -1, -1):
        try:
            return _attempt(url, kept, part, notes, progress)
        except urllib.error.HTTPError as error:
            if error.code < 500 or not left:
                raise BundleError(f"{shown(url)}: HTTP {error.code} {redacted(str(error.reason))}") from error
        except http.client.InvalidURL:  # its text has a part of the URL
            raise BundleError(f"{shown(url)} has a port or characters that no URL has: percent-encode them") from None
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            if not left:
                reason = getattr(error, "reason", None) or error
                said = redacted(str(reason))
                raise BundleError(f"{shown(url)}: {said}; once more goes on where this ended") from error
        except ProxyError as error:
            raise BundleError(f"{shown(url)}: {error}") from error
        except ValueError as error:
            raise BundleError(f"{shown(url)} is no URL") from error
    raise AssertionError


def _attempt(url: str, kept: Path, part: Path, notes: Path, progress: Progress) -> Path:
    tag = _tag(notes)
    request = urllib.request.Request(url)  # noqa: S310 - `is_url` has seen that it is http
    begun = part.stat().st_size if part.exists() and tag else 0
    if begun:
        request.add_header("Range", f"bytes={begun}-")
        request.add_header("If-Range", tag)
    elif kept.exists() and tag:
        request.add_header("If-None-Match", tag)
    try:
        opener = urllib.request.build_opener(*handlers(Proxies.of(os.environ)))
        response = opener.open(request, timeout=_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 304:
            return kept
        if error.code == 416:  # it is shorter now
            part.unlink(missing_ok=True)
            return _attempt(url, kept, part, notes, progress)
        raise
    with response:
        if response.status != 206:
            begun = 0
        size = begun + int(response.headers.get("Content-Length") or 0)
        notes.write_text(json.dumps({"url": shown(url), "etag": response.headers.get("ETag") or ""}))
        with part.open("ab" if begun else "wb") as out:
            while chunk := response.read(_CHUNK):
                out.write(chunk)
                progress(f"{shown(url)}, in bytes", out.tell(), size)
            found = out.tell()
    if response.headers.get("Content-Length") and found != size:
        raise ConnectionError(f"the connection ended after {found} of {size} bytes")
    shutil.move(part, kept)
    return kept


def _tag(notes: Path) -> str:
    """The entity tag of what is here; empty where the server gave none that says "these bytes"."""
    try:
        tag = json.loads(notes.read_text())["etag"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return tag if isinstance(tag, str) and not tag.startswith("W/") else ""

"""The action's own code, a disk that is a file, and a web server that does what servers should not."""

import contextlib
import http.server
import os
import random
import struct
import sys
import threading
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "deploy" / "actions"))

from image2disk.disk import Disk
from image2disk.run import Copying
from image2disk.settings import read


@dataclass
class Site:
    """The served answers. `before`, or `busy` by path, are the statuses of the first answers.

    `cuts` are the numbers of bytes after which the connection of each answer is cut (None: not at all). `redirect` is
    the target of a redirect of all requests, with an endless body, and `redirect_once` that of the next one.
    `headers` are further ones of the files. `paths` are the targets of the request lines.
    """

    url: str = ""
    content: bytes = b""
    files: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    etag: str = '"one"'
    modified: str = ""
    has_ranges: bool = True
    is_chunked: bool = False
    cuts: list[int | None] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    busy: dict[str, list[int]] = field(default_factory=dict)
    retry_after: str = ""
    change: tuple[int, bytes, str] | None = None
    asked: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    token: str = ""
    redirect: str = ""
    redirect_once: str = ""
    headers: dict[str, str] = field(default_factory=dict)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        site = self.site
        site.asked.append(dict(self.headers))
        site.paths.append(self.path)
        if site.change is not None and len(site.asked) == site.change[0]:
            _, site.content, site.etag = site.change
        if statuses := site.busy.get(self.path.partition("?")[0], site.before):
            return self._refuse(statuses.pop(0))
        if site.redirect_once:
            location, site.redirect_once = site.redirect_once, ""
            self.send_response(302)
            self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        if site.redirect and not site.redirect.endswith(self.path):
            return self._send_on()
        content, kind = site.files.get(self.path.partition("?")[0], (site.content, "application/octet-stream"))
        if site.token and self.path.startswith("/v2/") and self.headers.get("Authorization") != f"Bearer {site.token}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Negotiate")
            challenge = f'Basic realm="x", Bearer realm = "{site.url}/token" ,service="here",scope="repository:x:pull"'
            self.send_header("WWW-Authenticate", challenge)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        start = self._start()
        if start >= len(content) > 0:
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if site.is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(content) - start))
        for name, value in (
            ("ETag", site.etag),
            ("Last-Modified", site.modified),
            ("Content-Type", kind),
            *site.headers.items(),
        ):
            if value:
                self.send_header(name, value)
        self.end_headers()
        cut = site.cuts.pop(0) if site.cuts else None
        body = content[start:] if cut is None else content[start : start + cut]
        with contextlib.suppress(ConnectionError):  # an image may be refused by its beginning
            for at in range(0, len(body), 60_000):
                part = body[at : at + 60_000]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if site.is_chunked else part)
            if site.is_chunked and cut is None:
                self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True
        return None

    def _send_on(self):
        self.send_response(302)
        self.send_header("Location", self.site.redirect)
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(bytes(1 << 20))

    def _refuse(self, status):
        self.send_response(status)
        if self.site.retry_after:
            self.send_header("Retry-After", self.site.retry_after)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _start(self):
        wanted = self.headers.get("Range", "")
        if not self.site.has_ranges or not wanted:
            return 0
        if self.headers.get("If-Range", self.site.etag) not in (self.site.etag, self.site.modified):
            return 0
        return int(wanted.removeprefix("bytes=").removesuffix("-"))


@pytest.fixture
def site():
    site = Site()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"site": site}))
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


SIZE = 24 << 20
OLD = b"\xa5"
"""The old content of the disk."""


class Target:
    """A disk that is a file of 24 MiB, and the action's output while it wrote to it."""

    def __init__(self, path):
        self.path = path
        path.write_bytes(OLD * SIZE)
        self.fd = os.open(path, os.O_RDWR)
        self.disk = Disk("/dev/test", self.fd)
        self.said = []
        self.pauses = []
        self.clock = time.monotonic

    def copy(self, url, **env):
        """Bytes of the image, and the checksum of what was fetched."""
        settings = read({"IMG_URL": url, "DEST_DISK": "/dev/test", **env})
        result = Copying(settings, self.disk, self.said.append, self.pauses.append, self.clock).run()
        self.disk.finish()
        return result

    @property
    def content(self):
        return self.path.read_bytes()


@pytest.fixture
def target(tmp_path):
    target = Target(tmp_path / "disk")
    try:
        yield target
    finally:
        os.close(target.fd)


@pytest.fixture
def random_bytes():
    """Some that don't compress, the same each time."""
    return random.Random(7).randbytes


CLUSTER = 65536
DISK = 3 * CLUSTER + 1000
"""The size of a qcow2 image: its last cluster is not whole."""


def header(**change):
    """Return the first cluster of a qcow2 image."""
    fields = {
        "magic": b"QFI\xfb", "version": 3, "backing": 0, "backing_size": 0, "bits": 16, "size": DISK, "crypt": 0,
        "l1_size": 1, "l1": CLUSTER, "refcounts": 0, "refcount_clusters": 0, "snapshots": 0, "snapshots_at": 0,
        "incompatible": 0, "compatible": 0, "autoclear": 0, "order": 4, "length": 112, "compression": 0,
        **change,
    }  # fmt: skip
    return struct.pack(">4sIQIIQIIQQIIQQQQIIB7x", *fields.values()).ljust(1 << min(fields["bits"], 21), b"\0")


def packed(content):
    packer = zlib.compressobj(wbits=-12)
    return packer.compress(content) + packer.flush()


def zstd_frame(content=b"", *, zeros=0, window_log=17):
    """Return a zstd frame (RFC 8878) whose blocks have `content` as it is, and then so many zeros as their length."""
    largest = 1 << 17
    parts = [content[at : at + largest] for at in range(0, len(content), largest)]
    blocks = [struct.pack("<I", len(part) << 3)[:3] + part for part in parts]
    blocks += [struct.pack("<I", min(largest, zeros - at) << 3 | 2)[:3] + b"\0" for at in range(0, zeros, largest)]
    return b"\x28\xb5\x2f\xfd\0" + bytes([window_log - 10 << 3]) + b"".join(blocks) + b"\1\0\0"

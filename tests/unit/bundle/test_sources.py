"""What a bundle is made of, where it is fetched: URLs that break and come back, and how images are named."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from edge.bundle import BundleError, Wanted
from edge.bundle.sources.debian import program_of
from edge.bundle.sources.download import fetch
from tests.unit.bundle.conftest import quiet

CONTENT = bytes(range(256)) * 4096


class Upstream:
    """Serves CONTENT with ranges; `breaks` of its answers end in the middle, `status` is another answer."""

    def __init__(self) -> None:
        self.breaks, self.status, self.tag = 0, 200, '"v1"'
        self.asked: list[str] = []
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                upstream.answer(self)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/kernel"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range", "") if request.headers.get("If-Range") == self.tag else ""
        self.asked.append(wanted or f"all{' unless ' + one if (one := request.headers.get('If-None-Match')) else ''}")
        if self.status != 200 or request.headers.get("If-None-Match") == self.tag:
            request.send_response(self.status if self.status != 200 else 304)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        body = CONTENT[start:]
        request.send_response(206 if wanted else 200)
        request.send_header("ETag", self.tag)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if self.breaks:
            self.breaks -= 1
            body = body[: len(body) // 2]
        request.wfile.write(body)


@pytest.fixture
def upstream():
    made = Upstream()
    made.thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.thread.join()
        made.server.server_close()


def test_download_that_breaks_goes_on_where_it_was(upstream, tmp_path):
    upstream.breaks = 2
    assert fetch(upstream.url, tmp_path, quiet).read_bytes() == CONTENT
    assert upstream.asked == ["all", f"bytes={len(CONTENT) // 2}-", f"bytes={len(CONTENT) * 3 // 4}-"]


@pytest.mark.parametrize(("tag", "again"), [('"v1"', f"bytes={len(CONTENT) * 15 // 16}-"), ('"v2"', "all")])
def test_download_that_was_given_up_goes_on_with_the_next_run_unless_the_file_has_changed(
    upstream, tmp_path, tag, again
):
    upstream.breaks = 4
    with pytest.raises(BundleError, match="once more goes on where this ended"):
        fetch(upstream.url, tmp_path, quiet)
    asked = len(upstream.asked)
    upstream.tag = tag
    assert fetch(upstream.url, tmp_path, quiet).read_bytes() == CONTENT
    assert upstream.asked[asked:] == [again]


def test_file_that_is_here_is_asked_about_and_not_fetched_again(upstream, tmp_path):
    first = fetch(upstream.url, tmp_path, quiet)
    assert fetch(upstream.url, tmp_path, quiet) == first
    assert upstream.asked == ["all", 'all unless "v1"']


def test_answer_that_is_no_file_names_the_url_and_the_status(upstream, tmp_path):
    upstream.status = 404
    with pytest.raises(BundleError, match=r"/kernel: HTTP 404"):
        fetch(upstream.url, tmp_path, quiet)
    assert len(upstream.asked) == 1


@pytest.mark.parametrize(
    ("given", "name", "source"),
    [
        ("quay.io/x/y:v1", "x/y:v1", "docker://quay.io/x/y:v1"),
        ("127.0.0.1:5000/actions/inspect:1", "actions/inspect:1", "docker://127.0.0.1:5000/actions/inspect:1"),
        ("localhost:5000/a", "a:latest", "docker://localhost:5000/a"),
        ("busybox", "library/busybox:latest", "docker://busybox"),
        ("tools/busybox:1=busybox:1.36", "tools/busybox:1", "docker://busybox:1.36"),
        ("actions/inspect:1=oci:build/actions/inspect:1", "actions/inspect:1", "oci:build/actions/inspect:1"),
        ("a:1=docker-archive:/tmp/a.tar", "a:1", "docker-archive:/tmp/a.tar"),
        ("a:1=docker-daemon:a:1", "a:1", "docker-daemon:a:1"),
    ],
)
def test_image_is_named_as_machines_will_ask_for_it(given, name, source):
    assert Wanted.of(given) == Wanted(name, source)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("oci:build/inspect:1", "give it a name, as Templates will have it"),
        ("Upper=busybox", "no repository:tag"),
        ("notag=oci:dir:1", "no repository:tag"),
        ("quay.io/X", "quay.io/X"),
        (f"quay.io/x@sha256:{'0' * 64}", "give it a name"),
    ],
)
def test_image_without_a_name_that_a_template_can_have_is_refused(given, said):
    with pytest.raises(BundleError, match=said):
        Wanted.of(given)


def test_file_that_is_no_package_of_tinkedge_is_refused(tmp_path):
    with pytest.raises(BundleError, match="there is no such file; `make deb` makes one"):
        program_of(tmp_path / "tinkedge.deb")

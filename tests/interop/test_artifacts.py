"""The artifact cache as a process of its own, before nginx: killed in mid-download, on a full disk, with fifty clients.

nginx' access log has the requests to the upstream and their cost.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.ports import free_port, listens
from tests.waiting import wait_until

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or "nginx"

MIB = 1 << 20

_NGINX = """
daemon off; master_process off; worker_processes 1; pid {directory}/nginx.pid; error_log stderr;
events {{ worker_connections 256; }}
http {{
  log_format asked '$uri $status $body_bytes_sent "$http_range" "$http_if_range"';
  access_log {directory}/access.log asked; default_type application/octet-stream; sendfile on;
  client_body_temp_path {directory}/tmp; proxy_temp_path {directory}/tmp; fastcgi_temp_path {directory}/tmp;
  uwsgi_temp_path {directory}/tmp; scgi_temp_path {directory}/tmp;
  server {{
    listen 127.0.0.1:{port}; root {directory}/www;
    location /slow/ {{ alias {directory}/www/; limit_rate 3m; }}
    location /plain/ {{ alias {directory}/www/; limit_rate 3m; max_ranges 0; etag off; }}
  }}
}}
"""

_CACHE = """
import asyncio, hashlib, json, os, sys
from ipaddress import ip_network
from pathlib import Path
import uvloop
from edge.artifacts import flight
from edge.artifacts.artifact import ArtifactError
from edge.artifacts.cache import ArtifactCache
from tink.net.outbound import Reach

flight.CHECKPOINT_BYTES = 1 << 20

async def fetch(cache, url, sha256=""):
    try:
        with await cache.open(url, sha256=sha256) as artifact:
            digest, start = hashlib.sha256(), 0
            while start < artifact.size:
                chunk = os.pread(artifact.fd, min(await artifact.filled(start) - start, 1 << 20), start)
                digest.update(chunk)
                start += len(chunk)
            return {"source": artifact.source.value, "sha256": digest.hexdigest()}
    except ArtifactError as error:
        return {"error": str(error)}

async def serve(cache):
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        asked = json.loads(line)
        answers = await asyncio.gather(*(fetch(cache, asked["url"]) for _ in range(asked["machines"])))
        while cache.downloads():
            await asyncio.sleep(0.005)
        print(json.dumps(answers), flush=True)

async def main():
    reach = Reach(allowed=(ip_network("127.0.0.0/8"),))
    cache = ArtifactCache(Path(sys.argv[1]), revalidate_after=0.0, reach=reach)
    await cache.start()
    print("ready", flush=True)
    try:
        await serve(cache)
    finally:
        await cache.stop()

uvloop.run(main())
"""


class Request(NamedTuple):
    """A line of the upstream's log."""

    path: str
    status: int
    sent: int
    range: str
    if_range: str


class Upstream:
    """nginx. It serves `www`: `/slow/` slowly, `/plain/` slowly and without ranges or ETag."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.www = directory / "www"
        self.www.mkdir(parents=True)
        self.port = free_port()
        (directory / "nginx.conf").write_text(_NGINX.format(directory=directory, port=self.port))
        command = [NGINX, "-p", str(directory), "-e", "stderr", "-c", str(directory / "nginx.conf")]
        with (directory / "nginx.err").open("wb") as errors:
            self._process = subprocess.Popen(command, stderr=errors)
        wait_until(lambda: listens(self.port), (directory / "nginx.err").read_text)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def put(self, name: str, content: bytes) -> None:
        temporary = self.www / f"{name}.new"
        temporary.write_bytes(content)
        temporary.rename(self.www / name)

    def log(self, count: int) -> list[Request]:
        """Return the requests without those for checksum files, after nginx has written so many lines."""
        wait_until(lambda: len(self._requests()) >= count, self._requests)
        return self._requests()

    def _requests(self) -> list[Request]:
        lines = (line.replace('"', "").split() for line in (self._directory / "access.log").read_text().splitlines())
        requests = [Request(line[0], int(line[1]), int(line[2]), line[3], line[4]) for line in lines]
        return [each for each in requests if not each.path.endswith(".sha256")]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class CacheProcess:
    """A cache over a directory."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-c", _CACHE, str(directory)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert self._line() == "ready"

    def ask(self, url: str, *, machines: int = 1) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"url": url, "machines": machines}) + "\n")

    def fetch(self, url: str, *, machines: int = 1) -> list[dict[str, Any]]:
        """Return the result of each of `machines` machines."""
        self.ask(url, machines=machines)
        return list(json.loads(self._line()))

    def gives(self, url: str, content: bytes, source: str = "upstream", *, machines: int = 1) -> None:
        """Fetch a URL, and check its content and source."""
        expected = {"source": source, "sha256": hashlib.sha256(content).hexdigest()}
        assert self.fetch(url, machines=machines) == [expected] * machines

    def refuses(self, url: str, reason: str) -> None:
        """Fetch a URL, and check the reason of the failure."""
        (answer,) = self.fetch(url)
        assert reason in answer["error"]

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    @property
    def peak_memory(self) -> int:
        """Bytes."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    upstream = Upstream(tmp_path / "upstream")
    yield upstream
    upstream.stop()


Start = Callable[[], CacheProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a cache over the directory of the previous one."""
    running: list[CacheProcess] = []

    def begin() -> CacheProcess:
        for each in running:
            each.kill()
        running[:] = [CacheProcess(tmp_path / "artifacts")]
        return running[0]

    yield begin
    for each in running:
        each.kill()


def noted(directory: Path) -> int:
    """Return the bytes of a download that are safely on disk."""
    for journal in directory.glob("*.journal"):
        try:
            return int(json.loads(journal.read_text())["received"])
        except (OSError, ValueError):
            break
    return 0


def killed_at(cache: CacheProcess, directory: Path, position: int) -> int:
    """Kill the process once `position` bytes are safely on disk, and return the number of safe bytes."""
    wait_until(lambda: noted(directory) >= position, every=0.003)
    cache.kill()
    return noted(directory)


def test_killed_at_any_point_it_serves_nothing_partial_and_resumes_the_download(
    start: Start, upstream: Upstream, tmp_path: Path
) -> None:
    directory, size = tmp_path / "artifacts", 16 * MIB
    content = random.Random(1).randbytes(size)
    upstream.put("initrd", content)
    url = upstream.url("slow/initrd")
    safe = [0]
    for position in (1, 3 * MIB, 6 * MIB):
        cache = start()
        cache.ask(url)
        safe.append(killed_at(cache, directory, max(position, safe[-1] + 1)))
        assert list(directory.glob("*.blob")) == list(directory.glob("*.json")) == []
    cache = start()
    cache.gives(url, content)
    requests = upstream.log(4)
    assert [each.status for each in requests] == [200, 206, 206, 206]
    assert [each.range for each in requests] == ["-", *(f"bytes={at}-" for at in safe[1:])]
    assert all(each.if_range.startswith("W/") is False and each.if_range != "-" for each in requests[1:])
    # Bytes that were not safe at the kill are sent again: a few MiB each time.
    assert sum(each.sent for each in requests) < size + 3 * 5 * MIB
    assert requests[-1].sent == size - safe[-1]
    cache.gives(url, content, "cache")
    assert sorted(path.suffix for path in directory.iterdir()) == ["", ".blob", ".json"]


@pytest.mark.parametrize(
    ("path", "replaced"),
    [("slow/initrd", True), ("plain/initrd", False)],
    ids=["replaced meanwhile", "neither ranges nor ETag"],
)
def test_killed_in_mid_download_it_fetches_the_whole_file_if_it_can_not_resume(
    start: Start, upstream: Upstream, tmp_path: Path, path: str, replaced: bool
) -> None:
    old, new = (random.Random(seed).randbytes(8 * MIB) for seed in (1, 2))
    upstream.put("initrd", old)
    os.utime(upstream.www / "initrd", (2, 2))
    cache = start()
    cache.ask(upstream.url(path))
    killed_at(cache, tmp_path / "artifacts", MIB)
    if replaced:
        upstream.put("initrd", new)
        os.utime(upstream.www / "initrd", (1, 1))
    cache = start()
    cache.gives(upstream.url(path), new if replaced else old)
    assert [each.status for each in upstream.log(2)] == [200, 200]
    assert upstream.log(2)[-1].sent == len(new)


def test_fifty_cold_machines_cost_nginx_one_request_and_little_memory(start: Start, upstream: Upstream) -> None:
    content = random.Random(5).randbytes(16 * MIB)
    upstream.put("initrd", content)
    cache = start()
    before = cache.peak_memory
    cache.gives(upstream.url("initrd"), content, machines=50)
    assert [(each.status, each.sent) for each in upstream.log(1)] == [(200, len(content))]
    assert cache.peak_memory - before < 60 * MIB  # fifty readers here in Python, of a quarter MiB and a copy each


def test_cache_revalidates_the_file_and_fetches_the_checksum_beside_it(start: Start, upstream: Upstream) -> None:
    upstream.put("kernel", b"MZ old")
    cache = start()
    url = upstream.url("kernel")
    cache.gives(url, b"MZ old")
    cache.gives(url, b"MZ old", "cache")
    upstream.put("kernel", b"MZ newer")
    cache.gives(url, b"MZ newer")
    assert [each.status for each in upstream.log(3)] == [200, 304, 200]

    upstream.put("checked", b"MZ kernel")
    done = subprocess.run(["sha256sum", "checked"], cwd=upstream.www, check=True, capture_output=True)
    upstream.put("checked.sha256", done.stdout)
    cache.gives(upstream.url("checked"), b"MZ kernel")
    upstream.put("checked", b"MZ evil kernel")
    cache.refuses(upstream.url("checked"), "wrong SHA-256")

    upstream.stop()
    cache.gives(url, b"MZ newer", "stale cache")
    cache.gives(upstream.url("checked"), b"MZ kernel", "stale cache")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB for caches."""
    place = tmp_path / "artifacts"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_full_disk_evicts_files_then_reports_and_other_downloads_continue(
    disk: Path, start: Start, upstream: Upstream
) -> None:
    files = {name: random.Random(name).randbytes(3 * MIB) for name in "abcd"}
    for name, content in files.items():
        upstream.put(name, content)
    upstream.put("big", bytes(20 * MIB))
    cache = start()
    for name in "abc":  # the third does not fit beside the other two
        cache.gives(upstream.url(name), files[name])
    assert len(list(disk.glob("*.blob"))) == 2
    cache.gives(upstream.url("b"), files["b"], "cache")
    cache.refuses(upstream.url("big"), f"no room for {20 * MIB} bytes: its disk has")
    assert len(list(disk.glob("*.blob"))) == 2  # no file was evicted in vain
    assert list(disk.glob("*.part")) == []
    cache.gives(upstream.url("c"), files["c"], "cache")
    # Other programs fill the disk, so that no eviction makes room.
    cache.kill()
    for blob in disk.glob("*.blob"):
        blob.unlink()
    (disk / "theirs").write_bytes(bytes(6 * MIB))
    cache = start()
    cache.refuses(upstream.url("d"), f"no room for {3 * MIB} bytes")
    (disk / "theirs").unlink()

    # The failure is remembered for two seconds.
    wait_until(lambda: "sha256" in cache.fetch(upstream.url("d"))[0], every=0.2)
    cache.gives(upstream.url("d"), files["d"], "cache")

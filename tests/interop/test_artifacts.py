"""The artifact cache as a process of its own, before nginx: killed in mid-download, on a full disk, asked by fifty.

nginx' access log tells what the upstream was asked and what that cost.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port, listens
from tests.waiting import PATIENCE_SECONDS, wait_until

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or "nginx"

MIB = 1 << 20

_NGINX = """
daemon off; master_process off; worker_processes 1; pid {directory}/nginx.pid; error_log stderr;
events {{ worker_connections 256; }}
http {{
  log_format asked '$request_method $uri $status $body_bytes_sent "$http_range" "$http_if_range" "$http_if_none_match"';
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
from edge.artifacts.fetch import flight
from edge.artifacts import ArtifactCache, ArtifactError
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
        while asked["settle"] and cache.downloads():
            await asyncio.sleep(0.005)
        print(json.dumps(answers), flush=True)

async def main():
    cache = ArtifactCache(Path(sys.argv[1]), revalidate_after=0.0, budget=int(sys.argv[2]) or None,
        reach=Reach(allowed=(ip_network("127.0.0.0/8"),)))
    await cache.start()
    print("ready", flush=True)
    try:
        await serve(cache)
    finally:
        await cache.stop()

uvloop.run(main())
"""


@dataclass(frozen=True)
class Asked:
    """One line of the upstream's log."""

    method: str
    path: str
    status: int
    sent: int
    range: str
    if_range: str
    if_none_match: str


class Upstream:
    """nginx. `www` is what it serves; `/slow/` slowly, `/plain/` slowly and without ranges or ETag."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.www = directory / "www"
        self.www.mkdir(parents=True)
        self.port = free_port()
        (directory / "nginx.conf").write_text(_NGINX.format(directory=directory, port=self.port))
        assert NGINX is not None
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

    def log(self, count: int) -> list[Asked]:
        """What was asked, but for the checksums beside the files, once nginx has written so many lines."""
        wait_until(lambda: len(self._asked()) >= count, self._asked)
        return self._asked()

    def _asked(self) -> list[Asked]:
        asked = []
        for line in (self._directory / "access.log").read_text().splitlines():
            words = line.replace('"', "").split(" ")
            asked.append(Asked(words[0], words[1], int(words[2]), int(words[3]), words[4], words[5], words[6]))
        return [each for each in asked if not each.path.endswith(".sha256")]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class CacheProcess:
    """A cache over `directory`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @staticmethod
    async def start(directory: Path, budget: int = 0) -> CacheProcess:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _CACHE, str(directory), str(budget)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MIB,
        )
        started = CacheProcess(process)
        assert await started._line() == "ready"
        return started

    def ask(self, url: str, *, machines: int = 1, settle: bool = True) -> None:
        assert self._process.stdin is not None
        asked = {"url": url, "machines": machines, "settle": settle}
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")

    async def answers(self) -> list[dict[str, Any]]:
        return list(json.loads(await self._line()))

    async def fetch(self, url: str, *, machines: int = 1) -> list[dict[str, Any]]:
        self.ask(url, machines=machines)
        return await self.answers()

    async def _line(self) -> str:
        assert self._process.stdout is not None
        return (await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_SECONDS)).decode().strip()

    @property
    def peak_memory(self) -> int:
        """Bytes."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024

    async def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> None:
        if self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                await asyncio.wait_for(self._process.wait(), 10)
            except TimeoutError:
                await self.kill()


Start = Callable[..., Awaitable[CacheProcess]]


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    upstream = Upstream(tmp_path / "upstream")
    yield upstream
    upstream.stop()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start caches over one directory, or that which is given."""
    started: list[CacheProcess] = []

    async def start(directory: Path | None = None, budget: int = 0) -> CacheProcess:
        started.append(await CacheProcess.start(directory or tmp_path / "artifacts", budget))
        return started[-1]

    yield start
    for each in started:
        await each.stop()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def noted(directory: Path) -> int:
    """How much of a download is safely on disk."""
    for journal in directory.glob("*.journal"):
        try:
            return int(json.loads(journal.read_text())["received"])
        except (OSError, ValueError):
            break
    return 0


async def killed_at(cache: CacheProcess, directory: Path, position: int) -> int:
    """Kill the process when so much is safely on disk; gives how much was."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while noted(directory) < position:
            await asyncio.sleep(0.003)
    await cache.kill()
    return noted(directory)


async def test_killed_at_any_point_it_serves_nothing_partial_and_asks_for_the_rest(
    start: Start, upstream: Upstream, tmp_path: Path
) -> None:
    directory, size = tmp_path / "artifacts", 24 * MIB
    content = random.Random(1).randbytes(size)
    upstream.put("initrd", content)
    url = upstream.url("slow/initrd")
    safe = [0]
    for position in (1, 3 * MIB, 6 * MIB, 9 * MIB):
        cache = await start()
        cache.ask(url)
        safe.append(await killed_at(cache, directory, max(position, safe[-1] + 1)))
        assert list(directory.glob("*.blob")) == list(directory.glob("*.json")) == []
    cache = await start()
    assert await cache.fetch(url) == [{"source": "upstream", "sha256": sha256(content)}]
    asked = upstream.log(5)
    assert [each.status for each in asked] == [200, 206, 206, 206, 206]
    assert [each.range for each in asked] == ["-", *(f"bytes={at}-" for at in safe[1:])]
    assert all(each.if_range.startswith("W/") is False and each.if_range != "-" for each in asked[1:])
    # What was on its way when the process was killed, and not noted yet, comes again: a few MiB each time.
    assert sum(each.sent for each in asked) < size + 4 * 5 * MIB
    assert asked[-1].sent == size - safe[-1]
    assert await cache.fetch(url) == [{"source": "cache", "sha256": sha256(content)}]
    assert sorted(path.suffix for path in directory.iterdir()) == ["", ".blob", ".json"]


async def test_file_that_was_replaced_while_the_process_was_dead_comes_whole(
    start: Start, upstream: Upstream, tmp_path: Path
) -> None:
    old, new = (random.Random(seed).randbytes(8 * MIB) for seed in (1, 2))
    upstream.put("initrd", old)
    cache = await start()
    cache.ask(upstream.url("slow/initrd"))
    await killed_at(cache, tmp_path / "artifacts", MIB)
    upstream.put("initrd", new)
    os.utime(upstream.www / "initrd", (1, 1))
    cache = await start()
    assert await cache.fetch(upstream.url("slow/initrd")) == [{"source": "upstream", "sha256": sha256(new)}]
    assert [each.status for each in upstream.log(2)] == [200, 200]


async def test_upstream_without_ranges_or_etag_is_asked_for_all_again(
    start: Start, upstream: Upstream, tmp_path: Path
) -> None:
    content = random.Random(3).randbytes(8 * MIB)
    upstream.put("initrd", content)
    os.utime(upstream.www / "initrd", (1, 1))
    cache = await start()
    cache.ask(upstream.url("plain/initrd"))
    await killed_at(cache, tmp_path / "artifacts", MIB)
    cache = await start()
    assert await cache.fetch(upstream.url("plain/initrd")) == [{"source": "upstream", "sha256": sha256(content)}]
    assert upstream.log(2)[-1].sent == len(content)


async def test_stopped_in_mid_download_it_loses_nothing(start: Start, upstream: Upstream, tmp_path: Path) -> None:
    content = random.Random(4).randbytes(12 * MIB)
    upstream.put("initrd", content)
    cache = await start()
    cache.ask(upstream.url("slow/initrd"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while noted(tmp_path / "artifacts") < MIB:
            await asyncio.sleep(0.003)
    cache._process.send_signal(signal.SIGINT)
    await cache._process.wait()
    safe = noted(tmp_path / "artifacts")
    cache = await start()
    assert await cache.fetch(upstream.url("slow/initrd")) == [{"source": "upstream", "sha256": sha256(content)}]
    assert upstream.log(2)[-1].sent == len(content) - safe


async def test_fifty_cold_machines_cost_nginx_one_request_and_little_memory(start: Start, upstream: Upstream) -> None:
    content = random.Random(5).randbytes(16 * MIB)
    upstream.put("initrd", content)
    cache = await start()
    before = cache.peak_memory
    answers = await cache.fetch(upstream.url("initrd"), machines=50)
    assert answers == [{"source": "upstream", "sha256": sha256(content)}] * 50
    assert [(each.status, each.sent) for each in upstream.log(1)] == [(200, len(content))]
    assert cache.peak_memory - before < 60 * MIB  # fifty readers here in Python, of a quarter MiB and a copy each


async def test_nginx_is_asked_whether_the_file_has_changed_and_says_so(start: Start, upstream: Upstream) -> None:
    upstream.put("kernel", b"MZ old")
    cache = await start()
    url = upstream.url("kernel")
    assert await cache.fetch(url) == [{"source": "upstream", "sha256": sha256(b"MZ old")}]
    assert await cache.fetch(url) == [{"source": "cache", "sha256": sha256(b"MZ old")}]
    upstream.put("kernel", b"MZ newer")
    assert await cache.fetch(url) == [{"source": "upstream", "sha256": sha256(b"MZ newer")}]
    assert [each.status for each in upstream.log(3)] == [200, 304, 200]
    upstream.stop()
    assert await cache.fetch(url) == [{"source": "stale cache", "sha256": sha256(b"MZ newer")}]


async def test_checksum_beside_the_file_on_nginx_is_heeded(start: Start, upstream: Upstream) -> None:
    upstream.put("kernel", b"MZ kernel")
    done = subprocess.run(["sha256sum", "kernel"], cwd=upstream.www, check=True, capture_output=True)
    upstream.put("kernel.sha256", done.stdout)
    cache = await start()
    assert await cache.fetch(upstream.url("kernel")) == [{"source": "upstream", "sha256": sha256(b"MZ kernel")}]
    upstream.put("kernel", b"MZ evil kernel")
    for _ in range(2):  # the second at once: the failure is remembered for two seconds
        cache.ask(upstream.url("kernel"))
    (answer,) = await cache.answers()
    assert "wrong SHA-256" in answer["error"]
    (answer,) = await cache.answers()
    assert answer == {"source": "stale cache", "sha256": sha256(b"MZ kernel")}


# --- a full disk ---


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


async def test_full_disk_evicts_what_it_can_then_says_so_and_others_go_on(
    start: Start, upstream: Upstream, disk: Path
) -> None:
    files = {name: random.Random(name).randbytes(3 * MIB) for name in "abc"}
    for name, content in files.items():
        upstream.put(name, content)
    upstream.put("big", bytes(20 * MIB))
    cache = await start(disk / "artifacts")
    for name, content in files.items():  # the third does not fit beside the other two
        assert await cache.fetch(upstream.url(name)) == [{"source": "upstream", "sha256": sha256(content)}]
    assert len(list((disk / "artifacts").glob("*.blob"))) == 2
    assert await cache.fetch(upstream.url("b")) == [{"source": "cache", "sha256": sha256(files["b"])}]
    (answer,) = await cache.fetch(upstream.url("big"))
    assert f"no room for {20 * MIB} bytes: its disk has" in answer["error"]
    assert len(list((disk / "artifacts").glob("*.blob"))) == 2  # what would not have helped was not thrown away
    assert list((disk / "artifacts").glob("*.part")) == []
    assert await cache.fetch(upstream.url("c")) == [{"source": "cache", "sha256": sha256(files["c"])}]


async def test_disk_that_others_fill_is_told_and_works_again_when_there_is_room(
    start: Start, upstream: Upstream, disk: Path
) -> None:
    content = random.Random(6).randbytes(3 * MIB)
    upstream.put("kernel", content)
    cache = await start(disk / "artifacts")
    (disk / "theirs").write_bytes(bytes(6 * MIB))
    (answer,) = await cache.fetch(upstream.url("kernel"))
    assert f"no room for {3 * MIB} bytes" in answer["error"]
    (disk / "theirs").unlink()
    await asyncio.sleep(2.1)  # the failure is remembered for so long
    assert await cache.fetch(upstream.url("kernel")) == [{"source": "upstream", "sha256": sha256(content)}]


async def test_budget_is_kept_whatever_is_asked_for(start: Start, upstream: Upstream, tmp_path: Path) -> None:
    cache = await start(budget=5 * MIB)
    for name in "abcdef":
        upstream.put(name, random.Random(name).randbytes(2 * MIB))
        await cache.fetch(upstream.url(name))
        blobs = list((tmp_path / "artifacts").glob("*.blob"))
        assert sum(blob.stat().st_size for blob in blobs) <= 5 * MIB
    assert len(blobs) == 2

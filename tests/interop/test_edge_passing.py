"""A branch whose cache is smaller than a disk image of the center: machines get it all the same, in bounded memory."""

from __future__ import annotations

import hashlib
import os
import random
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.site.site import address_of
from tests.interop.test_edge_workers import WorkersSite
from tests.waiting import wait_until

pytestmark = pytest.mark.long

SIZE = 200_000_007
CACHE_BYTES = 100_000_000
HELD_BYTES = 16 << 20
"""What a reader that has stopped may hold: what is ahead of it, what is behind, and what is rounded."""


class Branch(WorkersSite):
    """Edge 1 fetches through edge 2, which has `disk.raw`."""

    def begin_with(self, workers: str, *options: str) -> None:
        files = self.directory / "data2" / "files"
        files.mkdir(parents=True)
        block, digest = random.Random("disk").randbytes(1 << 20), hashlib.sha256()
        with (files / "disk.raw").open("wb") as disk:
            while (left := SIZE - disk.tell()) > 0:
                part = disk.tell().to_bytes(8, "big") + block
                disk.write(part[:left])
                digest.update(part[:left])
        self.digest = digest.hexdigest()
        self.center()
        self.up(1, "--workers", workers, "--upstream-edge", f"http://{address_of(2)}:7080", *options)
        self.is_ready(1)
        wait_until(lambda: self.metric(1, "tinkedge_upstream_edge_used") == 1, self.said)
        assert all(boot.ok for boot in self.booted(self.machines)), self.said()

    def center(self) -> None:
        self.up(2, "--downstream-edges", "--disable", "dhcp")
        self.is_ready(2)

    @property
    def disk(self) -> Path:
        return self.directory / "data2" / "files" / "disk.raw"

    def part(self, first: int, end: int) -> bytes:
        with self.disk.open("rb") as disk:
            return os.pread(disk.fileno(), end - first, first)

    @property
    def pids(self) -> list[int]:
        return [self.processes[1].popen.pid, *self.workers]

    def anonymous(self) -> int:
        """Bytes of memory with no file behind them that edge 1 has, all processes of it."""
        found = 0
        for pid in self.pids:
            status = Path(f"/proc/{pid}/status").read_text()
            found += 1024 * sum(map(int, re.findall(r"^(?:RssAnon|RssShmem):\s+(\d+) kB", status, re.MULTILINE)))
        return found

    def held(self) -> list[int]:
        """Bytes of each file in memory that the main process has open."""
        directory = Path(f"/proc/{self.processes[1].popen.pid}/fd")
        found: dict[int, int] = {}
        for descriptor in directory.iterdir():
            try:
                if "memfd:passed-through" in str(descriptor.readlink()):
                    status = descriptor.stat()
                    found[status.st_ino] = status.st_blocks * 512
            except FileNotFoundError:
                continue
        return list(found.values())

    def cached(self) -> int:
        return sum(file.stat().st_size for file in (self.directory / "data1").rglob("*.blob"))


class Answer:
    """What a machine is answered, read as it likes."""

    def __init__(self, sock: socket.socket, *headers: str) -> None:
        self.sock = sock
        lines = ["GET /files/disk.raw HTTP/1.1", "Host: x", "Connection: close", *headers]
        sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        received = b""
        while b"\r\n\r\n" not in received:
            more = sock.recv(4096)
            assert more, received
            received += more
        self.head, _, self.begun = received.partition(b"\r\n\r\n")

    def chunks(self) -> Iterator[bytes]:
        yield self.begun
        while more := self.sock.recv(1 << 20):
            yield more

    def digest(self, see: Callable[[int, int], None] = lambda *_: None) -> tuple[str, int]:
        """The SHA-256 of all that comes, and how many bytes that is; `see` is told how many there were and are."""
        digest, count = hashlib.sha256(), 0
        for chunk in self.chunks():
            digest.update(chunk)
            count += len(chunk)
            see(count - len(chunk), count)
        return digest.hexdigest(), count


@pytest.fixture(scope="module", params=["1", "2"], ids=["one process", "two workers"])
def branch(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Branch]:
    """One whose cache is too small."""
    with Branch(tmp_path_factory.mktemp("branch"), edges=2, machines=1) as site:
        site.begin_with(request.param, "--cache-size", str(CACHE_BYTES))
        yield site


def test_disk_image_that_is_larger_than_the_branch_s_cache_is_passed_through(branch: Branch) -> None:
    before, most = branch.anonymous(), 0

    def see(was: int, count: int) -> None:
        nonlocal most
        if was // 5_000_000 < count // 5_000_000:
            most = max(most, branch.anonymous() + sum(branch.held()))

    with branch.connection(1) as sock:
        answer = Answer(sock)
        assert answer.head.startswith(b"HTTP/1.1 200 "), (answer.head, branch.said())
        assert answer.digest(see) == (branch.digest, SIZE)
    assert most - before < 80_000_000
    etag = re.search(rb'ETag: ("[^"]+")', answer.head, re.IGNORECASE)
    assert etag is not None

    # The machine goes on where it was broken off, or asks for some of it.
    last = SIZE - 1_000_000
    for first, end, headers in (
        (1_000_003, 2_000_003, ["Range: bytes=1000003-2000002"]),
        (last, SIZE, [f"Range: bytes={last}-", f"If-Range: {etag[1].decode()}"]),
    ):
        with branch.connection(1) as sock:
            answer = Answer(sock, *headers)
            assert answer.head.startswith(b"HTTP/1.1 206 "), answer.head
            assert b"".join(answer.chunks()) == branch.part(first, end)
    assert branch.cached() < CACHE_BYTES, "it was not to be kept"
    wait_until(lambda: not branch.held(), "files in memory are left open")
    said = f"is passed through, and not kept: {SIZE} bytes are more than the whole cache may hold"
    assert said in branch.said()


def test_machine_that_takes_its_time_holds_little_of_the_branch_s_memory(branch: Branch) -> None:
    def see(was: int, count: int) -> None:
        if was <= 60_000_000 < count:
            branch.processes[2].end()  # and it goes on where it broke off
            (held,) = branch.held()
            assert held <= HELD_BYTES
            branch.center()
            (held,) = branch.held()
            assert held <= HELD_BYTES

    with branch.connection(1) as sock:
        assert Answer(sock).digest(see) == (branch.digest, SIZE), branch.said()
    wait_until(lambda: not branch.held())
    with branch.connection(1) as sock:
        Answer(sock)
        assert len(branch.held()) == 1
    wait_until(lambda: not branch.held(), "the machine has gone")


def test_disk_image_that_fits_is_kept_and_given_again_while_the_center_is_away(tmp_path: Path) -> None:
    with Branch(tmp_path, edges=2, machines=1) as site:
        site.begin_with("2", "--cache-size", "1GB")
        before = site.anonymous()
        for _ in range(2):
            with site.connection(1) as sock:
                assert Answer(sock).digest() == (site.digest, SIZE)
        assert site.anonymous() - before < 60_000_000
        wait_until(lambda: site.cached() >= SIZE)
        site.processes[2].end()
        with site.connection(1) as sock:
            assert Answer(sock).digest() == (site.digest, SIZE)

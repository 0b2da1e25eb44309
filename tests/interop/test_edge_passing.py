"""A branch with a cache smaller than a disk image of the center: machines get the image, in bounded memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import enter_namespace
from tests.interop.site.machine import Boot, Machine
from tests.interop.site.site import Site, address_of, mac_of
from tests.unit.bundle import layouts
from tests.waiting import wait_until

pytestmark = pytest.mark.long

SIZE = 200_000_007
CACHE_BYTES = 100_000_000
HELD_BYTES = 16 << 20
"""The most bytes on disk for a stalled reader: read-ahead, data behind it, and rounding."""


class ReadingSite(Site):
    """Edges, and machines whose connections a test reads at its own pace."""

    def journey(self, machine: int) -> list[dict[str, Any]]:
        token = (self.directory / "data1" / "admin-token").read_text().strip()
        url = f"http://127.0.0.1:7081/api/v1/machines/{mac_of(machine)}/events"
        events: list[dict[str, Any]] = json.loads(self.curl("edge1", url, "-H", f"Authorization: Bearer {token}"))
        return events

    def booted(self, machines: Iterator[int] | range) -> list[Boot]:
        def boot(number: int) -> Boot:
            machine = Machine(self, number)
            machine.enter()
            return machine.boot()

        with ThreadPoolExecutor(len(self.machines)) as pool:
            return list(pool.map(boot, machines))

    def get(self, machine: int, path: str, *, method: str = "GET") -> bytes:
        """Fetch a whole response as a machine, on a connection of its own."""
        with self.connection(machine) as sock:
            return fetched(sock, path, method)

    @contextlib.contextmanager
    def connection(self, machine: int) -> Iterator[socket.socket]:
        def connect() -> socket.socket:
            enter_namespace(self.namespaces[f"m{machine}"])
            return socket.create_connection((address_of(1), 7080), 20)

        with ThreadPoolExecutor(1) as thread:
            sock = thread.submit(connect).result()
        with sock:
            yield sock


def fetched(sock: socket.socket, path: str, method: str = "GET") -> bytes:
    sock.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    received = b""
    while more := sock.recv(1 << 20):
        received += more
    return received


class Branch(ReadingSite):
    """Edge 1 fetches through edge 2, which has `disk.raw`."""

    def begin_with(self, *options: str) -> None:
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
        self.up(1, "--upstream-edge", f"http://{address_of(2)}:7080", *options)
        self.is_ready(1)
        wait_until(lambda: self.metric(1, "tinkedge_upstream_edge_used") == 1, self.output)
        assert all(boot.ok for boot in self.booted(self.machines)), self.output()

    def center(self) -> None:
        self.up(2, "--downstream-edges", "--disable", "dhcp")
        self.is_ready(2)

    @property
    def disk(self) -> Path:
        return self.directory / "data2" / "files" / "disk.raw"

    def part(self, first: int, end: int) -> bytes:
        with self.disk.open("rb") as disk:
            return os.pread(disk.fileno(), end - first, first)

    def anonymous(self) -> int:
        """Return the bytes of anonymous memory of edge 1."""
        status = Path(f"/proc/{self.processes[1].popen.pid}/status").read_text()
        return 1024 * sum(map(int, re.findall(r"^(?:RssAnon|RssShmem):\s+(\d+) kB", status, re.MULTILINE)))

    def memory_file_sizes(self) -> list[int]:
        """Return the size of each memory file that the main process has open."""
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
    """A response to a machine, read at the test's pace."""

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
        """Read to the end; return the SHA-256 and the size. `see` is called with the size before and after a chunk."""
        digest, count = hashlib.sha256(), 0
        for chunk in self.chunks():
            digest.update(chunk)
            count += len(chunk)
            see(count - len(chunk), count)
        return digest.hexdigest(), count


@pytest.fixture(scope="module")
def branch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Branch]:
    """Start a branch with a cache that is too small."""
    with Branch(tmp_path_factory.mktemp("branch"), edges=2, machines=1) as site:
        site.begin_with("--cache-size", str(CACHE_BYTES))
        yield site


def test_disk_image_that_is_larger_than_the_branch_s_cache_is_passed_through(branch: Branch) -> None:
    before, most = branch.anonymous(), 0

    def see(was: int, count: int) -> None:
        nonlocal most
        if was // 5_000_000 < count // 5_000_000:
            most = max(most, branch.anonymous() + sum(branch.memory_file_sizes()))

    with branch.connection(1) as sock:
        answer = Answer(sock)
        assert answer.head.startswith(b"HTTP/1.1 200 "), (answer.head, branch.output())
        assert answer.digest(see) == (branch.digest, SIZE)
    assert most - before < 80_000_000
    etag = re.search(rb'ETag: ("[^"]+")', answer.head, re.IGNORECASE)
    assert etag is not None

    # The machine resumes the transfer, or requests a range.
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
    wait_until(lambda: not branch.memory_file_sizes(), "memory files stay open")
    message = f"is passed through, and not kept: {SIZE} bytes are more than the whole cache may hold"
    assert message in branch.output()


def test_slow_machine_holds_little_of_the_branch_s_memory(branch: Branch) -> None:
    def see(was: int, count: int) -> None:
        if was <= 60_000_000 < count:
            branch.processes[2].end()  # and the transfer resumes
            (held,) = branch.memory_file_sizes()
            assert held <= HELD_BYTES
            branch.center()
            (held,) = branch.memory_file_sizes()
            assert held <= HELD_BYTES

    with branch.connection(1) as sock:
        assert Answer(sock).digest(see) == (branch.digest, SIZE), branch.output()
    wait_until(lambda: not branch.memory_file_sizes())
    with branch.connection(1) as sock:
        Answer(sock)
        assert len(branch.memory_file_sizes()) == 1
    wait_until(lambda: not branch.memory_file_sizes(), "the machine has gone")


def test_disk_image_that_fits_is_cached_and_served_while_the_center_is_away(tmp_path: Path) -> None:
    with Branch(tmp_path, edges=2, machines=1) as site:
        site.begin_with("--cache-size", "1GB")
        before = site.anonymous()
        for _ in range(2):
            with site.connection(1) as sock:
                assert Answer(sock).digest() == (site.digest, SIZE)
        assert site.anonymous() - before < 60_000_000
        wait_until(lambda: site.cached() >= SIZE)
        site.processes[2].end()
        with site.connection(1) as sock:
            assert Answer(sock).digest() == (site.digest, SIZE)


def test_files_and_images_of_the_center_cross_the_link_to_a_branch_once(tmp_path: Path) -> None:
    with ReadingSite(tmp_path, edges=2, machines=1) as site:
        data = site.directory / "data2"
        (data / "files").mkdir(parents=True)
        disk = random.Random("disk").randbytes(3_000_001)
        (data / "files" / "debian.raw").write_bytes(disk)
        image = layouts.image(data / "images", b"layer" * 100_000)
        layouts.index(data / "images", actions_inspect=image)
        site.up(2, "--downstream-edges", "--disable", "dhcp")
        site.is_ready(2)
        site.up(1, "--upstream-edge", f"http://{address_of(2)}:7080")
        site.is_ready(1)
        wait_until(lambda: site.metric(1, "tinkedge_upstream_edge_used") == 1, site.output)
        assert all(boot.ok for boot in site.booted(site.machines)), site.output()
        before = site.metric(2, "tinkedge_peer_served_bytes_total")

        def body(path: str) -> bytes:
            head, _, content = site.get(1, path).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), (head, site.output())
            return content

        assert [body("/files/debian.raw") == disk for _ in range(4)] == [True] * 4
        manifest = json.loads(body("/v2/actions/inspect/manifests/1"))
        blobs = [each["digest"] for each in (manifest["config"], *manifest["layers"])]
        sizes = [len(body(f"/v2/actions/inspect/blobs/{digest}")) for digest in blobs for _ in range(2)]
        assert sizes[-1] == 500_000
        sent = site.metric(2, "tinkedge_peer_served_bytes_total") - before
        assert sent == len(disk) + image["size"] + sum(sizes) // 2, "each once"
        assert site.get(1, "/files/none").startswith(b"HTTP/1.1 404 ")
        messages = wait_until(lambda: [event["message"] for event in site.journey(1) if event["outcome"] == "failed"])
        assert len(messages) == 1, messages
        assert f"the edge at {address_of(2)}:7080 has no such file either" in messages[0]
        site.processes[2].end()
        assert body("/files/debian.raw") == disk, "the center is away"


def test_edges_that_know_each_other_fetch_a_file_once_and_name_each_other_in_scripts(tmp_path: Path) -> None:
    with ReadingSite(tmp_path, edges=2, machines=2) as site:
        for edge in site.edges:
            site.up(edge, *site.find_each_other())
        for edge in site.edges:
            site.is_ready(edge)
            site.knows(edge, 1)
        wait_until(lambda: all(boot.ok for boot in site.booted(site.machines)), site.output)
        script = site.get(1, f"/ipxe/script/{mac_of(1)}/auto.ipxe")
        assert address_of(2).encode() in script, script
        assert site.fetched("initrd").count(200) == 1, "one edge has it from the upstream, the other one from there"

"""An edge with two workers, as real processes: machines boot, a worker is killed, and only its clients notice.

The machines are `tests.interop.site.machine`; HTTP and TFTP of the edge are served by its workers alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import enter_namespace
from tests.interop.site.machine import Boot, Machine
from tests.interop.site.site import Site, address_of, file_bytes, mac_of
from tests.unit.bundle import layouts
from tests.waiting import wait_until

pytestmark = pytest.mark.long

EDGE = address_of(1)
DISK = random.Random("disk").randbytes(24_000_001)
"""More than sockets hold, so that a download of which nothing is taken is under way."""


def stat_of(pid: int) -> list[str]:
    """What the kernel says of a process after its name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


class WorkersSite(Site):
    """One edge with two workers, and what there is to see of it."""

    def begin(self, *options: str) -> None:
        self.up(1, "--workers", "2", *options)
        self.is_ready(1)

    @property
    def main(self) -> int:
        return int(stat_of(self.workers[0])[1])

    @property
    def workers(self) -> list[int]:
        found = []
        for pid in self.inside("edge1"):
            with contextlib.suppress(OSError):
                if b"edge.run.workers" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return sorted(found)

    @property
    def second(self) -> int:
        """The process of worker 2: of those that died once more, the youngest."""
        return max(self.workers, key=lambda pid: int(stat_of(pid)[19]))

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
        """What a machine is answered, all of it; on a connection of its own."""
        with self.connection(machine) as sock:
            return fetched(sock, path, method)

    @contextlib.contextmanager
    def connection(self, machine: int) -> Iterator[socket.socket]:
        def connect() -> socket.socket:
            enter_namespace(self.namespaces[f"m{machine}"])
            return socket.create_connection((EDGE, 7080), 20)

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


def taken(sock: socket.socket) -> bytes:
    """What comes until the connection ends, however it does."""
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while more := sock.recv(1 << 20):
            received += more
    return bytes(received)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkersSite]:
    with WorkersSite(tmp_path_factory.mktemp("workers"), edges=1, machines=4) as site:
        (site.directory / "data1" / "files").mkdir(parents=True)
        (site.directory / "data1" / "files" / "disk.raw").write_bytes(DISK)
        site.begin()
        yield site


def whole(site: WorkersSite, machine: int) -> list[dict[str, Any]] | None:
    """Its journey, once all is in it that it has fetched."""
    journey = site.journey(machine)
    sent = {event["step"] for event in journey if event["detail"].get("size_bytes")}
    return journey if {"kernel", "initrd", "tftp"} <= sent else None


def assert_straight(boots: list[Boot]) -> None:
    """Each went to its end at the first try."""
    assert all(boot.ok and not boot.restarts for boot in boots), [(boot.machine, boot.why) for boot in boots]


def test_machines_boot_from_workers_and_their_journeys_are_whole(site: WorkersSite) -> None:
    assert len(site.workers) == 2
    assert site.metric(1, "tinkedge_worker_up") == 2, "it is ready when all of them are"
    boots = site.booted(site.machines)
    assert_straight(boots)
    for machine in site.machines:
        # What a worker has sent is told when it has seen the end of it, maybe after the machine.
        seen = wait_until(partial(whole, site, machine), partial(site.journey, machine))
        steps = dict.fromkeys(event["step"] for event in seen)
        order = ["tftp", "script", "kernel", "initrd"]
        assert [step for step in steps if step in order] == order
    assert site.fetched("kernel").count(200) == 1, "one download for all workers"
    size = len(file_bytes("initrd")) * len(boots)
    assert site.metric(1, "tinkedge_sent_bytes_total") >= size


def test_a_worker_that_is_killed_is_replaced_and_only_its_downloads_break(site: WorkersSite) -> None:
    path = "/osie/lab/initrd"
    assert all(boot.ok for boot in site.booted(range(1, 2))), site.said()
    doomed, other = site.workers
    with contextlib.ExitStack() as stack:
        # Enough for both workers to have some: which one a connection gets is the kernel's to say.
        downloads = [stack.enter_context(site.connection(1)) for _ in range(16)]
        for sock in downloads:
            sock.sendall(b"GET /files/disk.raw HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            sock.recv(1)
        os.kill(doomed, signal.SIGKILL)
        # Nobody is refused meanwhile.
        for _ in range(16):
            assert site.get(1, path).partition(b"\r\n\r\n")[2] == file_bytes("initrd"), site.said()
        whole = sum(taken(sock).endswith(DISK[-1000:]) for sock in downloads)
    broken = len(downloads) - whole
    assert whole > 0, "the other worker's go on"
    assert broken > 0, "the test has killed the one that served somebody"
    wait_until(lambda: site.metric(1, "tinkedge_worker_up") == 2, site.said, every=0.2)
    assert other in site.workers
    assert doomed not in site.workers
    assert len(site.workers) == 2
    assert site.metric(1, "tinkedge_worker_restarts_total") == 1
    wait_until(lambda: "worker 1 is there again" in site.processes[1].err, site.said)
    assert_straight(site.booted(range(1, 5)))


def test_a_changed_hardware_is_served_at_once_by_all_workers(site: WorkersSite) -> None:
    assert all(boot.ok for boot in site.booted(range(1, 2))), site.said()
    before = len(of_metadata(site))
    patch = {"spec": {"instance": {"userdata": "#cloud-config\n# changed\n"}}}
    site.kubectl("patch", "hardware", "m1", "--type=merge", "-p", json.dumps(patch))

    site.get(1, "/2009-04-04/user-data")
    wait_until(lambda: len(of_metadata(site)) > before, site.said)  # by then the main process has told the other worker
    wait_until(lambda: all(b"# changed" in site.get(1, "/2009-04-04/user-data") for _ in range(32)), site.said)
    assert len(of_metadata(site)) == before + 1, "as one process says it: once in a while"


def of_metadata(site: WorkersSite) -> list[str]:
    told = [event["message"] for event in site.journey(1) if event["step"] == "metadata"]
    return [message for message in told if "user-data" in message]


def test_a_worker_that_keeps_dying_is_named_and_all_end_with_the_main_process_however_that_ends(tmp_path: Path) -> None:
    with WorkersSite(tmp_path, edges=1, machines=1) as site:
        site.begin()
        for number in range(1, 4):
            wait_until(lambda: site.metric(1, "tinkedge_worker_up") == 2, site.said, every=0.1)
            os.kill(site.second, signal.SIGKILL)
            wait_until(lambda number=number: site.metric(1, "tinkedge_worker_restarts_total") == number, site.said)
        wait_until(lambda: "times within" in site.curl("edge1", "http://127.0.0.1:7081/readyz"), site.said, every=0.2)
        wait_until(lambda: len(site.workers) == 2, site.said)
        workers = site.workers
        os.kill(site.main, signal.SIGKILL)
        wait_until(lambda: not any(Path(f"/proc/{pid}/stat").exists() for pid in workers), site.said)
        site.begin()
        os.kill(site.main, signal.SIGTERM)
        assert site.processes[1].status() == 0
        wait_until(lambda: not site.workers, site.said)
        assert "ended" not in site.processes[1].err, "a stop says nothing of dead workers"


def test_edges_with_workers_know_each_other_and_share_what_they_have(tmp_path: Path) -> None:
    with WorkersSite(tmp_path, edges=2, machines=2) as site:
        for edge in site.edges:
            site.up(edge, "--workers", "2", *site.find_each_other())
        for edge in site.edges:
            site.is_ready(edge)
            site.knows(edge, 1)
        # Scripts that workers make name the other edge.
        wait_until(lambda: all(boot.ok for boot in site.booted(site.machines)), site.said)
        script = site.get(1, f"/ipxe/script/{mac_of(1)}/auto.ipxe")
        assert address_of(2).encode() in script, script
        assert site.fetched("initrd").count(200) == 1, "one edge has it from the upstream, the other one from there"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_files_and_images_of_the_center_cross_the_link_to_a_branch_once(tmp_path: Path, workers: str) -> None:
    with WorkersSite(tmp_path, edges=2, machines=1) as site:
        data = site.directory / "data2"
        (data / "files").mkdir(parents=True)
        disk = random.Random("disk").randbytes(3_000_001)
        (data / "files" / "debian.raw").write_bytes(disk)
        image = layouts.image(data / "images", b"layer" * 100_000)
        layouts.index(data / "images", actions_inspect=image)
        site.up(2, "--downstream-edges", "--disable", "dhcp")
        site.is_ready(2)
        site.up(1, "--workers", workers, "--upstream-edge", f"http://{address_of(2)}:7080")
        site.is_ready(1)
        wait_until(lambda: site.metric(1, "tinkedge_upstream_edge_used") == 1, site.said)
        assert all(boot.ok for boot in site.booted(site.machines)), site.said()
        before = site.metric(2, "tinkedge_peer_served_bytes_total")

        def body(path: str) -> bytes:
            head, _, content = site.get(1, path).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), (head, site.said())
            return content

        assert [body("/files/debian.raw") == disk for _ in range(4)] == [True] * 4
        manifest = json.loads(body("/v2/actions/inspect/manifests/1"))
        blobs = [each["digest"] for each in (manifest["config"], *manifest["layers"])]
        sizes = [len(body(f"/v2/actions/inspect/blobs/{digest}")) for digest in blobs for _ in range(2)]
        assert sizes[-1] == 500_000
        sent = site.metric(2, "tinkedge_peer_served_bytes_total") - before
        assert sent == len(disk) + image["size"] + sum(sizes) // 2, "each once"
        assert site.get(1, "/files/none").startswith(b"HTTP/1.1 404 ")
        said = wait_until(lambda: [event["message"] for event in site.journey(1) if event["outcome"] == "failed"])
        assert len(said) == 1, said
        assert f"the edge at {address_of(2)}:7080 has no such file either" in said[0]
        site.processes[2].end()
        assert body("/files/debian.raw") == disk, "the center is away"

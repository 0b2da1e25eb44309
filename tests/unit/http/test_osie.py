"""Kernels and initrds: streamed, cached, resumed, with every failure shown to machine, log and journey.

The threads that send files: every machine gets a share, no descriptor leaks, and no byte is sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from edge.artifacts.artifact import Artifact, Source, StorageError
from edge.http import files, osie
from edge.http.files import AbortedError, BodySender, FileEndsError, Part, SendThread
from edge.journey.events import Outcome, Step
from edge.machines import DhcpMode
from tests.support.objects import MAC, OTHER_MAC
from tests.support.virtual_time import turns
from tests.unit.http.conftest import HEALTH, IP, OTHER_IP, Rack
from tests.unit.http.conftest import KERNEL as GET
from tests.waiting import until

pytestmark = pytest.mark.long

KERNEL = "/osie/lab/kernel"
SIZE = 4 << 20
"""Size of the upstream's file."""


async def noted(rack: Rack, count: int) -> None:
    """The journey entry comes after the last byte has left; wait for it."""
    await until(lambda: len(rack.lines()) >= count)


async def test_kernel_comes_from_the_upstream_then_from_the_cache(rack):
    rack.register()
    first = await rack.ask(KERNEL)
    assert first.body == rack.upstream.content
    assert first.headers["Content-Length"] == str(SIZE)
    assert first.headers["Content-Type"] == "application/octet-stream"
    await noted(rack, 1)
    await until(lambda: not rack.cache.downloads())  # the machine has it all before it is on the disk
    second = await rack.ask(KERNEL)
    assert second.body == rack.upstream.content
    assert second.headers["ETag"] == first.headers["ETag"]
    await noted(rack, 2)
    assert len(rack.upstream.requests) == 1
    (step, outcome, line), (_, _, again) = rack.lines()
    assert (step, outcome) == (Step.KERNEL, Outcome.OK)
    assert re.fullmatch(r"kernel of OSIE default/lab sent: 4\.2 MB in \d+\.\d+ s \(upstream\)", line)
    assert again.endswith(" s (cache)")
    detail = rack.ends()[0].detail
    assert (detail["size_bytes"], detail["source"]) == (SIZE, "upstream")
    assert (await rack.ask("/osie/lab/initrd")).body == rack.upstream.content  # which is another file
    await noted(rack, 3)
    assert (rack.lines()[2][0], len(rack.upstream.requests)) == (Step.INITRD, 2)


async def test_local_file_is_sent_as_it_is_and_has_one_line(rack, tmp_path, monkeypatch):
    monkeypatch.setattr(osie, "FIRST_PROGRESS_SECONDS", 0.0)
    path = tmp_path / "vmlinuz"
    path.write_bytes(b"k" * 3_000_000)
    rack.osies["default", "lab"]["spec"]["kernelUrl"] = path.as_uri()
    rack.register()
    for number in (1, 2):
        assert (await rack.ask(KERNEL)).body == path.read_bytes()
        await noted(rack, number)
        assert len(rack.lines()) == number
        assert rack.lines()[-1][2].endswith("(file)")


async def test_download_is_resumed_by_range_with_the_values_of_head(rack):
    rack.register()
    head = await rack.ask(KERNEL, method="HEAD")
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(SIZE))
    reply = await rack.ask(KERNEL, Range=f"bytes={SIZE - 10}-", If_Match=head.headers["ETag"])
    assert (reply.status, reply.body) == (206, rack.upstream.content[-10:])
    assert reply.headers["Content-Range"] == f"bytes {SIZE - 10}-{SIZE - 1}/{SIZE}"
    whole = await rack.ask(KERNEL, Range="bytes=5-", If_Range='"other"')
    assert (whole.status, len(whole.body)) == (200, SIZE)
    assert (await rack.ask("/healthz")).text == "ok\n"
    await noted(rack, 2)
    assert len(rack.lines()) == 2, "none of the head"


@pytest.mark.parametrize(
    ("mode", "status", "reason"),
    [("404", 404, "404 Not Found"), ("500", 502, "500 Internal"), ("", 502, "the upstream answered with a web page")],
)
async def test_upstream_failure_is_shown_to_machine_log_and_journey(rack, caplog, mode, status, reason):
    rack.register()
    rack.upstream.mode, rack.upstream.kind = mode, "text/html"
    rack.upstream.content = b"<html>please log in</html>"
    reply = await rack.ask(KERNEL)
    url = rack.osies["default", "lab"]["spec"]["kernelUrl"]
    assert reply.status == status
    assert reply.text.startswith(f"OSIE default/lab: kernelUrl {url}: {reason}")
    assert "please log in" not in reply.text
    assert rack.lines() == [(Step.KERNEL, Outcome.FAILED, reply.text.rstrip("\n"))]
    assert reply.text.rstrip("\n") in caplog.text


async def test_upstream_that_refuses_or_stalls_is_reported_with_its_status(other_rack, monkeypatch):
    monkeypatch.setattr(osie, "PROGRESS_SECONDS", 0.05)
    async with other_rack(silence_seconds=0.3) as rack:
        rack.register()
        spec = rack.osies["default", "lab"]["spec"]
        spec["kernelUrl"] = "http://127.0.0.1:1/kernel"
        assert (await rack.ask(KERNEL)).status == 502
        before = len(rack.lines())
        with socket.create_server(("127.0.0.1", 0)) as deaf:  # it accepts connections and never answers
            spec["kernelUrl"] = f"http://127.0.0.1:{deaf.getsockname()[1]}/kernel"
            assert (await rack.ask(KERNEL)).status == 504
        first, *_, last = rack.lines()[before:]
    assert first[:2] == (Step.KERNEL, Outcome.INFO)
    assert re.fullmatch(r"kernel of OSIE default/lab: waiting for 127\.0\.0\.1 for \d+ s", first[2])
    assert last[:2] == (Step.KERNEL, Outcome.FAILED)


async def test_upstream_that_dies_midway_breaks_the_machines_connection(rack):
    rack.register()
    rack.upstream.mode = "dies"
    with pytest.raises(Exception, match=r"payload|closed|disconnected|reset"):
        await rack.ask(KERNEL)
    await noted(rack, 1)
    ((step, outcome, message),) = rack.lines()
    assert (step, outcome) == (Step.KERNEL, Outcome.FAILED)
    assert "connection broke after" in message
    rack.upstream.mode = ""
    assert (await rack.ask(KERNEL)).body == rack.upstream.content


async def test_reason_is_on_the_machines_screen_until_the_kernel_comes(rack):
    script = f"/ipxe/script/{MAC}/auto.ipxe"
    rack.register()
    rack.upstream.mode = "404"
    message = (await rack.ask(KERNEL)).text.rstrip("\n")
    assert f"echo {message}\n" in (await rack.ask(f"{script}?failed")).text
    assert "osie/lab/kernel" in (await rack.ask(script)).text
    rack.upstream.mode = ""
    await rack.ask(KERNEL)
    await noted(rack, 3)
    no_failure = (await rack.ask(f"{script}?failed")).text
    assert "osie/lab" not in no_failure  # iPXE would run the boot script again, without end
    assert "the connection to this machine broke" in no_failure


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (None, "OSIE default/lab does not exist"),
        ({"initrdUrl": "http://h/i"}, "OSIE default/lab: spec.kernelUrl: Field required"),
    ],
)
async def test_osie_that_leads_nowhere_is_named(rack, spec, reason):
    rack.register()
    del rack.osies["default", "lab"]
    if spec is not None:
        rack.osies["default", "lab"] = {"metadata": {"name": "lab"}, "spec": spec}
    reply = await rack.ask(KERNEL)
    assert (reply.status, reply.text) == (404, reason + "\n")
    assert rack.lines() == [(Step.KERNEL, Outcome.FAILED, reason)]


async def test_kernel_is_for_registered_machines_of_the_osies_namespace_that_may_netboot(rack):
    reply = await rack.ask(KERNEL)
    assert (reply.status, reply.text) == (403, f"no Hardware has the address {IP}\n")
    rack.register(interface={"disableNetboot": True})
    assert (await rack.ask(KERNEL)).status == 403
    assert rack.lines()[0][:2] == (Step.KERNEL, Outcome.REFUSED)
    rack.osies["other", "lab"] = rack.osies.pop(("default", "lab"))
    rack.register()
    assert (await rack.ask(KERNEL)).status == 404
    assert rack.upstream.requests == []
    rack.register("m2", OTHER_MAC, OTHER_IP, namespace="other")
    assert (await rack.ask(KERNEL, ip=OTHER_IP)).body == rack.upstream.content


async def test_only_so_many_failures_are_kept(monkeypatch, other_rack):
    monkeypatch.setattr(osie, "MAX_FAILURES", 1)
    async with other_rack() as rack:
        rack.register()
        rack.register("m2", OTHER_MAC, OTHER_IP)
        rack.upstream.mode = "404"
        for ip in (IP, OTHER_IP):
            await rack.ask(KERNEL, ip=ip)
        for mac, ip, kept in ((MAC, IP, False), (OTHER_MAC, OTHER_IP, True)):
            shown = await rack.ask(f"/ipxe/script/{mac}/auto.ipxe?failed", ip=ip)
            assert ("404 Not Found" in shown.text) is kept


# --- what the journey shows while the upstream sends ---


async def test_journey_shows_how_far_a_slow_upstream_has_come(rack, monkeypatch):
    monkeypatch.setattr(osie, "FIRST_PROGRESS_SECONDS", 0.05)
    monkeypatch.setattr(osie, "PROGRESS_SECONDS", 0.1)
    rack.register()
    rack.register("m2", OTHER_MAC, OTHER_IP)
    rack.upstream.gate.clear()
    asking = asyncio.create_task(rack.ask(KERNEL))
    told = (Step.KERNEL, Outcome.INFO, "kernel of OSIE default/lab is being fetched from 127.0.0.1: 2.1 MB of 4.2 MB")
    await until(lambda: told in rack.lines(), rack.lines)
    rack.upstream.gate.set()
    assert (await asking).body == rack.upstream.content
    await until(lambda: rack.lines()[-1][1] is Outcome.OK)
    # What another machine hears in the meantime, twice, the first one hears no more.
    rack.upstream.gate.clear()
    asking = asyncio.create_task(rack.ask("/osie/lab/initrd", ip=OTHER_IP))
    await until(lambda: len(rack.lines(OTHER_MAC)) >= 3)
    rack.upstream.gate.set()
    await asking
    *progress, (step, outcome, last) = rack.lines()
    assert told in progress
    assert {(each[0], each[1]) for each in progress} == {(Step.KERNEL, Outcome.INFO)}
    assert (step, outcome) == (Step.KERNEL, Outcome.OK)
    assert last.endswith("(upstream)")


@pytest.mark.parametrize("stalled", [False, True])
async def test_machine_that_leaves_while_it_waits_for_the_upstream_is_noticed_and_not_blamed_if_that_stalls(
    rack, monkeypatch, stalled
):
    monkeypatch.setattr(files, "GONE_SECONDS", 0.1)
    monkeypatch.setattr(osie, "STALLED_SECONDS", 0.0 if stalled else 600.0)
    rack.register()
    rack.upstream.gate.clear()
    connection = await rack.connect()
    connection.write(GET)
    await connection.head()
    await connection.read(SIZE // 2)
    connection.writer.transport.abort()
    await noted(rack, 1)
    ((_, outcome, message),) = rack.lines()
    assert outcome is Outcome.FAILED
    if stalled:
        why = r"127\.0\.0\.1 had sent nothing for \d+ s, and the machine gave up"
        assert re.search(rf"stalled after .* of 4\.2 MB: {why}", message)
    else:
        assert message.endswith("of 4.2 MB: it closed the connection")


async def test_wrong_checksum_never_leaves_a_machine_with_a_whole_file(rack):
    rack.register()
    annotation = {"tinkerbell.org/kernel-sha256": "0" * 64}
    rack.osies["default", "lab"]["metadata"]["annotations"] = annotation
    with contextlib.suppress(aiohttp.ClientError):
        reply = await rack.ask(KERNEL)
        assert reply.status == 502
    await noted(rack, 1)
    # A client that has not read the head yet when the connection breaks asks a second time.
    for step, outcome, message in rack.lines():
        assert (step, outcome) == (Step.KERNEL, Outcome.FAILED)
        assert "OSIE default/lab: kernelUrl http://127.0.0.1" in message
        assert "SHA-256" in message
    annotation["tinkerbell.org/kernel-sha256"] = hashlib.sha256(rack.upstream.content).hexdigest()
    assert (await rack.ask(KERNEL)).body == rack.upstream.content


# --- machines without a Hardware ---


async def test_machine_without_hardware_has_the_default_osie_and_nothing_else(other_rack):
    async with other_rack(mode=DhcpMode.AUTO_PROXY, default_osie=("default", "lab")) as rack:
        rack.osies["default", "secret"] = rack.osies["default", "lab"]
        rack.callers.learn(MAC, IP)
        assert (await rack.ask(KERNEL)).body == rack.upstream.content
        for path, status in (
            ("/osie/secret/kernel", 403),
            ("/latest/meta-data/instance-id", 404),
            ("/nocloud/m1/user-data", 404),
        ):
            assert (await rack.ask(path)).status == status
        await noted(rack, 1)
        assert rack.lines()[0][:2] == (Step.KERNEL, Outcome.OK)
        # An unknown machine gets it, too.
        assert (await rack.ask(KERNEL, ip="127.0.0.77")).body == rack.upstream.content
        # One that failed sees why, and is not sent round in circles.
        script = f"/ipxe/script/{MAC}/auto.ipxe"
        assert "/osie/lab/kernel" in (await rack.ask(script)).text
        rack.upstream.mode = "404"
        assert (await rack.ask("/osie/lab/initrd", ip="127.0.0.77")).status == 404
        await rack.ask("/osie/lab/initrd")
        failed = (await rack.ask(f"{script}?failed")).text
        assert ("404 Not Found" in failed, "/osie/lab/" in failed) == (True, False)


async def test_machine_with_hardware_has_its_own_osies_whatever_the_default(other_rack):
    async with other_rack(mode=DhcpMode.AUTO_PROXY, default_osie=("other", "lab")) as rack:
        rack.osies["other", "lab"] = {"metadata": {"name": "lab"}, "spec": {}}
        rack.register()
        rack.callers.learn(MAC, "127.0.0.44")  # where another DHCP server put it
        assert (await rack.ask(KERNEL, ip="127.0.0.44")).body == rack.upstream.content
        rack.register(interface={"disableNetboot": True})
        assert (await rack.ask(KERNEL, ip="127.0.0.44")).status == 403


@pytest.mark.parametrize(
    ("mode", "default"),
    [(DhcpMode.RESERVATION, ("default", "lab")), (DhcpMode.PROXY, ("default", "lab")), (DhcpMode.AUTO_PROXY, None)],
)
async def test_no_default_osie_for_strangers_unless_both_are_wanted(other_rack, mode, default):
    async with other_rack(mode=mode, default_osie=default) as rack:
        reply = await rack.ask(KERNEL)
        assert (reply.status, reply.text) == (403, f"no Hardware has the address {IP}\n")
        assert rack.upstream.requests == []


# --- machines that misbehave ---


async def stuck(rack: Rack, count: int) -> None:
    for _ in range(count):
        (await rack.connect(receive_buffer=4096)).write(GET)


async def test_machine_that_stops_reading_holds_no_thread_and_is_given_up(other_rack):
    async with other_rack() as rack:
        rack.register()
        rack.register("m2", OTHER_MAC, OTHER_IP)
        await stuck(rack, 4)  # twice as many as there are threads
        assert (await rack.ask(KERNEL, ip=OTHER_IP)).body == rack.upstream.content
        assert (await rack.ask("/healthz")).status == 200
        assert not rack.lines(), "it had to wait until one of them was given up"
    async with other_rack(idle_seconds=0.05) as rack:
        rack.register()
        await stuck(rack, 4)

        def given_up() -> list[str]:
            """On a busy machine the journey has more to tell: that a file is still being fetched."""
            return [message for _, outcome, message in rack.lines() if outcome is Outcome.FAILED]

        await until(lambda: len(given_up()) == 4, rack.lines)
        assert [message for message in given_up() if not message.endswith("it took no byte for 0.05 s")] == []


async def test_machine_that_hangs_up_is_noticed(rack):
    rack.register()
    await stuck(rack, 1)
    await rack.connections[0].read(1000)
    rack.connections[0].writer.transport.abort()
    await noted(rack, 1)
    ((_, outcome, message),) = rack.lines()
    assert outcome is Outcome.FAILED
    assert "kernel of OSIE default/lab broken off after " in message
    assert message.endswith("of 4.2 MB: it closed the connection")


async def test_pipelined_requests_are_answered_in_order_although_bodies_go_around_the_event_loop(rack):
    rack.register()
    rack.binaries["big.efi"] = SimpleNamespace(content=b"b" * 8_000_000, etag='"big"')
    connection = await rack.connect(receive_buffer=4096)
    connection.write(b"GET /ipxe/binary/big.efi HTTP/1.1\r\nHost: x\r\n\r\n" + GET + HEALTH)
    # The first answer is stuck in the server's buffers, and the second request behind it.
    await until(lambda: [each for each in rack.open if each.transport.get_write_buffer_size()])
    for content in (b"b" * 8_000_000, rack.upstream.content, b"ok\n"):
        assert (await connection.head()).startswith(b"HTTP/1.1 200")
        assert await connection.read(len(content)) == content


# --- the threads that send files ---

CONTENT = os.urandom(1 << 20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "kernel").write_bytes(CONTENT)
    return tmp_path / "kernel"


@pytest.fixture
def file(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def thread() -> Iterator[SendThread]:
    """One that gives no machine up while a test lasts."""
    thread = SendThread("test", idle_seconds=60)
    yield thread
    thread.stop()


def socketpair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socketpair()
    with ours, theirs:
        yield ours, theirs


async def received(sock: socket.socket, size: int) -> bytes:
    parts = []
    while size > 0:
        part = await asyncio.get_running_loop().sock_recv(sock, min(size, 100_000))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def sent(thread: SendThread, sock: socket.socket, file: int, begin: int = 0, end: int = len(CONTENT)) -> asyncio.Task:
    return asyncio.create_task(thread.send(Part(sock.fileno(), file, begin, end)))


async def test_part_of_a_file_arrives_as_it_is(thread, file, pair):
    before = descriptors()
    sending = sent(thread, pair[0], file, 1000, 900_000)
    assert await received(pair[1], 899_000) == CONTENT[1000:900_000]
    await sending
    await until(lambda: descriptors() <= before)
    pair[0].close()
    assert await received(pair[1], 1) == b""  # nothing more, and no descriptor keeps the connection open


async def test_machine_that_takes_nothing_is_given_up_and_a_slow_one_is_not(file, pair, monkeypatch):
    now, rounds = 0.0, 0

    def monotonic() -> float:
        nonlocal rounds
        rounds += 1
        return now

    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=monotonic))
    thread, (ours, theirs) = SendThread("test", idle_seconds=60), socketpair()
    with ours, theirs:
        pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        slow, still = (Part(each.fileno(), file, 0, len(CONTENT)) for each in (pair[0], ours))
        sending, stuck = (asyncio.create_task(thread.send(part)) for part in (slow, still))
        await until(lambda: slow.offset and still.offset)
        got = b""
        for _ in range(3):
            now, before, looked = now + 30, slow.offset, rounds
            await until(lambda looked=looked: rounds > looked + 1)  # the thread has seen that it took nothing for 30 s
            while slow.offset == before and not sending.done():
                got += await received(pair[1], min(20_000, slow.offset - len(got)))
                await turns()
        with pytest.raises(AbortedError, match="took no byte for 60 s"):
            await stuck
        got += await received(pair[1], len(CONTENT) - len(got))
        await sending
    assert got == CONTENT
    assert 0 < still.offset < len(CONTENT)
    thread.stop()


async def test_stuck_machine_does_not_delay_others(thread, file, pair):
    stuck = sent(thread, pair[0], file)
    await until(lambda: thread.load)
    ours, theirs = socketpair()
    with ours, theirs:
        sending = sent(thread, ours, file)
        assert await received(theirs, len(CONTENT)) == CONTENT
        await sending
    assert not stuck.done()
    stuck.cancel()
    await asyncio.gather(stuck, return_exceptions=True)


async def test_cancelled_part_is_let_go_at_once(thread, file, pair):
    before = descriptors()
    sending = sent(thread, pair[0], file)
    await until(lambda: thread.load)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await until(lambda: descriptors() <= before)
    assert thread.load == 0


async def test_closed_connection_and_shortened_file_are_reported_differently(thread, file, path, pair):
    os.truncate(path, 1000)
    with pytest.raises(FileEndsError):
        await thread.send(Part(pair[0].fileno(), file, 0, 2000))
    pair[1].close()
    with pytest.raises(ConnectionError):
        await thread.send(Part(pair[0].fileno(), file, 0, 1000))


async def test_stop_aborts_all_parts_and_later_ones_too(thread, file, pair):
    before = descriptors()
    sending = sent(thread, pair[0], file)
    await until(lambda: thread.load)
    thread.stop()
    for each in (sending, sent(thread, pair[0], file)):
        with pytest.raises(AbortedError, match="the edge is stopping"):
            await each
    assert descriptors() <= before


async def test_fast_machines_take_turns(thread, file, monkeypatch):
    monkeypatch.setattr(files, "PIECE_BYTES", 10_000)
    pieces: list[int] = []
    real = os.sendfile

    def noted(sock: int, *rest: int) -> int:
        pieces.append(sock)
        return real(sock, *rest)

    monkeypatch.setattr(os, "sendfile", noted)
    pairs = [socketpair() for _ in range(3)]
    for ours, _ in pairs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    await asyncio.gather(*(sent(thread, ours, file, 0, 100_000) for ours, _ in pairs))
    for each in pairs:
        for sock in each:
            sock.close()
    assert len(pieces) == 30
    # Once all three are there, no one has two turns more than another.
    counts = [pieces[:-3].count(sock) for sock in set(pieces)]
    assert max(counts) - min(counts) <= 3, pieces


async def test_threads_have_a_lower_priority_than_the_event_loop(thread):
    def priorities() -> Iterator[int]:
        for task in list(Path("/proc/self/task").iterdir()):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                yield os.getpriority(os.PRIO_PROCESS, int(task.name))

    lower = min(os.getpriority(os.PRIO_PROCESS, 0) + files.NICENESS, 19)  # the kernel's lowest
    await until(lambda: lower in priorities())


class LazyTransport:
    """Holds the head in its buffer until it has been asked three times, as a loop does that writes later."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.asked = 0
        self.corked = False

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _name: str) -> socket.socket:
        return self.sock

    def get_write_buffer_size(self) -> int:
        self.asked += 1
        self.corked = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK) == 1
        if self.asked == 3:
            self.sock.send(b"head")
        return 7 if self.asked < 3 else 0


class Head(web.StreamResponse):
    """A response whose head was sent already."""

    async def prepare(self, _request: Any) -> Any:
        return None


@pytest.fixture
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def sends(file: int, connected: tuple[socket.socket, socket.socket]) -> Iterator[Any]:
    """Begins to send a file of `size` bytes from byte `start` on, of which `length` bytes are promised."""
    sender = BodySender(threads=1)
    request: Any = SimpleNamespace(transport=LazyTransport(connected[0]))

    async def send(size: int, start: int, length: int) -> Any:
        response = Head()
        response.content_length = length
        with Artifact("http://h/u", os.dup(file), size, "v", Source.FILE, None) as artifact:
            await sender.send(request, response, artifact, start)
        return request.transport

    yield send
    sender.close()


async def test_body_waits_until_the_head_has_left(sends, connected):
    transport = await sends(len(CONTENT), 100, 4)
    assert transport.corked  # the head is no segment of its own
    assert await received(connected[1], 8) == b"head" + CONTENT[100:104]
    assert connected[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK) == 0


async def test_file_that_is_shorter_than_announced_is_an_internal_error(sends, connected):
    sending = asyncio.create_task(sends(len(CONTENT) + 1, 0, len(CONTENT) + 1))
    await received(connected[1], len(CONTENT) + 4)
    with pytest.raises(StorageError, match=f"http://h/u: the file ends before byte {len(CONTENT)}"):
        await sending

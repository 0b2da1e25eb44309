"""x"""

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

from edge.artifacts import Artifact, Source, StorageError
from edge.http.boot import osie
from edge.http.files import body, sendfile
from edge.http.files.body import BodySender
from edge.http.files.sendfile import FileEndsError, IdleError, Part, SendThread, StoppedError
from edge.journey.events import Outcome, Step
from edge.machines import DhcpMode
from tests.unit.http.conftest import IP, MAC, Rack
from tests.waiting import until

KERNEL = "/osie/lab/kernel"


async def noted(rack: Rack, count: int) -> None:
    """The journey entry comes after the last byte has left; wait for it."""
    await until(lambda: len(rack.lines()) >= count)


async def test_kernel_comes_from_the_upstream_then_from_the_cache(rack):
    rack.register()
    first = await rack.ask(KERNEL)
    assert first.body == rack.upstream.content
    assert first.headers["Content-Length"] == str(len(rack.upstream.content))
    assert first.headers["Content-Type"] == "application/octet-stream"
    await noted(rack, 1)
    await until(lambda: not rack.cache._flights)  # the machine has it all before it is on the disk
    second = await rack.ask(KERNEL)
    assert second.body == rack.upstream.content
    assert second.headers["ETag"] == first.headers["ETag"]
    await noted(rack, 2)
    assert rack.upstream.requests == 1
    (step, outcome, line), (_, _, again) = rack.lines()
    assert (step, outcome) == (Step.KERNEL, Outcome.OK)
    assert re.fullmatch(r"kernel of OSIE default/lab sent: 4\.2 MB in \d+\.\d+ s \(upstream\)", line)
    assert again.endswith(" s (cache)")
    detail = rack.ends()[0].detail
    assert detail["size_bytes"] == len(rack.upstream.content)
    assert detail["source"] == "upstream"


async def test_initrd_is_another_file(rack):
    rack.register()
    assert (await rack.ask("/osie/lab/initrd")).body == rack.upstream.content
    await noted(rack, 1)
    assert rack.lines()[0][0] is Step.INITRD


async def test_local_file_is_sent_as_it_is(rack, tmp_path):
    path = tmp_path / "vmlinuz"
    path.write_bytes(b"k" * 3_000_000)
    rack.osies["default", "lab"]["spec"]["kernelUrl"] = path.as_uri()
    rack.register()
    assert (await rack.ask(KERNEL)).body == path.read_bytes()
    await noted(rack, 1)
    assert rack.lines()[0][2].endswith("(file)")


async def test_machine_receives_while_the_upstream_still_sends(rack):
    rack.register()
    rack.upstream.gate.clear()
    asking = asyncio.create_task(rack.ask(KERNEL))
    done, _ = await asyncio.wait([asking], timeout=0.2)
    assert not done
    rack.upstream.gate.set()
    assert (await asking).body == rack.upstream.content


async def test_fifty_machines_at_once_cost_one_fetch_and_all_get_it_whole(rack):
    rack.upstream.content = rack.upstream.content[: 1 << 20]
    for number in range(50):
        rack.register(f"m{number}", f"52:54:00:00:01:{number:02x}", f"127.0.1.{number + 1}")
    replies = await asyncio.gather(*(rack.ask(KERNEL, ip=f"127.0.1.{number + 1}") for number in range(50)))
    assert all(reply.body == rack.upstream.content for reply in replies)
    assert rack.upstream.requests == 1


async def test_head_tells_the_length_of_get_and_the_connection_lives_on(rack):
    rack.register()
    head = await rack.ask(KERNEL, method="HEAD")
    assert (head.status, head.body) == (200, b"")
    reply = await rack.ask(KERNEL)
    assert head.headers["Content-Length"] == str(len(reply.body))
    assert (await rack.ask("/healthz")).text == "ok\n"
    await noted(rack, 1)
    assert len(rack.lines()) == 1


async def test_download_is_resumed_by_range(rack):
    rack.register()
    etag = (await rack.ask(KERNEL, method="HEAD")).headers["ETag"]
    size = len(rack.upstream.content)
    reply = await rack.ask(KERNEL, Range=f"bytes={size - 10}-", If_Match=etag)
    assert (reply.status, reply.body) == (206, rack.upstream.content[-10:])
    assert reply.headers["Content-Range"] == f"bytes {size - 10}-{size - 1}/{size}"
    whole = await rack.ask(KERNEL, Range="bytes=5-", If_Range='"other"')
    assert (whole.status, len(whole.body)) == (200, size)


@pytest.mark.parametrize(("mode", "status", "reason"), [("404", 404, "404 Not Found"), ("500", 502, "500 Internal")])
async def test_upstream_trouble_is_told_to_machine_log_and_journey(rack, caplog, mode, status, reason):
    rack.register()
    rack.upstream.mode = mode
    reply = await rack.ask(KERNEL)
    url = rack.osies["default", "lab"]["spec"]["kernelUrl"]
    assert reply.status == status
    assert reply.text.startswith(f"OSIE default/lab: kernelUrl {url}: {reason}")
    assert rack.lines() == [(Step.KERNEL, Outcome.FAILED, reply.text.rstrip("\n"))]
    assert reply.text.rstrip("\n") in caplog.text


async def test_upstream_that_stalls_is_a_gateway_timeout(rack):
    rack.register()
    rack.osies["default", "lab"]["spec"]["kernelUrl"] = "http://127.0.0.1:1/kernel"
    assert (await rack.ask(KERNEL)).status == 502
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        rack.osies["default", "lab"]["spec"]["kernelUrl"] = f"http://127.0.0.1:{deaf.getsockname()[1]}/kernel"
        assert (await rack.ask(KERNEL)).status == 504


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
    assert "osie/lab" not in no_failure  # iPXE would run the boot script within itself, for ever
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


async def test_kernel_for_registered_machines_that_may_netboot_only(rack):
    reply = await rack.ask(KERNEL)
    assert (reply.status, reply.text) == (403, f"no Hardware has the address {IP}\n")
    rack.register(interface={"disableNetboot": True})
    assert (await rack.ask(KERNEL)).status == 403
    assert rack.lines()[0][:2] == (Step.KERNEL, Outcome.REFUSED)
    assert rack.upstream.requests == 0


async def test_osie_of_another_namespace_is_out_of_reach(rack):
    rack.osies["other", "secret"] = rack.osies["default", "lab"]
    rack.register()
    assert (await rack.ask("/osie/secret/kernel")).status == 404


async def test_machine_has_the_osies_of_its_own_namespace(rack):
    rack.osies["other", "lab"] = rack.osies.pop(("default", "lab"))
    rack.inventory.apply(
        {"metadata": {"name": "m1", "namespace": "other"}, "spec": {"networkInterfaces": {MAC: {"dhcp": {"ip": IP}}}}}
    )
    assert (await rack.ask(KERNEL)).body == rack.upstream.content


@pytest.fixture
def one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(osie, "MAX_FAILURES", 1)


async def test_only_so_many_failures_are_kept(one_failure, rack):
    rack.register()
    rack.register("m2", "52:54:00:00:00:02", "127.0.0.6")
    rack.upstream.mode = "404"
    await rack.ask(KERNEL)
    await rack.ask(KERNEL, ip="127.0.0.6")
    assert "404 Not Found" in (await rack.ask("/ipxe/script/52:54:00:00:00:02/auto.ipxe?failed", ip="127.0.0.6")).text
    assert "404 Not Found" not in (await rack.ask(f"/ipxe/script/{MAC}/auto.ipxe?failed")).text


# --- what the journey shows while the upstream sends ---


async def test_journey_shows_how_far_a_slow_upstream_has_come(rack, monkeypatch):
    monkeypatch.setattr(osie, "FIRST_PROGRESS_SECONDS", 0.05)
    monkeypatch.setattr(osie, "PROGRESS_SECONDS", 0.1)
    rack.register()
    rack.upstream.gate.clear()
    asking = asyncio.create_task(rack.ask(KERNEL))
    told = (Step.KERNEL, Outcome.INFO, "kernel of OSIE default/lab is being fetched from 127.0.0.1: 2.1 MB of 4.2 MB")
    await until(lambda: told in rack.lines(), rack.lines)
    rack.upstream.gate.set()
    assert (await asking).body == rack.upstream.content
    async with asyncio.timeout(20):
        while rack.lines()[-1][1] is not Outcome.OK:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.15)
    *progress, (step, outcome, last) = rack.lines()
    assert told in progress
    assert {(each[0], each[1]) for each in progress} == {(Step.KERNEL, Outcome.INFO)}
    assert (step, outcome) == (Step.KERNEL, Outcome.OK)
    assert last.endswith("(upstream)")


async def test_journey_shows_that_the_upstream_does_not_answer(rack, monkeypatch):
    monkeypatch.setattr(osie, "PROGRESS_SECONDS", 0.2)
    rack.register()
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        rack.osies["default", "lab"]["spec"]["kernelUrl"] = f"http://127.0.0.1:{deaf.getsockname()[1]}/kernel"
        assert (await rack.ask(KERNEL)).status == 504
    first, *_, last = rack.lines()
    assert first[:2] == (Step.KERNEL, Outcome.INFO)
    assert re.fullmatch(r"kernel of OSIE default/lab: waiting for 127\.0\.0\.1 for \d+ s", first[2])
    assert last[:2] == (Step.KERNEL, Outcome.FAILED)


async def test_file_that_is_here_has_one_line(rack, tmp_path, monkeypatch):
    monkeypatch.setattr(osie, "FIRST_PROGRESS_SECONDS", 0.0)
    (tmp_path / "vmlinuz").write_bytes(b"k" * 3_000_000)
    rack.osies["default", "lab"]["spec"]["kernelUrl"] = (tmp_path / "vmlinuz").as_uri()
    rack.register()
    await rack.ask(KERNEL)
    await noted(rack, 1)
    await asyncio.sleep(0.1)
    assert len(rack.lines()) == 1


async def test_machine_that_leaves_while_it_waits_for_the_upstream_is_noticed(rack, monkeypatch):
    monkeypatch.setattr(body, "GONE_SECONDS", 0.1)
    rack.register()
    rack.upstream.gate.clear()
    reader, writer = await raw(rack, GET)
    await reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(0.1)
    writer.transport.abort()
    await noted(rack, 1)
    ((_, outcome, message),) = rack.lines()
    assert outcome is Outcome.FAILED
    assert message.endswith("of 4.2 MB: it closed the connection")


async def test_machine_that_leaves_a_stalled_upstream_is_not_blamed(rack, monkeypatch):
    monkeypatch.setattr(body, "GONE_SECONDS", 0.1)
    monkeypatch.setattr(osie, "STALLED_SECONDS", 0.1)
    rack.register()
    rack.upstream.gate.clear()
    reader, writer = await raw(rack, GET)
    await reader.readuntil(b"\r\n\r\n")
    await until(lambda: [each.received for each in rack.cache.downloads()] == [len(rack.upstream.content) // 2])
    await asyncio.sleep(0.3)
    writer.transport.abort()
    await until(lambda: any(outcome is Outcome.FAILED for _, outcome, _ in rack.lines()))
    message = rack.lines()[-1][2]
    assert re.search(
        r"stalled after .* of 4\.2 MB: 127\.0\.0\.1 had sent nothing for \d+ s, and the machine gave up", message
    )


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


async def test_upstream_that_sends_a_web_page_is_named_and_the_page_kept_from_the_machine(rack):
    rack.register()
    rack.upstream.content, rack.upstream.kind = b"<html>please log in</html>", "text/html"
    reply = await rack.ask(KERNEL)
    assert reply.status == 502
    assert "please log in" not in reply.text
    assert reply.text.count("\n") == 1
    assert rack.lines()[0][1] is Outcome.FAILED


# --- machines without a Hardware ---


async def test_machine_without_hardware_has_the_default_osie_and_nothing_else(other_rack):
    async with other_rack(mode=DhcpMode.AUTO_PROXY, default_osie=("default", "lab")) as rack:
        rack.osies["default", "secret"] = rack.osies["default", "lab"]
        rack.callers.learn(MAC, IP)
        assert (await rack.ask(KERNEL)).body == rack.upstream.content
        assert (await rack.ask("/osie/secret/kernel")).status == 403
        assert (await rack.ask("/latest/meta-data/instance-id")).status == 404
        assert (await rack.ask("/nocloud/m1/user-data")).status == 404
        await noted(rack, 1)
        assert rack.lines()[0][:2] == (Step.KERNEL, Outcome.OK)


async def test_machine_without_hardware_that_failed_sees_why_and_is_not_sent_round_in_circles(other_rack):
    async with other_rack(mode=DhcpMode.AUTO_PROXY, default_osie=("default", "lab")) as rack:
        rack.callers.learn(MAC, IP)
        script = f"/ipxe/script/{MAC}/auto.ipxe"
        assert "/osie/lab/kernel" in (await rack.ask(script)).text
        rack.upstream.mode = "404"
        await rack.ask(KERNEL)
        failed = (await rack.ask(f"{script}?failed")).text
        assert "404 Not Found" in failed
        assert "/osie/lab/" not in failed


async def test_machine_that_nobody_has_heard_of_has_the_default_osie_too(other_rack):
    async with other_rack(mode=DhcpMode.AUTO_PROXY, default_osie=("default", "lab")) as rack:
        assert (await rack.ask(KERNEL, ip="127.0.0.77")).body == rack.upstream.content
        rack.upstream.mode = "404"
        assert (await rack.ask("/osie/lab/initrd", ip="127.0.0.77")).status == 404


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
        assert rack.upstream.requests == 0


# --- machines that misbehave ---


async def raw(rack: Rack, request: bytes, *, receive_buffer: int = 0) -> tuple[asyncio.StreamReader, Any]:
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.bind((IP, 0))
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", rack.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    rack.writers.append(writer)
    writer.write(request)
    return reader, writer


GET = b"GET /osie/lab/kernel HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_machine_that_stops_reading_is_given_up_and_holds_no_thread(other_rack):
    async with other_rack(idle_seconds=0.6) as rack:
        rack.register()
        rack.register("m2", "52:54:00:00:00:02", "127.0.0.6")
        stuck = [await raw(rack, GET, receive_buffer=4096) for _ in range(4)]  # twice as many as there are threads
        async with asyncio.timeout(20):
            assert (await rack.ask(KERNEL, ip="127.0.0.6")).body == rack.upstream.content

        def given_up() -> list[str]:
            """On a busy machine the journey has more to tell: that a file is still being fetched."""
            return [message for _, outcome, message in rack.lines() if outcome is Outcome.FAILED]

        await until(lambda: len(given_up()) == 4, rack.lines)
        assert [message for message in given_up() if not message.endswith("it took no byte for 0.6 s")] == []
        for _, writer in stuck:
            writer.close()


async def test_machine_that_hangs_up_is_noticed(rack):
    rack.register()
    reader, writer = await raw(rack, GET, receive_buffer=4096)
    await reader.readexactly(1000)
    writer.transport.abort()
    await noted(rack, 1)
    ((_, outcome, message),) = rack.lines()
    assert outcome is Outcome.FAILED
    assert "kernel of OSIE default/lab broken off after " in message
    assert message.endswith("of 4.2 MB: it closed the connection")


async def test_slow_but_steady_machine_gets_everything(rack):
    rack.register()
    reader, writer = await raw(rack, GET, receive_buffer=65536)
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"Content-Length: 4194304" in head
    received = b""
    while len(received) < 4194304:
        received += await reader.read(100_000)
        await asyncio.sleep(0.001)
    assert received == rack.upstream.content
    writer.close()


async def test_two_pipelined_requests_are_answered_in_order(rack):
    rack.register()
    reader, writer = await raw(rack, GET + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert await reader.readexactly(4194304) == rack.upstream.content
    assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_pipelined_body_follows_a_large_one_in_order(rack):
    rack.register()
    rack.binaries["big.efi"] = type("Big", (), {"content": b"b" * 8_000_000, "etag": '"big"'})()
    big = b"GET /ipxe/binary/big.efi HTTP/1.1\r\nHost: x\r\n\r\n"
    reader, writer = await raw(rack, big + GET, receive_buffer=4096)
    await asyncio.sleep(0.2)  # the first answer is stuck in the server's buffers, and the second request behind it
    await reader.readuntil(b"\r\n\r\n")
    assert await reader.readexactly(8_000_000) == b"b" * 8_000_000
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert await reader.readexactly(4194304) == rack.upstream.content
    writer.close()


async def test_small_requests_are_answered_while_kernels_are_sent(rack):
    rack.register()
    stuck = [await raw(rack, GET, receive_buffer=4096) for _ in range(4)]
    assert (await rack.ask("/healthz")).status == 200
    assert not rack.lines(), "it had to wait until one of them was given up"
    for _, writer in stuck:
        writer.close()


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
    thread = SendThread("test", idle_seconds=0.3)
    yield thread
    thread.stop()


@pytest.fixture
def patient() -> Iterator[SendThread]:
    """One that gives no machine up while a test lasts."""
    thread = SendThread("test", idle_seconds=60)
    yield thread
    thread.stop()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
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


async def settled(before: int) -> None:
    await until(lambda: descriptors() <= before)


async def test_part_of_a_file_arrives_as_it_is(patient, file, pair):
    before = descriptors()
    sending = asyncio.create_task(patient.send(Part(pair[0].fileno(), file, 1000, 900_000)))
    assert await received(pair[1], 899_000) == CONTENT[1000:900_000]
    await sending
    await settled(before)
    pair[0].close()
    assert await received(pair[1], 1) == b""  # nothing more, and no descriptor keeps the connection open


async def test_machine_that_takes_nothing_is_given_up_after_its_time_and_not_before(thread, file, pair):
    part = Part(pair[0].fileno(), file, 0, len(CONTENT))
    start = asyncio.get_running_loop().time()
    with pytest.raises(IdleError):
        await thread.send(part)
    assert asyncio.get_running_loop().time() - start >= 0.3
    assert 0 < part.offset < len(CONTENT)


async def test_slow_machine_is_not_given_up(file, pair):
    thread = SendThread("test", idle_seconds=2)
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    sending = asyncio.create_task(thread.send(Part(pair[0].fileno(), file, 0, len(CONTENT))))
    got = b""
    while len(got) < len(CONTENT):
        got += await received(pair[1], min(75_000, len(CONTENT) - len(got)))
        await asyncio.sleep(0.18)  # 2.5 s in all
    await sending
    assert got == CONTENT
    thread.stop()


async def test_stuck_machine_holds_nobody_up(patient, file, pair):
    stuck = asyncio.create_task(patient.send(Part(pair[0].fileno(), file, 0, len(CONTENT))))
    await asyncio.sleep(0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        async with asyncio.timeout(20):
            sending = asyncio.create_task(patient.send(Part(ours.fileno(), file, 0, len(CONTENT))))
            assert await received(theirs, len(CONTENT)) == CONTENT
            await sending
    assert not stuck.done()
    stuck.cancel()
    await asyncio.gather(stuck, return_exceptions=True)


async def test_cancelled_part_is_let_go_at_once(patient, file, pair):
    before = descriptors()
    sending = asyncio.create_task(patient.send(Part(pair[0].fileno(), file, 0, len(CONTENT))))
    await asyncio.sleep(0.05)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await settled(before)
    assert patient.load == 0


async def test_machine_that_hangs_up_and_file_that_shrinks_are_told_apart(thread, file, path, pair):
    os.truncate(path, 1000)
    with pytest.raises(FileEndsError):
        await thread.send(Part(pair[0].fileno(), file, 0, 2000))
    pair[1].close()
    with pytest.raises(ConnectionError):
        await thread.send(Part(pair[0].fileno(), file, 0, 1000))


async def test_stop_gives_everything_up_and_what_comes_later_too(patient, file, pair):
    before = descriptors()
    sending = asyncio.create_task(patient.send(Part(pair[0].fileno(), file, 0, len(CONTENT))))
    await asyncio.sleep(0.05)
    patient.stop()
    with pytest.raises(StoppedError):
        await sending
    with pytest.raises(StoppedError):
        await patient.send(Part(pair[0].fileno(), file, 0, len(CONTENT)))
    assert descriptors() <= before


async def test_fast_machines_take_turns(thread, file, monkeypatch):
    monkeypatch.setattr(sendfile, "PIECE_BYTES", 10_000)
    turns: list[int] = []
    real = os.sendfile

    def noted(sock: int, *rest: int) -> int:
        turns.append(sock)
        return real(sock, *rest)

    monkeypatch.setattr(os, "sendfile", noted)
    pairs = [socket.socketpair() for _ in range(3)]
    for ours, _ in pairs:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    await asyncio.gather(*(thread.send(Part(ours.fileno(), file, 0, 100_000)) for ours, _ in pairs))
    for ours, theirs in pairs:
        ours.close()
        theirs.close()
    assert len(turns) == 30
    # Once all three are there, no one has two turns more than another.
    counts = dict.fromkeys(turns, 0)
    for sock in turns[:-3]:
        counts[sock] += 1
    first, last = min(counts.values()), max(counts.values())
    assert last - first <= 3, turns


async def test_threads_have_a_lower_priority_than_the_event_loop(thread):
    def priorities() -> list[int]:
        found = []
        for task in list(Path("/proc/self/task").iterdir()):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                found.append(os.getpriority(os.PRIO_PROCESS, int(task.name)))
        return found

    async with asyncio.timeout(20):
        lower = min(os.getpriority(os.PRIO_PROCESS, 0) + sendfile.NICENESS, 19)  # the kernel's lowest
        while lower not in priorities():
            await asyncio.sleep(0.01)


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
    """A response whose head is sent by somebody else."""

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


async def test_body_waits_until_the_head_has_left(file, connected):
    sender = BodySender(threads=1)
    response = Head()
    response.content_length = 4
    request: Any = SimpleNamespace(transport=LazyTransport(connected[0]))
    with Artifact("u", os.dup(file), len(CONTENT), "v", Source.FILE, None) as artifact:
        await sender.send(request, response, artifact, 100)
    assert request.transport.corked  # the head is no segment of its own
    assert await received(connected[1], 8) == b"head" + CONTENT[100:104]
    assert connected[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK) == 0
    sender.close()


async def test_file_that_is_shorter_than_promised_is_an_error_of_ours(file, connected):
    sender = BodySender(threads=1)
    response = Head()
    response.content_length = len(CONTENT) + 1
    request: Any = SimpleNamespace(transport=LazyTransport(connected[0]))
    with Artifact("http://h/u", os.dup(file), len(CONTENT) + 1, "v", Source.FILE, None) as artifact:
        sending = asyncio.create_task(sender.send(request, response, artifact, 0))
        await received(connected[1], len(CONTENT) + 4)
        with pytest.raises(StorageError, match=f"http://h/u: the file ends before byte {len(CONTENT)}"):
            await sending
    sender.close()

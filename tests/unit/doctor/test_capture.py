"""A capture: the frames that its filter accepts, and the order of its lines by time."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.dhcp import BOOTP
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6ND_RS, IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from edge.doctor import Listening, Timed, capture, extra, in_order
from edge.doctor.capture import OnFrame, all_frames_of, conversation_of, drain
from edge.doctor.extra import MissingExtraError, scapy, scapy_sockets
from edge.neighbour.packet_filter import attach
from tests.support.virtual_time import elapse


async def source(*items: tuple[float, str], after: float = 0.0, ends: bool = True) -> AsyncGenerator[Timed[str], None]:
    """Yield items with their times, `after` some seconds."""
    await elapse(after)
    for at, what in items:
        yield Timed(at, what)
    if not ends:
        await asyncio.Event().wait()


@pytest.mark.looptime
async def test_late_event_goes_before_packets_that_happened_after_it() -> None:
    packets = source((1.0, "discover"), (3.0, "request"), ends=False)
    journey = source((2.0, "offered"), (4.0, "acknowledged"), after=capture.HOLD_SECONDS / 2, ends=False)
    async with aclosing(in_order(packets, journey)) as stream:
        assert [await anext(stream) for _ in range(4)] == ["discover", "offered", "request", "acknowledged"]


class Frames:
    """A capture whose thread is slow: frames wait when it is stopped."""

    def __init__(self, _interface: str, _mac: str, on_frame: OnFrame, _write: Path | None = None) -> None:
        self._on_frame = on_frame
        self._left = 3
        self.seen = 0

    def start(self) -> None:
        self._take()

    def stop(self) -> int:
        while self._left:
            self._take()
        return 0

    def _take(self) -> None:
        self._left -= 1
        self.seen += 1
        self._on_frame(float(self.seen), b"frame")


async def test_packets_captured_before_the_end_are_still_yielded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "Capture", Frames)
    monkeypatch.setattr(capture.Conversation, "lines", lambda _self, at, _frame: [f"frame {at:.0f}"])
    async with Listening("eth0", "52:54:00:00:00:01") as listening:
        lines = listening.lines()
        assert (await anext(lines)).text == "frame 1"
        listening.end()
        assert [line.text async for line in lines] == ["frame 2", "frame 3"]


@pytest.mark.looptime
async def test_end_of_the_packets_yields_held_items_without_waiting_for_events() -> None:
    lines = in_order(source((3.0, "request")), source((2.0, "offered"), ends=False))
    assert [what async for what in lines] == ["offered", "request"]
    assert [what async for what in in_order(source((1.0, "b"), (1.0, "a")))] == ["b", "a"], "as they came"
    async with aclosing(in_order(source((1.0, "first"), ends=False))) as stream:
        assert await anext(stream) == "first", "it is not held until the end"


def test_drain_reads_frames_up_to_the_end_and_no_further() -> None:
    frames = [SimpleNamespace(time=at) for at in (1.0, 2.0, 3.0, 4.0)]
    sock = SimpleNamespace(ins=SimpleNamespace(setblocking=lambda _: None), recv=lambda: frames.pop(0))
    taken: list[float] = []
    drain(sock, 2.5, lambda frame: taken.append(frame.time))
    assert taken == [1.0, 2.0]


@pytest.mark.looptime
async def test_error_of_a_source_is_raised() -> None:
    async def failing() -> AsyncGenerator[Timed[str], None]:
        yield Timed(1.0, "first")
        raise ZeroDivisionError

    stream = in_order(failing())
    assert await anext(stream) == "first"
    with pytest.raises(ZeroDivisionError):
        await anext(stream)


@pytest.mark.parametrize(
    ("load", "module", "expected"),
    [
        (scapy, "scapy.all", "scapy is not installed: .* 'tinkedge"),
        (scapy_sockets, "scapy.arch", "scapy is not installed: .* 'tinkedge"),
        (extra.tftpy, "tftpy", "tftpy is not installed: pip install 'tinkedge"),  # Debian has no package of it
    ],
)
def test_missing_extra_is_named_with_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[], object], module: str, expected: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{expected}\[diagnose\]'"):
        load()


def test_listening_loads_no_dissectors() -> None:
    """Dissectors take four times as long to import as the rest of scapy."""
    script = (
        "import sys; from edge.doctor.extra import scapy_sockets; assert scapy_sockets().conf.L2listen is not None; "
        "sys.exit('scapy.all' in sys.modules or 'scapy.layers.dhcp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_debian_package_is_used_if_the_environment_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "DEBIAN", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(extra, "_DEBIAN_PACKAGES", {"selfmade": "python3-selfmade"})
    with pytest.raises(MissingExtraError, match=r"selfmade is not installed: apt install python3-selfmade, or pip"):
        extra._import("selfmade.all")
    assert str(tmp_path) not in sys.path
    (tmp_path / "selfmade").mkdir()
    (tmp_path / "selfmade" / "__init__.py").touch()
    (tmp_path / "selfmade" / "all.py").write_text("HERE = 1\n")
    assert extra._import("selfmade.all").HERE == 1
    assert sys.path[-1] == str(tmp_path), "behind all that is tinkedge's own"


MAC, OTHER, SERVER = "52:54:00:cc:00:01", "52:54:00:cc:00:02", "02:00:00:00:00:aa"
ITS = bytes.fromhex(MAC.replace(":", ""))

TO = Ether(src=SERVER, dst=MAC)
FROM = Ether(src=MAC, dst=SERVER)
TO_ALL = Ether(src=SERVER, dst="ff:ff:ff:ff:ff:ff")
BETWEEN = IP(src="10.0.0.1", dst="10.0.0.2")


class Filtered:
    """Runs a BPF program in the kernel, on a pair of sockets, frame by frame."""

    def __init__(self, program: bytes) -> None:
        self._to, self._from = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._from.setblocking(False)
        attach(self._from, program)

    def __call__(self, frame: bytes) -> bytes | None:
        self._to.send(frame)
        try:
            return self._from.recv(65536)
        except BlockingIOError:
            return None

    def close(self) -> None:
        self._to.close()
        self._from.close()


@pytest.fixture(scope="module")
def conversation() -> Iterator[Filtered]:
    with closing(Filtered(conversation_of(ITS))) as found:
        yield found


@pytest.fixture(scope="module")
def everything() -> Iterator[Filtered]:
    with closing(Filtered(all_frames_of(ITS))) as found:
        yield found


def dhcp(mac: str, source: int = 67, destination: int = 68) -> Packet:
    chaddr = bytes.fromhex(mac.replace(":", ""))
    return BETWEEN / UDP(sport=source, dport=destination) / BOOTP(op=2, chaddr=chaddr)


def data(block: int, size: int) -> Packet:
    return UDP(sport=40000, dport=2070) / Raw(b"\0\3" + block.to_bytes(2, "big") + bytes(size))


SAID = [
    FROM / ARP(psrc="10.0.0.2", pdst="10.0.0.1"),
    TO / BETWEEN / ICMP(),
    FROM / IPv6() / UDP(sport=546, dport=547) / Raw(b"\1abc"),
    FROM / IPv6() / ICMPv6ND_RS(),
    FROM / IPv6() / UDP(dport=69) / Raw(b"\0\1snponly.efi\0octet\0"),
    TO / IPv6() / data(1, 1228),
    TO / IPv6() / data(118, 568),
    FROM / IPv6() / TCP(options=[("NOP", None)] * 8) / Raw(b"GET / HTTP/1.1\r\n\r\n"),
    TO / BETWEEN / TCP(sport=7080) / Raw(b"HTTP/1.1 200 OK\r\n\r\n"),
    TO / IP(options=b"\1" * 8) / TCP(options=[("NOP", None)] * 8) / Raw(b"HTTP/1.1 200 OK\r\n\r\n"),
    *(FROM / BETWEEN / TCP() / Raw(word + b" / HTTP/1.1\r\n\r\n") for word in (b"GET", b"HEAD", b"POST", b"PUT")),
    FROM / BETWEEN / TCP(dport=42113) / Raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    FROM / BETWEEN / UDP(dport=69) / Raw(b"\0\1snponly.efi\0octet\0"),
    TO / BETWEEN / data(1, 1468),
    TO / BETWEEN / data(1, 512),
    TO / BETWEEN / data(118, 568),
    TO / BETWEEN / data(65535, 0),
    TO / BETWEEN / UDP(sport=40000, dport=2070) / Raw(b"\0\6tsize\0001\0"),
    FROM / BETWEEN / UDP() / Raw(b"\0\4\0\7"),
]
BULK = [
    TO / BETWEEN / TCP(sport=7080) / Raw(bytes(1448)),
    FROM / BETWEEN / TCP(dport=7080, flags="A"),
    TO / BETWEEN / TCP(sport=7080) / Raw(b"xGET "),
    *(TO / BETWEEN / data(2, size) for size in (512, 1024, 1428, 1432, 1456, 1468)),
    TO / IPv6() / TCP(sport=7080) / Raw(bytes(1428)),
    *(TO / IPv6() / data(2, size) for size in (512, 1024, 1228, 1408, 1428, 1448)),
    TO / IP(frag=185, flags="MF") / Raw(bytes(1400)),
]
OF_OTHERS = [
    Ether(src=OTHER, dst=SERVER) / BETWEEN / TCP() / Raw(b"GET / HTTP/1.1\r\n\r\n"),
    Ether(src=OTHER, dst="ff:ff:ff:ff:ff:ff") / ARP(hwsrc=OTHER),
    TO_ALL / dhcp(OTHER),
    Ether(src=SERVER, dst="52:54:00:cc:01:01") / BETWEEN / ICMP(),
    Ether(src="52:54:01:cc:00:01", dst=SERVER) / BETWEEN / ICMP(),
    TO_ALL / BETWEEN / UDP(sport=67, dport=53) / BOOTP(chaddr=ITS),
    TO_ALL / BETWEEN / TCP(sport=67, dport=68) / BOOTP(chaddr=ITS),
]
NAMED_INSIDE = [
    TO_ALL / dhcp(MAC),
    Ether(src=SERVER, dst=OTHER) / dhcp(MAC, 67, 67),
    Ether(src=OTHER, dst=SERVER) / dhcp(MAC, 4011, 4011),
]


def name(packet: Packet) -> str:
    return str(packet.summary())[:60]


@pytest.mark.parametrize("packet", [*SAID, *NAMED_INSIDE], ids=name)
def test_filter_accepts_the_conversation_of_the_machine(
    conversation: Filtered, everything: Filtered, packet: Packet
) -> None:
    assert conversation(bytes(packet)) == bytes(packet)
    assert everything(bytes(packet)) == bytes(packet)


@pytest.mark.parametrize("packet", BULK, ids=name)
def test_filter_drops_the_middle_of_a_download_but_not_for_the_file(
    conversation: Filtered, everything: Filtered, packet: Packet
) -> None:
    assert conversation(bytes(packet)) is None
    assert everything(bytes(packet)) == bytes(packet)


@pytest.mark.parametrize("packet", OF_OTHERS, ids=name)
def test_filter_drops_frames_of_other_machines(conversation: Filtered, everything: Filtered, packet: Packet) -> None:
    assert conversation(bytes(packet)) is None
    assert everything(bytes(packet)) is None


def test_filter_finds_dhcp_after_ip_options(conversation: Filtered) -> None:
    packet = TO_ALL / IP(options=b"\1" * 12) / UDP(sport=67, dport=68)
    assert conversation(bytes(packet / BOOTP(op=2, chaddr=ITS))) is not None
    assert conversation(bytes(packet / BOOTP(op=2, chaddr=bytes(6)))) is None


def test_giant_frame_is_cut_for_the_terminal_but_not_for_the_file(conversation: Filtered, everything: Filtered) -> None:
    frame = bytes(FROM / BETWEEN / UDP() / Raw(bytes(60000)))
    assert conversation(frame) == frame[: capture.READ_BYTES]
    assert everything(frame) == frame


@given(st.binary(min_size=1, max_size=80))
@settings(max_examples=300, deadline=None)
def test_filter_decides_about_short_and_broken_frames(
    conversation: Filtered, everything: Filtered, frame: bytes
) -> None:
    its = ITS in (frame[:6], frame[6:12])
    assert (everything(frame) is not None) == (its and len(frame) >= 12)
    conversation(frame)

"""Captures the frames of one machine on an interface of this host, with scapy, and describes them beside its journey.

    interface -> the kernel's filter (a BPF program) -> scapy's thread -> `Listening` -> `in_order` -> a terminal
                                                                       -> a pcap file

Nothing that serves machines uses it: scapy is loaded when a capture starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import heapq
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from edge.doctor import extra
from edge.doctor.extra import DiagnoseError
from edge.doctor.frames import Conversation
from edge.neighbour import packet_filter as bpf

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1_000_000_000
_RECEIVE_BUFFER_BYTES = 16 * 1024 * 1024
_START_TIMEOUT_SECONDS = 5.0

_ETHERNET = 1  # the link type of pcap files
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h
_SOL_PACKET, _PACKET_STATISTICS = 263, 6  # linux/if_packet.h

OnFrame = Callable[[float, bytes], None]
"""`on_frame(time, frame)` is called in scapy's thread, with seconds since the epoch."""


class Capture:
    """Captures the frames of one machine on one interface, from `start` to `stop`.

    It sends nothing, and the interface does not become promiscuous: it sees what a server on this host sees.
    """

    def __init__(self, interface: str, mac: str, on_frame: OnFrame, write: Path | None = None) -> None:
        """`mac` is written with colons. `write` is the path of a pcap file for all frames in full, or None."""
        self._interface = interface
        self._mac = bytes.fromhex(mac.replace(":", ""))
        self._on_frame = on_frame
        self._path = write
        self._sniffers: list[tuple[Any, Any, Callable[[Any], None]]] = []
        self._writer: Any = None
        self._written = 0
        self.seen = 0  # the number of frames that `on_frame` was called with

    def start(self) -> None:
        """Start the capture. Raises DiagnoseError."""
        scapy = extra.scapy()
        try:
            self._sniff(scapy, conversation_of(self._mac), self._read)
            if self._path is not None:
                self._writer = _open_file(scapy, self._path)
                self._sniff(scapy, all_frames_of(self._mac), self._write)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> int:
        """Stop after the frames that have arrived by now. Return how many the kernel dropped, because we are slow."""
        lost, now = 0, time.time()
        for sniffer, sock, on_packet in self._sniffers:
            with suppress(Exception):  # scapy's, when its thread has ended already
                sniffer.stop()
            drain(sock, now, on_packet)
            with suppress(OSError):
                statistics = sock.ins.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
                lost += struct.unpack("II", statistics)[1]
            sock.close()
        self._sniffers.clear()
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()
            self._writer = None
        return lost

    def _sniff(self, scapy: Any, program: bytes, on_packet: Callable[[Any], None]) -> None:
        sock = listen(scapy, self._interface, program)
        started = threading.Event()
        sniffer = scapy.AsyncSniffer(opened_socket=sock, prn=on_packet, store=False, started_callback=started.set)
        self._sniffers.append((sniffer, sock, on_packet))
        sniffer.start()
        if not started.wait(_START_TIMEOUT_SECONDS):
            raise DiagnoseError(f"scapy did not start to capture on {self._interface}")

    def _read(self, packet: Any) -> None:
        self.seen += 1
        self._on_frame(float(packet.time), packet.load)

    def _write(self, packet: Any) -> None:
        if self._writer is None:
            return
        self._written += len(packet.load)
        try:
            if self._written > MAX_FILE_BYTES:
                raise OSError(errno.EFBIG, f"it has reached its maximum of {MAX_FILE_BYTES // 10**6} MB")
            self._writer.write(packet)
        except OSError as error:
            log.error("%s: %s; the capture continues without the file", self._path, error.strerror)
            with suppress(OSError):
                self._writer.close()
            self._writer = None


def listen(scapy: Any, interface: str, program: bytes, *, promiscuous: bool = False) -> Any:
    """Open a socket of scapy that receives the frames which the BPF `program` accepts, undissected. Raises
    DiagnoseError.
    """
    if interface not in {name for _, name in socket.if_nameindex()}:
        raise DiagnoseError(f"there is no interface {interface} ('ip -brief link' lists them)")
    try:
        sock = scapy.conf.L2listen(iface=interface, nofilter=True, promisc=promiscuous)
    except PermissionError as error:
        raise DiagnoseError(f"not permitted to listen on {interface}; run it as root, or with CAP_NET_RAW") from error
    except OSError as error:
        raise DiagnoseError(f"can't listen on {interface}: {error.strerror}") from error
    bpf.attach(sock.ins, program)
    with suppress(OSError):  # without CAP_NET_ADMIN, scapy's own size
        sock.ins.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
    with suppress(BlockingIOError):  # discard the frames from before the filter was attached
        while True:
            sock.ins.recv(1, socket.MSG_DONTWAIT)
    sock.LL = scapy.Raw  # to dissect each frame would cost more than everything else
    return sock


def drain(sock: Any, until: float, on_packet: Callable[[Any], None]) -> None:
    """Read the frames that a socket received before `until` (seconds since the epoch)."""
    with suppress(OSError):  # the socket is empty, or the interface is gone
        sock.ins.setblocking(False)
        while (packet := sock.recv()) is not None and float(packet.time) <= until:
            on_packet(packet)


def summary(frame: bytes) -> str:
    """Return scapy's summary of a frame. Raises DiagnoseError."""
    try:
        return str(extra.scapy().Ether(frame).summary())
    except DiagnoseError:
        raise
    except Exception as error:  # scapy's dissectors raise all kinds of errors on malformed frames
        return f"a frame of {len(frame)} bytes that scapy can't read: {error}"


def _open_file(scapy: Any, path: Path) -> Any:
    try:
        # scapy would open it with the first frame only. Mode 0600, because captured scripts have tokens in them.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise DiagnoseError(f"can't write {path}: {error.strerror}") from error
    return scapy.PcapWriter(str(path), linktype=_ETHERNET, sync=True)


# --- the kernel's filter ----------------------------------------------------------------------------------------------

# Of a download of hundreds of megabytes only the beginning is described. The kernel drops the rest early.

READ_BYTES: Final = 2048  # the part of a frame that is read: more than a frame of Ethernet
_WHOLE_FRAME_BYTES: Final = 262144

_DHCP_PORTS = (67, 68, 4011)
_REQUEST_WORDS = (b"GET ", b"HEAD", b"POST", b"PUT ", b"HTTP", b"PRI ")
# The IP length of full TFTP blocks in the sizes that firmware asks for: 512, 1024, 1428, 1432, 1456, 1468 bytes.
_FULL_BLOCKS = (544, 1056, 1460, 1464, 1488, 1500)
# The IPv6 payload length of the same, and of 1228 bytes, which EDK2 asks for.
_FULL_BLOCKS_6 = (524, 1036, 1240, 1420, 1440, 1460)

_ETHERTYPE, _IP = 12, 14
_IPV6, _IN_IPV6 = 0x86DD, _IP + 40  # of packets without extension headers: firmware sends no others
_CHADDR = 8 + 28  # after the IP header: the UDP header, and the fields of BOOTP before chaddr


def all_frames_of(mac: bytes) -> bytes:
    """Return a BPF program that accepts all frames of a machine. `mac` has six bytes."""
    return bpf.assemble([*_select_machine(mac), "its", (bpf.RETURN, _WHOLE_FRAME_BYTES), "none", (bpf.RETURN, 0)])


def conversation_of(mac: bytes) -> bytes:
    """Return a BPF program that accepts the frames of a machine, but not those in the middle of a download."""
    return bpf.assemble(
        [
            *_select_machine(mac),
            "its",
            (bpf.LOAD_HALF, _ETHERTYPE),
            (bpf.EQUAL, _IPV6, "ipv6", ""),
            (bpf.EQUAL, 0x0800, "", "all"),
            (bpf.LOAD_HALF, _IP + 6),
            (bpf.BITS, 0x1FFF, "none", ""),
            (bpf.X_IP_HEADER_BYTES, _IP),
            (bpf.LOAD_BYTE, _IP + 9),
            (bpf.EQUAL, 17, "udp", ""),
            (bpf.EQUAL, 6, "", "all"),
            (bpf.LOAD_BYTE_AT_X, _IP + 12),
            (bpf.AND, 0xF0),
            (bpf.SHIFT_RIGHT, 2),
            (bpf.ADD_X, 0),
            (bpf.A_TO_X, 0),
            (bpf.LOAD_AT_X, _IP),
            *((bpf.EQUAL, int.from_bytes(word, "big"), "all", "") for word in _REQUEST_WORDS),
            (bpf.RETURN, 0),
            "udp",
            (bpf.LOAD_AT_X, _IP + 8),
            (bpf.EQUAL, 0x0003_0001, "all", ""),  # TFTP: the first block
            (bpf.LOAD_HALF_AT_X, _IP + 8),
            (bpf.EQUAL, 3, "", "all"),
            (bpf.LOAD_HALF, _IP + 2),
            *((bpf.EQUAL, length, "none", "") for length in _FULL_BLOCKS),
            (bpf.RETURN, READ_BYTES),
            *_select_ipv6(),
            "all",
            (bpf.RETURN, READ_BYTES),
            "none",
            (bpf.RETURN, 0),
        ]
    )


def _select_ipv6() -> list[bpf.Line]:
    """Return the lines for IPv6, which jump to "all" or "none", or fall through to the next line."""
    return [
        "ipv6",
        (bpf.LOAD_BYTE, _IP + 6),
        (bpf.EQUAL, 17, "udp6", ""),
        (bpf.EQUAL, 6, "", "all"),
        (bpf.LOAD_BYTE, _IN_IPV6 + 12),
        (bpf.AND, 0xF0),
        (bpf.SHIFT_RIGHT, 2),
        (bpf.A_TO_X, 0),
        (bpf.LOAD_AT_X, _IN_IPV6),
        *((bpf.EQUAL, int.from_bytes(word, "big"), "all", "") for word in _REQUEST_WORDS),
        (bpf.RETURN, 0),
        "udp6",
        (bpf.LOAD, _IN_IPV6 + 8),
        (bpf.EQUAL, 0x0003_0001, "all", ""),
        (bpf.LOAD_HALF, _IN_IPV6 + 8),
        (bpf.EQUAL, 3, "", "all"),
        (bpf.LOAD_HALF, _IP + 4),
        *((bpf.EQUAL, length, "none", "") for length in _FULL_BLOCKS_6),
    ]


def _select_machine(mac: bytes) -> list[bpf.Line]:
    """Return the lines that jump to "its" if the frame is of the machine, else to "none"."""
    # Its MAC is the source or the destination, or the chaddr of a DHCP message, before the machine has an address.
    high, low = struct.unpack("!IH", mac)
    return [
        (bpf.LOAD, 0),
        (bpf.EQUAL, high, "", "from"),
        (bpf.LOAD_HALF, 4),
        (bpf.EQUAL, low, "its", ""),
        "from",
        (bpf.LOAD, 6),
        (bpf.EQUAL, high, "", "inside"),
        (bpf.LOAD_HALF, 10),
        (bpf.EQUAL, low, "its", ""),
        "inside",
        (bpf.LOAD_HALF, _ETHERTYPE),
        (bpf.EQUAL, 0x0800, "", "none"),
        (bpf.LOAD_BYTE, _IP + 9),
        (bpf.EQUAL, 17, "", "none"),
        (bpf.LOAD_HALF, _IP + 6),
        (bpf.BITS, 0x1FFF, "none", ""),
        (bpf.X_IP_HEADER_BYTES, _IP),
        (bpf.LOAD_HALF_AT_X, _IP + 2),
        *((bpf.EQUAL, port, "dhcp", "") for port in _DHCP_PORTS),
        (bpf.RETURN, 0),
        "dhcp",
        (bpf.LOAD_AT_X, _IP + _CHADDR),
        (bpf.EQUAL, high, "", "none"),
        (bpf.LOAD_HALF_AT_X, _IP + _CHADDR + 4),
        (bpf.EQUAL, low, "its", "none"),
    ]


# --- lines in the order of time ---------------------------------------------------------------------------------------

HOLD_SECONDS = 0.3
_MAX_QUEUED = 10_000

E = TypeVar("E")


class CapturedLine(NamedTuple):
    """The description of a packet; `time` in seconds since the epoch."""

    time: float
    text: str


class Listening:
    """Describes the packets of one machine, for as long as it is entered as an async context manager."""

    def __init__(self, interface: str, mac: str, write: Path | None = None) -> None:
        self._conversation = Conversation(summary)
        self._capture = Capture(interface, mac, self._on_frame, write)
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[CapturedLine | None] = asyncio.Queue(_MAX_QUEUED)
        self._ending: asyncio.Task[None] | None = None
        self.lost = 0  # the number of packets that were lost because we were too slow. Complete after the end only.

    @property
    def seen(self) -> int:
        """The number of packets that were captured."""
        return self._capture.seen

    async def __aenter__(self) -> Listening:
        """Start the capture. Raises DiagnoseError."""
        # In a thread, because it takes a second to import scapy and to open its sockets.
        await asyncio.to_thread(self._capture.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the capture."""
        await self._stop()

    def end(self) -> None:
        """Stop the capture. `lines` ends after the packets that have arrived by now."""

        async def end() -> None:
            await self._stop()  # all captured packets are in the queue after this
            await self._queue.put(None)

        self._ending = asyncio.ensure_future(end())

    async def lines(self) -> AsyncGenerator[CapturedLine, None]:
        """Yield the descriptions of packets, until `end` is called."""
        while (line := await self._queue.get()) is not None:
            yield line

    async def _stop(self) -> None:
        self.lost += await asyncio.to_thread(self._capture.stop)

    def _on_frame(self, at: float, frame: bytes) -> None:
        """Describe a frame. Called in scapy's thread."""
        for line in self._conversation.lines(at, frame):
            self._loop.call_soon_threadsafe(self._put, CapturedLine(at, line))

    def _put(self, line: CapturedLine) -> None:
        try:
            self._queue.put_nowait(line)
        except asyncio.QueueFull:
            self.lost += 1


class Timed(NamedTuple, Generic[E]):
    """An item with the `time` at which it happened (seconds since the epoch)."""

    time: float
    item: E


async def in_order(leading: AsyncIterator[Timed[E]], *others: AsyncIterator[Timed[E]]) -> AsyncGenerator[E, None]:
    """Merge the items of all sources by time. Ends when the `leading` source does."""
    # Packets arrive at once and events of the edge after a moment. So each item is held for HOLD_SECONDS, and an
    # earlier one that arrives meanwhile goes before it.
    heap: list[tuple[float, int, float, E]] = []
    number = count()
    clock = asyncio.get_running_loop().time
    arrived = asyncio.Event()

    async def take(source: AsyncIterator[Timed[E]]) -> None:
        async for timed in source:
            heapq.heappush(heap, (timed.time, next(number), clock() + HOLD_SECONDS, timed.item))
            arrived.set()

    tasks = [asyncio.ensure_future(take(source)) for source in (leading, *others)]
    tasks[0].add_done_callback(lambda _: arrived.set())
    try:
        while heap or not tasks[0].done():
            now = clock()
            while heap and (heap[0][2] <= now or tasks[0].done()):
                yield heapq.heappop(heap)[3]
            arrived.clear()
            wait = heap[0][2] - now if heap else HOLD_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await arrived.wait()
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

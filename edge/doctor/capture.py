"""The frames of one machine, as they pass an interface of this host; taken from it by scapy.

    interface -> the kernel's filter (`selection`) -> scapy's thread -> `heard`, and a pcap file

Nothing is sent and the interface is not made promiscuous: this host sees what a server on it sees.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from edge.doctor import extra, selection
from edge.doctor.extra import DiagnoseError
from edge.neighbour.packet_filter import attach

log = logging.getLogger(__name__)

LARGEST_FILE_BYTES = 1_000_000_000
_RECEIVE_BUFFER_BYTES = 16 * 1024 * 1024
_START_SECONDS = 5.0

_ETHERNET = 1  # the link type of pcap files
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h
_SOL_PACKET, _PACKET_STATISTICS = 263, 6  # linux/if_packet.h

Heard = Callable[[float, bytes], None]
"""`heard(time, frame)`: called in scapy's thread, with seconds since the epoch."""


class Capture:
    """Frames of one machine from one interface, from `start` to `stop`."""

    def __init__(self, interface: str, mac: str, heard: Heard, write: Path | None = None) -> None:
        """`mac` with colons. `write`: a file for all frames, whole; a pcap file that any tool reads."""
        self._interface = interface
        self._mac = bytes.fromhex(mac.replace(":", ""))
        self._heard = heard
        self._path = write
        self._sniffers: list[tuple[Any, Any, Callable[[Any], None]]] = []
        self._writer: Any = None
        self._written = 0
        self.seen = 0
        """How many frames were handed to `heard`."""

    def start(self) -> None:
        """Begin. Raises DiagnoseError."""
        scapy = extra.scapy()
        try:
            self._sniff(scapy, selection.conversation_of(self._mac), self._hear)
            if self._path is not None:
                self._writer = _open_file(scapy, self._path)
                self._sniff(scapy, selection.everything_of(self._mac), self._write)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> int:
        """End, with all that has come until now, and tell how many frames the kernel had to leave out because this was
        too slow."""
        lost, now = 0, time.time()
        for sniffer, sock, on_packet in self._sniffers:
            with suppress(Exception):  # scapy's, when its thread has ended already
                sniffer.stop()
            take_the_rest(sock, now, on_packet)
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
        if not started.wait(_START_SECONDS):
            raise DiagnoseError(f"scapy did not begin to listen on {self._interface}")

    def _hear(self, packet: Any) -> None:
        self.seen += 1
        self._heard(float(packet.time), packet.load)

    def _write(self, packet: Any) -> None:
        if self._writer is None:
            return
        self._written += len(packet.load)
        try:
            if self._written > LARGEST_FILE_BYTES:
                raise OSError(errno.EFBIG, f"it has {LARGEST_FILE_BYTES // 10**6} MB, and gets no more")
            self._writer.write(packet)
        except OSError as error:
            log.error("%s: %s; the capture goes on without it", self._path, error.strerror)
            with suppress(OSError):
                self._writer.close()
            self._writer = None


def listen(scapy: Any, interface: str, program: bytes, *, promiscuous: bool = False) -> Any:
    """A socket of scapy's that hears, as raw bytes, the frames that `program` takes. Raises DiagnoseError."""
    if interface not in {name for _, name in socket.if_nameindex()}:
        raise DiagnoseError(f"there is no interface {interface} ('ip -brief link' lists them)")
    try:
        sock = scapy.conf.L2listen(iface=interface, nofilter=True, promisc=promiscuous)
    except PermissionError as error:
        raise DiagnoseError(f"not permitted to listen on {interface}; run it as root, or with CAP_NET_RAW") from error
    except OSError as error:
        raise DiagnoseError(f"can't listen on {interface}: {error.strerror}") from error
    attach(sock.ins, program)
    with suppress(OSError):  # without CAP_NET_ADMIN, scapy's own size
        sock.ins.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
    with suppress(BlockingIOError):  # what came in before there was a filter
        while True:
            sock.ins.recv(1, socket.MSG_DONTWAIT)
    sock.LL = scapy.Raw  # dissecting each frame would cost more than all the rest
    return sock


def take_the_rest(sock: Any, until: float, on_packet: Callable[[Any], None]) -> None:
    """What waits in a socket since before `until` (seconds since the epoch)."""
    with suppress(OSError):  # there is no more, or the interface is gone
        sock.ins.setblocking(False)
        while (packet := sock.recv()) is not None and float(packet.time) <= until:
            on_packet(packet)


def in_words(frame: bytes) -> str:
    """What scapy makes of a frame, in one line. Raises DiagnoseError."""
    try:
        return str(extra.scapy().Ether(frame).summary())
    except DiagnoseError:
        raise
    except Exception as error:  # its dissectors meet what nobody has tested them with
        return f"a frame of {len(frame)} bytes that scapy can't read: {error}"


def _open_file(scapy: Any, path: Path) -> Any:
    try:
        # scapy would open it with the first frame only. For its owner alone: scripts have tokens in them.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise DiagnoseError(f"can't write {path}: {error.strerror}") from error
    return scapy.PcapWriter(str(path), linktype=_ETHERNET, sync=True)

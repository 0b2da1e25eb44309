"""The receiving side of a datagram server, shared by DHCP, TFTP, syslog and the answers to router solicitations.

The socket belongs to the event loop. When datagrams have arrived, the listener reads a limited number of them, so a
storm on one port does not starve the other ports. A network error is reported and the service continues. A fault of
this program on one packet never ends the service for other packets.

A datagram is answered in the turn of the event loop that receives it. An HTTP request takes several turns: to accept
the connection, to read the request, and to send the answer. Several full sockets would make each turn long and leave
HTTP a small share of the processor. So all listeners of a loop share one `TurnBudget`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from prometheus_client.core import Metric

from tink.limits import OncePer
from tink.metrics.families import counter

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0
_LOG_AGAIN_SECONDS = 10.0

TURN_SECONDS: Final = 0.00025
"""Processor time that all listeners of an event loop may use in one of its turns, on average."""
MAX_TURN_SECONDS: Final = 0.005
"""Maximum budget of a turn in which everything else took as long or longer: TCP must not starve DHCP either."""
_DEBT_SECONDS: Final = 0.02
"""The longest overrun that later turns make up for. A clock that jumps must not stop the listeners."""

_SO_MEMINFO: Final = 55
"""Linux 4.12, asm-generic/socket.h. SK_MEMINFO_DROPS of linux/sock_diag.h is the last of its values."""
_MEMINFO: Final = struct.Struct("=9I")
IP_PKTINFO: Final = getattr(socket, "IP_PKTINFO", 8)
"""linux/in.h. The socket module has no name for it before Python 3.12."""
_SOL_UDP, _UDP_SEGMENT = 17, 103  # linux/udp.h
MAX_SEGMENTS: Final = 64  # UDP_MAX_SEGMENTS of kernels before 6.9; later ones accept twice as many
MAX_PAYLOAD_BYTES: Final = 65507  # of a datagram over IPv4; IPv6 allows 20 more
# A packet exceeds the path's MTU or the kernel has another limit; the interface computes no checksums, which older
# kernels need for this; the kernel does not have it.
NO_SEGMENTS: Final = frozenset({errno.EINVAL, errno.EMSGSIZE, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP})
_ICMP6_FILTER: Final = 1  # linux/icmpv6.h

D = TypeVar("D")


class TurnBudget:
    """Divides the turns of one event loop between its listeners and everything else, mostly TCP.

    A listener runs at once while the budget lasts. Afterwards it waits in line for a later turn, so the loop serves all
    other sockets first. A turn adds TURN_SECONDS to the budget, or the time that everything else took since the
    listeners ran, so half of the processor remains for the listeners. A listener that takes longer leaves a debt: the
    loop makes as many turns without listeners as the debt requires.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float]) -> None:
        """`call_soon(callback)` calls back in the loop's next turn; `clock` gives seconds of processor time."""
        self._call_soon = call_soon
        self._clock = clock
        self._left = TURN_SECONDS
        self._ran = clock()
        self._waiting: dict[Callable[[], None], None] = {}
        self.sockets: dict[socket.socket, str] = {}
        """The open sockets of the listeners, each with its service."""
        self._lost_before: Counter[str] = Counter()

    def lost(self) -> dict[str, int]:
        """Return the number of datagrams that the kernel dropped because a socket buffer was full, by service."""
        counts = Counter(self._lost_before)
        for sock, what in list(self.sockets.items()):
            counts[what] += _dropped(sock)
        return dict(counts)

    def close(self, sock: socket.socket) -> None:
        """Close a listener's socket and keep its number of dropped datagrams."""
        what = self.sockets.pop(sock, None)
        if what is not None:
            self._lost_before[what] += _dropped(sock)
        sock.close()

    def run(self, drain: Callable[[], None]) -> None:
        """Call `drain` now, or in a later turn if the budget is used up or other listeners wait. It waits at most
        once."""
        if self._left > 0 and not self._waiting:
            self._measure(drain)
            return
        if not self._waiting:
            self._call_soon(self._next_turn)
        self._waiting[drain] = None

    def forget(self, drain: Callable[[], None]) -> None:
        """Remove `drain` from the line."""
        self._waiting.pop(drain, None)

    def _next_turn(self) -> None:
        now = self._clock()
        others = min(now - self._ran, MAX_TURN_SECONDS)
        self._ran = now  # a turn without listeners must not count twice
        brought = max(others, TURN_SECONDS)
        self._left = min(self._left + brought, brought)
        try:
            while self._waiting and self._left > 0:
                drain = next(iter(self._waiting))
                del self._waiting[drain]
                self._measure(drain)
        finally:
            if self._waiting:
                self._call_soon(self._next_turn)

    def _measure(self, drain: Callable[[], None]) -> None:
        begun = self._clock()
        try:
            drain()
        finally:
            self._ran = self._clock()
            self._left = max(self._left - (self._ran - begun), -_DEBT_SECONDS)


def _dropped(sock: socket.socket) -> int:
    """Return the kernel's count of datagrams that the full socket dropped; 0 if the socket is closed."""
    try:
        values = sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
    except OSError:
        return 0
    return int(_MEMINFO.unpack(values)[-1]) if len(values) == _MEMINFO.size else 0


_budgets: WeakKeyDictionary[asyncio.AbstractEventLoop, TurnBudget] = WeakKeyDictionary()


def turn_budget() -> TurnBudget:
    """Return the budget of the running event loop, which all its listeners share."""
    loop = asyncio.get_running_loop()
    budget = _budgets.get(loop)
    if budget is None:
        # The thread's processor time: on a busy machine, a listener does not pay for the time it waits for a processor.
        budget = _budgets[loop] = TurnBudget(loop.call_soon, time.thread_time)
    return budget


def listener_metrics(budget: TurnBudget) -> Iterator[Metric]:
    """Yield the counter of dropped datagrams, by service."""
    text = "Datagrams that the kernel dropped because a service's socket was full."
    yield counter("tinkedge_datagrams_lost", text, ["service"], {(what,): lost for what, lost in budget.lost().items()})


_FORCED = {socket.SO_SNDBUF: 32, socket.SO_RCVBUF: 33}
"""SO_SNDBUFFORCE and SO_RCVBUFFORCE, asm-generic/socket.h."""


class DatagramListener(Generic[D]):
    """Hands each datagram of a non-blocking socket to `handle`; owns the socket.

    `receive` reads one datagram in the form that `handle` wants, and raises BlockingIOError when there is none. `what`
    names the service in log lines. `after_turn` is called when a turn's datagrams were handled, and must not raise.
    """

    def __init__(
        self,
        sock: socket.socket,
        what: str,
        receive: Callable[[socket.socket], D],
        handle: Callable[[socket.socket, D], None],
        *,
        per_turn: int = 64,
        after_turn: Callable[[], None] = lambda: None,
        budget: TurnBudget | None = None,
    ) -> None:
        """Use `budget`; None stands for the budget of the running loop."""
        self.socket = sock
        self._what = what
        self._receive = receive
        self._handle = handle
        self._turn = range(per_turn)
        self._after_turn = after_turn
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._once = OncePer(_LOG_AGAIN_SECONDS, 20)
        self._budget = budget or turn_budget()

    def start(self) -> None:
        """Begin to listen."""
        self._pause = None
        self._budget.sockets[self.socket] = self._what
        self._loop.add_reader(self.socket, self._budget.run, self._drain)

    def stop(self) -> None:
        """Close the socket. `handle` may do so too."""
        if self._pause is not None:
            self._pause.cancel()
        self._budget.forget(self._drain)
        self._loop.remove_reader(self.socket)
        self._budget.close(self.socket)

    def _drain(self) -> None:
        try:
            self._take_turn()
        finally:
            self._after_turn()

    def _take_turn(self) -> None:
        sock, receive, handle = self.socket, self._receive, self._handle
        for _ in self._turn:
            try:
                datagram = receive(sock)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if sock.fileno() >= 0:  # else `handle` has closed it
                    self._rest(error)
                return
            try:
                handle(sock, datagram)
            except Exception:
                if self._once.due("handle", self._loop.time()):
                    log.exception("%s: internal error on %s", self._what, repr(datagram)[:1200])

    def _rest(self, error: OSError) -> None:
        """Stop reading for a moment: an error that stays would otherwise be reported as fast as the CPU can."""
        if self._once.due(("receive", error.errno), self._loop.time()):
            log.error("%s: receiving: %s; going on", self._what, error.strerror)
        self._loop.remove_reader(self.socket)
        self._pause = self._loop.call_later(_PAUSE_SECONDS, self.start)


def udp_socket(
    address: str, port: int, interface: str | None, prepare: Callable[[socket.socket], None]
) -> socket.socket:
    """Return a non-blocking UDP socket; `prepare` is called before it is bound. Raises OSError."""
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if interface is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
        prepare(sock)
        sock.bind((address, port))
    except OSError:
        sock.close()
        raise
    return sock


def segments_of(size_bytes: int) -> tuple[int, int, bytes]:
    """Return the ancillary data by which the kernel cuts a datagram into packets of this size (udp(7), Linux 4.18)."""
    return _SOL_UDP, _UDP_SEGMENT, struct.pack("=H", size_bytes)


def packet_info(family: int, source: str = "", interface: int = 0) -> tuple[int, int, bytes]:
    """Return the ancillary data that sets the source address or the interface of a datagram (ip(7), RFC 3542)."""
    if family == socket.AF_INET6:
        value = socket.inet_pton(socket.AF_INET6, source or "::") + struct.pack("=I", interface)
        return socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, value
    value = struct.pack("=I4s4s", interface, socket.inet_aton(source or "0.0.0.0"), bytes(4))  # noqa: S104
    return socket.IPPROTO_IP, IP_PKTINFO, value


def icmp6_socket(interface: str, *types: int) -> socket.socket:
    """Return a non-blocking raw socket for ICMPv6 messages of these types on an interface. Raises OSError.

    Its packets have the hop limit that neighbour discovery requires (RFC 4861 section 6.1). Read by `receive_icmp6`.
    """
    # RFC 3542 section 3.2: a bitmap of 256 types in words of 32 bits, in which a set bit blocks the type.
    blocked = (1 << 256) - 1 & ~sum(1 << each for each in types)
    words = struct.pack("=8I", *(blocked >> 32 * word & 0xFFFFFFFF for word in range(8)))
    sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
        sock.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, words)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 255)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
    except OSError:
        sock.close()
        raise
    return sock


def receive_icmp6(sock: socket.socket) -> tuple[bytes, int, str]:
    """Return the next message of an `icmp6_socket`, its hop limit (-1: unknown) and its source. Raises OSError."""
    packet, ancillary, _flags, source = sock.recvmsg(1500, 64)
    hop_limit = -1
    for level, kind, value in ancillary:
        if level == socket.IPPROTO_IPV6 and kind == socket.IPV6_HOPLIMIT and len(value) >= 4:
            (hop_limit,) = struct.unpack("=i", value[:4])
    return packet, hop_limit, source[0]


def enlarge_buffer(sock: socket.socket, option: int, size_bytes: int) -> None:
    """Set SO_RCVBUF or SO_SNDBUF. Without CAP_NET_ADMIN, net.core.rmem_max and wmem_max are the limits."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _FORCED[option], size_bytes)
    except OSError:
        sock.setsockopt(socket.SOL_SOCKET, option, size_bytes)


def advice(what: str, error: OSError, *, port: int | None = None, without: str = "") -> str:
    """Return the reason and the remedy of an error, in one line. `without` is the option that disables the service."""
    if error.errno == errno.EADDRINUSE:
        other = f"another program has it; stop it ('ss -lunp sport = :{port}' names it)"
        return f"{what}: {other}, or start without this service ({without})"
    if error.errno in (errno.EPERM, errno.EACCES):
        return f"{what}: not permitted; run as root, or with CAP_NET_BIND_SERVICE and CAP_NET_RAW"
    if error.errno in (None, errno.ENODEV, errno.ENXIO):  # socket.if_nametoindex raises without a number
        return f"{what}: there is no such interface ('ip -brief link' lists them); name another with --interface"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{what}: no interface of this host has that address ('ip -brief address' lists them)"
    return f"{what}: {error.strerror}"

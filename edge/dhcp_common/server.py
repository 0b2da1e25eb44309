"""The sockets of a DHCP server on one interface, without what differs between DHCPv4 and DHCPv6.

Each socket is bound to one interface, so it receives the broadcasts of that network only, and each interface has a
server of its own. A socket stays bound to an interface that was removed, and receives nothing more: `edge.run.networks`
follows the interface and its address, and replaces the server.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from edge.dhcp_common.boot import Reply
from edge.dhcp_common.prober import Prober
from edge.listener import (
    MAX_PAYLOAD_BYTES,
    MAX_SEGMENTS,
    NO_SEGMENTS,
    ModeratedListener,
    ReceiveBuffers,
    enlarge_buffer,
    segments_of,
)
from tink.errors import TinkedgeError
from tink.limits import OncePer

log = logging.getLogger(__name__)

_TICK_SECONDS: Final = 1.0
# The packets of several racks that are switched on at once wait here, not in the clients' timeouts.
_RECEIVE_BUFFER_BYTES: Final = 4 * 1024 * 1024
# Room for the replies of one turn, many times over.
_SEND_BUFFER_BYTES: Final = 1024 * 1024


class DhcpServerError(TinkedgeError):
    """The server can't start; the text names the port and what to do."""


class Port(ABC):
    """One UDP port of one interface: what it receives goes to the responder; the replies of a turn leave together.

    The replies of one turn to one relay mostly have one size. The kernel can then split one large datagram into them
    (UDP_SEGMENT, Linux 4.18). Replies to clients are sent singly: if a virtual network card segments UDP, a client
    would receive frames that hold several replies, and DHCP clients read frames.
    """

    def __init__(self, protocol: str, interface: str, number: int, relay_port: int, buffers: ReceiveBuffers) -> None:
        """`protocol` is "DHCP" or "DHCPv6"; replies to `relay_port` may leave together."""
        self._protocol = protocol
        self._interface = interface
        self._number = number
        self._name = f"{protocol} on {interface} port {number}"
        self._buffers = buffers
        self._loop = asyncio.get_running_loop()
        self._once = OncePer(10.0, 20)
        self._listeners: list[ModeratedListener] = []
        self._relay_port = relay_port
        self._may_segment = True
        self._waiting: list[Reply] = []
        """The replies of this turn."""

    @abstractmethod
    def open(self) -> None:
        """Open the sockets and serve. Raises DhcpServerError."""

    @abstractmethod
    def _answer(self, sock: socket.socket, packets: list[bytes]) -> None:
        """Add the replies to these packets to those that wait for the end of the turn."""

    @abstractmethod
    def _send(self, reply: Reply) -> None:
        """Send one reply. Raises OSError."""

    @abstractmethod
    def _send_together(self, payloads: Sequence[bytes], ancillary: list[tuple[int, int, bytes]], first: Reply) -> None:
        """Send several payloads to the destination of the first reply. Raises OSError."""

    def close(self) -> None:
        """Close the sockets."""
        for listener in self._listeners:
            listener.stop()
        self._listeners.clear()

    def _prepare(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        enlarge_buffer(sock, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)

    def _listen(self, sock: socket.socket) -> None:
        receive, answer = self._buffers.receive, self._answer
        listener = ModeratedListener(sock, self._name, receive, answer, after_turn=self._send_all)
        listener.start()
        self._listeners.append(listener)

    def _log_fault(self, packet: bytes, error: Exception) -> None:
        """Log the exception that this packet raised in our code."""
        if self._once.due("fault", self._loop.time()):
            log.error("%s: internal error on %s", self._name, packet.hex(), exc_info=error)

    def _send_all(self) -> None:
        """Send the replies of this turn, in any order."""
        replies = self._waiting
        if not replies:
            return
        self._waiting = []
        if len(replies) == 1 or not self._may_segment:
            for reply in replies:
                self._try_to_send(reply)
            return
        alike: defaultdict[tuple[int, str], list[Reply]] = defaultdict(list)
        for reply in replies:
            if reply.port == self._relay_port:
                alike[len(reply.payload), reply.address].append(reply)
            else:
                self._try_to_send(reply)
        for (size, _), group in alike.items():
            most = min(MAX_SEGMENTS, MAX_PAYLOAD_BYTES // size)
            for at in range(0, len(group), most):
                self._send_group(group[at : at + most])

    def _send_group(self, group: list[Reply]) -> None:
        """Send replies of one size to one relay, as one datagram that the kernel splits, or singly."""
        refused = False
        if len(group) > 1:
            try:
                self._send_together([reply.payload for reply in group], [segments_of(len(group[0].payload))], group[0])
            except OSError as error:
                refused = error.errno in NO_SEGMENTS  # other errors are reported when the replies are sent singly
            else:
                return
        sent = [self._try_to_send(reply) for reply in group]
        if refused and all(sent) and self._may_segment:
            self._may_segment = False
            where = f"{self._protocol} on {self._interface}"
            log.info("%s: this kernel or interface does not segment UDP; replies go singly", where)

    def _try_to_send(self, reply: Reply) -> bool:
        """Send a reply and return True, or log the error and return False."""
        try:
            self._send(reply)
        except OSError as error:
            # A full send buffer, a relay without a route, an interface that went down: the client asks again.
            if self._once.due((error.errno, reply.address), self._loop.time()):
                log.warning(
                    "%s: reply to %s port %d was not sent: %s%s",
                    self._protocol, reply.address, reply.port, error.strerror, self._hint(error),
                )  # fmt: skip
            return False
        return True

    def _hint(self, _error: OSError) -> str:
        """Return a hint to the cause of a failed send; may be empty."""
        return ""


class Server:
    """Serves DHCP on one interface: its ports, and the probes for declined addresses."""

    def __init__(self, title: str, ports: Sequence[Port], prober: Prober | None) -> None:
        """`title` is for the log; `prober` is None if the responder assigns no address."""
        self._title = title
        self._ports = ports
        self._prober = prober
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Open the sockets and serve. Raises DhcpServerError."""
        try:
            for port in self._ports:
                port.open()
        except DhcpServerError:
            self._close()
            raise
        if self._prober is not None:
            self._prober.start()
        self._tick()
        log.info("%s", self._title)

    @property
    def is_unprobed(self) -> bool:
        """True if no probe can be sent, so declines are judged without a search for the address."""
        return self._prober is not None and not self._prober.can_probe

    async def stop(self) -> None:
        """Close the sockets. Clients that wait for an answer ask again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._close()

    def _close(self) -> None:
        if self._prober is not None:
            self._prober.stop()
        for port in self._ports:
            port.close()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
        if self._prober is not None:
            self._prober.declines.pass_time()

"""Many replies with one system call: the sending side of the DHCP servers' sockets.

The replies of one turn to one relay mostly have one size. The kernel can then split one large datagram into them
(UDP_SEGMENT, Linux 4.18). Replies to clients are sent singly: if a virtual network card segments UDP, a client would
receive frames that hold several replies, and DHCP clients read frames.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

log = logging.getLogger(__name__)

_SOL_UDP: Final = 17
_UDP_SEGMENT: Final = 103  # linux/udp.h
_NO_SEGMENTS: Final = {errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.ENOPROTOOPT, errno.EOPNOTSUPP}
MAX_SEGMENTS: Final = 64  # UDP_MAX_SEGMENTS of kernels before 6.9; later ones accept twice as many
MAX_PAYLOAD_BYTES: Final = 65507  # of a UDP datagram, which the kernel splits

Ancillary = tuple[int, int, bytes]


class Datagram(Protocol):
    """A datagram to send to an address, as text, and a port."""

    @property
    def payload(self) -> bytes: ...
    @property
    def address(self) -> str: ...
    @property
    def port(self) -> int: ...


D = TypeVar("D", bound=Datagram)


class Segments(Generic[D]):
    """Sends the replies of a turn. Replies of one size to one relay need one system call."""

    def __init__(
        self,
        what: str,
        relay_port: int,
        send: Callable[[D], bool],
        send_together: Callable[[Sequence[bytes], list[Ancillary], D], object],
    ) -> None:
        """`what` names the server in log lines. Replies to `relay_port` may be sent together.

        `send` sends one reply and returns True on success. `send_together` sends several payloads as one datagram with
        this ancillary data, to the destination of the given reply, and raises OSError.
        """
        self._what = what
        self._relay_port = relay_port
        self._send = send
        self._send_together = send_together
        self._possible = True
        self.waiting: list[D] = []
        """The replies of this turn."""

    def send_all(self) -> None:
        """Send all `waiting` replies, in any order. Called at the end of a turn."""
        replies = self.waiting
        if not replies:
            return
        self.waiting = []
        if len(replies) == 1 or not self._possible:
            for reply in replies:
                self._send(reply)
            return
        alike: defaultdict[tuple[int, str], list[D]] = defaultdict(list)
        for reply in replies:
            if reply.port == self._relay_port:
                alike[len(reply.payload), reply.address].append(reply)
            else:
                self._send(reply)
        for (size, _), group in alike.items():
            most = min(MAX_SEGMENTS, MAX_PAYLOAD_BYTES // size)
            for at in range(0, len(group), most):
                self._send_group(group[at : at + most])

    def _send_group(self, group: list[D]) -> None:
        """Send replies of one size to one relay, as one datagram that the kernel splits, or singly."""
        refused = False
        if len(group) > 1:
            segment = (_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", len(group[0].payload)))
            try:
                self._send_together([reply.payload for reply in group], [segment], group[0])
            except OSError as error:
                refused = error.errno in _NO_SEGMENTS  # other errors are reported when the replies are sent singly
            else:
                return
        sent = [self._send(reply) for reply in group]
        if refused and all(sent) and self._possible:
            self._possible = False
            log.info("%s: this kernel or interface does not segment UDP; replies go singly", self._what)

"""One file on its way to one client: the sender's side of a TFTP read, as a pure state machine.

Datagrams and the time go in; datagrams, the time of the next retransmission and how it ended come out. There is no
socket, no clock and no task here; `edge.tftp.server` has them.

Theory of operation. Blocks are counted from 1 and never wrap here; only the number on the wire does, to 0 after 65535.
`acked` is the last block that the client has in order. A window of blocks `acked+1 .. sent` is on the wire; an
acknowledgement of `sent` opens the next one.

    OFFERED --ACK 0--> SENDING --ACK of the last block--> ended (SENT)
       |                  |-- ERROR, silence, unreachable --> ended (FAILED)
       '-- ERROR --> ended (PROBED): EDK2 and PXELINUX ask for the size (tsize) and hang up

Without options there is no OACK and the transfer starts in SENDING.

Three rules keep it from harm:

1. An acknowledgement of the block before the window is answered at most once, and never with a window of one block
   (RFC 1123 section 4.2.3.1, the Sorcerer's Apprentice; EDK2 sends one for each block that it did not expect). With a
   larger window it says that the window's first block was lost: the window is sent again, once (RFC 7440 section 4).
2. An acknowledgement within the window says that the next block was lost: sending goes on from there.
3. Silence is answered after a time that doubles, and ends after `MAX_RETRIES`, so nobody can keep a transfer for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from edge.tftp import packets
from edge.tftp.packets import Agreed, ErrorCode, Opcode

FIRST_TIMEOUT: Final = 0.5
"""Seconds before the first retransmission. A local network answers in milliseconds, a busy ROM in some tenths."""
MAX_TIMEOUT: Final = 8.0
MAX_RETRIES: Final = 6
MAX_SILENCE: Final = 60.0
"""Seconds without progress after which it ends, however long a timeout the client wished for."""

Datagram = tuple[bytes, memoryview]
"""Header and payload, to be sent as one (`sendmsg`): the file's bytes are never copied."""

_NOTHING = memoryview(b"")


class Ending(Enum):
    """How a transfer ended."""

    SENT = "sent"
    PROBED = "probed"  # the client wanted to know the size only
    UNCONFIRMED = "unconfirmed"  # all was sent, the client went without acknowledging the last block
    REFUSED_BY_CLIENT = "refused by the client"
    DUPLICATE = "duplicate"  # the request came twice, the client follows the other transfer
    GONE = "gone"  # nobody listens there any more
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Ended:
    """`detail` is a sentence for the log; empty where there is nothing to say. Times are in seconds."""

    ending: Ending
    detail: str
    duration: float


class ReadTransfer:
    """Sends `content` to one client, as `agreed`. Call `start` once, then `receive` and `expire` as things happen."""

    def __init__(self, content: bytes | memoryview, agreed: Agreed, now: float) -> None:
        self.agreed = agreed
        self.ended: Ended | None = None
        self.deadline = now
        """When `expire` is due; meaningless after the end."""
        self.resent_blocks = 0
        self.answered = False
        """Whether the client has acknowledged anything: its address is real and it wants the file."""

        self._content = memoryview(content).cast("B")
        # The last block is shorter than the others, and empty where the size is a multiple (RFC 1350 section 6).
        self.blocks = len(self._content) // agreed.block_bytes + 1
        self._acked = 0
        self._sent = 0
        self._highest_sent = 0
        self._offered = bool(agreed.accepted)  # waiting for ACK 0
        self._answered_duplicate = False
        self._retries = 0
        self._started = now
        self._last_progress = now

    def start(self, now: float) -> list[Datagram]:
        """The first datagrams: the OACK where options were agreed on, else the first window."""
        self._rearm(now)
        if self._offered:
            return [(packets.oack(self.agreed.accepted), _NOTHING)]
        return self._window()

    def receive(self, datagram: bytes, now: float) -> list[Datagram]:
        """What to send after the client sent `datagram`. Anything but ACK and ERROR is passed over."""
        if self.ended is not None or len(datagram) < 4:
            return []
        opcode = int.from_bytes(datagram[:2], "big")
        if opcode == Opcode.ACK:
            return self._acknowledged(int.from_bytes(datagram[2:4], "big"), now)
        if opcode == Opcode.ERROR:
            code, message = packets.parse_error(datagram)
            self._end(self._meaning_of_error(code), f"error {code}: {message or 'no message'}", now)
        return []

    def _meaning_of_error(self, code: int) -> Ending:
        if code == ErrorCode.UNKNOWN_TRANSFER and not self.answered:
            return Ending.DUPLICATE
        if self._offered and any(name.lower() == "tsize" for name in self.agreed.accepted):
            return Ending.PROBED
        return Ending.REFUSED_BY_CLIENT

    def expire(self, now: float) -> list[Datagram]:
        """What to send again, the deadline having passed without an acknowledgement."""
        if self.ended is not None or now < self.deadline:
            return []
        if self._retries >= MAX_RETRIES or now - self._last_progress >= MAX_SILENCE:
            waited = f"no answer for {now - self._last_progress:.0f} s at block {self._acked} of {self.blocks}"
            self._end(Ending.UNCONFIRMED if self._all_sent() else Ending.SILENT, waited, now)
            return []
        self._retries += 1
        self._rearm(now)
        if self._offered:
            return [(packets.oack(self.agreed.accepted), _NOTHING)]
        self._sent = self._acked
        return self._window()

    def unreachable(self, now: float) -> None:
        """The client's host says that nobody listens on its port (ICMP): it has gone."""
        if self.ended is None:
            ending = Ending.UNCONFIRMED if self._all_sent() else Ending.GONE
            self._end(ending, f"the client closed its port at block {self._acked} of {self.blocks}", now)

    def _acknowledged(self, number: int, now: float) -> list[Datagram]:
        if self._offered:
            if number != 0:
                return []
            self._offered = False
            self._progress(now)
            return self._window()
        # How far ahead of `acked` the number is, modulo its 16 bits; a window is far smaller than half of them.
        ahead = (number - self._acked) & 0xFFFF
        if ahead > self._sent - self._acked:
            return []  # an old one that was late
        if ahead == 0:
            if self.agreed.window_blocks == 1 or self._answered_duplicate:
                return []
            self._answered_duplicate = True
            self._rearm(now)
            self._sent = self._acked
            return self._window()
        self._acked += ahead
        self._progress(now)
        if self._acked == self.blocks:
            self._end(Ending.SENT, "", now)
            return []
        # After an acknowledgement within the window, the blocks behind it that did arrive bring more of the same.
        self._answered_duplicate = self._acked < self._sent
        self._sent = self._acked
        return self._window()

    def _window(self) -> list[Datagram]:
        """The blocks behind `acked`, as many as a window holds."""
        size = self.agreed.block_bytes
        first = self._acked + 1
        last = min(self._acked + self.agreed.window_blocks, self.blocks)
        self._sent = last
        self.resent_blocks += max(0, min(last, self._highest_sent) - first + 1)
        self._highest_sent = max(self._highest_sent, last)
        return [
            (b"\0\3" + (block & 0xFFFF).to_bytes(2, "big"), self._content[(block - 1) * size : block * size])
            for block in range(first, last + 1)
        ]

    def _progress(self, now: float) -> None:
        self.answered = True
        self._retries = 0
        self._last_progress = now
        self._rearm(now)

    def _rearm(self, now: float) -> None:
        """RFC 1123 section 4.2.3.2: doubling; a timeout that the client asked for is kept to (RFC 2349)."""
        wait = self.agreed.timeout
        if wait is None:
            wait = min(FIRST_TIMEOUT * 2**self._retries, MAX_TIMEOUT)
        self.deadline = now + wait

    def _all_sent(self) -> bool:
        return self._sent == self.blocks

    def _end(self, ending: Ending, detail: str, now: float) -> None:
        self.ended = Ended(ending, detail, now - self._started)

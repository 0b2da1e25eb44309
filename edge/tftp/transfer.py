"""One file on its way to one client: the sender's side of a TFTP read, as a pure state machine.

Packets and the time go in; packets, the time of the next retransmission and the ending come out. There is no socket,
no clock and no task here; `edge.tftp.session` has them.

Theory of operation. Blocks are counted from 1 and never wrap here; only the number on the wire does, to 0 after 65535.
`acked` is the last block that the client has in order. The blocks `acked+1 .. sent` are on the wire, at most a window
of them; an acknowledgement of `sent` opens the next window.

    OFFERED --ACK 0--> SENDING --ACK of the last block--> ended (SENT)
       |                  |-- ERROR, silence, unreachable --> ended (FAILED)
       '-- ERROR --> ended (PROBED): EDK2 and PXELINUX ask for the size (tsize) and hang up

Without options there is no OACK and the transfer starts in SENDING.

Five rules protect a transfer:

1. A repeated acknowledgement is answered only if it can mean a loss: with windows of more than one block, and if no
   block up to that one was sent twice. Then it reports that the window's first block was lost, and the window is sent
   again (RFC 7440 section 4). Any other repeated acknowledgement is an echo: of a block that this side repeated, or of
   each block that EDK2 did not expect. Answering echoes is the Sorcerer's Apprentice bug of RFC 1123 section 4.2.3.1.
2. An acknowledgement within the window reports that the next block was lost: sending continues from there. If packets
   were duplicated or reordered, it may be an echo as well, and each answer causes more echoes. So this ends after
   `MAX_REWINDS` times without a complete window. Then only new blocks are sent, the echoes die down, and the timer
   handles losses.
3. Silence is answered after a timeout that follows the client's own pace (RFC 1123 section 4.2.3.2, computed as in RFC
   6298) and doubles. Long silence ends the transfer. Firmware keeps an even pace for a long time and then is busy with
   something else: EDK2 takes 24 ms a window, and 70 ms now and then. So the shortest timeout allows for that, until
   retransmissions prove losses: they are acknowledged once, and as fast as ever. A client that proves by an echo that
   nothing was lost gets the longer timeout for the rest of the transfer (as in RFC 4015).
4. A file may still be arriving at the edge. While the next block is not available, the client's silence is not its
   fault and ends nothing. The last block is repeated slowly, as a sign of life. Real clients acknowledge it again, and
   a client that sends nothing at all is given up.
5. Until the client has acknowledged something, its address may be forged. So a request gets one packet, the OACK or the
   first block. The timer repeats that packet only while the bytes sent are at most three times the bytes received (the
   rule of RFC 9000 section 8.1). A real client repeats its request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from edge.tftp import packets
from edge.tftp.blocks import Blocks, Burst, size_bytes
from edge.tftp.packets import Agreed, ErrorCode, Opcode

FIRST_TIMEOUT_SECONDS: Final = 1.0
"""Time before the first retransmission, while the client's pace is unknown (RFC 6298 section 2.1)."""
CAUTIOUS_TIMEOUT_SECONDS: Final = 0.2
"""Minimum time before a retransmission, as in Linux' TCP (TCP_RTO_MIN). A Raspberry Pi hangs if a block arrives twice,
and every firmware is late now and then."""
MIN_TIMEOUT_SECONDS: Final = 0.05
"""The same for a fast client on a lossy network that was never late."""
PROVEN_LOSSES: Final = 2
"""Number of losses that prove a lossy network."""
CAUTIOUS_ROUND_TRIPS: Final = 8
"""Number of round trips by which a client may be late, between the two minimum times."""
MAX_TIMEOUT_SECONDS: Final = 8.0
PATIENCE_SECONDS: Final = 30.0
"""Time of silence after which a client is given up."""
STRANGERS_PATIENCE_SECONDS: Final = 8.0
"""The same for a client that has never answered: its address may be forged, and a real client asks again."""
MAX_PATIENCE_SECONDS: Final = 60.0
"""The same for a client with a long timeout option, or while the file is arriving."""
SIGN_OF_LIFE_SECONDS: Final = 1.0
"""Time between repetitions of the last block while the next one is still arriving at the edge."""
OFFER_AGAIN_SECONDS: Final = 10.0
"""The same for the OACK while the first block is still arriving.

Not sooner, because atftp hangs up when the OACK arrives twice. Not later, because EDK2 gives up after 24 s of silence
(6 times 4 s, PxeBcImpl.h).
"""
MAX_REWINDS: Final = 8
UNPROVEN_FACTOR: Final = 3
"""Ratio of sent to received bytes for a client that has acknowledged nothing (RFC 9000 section 8.1)."""

WRAP_BLOCKS: Final = 65535
"""Some firmware can't count further: ROMs that treat the number as signed, or stop at 0."""

_NO_PAYLOAD: Final = b""
_ACK: Final = int(Opcode.ACK)  # compared for each packet; comparing with an enum member is slower


class Ending(Enum):
    """The ways in which a transfer ends."""

    SENT = "sent"
    PROBED = "probed"  # the client only asked for the size
    UNCONFIRMED = "unconfirmed"  # all was sent, but the client left without acknowledging the last block
    REFUSED_BY_CLIENT = "refused by the client"
    DUPLICATE = "duplicate"  # the request came twice, the client follows the other transfer
    REPLACED = "replaced"  # the client has restarted
    GONE = "gone"  # the client's port is closed
    SILENT = "silent"
    SOURCE_FAILED = "the file did not arrive here"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a transfer. `detail` is a sentence for the log, or empty. Times are in seconds."""

    ending: Ending
    detail: str
    duration: float


class ReadTransfer:
    """Sends `blocks` to one client with the parameters `agreed`.

    Call `start` once, then a method for each event: `receive`, `expire`, `arrived`. Each returns the packets to send.
    """

    def __init__(self, blocks: Blocks, agreed: Agreed, now: float, *, request_bytes: int) -> None:
        """`request_bytes` is the size of the request's datagram."""
        self.agreed = agreed
        self.ended: Ended | None = None
        self.deadline = now
        """The time at which `expire` is due. Meaningless after the end."""
        self.acked = 0
        self.resent_blocks = 0
        self.answered = False
        """True if the client has acknowledged anything. Then its address is real and it wants the file."""
        self.starved = False
        """True if the transfer waits for more of the file."""
        self.last_received_at = now
        """The time of the client's last packet."""

        self._blocks = blocks
        self._window = agreed.window_blocks
        self._sent = 0
        self._highest_sent = 0
        self._rewinds_left = MAX_REWINDS
        self._repeated = -1  # the highest block that was sent twice; 0 is the OACK
        self._repeated_in_silence = range(0)  # the blocks that the timer repeated last
        self._offered = bool(agreed.accepted)  # waiting for ACK 0
        self._started = now
        self._last_progress = now
        self._window_sent = now
        self._retries = 0
        self._held_back = False
        self._request_bytes = request_bytes
        self._received_bytes = request_bytes
        self._unproven_bytes = 0  # sent before the first acknowledgement
        # RFC 6298 section 2; seconds.
        self._round_trip: float | None = None
        self._variation = 0.0
        self._timeout = FIRST_TIMEOUT_SECONDS if agreed.timeout is None else agreed.timeout
        self._least_timeout = CAUTIOUS_TIMEOUT_SECONDS
        self._losses = 0
        self._is_late = False

    def start(self, now: float) -> Burst:
        """Return the first packets: the OACK if options were accepted, otherwise the first window."""
        if self._offered:
            self._rearm(now)
            return self._unproven(self._offer())
        return self._unproven(self._go_on(now))

    def receive(self, datagram: bytes, now: float) -> Burst:
        """Handle a packet of the client. Packets other than ACK and ERROR are ignored."""
        if self.ended is not None or len(datagram) < 4 or datagram[0]:
            return []
        opcode = datagram[1]
        if opcode == _ACK:
            self.last_received_at = now
            return self._acknowledged(datagram[2] << 8 | datagram[3], now)
        if opcode == Opcode.ERROR:
            code, message = packets.parse_error(datagram)
            if code == ErrorCode.UNKNOWN_TRANSFER and not self.answered:
                ending = Ending.DUPLICATE
            elif self._offered and any(name.lower() == "tsize" for name in self.agreed.accepted):
                ending = Ending.PROBED
            else:
                ending = Ending.REFUSED_BY_CLIENT
            self._end(ending, f"error {code}: {message or 'no message'}", now)
        return []

    def requested_again(self, now: float) -> Burst:
        """Return the first packets again after the client repeated its request, unless it has acknowledged one."""
        if self.ended is not None or self.answered:
            return []
        self.last_received_at = now
        self._received_bytes += self._request_bytes
        return self._unproven(self._repeat(now))

    def expire(self, now: float) -> Burst:
        """Return the packets to send again if the deadline has passed without an acknowledgement."""
        if self.ended is not None or now < self.deadline:
            return []
        silence = self.silence(now)
        if silence >= self._patience():
            self._leave(Ending.SILENT, f"no answer for {silence:.0f} s", now)
            return []
        if self._held_back:
            return self._go_on(now)
        if self.starved:
            return self._sign_of_life(now)
        self._retries += 1
        self._repeated_in_silence = range(self.acked + 1, self._sent + 1)
        if self.answered:
            return self._repeat(now)
        first = self._offer() if self._offered else self._blocks.packets(1, 1, 0)[0]
        if self._unproven_bytes + size_bytes(first) > UNPROVEN_FACTOR * self._received_bytes:
            self._rearm(now)
            return []
        return self._unproven(self._repeat(now))

    def arrived(self, filled: int, now: float) -> Burst:
        """Return the packets to send after the file's bytes before the offset `filled` have arrived."""
        self._blocks.grow(filled)
        if self.ended is not None or not self.starved:
            return []
        self._last_progress = now
        if self._offered:
            return []
        return self._go_on(now) if self.answered else self._unproven(self._go_on(now))

    def not_taken(self, count: int, now: float, pause: float) -> None:
        """Record that the kernel had no room for the last `count` packets. They are due after `pause` seconds."""
        if self.ended is None and not self._offered:
            self._held_back = True
            self._sent = max(self.acked, self._sent - count)
            self._highest_sent = min(self._highest_sent, self._sent)
            self.deadline = now + pause

    def unreachable(self, now: float) -> None:
        """End the transfer because the client's port is closed (ICMP)."""
        self._leave(Ending.GONE, "the client closed its port", now)

    def replaced(self, now: float) -> None:
        """End the transfer because the client requested another file from the same port."""
        self._end(Ending.REPLACED, f"the client began again at {self.position}", now)

    def source_failed(self, reason: str, now: float) -> Burst:
        """End the transfer because the rest of the file will not arrive. Return the error for the client."""
        if self.ended is not None:
            return []
        self._end(Ending.SOURCE_FAILED, f"{reason}, at {self.position}", now)
        return [packets.error(ErrorCode.UNDEFINED, reason), _NO_PAYLOAD]

    def silence(self, now: float) -> float:
        """Return the seconds since the client acknowledged a new block."""
        return now - (self.last_received_at if self.starved else self._last_progress)

    @property
    def position(self) -> str:
        """The last acknowledged block, as text for people."""
        return f"block {self.acked} of {self._blocks.last or 'an unknown number'}"

    @property
    def wrapped(self) -> bool:
        """True if the block numbers exceeded 16 bits."""
        return self._highest_sent > WRAP_BLOCKS

    # --- acknowledgements --------------------------------------------------------------------------------------------

    def _acknowledged(self, number: int, now: float) -> Burst:
        if self._offered:
            if number != 0:
                return []
            self._offered = False
            self._progress(now)
            return self._go_on(now)
        # The distance from `acked`, modulo 16 bits. A window is far smaller than half of that range.
        ahead = (number - self.acked) & 0xFFFF
        if ahead > self._sent - self.acked:
            return []  # a late acknowledgement of an earlier block
        if ahead == 0:
            if self.acked in self._repeated_in_silence:
                # Block and repetition both arrived, so the client was busy and nothing was lost.
                self._is_late = True
                self._least_timeout = CAUTIOUS_TIMEOUT_SECONDS
                if self.agreed.timeout is None:
                    self._timeout = max(self._timeout, self._least_timeout)
            is_loss = self._window > 1 and self._repeated < self.acked < self._sent
            return self._repeat(now) if is_loss else []
        self.acked = acked = self.acked + ahead
        self._progress(now)
        if acked == self._blocks.last:
            self._end(Ending.SENT, "", now)
            return []
        if acked < self._sent:
            if acked > self._repeated:
                self._rewinds_left = MAX_REWINDS
            # An acknowledgement of exactly the last repeated block is the echo of a needless repetition.
            if self._rewinds_left and acked != self._repeated:
                self._rewinds_left -= 1
                self._repeated = max(self._repeated, self._sent)
                self._sent = acked
        return self._go_on(now)

    def _progress(self, now: float) -> None:
        self.answered = True
        self._last_progress = now
        retries, self._retries = self._retries, 0
        took = now - self._window_sent
        if took < MIN_TIMEOUT_SECONDS / 8 and self._timeout == self._least_timeout and not retries:
            return  # the common case: nothing would change
        # If the acknowledgement took unusually long, it may have been late, and no packet was lost.
        is_loss = took <= max(2 * (self._round_trip or 0.0), MIN_TIMEOUT_SECONDS / 8)
        if retries and self.acked and is_loss and not self._is_late:
            self._losses += 1
            if self._losses == PROVEN_LOSSES:
                self._least_timeout = MIN_TIMEOUT_SECONDS
        # Karn's algorithm: do not measure a possible echo of a repetition, or a client that waited for the file.
        if self.agreed.timeout is not None or self.acked <= self._repeated or self.starved:
            return
        # RFC 6298 section 2.
        if self._round_trip is None:
            self._round_trip, self._variation = took, took / 2
        else:
            self._variation += (abs(self._round_trip - took) - self._variation) / 4
            self._round_trip += (took - self._round_trip) / 8
        allowance = min(CAUTIOUS_ROUND_TRIPS * self._round_trip, CAUTIOUS_TIMEOUT_SECONDS)
        computed = self._round_trip + 4 * self._variation
        self._timeout = min(max(computed, allowance, self._least_timeout), MAX_TIMEOUT_SECONDS)

    # --- sending -----------------------------------------------------------------------------------------------------

    def _go_on(self, now: float) -> Burst:
        """Return the blocks after `sent`, up to the end of the window or the file."""
        first, last = self._sent + 1, self.acked + self._window
        burst, count = self._blocks.packets(first, last, self.acked)
        self._sent = sent = first + count - 1
        self._held_back = False
        if first <= self._highest_sent:
            self.resent_blocks += min(sent, self._highest_sent) - first + 1
        if sent > self._highest_sent:
            self._highest_sent = sent
        self._window_sent = now
        self.starved = sent < last and sent != self._blocks.last
        if self.starved or self._retries:
            self._rearm(now)
        else:
            self.deadline = now + self._timeout
        return burst

    def _repeat(self, now: float) -> Burst:
        """Return all blocks that the client has not acknowledged."""
        if self._offered:
            self._repeated = 0
            self._rearm(now)
            return self._offer()
        self._repeated = max(self._repeated, self._sent)
        self._sent = self.acked
        return self._go_on(now)

    def _sign_of_life(self, now: float) -> Burst:
        """Return the last packet again, for a client that waits while the file is arriving."""
        self._rearm(now)
        # Older echoes have died down: a repeated acknowledgement of less than was sent now means a loss.
        self._repeated = self.acked if self.acked == self._sent else self.acked - 1
        if self._sent == 0:
            return self._offer() if self.agreed.accepted else []
        self.resent_blocks += 1
        return self._blocks.packets(self._sent, self._sent, self.acked)[0]

    def _offer(self) -> Burst:
        return [packets.oack(self.agreed.accepted), _NO_PAYLOAD]

    # --- clients with an unverified address --------------------------------------------------------------------------

    def _unproven(self, burst: Burst) -> Burst:
        self._unproven_bytes += size_bytes(burst)
        return burst

    # --- time --------------------------------------------------------------------------------------------------------

    def _rearm(self, now: float) -> None:
        """Set the deadline. The client's own timeout (RFC 2349) is constant; the adaptive one doubles."""
        if self.starved:
            self.deadline = now + (SIGN_OF_LIFE_SECONDS if self._sent else OFFER_AGAIN_SECONDS)
        elif self._retries and self.agreed.timeout is None:
            self.deadline = now + min(self._timeout * 2**self._retries, MAX_TIMEOUT_SECONDS)
        else:
            self.deadline = now + self._timeout

    def _patience(self) -> float:
        if self.starved:
            return MAX_PATIENCE_SECONDS
        patience = PATIENCE_SECONDS if self.answered else STRANGERS_PATIENCE_SECONDS
        if self.agreed.timeout is not None:
            patience = min(max(patience, 3 * self.agreed.timeout), MAX_PATIENCE_SECONDS)
        return patience

    def _leave(self, ending: Ending, detail: str, now: float) -> None:
        """End the transfer because the client has left, perhaps after the last block."""
        is_complete = self._sent == self._blocks.last
        self._end(Ending.UNCONFIRMED if is_complete else ending, f"{detail} at {self.position}", now)

    def _end(self, ending: Ending, detail: str, now: float) -> None:
        if self.ended is None:
            self.ended = Ended(ending, detail, now - self._started)

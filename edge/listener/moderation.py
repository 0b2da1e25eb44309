"""Interrupt moderation, as network cards do it: fast packets gather for a moment before they are read.

Most of the cost of a lone packet is the wake-up: the process is scheduled, the event loop makes a turn, and `epoll`,
`recvmmsg` and `sendto` are called for one packet. At thousands a second that is two thirds of the cost of a packet.

Above a certain rate the loop therefore stops waiting for the socket. A timer of the kernel (timerfd_create(2)) wakes it
every INTERVAL_SECONDS, and the packets that have arrived are read with one call and answered with one. Below that rate
the loop waits for the socket again, so a lone packet is answered at once. No packet waits longer than the interval,
which no client notices: firmware repeats a request after seconds.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Final

from edge.listener.turns import DatagramListener, TurnBudget

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 0.0005
"""Time in which packets gather: the maximum delay of an answer."""
_TURNS: Final = 32
"""Number of turns over which the rate is measured."""
_PACKETS_TO_BEGIN: Final = 8.0
"""Minimum number of packets in an interval for gathering to pay. A turn with so many has gathered them anyway."""
_PACKETS_TO_CONTINUE: Final = 5.5
"""Number of packets in an interval below which gathering ends. It is less, to prevent oscillation."""
_FULL: Final = 48.0
"""Number of packets in a turn from which on packets wait anyway: one call reads few more (`edge.listener.recvmmsg`)."""
_SLOWED: Final = 0.5
"""If the rate falls to this share while packets gather, the clients may wait for each answer before they continue."""
_AGAIN_SECONDS: Final = 0.1
"""Time without gathering after that."""
_NO_TIMER_SECONDS: Final = 60.0
"""Time without gathering after the kernel has refused a timer."""
_EXPIRATIONS_BYTES: Final = 8
"""Number of bytes to read from an expired timer, which resets it."""


# The layout and the flags of a 64-bit Linux: sys/timerfd.h, struct itimerspec.


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Times(ctypes.Structure):
    _fields_ = (("interval", _Time), ("first", _Time))


_libc = ctypes.PyDLL(None, use_errno=True)
_libc.timerfd_create.argtypes = (ctypes.c_int, ctypes.c_int)
_libc.timerfd_settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def interval_timer(seconds: float) -> int:
    """Return a file descriptor that becomes readable every `seconds` (less than one). Raises OSError."""
    # Python has timerfd_create(2) from 3.13 on. Timers of event loops are too coarse: asyncio's and uvloop's have a
    # millisecond at best, and each costs an entry in a heap every time.
    timer: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if timer < 0:
        raise _error()
    interval = _Time(0, round(seconds * 1e9))
    if _libc.timerfd_settime(timer, 0, ctypes.byref(_Times(interval, interval)), None) < 0:
        error = _error()
        os.close(timer)
        raise error
    return timer


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


class Moderation:
    """Decides from the rate of packets if they gather. Pure: the listener reports each turn."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds of any epoch."""
        self._clock = clock
        self.gathers = False
        """True if packets shall gather."""
        self._began = clock()
        self._turns = 0
        self._packets = 0
        self._rate_before = 0.0  # packets in an interval, when gathering began
        self._not_before = self._began

    def turned(self, packets: int) -> None:
        """Count the packets of a turn. After every _TURNS turns, `gathers` may change."""
        self._packets += packets
        self._turns += 1
        if self._turns < _TURNS:
            return
        now = self._clock()
        in_interval = self._packets / max(now - self._began, 1e-6) * INTERVAL_SECONDS
        in_turn = self._packets / self._turns
        if not self.gathers:
            if in_interval >= _PACKETS_TO_BEGIN > in_turn and now >= self._not_before:
                self.gathers = True
                self._rate_before = in_interval
        elif in_interval < self._rate_before * _SLOWED:
            self.gathers = False
            self._not_before = now + _AGAIN_SECONDS
        elif in_interval < _PACKETS_TO_CONTINUE or in_turn >= _FULL:
            self.gathers = False
        self._began, self._turns, self._packets = now, 0, 0

    def put_off(self) -> None:
        """Stop gathering for a minute, because there is no timer now."""
        self.gathers = False
        self._not_before = self._clock() + _NO_TIMER_SECONDS


class ModeratedListener(DatagramListener[list[bytes]]):
    """A listener that reads many packets at a time, and lets fast ones gather."""

    def __init__(
        self,
        sock: socket.socket,
        what: str,
        receive: Callable[[socket.socket], list[bytes]],
        handle: Callable[[socket.socket, list[bytes]], None],
        *,
        after_turn: Callable[[], None],
        moderation: Moderation | None = None,
        budget: TurnBudget | None = None,
    ) -> None:
        """`receive` reads all packets of a turn. `moderation` None stands for its own."""
        super().__init__(sock, what, receive, self._count, per_turn=1, after_turn=after_turn, budget=budget)
        self._handle_all = handle
        self._taken = 0
        self._moderation = moderation if moderation is not None else Moderation()
        self._timer: int | None = None

    @property
    def gathers(self) -> bool:
        """True while packets gather."""
        return self._timer is not None

    def stop(self) -> None:
        """Close the socket."""
        self._stop_gathering()
        super().stop()

    def _count(self, sock: socket.socket, packets: list[bytes]) -> None:
        self._taken = len(packets)
        self._handle_all(sock, packets)

    def _drain(self) -> None:
        self._taken = 0
        try:  # the same as in `DatagramListener`: a call of that would cost each lone packet one call more
            self._take_turn()
        finally:
            self._after_turn()
        moderation = self._moderation
        moderation.turned(self._taken)
        if moderation.gathers is (self._timer is None):
            self._change()

    def _change(self) -> None:
        """Wait for the timer instead of the socket, or the other way round."""
        if self._timer is not None:
            self._stop_gathering()
            self._loop.add_reader(self.socket, self._budget.run, self._drain)
        elif self._pause is None and self.socket.fileno() >= 0:  # else it pauses, or `handle` has closed it
            try:
                self._timer = interval_timer(INTERVAL_SECONDS)
            except OSError as error:
                log.warning("%s: no timer to let packets gather by: %s; going on without", self._what, error.strerror)
                self._moderation.put_off()
                return
            self._loop.remove_reader(self.socket)
            self._loop.add_reader(self._timer, self._tick, self._timer)

    def _tick(self, timer: int) -> None:
        os.read(timer, _EXPIRATIONS_BYTES)
        self._budget.run(self._drain)

    def _stop_gathering(self) -> None:
        if self._timer is not None:
            self._loop.remove_reader(self._timer)
            os.close(self._timer)
            self._timer = None

    def _rest(self, error: OSError) -> None:
        self._stop_gathering()
        super()._rest(error)

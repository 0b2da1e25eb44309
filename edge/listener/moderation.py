"""Interrupt moderation, as network cards do it: packets that come fast gather for a moment before they are read.

A packet that comes alone costs mostly the waking up: the process is scheduled, the event loop goes round, and `epoll`,
`recvmmsg` and `sendto` are called for it alone. At thousands a second that is two thirds of what a packet costs. So
above a rate the socket is no longer waited for; a timer of the kernel (timerfd_create(2)) wakes the loop every
INTERVAL_SECONDS, and whatever has come by then is read with one call and answered with one. Below that rate the socket
is waited for again: a packet that is alone is answered at once. Nothing waits for longer than the interval, which no
client notices: firmware asks again after seconds.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Final

from edge.listener.interval_timer import EXPIRATIONS_BYTES, interval_timer
from edge.listener.turns import Listener, TurnBudget

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 0.0005
"""How long packets gather: so much later is what a machine hears at most."""

_TURNS: Final = 32
"""The rate is that of so many turns."""
_ENOUGH: Final = 8.0
"""Packets that have to come in an interval for it to pay; and a turn that takes so many anyway has gathered them."""
_TOO_FEW: Final = 5.5
"""Below it they gather no more; less than _ENOUGH, so that a rate close to that does not go back and forth."""
_FULL: Final = 48.0
"""Where a turn has so many, packets wait already; one call hardly takes more (`edge.listener.recvmmsg`)."""
_SLOWED: Final = 0.5
"""Where the rate falls to this share while they gather, the clients may wait for each answer before they go on."""
_AGAIN_SECONDS: Final = 0.1
"""After that they do not gather for so long."""
_PUT_OFF_SECONDS: Final = 60.0


class Moderation:
    """Whether packets are to gather. Pure: it is told of each turn, the clock is given."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds of any epoch."""
        self._clock = clock
        self.gathers = False
        self._began = clock()
        self._turns = 0
        self._packets = 0
        self._wanted = 0.0  # packets in an interval, when they began to gather
        self._not_before = self._began

    def turned(self, packets: int) -> None:
        """So many were taken in a turn: once every _TURNS of them `gathers` may change."""
        self._packets += packets
        self._turns += 1
        if self._turns < _TURNS:
            return
        now = self._clock()
        in_interval = self._packets / max(now - self._began, 1e-6) * INTERVAL_SECONDS
        in_turn = self._packets / self._turns
        if not self.gathers:
            if in_interval >= _ENOUGH > in_turn and now >= self._not_before:
                self.gathers = True
                self._wanted = in_interval
        elif in_interval < self._wanted * _SLOWED:
            self.gathers = False
            self._not_before = now + _AGAIN_SECONDS
        elif in_interval < _TOO_FEW or in_turn >= _FULL:
            self.gathers = False
        self._began, self._turns, self._packets = now, 0, 0

    def put_off(self) -> None:
        """They can't gather now; there may be a way in a minute."""
        self.gathers = False
        self._not_before = self._clock() + _PUT_OFF_SECONDS


class ModeratedListener(Listener[list[bytes]]):
    """A listener of packets that are taken many at a time, and gather where they come fast."""

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
        """As `Listener`; `receive` gives all that one turn is to take. `moderation` decides (None: one of its own)."""
        super().__init__(sock, what, receive, self._count, per_turn=1, after_turn=after_turn, budget=budget)
        self._handle_all = handle
        self._taken = 0
        self._moderation = moderation if moderation is not None else Moderation()
        self._timer: int | None = None

    @property
    def gathers(self) -> bool:
        """Whether packets gather now."""
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
        try:  # as `Listener` does; calling that costs each lone packet one call more
            self._take_turn()
        finally:
            self._after_turn()
        moderation = self._moderation
        moderation.turned(self._taken)
        if moderation.gathers is (self._timer is None):
            self._change()

    def _change(self) -> None:
        """Wait for the timer and no longer for the socket, or the other way round."""
        if self._timer is not None:
            self._stop_gathering()
            self._loop.add_reader(self.socket, self._readable)
        elif self._pause is None and self.socket.fileno() >= 0:  # else it rests, or was closed by what was handled
            try:
                self._timer = interval_timer(INTERVAL_SECONDS)
            except OSError as error:
                log.warning("%s: no timer to let packets gather by: %s; going on without", self._what, error.strerror)
                self._moderation.put_off()
                return
            self._loop.remove_reader(self.socket)
            self._loop.add_reader(self._timer, self._tick, self._timer)

    def _tick(self, timer: int) -> None:
        os.read(timer, EXPIRATIONS_BYTES)
        self._readable()

    def _stop_gathering(self) -> None:
        if self._timer is not None:
            self._loop.remove_reader(self._timer)
            os.close(self._timer)
            self._timer = None

    def _rest(self, error: OSError) -> None:
        self._stop_gathering()
        super()._rest(error)

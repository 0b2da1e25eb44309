"""The kernel's interval timer as a descriptor for the event loop: timerfd_create(2), which Python has from 3.13 on.

Event loops have timers of a millisecond at best (asyncio's rounds up, uvloop's are libuv's), and each costs an entry in
their heap every time.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Final

EXPIRATIONS_BYTES: Final = 8
"""What is to be read whenever the timer is readable, so that it no longer is."""


# The layout and the flags of a 64-bit Linux: sys/timerfd.h, struct itimerspec.


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Times(ctypes.Structure):
    _fields_ = (("interval", _Time), ("first", _Time))


_libc = ctypes.PyDLL(None, use_errno=True)
_libc.timerfd_create.argtypes = (ctypes.c_int, ctypes.c_int)
_libc.timerfd_settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def interval_timer(seconds: float) -> int:
    """A descriptor that is readable every so many seconds, less than one; to be closed. Raises OSError."""
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

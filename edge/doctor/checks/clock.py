"""The clock: certificates, tokens and leases are made of it (adjtimex(2))."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Final

from edge.doctor.checks.findings import Finding, note, warning

_OLDEST_YEAR: Final = 2025
_STA_UNSYNC: Final = 0x40
_REMEDY: Final = "run an NTP client (systemd-timesyncd, chrony): 'timedatectl' shows how it stands"


def check_clock(now: Callable[[], float] = time.time, unsynchronised: Callable[[], bool] | None = None) -> Finding:
    """Whether the clock is one to go by. `now` gives seconds since the epoch."""
    year = time.gmtime(now()).tm_year
    if year < _OLDEST_YEAR:
        return Finding("clock", False, f"it is the year {year} here", f"set it ('date'), or {_REMEDY}")
    try:
        adrift = (unsynchronised or kernel_unsynchronised)()
    except OSError as error:
        return note("clock", f"the kernel does not tell whether it is synchronised: {error.strerror}")
    if adrift:
        return warning("clock", "nobody synchronises it, says the kernel", _REMEDY)
    return Finding("clock", True, "synchronised")


def kernel_unsynchronised() -> bool:
    """STA_UNSYNC. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    timex = (ctypes.c_long * 64)()  # struct timex, and room; modes 0 changes nothing
    if libc.adjtimex(ctypes.byref(timex)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, "adjtimex")
    status_at = 5 * ctypes.sizeof(ctypes.c_long)  # modes and its padding, offset, freq, maxerror, esterror
    status = ctypes.cast(ctypes.byref(timex, status_at), ctypes.POINTER(ctypes.c_int)).contents.value
    return bool(status & _STA_UNSYNC)

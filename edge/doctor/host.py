"""This host beside its network: capabilities, the clock (adjtimex(2)), iPXE's boot programs and boot media."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from edge.doctor.findings import Finding, note, passed, problem, warning
from ipxe.medium import ALL_BOOTS, MediumError, make_medium

CAPABILITIES: Final = {"CAP_NET_BIND_SERVICE": 10, "CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_SYS_ADMIN": 21}
"""The capabilities that services or the lab need, by the numbers of linux/capability.h."""
BOOT_PROGRAMS: Final = ("undionly.kpxe", "snponly.efi")
_MIN_YEAR: Final = 2025
_STA_UNSYNC: Final = 0x40  # linux/timex.h


def check_capabilities(name: str, wanted: tuple[str, ...]) -> Finding:
    """Check that this process has the `wanted` capabilities; `name` says what needs them."""
    effective = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
    missing = [capability for capability in wanted if not effective >> CAPABILITIES[capability] & 1]
    if missing:
        seen = f"missing: {', '.join(missing)}"
        return problem(f"privilege for {name}", seen, "run it as root, or give it these capabilities")
    return passed(f"privilege for {name}", f"{', '.join(wanted)} held")


def is_clock_synchronised() -> bool:
    """Return whether the kernel's clock follows a time server (STA_UNSYNC is not set). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    timex = (ctypes.c_long * 64)()  # struct timex, and room; modes 0 changes nothing
    if libc.adjtimex(ctypes.byref(timex)) < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    status_at = 5 * ctypes.sizeof(ctypes.c_long)  # modes and its padding, offset, freq, maxerror, esterror
    status = ctypes.cast(ctypes.byref(timex, status_at), ctypes.POINTER(ctypes.c_int)).contents.value
    return not status & _STA_UNSYNC


def check_clock(
    now: Callable[[], float] = time.time, is_synchronised: Callable[[], bool] = is_clock_synchronised
) -> Finding:
    """Check the clock, on which certificates, tokens and leases depend. `now` returns seconds since the epoch."""
    remedy = "run an NTP client (systemd-timesyncd, chrony): 'timedatectl' shows its state"
    year = time.gmtime(now()).tm_year
    if year < _MIN_YEAR:
        return problem("clock", f"it is the year {year} here", f"set it ('date'), or {remedy}")
    try:
        if is_synchronised():
            return passed("clock", "synchronised")
    except OSError as error:
        return note("clock", f"not known whether it is synchronised: {error.strerror}")
    return warning("clock", "not synchronised with a time server", remedy)


def is_readable(path: Path) -> bool:
    """Return whether this user can read a file. Unlike Path.exists(), no error for a closed directory on the way."""
    return os.access(path, os.R_OK)


def check_boot_programs(directory: Path) -> Finding:
    """Check that the directory has iPXE's boot programs."""
    found = [name for name in BOOT_PROGRAMS if is_readable(directory / name)]
    seen = f"{directory}: {', '.join(found) or 'neither undionly.kpxe nor snponly.efi'}"
    if len(found) == len(BOOT_PROGRAMS):
        return passed("iPXE binaries", seen)
    return problem("iPXE binaries", seen, "apt-get install ipxe, or give another directory with --ipxe-dir")


def check_boot_media(directory: Path) -> Finding:
    """Report for which firmware boot media can be made of the directory. Never more than a note: they are optional."""
    name = "boot media"
    try:
        medium = make_medium(directory)
    except MediumError as error:
        return note(name, f"none can be made: {error}")
    if medium.by_dhcp_only or len(medium.boots) < len(ALL_BOOTS):
        remedy = "an iPXE of 2022 or later in --ipxe-dir, such as Debian 13's package, has all"
        return note(name, medium.described, remedy)
    return passed(name, medium.described)

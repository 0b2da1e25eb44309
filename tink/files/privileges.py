"""Drops root privileges: a serving command becomes the owner of its data directory.

The process keeps the three capabilities that the units give to the services (deploy/systemd), for itself and for its
child processes (ambient set, capabilities(7)). All others leave the bounding set, and child processes can't get more
(PR_SET_NO_NEW_PRIVS). So a stack that root starts on the data directory of the service runs like the service.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path
from typing import Final

import tink
from tink.files.data_directory import DataDirectoryError, Owner, as_owner, give, make_for_owner, not_permitted

KEPT: Final = {"CAP_NET_BIND_SERVICE": 10, "CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13}
"""The capabilities that a serving process keeps, by their numbers (linux/capability.h)."""
_LAST_CAPABILITY: Final = 63
_PR_SET_KEEPCAPS: Final = 8  # linux/prctl.h
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_RAISE: Final = 2
_VERSION_3: Final = 0x20080522  # _LINUX_CAPABILITY_VERSION_3: two words of 32 bits for each set


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def become_owner(directory: Path) -> Owner | None:
    """Become the owner of the data directory for good if this process is root and the owner is not.

    A missing directory of the package is made first. Return the owner, or None if nothing has changed. Call this before
    any thread is started: the capabilities are those of the calling thread. Raises DataDirectoryError with the remedy.
    """
    try:
        owner = make_for_owner(directory)
    except OSError as error:
        raise DataDirectoryError(f"data directory {directory}: {error.strerror}; give another --data-dir") from error
    if owner is None:
        return None
    program = _out_of_reach(directory)
    if program is not None:
        raise DataDirectoryError(
            f"data directory {directory}: belongs to {owner}, as whom this would run, and who can't read {program}: "
            f"start the service of the package (systemctl start tinkedge), give another --data-dir, or, if no service "
            f"uses the directory: '{give(directory, 0)}'"
        )
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    permitted = re.search(r"^CapPrm:\s+([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    kept = [number for number in KEPT.values() if permitted is not None and int(permitted[1], 16) >> number & 1]
    for number in range(_LAST_CAPABILITY + 1):
        if number not in kept:
            library.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # fails without CAP_SETPCAP, where no_new_privs is enough
    _check(library.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    groups = os.getgrouplist(owner.name, owner.group) if owner.name else []
    try:
        os.setgroups(groups)
        os.setresgid(owner.group, owner.group, owner.group)
        os.setresuid(owner.user, owner.user, owner.user)
    except PermissionError as error:
        raise DataDirectoryError(not_permitted(owner, directory)) from error
    mask = sum(1 << number for number in kept)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    sets = (_Sets * 2)(_Sets(low, low, low), _Sets(high, high, high))
    _check(library.capset(ctypes.byref(_Header(_VERSION_3, 0)), sets))
    for number in kept:
        _check(library.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number, 0, 0))
    _check(library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    return owner


def _out_of_reach(directory: Path) -> Path | None:
    """Return the program or library that the owner can't read, such as a checkout in root's home, or None.

    Child processes and modules that are imported later need them. Raises DataDirectoryError.
    """
    with as_owner(directory):
        for path in (Path(sys.executable), Path(tink.__file__ or sys.executable)):
            if not os.access(path, os.R_OK, effective_ids=True):
                return path
    return None


def _check(status: int) -> None:
    """Raise OSError if a system call has failed."""
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

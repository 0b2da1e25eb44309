"""mount(2) and umount2(2): the root file system of a container, as an overlay over the image's.

Called directly, because the OSIE need not have a mount program that knows overlayfs (busybox' does not pass every
option on). Source: mount(2), umount(2), Documentation/filesystems/overlayfs.rst.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def mount_overlay(lower: Path, upper: Path, work: Path, target: Path) -> None:
    """Show `lower` at `target`, writable, with changes going to `upper`. Raises OSError.

    `upper` and `work` must be empty directories of one file system, and that neither an overlay nor a ramfs. No path
    may have a comma, a colon or a backslash in it (`settings` sees to that).
    """
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    if _libc.mount(b"overlay", os.fsencode(target), b"overlay", 0, options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def unmount(target: Path) -> None:
    """Take away what is mounted at `target`, now if possible, else as soon as nothing uses it. Raises OSError."""
    if _libc.umount2(os.fsencode(target), 0) == 0 or _libc.umount2(os.fsencode(target), _MNT_DETACH) == 0:
        return
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), str(target))


def root_is_initramfs(mounts: str) -> bool:
    """Whether / is the initramfs, which cannot be pivoted away from; `mounts` is the content of /proc/mounts.

    The last file system mounted on / is the one that counts.
    """
    kinds = [
        fields[2]
        for fields in (line.split(" ") for line in mounts.splitlines())
        if len(fields) > 2 and fields[1] == "/"
    ]
    return bool(kinds) and kinds[-1] in ("rootfs", "ramfs")

"""Network namespaces named after their owner's process: created, entered, removed; for the lab and the fleet."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from edge.building.shell import CommandError, run

NAMESPACES = Path("/run/netns")
OWN = Path("/proc/self/ns/net")
"""The namespace of the main thread."""
_CLONE_NEWNET = 0x40000000  # sched.h


async def remove_abandoned(prefix: str) -> None:
    """Remove the namespaces `prefix`PID[-...] of processes that were killed."""
    if not NAMESPACES.is_dir():
        return
    for entry in NAMESPACES.iterdir():
        pid = entry.name.removeprefix(prefix).partition("-")[0]
        if entry.name.startswith(prefix) and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            try:
                await run(["ip", "netns", "delete", entry.name])
            except CommandError:
                if entry.exists():  # otherwise another process has removed it
                    raise


def enter(namespace: Path) -> None:
    """Move the calling thread, and its future children, into a namespace. Raises CommandError, OSError."""
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        set_namespace(descriptor)
    finally:
        os.close(descriptor)


def set_namespace(descriptor: int) -> None:
    """Move the calling thread into the namespace of an open file. Raises CommandError."""
    # os.setns came with Python 3.12. It moves the calling thread only; children of the main thread inherit.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise CommandError(f"can't enter the network namespace: {os.strerror(number)}")


@contextlib.contextmanager
def inside(namespace: Path) -> Iterator[None]:
    """Run a block in a namespace. Sockets opened in it stay there. Raises CommandError, OSError."""
    home = os.open(f"/proc/thread-self/ns/{OWN.name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(namespace)
        try:
            yield
        finally:
            set_namespace(home)
    finally:
        os.close(home)

"""What the kernel knows of a worker: proc(5)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float | None:
    """Processor time of a process, with the kernel's for it; None: it has ended."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else None


def resident_bytes(pid: int) -> float | None:
    """Its memory; None: it has ended."""
    fields = _stat(pid)
    return float(int(fields[21]) * _PAGE_BYTES) if fields else None


def _stat(pid: int) -> list[str]:
    """The fields from the third on; the second is a name in parentheses, with anything in it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []

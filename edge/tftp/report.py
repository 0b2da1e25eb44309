"""How the end of a transfer is told on a machine's journey."""

from __future__ import annotations

from edge.journey.events import Outcome
from edge.tftp.source import TftpFile
from edge.tftp.transfer import WRAP_BLOCKS, Ended, Ending, ReadTransfer


def report(file: TftpFile, transfer: ReadTransfer, ended: Ended) -> tuple[Outcome | None, str]:
    """Outcome and message; no outcome where it concerns nobody."""
    what = f"{file.label}, {file.size} bytes"
    match ended.ending:
        case Ending.SENT:
            rate = file.size / 1e6 / ended.duration if ended.duration else 0.0
            speed = f" ({rate:.1f} MB/s)" if rate else ""
            message = f"TFTP sent {what} in {ended.duration:.2f} s{speed}"
            if transfer.resent_blocks:
                message += f", {transfer.resent_blocks} blocks sent again"
            return Outcome.OK, message + _warning(transfer)
        case Ending.PROBED:
            return Outcome.INFO, f"TFTP told the size of {what}"
        case Ending.UNCONFIRMED if transfer.answered:
            return Outcome.INFO, f"TFTP sent {what}, not confirmed: {ended.detail}"
        case Ending.DUPLICATE:
            return None, f"second request for {file.label} dropped"
        case Ending.REPLACED:
            return Outcome.INFO if transfer.answered else None, f"TFTP transfer of {file.label}: {ended.detail}"
        case _:
            message = f"TFTP transfer of {file.label} failed, {ended.ending.value}: {ended.detail}"
            return Outcome.FAILED, message + _warning(transfer)


def _warning(transfer: ReadTransfer) -> str:
    if not transfer.wrapped:
        return ""
    return f"; block numbers went beyond {WRAP_BLOCKS}, where some firmware stops: use HTTP, or larger blocks"

"""The files of the edge's TFTP server: the iPXE binaries, under their name or under `<mac>/<name>`.

The name comes from a network that anybody may be on, in the spelling of firmware of thirty years. It is taken apart
here and looked up in a table; it never becomes a path. Whether the machine may netboot is asked of the one policy, for
a machine that is not to boot from the network must not get there by TFTP either.
"""

from __future__ import annotations

import re

from edge.callers import Callers
from edge.inventory import Inventory, Machine
from edge.policy import NetbootPolicy
from edge.tftp.packets import ErrorCode
from edge.tftp.source import Refusal, TftpFile, TftpRequest
from ipxe.binaries import BootBinaries

MAX_NAME_IN_MESSAGE = 80

EXPECTED_MISSES = frozenset({"autoexec.ipxe"})
"""iPXE asks for it, beside the file it was loaded from, before anything else. Having none is the normal case."""

_MAC_SEGMENT = re.compile(r"[0-9a-f]{12}|[0-9a-f]{2}(?:([:.-])[0-9a-f]{2})(?:\1[0-9a-f]{2}){4}")


class BootFiles:
    """Opens boot files for machines. An `edge.tftp.source.OpenFile`."""

    def __init__(self, binaries: BootBinaries, inventory: Inventory, callers: Callers, policy: NetbootPolicy) -> None:
        self._binaries = binaries
        self._inventory = inventory
        self._callers = callers
        self._policy = policy

    def __call__(self, request: TftpRequest) -> TftpFile | Refusal:
        """The file that `request` names, or why there is none."""
        # Backslashes: Windows' and some ROMs'. Empty and "." segments: "/x", "//x", "./x".
        segments = [part for part in request.name.replace("\\", "/").split("/") if part not in ("", ".")]
        by_address = self._callers.machine(request.client_ip)
        by_name = self._by_mac(segments[0]) if len(segments) == 2 else None
        machine = by_name or by_address
        mac = machine.mac if machine is not None else None
        if ".." in segments:
            return Refusal(ErrorCode.ACCESS_VIOLATION, f"{printable(request.name)}: '..' is not allowed in names", mac)
        for known in (by_address, by_name):
            if known is not None:
                decision = self._policy.decide(known)
                if not decision.allowed:
                    return Refusal(ErrorCode.ACCESS_VIOLATION, f"may not netboot: {decision.reason}", known.mac)
        missing = Refusal(
            ErrorCode.NOT_FOUND,
            f"{printable(request.name)}: no such file",
            mac,
            expected=bool(segments) and segments[-1].lower() in EXPECTED_MISSES,
        )
        if not segments or len(segments) > 2 or (len(segments) == 2 and mac_of(segments[0]) is None):
            return missing
        # Some ROMs write every name in capitals.
        binary = self._binaries.get(segments[-1]) or self._binaries.get(segments[-1].lower())
        return missing if binary is None else TftpFile(binary.content, label=binary.name, mac=mac)

    def _by_mac(self, segment: str) -> Machine | None:
        mac = mac_of(segment)
        return self._inventory.by_mac(mac) if mac is not None else None


def mac_of(segment: str) -> str | None:
    """The MAC that a path segment writes (colons, dashes, dots or none; any case), in lower case with colons."""
    lowered = segment.lower()
    if not _MAC_SEGMENT.fullmatch(lowered):
        return None
    digits = re.sub(r"[:.-]", "", lowered)
    return ":".join(digits[at : at + 2] for at in range(0, 12, 2))


def printable(name: str) -> str:
    """A client's file name made fit for a log line or a screen."""
    shown = "".join(c if c.isascii() and c.isprintable() else "?" for c in name[:MAX_NAME_IN_MESSAGE])
    return shown if len(name) <= MAX_NAME_IN_MESSAGE else f"{shown}..."

"""The files for the firmware of a Raspberry Pi 4 or 5: `config.txt` and `cmdline.txt`, by TFTP.

They have the facts of the iPXE script. The firmware is the boot program: it loads its own parts (`start4.elf`,
`fixup4.dat`, device trees, overlays), equal for all machines, and then the files that `config.txt` names. All names are
in a directory with its serial number (eight hexadecimal digits) or its MAC with dashes, as its EEPROM is set
(TFTP_PREFIX), or in none if that has no `start4.elf`. Sources: the documentation of the Raspberry Pi, "Boot EEPROM" and
"config.txt".
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

from ipxe.direct import DirectScripts, reason_lines
from ipxe.scripts import Dialect, ScriptPlan

CONFIG: Final = "config.txt"
COMMAND_LINE: Final = "cmdline.txt"
NO_KERNEL: Final = "netboot-not-allowed"
"""A kernel that does not exist, for a machine that must not boot."""

OUIS: Final = frozenset({"b8:27:eb", "dc:a6:32", "e4:5f:01", "28:cd:c1", "d8:3a:dd", "2c:cf:67", "88:a2:9e"})
"""The address blocks of Raspberry Pi Ltd and the Foundation (IEEE MA-L)."""

_SERIAL = re.compile(r"[0-9a-f]{8}|[0-9a-f]{16}", re.IGNORECASE)


def is_serial(segment: str) -> bool:
    """Return True for a Pi's serial number as the name of a directory: eight digits of it, or all sixteen."""
    return _SERIAL.fullmatch(segment) is not None


class _PiScripts(DirectScripts):
    program: ClassVar[str] = "its own firmware"


class PiConfigs(_PiScripts):
    """Renders one machine's part of `config.txt`, which follows the operator's part for all."""

    dialect: ClassVar[Dialect] = Dialect.PI_CONFIG

    def reason(self, mac: str, reason: str) -> str:
        """Return the part for a machine that must not boot: the reason as a comment, and no kernel."""
        return self._render("reason.pi.j2", lines=reason_lines(mac, reason), kernel=NO_KERNEL)

    def _text(self, plan: ScriptPlan, title: str) -> str:
        # A command line with an error is found here: of two files, the first must have the reason.
        self._words(self._scripts.command_line(plan))
        return self._render("boot.pi.j2", title=title, directory=f"osie/{plan.osie[1]}", command_line=COMMAND_LINE)


class PiCommandLines(_PiScripts):
    """Renders `cmdline.txt`: one line."""

    dialect: ClassVar[Dialect] = Dialect.PI_COMMAND_LINE

    def reason(self, mac: str, reason: str) -> str:  # noqa: ARG002 - as its siblings
        """Return an empty command line, for no kernel."""
        return "\n"

    def _text(self, plan: ScriptPlan, title: str) -> str:  # noqa: ARG002
        return f"{' '.join(self._words(self._scripts.command_line(plan)))}\n"

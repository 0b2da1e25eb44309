"""What the firmware of a Raspberry Pi 4 or 5 is told by TFTP: `config.txt` and `cmdline.txt`, made of the same facts as
the iPXE script.

The firmware is the boot program: it fetches its own parts (`start4.elf`, `fixup4.dat`, device trees, overlays), all
alike for all machines, and then what `config.txt` names. All names are below a directory, of its serial number (eight
hexadecimal digits) or its MAC with dashes, as its EEPROM is set (TFTP_PREFIX), or below none, where it has found no
`start4.elf` in that. Sources: the documentation of the Raspberry Pi, "Boot EEPROM" and "config.txt".
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

from ipxe.direct import DirectScripts, shown
from ipxe.scripts import Dialect, Plan, Script

CONFIG: Final = "config.txt"
COMMAND_LINE: Final = "cmdline.txt"
NO_KERNEL: Final = "netboot-not-allowed"
"""The kernel of a machine that is not to boot: the firmware asks for it in vain, and for none that lies about."""

OUIS: Final = frozenset({"b8:27:eb", "dc:a6:32", "e4:5f:01", "28:cd:c1", "d8:3a:dd", "2c:cf:67", "88:a2:9e"})
"""The address blocks of Raspberry Pi Ltd and the Foundation (IEEE MA-L)."""

_SERIAL = re.compile(r"[0-9a-f]{8}|[0-9a-f]{16}", re.IGNORECASE)


def is_serial(segment: str) -> bool:
    """Whether a directory is named like the serial number of a Pi: eight digits of it, or all sixteen."""
    return _SERIAL.fullmatch(segment) is not None


class _PiScripts(DirectScripts):
    program: ClassVar[str] = "its own firmware"


class PiConfigs(_PiScripts):
    """Renders what is made for one machine of `config.txt`, behind what the operator has there for all."""

    dialect: ClassVar[Dialect] = Dialect.PI_CONFIG

    def reason(self, mac: str, reason: str) -> str:
        """The same for a machine that is not to boot: it says why to whoever reads it, and names no kernel."""
        lines = [f"tinkedge does not boot {mac} from the network:", *reason.splitlines()]
        return self._render("reason.pi.j2", lines=[shown(line) for line in lines], kernel=NO_KERNEL)

    def _boot(self, plan: Plan, who: str, osie: tuple[str, str]) -> Script:
        full_name = "/".join(osie)
        (line,) = self._scripts.command_lines([plan])
        self._words(line)  # one that can't be said is found here: of two files, the first is to have the reason
        text = self._render(
            "boot.pi.j2",
            title=shown(f"tinkedge: {who} ({plan.mac}) boots OSIE {full_name}"),
            directory=f"osie/{osie[1]}",
            command_line=COMMAND_LINE,
        )
        return Script(text=text, what=f"OSIE {full_name}", osie=osie, logs=plan.logs)


class PiCommandLines(_PiScripts):
    """Renders `cmdline.txt`: one line."""

    dialect: ClassVar[Dialect] = Dialect.PI_COMMAND_LINE

    def reason(self, mac: str, reason: str) -> str:  # noqa: ARG002 - as its siblings
        """A command line for no kernel: an empty one."""
        return "\n"

    def _boot(self, plan: Plan, who: str, osie: tuple[str, str]) -> Script:  # noqa: ARG002
        (line,) = self._scripts.command_lines([plan])
        words = " ".join(self._words(line))
        return Script(text=f"{words}\n", what=f"OSIE {'/'.join(osie)}", osie=osie, logs=plan.logs)

"""What U-Boot fetches by TFTP to boot a machine: `pxelinux.cfg/01-<mac>` and `boot.scr.uimg`, made of the same facts as
the iPXE script.

U-Boot's standard boot (`bootflow scan`) and its older scripts ask for both, and run what they get first:

    pxelinux.cfg/01-<mac>   in PXELINUX's language, as far as U-Boot reads it (boot/pxe_utils.c): what to load, and the
                            kernel's command line. U-Boot takes no more than CONFIG_SYS_CBSIZE for that, 512 to 2048
                            bytes; what is longer it does not start, and goes on to the other file
    boot.scr.uimg           commands for its shell, in U-Boot's legacy image format: several attempts, several edges

The names in them are relative to the boot file's directory, which is that of `boot.scr.uimg`, and are fetched from the
server that DHCP has named. Kernel and initrd come by TFTP: of the builds that are about, few have `wget`. The device
tree is the one that the firmware has (`fdt_addr`, `fdtcontroladdr`), as it is for `pxe boot`.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import ClassVar, Final

from ipxe.direct import DirectScripts, shown
from ipxe.scripts import Dialect, Plan, Script
from tink.mac import octets

BOOT_SCRIPT: Final = "boot.scr.uimg"
"""What U-Boot asks for by TFTP (`boot_script_dhcp`), and the boot file that DHCP names to it."""
CONFIG_DIRECTORY: Final = "pxelinux.cfg"

_OF_MAC = re.compile(r"01-([0-9a-f]{2}(?:-[0-9a-f]{2}){5})", re.IGNORECASE)

# include/image.h: legacy image format; the fields of its header are big-endian.
_MAGIC: Final = 0x27051956
_HEADER = struct.Struct(">IIIIIIIBBBB32s")
_LINUX, _SCRIPT = 5, 6
_FOR_ANY = 0  # neither an architecture nor a compression


def machine_of(name: str) -> str | None:
    """Whose configuration a file of `pxelinux.cfg` is: a MAC; None where the name says none."""
    found = _OF_MAC.fullmatch(name)
    return found[1].lower().replace("-", ":") if found is not None else None


def config_name(mac: str) -> str:
    """The name of the machine's file in `pxelinux.cfg`. Raises ValueError for what is no MAC."""
    return f"01-{octets(mac).hex('-')}"


def script_image(text: str) -> bytes:
    """A script as U-Boot's `source` wants it: a legacy image with the one part `text` (doc/usage/cmd/source.rst)."""
    script = text.encode()
    data = struct.pack(">II", len(script), 0) + script
    checksum = zlib.crc32(data)
    header = _image_header(0, len(data), checksum)
    return _image_header(zlib.crc32(header), len(data), checksum) + data


def _image_header(header_checksum: int, size: int, checksum: int) -> bytes:
    what = (_LINUX, _FOR_ANY, _SCRIPT, _FOR_ANY, b"tinkedge")
    return _HEADER.pack(_MAGIC, header_checksum, 0, size, 0, 0, checksum, *what)


class _UBootScripts(DirectScripts):
    """What both kinds have in common.

    U-Boot expands `${...}` and `$(...)` in a configuration's `append`, and takes away quotes and backslashes there
    (common/cli_simple.c); in its shell a single quote can't be quoted.
    """

    program: ClassVar[str] = "U-Boot"
    forbidden: ClassVar[str] = "'\\$"


class ExtlinuxScripts(_UBootScripts):
    """Renders `pxelinux.cfg/01-<mac>`."""

    dialect: ClassVar[Dialect] = Dialect.EXTLINUX

    def reason(self, mac: str, reason: str) -> str:
        """A configuration whose one entry is the reason, and starts nothing."""
        # Only `localboot -1` runs no command of the machine's own (`localcmd`).
        title = shown(f"tinkedge does not boot {mac} from the network: {' '.join(reason.split())}")
        return self._render("reason.extlinux.j2", title=title)

    def _boot(self, plan: Plan, who: str, osie: tuple[str, str]) -> Script:
        full_name = "/".join(osie)
        (line,) = self._scripts.command_lines([plan])
        text = self._render(
            "boot.extlinux.j2",
            title=shown(f"tinkedge: {who} ({plan.mac}) boots OSIE {full_name}"),
            directory=f"osie/{osie[1]}",
            words=" ".join(self._words(line)),
        )
        return Script(text=text, what=f"OSIE {full_name}", osie=osie, logs=plan.logs)


class UBootScripts(_UBootScripts):
    """Renders the text of `boot.scr.uimg`, which `script_image` wraps."""

    dialect: ClassVar[Dialect] = Dialect.U_BOOT

    def reason(self, mac: str, reason: str) -> str:
        """Commands that show the reason, line by line, and fail."""
        lines = [f"tinkedge does not boot {mac} from the network:", *reason.splitlines()]
        return self._render("reason.uboot.j2", lines=[quoted(shown(line)) for line in lines])

    def _boot(self, plan: Plan, who: str, osie: tuple[str, str]) -> Script:
        full_name = "/".join(osie)
        # Addresses of IPv6 are written in another way, which few builds know.
        plans = [each for each in self._scripts.plans(plan) if each is plan or not each.origin.is_ipv6]
        lines = self._scripts.command_lines(plans)
        sources = []
        for each, line in zip(plans, lines, strict=True):
            server = "" if each is plan else f"{each.origin.host}:"
            sources.append((f"{server}osie/{osie[1]}", quoted(" ".join(self._words(line)))))
        text = self._render(
            "boot.uboot.j2",
            title=quoted(shown(f"tinkedge: {who} ({plan.mac}) boots OSIE {full_name}")),
            sources=sources,
        )
        return Script(text=text, what=f"OSIE {full_name}", osie=osie, logs=plan.logs)


def quoted(text: str) -> str:
    """One word of U-Boot's shell; a single quote, which can't be written there, becomes a double one."""
    return "'" + text.replace("'", '"') + "'"

"""The files that U-Boot loads by TFTP: `pxelinux.cfg/01-<mac>` and `boot.scr.uimg`, with the iPXE script's facts.

U-Boot's standard boot (`bootflow scan`) and its older scripts request both, and run the first one that exists:

    pxelinux.cfg/01-<mac>   in PXELINUX's language, as far as U-Boot reads it (boot/pxe_utils.c): the files to load, and
                            the kernel's command line, at most CONFIG_SYS_CBSIZE (512 to 2048 bytes). U-Boot does not
                            start a longer one, and goes on to the other file
    boot.scr.uimg           commands for its shell, in U-Boot's legacy image format: several attempts, several edges

Names in them are relative to the directory of the boot file `boot.scr.uimg`, on the server that DHCP has named. Kernel
and initrd come by TFTP: few builds have `wget`. The device tree is the firmware's (`fdt_addr`, `fdtcontroladdr`), as
for `pxe boot`.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import ClassVar, Final

from ipxe.direct import DirectScripts, reason_lines, shown
from ipxe.scripts import Dialect, ScriptPlan

BOOT_SCRIPT: Final = "boot.scr.uimg"
"""The script that U-Boot requests by TFTP (`boot_script_dhcp`), and the boot file in its DHCP answer."""
CONFIG_DIRECTORY: Final = "pxelinux.cfg"

_OF_MAC = re.compile(r"01-([0-9a-f]{2}(?:-[0-9a-f]{2}){5})", re.IGNORECASE)

# include/image.h: legacy image format; the fields of its header are big-endian.
_MAGIC: Final = 0x27051956
_HEADER = struct.Struct(">IIIIIIIBBBB32s")
_LINUX, _SCRIPT = 5, 6
_FOR_ANY = 0  # neither an architecture nor a compression


def machine_of(name: str) -> str | None:
    """Return the MAC in the name of a file in `pxelinux.cfg`; None if it has none."""
    found = _OF_MAC.fullmatch(name)
    return found[1].lower().replace("-", ":") if found is not None else None


def script_image(text: str) -> bytes:
    """Wrap a script for U-Boot's `source`: a legacy image with one part (doc/usage/cmd/source.rst)."""
    script = text.encode()
    data = struct.pack(">II", len(script), 0) + script
    checksum = zlib.crc32(data)
    header = _image_header(0, len(data), checksum)
    return _image_header(zlib.crc32(header), len(data), checksum) + data


def _image_header(header_checksum: int, size: int, checksum: int) -> bytes:
    what = (_LINUX, _FOR_ANY, _SCRIPT, _FOR_ANY, b"tinkedge")
    return _HEADER.pack(_MAGIC, header_checksum, 0, size, 0, 0, checksum, *what)


class _UBootScripts(DirectScripts):
    """The common part of both kinds of script.

    U-Boot expands `${...}` and `$(...)` in a configuration's `append`, and removes quotes and backslashes there
    (common/cli_simple.c). Its shell can't quote a single quote.
    """

    program: ClassVar[str] = "U-Boot"
    forbidden: ClassVar[str] = "'\\$"


class ExtlinuxScripts(_UBootScripts):
    """Renders `pxelinux.cfg/01-<mac>`."""

    dialect: ClassVar[Dialect] = Dialect.EXTLINUX

    def reason(self, mac: str, reason: str) -> str:
        """Return a configuration with the reason as its one entry, which starts nothing."""
        # Only `localboot -1` runs no command of the machine's own (`localcmd`).
        title = shown(f"tinkedge does not boot {mac} from the network: {' '.join(reason.split())}")
        return self._render("reason.extlinux.j2", title=title)

    def _text(self, plan: ScriptPlan, title: str) -> str:
        words = " ".join(self._words(self._scripts.command_line(plan)))
        return self._render("boot.extlinux.j2", title=title, directory=f"osie/{plan.osie[1]}", words=words)


class UBootScripts(_UBootScripts):
    """Renders the text of `boot.scr.uimg`, which `script_image` wraps."""

    dialect: ClassVar[Dialect] = Dialect.U_BOOT

    def reason(self, mac: str, reason: str) -> str:
        """Return commands that show the reason, line by line, and fail."""
        return self._render("reason.uboot.j2", lines=map(quoted, reason_lines(mac, reason)))

    def _text(self, plan: ScriptPlan, title: str) -> str:
        sources = []
        for each, line in self._scripts.boots(plan):
            if (
                each is plan or not each.origin.is_ipv6
            ):  # IPv6 addresses have another notation, which few builds support
                server = "" if each is plan else f"{each.origin.host}:"
                sources.append((f"{server}osie/{plan.osie[1]}", quoted(" ".join(self._words(line)))))
        return self._render("boot.uboot.j2", title=quoted(title), sources=sources)


def quoted(text: str) -> str:
    """Quote a word for U-Boot's shell. A single quote becomes a double one, because it can't be quoted."""
    return "'" + text.replace("'", '"') + "'"

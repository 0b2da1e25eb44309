"""The script of a machine that boots by GRUB: a `grub.cfg` with the facts of the iPXE script.

A distribution's shim runs only programs signed by that distribution: its GRUB, which runs its kernels. So a machine
with Secure Boot needs no key of ours in its firmware, but its OSIE needs a kernel of that distribution.

    Debian, Ubuntu          grub/grub.cfg (and grub/x86_64-efi/grub.cfg)
    RHEL, Fedora, Oracle,   grub.cfg-UUID, -01-MAC, -C0A80032 and its beginnings down to one digit, grub.cfg: first in
    SUSE, upstream 2.12     the program's directory ($fw_path), then in $prefix: EFI/BOOT, EFI/redhat, boot/grub2, ...

Each of these names is the script of the caller, known by its address, over TFTP, or over HTTP after UEFI HTTP Boot. The
name of another machine's MAC is refused. GRUB 2.06 (Debian 12) has no HTTP and loads the kernel by TFTP. Its HTTP
requests fail at once, so the script tries HTTP first.

Inserted values are checked as for iPXE (`ipxe.direct`) and written in single quotes, within which GRUB has no special
characters (GRUB manual, section "Quoting").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from ipxe.direct import DirectScripts, reason_lines
from ipxe.scripts import SIGN_PATH, Dialect, ScriptPlan
from tink.mac import from_any

CONFIG = "grub.cfg"
"""The file that GRUB requests in its directory `grub`."""
_MAX_VENDOR = 32
WHY = "why.cfg"
"""The file in that directory with the reason for a missing kernel or initrd."""


_OURS = re.compile(r"grub\.cfg(?:-([0-9A-Fa-f][0-9A-Fa-f:.-]{0,63}))?|why\.cfg")
_TYPED_MAC = re.compile(r"01[:-]([0-9a-f]{2}(?:[:-][0-9a-f]{2}){5})", re.IGNORECASE)
"""A MAC after Ethernet's hardware type, in PXELINUX's notation."""
_PLATFORM = re.compile(r"[a-z0-9_]{1,16}-(efi|pc|ieee1275)")


def machine_of(name: str) -> str | None:
    """Return the MAC whose script the file `name` is; empty: the caller's; None: it is not our script.

    A UUID or an address in the name is ignored: the caller is known by its address.
    """
    found = _OURS.fullmatch(name)
    if found is None:
        return None
    suffix = found[1] or ""
    typed = _TYPED_MAC.fullmatch(suffix)
    return from_any(typed[1] if typed is not None else suffix) or ""


def is_directory(segments: Sequence[str]) -> bool:
    """Return True if GRUB may look for its script in this directory: its own, or a distribution's prefix."""
    match [segment.lower() for segment in segments]:
        case [*above, platform] if _PLATFORM.fullmatch(platform):
            segments = above
        case lowered:
            segments = lowered
    match segments:
        case [] | ["boot"] | ["grub" | "grub2" | "efi"] | ["boot", "grub" | "grub2" | "efi"]:
            return True
        case ["efi", vendor] | ["boot", "efi", vendor] | ["boot", "efi", "efi", vendor]:
            return len(vendor) <= _MAX_VENDOR
    return False


def is_script(segments: Sequence[str]) -> bool:
    """Return True if a path, without the directory of a machine, is that of a GRUB script."""
    *directory, name = segments
    if name == WHY:
        return directory == ["grub"]
    return machine_of(name) is not None and is_directory(directory)


class GrubScripts(DirectScripts):
    """Renders the scripts of GRUB."""

    program: ClassVar[str] = "GRUB"
    dialect: ClassVar[Dialect] = Dialect.GRUB

    def reason(self, mac: str, reason: str) -> str:
        """Return a script that shows why `mac` is not booted, line by line, and continues with the next boot device."""
        return self._render("reason.grub.j2", lines=map(quoted, reason_lines(mac, reason)))

    def _text(self, plan: ScriptPlan, title: str) -> str:
        sources = []
        for each, line in self._scripts.boots(plan):
            words = " ".join(map(quoted, self._words(line)))
            for device in self._devices(each):
                kernel, initrd = (quoted(f"{device}/osie/{plan.osie[1]}/{part}") for part in ("kernel", "initrd"))
                sign = quoted(f"{device}{SIGN_PATH}/starting") if device.startswith("(http,") else ""
                sources.append({"kernel": kernel, "initrd": initrd, "words": words, "sign": sign})
        whys = [quoted(f"{device}/grub/{WHY}") for device in self._devices(plan)]
        return self._render("boot.grub.j2", title=quoted(title), sources=sources, whys=whys)

    def _devices(self, plan: ScriptPlan) -> list[str]:
        """Return the devices: HTTP, and TFTP if GRUB was loaded by it, since it may lack HTTP."""
        devices = [f"(http,{self._scripts.authority(plan.origin)})"]
        return [*devices, f"(tftp,{plan.origin.host})"] if plan.origin.tftp else devices


def quoted(text: str) -> str:
    """Quote a text as one word of a GRUB script."""
    return "'" + text.replace("'", "'\\''") + "'"

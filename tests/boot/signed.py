"""Programs for UEFI signed by a site's own key, and an OSIE as one of them (a unified kernel image).

The key is the test key of Debian's package ovmf: the firmware `uefi-own-keys` trusts it and no other.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

_KEYS = Path("/usr/share/ovmf")
_STUB = Path("/usr/lib/systemd/boot/efi/linuxx64.efi.stub")
_PAGE = 4096


def sign(program: Path, out: Path) -> Path:
    """`program`, signed."""
    encrypted = (_KEYS / "PkKek-1-snakeoil.key").read_bytes()
    key = load_pem_private_key(encrypted, b"snakeoil")
    with tempfile.NamedTemporaryFile(suffix=".key") as plain:
        plain.write(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
        plain.flush()
        certificate = _KEYS / "PkKek-1-snakeoil.pem"
        command = ["sbsign", "--key", plain.name, "--cert", certificate, "--output", out, program]
        subprocess.run(command, check=True, capture_output=True)
    return out


def make_uki(kernel: Path, initrd: Path, words: str, out: Path) -> Path:
    """One program of kernel, initrd and command line (UAPI Group Specification "Unified Kernel Image"), not signed.

    Sections lie behind those of the stub, each on a page of its own; the kernel's comes last, for it is unpacked in
    place.
    """
    headers = subprocess.run(["objdump", "-h", _STUB], check=True, capture_output=True, text=True).stdout
    sections = [line.split() for line in headers.splitlines() if line.strip()[:1].isdigit()]
    at = max(int(section[3], 16) + int(section[2], 16) for section in sections)
    command: list[str | Path] = ["objcopy"]
    with tempfile.TemporaryDirectory() as name:
        release, line = Path(name, "osrel"), Path(name, "cmdline")
        release.write_text('NAME="OSIE"\nID=osie\n')
        line.write_text(words)
        for section, file in ((".osrel", release), (".cmdline", line), (".initrd", initrd), (".linux", kernel)):
            at = -(-at // _PAGE) * _PAGE
            command += ["--add-section", f"{section}={file}", "--change-section-vma", f"{section}={at:#x}"]
            at += file.stat().st_size
        subprocess.run([*command, _STUB, out], check=True, capture_output=True)
    return out

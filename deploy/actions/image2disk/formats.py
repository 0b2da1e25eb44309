"""Recognizes files that are not raw disk images by their first bytes."""

from __future__ import annotations

import re
from typing import Final

from image2disk.errors import ActionError
from image2disk.settings import ENDINGS
from image2disk.unpacking import kind_of

HEAD_BYTES: Final = 64 << 10
"""Number of bytes at the start of an image that are checked: a GPT for 4096-byte sectors, and an ISO's boot record."""

# Disk images of virtual machines: the first bytes, the name, and the name that `qemu-img -f` has for the format.
_VIRTUAL: Final = (
    (b"KDMV", "a VMDK image", "vmdk"),
    (b"COWD", "a VMDK image", "vmdk"),
    (b"# Disk DescriptorFile", "the text part of a VMDK image", "vmdk"),
    (b"vhdxfile", "a VHDX image", "vhdx"),
    (b"conectix", "a VHD image", "vpc"),
    (b"<<< ", "a VDI image", "vdi"),  # The text differs between products. The signature is at 64.
    (b"QED\0", "a QED image", "qed"),
    (b"WithoutFreeSpace", "a Parallels image", "parallels"),
    (b"WithouFreSpacExt", "a Parallels image", "parallels"),
    (b"Bochs Virtual HD Image", "a Bochs image", "bochs"),
)
_VDI_SIGNATURE: Final = b"\x7f\x10\xda\xbe"

_RAW: Final = "unpack it, and serve the disk image in it"
_COMPRESSION: Final = "compress the image with gzip, zstd, xz or bzip2 instead"
_RESTORE: Final = "restore it to a raw disk image with the program that made it"
_OTHER: Final = "IMG_URL must name a disk image"
_FILES: Final = (
    (0, b"PK\3\4", "a zip archive", _RAW),
    (0, b"PK\5\6", "an empty zip archive", _RAW),
    (257, b"ustar", "a tar archive", _RAW),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _RAW),
    (0, b"Rar!\x1a\x07", "a RAR archive", _RAW),
    (0, b"070701", "a cpio archive", _OTHER),
    (0, b"070702", "a cpio archive", _OTHER),
    (0, b"070707", "a cpio archive", _OTHER),
    (0, b"!<arch>\n", "an ar archive or a Debian package", _OTHER),
    (0, b"\xed\xab\xee\xdb", "an RPM package", _OTHER),
    (0, b"MSCF\0\0\0\0", "a cabinet archive", _RAW),
    (0, b"MSWIM\0\0\0", "a WIM archive", _RESTORE),
    (0, b"\x04\x22\x4d\x18", "compressed with lz4", _COMPRESSION),
    (0, b"\x02\x21\x4c\x18", "compressed with lz4 (legacy)", _COMPRESSION),
    (0, b"LZIP\1", "compressed with lzip", _COMPRESSION),
    (0, b"\x89LZO\0\r\n\x1a\n", "compressed with lzop", _COMPRESSION),
    (0, b"\x1f\x9d", "compressed with compress", _COMPRESSION),
    (0, b"\xff\x06\0\0sNaPpY", "compressed with snappy", _COMPRESSION),
    (0, b"\x3a\xff\x26\xed", "an Android sparse image", "make it raw with simg2img"),
    (0, b"partclone-image", "a partclone image", _RESTORE),
    (0, b"\0ntfsclone-image", "an ntfsclone image", _RESTORE),
    (0, b"FsArCh_", "an FSArchiver archive", _RESTORE),
    (0, b"\x7fELF", "an ELF program", _OTHER),
    (0, b"\x27\x05\x19\x56", "a U-Boot image", _OTHER),
    (0, b"\xd0\x0d\xfe\xed", "a device tree or a FIT image", _OTHER),
    (0, b"%PDF-", "a PDF document", _OTHER),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG picture", _OTHER),
    (0, b"\xff\xd8\xff", "a JPEG picture", _OTHER),
    (0, b"GIF8", "a GIF picture", _OTHER),
    (0, b"SQLite format 3\0", "an SQLite database", _OTHER),
)
_TEXTS: Final = (
    (re.compile(rb"<(!doctype\s+html|html|head|body)", re.I), "a web page (HTML)"),
    (re.compile(rb"<(\?xml|!doctype|!--|[a-z][\w:.-]*[\s>])", re.I), "an XML document"),
    (re.compile(rb"version https://git-lfs\.github\.com/"), "a Git LFS pointer, not the file that it points to"),
    (re.compile(rb"#!"), "a script"),
    (re.compile(rb"[{\[]"), "a JSON document"),
)
_CONTROLS: Final = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_BOMS: Final = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


def refuse_other_formats(url: str, head: bytes, disk: str) -> None:
    """Refuse what is neither a raw disk image nor a bare filesystem.

    `head` are the first `HEAD_BYTES` bytes of the file, after decompression. Call this only if they contain no
    partition table: hybrid images begin like other formats. Raises ActionError (ImageUnsupported, NotAnImage).
    """
    for magic, what, driver in _VIRTUAL:
        if head.startswith(magic) and (driver != "vdi" or head[64:68] == _VDI_SIGNATURE):
            name = _file_name(url)
            command = f"`qemu-img convert -f {driver} -O qcow2 {name} {name.rsplit('.', 1)[0]}.qcow2`"
            message = f"{url}: is {what}, which the action does not write; convert it with {command}"
            raise ActionError("ImageUnsupported", f"{message} and serve the result")
    what, remedy = name_of_other(head)
    if what:
        message = f"{url}: is {what}, not a disk image; nothing was written to {disk}; {remedy}"
        raise ActionError("NotAnImage", f"{message}, or set IMG_FORMAT to raw to write it unchanged")


def name_of_other(head: bytes) -> tuple[str, str]:
    """Return the name of the format and the remedy; both are empty if the format may be a disk image."""
    if kind := kind_of(head):
        return f"compressed again ({kind})", "compress it once"
    for offset, magic, what, remedy in _FILES:
        if head.startswith(magic, offset):
            return what, remedy
    if head.startswith(b"MZ"):
        at = int.from_bytes(head[60:64], "little")
        if head[at : at + 4] == b"PE\0\0" or head[0x202:0x206] == b"HdrS":
            return "an EFI or Windows program, or a kernel", _OTHER
    if head[0x202:0x206] == b"HdrS":  # Linux x86 boot protocol: a kernel without the EFI stub
        return "a Linux kernel", _OTHER
    # El Torito 1.0 section 2: the boot record is in sector 17 of the CD.
    if head[32769:32774] == b"CD001" and head[34823:34846] == b"EL TORITO SPECIFICATION":
        return "a CD image that boots from a CD alone", "make it hybrid with isohybrid or `xorriso -as mkisofs`"
    return (what, _OTHER) if (what := _text(head)) else ("", "")


def _text(head: bytes) -> str:
    """Return the kind of text that `head` is; empty if it is not text."""
    text = head.removeprefix(b"\xef\xbb\xbf")
    if encoding := _BOMS.get(head[:2]):
        text = head[2:].decode(encoding, "replace").encode()
    start = text[:4096].lstrip()
    kind = next((name for begins, name in _TEXTS if begins.match(start)), "")
    if kind and not _CONTROLS.search(start[:512]):
        return kind
    # A text has lines, or words in less than a sector. Letters that repeat may be the pattern of a test.
    has_words = b"\n" in text or (b" " in text and len(head) < 512)
    return "a text" if has_words and _is_text(text) else ""


def _is_text(head: bytes) -> bool:
    if _CONTROLS.search(head):
        return False
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return len(head) - error.start < 4 <= len(head)  # the last character is cut off
    return bool(head)


def _file_name(url: str) -> str:
    name = re.split(r"[?#]", url, maxsplit=1)[0].rsplit("/", 1)[-1]
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return name if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name, re.ASCII) else "IMAGE"

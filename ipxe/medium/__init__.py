"""Boot media: an image that starts iPXE with a machine's own script, from CD or USB stick, with BIOS and UEFI.

    /usr/lib/ipxe (ipxe.iso, ipxe-amd64.efi, ...) -> `make_medium` -> a `Medium`, once: all bytes of an image, except
    two areas of the same fixed length -> `written`: with one machine's script in both areas, ready to send

So no file is stored per machine, every image has the same length, and any part of it is available at once.
`ipxe.medium.iso9660` and `ipxe.medium.fat` are the two file systems, pure and only as large as a medium needs.
"""

from ipxe.medium.image import ALL_BOOTS, AREA_BYTES, Medium, MediumError, Written, make_medium

__all__ = ["ALL_BOOTS", "AREA_BYTES", "Medium", "MediumError", "Written", "make_medium"]

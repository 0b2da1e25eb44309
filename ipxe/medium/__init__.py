"""Boot media: one image that starts iPXE with a machine's own script, from a CD or a USB stick, with BIOS and UEFI.

    /usr/lib/ipxe (ipxe.iso, ipxe-amd64.efi, ...) -> `make_medium` -> a `Medium`, once: an image of which every byte is
    known but for two areas of the same fixed length -> `written`: with one machine's script in both, as it is sent

So no file is kept for a machine, every image has the same length, and any part of it is at hand at once.
`ipxe.medium.iso9660` and `ipxe.medium.fat` are the two file systems, pure and no larger than what a medium needs.
"""

from ipxe.medium.image import ALL_BOOTS, AREA_BYTES, Medium, MediumError, Written, make_medium

__all__ = ["ALL_BOOTS", "AREA_BYTES", "Medium", "MediumError", "Written", "make_medium"]

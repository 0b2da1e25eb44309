"""Why an action failed: a word for programs and a sentence for people.

    InvalidSetting      a variable of the environment is missing or wrong
    DiskNotFound        DEST_DISK is not a block device
    DiskBusy            something holds the disk or a partition of it
    DiskUnsuitable      the image does not fit the disk: size or sector size
    DownloadFailed      the server does not serve the whole image
    ChecksumMismatch    the server served other bytes than IMG_SHA256 or the digest says
    DecompressFailed    the compressed data are damaged
    NotAnImage          the file is something else: a web page, an archive, a program
    ImageDamaged        the image contradicts itself
    ImageUnsupported    a disk image in a format, or with a feature, that the action does not write
    NotStreamable       a qcow2 image that is not in the order in which it can be streamed
    WriteFailed         the disk or the kernel refuses a request

Nothing has been written to the disk at InvalidSetting, DiskNotFound, NotAnImage and DiskUnsuitable, except by a qcow2
image with clusters below 8 KiB, whose partition table is compared at its end.
"""

from __future__ import annotations


class ActionError(Exception):
    """Ends the action. `reason` becomes the Workflow's, `message` the sentence beside it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message

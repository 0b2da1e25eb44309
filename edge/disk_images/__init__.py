"""Disk images of operating systems in DATA_DIR/files: fetched, checked as image2disk would write them, listed, removed.

action        the modules of the action image2disk (deploy/actions) that read images and download files
partitions    which partitions an image has, with their types, labels and filesystems; which is the root. Pure
reading       an image read to its end, as the action would write it; nothing is written
checksums     a checksum, or the file of checksums that a distribution publishes beside its images. Pure
sources       the bytes of a file or URL
depot         DATA_DIR/files: put there whole or not at all, listed, removed
"""

from edge.disk_images.checksums import Checksum
from edge.disk_images.depot import Depot, Stored
from edge.disk_images.errors import ImageError
from edge.disk_images.partitions import Partition, root_of
from edge.disk_images.reading import Image
from edge.disk_images.sources import Source, checksum_of, opened

__all__ = [
    "Checksum",
    "Depot",
    "Image",
    "ImageError",
    "Partition",
    "Source",
    "Stored",
    "checksum_of",
    "opened",
    "root_of",
]

"""Disk images of operating systems in DATA_DIR/files: fetched, checked as image2disk would write them, listed, removed.

action     the modules of the action image2disk (deploy/actions) that read images and download files
sources    the bytes of a file or URL, and the checksum that a distribution publishes for it
reading    an image read to its end, with its partitions, labels and filesystems
depot      DATA_DIR/files: put there whole or not at all, listed, removed
"""

"""wipe: removes what is on the disks that it is given, at least all that makes something else find an old system there.

    holders      which RAIDs, volumes, mounts and swap use a disk, and how the first two are stopped
    modes        the ways to wipe: metadata, discard, NVMe format, overwrite

The disk itself, errors and their report are those of image2disk, which is in the same image.
"""

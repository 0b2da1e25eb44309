"""wipe: removes the content of disks, or at least all signatures by which software would find an old system.

    holders      the RAIDs, volumes, mounts and swap on a disk; stops the first two
    modes        the ways to wipe: metadata, discard, NVMe format, overwrite

The disk itself, errors and their report are those of image2disk, which is in the same image.
"""

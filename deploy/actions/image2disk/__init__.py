"""image2disk: streams a disk image from a web server or registry onto a disk. Nothing is stored on the way.

    settings     the environment, checked
    registry     oci://registry/repository@digest: which blob is the image, and how it is asked for
    download     its bytes in order, gone on with where a connection broke
    unpacking    gzip, zstd, xz, bzip2
    formats      what is no disk image, by its first bytes
    fit          partition tables; whether an image fits the disk: size, sector size
    qcow2        which of its bytes belong where
    disk         writes in large aligned blocks; zeros; the end
    partitions   the kernel's partitions of the disk, replaced by those of the image
    errors       why an action failed
    pipeline     each of them in a thread of its own, so that network, processor and disk work at the same time

Standard library alone, and the program zstd: this is all that the action's image has.
"""

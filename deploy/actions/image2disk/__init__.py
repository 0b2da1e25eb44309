"""image2disk: streams a disk image from a web server or registry onto a disk, without temporary storage.

    settings     the environment, checked
    web          HTTP requests and their retries
    registry     oci://registry/repository@digest: finds the image's blob
    download     the image's bytes in order, continued after a broken connection
    unpacking    gzip, zstd, xz, bzip2; stages in threads, so that network, processor and disk work at the same time
    formats      recognizes files that are no disk images, by their first bytes
    fit          partition tables, and the check that an image fits the disk: size, sector size
    qcow2        places of a qcow2 file's bytes on the disk
    disk         writes in large aligned blocks; zeros; the end
    partitions   replaces the kernel's partitions of the disk by those of the image
    errors       reasons of a failed action

It needs only the standard library and libzstd, because the action's image has no more.
"""

"""Kernels, initrds, images and files: fetched once from their upstream, stored on disk, streamed while they arrive.

artifact    an open artifact, the errors, and files of `file://` URLs
cache       `ArtifactCache`, which other packages use
flight      a request to an upstream and the download that follows; it continues where it broke off
upstream    HTTP to upstreams, and to the caches of other edges
download    a file that is being filled, its readers, and its room
store       the directory of artifacts
eviction    which files and downloads give way to others (pure)
passing     a file of another edge that is too large for the cache
checksum    SHA-256: as people write it, and of files
layout      OCI image layouts
shared      files and images that other edges may have
"""

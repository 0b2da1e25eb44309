"""Containers without a container engine: pull an image (`store`, `registry`, `unpack`), describe the container
(`bundle`), run it with runc or crun (`runc`). Formats: OCI image, distribution and runtime specifications 1.0.
"""

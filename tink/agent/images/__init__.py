"""The images of actions: fetched (`registry`, `connection`), unpacked (`unpack`), kept (`store`).

Names, logins and the choice of a manifest are those of `tink.registry`.
Formats: OCI image and distribution specifications 1.1. Imports the standard library's HTTP and TLS, so only runtimes
that need images import this. A container engine pulls by itself; of these it uses the names and the credentials.
"""

from __future__ import annotations

from tink.agent.images.registry import ATTEMPTS, Registries, how_to_log_in, parse, retry_backoff
from tink.agent.images.store import Image, ImageStore, UnpackError, path_in_root
from tink.registry import Credentials, Reference

__all__ = [
    "ATTEMPTS",
    "Credentials",
    "Image",
    "ImageStore",
    "Reference",
    "Registries",
    "UnpackError",
    "how_to_log_in",
    "parse",
    "path_in_root",
    "retry_backoff",
]

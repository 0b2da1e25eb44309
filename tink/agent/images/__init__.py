"""The images of actions: named (`reference`), fetched (`registry`, `connection`), unpacked (`unpack`), kept (`store`).

Formats: OCI image and distribution specifications 1.0. Imports the standard library's HTTP and TLS, so only runtimes
that need images import this. A container engine pulls by itself; of these it uses the names and the credentials.
"""

from __future__ import annotations

from tink.agent.images.reference import Reference, parse
from tink.agent.images.registry import ATTEMPTS, Credentials, Registries, retry_backoff
from tink.agent.images.store import Image, ImageStore
from tink.agent.images.unpack import UnpackError, resolve

__all__ = [
    "ATTEMPTS",
    "Credentials",
    "Image",
    "ImageStore",
    "Reference",
    "Registries",
    "UnpackError",
    "parse",
    "resolve",
    "retry_backoff",
]

"""The images of actions: `registry` fetches them, `store` unpacks and stores them.

`tink.registry` parses names and logins and chooses a manifest. Formats: OCI image and distribution specifications 1.1.
Importing this loads the standard library's HTTP and TLS, so only runtimes that need images do. A container engine pulls
by itself; for engines only the names and credentials are used.
"""

from __future__ import annotations

from tink.agent.images.registry import ATTEMPTS, Registries, how_to_log_in, parse, retry_backoff
from tink.agent.images.store import ImageStore, UnpackedImage, UnpackError, path_in_root
from tink.registry.login import Credentials
from tink.registry.names import Reference

__all__ = [
    "ATTEMPTS",
    "Credentials",
    "ImageStore",
    "Reference",
    "Registries",
    "UnpackError",
    "UnpackedImage",
    "how_to_log_in",
    "parse",
    "path_in_root",
    "retry_backoff",
]

"""Which file is the kernel or initrd of an OSIE, and with which checksum: asked by HTTP and by TFTP alike.

An OSIE object names two URLs, and an annotation may name that of both in one (a unified kernel image, UKI); its
annotations may name the SHA-256 of what must come from there. `OsieFiles` reads the
object and hands the URL to `edge.artifacts.cache`, which fetches it and checks it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pydantic import ValidationError

from edge.artifacts import Artifact, normalized
from tink.api.annotations import (
    INITRD_SHA256_ANNOTATION,
    KERNEL_SHA256_ANNOTATION,
    UKI_SHA256_ANNOTATION,
    UKI_URL_ANNOTATION,
)
from tink.api.v1alpha2 import OSIE, Raw

OsieLookup = Callable[[str, str], Raw | None]
"""`osie(namespace, name)`: the OSIE object, or None."""

UKI = "uki"
UKI_FILE = "uki.efi"
"""The last part of its URL: UEFI HTTP Boot takes it by that name for what it is, too."""

_PARTS = {
    "kernel": ("kernelUrl", KERNEL_SHA256_ANNOTATION),
    "initrd": ("initrdUrl", INITRD_SHA256_ANNOTATION),
    UKI: (f"metadata.annotations[{UKI_URL_ANNOTATION}]", UKI_SHA256_ANNOTATION),
}


class NoArtifactError(Exception):
    """The OSIE does not lead to a file; the message names the object and the field, and says why."""


@dataclass(frozen=True, slots=True)
class Located:
    """Where the file is.

    `full_name` is `namespace/name` of the OSIE and `field` the field of its spec that gave the URL, for messages.
    `sha256`: 64 hexadecimal digits in lower case, or empty where the OSIE demands no checksum.
    """

    url: str
    sha256: str
    full_name: str
    field: str


class Artifacts(Protocol):
    """`edge.artifacts.ArtifactCache`, or one of another process."""

    async def open(self, url: str, *, sha256: str = "") -> Artifact:
        """Get hold of an artifact. Raises ArtifactError."""


class OsieFiles:
    """Kernels and initrds by OSIE."""

    def __init__(self, osie: OsieLookup, cache: Artifacts) -> None:
        self._osie = osie
        self._cache = cache

    def locate(self, namespace: str, name: str, part: str) -> Located:
        """The `part` ("kernel", "initrd" or UKI) of an OSIE. Raises NoArtifactError."""
        if not name.isprintable():  # it comes from a URL or a TFTP name, and errors go to screens
            raise NoArtifactError("no OSIE has a name with characters that can't be shown")
        full_name = f"{namespace}/{name}"
        raw = self._osie(namespace, name)
        if raw is None:
            raise NoArtifactError(f"OSIE {full_name} does not exist")
        try:
            osie = OSIE.model_validate(raw)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"]))
            raise NoArtifactError(f"OSIE {full_name}: {where}: {problem['msg']}") from error
        field, annotation = _PARTS[part]
        try:
            sha256 = normalized(osie.metadata.annotations.get(annotation, ""))
        except ValueError as error:
            raise NoArtifactError(f"OSIE {full_name}: metadata.annotations[{annotation}]: {error}") from error
        url = osie.spec.kernel_url if part == "kernel" else osie.spec.initrd_url
        if part == UKI:
            url = osie.metadata.annotations.get(UKI_URL_ANNOTATION, "").strip()
            if not url:
                raise NoArtifactError(f"OSIE {full_name} has no UKI: {field} is not set")
        return Located(url, sha256, full_name, field)

    async def open(self, located: Located) -> Artifact:
        """Get hold of it, as `ArtifactCache.open` does. Raises ArtifactError."""
        return await self._cache.open(located.url, sha256=located.sha256)

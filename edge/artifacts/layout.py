"""A directory of container images (OCI image layout specification 1.0), read for machines and for bundles.

    index.json                     the images: for each the descriptor of a manifest or index, with its name
    blobs/sha256/<hex>             manifests, configurations and layers, by their digests

A name (the annotation org.opencontainers.image.ref.name) is `repository:tag`, as machines request it, without a host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tink.errors import TinkedgeError
from tink.registry.manifests import MANIFEST_LIMIT_BYTES, json_object
from tink.registry.names import is_digest

_MAX_DEPTH = 3
"""An index of indexes of manifests."""
REFERENCE = "org.opencontainers.image.ref.name"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_PATH = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_NAME = re.compile(rf"{_PATH}(?:/{_PATH})*:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}")


class LayoutError(TinkedgeError):
    """The directory is not an image layout, or a part of an image is missing. The message names it."""


class NoImageError(LayoutError):
    """There is no image of this name, or no blob of this digest."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A descriptor of a blob in a manifest: its media type, digest, and size in bytes."""

    media_type: str
    digest: str
    size: int

    @classmethod
    def of(cls, fields: Any) -> Descriptor:
        """Parse a descriptor. Raises LayoutError."""
        try:
            media_type, digest, size = str(fields["mediaType"]), fields["digest"], fields["size"]
        except (KeyError, TypeError):
            raise LayoutError("a descriptor lacks mediaType, digest or size") from None
        if not is_digest(digest) or not isinstance(size, int) or size < 0:
            raise LayoutError("a descriptor has no sha256 or sha512 digest, or no size")
        return cls(media_type, digest, size)


def is_name(text: str) -> bool:
    """Return True for a `repository:tag` (distribution specification, "Pulling manifests")."""
    return len(text) <= 383 and _NAME.fullmatch(text) is not None


class ImageLayout:
    """The images in a directory. Nothing is cached, so new images are served at once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def images(self) -> dict[str, Descriptor]:
        """Return the images by name; empty if there is no directory. Raises LayoutError, OSError."""
        return {name: Descriptor.of(fields) for name, fields in self.entries().items()}

    def only(self) -> Descriptor:
        """Return the only image of the layout, whatever its name. Raises LayoutError, OSError."""
        listed = self.listed()
        if len(listed) != 1:
            raise LayoutError(f"{self._directory} has {len(listed)} images, not one")
        return Descriptor.of(listed[0])

    def listed(self) -> list[Any]:
        """Return the entries of index.json, with and without a name. Raises LayoutError, OSError."""
        try:
            content = _read(self._directory / "index.json")
        except FileNotFoundError:
            return []
        listed = json_object(content, "index.json", LayoutError).get("manifests")
        if not isinstance(listed, list):
            raise LayoutError("index.json has no list of manifests")
        return listed

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return the named entries of index.json by name. Raises LayoutError, OSError."""
        found = {}
        for entry in self.listed():
            notes = entry.get("annotations") if isinstance(entry, dict) else None
            name = notes.get(REFERENCE) if isinstance(notes, dict) else None
            if isinstance(name, str) and is_name(name):
                found[name] = entry
        return found

    def path(self, digest: str) -> Path:
        """Return the path of a blob, which may be missing. Raises NoImageError if `digest` is not a digest."""
        if not is_digest(digest):
            raise NoImageError(f"{digest[:80]!r} is no sha256 or sha512 digest")
        algorithm, _, name = digest.partition(":")
        return self._directory / "blobs" / algorithm / name

    def blobs(self, image: Descriptor) -> Iterator[Descriptor]:
        """Yield all blobs of an image, each once, manifests first. Raises LayoutError, OSError."""
        seen: set[str] = set()
        yield from self._below(image, seen, 0)

    def _document(self, one: Descriptor) -> dict[str, Any]:
        return json_object(_read(self.path(one.digest)), one.digest, LayoutError)

    def _below(self, one: Descriptor, seen: set[str], depth: int) -> Iterator[Descriptor]:
        if one.digest in seen:
            return
        seen.add(one.digest)
        yield one
        fields = self._document(one)
        if isinstance(fields.get("manifests"), list):
            if depth == _MAX_DEPTH:
                raise LayoutError(f"{one.digest}: indexes of indexes of indexes")
            for entry in fields["manifests"]:
                yield from self._below(Descriptor.of(entry), seen, depth + 1)
            return
        layers = fields.get("layers")
        for part in (fields.get("config"), *(layers if isinstance(layers, list) else [])):
            found = Descriptor.of(part)
            if found.digest not in seen:
                seen.add(found.digest)
                yield found

    def unused(self) -> list[Path]:
        """Return the blobs that no image needs. Raises LayoutError, OSError, also if a part of an image is missing."""
        used = {blob.digest for entry in self.listed() for blob in self.blobs(Descriptor.of(entry))}
        blobs = (path for path in self._directory.glob("blobs/*/*") if path.is_file() and not path.is_symlink())
        return [path for path in blobs if f"{path.parent.name}:{path.name}" not in used]

    def by_platform(self, image: Descriptor) -> dict[str, dict[str, Any]]:
        """Return the manifests of an image as entries of an image index, by platform (`linux/amd64`, `linux/arm/v7`).

        An image without an index has one entry, for the platform of its configuration. Raises LayoutError, OSError.
        """
        fields = self._document(image)
        if isinstance(fields.get("manifests"), list):
            entries = [one for one in fields["manifests"] if isinstance(one, dict)]
            return {_platform(one.get("platform")): one for one in entries if isinstance(one.get("platform"), dict)}
        made = self._document(Descriptor.of(fields.get("config")))
        platform = {key: made[key] for key in ("os", "architecture", "variant") if isinstance(made.get(key), str)}
        entry = {"mediaType": image.media_type, "digest": image.digest, "size": image.size, "platform": platform}
        return {_platform(platform): entry}

    def platforms(self, image: Descriptor) -> tuple[str, ...]:
        """Return the platforms of an image, such as `linux/amd64`. Raises LayoutError, OSError."""
        found = {"/".join(each.split("/")[:2]) for each in self.by_platform(image)}
        return tuple(sorted(each for each in found if "unknown" not in each))


def image_index(manifests: Mapping[str, dict[str, Any]]) -> bytes:
    """Return an image index (OCI image specification 1.0) of manifests by platform. The result is deterministic."""
    listed = [manifests[platform] for platform in sorted(manifests)]
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": listed}, sort_keys=True).encode()


def merged_index(there: ImageLayout, brought: Mapping[str, dict[str, Any]]) -> bytes:
    """Return index.json with the entries of a layout and the new ones, which win. Raises LayoutError, OSError."""
    named = there.entries()
    unnamed = [entry for entry in there.listed() if entry not in named.values()]
    return json.dumps({"schemaVersion": 2, "manifests": [*unnamed, *{**named, **brought}.values()]}).encode()


def _platform(fields: Any) -> str:
    words = (fields.get(key) for key in ("os", "architecture", "variant")) if isinstance(fields, dict) else ()
    return "/".join(str(word) for word in words if word)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MANIFEST_LIMIT_BYTES + 1)
    if len(content) > MANIFEST_LIMIT_BYTES:
        raise LayoutError(f"{path.name} is larger than the {MANIFEST_LIMIT_BYTES} bytes that a manifest may have")
    return content


def media_type_of(content: bytes, digest: str) -> str:
    """Return the media type of a manifest. The field is optional in OCI's own types, which are the default."""
    fields = json_object(content, digest, LayoutError)
    given = fields.get("mediaType")
    if isinstance(given, str) and given:
        return given
    return INDEX_TYPE if "manifests" in fields else MANIFEST_TYPE

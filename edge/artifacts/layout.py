"""A directory of container images, as the OCI image layout specification 1.0 has it: read for machines that ask for
their actions' images, and for bundles that take them along.

    index.json                     the images: each the descriptor of a manifest or index, with its name
    blobs/sha256/<hex>             manifests, configurations and layers, by their digests

A name (the annotation org.opencontainers.image.ref.name) is `repository:tag`, as machines ask for it, without a host.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_MANIFEST_BYTES = 4 << 20
"""The distribution specification's own limit for a manifest."""
MAX_VALUES = 100_000
"""Maximum number of values in an index or manifest: a value of two bytes of JSON takes some 70 bytes in Python."""
_MAX_DEPTH = 3
"""An index of indexes of manifests."""
REFERENCE = "org.opencontainers.image.ref.name"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_PATH = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_NAME = re.compile(rf"{_PATH}(?:/{_PATH})*:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}")


class LayoutError(Exception):
    """The directory is no image layout, or lacks a part of an image; the message says which."""


class NoImageError(LayoutError):
    """There is no image of this name, or no blob of this digest."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a manifest says of a blob: its media type, digest, and size in bytes."""

    media_type: str
    digest: str
    size: int

    @classmethod
    def of(cls, fields: Any) -> Descriptor:
        """Read it. Raises LayoutError."""
        try:
            media_type, digest, size = str(fields["mediaType"]), fields["digest"], fields["size"]
        except (KeyError, TypeError):
            raise LayoutError("a descriptor lacks mediaType, digest or size") from None
        if not is_digest(digest) or not isinstance(size, int) or size < 0:
            raise LayoutError("a descriptor has no sha256 or sha512 digest, or no size")
        return cls(media_type, digest, size)


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """A manifest or index as it stands in the layout."""

    content: bytes
    media_type: str
    digest: str

    @classmethod
    def of(cls, content: bytes, algorithm: str = "sha256") -> ImageManifest:
        """What these bytes are, by a digest of `algorithm`. Raises LayoutError."""
        digest = f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"
        return cls(content, _media_type(content, digest), digest)


def is_digest(text: object) -> bool:
    """Whether this is a digest; it is then also safe as a file name."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether this is a `repository:tag` (distribution specification, "Pulling manifests")."""
    return len(text) <= 383 and _NAME.fullmatch(text) is not None


class ImageLayout:
    """The images in a directory. Nothing is kept in memory: what is put there is served from then on."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def images(self) -> dict[str, Descriptor]:
        """The images by name; empty if there is no directory. Raises LayoutError, OSError."""
        return {name: Descriptor.of(fields) for name, fields in self.entries().items()}

    def only(self) -> Descriptor:
        """The one image of a layout that has one, whatever its name. Raises LayoutError, OSError."""
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
        listed = _object(content, "index.json").get("manifests")
        if not isinstance(listed, list):
            raise LayoutError("index.json has no list of manifests")
        return listed

    def entries(self) -> dict[str, dict[str, Any]]:
        """The entries of index.json that have a name, by it. Raises LayoutError, OSError."""
        found = {}
        for entry in self.listed():
            notes = entry.get("annotations") if isinstance(entry, dict) else None
            name = notes.get(REFERENCE) if isinstance(notes, dict) else None
            if isinstance(name, str) and is_name(name):
                found[name] = entry
        return found

    def path(self, digest: str) -> Path:
        """Where a blob is, if it is there. Raises NoImageError for what is no digest."""
        if not is_digest(digest):
            raise NoImageError(f"{digest[:80]!r} is no sha256 or sha512 digest")
        algorithm, _, name = digest.partition(":")
        return self._directory / "blobs" / algorithm / name

    def manifest(self, name: str, reference: str) -> ImageManifest:
        """The manifest of the repository `name` with a tag or digest. Raises LayoutError, OSError."""
        digest, media_type = reference, ""
        if not is_digest(reference):
            descriptor = self.images().get(f"{name}:{reference}")
            if descriptor is None:
                raise NoImageError(f"there is no image {name}:{reference}")
            digest, media_type = descriptor.digest, descriptor.media_type
        try:
            content = _read(self.path(digest))
        except FileNotFoundError:
            raise NoImageError(f"there is no manifest {digest}") from None
        return ImageManifest(content, media_type or _media_type(content, digest), digest)

    def blobs(self, image: Descriptor) -> Iterator[Descriptor]:
        """All that an image consists of, each once, manifests first. Raises LayoutError, OSError."""
        seen: set[str] = set()
        yield from self._below(image, seen, 0)

    def _below(self, one: Descriptor, seen: set[str], depth: int) -> Iterator[Descriptor]:
        if one.digest in seen:
            return
        seen.add(one.digest)
        yield one
        fields = _object(_read(self.path(one.digest)), one.digest)
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
        """The manifests of an image as entries of an image index, by what they run on (`linux/amd64`, `linux/arm/v7`).

        An image without an index has one, for the platform of its configuration. Raises LayoutError, OSError.
        """
        fields = _object(_read(self.path(image.digest)), image.digest)
        if isinstance(fields.get("manifests"), list):
            entries = [one for one in fields["manifests"] if isinstance(one, dict)]
            return {_platform(one.get("platform")): one for one in entries if isinstance(one.get("platform"), dict)}
        config = Descriptor.of(fields.get("config"))
        made = _object(_read(self.path(config.digest)), config.digest)
        platform = {key: made[key] for key in ("os", "architecture", "variant") if isinstance(made.get(key), str)}
        entry = {"mediaType": image.media_type, "digest": image.digest, "size": image.size, "platform": platform}
        return {_platform(platform): entry}

    def platforms(self, image: Descriptor) -> tuple[str, ...]:
        """What an image runs on, `linux/amd64`. Raises LayoutError, OSError."""
        fields = _object(_read(self.path(image.digest)), image.digest)
        if isinstance(fields.get("manifests"), list):
            named = [one.get("platform") for one in fields["manifests"] if isinstance(one, dict)]
            found = [f"{each.get('os')}/{each.get('architecture')}" for each in named if isinstance(each, dict)]
            return tuple(sorted({one for one in found if "unknown" not in one}))
        config = Descriptor.of(fields.get("config"))
        made = _object(_read(self.path(config.digest)), config.digest)
        return (f"{made.get('os')}/{made.get('architecture')}",)


def image_index(manifests: Mapping[str, dict[str, Any]]) -> bytes:
    """An image index (OCI image specification 1.0) of manifests by platform; the same ones give the same bytes."""
    listed = [manifests[platform] for platform in sorted(manifests)]
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": listed}, sort_keys=True).encode()


def merged_index(there: ImageLayout, brought: Mapping[str, dict[str, Any]]) -> bytes:
    """Return index.json with all entries that are there and those that are brought: of two of one name, the latter.

    Raises LayoutError, OSError.
    """
    named = there.entries()
    unnamed = [entry for entry in there.listed() if entry not in named.values()]
    return json.dumps({"schemaVersion": 2, "manifests": [*unnamed, *{**named, **brought}.values()]}).encode()


def _platform(fields: Any) -> str:
    words = (fields.get(key) for key in ("os", "architecture", "variant")) if isinstance(fields, dict) else ()
    return "/".join(str(word) for word in words if word)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_MANIFEST_BYTES + 1)
    if len(content) > MAX_MANIFEST_BYTES:
        raise LayoutError(f"{path.name} is larger than the {MAX_MANIFEST_BYTES} bytes that a manifest may have")
    return content


def _object(content: bytes, what: str) -> dict[str, Any]:
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise LayoutError(f"{what} has more than {MAX_VALUES} values")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise LayoutError(f"{what} is not JSON") from None
    if not isinstance(value, dict):
        raise LayoutError(f"{what} is no JSON object")
    return value


def _media_type(content: bytes, digest: str) -> str:
    """Of a manifest that was asked for by its digest: OCI's own types where it does not say (they need not)."""
    fields = _object(content, digest)
    said = fields.get("mediaType")
    if isinstance(said, str) and said:
        return said
    return INDEX_TYPE if "manifests" in fields else MANIFEST_TYPE

"""Files and images that an edge has for the actions of machines, by URLs that another edge may ask for.

    edge:/files/<name>                     a file of DATA_DIR/files
    edge:/blobs/<digest>                   a blob of the images in DATA_DIR/images
    edge:/manifests/<repository>:<tag>     an image's manifest or index there; `@<digest>` in the place of the tag

These files have no origin. An edge serves one from its own directory, or fetches it through another edge
(`edge.peers.upstream_edge`). Other edges of the site may read all of them, so a secret does not belong there.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from edge.artifacts.artifact import (
    Artifact,
    ArtifactError,
    BadUrlError,
    NotFoundError,
    StorageError,
    identity,
    open_file,
)
from edge.artifacts.checksum import FileSums
from edge.artifacts.layout import ImageLayout, LayoutError, NoImageError, is_name
from edge.artifacts.store import key_of
from edge.artifacts.upstream import Copy
from tink.limits import Newest
from tink.registry.names import is_digest

SCHEME: Final = "edge:"
MAX_LENT: Final = 4096
"""Number of names that other edges have asked for. A dropped name is asked for again."""


def file_url(name: str) -> str:
    """Return the URL of a file."""
    return f"{SCHEME}/files/{quote(name, safe='')}"


def blob_url(digest: str) -> str:
    """Return the URL of a blob."""
    return f"{SCHEME}/blobs/{digest}"


def manifest_url(name: str, reference: str) -> str:
    """Return the URL of a manifest, by its tag or digest."""
    return f"{SCHEME}/manifests/{name}{'@' if is_digest(reference) else ':'}{reference}"


class SharedFiles:
    """The files of one edge. A file that is put into the directories is served at once."""

    def __init__(self, files: Path | None, images: Path | None) -> None:
        """The directories may be missing; None: the edge has no such files."""
        self._files, self._images = files, images

    def open(self, url: str) -> Artifact:
        """Open the artifact of such a URL, in a thread. Raises NotFoundError, BadUrlError, StorageError."""
        missing = NotFoundError(url, "no such file on the edge's machine")
        try:
            path, root = self._located(url)
            found = open_file(path.absolute().as_uri(), root)
        except NoImageError as error:
            raise NotFoundError(url, str(error)) from error
        except (LayoutError, OSError) as error:
            raise StorageError(url, f"can't be read: {error}") from error
        except NotFoundError:
            raise missing from None
        except ArtifactError as error:
            raise type(error)(url, error.reason) from error
        return Artifact(url, found.fd, found.size, found.version, found.source)

    def _located(self, url: str) -> tuple[Path, Path]:
        """Return the path of a file, and the directory that it must be in."""
        kind, _, rest = url.removeprefix(f"{SCHEME}/").partition("/")
        if kind == "files":
            name = unquote(rest)
            if self._files is None or not name or name.startswith("."):
                raise NotFoundError(url, "")
            return self._files / name, self._files
        if kind not in ("blobs", "manifests"):
            raise BadUrlError(url, "is neither of files, nor blobs, nor manifests")
        if self._images is None:
            raise NoImageError("this edge has no images")
        layout = ImageLayout(self._images)
        name, _, digest = rest.partition("@") if kind == "manifests" else ("", "", rest)
        if not digest:
            if not is_name(name):
                raise NoImageError("is no repository:tag")
            if (image := layout.images().get(name)) is None:
                raise NoImageError(f"there is no image {name}")
            digest = image.digest
        return layout.path(digest), self._images


class LentFiles:
    """Offers the files to other edges in two steps, as a cache does: a description, then the bytes by a key."""

    def __init__(self, shared: SharedFiles, sums: FileSums, fresh: float) -> None:
        """An edge that has borrowed a file asks again after `fresh` seconds whether it has changed."""
        self._shared = shared
        self._sums = sums
        self._fresh = fresh
        self._urls: Newest[str, str] = Newest(MAX_LENT)

    async def lend(self, url: str, pin: str) -> Copy | None:
        """Return the copy of `url`, or None. The borrower compares its checksum with `pin`. Raises ArtifactError."""
        artifact = await self._open(url)
        if artifact is None:
            return None
        with artifact:
            self._urls[key_of(url, pin)] = url
            return Copy(artifact.version, artifact.size, etag=f'"{artifact.version}"', fresh=self._fresh)

    async def open(self, key: str, version: str) -> Artifact | None:
        """Open the copy that `lend` has named, or return None if it has changed. Raises ArtifactError."""
        url = self._urls.get(key)
        artifact = await self._open(url) if url is not None else None
        if artifact is not None and artifact.version != version:
            artifact.close()
            return None
        return artifact

    async def _open(self, url: str) -> Artifact | None:
        try:
            return _Summed(await asyncio.to_thread(self._shared.open, url), self._sums)
        except NotFoundError:
            return None


class _Summed(Artifact):
    """A file of this host. Its checksum is computed when it is needed."""

    def __init__(self, found: Artifact, sums: FileSums) -> None:
        version = found.version.replace("-", "")  # hexadecimal, like the versions of downloads
        super().__init__(found.url, found.fd, found.size, version, found.source)
        self._sums = sums

    async def sha256(self) -> str:
        try:
            return await self._sums.of(identity(self.fd), self.fd, self.size)
        except OSError as error:
            raise StorageError(self.url, f"can't be read: {error.strerror}") from error

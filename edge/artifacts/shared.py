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
from edge.artifacts.layout import ImageLayout, LayoutError, NoImageError, is_digest, is_name
from edge.artifacts.store import key_of
from edge.artifacts.upstream import Copy
from tink.limits.newest import Newest

SCHEME: Final = "edge:"
MAX_LENT: Final = 4096
"""Names that other edges have asked for: what is forgotten is asked for again."""
_MISSING: Final = "no such file on the edge's machine"


def file_url(name: str) -> str:
    """That of a file."""
    return f"{SCHEME}/files/{quote(name, safe='')}"


def blob_url(digest: str) -> str:
    """That of a blob."""
    return f"{SCHEME}/blobs/{digest}"


def manifest_url(name: str, reference: str) -> str:
    """That of a manifest, by its tag or digest."""
    return f"{SCHEME}/manifests/{name}{'@' if is_digest(reference) else ':'}{reference}"


class SharedFiles:
    """Those of one edge. What is put into the directories is there from then on."""

    def __init__(self, files: Path | None, images: Path | None) -> None:
        """The directories, which need not be there; None: there is none of these."""
        self._files, self._images = files, images
        self._layout = ImageLayout(images) if images is not None else None

    def open(self, url: str) -> Artifact:
        """The artifact of a URL as above, which the caller closes. Reads small files: for a thread.

        Raises NotFoundError, BadUrlError, StorageError.
        """
        kind, _, what = url.removeprefix(f"{SCHEME}/").partition("/")
        try:
            match kind:
                case "files":
                    path, root = self._file(url, unquote(what)), self._files
                case "blobs":
                    path, root = self._images_of(url).path(what), self._images
                case "manifests":
                    path, root = self._manifest(url, what), self._images
                case _:
                    raise BadUrlError(url, "is neither of files, nor blobs, nor manifests")
        except NoImageError as error:
            raise NotFoundError(url, str(error)) from error
        except (LayoutError, OSError) as error:
            raise StorageError(url, f"can't be read: {error}") from error
        try:
            found = open_file(path.absolute().as_uri(), root)
        except NotFoundError:
            raise NotFoundError(url, _MISSING) from None
        except ArtifactError as error:
            raise type(error)(url, error.reason) from error
        return Artifact(url, found.fd, found.size, found.version, found.source, None)

    def _file(self, url: str, name: str) -> Path:
        if self._files is None or not name or name.startswith("."):
            raise NotFoundError(url, _MISSING)
        return self._files / name

    def _images_of(self, url: str) -> ImageLayout:
        if self._layout is None:
            raise NotFoundError(url, "this edge has no images")
        return self._layout

    def _manifest(self, url: str, what: str) -> Path:
        name, _, digest = what.partition("@")
        if digest:
            return self._images_of(url).path(digest)
        if not is_name(name):
            raise NotFoundError(url, "is no repository:tag")
        repository, _, tag = name.rpartition(":")
        layout = self._images_of(url)
        return layout.path(layout.manifest(repository, tag).digest)


class LentFiles:
    """Offers the files to other edges in two steps, as a cache does: a description, then the bytes by a key."""

    def __init__(self, shared: SharedFiles, sums: FileSums, fresh: float) -> None:
        """A borrower asks again after `fresh` seconds whether it still is the same file."""
        self._shared = shared
        self._sums = sums
        self._fresh = fresh
        self._urls: Newest[str, str] = Newest(MAX_LENT)

    async def lend(self, url: str, pin: str) -> Copy | None:
        """The copy of `url` here; None: it is not here. Whether it has the checksum `pin`, the borrower finds out.

        Raises ArtifactError.
        """
        artifact = await self._open(url)
        if artifact is None:
            return None
        with artifact:
            self._urls[key_of(url, pin)] = url
            version = _version_of(artifact)
            return Copy(version, artifact.size, etag=f'"{version}"', fresh=self._fresh)

    async def open(self, key: str, version: str) -> Artifact | None:
        """The copy that `lend` has named, if it still is that. The caller closes it. Raises ArtifactError."""
        url = self._urls.get(key)
        artifact = await self._open(url) if url is not None else None
        if artifact is not None and _version_of(artifact) != version:
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
        super().__init__(found.url, found.fd, found.size, found.version, found.source, None)
        self._sums = sums

    async def sha256(self) -> str:
        try:
            return await self._sums.of(identity(self.fd), self.fd, self.size)
        except OSError as error:
            raise StorageError(self.url, f"can't be read: {error.strerror}") from error


def _version_of(artifact: Artifact) -> str:
    return artifact.version.replace("-", "")  # as those of downloads are: hexadecimal

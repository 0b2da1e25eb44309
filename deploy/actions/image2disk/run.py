"""Copies an image to a disk; starts again if the server's file has changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from image2disk.disk import Disk
from image2disk.download import ChangedError, Download
from image2disk.errors import ActionError
from image2disk.fit import refuse_misfit, refuse_too_large
from image2disk.formats import HEAD_BYTES, refuse_other_formats
from image2disk.qcow2 import MAGIC, Qcow2
from image2disk.registry import Blob, Registry
from image2disk.settings import Settings, compression_of
from image2disk.unpacking import HEADER_BYTES, ahead, kind_of, least_size, looked_at, unpacked
from image2disk.web import AnswerError, Web
from tink.net.urls import without_login

MAX_BEGINNINGS: Final = 3
"""Maximum number of starts with a file that keeps changing."""
PROGRESS_SECONDS: Final = 2.0


class Copying:
    """Copies the image at `settings.url` to `disk`."""

    def __init__(
        self,
        settings: Settings,
        disk: Disk,
        say: Callable[[str], None] = print,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take `clock` as the source of seconds for the limit on slow servers."""
        self._settings = settings
        self._disk = disk
        self._say = say
        self._sleep = sleep
        is_proved = bool(settings.sha256) or settings.is_artefact
        self._web = Web(check_certificates=not is_proved, proxies=settings.proxies, clock=clock)
        self._download: Download | None = None

    def run(self) -> tuple[int, str]:
        """Copy; return the number of bytes on the disk and the SHA-256 of the file. Raises ActionError."""
        blob = self._blob() if self._settings.is_artefact else None
        for left in reversed(range(MAX_BEGINNINGS)):
            self._download = download = self._new(blob)
            try:
                size = self._copy(download, blob)
            except ChangedError as error:
                if not left:
                    raise ActionError(
                        "DownloadFailed", f"{self._settings.shown_url}: keeps changing: {error}"
                    ) from None
                self._say(f"the file on the server has changed: {error}; starts again from the first byte")
                continue
            found = download.sha256.hexdigest()
            for expected in filter(None, (self._settings.sha256, blob.sha256 if blob else "")):
                if found != expected:
                    why = f"has the SHA-256 {found}, not {expected}; do not boot from {self._disk.name}"
                    raise ActionError("ChecksumMismatch", f"{self._settings.shown_url} {why}")
            return size, found
        raise AssertionError("the last beginning returns or raises")

    def progress(self) -> str:
        """Return the progress in a line."""
        line, download = f"{self._disk.written // 1_000_000} MB written", self._download
        if download is not None and download.size:
            line += f", {100 * download.received // download.size} % of {download.size // 1_000_000} MB fetched"
        return line

    def _new(self, blob: Blob | None) -> Download:
        def by_url(refusal: AnswerError | None) -> str:
            """Return nothing: `Web` sends what stands in the URL. Raises AnswerError with the remedy for `refusal`."""
            if refusal is None:
                return ""
            remedy = "write a user and password into IMG_URL, https://USER:PASSWORD@HOST/..., percent-encoded"
            if without_login(self._settings.url)[1]:
                remedy = "the server does not accept the user and password of IMG_URL"
            raise AnswerError(f"{refusal}: {remedy}", refusal.status)

        return Download(
            self._web,
            blob.url if blob else self._settings.url,
            retries=self._settings.retries,
            is_proved=bool(blob or self._settings.sha256),
            authorization=blob.authorization if blob else by_url,
            say=self._say,
            sleep=self._sleep,
        )

    def _blob(self) -> Blob:
        return Registry(self._web, self._settings, say=self._say, sleep=self._sleep).blob()

    def _unpacked(self, download: Download, blob: Blob | None) -> tuple[Iterator[bytes], int | None]:
        """Return the image without the compression of its file and of its transfer, and its size if that is known.

        Some servers name the compression of the file itself in Content-Encoding: Apache with AddEncoding or
        mod_mime_magic (`x-gzip`), S3 as it was uploaded. Others compress the file once more, though identity was asked
        for. The first bytes tell: in the second case the file is still compressed when Content-Encoding is undone.
        """
        url, coding = self._settings.shown_url, ""
        chunks, beginning = looked_at(ahead(download.chunks()), HEADER_BYTES)
        image_bytes = download.size
        named = blob.compression if blob else compression_of(self._settings.url)
        if download.coding and not blob and download.coding in (kind_of(beginning), "deflate"):
            coding = download.coding
            if coding != named:
                chunks, beginning = looked_at(ahead(unpacked(chunks, coding, url)), HEADER_BYTES)
                image_bytes = None
        if self._settings.is_compressed:
            kind = named or kind_of(beginning)
            if not kind:
                raise ActionError("InvalidSetting", f"COMPRESSED is true, and {url} is not compressed")
            refuse_too_large(url, least_size(beginning, kind), self._disk.name, self._disk.size)
            chunks, beginning = looked_at(ahead(unpacked(chunks, kind, url)), HEADER_BYTES)
            image_bytes = None
            if coding and coding == named == kind_of(beginning):
                chunks = ahead(unpacked(chunks, kind, url))
        elif self._settings.format == "auto" and (kind := kind_of(beginning)):
            what = "set COMPRESSED to true, or IMG_FORMAT to raw to write it unchanged"
            raise ActionError("InvalidSetting", f"{url} is compressed ({kind}): {what}")
        return chunks, image_bytes

    def _copy(self, download: Download, blob: Blob | None) -> int:
        chunks, image_bytes = self._unpacked(download, blob)
        chunks, beginning = looked_at(chunks, HEAD_BYTES)
        if not beginning:
            raise ActionError("DownloadFailed", f"{self._settings.shown_url}: is empty")
        if self._settings.format == "qcow2" or (self._settings.format == "auto" and beginning.startswith(MAGIC)):
            self._disk.clears = self._settings.clears  # at the first write, after the check of the image
            image = Qcow2(self._settings.shown_url, self._disk, self._refuse_misfit)
            image.write(chunks)
            size = image.size
            self._disk.flush()
            self._refuse_misfit(self._disk.read(0, HEAD_BYTES), size)
        else:
            self._check(beginning, image_bytes)
            self._disk.clears = self._settings.clears
            size = 0
            for chunk in chunks:
                self._disk.write(size, chunk)
                size += len(chunk)
        self._disk.flush()
        return size

    def _check(self, head: bytes, image_bytes: int | None) -> None:
        """Check the beginning of an image that is not qcow2, before any of it is written. Raises ActionError."""
        url = self._settings.shown_url
        has_table = self._refuse_misfit(head, image_bytes)
        if not has_table and self._settings.format == "auto":
            refuse_other_formats(url, head, self._disk.name)
        if image_bytes is not None:
            refuse_too_large(url, image_bytes, self._disk.name, self._disk.size)
        if not has_table:
            self._say(f"{url} has no partition table at its start: it is written unchanged")

    def _refuse_misfit(self, head: bytes, image_bytes: int | None) -> bool:
        """Return True if the image has a partition table. Raises ActionError (DiskUnsuitable, ImageDamaged)."""
        url, disk, is_strict = self._settings.shown_url, self._disk, self._settings.format != "raw"
        sizes = disk.name, disk.size, disk.sector_bytes
        return refuse_misfit(url, head, *sizes, image_bytes=image_bytes, is_strict=is_strict) is not None


def reporting(progress: Callable[[], str], say: Callable[[str], None]) -> Callable[[], None]:
    """Print `progress()` every `PROGRESS_SECONDS`, until the returned function is called."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(PROGRESS_SECONDS):
            say(progress())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    return end

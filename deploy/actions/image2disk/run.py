"""The whole way of an image onto a disk, begun anew where the server's file has changed."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from image2disk.disk import Disk
from image2disk.download import ChangedError, Download
from image2disk.errors import ActionError
from image2disk.pipeline import ahead
from image2disk.qcow2 import MAGIC, Qcow2
from image2disk.registry import Blob, Registry
from image2disk.settings import Settings, compression_of
from image2disk.unpacking import LONGEST_MAGIC, kind_of, unpacked
from image2disk.web import AnswerError, Web

MAX_BEGINNINGS: Final = 3
"""Of a file that changes again and again while it is fetched."""
PROGRESS_SECONDS: Final = 2.0


class Copying:
    """From `settings.url` to `disk`."""

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
        self._web = Web(check_certificates=not settings.sha256 and not settings.is_artefact, clock=clock)
        self._download: Download | None = None

    def run(self) -> tuple[int, str]:
        """Bytes of the disk that the image is, and the SHA-256 of what was fetched. Raises ActionError."""
        blob = self._blob() if self._settings.is_artefact else None
        for left in reversed(range(MAX_BEGINNINGS)):
            self._download = download = self._new(blob)
            try:
                size = self._copy(download, blob)
            except ChangedError as error:
                if not left:
                    raise ActionError(
                        "DownloadFailed", f"{self._settings.url}: changes all the time: {error}"
                    ) from None
                self._say(f"the file on the server has changed: {error}; begins anew, from its first byte")
                continue
            found = download.sha256.hexdigest()
            for expected in filter(None, (self._settings.sha256, blob.sha256 if blob else "")):
                if found != expected:
                    why = f"has the SHA-256 {found}, not {expected}; do not boot from {self._disk.name}"
                    raise ActionError("ChecksumMismatch", f"{self._settings.url} {why}")
            return size, found
        raise AssertionError("the last beginning returns or raises")

    def progress(self) -> str:
        """How far it is, in a line."""
        line, download = f"{self._disk.written // 1_000_000} MB written", self._download
        if download is not None and download.size:
            line += f", {100 * download.received // download.size} % of {download.size // 1_000_000} MB fetched"
        return line

    def _new(self, blob: Blob | None) -> Download:
        def nobody(_refusal: AnswerError | None) -> str:
            return ""

        return Download(
            self._web,
            blob.url if blob else self._settings.url,
            retries=self._settings.retries,
            is_proved=bool(blob or self._settings.sha256),
            authorization=blob.authorization if blob else nobody,
            say=self._say,
            sleep=self._sleep,
        )

    def _blob(self) -> Blob:
        return Registry(self._web, self._settings, say=self._say, sleep=self._sleep).blob()

    def _copy(self, download: Download, blob: Blob | None) -> int:
        chunks, beginning = _looked_at(ahead(download.chunks()), LONGEST_MAGIC)
        if self._settings.is_compressed:
            named = blob.compression if blob else compression_of(self._settings.url)
            kind = named or kind_of(beginning)
            if not kind:
                raise ActionError("InvalidSetting", f"COMPRESSED is true, and {self._settings.url} is not compressed")
            chunks = ahead(unpacked(chunks, kind, self._settings.url))
        elif self._settings.format == "auto" and (kind := kind_of(beginning)):
            what = "set COMPRESSED to true, or IMG_FORMAT to raw to have it written as it is"
            raise ActionError("InvalidSetting", f"{self._settings.url} is compressed ({kind}): {what}")
        chunks, beginning = _looked_at(chunks, len(MAGIC))
        if not beginning:
            raise ActionError("DownloadFailed", f"{self._settings.url}: is empty")
        self._disk.clears = self._settings.clears
        if self._settings.format == "qcow2" or (self._settings.format == "auto" and beginning == MAGIC):
            image = Qcow2(self._settings.url, self._disk)
            image.write(chunks)
            size = image.size
        else:
            size = 0
            for chunk in chunks:
                self._disk.write(size, chunk)
                size += len(chunk)
        self._disk.flush()
        return size


def _looked_at(chunks: Iterator[bytes], length: int) -> tuple[Iterator[bytes], bytes]:
    """The same chunks, and their first bytes."""
    first: list[bytes] = []
    while sum(map(len, first)) < length and (chunk := next(chunks, None)) is not None:
        first.append(chunk)
    return itertools.chain(first, chunks), b"".join(first)[:length]


def reporting(progress: Callable[[], str], say: Callable[[str], None]) -> Callable[[], None]:
    """Say every `PROGRESS_SECONDS` what `progress` returns, until the result is called."""
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

"""Streaming decompression of an image in bounded memory, also of several concatenated streams.

The memory is the window of one decompressor (`WINDOW_BYTES`; gzip 32 KiB, bzip2 4 MiB) plus `MOST_BYTES` of output.
"""

from __future__ import annotations

import bz2
import contextlib
import lzma
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Final, Protocol

from image2disk.errors import ActionError

MOST_BYTES: Final = 1 << 20
"""Maximum size of one piece of output, whatever the compression ratio."""
MOST_WORDS: Final = 4096
WINDOW_BYTES: Final = 128 << 20
"""Maximum window of a decompressor; files with a larger one are rejected. `xz -9` needs 65, `zstd --ultra -22` 128."""
MAGIC: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2"}
"""How each begins. A zstd file may also begin with a skippable frame (RFC 8878 section 3.1.2)."""
HEADER_BYTES: Final = 64
"""Number of bytes at the start of a compressed file that contain the magic, and the frame header of zstd."""
CODINGS: Final = {
    "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate", "zstd": "zstd", "xz": "xz", "x-xz": "xz",
    "bzip2": "bzip2", "x-bzip2": "bzip2",
}  # fmt: skip
"""By a name in Content-Encoding: how to undo it (RFC 9110 section 8.4.1; others are names of Apache's AddEncoding)."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """zlib's, with the manners of the other two."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


class _Deflate(_Gzip):
    """The coding deflate: a zlib stream (RFC 9110 section 8.4.1.2), or a raw one, which some servers send."""

    def __init__(self) -> None:
        self._is_begun = False

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        if not self._is_begun:
            self._is_begun = True
            # CM 8 stands in the low half of a zlib stream's first byte (RFC 1950 section 2.2).
            self._inner = zlib.decompressobj(wbits=15 if data[0] & 0x0F == 8 else -15)
        return super().decompress(data, max_length)


_MAKERS: Final[dict[str, Callable[[], _Decompressor]]] = {
    "gzip": _Gzip,
    "deflate": _Deflate,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=WINDOW_BYTES),
    "bzip2": bz2.BZ2Decompressor,
}


def unpacked(chunks: Iterator[bytes], kind: str, url: str) -> Iterator[bytes]:
    """`kind` is gzip, zstd, xz, bzip2 or deflate. Raises ActionError (DecompressFailed), and what `chunks` raises."""
    if kind == "zstd":
        yield from _by_zstd(_without_padding(chunks), url)
        return
    try:
        yield from _in_process(chunks, _MAKERS[kind])
    except (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError) as error:
        raise _failed(url, str(error)) from None


def kind_of(beginning: bytes) -> str:
    """How a file that begins so is compressed; empty if it is not."""
    if _is_skippable(beginning):
        return "zstd"
    return next((kind for magic, kind in MAGIC.items() if beginning.startswith(magic)), "")


def least_size(beginning: bytes, kind: str) -> int:
    """Return the number of bytes that a compressed file becomes at least, as far as its first bytes tell.

    Only zstd writes that at the start of a frame (RFC 8878 section 3.1.1.1). The size that ends a gzip file wraps at
    4 GiB, and the index of xz is at the end of the file.
    """
    if kind != "zstd" or len(beginning) < 5:
        return 0
    descriptor = beginning[4]
    is_single, bits = descriptor >> 5 & 1, descriptor >> 6
    start = 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    length = (1 if is_single else 0, 2, 4, 8)[bits]
    field = beginning[start : start + length]
    return int.from_bytes(field, "little") + (256 if length == 2 else 0) if len(field) == length else 0


def _is_skippable(beginning: bytes) -> bool:
    return len(beginning) >= 4 and beginning[0] & 0xF0 == 0x50 and beginning[1:4] == b"\x2a\x4d\x18"


class _Reader:
    """Bytes by number, from chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = b""

    def take(self, count: int) -> bytes:
        """Return so many bytes, fewer at the end."""
        parts = []
        while count and (self._left or self._fill()):
            parts.append(self._left[:count])
            self._left = self._left[count:]
            count -= len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip_zeros(self) -> None:
        """Leave out the zeros that come next."""
        while not (stripped := self._left.lstrip(b"\0")) and self._fill():
            pass
        self._left = stripped or self._left.lstrip(b"\0")

    def _fill(self) -> bool:
        self._left = next(self._chunks, b"")
        return bool(self._left)


def _without_padding(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the frames of a zstd file without zeros between and behind them, which the program zstd rejects.

    Source: RFC 8878 sections 3.1.1 and 3.1.2. What is no frame is left to the program.
    """
    reader = _Reader(chunks)
    while magic := reader.take(4):
        if _is_skippable(magic):
            size = reader.take(4)
            yield magic + size
            left = int.from_bytes(size, "little")
            while left and (part := reader.take(min(left, MOST_BYTES))):
                yield part
                left -= len(part)
        elif MAGIC.get(magic) == "zstd":
            descriptor = reader.take(1)
            flags = descriptor[0] if descriptor else 0
            is_single = flags >> 5 & 1
            length = (1 - is_single) + (0, 1, 2, 4)[flags & 3] + (is_single, 2, 4, 8)[flags >> 6]
            yield magic + descriptor + reader.take(length)
            is_last = False
            while not is_last and (head := reader.take(3)):
                block = int.from_bytes(head, "little")
                is_last = bool(block & 1)
                yield head + reader.take(1 if block >> 1 & 3 == 1 else block >> 3)
            yield reader.take(4 if flags & 4 else 0)
        else:
            yield magic
            while part := reader.take(MOST_BYTES):
                yield part
        reader.skip_zeros()


def _in_process(chunks: Iterator[bytes], make: Callable[[], _Decompressor]) -> Iterator[bytes]:
    inner: _Decompressor | None = None
    began = False
    for chunk in chunks:
        left = chunk
        while left or (inner is not None and not inner.needs_input):
            if inner is None:
                # Streams may stand in a row, with zeros in between and at the end (RFC 1952; xz, too).
                left = left.lstrip(b"\0") if began else left
                if not left:
                    break
                inner, began = make(), True
            out = inner.decompress(left, MOST_BYTES)
            left = b""
            if out:
                yield out
            if inner.eof:
                left, inner = inner.unused_data, None
    if inner is not None:
        raise EOFError("it ends in the middle")


def _by_zstd(chunks: Iterator[bytes], url: str) -> Iterator[bytes]:
    """By the program: Python has it since 3.14 only."""
    command = ["zstd", "-dcq", f"--memory={WINDOW_BYTES >> 20}MB"]
    with tempfile.TemporaryFile() as words:
        zstd = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, bufsize=0)
        feeder = _Feeder(chunks, zstd)
        feeder.start()
        try:
            while zstd.stdout is not None and (out := zstd.stdout.read(MOST_BYTES)):
                yield out
            feeder.join()
            status = zstd.wait()
        finally:
            zstd.kill()
            zstd.wait()
            if zstd.stdout is not None:
                zstd.stdout.close()
        if feeder.trouble is not None:
            raise feeder.trouble
        if status != 0:
            words.seek(0)
            lines = words.read(MOST_WORDS).decode("utf-8", "replace").strip().splitlines() or [f"status {status}"]
            raise _failed(url, lines[-1][:200])


class _Feeder(threading.Thread):
    """Gives a program what it reads. `trouble` is what `chunks` raised, once the thread has ended."""

    def __init__(self, chunks: Iterator[bytes], program: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        self._chunks = chunks
        self._program = program
        self.trouble: BaseException | None = None

    def run(self) -> None:
        """Until the chunks or the program end."""
        stdin = self._program.stdin
        if stdin is None:
            return
        with contextlib.suppress(BrokenPipeError):  # the program says itself why it has ended
            try:
                self._feed(stdin)
            finally:
                stdin.close()

    def _feed(self, stdin: IO[bytes]) -> None:
        try:
            for chunk in self._chunks:
                view = memoryview(chunk)
                while view:
                    view = view[stdin.write(view) :]
        except BrokenPipeError:
            raise
        except BaseException as error:  # raised by whoever reads
            self.trouble = error
            self._program.kill()


def _failed(url: str, why: str) -> ActionError:
    return ActionError("DecompressFailed", f"{url}: not what its name says, or damaged: {why}")

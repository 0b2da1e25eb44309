"""Streaming decompression of an image in bounded memory, also of several concatenated streams.

The memory is the window of one decompressor (`WINDOW_BYTES`; gzip 32 KiB, bzip2 4 MiB) plus `MOST_BYTES` of output.
"""

from __future__ import annotations

import bz2
import ctypes
import functools
import itertools
import lzma
import queue
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from image2disk.errors import ActionError

MAX_WAITING_CHUNKS: Final = 8
"""Chunks that wait between two stages, of a few MiB each."""


class _End:
    """The end of the chunks, with the error that ended them."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def ahead(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same chunks, read ahead by a thread, so that two stages work at the same time.

    Raises what `chunks` raises. The thread ends when the reader ends.
    """
    waiting: queue.Queue[bytes | _End] = queue.Queue(MAX_WAITING_CHUNKS)
    stopped = threading.Event()

    def put(one: bytes | _End) -> None:
        while not stopped.is_set():
            try:
                waiting.put(one, timeout=0.5)
            except queue.Full:
                continue
            return

    def run() -> None:
        error: BaseException | None = None
        try:
            for chunk in chunks:
                put(chunk)
                if stopped.is_set():
                    return
        except BaseException as caught:  # raised where the chunks are read
            error = caught
        put(_End(error))

    threading.Thread(target=run, daemon=True).start()
    try:
        while not isinstance(one := waiting.get(), _End):
            yield one
        if one.error is not None:
            raise one.error
    finally:
        stopped.set()


MOST_BYTES: Final = 1 << 20
"""Maximum size of one piece of output, whatever the compression ratio."""
_INPUT_BYTES: Final = 256 << 10
"""Maximum input of one call. Decompressors copy the input that they do not need yet, at each call."""
WINDOW_BYTES: Final = 128 << 20
"""Maximum window of a decompressor; files with a larger one are rejected. `xz -9` needs 65, `zstd --ultra -22` 128."""
MAGIC: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2"}
"""Compression by the first bytes. A zstd file may also begin with a skippable frame (RFC 8878 section 3.1.2)."""
HEADER_BYTES: Final = 64
"""Number of bytes at the start of a compressed file that contain the magic, and the frame header of zstd."""
CODINGS: Final = {
    "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate", "zstd": "zstd", "xz": "xz", "x-xz": "xz",
    "bzip2": "bzip2", "x-bzip2": "bzip2",
}  # fmt: skip
"""Compression by name in Content-Encoding (RFC 9110 section 8.4.1; others are names of Apache's AddEncoding)."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """Adapts zlib to the interface of bz2 and lzma."""

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


class _Buffer(ctypes.Structure):
    """ZSTD_inBuffer and ZSTD_outBuffer of zstd.h, which have the same fields."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("at", ctypes.c_size_t))


_WINDOW_LOG_MAX: Final = 100
"""ZSTD_d_windowLogMax of zstd.h."""


@functools.cache
def _libzstd() -> ctypes.CDLL:
    """The library libzstd: Python has zstd since 3.14 only. Through the program zstd all bytes would pass two pipes."""
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError as error:
        raise ActionError("DecompressFailed", f"cannot load the library that reads zstd: {error}") from None
    buffer = ctypes.POINTER(_Buffer)
    library.ZSTD_createDCtx.restype = ctypes.c_void_p
    library.ZSTD_freeDCtx.argtypes = [ctypes.c_void_p]
    library.ZSTD_DCtx_setParameter.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    library.ZSTD_decompressStream.argtypes = [ctypes.c_void_p, buffer, buffer]
    library.ZSTD_decompressStream.restype = ctypes.c_size_t
    library.ZSTD_isError.argtypes = library.ZSTD_getErrorName.argtypes = [ctypes.c_size_t]
    library.ZSTD_getErrorName.restype = ctypes.c_char_p
    return library


class _Zstd:
    """zstd's, one frame, with the manners of the other two."""

    def __init__(self) -> None:
        self._library = _libzstd()
        self._context = self._library.ZSTD_createDCtx()
        if not self._context:
            raise MemoryError
        self._library.ZSTD_DCtx_setParameter(self._context, _WINDOW_LOG_MAX, WINDOW_BYTES.bit_length() - 1)
        self._input, self._at = b"", 0
        self._out = bytearray(MOST_BYTES)
        self.eof = False
        self.needs_input = True

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            self._library.ZSTD_freeDCtx(self._context)

    @property
    def unused_data(self) -> bytes:
        return self._input[self._at :]

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        if data:
            self._input, self._at = self.unused_data + data, 0
        out = self._out
        address = ctypes.addressof(ctypes.c_char.from_buffer(out))
        most = min(max_length, len(out)) if max_length >= 0 else len(out)
        given = _Buffer(ctypes.cast(ctypes.c_char_p(self._input), ctypes.c_void_p).value, len(self._input), self._at)
        taken = _Buffer(address, most, 0)
        left = self._library.ZSTD_decompressStream(self._context, taken, given)
        if self._library.ZSTD_isError(left):
            raise ValueError(self._library.ZSTD_getErrorName(left).decode())
        self._at, self.eof = given.at, left == 0
        # As zstd.h has it: output is left in the context only if it has filled the buffer.
        self.needs_input = given.at == given.size and taken.at < taken.size
        return bytes(memoryview(out)[: taken.at])


_MAKERS: Final[dict[str, Callable[[], _Decompressor]]] = {
    "gzip": _Gzip,
    "deflate": _Deflate,
    "zstd": _Zstd,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=WINDOW_BYTES),
    "bzip2": bz2.BZ2Decompressor,
}


def unpacked(chunks: Iterator[bytes], kind: str, url: str) -> Iterator[bytes]:
    """Yield the decompressed bytes; `kind` is gzip, zstd, xz, bzip2 or deflate.

    Raises ActionError (DecompressFailed), and what `chunks` raises.
    """
    try:
        yield from _in_process(chunks, _MAKERS[kind])
    except (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError) as error:
        raise _failed(url, str(error)) from None


def kind_of(beginning: bytes) -> str:
    """Return the compression by a file's first bytes; empty if there is none."""
    if _is_skippable(beginning):
        return "zstd"
    return next((kind for magic, kind in MAGIC.items() if beginning.startswith(magic)), "")


def least_size(beginning: bytes, kind: str) -> int:
    """Return the minimum decompressed size, as far as the first bytes tell.

    Only zstd writes that at the start of a frame (RFC 8878 section 3.1.1.1). The size that ends a gzip file wraps at 4
    GiB, and the index of xz is at the end of the file.
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


def _in_process(chunks: Iterator[bytes], make: Callable[[], _Decompressor]) -> Iterator[bytes]:
    inner: _Decompressor | None = None
    began = False
    for left in _slices(chunks):
        while left or (inner is not None and not inner.needs_input):
            if inner is None:
                # Streams may be concatenated, with zeros in between and at the end (RFC 1952; xz and zstd, too).
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


def _slices(chunks: Iterator[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        for at in range(0, len(chunk), _INPUT_BYTES):
            yield chunk[at : at + _INPUT_BYTES]


def _failed(url: str, why: str) -> ActionError:
    return ActionError("DecompressFailed", f"{url}: damaged, or not of the type in its name: {why}")


def looked_at(chunks: Iterator[bytes], length: int) -> tuple[Iterator[bytes], bytes]:
    """Return the same chunks, and their first `length` bytes (fewer if there are no more)."""
    first, gathered = list[bytes](), 0
    while gathered < length and (chunk := next(chunks, None)) is not None:
        first.append(chunk)
        gathered += len(chunk)
    return itertools.chain(first, chunks), b"".join(first)[:length]

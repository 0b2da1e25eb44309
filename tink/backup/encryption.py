"""Encryption with a passphrase, in the format of age (C2SP specification "age-encryption.org/v1").

Any program that supports age can read and write these files. scrypt makes a key of the passphrase, which encrypts the
key of the file. The content follows in chunks of 64 KiB. Each chunk is authenticated together with its number and a
mark of the last one, so no change, reordering or truncation goes unnoticed. A reader returns only complete chunks.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import io
import os
import re
from typing import Any, BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tink.errors import TinkedgeError

_INTRO = b"age-encryption.org/v1\n"
_STANZA = re.compile(rb"-> scrypt ([A-Za-z0-9+/]{22}) ([1-9][0-9]?)\n([A-Za-z0-9+/]{43})\n---")
_SALT_LABEL = b"age-encryption.org/v1/scrypt"
_LOG_N = 17
"""2^17 rounds of scrypt with r = 8: 128 MiB of memory, a few tenths of a second."""
_MAX_LOG_N = 20
"""Maximum accepted for a file that is read: 1 GiB of memory."""
_CHUNK = 64 << 10
_TAG = 16
_MAX_HEADER = 16 << 10


class EncryptionError(TinkedgeError):
    """A file can't be decrypted."""


def is_encrypted(first: bytes) -> bool:
    """Return True if a file that begins with these (22 or more) bytes is encrypted like this."""
    return first.startswith(_INTRO)


class _Writer(io.RawIOBase):
    """Encrypts written bytes. `close` writes the last chunk and leaves the file below open."""

    def __init__(self, file: BinaryIO, key: bytes) -> None:
        self._file = file
        self._cipher = ChaCha20Poly1305(key)
        self._buffer = bytearray()
        self._number = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override] # of a buffer, any will do
        self._buffer += data
        while len(self._buffer) > _CHUNK:  # the last chunk may be full, so it is known only at the end
            self._put(bytes(self._buffer[:_CHUNK]), last=False)
            del self._buffer[:_CHUNK]
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._put(bytes(self._buffer), last=True)
        super().close()

    def _put(self, chunk: bytes, *, last: bool) -> None:
        self._file.write(self._cipher.encrypt(_nonce(self._number, last=last), chunk, None))
        self._number += 1


class _Reader(io.RawIOBase):
    """Decrypts read bytes. Raises EncryptionError if the file was changed or truncated."""

    def __init__(self, file: BinaryIO, key: bytes) -> None:
        self._file = file
        self._cipher = ChaCha20Poly1305(key)
        self._number = 0
        self._ahead = self._sealed()
        self._plain = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._plain and not self._ended:
            self._next()
        size = min(len(buffer), len(self._plain))
        buffer[:size] = self._plain[:size]
        self._plain = self._plain[size:]
        return size

    def _sealed(self) -> bytes:
        return _read_fully(self._file, _CHUNK + _TAG)

    def _next(self) -> None:
        chunk, self._ahead = self._ahead, self._sealed()
        self._ended = not self._ahead
        try:
            self._plain = self._cipher.decrypt(_nonce(self._number, last=self._ended), chunk, None)
        except InvalidTag as error:
            raise EncryptionError("the file is damaged, or has been cut off or changed") from error
        if not self._plain and self._number:
            raise EncryptionError("the file is damaged: its last chunk is empty")
        self._number += 1


def encrypted(file: BinaryIO, passphrase: bytes, log_n: int = _LOG_N) -> io.RawIOBase:
    """Return a stream that encrypts into `file`; close it to complete the file. Raises OSError."""
    file_key, salt, nonce = os.urandom(16), os.urandom(16), os.urandom(16)
    wrapped = ChaCha20Poly1305(_wrapping_key(passphrase, salt, log_n)).encrypt(bytes(12), file_key, None)
    header = b"%s-> scrypt %s %d\n%s\n---" % (_INTRO, _encode(salt), log_n, _encode(wrapped))
    file.write(b"%s %s\n%s" % (header, _encode(_header_mac(file_key, header)), nonce))
    return _Writer(file, _derive(file_key, nonce, b"payload"))


def decrypted(file: BinaryIO, passphrase: bytes) -> io.BufferedReader:
    """Return a stream that decrypts `file`. Raises EncryptionError, also for a wrong passphrase; OSError."""
    header = _read_header(file)
    match = _STANZA.fullmatch(header.removeprefix(_INTRO))
    if match is None:
        raise EncryptionError("it is not encrypted with a passphrase: decrypt it with age, and restore from '-'")
    salt, log_n, wrapped = _decode(match[1]), int(match[2]), _decode(match[3])
    if log_n > _MAX_LOG_N:
        raise EncryptionError(f"its passphrase takes 2^{log_n} rounds of scrypt; the most are 2^{_MAX_LOG_N}")
    try:
        file_key = ChaCha20Poly1305(_wrapping_key(passphrase, salt, log_n)).decrypt(bytes(12), wrapped, None)
    except InvalidTag as error:
        raise EncryptionError("the passphrase is not the one that it was encrypted with") from error
    given = _read_fully(file, 45)  # a blank, 43 characters, the end of the line
    if not hmac.compare_digest(given, b" %s\n" % _encode(_header_mac(file_key, header))):
        raise EncryptionError("the head of the file is damaged")
    nonce = _read_fully(file, 16)
    if len(nonce) < 16:
        raise EncryptionError("the file has been cut off")
    return io.BufferedReader(_Reader(file, _derive(file_key, nonce, b"payload")), _CHUNK)


def _read_header(file: BinaryIO) -> bytes:
    """Read the header up to the three dashes before its authentication code."""
    header = b""
    while not header.endswith(b"\n---"):
        byte = file.read(1)
        header += byte
        if not byte or len(header) > _MAX_HEADER:
            raise EncryptionError("the head of the file is damaged, or it has been cut off")
    return header


def _read_fully(file: BinaryIO, size: int) -> bytes:
    """Read `size` bytes, fewer only at the end: a pipe returns partial reads."""
    found = bytearray()
    while len(found) < size and (more := file.read(size - len(found))):
        found += more
    return bytes(found)


def _wrapping_key(passphrase: bytes, salt: bytes, log_n: int) -> bytes:
    memory = 2 * 128 * 8 << log_n
    return hashlib.scrypt(passphrase, salt=_SALT_LABEL + salt, n=1 << log_n, r=8, p=1, dklen=32, maxmem=memory)


def _header_mac(file_key: bytes, header: bytes) -> bytes:
    return hmac.digest(_derive(file_key, b"", b"header"), header, "sha256")


def _derive(key: bytes, salt: bytes, purpose: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt, purpose).derive(key)


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


def _encode(data: bytes) -> bytes:
    return base64.b64encode(data).rstrip(b"=")


def _decode(text: bytes) -> bytes:
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except binascii.Error as error:
        raise EncryptionError("the head of the file is damaged") from error

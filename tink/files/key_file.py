"""A file of keys for signing and encryption: one key a line, so that keys can be changed without a gap.

The first key signs, and all keys are accepted. To change keys, put a new line on top, and remove the old one when its
signatures have expired. The file is read again when it changes. Keys are never logged.

Several processes share a file, or copies of it that arrive at different times (the kubelet updates a Secret on each
node within about a minute). So a new key is accepted at once, and signs after two minutes if the previous one is still
in the file.

Each signature has a label, so that a signature for one purpose is invalid for another one.
"""

from __future__ import annotations

import base64
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from tink.errors import TinkedgeError
from tink.files import private_files
from tink.files.rereading import ChangingFile

log = logging.getLogger(__name__)

_MIN_KEY_CHARACTERS = 32
"""128 bits if they are hexadecimal digits; created keys have 256."""
_KEY = re.compile(rb"[ -~]+")
_MAX_KEYS = 16
_MAX_FILE_BYTES = 64 << 10
SPREAD_SECONDS = 120.0
"""Time until all processes have a new key."""


class KeyFileError(TinkedgeError):
    """The key file can't be used; the message names it and the remedy."""


class KeyFile(ChangingFile):
    """Signs and verifies with the keys of one file."""

    _KEPT = "the keys stay unchanged"

    def __init__(
        self,
        path: Path,
        what: str,
        *,
        create: bool = False,
        advice: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        changed: Callable[[str], None] | None = None,
        without: str = "",
    ) -> None:
        """Read the keys. `what` names the file in messages ("metadata token key").

        With `create`, a missing file is created; otherwise `advice` is the end of the message about a missing file.
        `changed` is called with the first key whenever the keys have changed. `without` names the consequence of a
        missing file. If it is given, an unusable file is logged, and a random key is used until the file is usable; no
        other process accepts its signatures. `monotonic` returns seconds. Raises KeyFileError.
        """
        super().__init__(path, monotonic)
        self._what = f"{what} {path}"
        self._advice = f"; {advice}" if advice else ""
        self._changed = changed
        self._ours = create
        if not self._read_first(without):
            self._keys: tuple[bytes, ...] = (secrets.token_hex(32).encode(),)
        self._signing = self._keys[0]
        self._sign_from = 0.0
        """The time from which the first key signs, if another one signs now."""

    def sign(self, label: str, claims: str) -> str:
        """Return the signature of `claims` for the purpose `label`, which must not contain NUL."""
        self.recheck()
        if self._signing != self._keys[0] and self._monotonic() >= self._sign_from:
            self._signing = self._keys[0]
        return _signature(self._signing, label, claims)

    def signed(self, label: str, claims: str, signature: str) -> bool:
        """Return True if `signature` (ASCII) is the signature of `claims` with one of the keys."""
        self.recheck()
        # All keys are compared, each in constant time, so that the duration reveals nothing about any of them.
        good = [hmac.compare_digest(_signature(key, label, claims), signature) for key in self._keys]
        return any(good)

    def holds(self, key: str) -> bool:
        """Return True if `key` is one of the keys, for files whose keys are passwords."""
        self.recheck()
        given = key.encode(errors="surrogateescape")
        good = [hmac.compare_digest(one, given) for one in self._keys]
        return any(good)

    def derived(self, label: str) -> tuple[bytes, ...]:
        """Return a key of 256 bits for the purpose `label`, derived from each of the keys (HKDF, RFC 5869).

        Encrypt with the first, and try all to decrypt.
        """
        # Imported late, because few processes encrypt, and `tinkedge --help` must be fast.
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        self.recheck()
        return tuple(HKDF(hashes.SHA256(), 32, None, label.encode()).derive(key) for key in self._keys)

    def _after_change(self) -> None:
        log.info("%s read again: it now has %d keys", self._what, len(self._keys))
        if self._signing not in self._keys:
            self._signing = self._keys[0]
        elif self._signing != self._keys[0]:
            self._sign_from = self._monotonic() + SPREAD_SECONDS
        if self._changed is not None:
            self._changed(self._keys[0].decode("ascii"))

    def _stat(self) -> tuple[int, ...]:
        if self._ours and self._state is None:
            self._create()  # again after a failure: the disk was full at the start, and may have room now
        try:
            return super()._stat()
        except OSError as error:
            advice = f"'openssl rand -hex 32' makes a key{self._advice}"
            raise KeyFileError(f"{self._what}: {error.strerror}; {advice}") from error

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                content = file.read(_MAX_FILE_BYTES + 1)
                mode = os.fstat(file.fileno()).st_mode
        except OSError as error:
            raise KeyFileError(f"{self._what}: {error.strerror}") from error
        lines = [line.strip() for line in content.splitlines()]
        keys = tuple(line for line in lines if line and not line.startswith(b"#"))
        if len(content) > _MAX_FILE_BYTES or len(keys) > _MAX_KEYS:
            raise KeyFileError(f"{self._what}: has more than {_MAX_KEYS} keys")
        remedy = (
            "; put the right one back, or remove the file to get a new one, which makes all signatures invalid"
            if self._ours
            else ""
        )
        if not keys:
            raise KeyFileError(f"{self._what}: has no key in it; 'openssl rand -hex 32' makes one{remedy}")
        if not all(_KEY.fullmatch(key) for key in keys):
            raise KeyFileError(
                f"{self._what}: is malformed: a key is one line of letters, digits and punctuation{remedy}"
            )
        if any(len(key) < _MIN_KEY_CHARACTERS for key in keys):
            raise KeyFileError(f"{self._what}: a key has less than {_MIN_KEY_CHARACTERS} characters{remedy}")
        if self._ours and not content.endswith(b"\n"):
            raise KeyFileError(f"{self._what}: does not end with its line: it has been cut off{remedy}")
        if mode & 0o007:
            log.warning("%s can be read by all users of this host: chmod 600 it", self._what)
        self._keys = keys

    def _create(self) -> None:
        """Create the file with a new key, unless it exists or another process creates it. Raises KeyFileError."""
        path = self._path
        if path.exists():
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if private_files.create(path, secrets.token_hex(32).encode() + b"\n"):
                log.info("%s created", self._what)
        except OSError as error:
            raise KeyFileError(f"{self._what} can't be created: {error.strerror}") from error


def _signature(key: bytes, label: str, claims: str) -> str:
    digest = hmac.digest(key, f"{label}\0{claims}".encode(), "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

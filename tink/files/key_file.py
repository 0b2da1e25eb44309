"""A file of keys that sign what this program hands out: one key a line, so that they can be changed without a gap.

The first key signs, all are accepted: to change keys, put a new line on top and remove the old one when what it signed
has ended. The file is read again when it changes. Keys are never logged.

Several processes share a file, or copies of it that arrive one after the other (the kubelet brings a Secret to each
node within a minute or so). So a new key is accepted at once, and signs two minutes later, as long as the one before is
there.

What is signed has a label, so that a signature for one purpose is worth nothing for another one.
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
from tink.files import private_files, rereading

log = logging.getLogger(__name__)

_MIN_KEY_CHARACTERS = 32
"""Characters: 128 bits, were they hexadecimal digits; ours have 256."""
_KEY = re.compile(rb"[ -~]+")
_MAX_KEYS = 16
_MAX_FILE_BYTES = 64 << 10
SPREAD_SECONDS = 120.0
"""Until all who are to accept a new key have it."""
_RECHECK_SECONDS = 1.0
"""Seconds for which the file is taken to be as it was."""


class KeyFileError(TinkedgeError):
    """The key file can't be used; the message says which and what to do."""


class KeyFile:
    """Signs and checks with the keys of one file."""

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
        """`what` names the file for people ("metadata token key"); `create`: make one where there is none; else
        `advice` says what to do with a new one. `changed` is told the first key whenever the file has others.

        `without` says what does not work without the file. If it is given, a file that can't be used is logged, and a
        key of this process alone takes its place until the file is good: no other process accepts what that signs.

        `monotonic` (seconds) says when to look at the file again. Raises KeyFileError.
        """
        self._path = path
        self._what = f"{what} {path}"
        self._advice = f"; {advice}" if advice else ""
        self._monotonic = monotonic
        self._changed = changed
        self._reported = ""
        self._ours = create
        self._state: tuple[int, ...] = ()
        try:
            if create:
                self._create()
            self._state = self._stat()
            self._keys = self._read()
        except KeyFileError as error:
            if not without:
                raise
            log.error("%s. Until then, %s; it is read again by itself", error, without)
            self._reported = str(error)
            self._state, self._keys = (), (secrets.token_hex(32).encode(),)
        self._signing = self._keys[0]
        self._sign_from = 0.0
        """When the first key signs, if that is another one."""
        self._looked = monotonic()
        rereading.register(self)

    def reread(self) -> bool:
        """Look at the file now. False: it can't be used, the keys stay as they were, and the log says why."""
        self._reported = ""
        return self._compare()

    def sign(self, label: str, claims: str) -> str:
        """The signature of `claims` for the purpose `label`, which has no NUL in it."""
        self._look()
        if self._signing != self._keys[0] and self._monotonic() >= self._sign_from:
            self._signing = self._keys[0]
        return _signature(self._signing, label, claims)

    def signed(self, label: str, claims: str, signature: str) -> bool:
        """Whether `signature` (ASCII) is that of `claims` with one of the keys."""
        self._look()
        # All keys, and each in constant time: how long it takes says nothing about any of them.
        good = [hmac.compare_digest(_signature(key, label, claims), signature) for key in self._keys]
        return any(good)

    def holds(self, key: str) -> bool:
        """Whether this is one of the keys, where they are passwords themselves."""
        self._look()
        given = key.encode(errors="surrogateescape")
        good = [hmac.compare_digest(one, given) for one in self._keys]
        return any(good)

    def derived(self, label: str) -> tuple[bytes, ...]:
        """A key of 256 bits for the purpose `label` from each of the keys (HKDF, RFC 5869): the first is to encrypt
        with, any of them may have been."""
        # Few have something to encrypt, and `tinkedge --help` is to come at once.
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        self._look()
        return tuple(HKDF(hashes.SHA256(), 32, None, label.encode()).derive(key) for key in self._keys)

    def _look(self) -> None:
        """Read the file again if it changed. One that can't be used changes nothing, and is said once."""
        now = self._monotonic()
        if 0 <= now - self._looked < _RECHECK_SECONDS:
            return
        self._looked = now
        self._compare()

    def _compare(self) -> bool:
        try:
            if self._ours and not self._state:
                self._create()  # the disk was full at the start, and may have room now
            state = self._stat()
            if state == self._state:
                return True
            self._keys = self._read()
        except KeyFileError as error:
            if str(error) != self._reported:
                log.error("the keys stay as they were: %s", error)
            self._reported = str(error)
            return False
        self._state, self._reported = state, ""
        log.info("%s read again: it now has %d keys", self._what, len(self._keys))
        if self._signing not in self._keys:
            self._signing = self._keys[0]
        elif self._signing != self._keys[0]:
            self._sign_from = self._monotonic() + SPREAD_SECONDS
        if self._changed is not None:
            self._changed(self._keys[0].decode("ascii"))
        return True

    def _stat(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError as error:
            advice = f"'openssl rand -hex 32' makes a key{self._advice}"
            raise KeyFileError(f"{self._what}: {error.strerror}; {advice}") from error
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> tuple[bytes, ...]:
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
        anew = (
            "; put the right one back, or remove the file to get a new one: what was signed is worth nothing then"
            if self._ours
            else ""
        )
        if not keys:
            raise KeyFileError(f"{self._what}: has no key in it; 'openssl rand -hex 32' makes one{anew}")
        if not all(_KEY.fullmatch(key) for key in keys):
            raise KeyFileError(f"{self._what}: is garbled: a key is one line of letters, digits and punctuation{anew}")
        if any(len(key) < _MIN_KEY_CHARACTERS for key in keys):
            raise KeyFileError(f"{self._what}: a key has less than {_MIN_KEY_CHARACTERS} characters{anew}")
        if self._ours and not content.endswith(b"\n"):
            raise KeyFileError(f"{self._what}: does not end with its line: it has been cut off{anew}")
        if mode & 0o007:
            log.warning("%s can be read by everybody on this host: chmod 600 it", self._what)
        return keys

    def _create(self) -> None:
        """A file with a new key, unless there is one. Another process may be at it too: the first wins."""
        path = self._path
        if path.exists():
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if private_files.create(path, secrets.token_hex(32).encode() + b"\n"):
                log.info("%s made", self._what)
        except OSError as error:
            raise KeyFileError(f"{self._what} can't be made: {error.strerror}") from error


def _signature(key: bytes, label: str, claims: str) -> str:
    digest = hmac.digest(key, f"{label}\0{claims}".encode(), "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

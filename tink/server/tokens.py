"""Agent tokens: what a machine is given in its iPXE script, and what its agent shows the server.

    v1.525400000001.1800000000.<HMAC-SHA256, base64url>

The MAC of the interface that booted, the Unix second from which on the token is worth nothing, and a signature over
both with a key that the edge and the server share through a file. So a token speaks for one machine and for a while,
and nobody has to remember which were given out.

The key file has one key a line. The first signs, all are accepted: to change keys, put a new line on top and remove the
old one when the tokens that it signed have ended. The file is read again when it changes. Neither keys nor tokens are
ever logged.
"""

from __future__ import annotations

import base64
import hmac
import logging
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

CLOCKS_DIFFER = 300.0
"""Seconds for which a token is accepted beyond its time: the clocks of edge and server are two."""
DEFAULT_LIFETIME = 86_400.0

_LEAST_KEY = 32
"""Characters: 128 bits, were they hexadecimal digits; ours have 256."""
_MOST_KEYS = 16
_LARGEST_FILE = 64 << 10
_LOOK_AGAIN = 1.0
"""Seconds for which the file is taken to be as it was."""
_TOKEN = re.compile(r"v1\.([0-9a-f]{12})\.([0-9]{1,12})\.([A-Za-z0-9_-]{43})")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")

TOKEN_CHARACTERS = 73
"""The most that a token has."""


class TokenKeyError(Exception):
    """The key file can't be used; the message says which and what to do."""


class TokenError(ValueError):
    """A token is worth nothing; the message says why, and never what the token is."""


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Where the keys are, and how long a token lasts (seconds).

    `create`: make a file with a new key where there is none. Only for a process that gives tokens out and checks them
    too: of two processes on two machines, each would make its own.
    """

    key: Path
    lifetime: float = DEFAULT_LIFETIME
    create: bool = False

    def __post_init__(self) -> None:
        if not 60 <= self.lifetime <= 10 * 365 * 86_400:
            raise ValueError(f"the lifetime of agent tokens must be from 60 s to ten years, not {self.lifetime:g} s")


@dataclass(frozen=True, slots=True)
class Token:
    """What a good token says: the MAC in lower case with colons, and its last Unix second."""

    mac: str
    expires: int


class TokenKeys:
    """Signs and checks tokens with the keys of a file."""

    def __init__(self, settings: TokenSettings, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`monotonic` says when to look at the file again. Raises TokenKeyError."""
        self._path = settings.key
        self.lifetime = settings.lifetime
        self._monotonic = monotonic
        self._complaint = ""
        if settings.create:
            _create(self._path)
        self._state = _state(self._path)
        self._keys = _read(self._path)
        self._looked = monotonic()

    def mint(self, mac: str, now: float) -> str:
        """A token for the interface `mac` (lower case, colons), from `now` (Unix seconds) on. Raises ValueError."""
        if not _MAC.fullmatch(mac):
            raise ValueError(f"{mac[:64]!r} is no MAC address")
        self._look()
        claims = f"v1.{mac.replace(':', '')}.{int(now + self.lifetime)}"
        return f"{claims}.{_sign(self._keys[0], claims)}"

    def verify(self, token: str, now: float) -> Token:
        """What a token says, at `now` (Unix seconds). Raises TokenError."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise TokenError("what it shows is no token")
        self._look()
        claims = token.rpartition(".")[0]
        # All keys, and each in constant time: how long it takes says nothing about any of them.
        good = [hmac.compare_digest(_sign(key, claims), match[3]) for key in self._keys]
        if not any(good):
            raise TokenError("its token is not signed with a key of this server (see --agent-token-key)")
        expires = int(match[2])
        if now > expires + CLOCKS_DIFFER:
            ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires))
            raise TokenError(f"its token ended at {ended}; the machine gets a new one when it boots")
        digits = match[1]
        return Token(":".join(digits[at : at + 2] for at in range(0, 12, 2)), expires)

    def _look(self) -> None:
        """Read the file again if it changed. One that can't be used changes nothing, and is said once."""
        now = self._monotonic()
        if 0 <= now - self._looked < _LOOK_AGAIN:
            return
        self._looked = now
        try:
            state = _state(self._path)
            if state == self._state:
                return
            self._keys = _read(self._path)
        except TokenKeyError as error:
            if str(error) != self._complaint:
                log.error("the agent token keys stay as they were: %s", error)
            self._complaint = str(error)
            return
        self._state, self._complaint = state, ""
        log.info("agent token keys read again: %s now has %d", self._path, len(self._keys))


def _sign(key: bytes, claims: str) -> str:
    digest = hmac.digest(key, f"tinkedge agent token\0{claims}".encode(), "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _state(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError as error:
        raise TokenKeyError(
            f"agent token key {path}: {error.strerror}. Make one with 'openssl rand -hex 32', "
            "and give edge and server the same file"
        ) from error
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> tuple[bytes, ...]:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
            mode = os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise TokenKeyError(f"agent token key {path}: {error.strerror}") from error
    lines = [line.strip() for line in content.splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith(b"#"))
    if len(content) > _LARGEST_FILE or len(keys) > _MOST_KEYS:
        raise TokenKeyError(f"agent token key {path}: has more than {_MOST_KEYS} keys")
    if not keys:
        raise TokenKeyError(f"agent token key {path}: has no key in it; 'openssl rand -hex 32' makes one")
    if any(len(key) < _LEAST_KEY for key in keys):
        raise TokenKeyError(f"agent token key {path}: a key has less than {_LEAST_KEY} characters")
    if mode & 0o007:
        log.warning("agent token key %s can be read by everybody on this host: chmod 600 it", path)
    return keys


def _create(path: Path) -> None:
    """A file with a new key, unless there is one. Another process may be at it too: the first wins."""
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # 0600 from its first moment on, and complete when it gets its name.
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32) + "\n")
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(name, path)
                log.info("agent token key %s made", path)
        finally:
            Path(name).unlink()
    except OSError as error:
        raise TokenKeyError(f"agent token key {path} can't be made: {error.strerror}") from error

"""Agent tokens: what a machine is given in its iPXE script, and what its agent shows the server.

    v1.525400000001.1800000000.<HMAC-SHA256, base64url>

The MAC of the interface that booted, the Unix second from which on the token is worth nothing, and a signature over
both with a key that the edge and the server share through a file. So a token speaks for one machine and for a while,
and nobody has to remember which were given out.

`tink.files.key_file` has the keys, and how to change them. Neither keys nor tokens are ever logged.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tink.files.key_file import KeyFile
from tink.mac import is_mac
from tink.timestamps import rfc3339

CLOCK_SKEW_SECONDS = 300.0
"""Seconds for which a token is accepted beyond its time: the clocks of edge and server are two."""
DEFAULT_LIFETIME_SECONDS = 86_400.0

_LABEL = "tinkedge agent token"
_TOKEN = re.compile(r"(v1\.([0-9a-f]{12})\.([0-9]{1,12}))\.([A-Za-z0-9_-]{43})")


class TokenError(ValueError):
    """A token is worth nothing; the message says why, and never what the token is."""


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Where the keys are, and how long a token lasts (seconds).

    `create`: make a file with a new key where there is none. Only for a process that gives tokens out and checks them
    too: of two processes on two machines, each would make its own.
    """

    key: Path
    lifetime: float = DEFAULT_LIFETIME_SECONDS
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
        """`monotonic` says when to look at the file again. Raises KeyFileError."""
        self.lifetime = settings.lifetime
        self._keys = KeyFile(
            settings.key,
            "agent token key",
            create=settings.create,
            advice="give edge and server the same file",
            without="agents that show a token are refused" if settings.create else "",
            monotonic=monotonic,
        )

    def mint(self, mac: str, now: float) -> str:
        """A token for the interface `mac` (lower case, colons), from `now` (Unix seconds) on. Raises ValueError."""
        if not is_mac(mac):
            raise ValueError(f"{mac[:64]!r} is no MAC address")
        claims = f"v1.{mac.replace(':', '')}.{int(now + self.lifetime)}"
        return f"{claims}.{self._keys.sign(_LABEL, claims)}"

    def verify(self, token: str, now: float) -> Token:
        """What a token says, at `now` (Unix seconds). Raises TokenError."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise TokenError("what it shows is no token")
        claims, digits, seconds, signature = match.groups()
        if not self._keys.signed(_LABEL, claims, signature):
            raise TokenError("its token is not signed with a key of this server (see --agent-token-key)")
        expires = int(seconds)
        if now > expires + CLOCK_SKEW_SECONDS:
            raise TokenError(f"its token ended at {rfc3339(expires)}; the machine gets a new one when it boots")
        return Token(":".join(digits[at : at + 2] for at in range(0, 12, 2)), expires)

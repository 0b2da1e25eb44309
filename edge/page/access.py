"""Access to the pages: for the operators' token, and for a browser that was let in with it.

    tinkedge page --token--> a code, good once and for two minutes --in a URL--> a session, in a cookie, for half a day

The token itself is in no URL, no cookie and no history. Codes and sessions are signed with it and remembered nowhere,
so a session lasts over a restart of the edge, and ends when the token is changed. Cookies know no ports (RFC 6265
section 8.5): where several edges are reached at one host name, each has a cookie of its own name.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final, Protocol

CODE_SECONDS: Final = 120
SESSION_SECONDS: Final = 12 * 3600
MAX_USED: Final = 1024
"""Maximum number of codes that may be used within CODE_SECONDS."""
_LONGEST: Final = 200
_CODE, _SESSION = "page code", "page session"


class Keys(Protocol):
    """Signs and checks (`tink.files.key_file`)."""

    def sign(self, label: str, claims: str) -> str:
        """The signature of `claims` for the purpose `label`."""

    def signed(self, label: str, claims: str, signature: str) -> bool:
        """Return True if this is the signature."""


class Access:
    """Belongs to one event loop."""

    def __init__(self, keys: Keys, clock: Callable[[], float]) -> None:
        """`clock` gives seconds since the epoch."""
        self._keys = keys
        self._clock = clock
        self._run = secrets.token_hex(8)
        """A code of an earlier run of this edge might have been used already: it is none here."""
        self._used: dict[str, float] = {}

    def code(self) -> str:
        """Lets one browser in, once."""
        return self._issue(_CODE, CODE_SECONDS, self._run)

    def enter(self, code: str) -> str | None:
        """The session for a code; None if it is none, too old, or was used."""
        expires = self._checked(_CODE, code, self._run)
        now = self._clock()
        self._used = {used: until for used, until in self._used.items() if until > now}
        if expires is None or code in self._used or len(self._used) >= MAX_USED:
            return None
        self._used[code] = expires
        return self._issue(_SESSION, SESSION_SECONDS)

    def holds(self, session: str) -> bool:
        """Return True if this is a session that has not ended."""
        return self._checked(_SESSION, session) is not None

    def _issue(self, label: str, seconds: int, run: str = "") -> str:
        claims = f"{int(self._clock()) + seconds}.{secrets.token_urlsafe(12)}"
        return f"{claims}.{self._keys.sign(label, claims + run)}"

    def _checked(self, label: str, shown: str, run: str = "") -> float | None:
        """When it ends; None: it is nothing of ours, or has ended."""
        claims, _, signature = shown.rpartition(".")
        expires = claims.partition(".")[0]
        if len(shown) > _LONGEST or not shown.isascii() or not expires.isdigit():
            return None
        if not self._keys.signed(label, claims + run, signature) or int(expires) <= self._clock():
            return None
        return float(expires)


def cookie_name(host: str) -> str:
    """That of a session at this Host: another one for each port."""
    port = host.rpartition(":")[2]
    return f"tinkedge-{port}" if port.isascii() and port.isdigit() else "tinkedge"

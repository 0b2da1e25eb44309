"""Tokens in URLs that identify a machine independently of its address.

    M1.525400000001.0.<HMAC-SHA256, base64url>

A token has the MAC of one of the machine's interfaces, the Unix second of its expiry (0: never), and a signature over
both. There are two kinds, signed by the same keys over different labels:

- `M1.` is for the metadata service, if NAT hides the address. `tinkedge metadata-url` prints the URL for the machine's
  image; with `--metadata-tokens` the OSIE gets it on its kernel command line.
- `I1.` is for boot media, which the machine's BMC fetches. `tinkedge iso --url` prints the URL.

The token alone is enough to read a machine's secrets, so it is never logged.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from tink.errors import TinkedgeError
from tink.files.key_file import KeyFile
from tink.mac import is_mac
from tink.timestamps import rfc3339

PREFIX = "M1."
"""The beginning of each token. MAC addresses and names of Hardware are in lower case, so none begins with it."""

KEY_FILE = "metadata-token.key"
"""The name of the key file in the data directory."""

MEDIUM_PREFIX = "I1."
"""The beginning of each token of boot media."""

_TOKEN = re.compile(r"(([A-Z]1\.)([0-9a-f]{12})\.(0|[1-9][0-9]{0,11}))\.([A-Za-z0-9_-]{43})", re.ASCII)


class MetadataTokenError(TinkedgeError, ValueError):
    """A token is invalid; the text says why, and does not contain the token."""


class _UrlTokens:
    """Signs and verifies the tokens of one kind."""

    _prefix: ClassVar[str]
    _label: ClassVar[str]
    _command: ClassVar[str]

    def __init__(self, keys: KeyFile, lifetime: float = 0.0, clock: Callable[[], float] = time.time) -> None:
        """`lifetime` of new tokens is in seconds, 0 for no expiry; `clock` returns Unix seconds."""
        self._keys = keys
        self._lifetime = lifetime
        self._clock = clock

    def mint(self, mac: str) -> str:
        """Return a token for the machine with the interface `mac` (lower case, colons). Raises ValueError."""
        if not is_mac(mac):
            raise ValueError(f"{mac[:64]!r} is no MAC address in lower case with colons")
        expires = int(self._clock() + self._lifetime) if self._lifetime else 0
        claims = f"{self._prefix}{mac.replace(':', '')}.{expires}"
        return f"{claims}.{self._keys.sign(self._label, claims)}"

    def mac(self, token: str) -> str:
        """Return the MAC (lower case, colons) of a valid token. Raises MetadataTokenError."""
        match = _TOKEN.fullmatch(token)
        if match is None or match[2] != self._prefix:
            raise MetadataTokenError("it is no whole token")
        claims, _, digits, expires, signature = match.groups()
        if not self._keys.signed(self._label, claims, signature):
            raise MetadataTokenError("it is not signed with a key of this edge (see --metadata-token-key)")
        if expires != "0" and self._clock() >= int(expires):
            raise MetadataTokenError(f"it ended at {rfc3339(int(expires))}; '{self._command}' makes a new one")
        return ":".join(digits[at : at + 2] for at in range(0, 12, 2))


class MetadataTokens(_UrlTokens):
    """Tokens of the metadata service: the bearer is treated as the machine."""

    _prefix, _label, _command = PREFIX, "tinkedge metadata token", "tinkedge metadata-url"


class MediumTokens(_UrlTokens):
    """Tokens of boot media: the bearer gets the machine's boot medium, and nothing else."""

    _prefix, _label, _command = MEDIUM_PREFIX, "tinkedge boot medium token", "tinkedge iso --url"


def token_keys(data_dir: Path, key: Path | None, *, create: bool) -> KeyFile:
    """Return the keys in the file `key`, or else in the data directory. Raises KeyFileError.

    With `create`, a missing file in the data directory is created, and an unusable one is logged and awaited.
    """
    own = create and key is None
    without = "tokens in URLs of metadata are not accepted, and other edges do not trust this one" if own else ""
    return KeyFile(key or data_dir / KEY_FILE, "metadata token key", create=own, without=without)

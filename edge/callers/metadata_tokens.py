"""Tokens in URLs: which machine it is about, where no address can tell.

    M1.525400000001.0.<HMAC-SHA256, base64url>

The MAC of one of the machine's interfaces, the Unix second from which on the token is worth nothing (0: never), and a
signature over both. Of the metadata service (`M1.`), where NAT hides the address: `tinkedge metadata-url` prints the
URL for an operator, who puts it into the machine's image; with `--metadata-tokens` the OSIE gets it on its kernel
command line. `edge.callers.by_request` takes it from the path of a request. A token is all that it takes to read a
machine's secrets, so none is ever logged.

Of boot media (`I1.`), which the machine's BMC asks for, and not the machine: `tinkedge iso --url` prints that URL. Both
are signed by the same keys, each kind over its own label, so that none is good in the place of the other.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from tink.files.key_file import KeyFile
from tink.mac import is_mac
from tink.timestamps import rfc3339

PREFIX = "M1."
"""What each token begins with, and no MAC address or name of a Hardware does: those are in lower case."""

KEY_FILE = "metadata-token.key"
"""Its name in the data directory."""

MEDIUM_PREFIX = "I1."
"""The same of tokens of boot media."""

_TOKEN = re.compile(r"(([A-Z]1\.)([0-9a-f]{12})\.(0|[1-9][0-9]{0,11}))\.([A-Za-z0-9_-]{43})", re.ASCII)


class MetadataTokenError(ValueError):
    """A token is worth nothing; the message says why, and never what the token is."""


class _UrlTokens:
    """Makes tokens of one kind and reads them."""

    _prefix: ClassVar[str]
    _label: ClassVar[str]
    _command: ClassVar[str]

    def __init__(self, keys: KeyFile, lifetime: float = 0.0, clock: Callable[[], float] = time.time) -> None:
        """`lifetime` of new tokens in seconds, 0: for ever; `clock` gives Unix seconds."""
        self._keys = keys
        self._lifetime = lifetime
        self._clock = clock

    def mint(self, mac: str) -> str:
        """A token for the machine with the interface `mac` (lower case, colons). Raises ValueError."""
        if not is_mac(mac):
            raise ValueError(f"{mac[:64]!r} is no MAC address in lower case with colons")
        expires = int(self._clock() + self._lifetime) if self._lifetime else 0
        claims = f"{self._prefix}{mac.replace(':', '')}.{expires}"
        return f"{claims}.{self._keys.sign(self._label, claims)}"

    def mac(self, token: str) -> str:
        """The MAC (lower case, colons) that a token speaks for. Raises MetadataTokenError."""
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
    """Those of the metadata service: whoever has one is the machine there."""

    _prefix, _label, _command = PREFIX, "tinkedge metadata token", "tinkedge metadata-url"


class MediumTokens(_UrlTokens):
    """Those of boot media: whoever has one gets the machine's, and nothing else of it."""

    _prefix, _label, _command = MEDIUM_PREFIX, "tinkedge boot medium token", "tinkedge iso --url"


def token_keys(data_dir: Path, key: Path | None, *, create: bool) -> KeyFile:
    """The keys in `key`, or in the data directory; only there one is made (if `create`). Raises KeyFileError.

    With `create`, a file of the data directory that can't be used is logged and waited for.
    """
    own = create and key is None
    without = "tokens in URLs of metadata are not accepted, and other edges do not trust this one" if own else ""
    return KeyFile(key or data_dir / KEY_FILE, "metadata token key", create=own, without=without)

"""Session tokens as in version 2 of EC2's metadata service (IMDSv2).

A program on the machine requests a token with PUT and sends it with each read. A program that can be tricked into
fetching a URL, but not into PUT or a header, can't read metadata. A token is valid for one machine and the requested
number of seconds. Tokens are not stored: each contains its end and a signature over the end and the machine's name.
"""

from __future__ import annotations

import re
from typing import Protocol

from tink.errors import TinkedgeError

TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105 - the name of a header
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
MAX_TTL_SECONDS = 21_600
"""Maximum lifetime of a token in seconds: six hours, as on EC2."""

_LABEL = "tinkedge imds token"
_TTL = re.compile(r"[0-9]{1,5}", re.ASCII)
_TOKEN = re.compile(r"([0-9]{1,12})\.([A-Za-z0-9_-]{43})", re.ASCII)


class Signer(Protocol):
    """The signer of tokens: `tink.files.key_file.KeyFile`."""

    def sign(self, label: str, claims: str) -> str: ...
    def signed(self, label: str, claims: str, signature: str) -> bool: ...


class TtlError(TinkedgeError, ValueError):
    """The value of TTL_HEADER is invalid; the message has the allowed range."""


class SessionTokenError(TinkedgeError, ValueError):
    """A session token is invalid. The message explains why and does not contain the token."""


def ttl(header: str | None) -> int:
    """Return the requested lifetime in seconds. Raises TtlError."""
    given = (header or "").strip()
    seconds = int(given) if _TTL.fullmatch(given) else 0
    if not 1 <= seconds <= MAX_TTL_SECONDS:
        raise TtlError(f"the header {TTL_HEADER} must be a number of seconds from 1 to {MAX_TTL_SECONDS}")
    return seconds


def mint(signer: Signer, machine: str, expires: int) -> str:
    """Return a token for `machine` (any unique name) that is valid until the Unix second `expires`."""
    return f"{expires}.{signer.sign(_LABEL, _claims(machine, expires))}"


def check(signer: Signer, token: str, machine: str, now: float) -> None:
    """Raise SessionTokenError unless `token` is valid for `machine` at `now` (Unix seconds)."""
    match = _TOKEN.fullmatch(token)
    if match is None or not signer.signed(_LABEL, _claims(machine, int(match[1])), match[2]):
        raise SessionTokenError("the token was not made for this machine by this edge")
    if now >= int(match[1]):
        raise SessionTokenError("the token has expired")


def _claims(machine: str, expires: int) -> str:
    return f"{expires}\0{machine}"

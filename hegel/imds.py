"""Session tokens as in version 2 of EC2's metadata service: a program on the machine gets one with PUT, and shows it.

What can be made to fetch a URL, but neither to PUT nor to send a header, can't read metadata with them. A token is good
on the machine that it was made for and for the seconds that were asked for. Nobody remembers which were made: a token
has its own end in it, and a signature over that end and the machine's name.
"""

from __future__ import annotations

import re
from typing import Protocol

TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105 - the name of a header
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
MAX_TTL_SECONDS = 21_600
"""Seconds that a token is good for at most: six hours, as on EC2."""

_LABEL = "tinkedge imds token"
_TTL = re.compile(r"[0-9]{1,5}", re.ASCII)
_TOKEN = re.compile(r"([0-9]{1,12})\.([A-Za-z0-9_-]{43})", re.ASCII)


class Signer(Protocol):
    """What signs and checks: `tink.files.key_file.KeyFile`."""

    def sign(self, label: str, claims: str) -> str: ...
    def signed(self, label: str, claims: str, signature: str) -> bool: ...


class TtlError(ValueError):
    """What stands in TTL_HEADER is no lifetime; the message says what would be."""


class SessionTokenError(ValueError):
    """A session token is worth nothing; the message says why, and never what the token is."""


def ttl(header: str | None) -> int:
    """The lifetime in seconds that a request for a token names in TTL_HEADER. Raises TtlError."""
    given = (header or "").strip()
    seconds = int(given) if _TTL.fullmatch(given) else 0
    if not 1 <= seconds <= MAX_TTL_SECONDS:
        raise TtlError(f"the header {TTL_HEADER} must say for how many seconds, from 1 to {MAX_TTL_SECONDS}")
    return seconds


def mint(signer: Signer, machine: str, expires: int) -> str:
    """A token for `machine` (any name that is its own), good until the Unix second `expires`."""
    return f"{expires}.{signer.sign(_LABEL, _claims(machine, expires))}"


def check(signer: Signer, token: str, machine: str, now: float) -> None:
    """Raise SessionTokenError unless `token` is good for `machine` at `now` (Unix seconds)."""
    match = _TOKEN.fullmatch(token)
    if match is None or not signer.signed(_LABEL, _claims(machine, int(match[1])), match[2]):
        raise SessionTokenError("the token was not made for this machine by this edge")
    if now >= int(match[1]):
        raise SessionTokenError("the token has ended")


def _claims(machine: str, expires: int) -> str:
    return f"{expires}\0{machine}"

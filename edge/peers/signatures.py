"""Who speaks: what edges of one site say to each other is signed with the key that they share.

    Tinkedge-Peer: v1 <edge> <milliseconds> <nonce> <HMAC-SHA256, base64url>

The edge is a random name of this process; the time is Unix time. A request's signature is over all that it is about:
method, the address that it is sent to, target, range, body, and the words above. So it is worth nothing at another
edge, `SKEW_SECONDS` later, or a second time: nonces are remembered for as long as they could be used. An answer's is
over the request's nonce, its status and its content, so it answers that request and no other.

The bytes themselves are no secret: every machine that may netboot is given them.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tink.files.key_file import KeyFile

HEADER: Final = "Tinkedge-Peer"
SKEW_SECONDS: Final = 60.0
"""How far the clocks of two edges may be apart."""
MAX_NONCES: Final = 65_536
"""Requests of edges that are remembered: 500 a second are more than 32 of them send."""

_REQUEST: Final = "tinkedge peer request"
_ANSWER: Final = "tinkedge peer answer"
_DIGEST: Final = "tinkedge peer digest"
_SIGNED = re.compile(
    r"v1 (?P<edge>[0-9a-f]{32}) (?P<at>[0-9]{1,15}) (?P<nonce>[A-Za-z0-9_-]{22}) (?P<signature>[A-Za-z0-9_-]{43})",
    re.ASCII,
)


class Refusal(StrEnum):
    """Why a request is not taken for that of an edge."""

    UNSIGNED = "unsigned"
    FORGED = "forged"
    STALE = "stale"
    REPLAYED = "replayed"
    FULL = "full"


class StrangerError(Exception):
    """Not an edge of this site, or not now; the message says why, for people on both sides."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Request:
    """What is signed of a request. `authority` is the `address:port` that it is sent to, `range` the header's value."""

    method: str
    authority: str
    target: str
    body: bytes = b""
    range: str = ""

    @property
    def claims(self) -> str:
        """One line for each."""
        digest = hashlib.sha256(self.body).hexdigest()
        return "\n".join((self.method, self.authority, self.target, self.range, digest))


@dataclass(frozen=True, slots=True)
class VerifiedRequest:
    """A request that was found good: by which edge, and what its answer has to name."""

    edge: str
    nonce: str


class Signatures:
    """Signs and checks for one edge, whose name is `edge`."""

    def __init__(self, keys: KeyFile, clock: Callable[[], float], edge: str = "") -> None:
        """`clock` gives Unix seconds."""
        self.edge = edge or secrets.token_hex(16)
        self._keys = keys
        self._clock = clock
        self._nonces: OrderedDict[str, float] = OrderedDict()

    # --- who asks ---

    def request(self, request: Request) -> tuple[str, str]:
        """The header of a request, and its nonce."""
        nonce = secrets.token_urlsafe(16)
        words = f"v1 {self.edge} {int(self._clock() * 1000)} {nonce}"
        signature = self._keys.sign(_REQUEST, f"{words}\n{request.claims}")
        return f"{words} {signature}", nonce

    def is_response(self, nonce: str, status: int, content: bytes, signature: str) -> bool:
        """Whether an edge of this site has answered so."""
        return self._keys.signed(_ANSWER, _answer(nonce, status, content), _ascii(signature))

    def is_digest(self, nonce: str, sha256: str, signature: str) -> bool:
        """Whether an edge of this site says that this is the checksum of what it sent."""
        return self._keys.signed(_DIGEST, f"{nonce}\n{sha256}", _ascii(signature))

    # --- who is asked ---

    def check(self, header: str, request: Request) -> VerifiedRequest:
        """Who sends this request, once. Raises StrangerError."""
        match = _SIGNED.fullmatch(header)
        if match is None:
            raise StrangerError(Refusal.UNSIGNED, "only edges of this site may ask here")
        words = header.rpartition(" ")[0]
        if not self._keys.signed(_REQUEST, f"{words}\n{request.claims}", match["signature"]):
            advice = "give all edges of a site the same --metadata-token-key"
            raise StrangerError(Refusal.FORGED, f"not signed with a key of this edge, or not for it: {advice}")
        now = self._clock()
        ahead = int(match["at"]) / 1000 - now
        if abs(ahead) > SKEW_SECONDS:
            raise StrangerError(Refusal.STALE, f"its clock is {ahead:+.0f} s off this one's: set both by NTP")
        self._forget(now)
        nonce = match["nonce"]
        if nonce in self._nonces:
            raise StrangerError(Refusal.REPLAYED, "this request has been made before")
        if len(self._nonces) >= MAX_NONCES:
            raise StrangerError(Refusal.FULL, "too many requests at once: try again")
        self._nonces[nonce] = now
        return VerifiedRequest(match["edge"], nonce)

    def sign_response(self, asked: VerifiedRequest, status: int, content: bytes) -> str:
        """The header of an answer."""
        return self._keys.sign(_ANSWER, _answer(asked.nonce, status, content))

    def sign_digest(self, asked: VerifiedRequest, sha256: str) -> bytes:
        """The trailer of a file that was sent: its checksum, signed."""
        signature = self._keys.sign(_DIGEST, f"{asked.nonce}\n{sha256}")
        return f"{sha256}{signature}".encode()

    def _forget(self, now: float) -> None:
        """Nonces of requests that are too old by now in any case."""
        oldest = now - 2 * SKEW_SECONDS
        while self._nonces and not oldest <= next(iter(self._nonces.values())) <= now:
            self._nonces.popitem(last=False)


def _answer(nonce: str, status: int, content: bytes) -> str:
    return f"{nonce}\n{status}\n{hashlib.sha256(content).hexdigest()}"


def _ascii(signature: str) -> str:
    """What can be compared: a signature is ASCII, and what a stranger sends need not be."""
    return signature if signature.isascii() else ""

"""HTTP requests of the image and registry downloads, and their errors.

A slow server is treated like a silent one: the request fails if a body brings less than `LOW_SPEED_BYTES_PER_SECOND`
over `LOW_SPEED_SECONDS` of waiting. Headers, interim answers and trailers do not count as progress. The values are
those of the agent (`tink.agent.images.registry`), which this container image does not contain.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Any, Final

from tink.net.opener import handlers
from tink.net.proxies import NONE, Proxies, ProxyError
from tink.net.urls import redacted

SILENCE_SECONDS: Final = 60.0
"""Seconds of silence after which a server counts as gone."""
LOW_SPEED_SECONDS: Final = 60.0
LOW_SPEED_BYTES_PER_SECOND: Final = 1024
RETRIED: Final = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Status codes after which a retry makes sense (RFC 9110 section 15; RFC 6585 section 4)."""
_BUSY: Final = frozenset((429, 503))
_AGENT: Final = "tinkedge-image2disk"
_NO_TUNNEL: Final = re.compile(r"Tunnel connection failed: (([0-9]{3}).*)")
"""The message of http.client's OSError."""


class AnswerError(Exception):
    """There is no usable answer. `status` is 0 without an answer; `challenges` are the WWW-Authenticate fields.

    `retry_after` are the seconds that a busy server asks to wait (RFC 9110 section 10.2.3), or None.
    """

    def __init__(
        self, message: str, status: int = 0, challenges: Sequence[str] = (), retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.challenges = challenges
        self.retry_after = retry_after

    @property
    def may_pass(self) -> bool:
        """Return True if a retry makes sense."""
        return self.status == 0 or self.status in RETRIED


class UntrustedError(Exception):
    """The server's certificate is not from an authority that the image trusts."""


class TooSlowError(OSError):
    """The server sent less than the minimum rate. The message names the rate."""


class LowSpeedLimit:
    """The minimum rate of a body. Counts only the time that is spent waiting for the server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Start to count for a new request."""
        self._waited, self._useful = 0.0, 0

    def useful(self, count: int) -> None:
        """Count received bytes of a body."""
        self._useful += count

    def read(self, raw: Any, buffer: Any) -> int | None:
        """Read into `buffer` as `io.RawIOBase.readinto` does. Raises TooSlowError."""
        if self._waited >= LOW_SPEED_SECONDS:
            if self._useful < LOW_SPEED_BYTES_PER_SECOND * self._waited:
                raise TooSlowError(f"the server is too slow: {self._useful} bytes in {self._waited:.0f} s")
            self.begin()
        asked = self._clock()
        try:
            count: int | None = raw.readinto(buffer)
        finally:
            self._waited += self._clock() - asked
        return count


class LimitedReader(io.RawIOBase):
    """A reader that passes on the bytes of `raw` and enforces a `LowSpeedLimit`."""

    def __init__(self, raw: Any, limit: LowSpeedLimit) -> None:
        self._raw = raw
        self._limit = limit

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """See `io.RawIOBase`. Raises OSError."""
        return self._limit.read(self._raw, buffer)

    def close(self) -> None:
        """Close this reader and `raw`."""
        self._raw.close()
        super().close()


class _Socket:
    """A connected socket with the methods that http.client uses."""

    def __init__(self, sock: socket.socket, limit: LowSpeedLimit) -> None:
        self._sock = sock
        self._limit = limit
        self.sendall = sock.sendall
        self.close = sock.close

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(LimitedReader(self._sock.makefile("rb", buffering=0), self._limit))


def _connections(limit: LowSpeedLimit) -> tuple[type[http.client.HTTPConnection], type[http.client.HTTPSConnection]]:
    """Return the connection classes for http and https that read through `limit`."""

    class Plain(http.client.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            self.sock: Any = _Socket(self.sock, limit)

    class Encrypted(http.client.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            self.sock: Any = _Socket(self.sock, limit)

    return Plain, Encrypted


class _Plain(urllib.request.HTTPHandler):
    def __init__(self, kind: type[http.client.HTTPConnection]) -> None:
        super().__init__()
        self._kind = kind

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._kind, req)


class _Encrypted(urllib.request.HTTPSHandler):
    def __init__(self, kind: type[http.client.HTTPSConnection], context: ssl.SSLContext) -> None:
        super().__init__()
        self._kind = kind
        self._trust = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._kind, req, context=self._trust)


class Web:
    """An HTTP client. `check_certificates` is for https; not needed if a checksum proves the bytes.

    A user and password in a URL are sent by Basic, only to its host.
    """

    def __init__(
        self,
        *,
        check_certificates: bool,
        proxies: Proxies = NONE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take `clock` as the source of seconds for the rate limit."""
        context = ssl.create_default_context()
        if not check_certificates:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._limit = LowSpeedLimit(clock)
        plain, encrypted = _connections(self._limit)
        self._proxies = proxies
        self._opener = urllib.request.build_opener(_Plain(plain), _Encrypted(encrypted, context), *handlers(proxies))

    def body(self, response: http.client.HTTPResponse, most: int) -> Iterator[bytes]:
        """Yield the body in pieces of at most `most` bytes. Raises OSError, HTTPException."""
        while chunk := response.read1(most):
            self._limit.useful(len(chunk))
            yield chunk

    def get_as(
        self, url: str, headers: Mapping[str, str], authorization: Callable[[AnswerError | None], str]
    ) -> http.client.HTTPResponse:
        """Call `get`, and repeat it while the server requests another authorization (401).

        `authorization(refusal)` returns the header's value. `refusal` is the server's answer to the one before. The
        function returns "" or raises AnswerError when it has no other.
        """
        wanted = authorization(None)
        while True:
            try:
                return self.get(url, headers, wanted)
            except AnswerError as error:
                if error.status != 401:
                    raise
                refusal = error
            wanted = authorization(refusal)
            if not wanted:
                raise refusal

    def get(self, url: str, headers: Mapping[str, str], authorization: str = "") -> http.client.HTTPResponse:
        """Return an answer with status 200 or 206. `authorization` goes along redirects within the origin.

        Raises AnswerError, UntrustedError.
        """
        try:
            request = urllib.request.Request(  # noqa: S310 - http and https alone, by the settings
                url, headers={"User-Agent": _AGENT, "Accept-Encoding": "identity", **headers}
            )
            if authorization:
                request.add_unredirected_header("Authorization", authorization)
            self._limit.begin()
            response = self._opener.open(request, timeout=SILENCE_SECONDS)
        except urllib.error.HTTPError as error:
            challenges = error.headers.get_all("WWW-Authenticate") or []
            again = _retry_after(error.headers) if error.code in _BUSY else None
            error.close()  # `with` would raise ValueError for the body of a redirect, which is closed
            raise AnswerError(redacted(f"{error.code} {error.reason}")[:200], error.code, challenges, again) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise UntrustedError(f"its certificate: {error.reason.verify_message}") from None
            if refused := _NO_TUNNEL.match(str(error.reason)):
                raise AnswerError(f"the proxy refuses to connect: {refused[1][:200]}", int(refused[2])) from None
            raise AnswerError(f"{said(error.reason)}{self._by_way_of(url)}") from None
        except ProxyError as error:
            raise AnswerError(str(error), 400) from None
        except http.client.InvalidURL:  # its text has a part of the URL
            raise AnswerError("the URL has an invalid port or invalid characters: percent-encode them", 400) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise AnswerError(said(error)) from None
        if not isinstance(response, http.client.HTTPResponse):
            raise AnswerError("redirects to a URL that is neither http nor https", 400)
        return response

    def _by_way_of(self, url: str) -> str:
        """Return the words for the proxy of `url`, which was usable before; empty if there is none."""
        proxy = self._proxies.proxy_of(url)
        return f" (through the proxy {proxy.url})" if proxy is not None else ""

    def content(self, response: http.client.HTTPResponse, most: int) -> bytes:
        """Return the body; a large one is cut after more than `most` bytes. Raises OSError, HTTPException."""
        content = bytearray()
        for chunk in self.body(response, most + 1):
            content += chunk
            if len(content) > most:
                break
        return bytes(content)


def _retry_after(headers: Message) -> float | None:
    text, date = headers.get("Retry-After", ""), headers.get("Date", "")
    if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        return float(text)
    try:
        return max((parsedate_to_datetime(text) - parsedate_to_datetime(date)).total_seconds(), 0.0)
    except (TypeError, ValueError):
        return None


def said(error: BaseException | str) -> str:
    """Return an error in few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return redacted(str(error) or type(error).__name__)[:200]


FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
LONGEST_WAIT_SECONDS: Final = 300.0
"""Longest pause before the next attempt, even if the server asks for a longer one."""
PATIENCE_SECONDS: Final = 3600.0
"""Sum of all pauses that servers asked for."""


class BrokenError(Exception):
    """The connection broke."""


class Patience:
    """The retries of one download.

    Pauses between attempts grow. `attempts` failures in a row end the download. A busy server that names the time of
    the next attempt does not count as a failure, for up to an hour.
    """

    def __init__(
        self, attempts: int, *, say: Callable[[str], None] = print, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._attempts = attempts
        self._say = say
        self._sleep = sleep
        self._failures = 0
        self._waited = 0.0

    def progressed(self) -> None:
        """Reset the count of failures: the last attempt received data."""
        self._failures = 0

    def lasts(self, error: AnswerError | BrokenError, then: str) -> bool:
        """Sleep and return True if the download goes on; return False at its end. `then`, for the log, says where."""
        if isinstance(error, AnswerError):
            if not error.may_pass:
                return False
            if error.retry_after is not None and self._waited < PATIENCE_SECONDS:
                pause = min(max(error.retry_after, FIRST_PAUSE_SECONDS), LONGEST_WAIT_SECONDS)
                self._waited += pause
                self._say(f"{error}; retries in {pause:g} s, as the server requests")
                self._sleep(pause)
                return True
        if self._failures >= self._attempts:
            return False
        pause = min(FIRST_PAUSE_SECONDS * 2**self._failures, LONGEST_PAUSE_SECONDS)
        self._failures += 1
        self._say(f"{error}; {then} in {pause:g} s ({self._failures} of {self._attempts})")
        self._sleep(pause)
        return True

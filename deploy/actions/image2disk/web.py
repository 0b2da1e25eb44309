"""One HTTP request, and what may go wrong with it: for the image and for registries."""

from __future__ import annotations

import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Final

SILENCE_SECONDS: Final = 60.0
"""A server that says nothing for so long is as good as gone."""
RETRIED: Final = frozenset((408, 425, 429, 500, 502, 503, 504))
"""What a server answers that may answer otherwise in a moment (RFC 9110 section 15; RFC 6585 section 4)."""
_BUSY: Final = frozenset((429, 503))
_AGENT: Final = "tinkedge-image2disk"


class AnswerError(Exception):
    """No answer that can be used. `status` is 0 if there was none; `challenge` is WWW-Authenticate.

    `retry_after` are the seconds after which a server that is busy wants to be asked again (RFC 9110 section 10.2.3);
    None: it does not say.
    """

    def __init__(self, message: str, status: int = 0, challenge: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.challenge = challenge
        self.retry_after = retry_after

    @property
    def may_pass(self) -> bool:
        """Whether it makes sense to ask again."""
        return self.status == 0 or self.status in RETRIED


class UntrustedError(Exception):
    """The server's certificate is not one of an authority that the image knows."""


class Web:
    """`check_certificates`: of https; not needed where a checksum says which bytes are right."""

    def __init__(self, *, check_certificates: bool) -> None:
        context = ssl.create_default_context()
        if not check_certificates:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))

    def get_as(
        self, url: str, headers: Mapping[str, str], authorization: Callable[[AnswerError | None], str]
    ) -> http.client.HTTPResponse:
        """As `get`, and once more where the server wants another authorization (401).

        `authorization(refusal)` gives the header's value; `refusal` is what the server has said to the one before.
        """
        try:
            return self.get(url, headers, authorization(None))
        except AnswerError as error:
            if error.status != 401:
                raise
            return self.get(url, headers, authorization(error))

    def get(self, url: str, headers: Mapping[str, str], authorization: str = "") -> http.client.HTTPResponse:
        """Status 200 or 206; redirects are followed, without `authorization`. Raises AnswerError, UntrustedError."""
        try:
            request = urllib.request.Request(  # noqa: S310 - http and https alone, by the settings
                url, headers={"User-Agent": _AGENT, "Accept-Encoding": "identity", **headers}
            )
            if authorization:
                request.add_unredirected_header("Authorization", authorization)
            response = self._opener.open(request, timeout=SILENCE_SECONDS)
        except urllib.error.HTTPError as error:
            with error:
                challenge = error.headers.get("WWW-Authenticate", "")
                again = _retry_after(error.headers) if error.code in _BUSY else None
                raise AnswerError(f"{error.code} {error.reason}"[:200], error.code, challenge, again) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise UntrustedError(f"its certificate: {error.reason.verify_message}") from None
            raise AnswerError(said(error.reason)) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise AnswerError(said(error)) from None
        if not isinstance(response, http.client.HTTPResponse):
            raise AnswerError("redirects to what is neither http nor https", 400)
        return response


def _retry_after(headers: Message) -> float | None:
    text, date = headers.get("Retry-After", ""), headers.get("Date", "")
    if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        return float(text)
    try:
        return max((parsedate_to_datetime(text) - parsedate_to_datetime(date)).total_seconds(), 0.0)
    except (TypeError, ValueError):
        return None


def said(error: BaseException | str) -> str:
    """What went wrong, in few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__)[:200]

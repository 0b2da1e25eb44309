"""Calls of webhooks for admission and conversion: POST of a review over HTTPS.

A `clientConfig` names a webhook (an https URL or a Service, and the trusted certificates). Connections are reused,
redirects are not followed, time and size of answers are bounded. Webhooks on loopback are common here, including
tinkedge's own; other special addresses (`tink.net.outbound`) are refused. This API server has no Services, so a webhook
behind one is not found, as on a cluster without that Service.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from functools import lru_cache
from ipaddress import ip_network
from typing import Any, Protocol

import aiohttp
import orjson

from tink.api.yaml import YamlError, documents
from tink.errors import TinkedgeError
from tink.kubeapi.apiserver.media import not_an_object
from tink.kubeapi.apiserver.serializer import BodyError, load_json
from tink.kubeapi.schema import field_errors
from tink.kubeapi.schema.webhooks import ClientConfig
from tink.net.outbound import Reach, session

MAX_ANSWER = 3 << 20  # Default maximum size of an answer, in bytes
MAX_TRUST_BUNDLES = 200  # Maximum number of cached TLS contexts (k8s.io/apiserver caches as many clients)
MAX_RETRIES = 10  # Maximum number of retries after an answer with Retry-After (k8s.io/client-go, rest)
MAX_REPEATED = 2048  # Maximum number of bytes of a failed answer that the client's error repeats


_REACH = Reach(allowed=(ip_network("127.0.0.0/8"), ip_network("::1/128")))


class WebhookCallError(TinkedgeError):
    """A webhook call failed, or its answer is unreadable. The message says why."""


class TrustError(WebhookCallError):
    """The trusted certificates cannot be read."""


class CallWebhook(Protocol):
    """Calls a webhook, as `WebhookClient.post` does."""

    async def __call__(self, config: ClientConfig, body: bytes, timeout_s: int, limit: int = MAX_ANSWER) -> Any:
        """Return the answer as JSON, of at most `limit` bytes. Raises WebhookCallError."""


class WebhookClient:
    """The HTTP client. Close it when the server stops."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, config: ClientConfig, body: bytes, timeout_s: int, limit: int = MAX_ANSWER) -> Any:
        """Call a webhook and return its answer as JSON. Raises WebhookCallError."""
        url = f"{config.url}?timeout={timeout_s}s"
        try:
            async with asyncio.timeout(timeout_s):
                for _ in range(MAX_RETRIES + 1):
                    status, content, text, wait_s = await self._once(config, url, body, limit)
                    if wait_s is None:
                        break
                    await asyncio.sleep(wait_s)
        except TimeoutError:
            raise WebhookCallError(f'Post "{url}": no answer within {timeout_s} s') from None
        return _read(status, content, text)

    async def _once(
        self, config: ClientConfig, url: str, body: bytes, limit: int
    ) -> tuple[int, str, bytes, int | None]:
        """Call once. Return HTTP status, content type, text, and the seconds before a retry (None: no retry)."""
        if config.missing:
            raise WebhookCallError(f'Post "{url}": service {field_errors.quote(config.missing)} not found')
        trust = _trust(config.trust)
        if self._session is None:
            # The number of concurrent calls is not limited, as writes do not wait for each other elsewhere.
            self._session = session(
                _REACH,
                timeout=aiohttp.ClientTimeout(total=None),
                headers={"Content-Type": "application/json", "Accept": "application/json, */*"},
            )
        try:
            async with self._session.post(url, data=body, ssl=trust, allow_redirects=False) as response:
                text = await _read_all(response, limit)
                after = response.headers.get("Retry-After", "")
                again = (response.status == 429 or response.status >= 500) and after.isascii() and after.isdigit()
                return response.status, response.headers.get("Content-Type", ""), text, int(after) if again else None
        except (aiohttp.ClientError, OSError) as error:
            raise WebhookCallError(f'Post "{url}": {_why(error)}') from error


@lru_cache(MAX_TRUST_BUNDLES)
def _trust(pem: bytes) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=pem.decode("ascii") if pem else None)
    except (ssl.SSLError, ValueError):
        raise TrustError("unable to load root certificates: unable to parse bytes as PEM block") from None


async def _read_all(response: aiohttp.ClientResponse, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > limit:
            response.close()
            raise WebhookCallError(f"the answer of the webhook is larger than {limit} bytes")
    return b"".join(parts)


def _read(status: int, content: str, text: bytes) -> Any:
    """Parse an answer, as JSON or else YAML, whatever its content type. Raises WebhookCallError."""
    if not 200 <= status <= 206:
        raise WebhookCallError(_refusal(status, content.partition(";")[0].strip().lower(), text))
    if not text:
        raise WebhookCallError(f"0-length response with status code: {status} and content type: {content}")
    try:
        if text.lstrip()[:1] == b"{":
            return load_json(text)
        return next(iter(documents(text.decode())), None)
    except (BodyError, YamlError, UnicodeDecodeError) as error:
        raise WebhookCallError(str(error)) from error


def check_review(answer: Any, api_version: str, kind: str) -> dict[str, Any]:
    """Check that an answer is of this kind or names no kind. Raises WebhookCallError."""
    if answer is None:
        return {}
    if not isinstance(answer, dict):
        raise WebhookCallError(not_an_object(answer))
    given = answer.get("apiVersion") or api_version, answer.get("kind") or kind
    if given != (api_version, kind):
        raise WebhookCallError(f"expected a {kind} of {api_version}, got a {given[1]} of {given[0]}")
    return answer


def group_version_kind(answer: dict[str, Any]) -> str:
    """Return the kind of an answer: `group/version, Kind=kind`."""
    group, _, version = str(answer.get("apiVersion") or "").rpartition("/")
    return f"{group}/{version}, Kind={answer.get('kind') or ''}"


def _refusal(status: int, media: str, text: bytes) -> str:
    """Return the meaning of a failed answer: the message of a Status, or the beginning of its text."""
    with contextlib.suppress(orjson.JSONDecodeError):
        found = orjson.loads(text)
        if isinstance(found, dict) and found.get("kind") == "Status" and found.get("status") == "Failure":
            return str(found.get("message") or "")
    words = text[:MAX_REPEATED].decode("utf-8", "replace").strip() if not media or media.startswith("text/") else ""
    return f"it answered with HTTP status {status}" + (f": {words}" if words else "")


def _why(error: Exception) -> str:
    """Return the cause of a network error, without the address of a TLS context that aiohttp adds."""
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    number = cause.errno if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) else None
    if number is not None and number > 0:
        return os.strerror(number)
    names = ("verify_message", "reason", "strerror")
    return next((str(why) for name in names if (why := getattr(cause, name, ""))), str(cause) or type(cause).__name__)

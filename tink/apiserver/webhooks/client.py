"""Calls to webhooks: POST a review over HTTPS and read the answer. Shared by `admission` and `conversion`.

Where a webhook is comes from a `clientConfig` (an https URL, or a Service, and the certificates to trust). Connections
are kept and used again; redirects are not followed; time and the size of answers are bounded. Webhooks on loopback are
common here, tinkedge's own among them; other special addresses (`tink.net.outbound`) are not connected to. What goes
wrong is said in the words of Go's HTTP client, because operators look for those (k8s.io/apiserver, pkg/util/webhook;
k8s.io/client-go, rest).

This API server has no Services, so a webhook behind one is not found, as on a cluster where the Service is missing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from ipaddress import ip_network
from typing import Any, Protocol

import aiohttp
import orjson

from tink.api.yaml import YamlError, documents
from tink.apiserver.requests import not_an_object
from tink.apiserver.serializer import JsonError, load_json
from tink.net.outbound import Reach, session
from tink.schema import ClientConfig, field_errors

MAX_ANSWER = 3 << 20
"""Largest answer, in bytes, unless the caller says otherwise."""
MAX_TRUST_BUNDLES = 200
"""So many sets of trusted certificates are kept compiled (k8s.io/apiserver keeps as many clients)."""
MAX_RETRIES = 10
"""How often a webhook that answers with Retry-After is asked again (k8s.io/client-go, rest)."""
MAX_REPEATED = 2048
"""So much of a failed answer is repeated to the client, in bytes."""


_REACH = Reach(allowed=(ip_network("127.0.0.0/8"), ip_network("::1/128")))


class WebhookCallError(Exception):
    """A webhook could not be asked, or gave no answer that can be read. The message is Kubernetes'."""


class TrustError(WebhookCallError):
    """The certificates to trust cannot be read."""


class CallWebhook(Protocol):
    """Asks a webhook: `WebhookClient.post`."""

    async def __call__(self, config: ClientConfig, body: bytes, timeout_s: int, limit: int = MAX_ANSWER) -> Any:
        """Give the answer as JSON; it may have `limit` bytes. Raises WebhookCallError."""


class WebhookClient:
    """The client. Made in the running loop or before; close it when the server stops."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._trust_contexts: OrderedDict[bytes, ssl.SSLContext] = OrderedDict()

    async def close(self) -> None:
        """Close all connections. Harmless when there are none."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, config: ClientConfig, body: bytes, timeout_s: int, limit: int = MAX_ANSWER) -> Any:
        """Ask a webhook and give what it answers, as JSON. Raises WebhookCallError."""
        url = f"{config.url}?timeout={timeout_s}s"
        try:
            async with asyncio.timeout(timeout_s):
                for _ in range(MAX_RETRIES + 1):
                    status, content, text, wait_s = await self._once(config, url, body, limit)
                    if wait_s is None:
                        break
                    await asyncio.sleep(wait_s)
        except TimeoutError:
            raise WebhookCallError(f'Post "{url}": context deadline exceeded') from None
        return _read(status, content, text)

    async def _once(
        self, config: ClientConfig, url: str, body: bytes, limit: int
    ) -> tuple[int, str, bytes, int | None]:
        """Ask once: HTTP status, content type, text, and for how many seconds to wait before asking again."""
        if config.missing:
            raise WebhookCallError(f'Post "{url}": service {field_errors.quote(config.missing)} not found')
        trust = self._trust(config.trust)
        if self._session is None:
            # Writes wait for one another nowhere else either: how many calls are under way is not bounded here.
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
            raise WebhookCallError(f'Post "{url}": {_in_words_of_go(error)}') from error

    def _trust(self, pem: bytes) -> ssl.SSLContext:
        found = self._trust_contexts.get(pem)
        if found is not None:
            self._trust_contexts.move_to_end(pem)
            return found
        try:
            made = ssl.create_default_context(cadata=pem.decode("ascii") if pem else None)
        except (ssl.SSLError, ValueError):
            raise TrustError("unable to load root certificates: unable to parse bytes as PEM block") from None
        self._trust_contexts[pem] = made
        if len(self._trust_contexts) > MAX_TRUST_BUNDLES:
            self._trust_contexts.popitem(last=False)
        return made


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
    """Read an answer: JSON, or YAML that is no JSON. Its content type does not matter. Raises WebhookCallError."""
    if not 200 <= status <= 206:
        raise WebhookCallError(_refusal(status, content.partition(";")[0].strip().lower(), text))
    if not text:
        raise WebhookCallError(f"0-length response with status code: {status} and content type: {content}")
    try:
        if text.lstrip()[:1] == b"{":
            return load_json(text)
        return next(iter(documents(text.decode())), None)
    except (JsonError, YamlError, UnicodeDecodeError) as error:
        raise WebhookCallError(f"couldn't get version/kind; json parse error: {error}") from error


def check_review(answer: Any, api_version: str, kind: str) -> dict[str, Any]:
    """Check that an answer is an object of this kind, or does not say of which. Raises WebhookCallError.

    The words are those of the decoder of k8s.io/apimachinery with the types that the caller's scheme knows.
    """
    if answer is None:
        return {}
    if not isinstance(answer, dict):
        raise WebhookCallError(not_an_object(answer))
    group = api_version.partition("/")[0]
    given = answer.get("apiVersion") or api_version, answer.get("kind") or kind
    if given == (api_version, kind):
        return answer
    version = str(given[0]).rpartition("/")[2]
    if given in ((f"{group}/v1", kind), (f"{group}/v1beta1", kind), ("v1", "Status")):
        wanted = api_version.rpartition("/")[2]
        raise WebhookCallError(f"converting ({version}.{given[1]}) to ({wanted}.{kind}): unknown conversion")
    raise WebhookCallError(f'no kind "{given[1]}" is registered for version "{given[0]}"')


def group_version_kind(answer: dict[str, Any]) -> str:
    """Name the kind that an answer gives itself: `group/version, Kind=kind`."""
    group, _, version = str(answer.get("apiVersion") or "").rpartition("/")
    return f"{group}/{version}, Kind={answer.get('kind') or ''}"


_REFUSALS = {
    400: "the server rejected our request for an unknown reason",
    401: "the server has asked for the client to provide credentials",
    404: "the server could not find the requested resource",
    405: "the server does not allow this method on the requested resource",
    409: "the server reported a conflict",
    422: "the server rejected our request due to an error in our request",
    429: "the server has received too many requests and has asked us to try again later",
    503: "the server is currently unable to handle the request",
    504: "the server was unable to return a response in the time allotted, but may still be processing the request",
}


def _refusal(status: int, media: str, text: bytes) -> str:
    """Say what an HTTP status means (k8s.io/apimachinery, pkg/api/errors, NewGenericServerResponse)."""
    said = "unknown"
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if isinstance(found, dict) and found.get("kind") == "Status" and found.get("status") == "Failure":
        return str(found.get("message") or "")
    if not media or media.startswith("text/"):
        said = text[:MAX_REPEATED].decode("utf-8", "replace").strip()
    if status in _REFUSALS:
        return _REFUSALS[status]
    if status in (403, 415):
        return said
    if status == 406:
        unable = "the server was unable to respond with a content type that the client supports"
        return unable if said in ("", "unknown") else said
    if status >= 500:
        return f"an error on the server ({field_errors.quote(said)}) has prevented the request from succeeding"
    return f"the server responded with the status code {status} but did not return more information"


def _in_words_of_go(error: Exception) -> str:
    """Say what went wrong on the network as Go's net/http does."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"dial tcp: lookup {error.host}: no such host"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"tls: failed to verify certificate: {_certificate(error.certificate_error)}"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        reason = getattr(error.os_error, "reason", None) or ""
        if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
            return "http: server gave HTTP response to HTTPS client"
        return f"remote error: tls: {str(reason).lower().replace('_', ' ')}"
    if isinstance(error, aiohttp.ClientConnectorError):
        words = (error.os_error.strerror or str(error.os_error)).lower()
        if "connect call failed" in words:
            words = "connection refused"
        host = f"[{error.host}]" if ":" in error.host else error.host
        return f"dial tcp {host}:{error.port}: connect: {words}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    if isinstance(error, ConnectionResetError | aiohttp.ClientOSError):
        return "read: connection reset by peer"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "unexpected EOF"
    return f"net/http: HTTP/1.x transport connection broken: {error}"


def _certificate(error: Exception) -> str:
    code = getattr(error, "verify_code", 0)
    if code == 10:
        return "x509: certificate has expired or is not yet valid"
    if code in (62, 64):  # of another host, of another address
        said = str(getattr(error, "verify_message", ""))
        wanted = said.rpartition("'")[0].rpartition("'")[2]
        return f"x509: certificate is not valid for any names, but wanted to match {wanted}"
    return "x509: certificate signed by unknown authority"

"""Serves webhooks: HTTPS for the API server, and the registration of the webhooks.

`start` returns when the webhooks are registered. `run` then renews certificates and registrations, and `stop` removes
the registrations that no other replica serves. A `Hook` defines the questions and answers: `tink.webhooks.admission`,
`tink.webhooks.conversion`.

The paths on loopback contain a random part that only readers of the registrations know, so that other users of this
host can't find out addresses or have claims remembered.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

from aiohttp import web
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.api.bounds import MAX_NAME_CHARACTERS
from tink.kube.certificates import show, watch_handshakes
from tink.kube.client import ApiError, KubeClient
from tink.metrics import Histograms
from tink.metrics.families import counter, histogram
from tink.net.connection_limit import LimitedSite
from tink.webhooks import certificates
from tink.webhooks.certificates import CertificateError, MemoryKeeper, SecretKeeper
from tink.webhooks.registration import Address, RegistrationError

log = logging.getLogger(__name__)

# --- Settings ---


_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_SERVICE = re.compile(f"{_LABEL}/{_LABEL}(:[1-9][0-9]{{0,4}})?")


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """The address of the webhooks for the API server; without `url` and `service` on loopback of this host."""

    url: str = ""
    """https://HOST:PORT, for an API server outside the cluster's network."""
    service: str = ""
    """NAMESPACE/NAME or NAMESPACE/NAME:PORT (else 443) of a Kubernetes Service in front of all replicas.

    The replicas share a certificate authority in the Secret NAME-ca.
    """
    port: int = 0
    """The port to listen at; 0: a free port on loopback, or 9443 for a url or a service."""
    configuration: str = "tinkedge"
    """Name of the ValidatingWebhookConfiguration; each installation in a cluster needs its own."""
    failure_policy: str = "Fail"
    """Failure policy of a Hardware that claims something and can't be reviewed: Ignore admits it, Fail rejects it."""

    def __post_init__(self) -> None:
        if self.url and self.service:
            raise ValueError("give a URL or a Service of the webhooks, not both")
        if self.url and (urlsplit(self.url).scheme != "https" or not urlsplit(self.url).hostname):
            raise ValueError(f"the URL of the webhooks must be https://HOST:PORT, not {self.url}")
        if self.service and _SERVICE.fullmatch(self.service) is None:
            raise ValueError(
                f"the Service of the webhooks must be NAMESPACE/NAME or NAMESPACE/NAME:PORT, not {self.service}"
            )
        if _NAME.fullmatch(self.configuration) is None or len(self.configuration) > MAX_NAME_CHARACTERS:
            raise ValueError(
                f"the name of the webhooks' configuration must be one of Kubernetes', not {self.configuration}"
            )
        if self.failure_policy not in ("Ignore", "Fail"):
            raise ValueError(f"the failure policy of the webhooks must be Ignore or Fail, not {self.failure_policy}")

    @property
    def namespace(self) -> str:
        """Return the namespace of the Service."""
        return self.service.partition("/")[0]

    @property
    def name(self) -> str:
        """Return the name of the Service."""
        return self.service.partition("/")[2].partition(":")[0]

    @property
    def service_port(self) -> int:
        """Return the port of the Service."""
        return int(self.service.partition(":")[2] or 443)

    @property
    def host_names(self) -> list[str]:
        """Return the names and addresses at which API servers reach the webhooks."""
        if self.service:
            host = f"{self.name}.{self.namespace}.svc"
            return [host, f"{host}.cluster.local"]
        return [urlsplit(self.url).hostname or "localhost"] if self.url else ["localhost", LOOPBACK]


_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_Handler = Callable[[web.Request], Awaitable[web.Response]]


class WebhookMetrics(Collector):
    """The API servers' requests, by controller-runtime's names."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._seconds = Histograms(_BUCKETS)
        self._rejections: Counter[tuple[str]] = Counter()

    def rejected(self, alert: str) -> None:
        """Count a client that rejected the certificate by this alert of TLS."""
        self._rejections[alert,] += 1

    def counted(self, path: str, answer: _Handler) -> _Handler:
        """Return a handler that counts its requests."""

        async def counting(request: web.Request) -> web.Response:
            begun, code = time.monotonic(), "500"
            try:
                response = await answer(request)
                code = str(response.status)
                return response
            finally:
                self._requests[path, code] += 1
                self._seconds[path,].observe(time.monotonic() - begun)

        return counting

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for one scrape."""
        yield counter("controller_runtime_webhook_requests", "Reviews.", ["webhook", "code"], self._requests)
        text = "Handshakes in which a client rejected the certificate of the webhooks."
        yield counter("tinkedge_webhook_rejected_certificates", text, ["alert"], self._rejections)
        yield histogram("controller_runtime_webhook_latency_seconds", "How long one took.", ["webhook"], self._seconds)


# --- Server ---


LOOPBACK = "127.0.0.1"
SERVICE_PORT = 9443
"""Default port of a Service's endpoints, as is usual for Kubernetes controllers."""

MAX_REVIEW_BYTES = 8 << 20
"""Maximum size of a request in bytes.

A write has an old and a new object, of 1.5 MiB each in the default etcd, and they grow by JSON escapes. For a
conversion, a kube-apiserver sends one object at a time, and the embedded API 1 MiB or one object. Of JSON, Python makes
at most 34 times as much (`[{},{},...]`): 272 MiB, where the chart limits the controller's memory to 512 MiB.
"""
_LARGE = 1 << 20
"""Requests larger than this are read and answered one at a time."""
LOOK_AFTER_SECONDS = 60.0
SPREAD_SECONDS = 30.0
"""Time for API servers to learn of a registration. Until then they receive a certificate that they already trust."""
OVERLAP_SECONDS = 180.0
"""Time for which a replaced authority is trusted beside the new one.

Another replica may serve the old certificate for up to `LOOK_AFTER_SECONDS + SPREAD_SECONDS` if it can't watch the
Secret.
"""


class Hook(Protocol):
    """A webhook."""

    @property
    def path(self) -> str:
        """Return its path, such as `/admission`."""

    @property
    def missed(self) -> str:
        """Return the consequence of a missing registration, for the log."""

    @property
    def notes(self) -> Iterable[str]:
        """Yield further notes for operators about this hook."""

    async def ready(self) -> None:
        """Return when the hook can answer."""

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request."""

    async def register(self, client: KubeClient, address: Address, bundle: bytes) -> bool:
        """Register `address` and `bundle` with the API server. Return True if something was written.

        Raises RegistrationError, ApiError.
        """

    async def unregister(self, client: KubeClient) -> None:
        """Remove the registration, unless that does harm. Raises ApiError."""


class Webhooks:
    """One port for all hooks. Started once, stopped once."""

    def __init__(
        self,
        client: KubeClient,
        hooks: Sequence[Hook],
        settings: WebhookSettings | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Serve `hooks`. `clock` says which certificates are valid; `monotonic` measures how long to wait."""
        self._client = client
        self._clock = clock
        self._monotonic = monotonic
        self._hooks = tuple(hooks)
        self._settings = settings or WebhookSettings()
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.set_alpn_protocols(["http/1.1"])
        watch_handshakes(self._context, self._on_handshake)
        self._keeper: MemoryKeeper | SecretKeeper = MemoryKeeper()
        if self._settings.service:
            self._keeper = SecretKeeper(client, self._settings.namespace, f"{self._settings.name}-ca")
        self._serving: certificates.ServingCertificate | None = None
        self._bundle = b""
        """The bundle of the authority whose certificate is served."""
        self._former = b""
        """The bundle of the previous authority, or of the present one if it is about to be replaced."""
        self._former_until: float | None = None
        """The monotonic time at which the former authority loses its trust; None until its successor is registered."""
        self._replaced_by = b""
        """The bundle of the next authority; empty if there is none."""
        self._show_from: float | None = None
        """The monotonic time from which the next authority may be served; None until it is registered."""
        self._failing: dict[Hook, Exception] = {}
        self._rejection = ""
        """The alert by which a client rejected the certificate; empty once a client accepts it, or it was replaced."""
        self._runner: web.AppRunner | None = None
        self._registered: set[Hook] = set()
        # All replicas behind a Service need the same path, and a NetworkPolicy can restrict the callers.
        self._secret = "" if self._settings.service else f"/{secrets.token_urlsafe(16)}"
        self.port = 0
        self._large = asyncio.Semaphore(1)
        self.metrics = WebhookMetrics()

    async def start(self) -> None:
        """Listen, and register the hooks. Logs a warning if the API has no webhooks or rejects the registration.

        Raises OSError if the port is not available.
        """
        for hook in self._hooks:
            await hook.ready()
        app = web.Application(client_max_size=MAX_REVIEW_BYTES)
        for hook in self._hooks:
            answer = partial(self._answer, hook)
            app.router.add_post(hook.path + self._secret, self.metrics.counted(hook.path, answer))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        everywhere = self._settings.url or self._settings.service
        port = self._settings.port or (SERVICE_PORT if everywhere else 0)
        host = "0.0.0.0" if everywhere else LOOPBACK  # noqa: S104 - the API server is elsewhere
        site = LimitedSite(self._runner, host, port, self._context, "webhooks")
        await site.start()
        self.port = site.port
        await self.look_after()

    async def _answer(self, hook: Hook, request: web.Request) -> web.Response:
        length = request.content_length
        async with self._large if length is None or length > _LARGE else nullcontext():
            return await hook.answer(request)

    async def run(self) -> None:
        """Keep certificates and registrations fresh until cancelled."""
        while True:
            await self._rest()
            await self.look_after()

    async def _rest(self) -> None:
        """Return when the authority was replaced, or when something is due."""
        if self._show_from is not None:
            await asyncio.sleep(max(self._show_from - self._monotonic(), 0.0))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AFTER_SECONDS):
                try:
                    await self._keeper.changed()
                except (ApiError, ValueError) as error:
                    log.debug("the authority of the webhooks is looked at now and then, and not watched: %s", error)
                    await asyncio.sleep(LOOK_AFTER_SECONDS)

    async def stop(self) -> None:
        """Remove the registrations that no other process serves, then stop listening."""
        for hook in self._registered if not self._settings.url and not self._settings.service else ():
            try:
                await hook.unregister(self._client)
            except ApiError as error:
                log.warning("the webhook %s can't be unregistered: %s", hook.path, error)
        if self._runner is not None:
            await self._runner.cleanup()

    async def look_after(self) -> None:
        """Renew certificates and registrations. An error is logged once and tried again the next time."""
        now = self._clock()
        try:
            authority = await self._keeper.authority(now)
        except (ApiError, CertificateError) as error:
            for hook in self._hooks:
                self._failed(hook, error)
            return
        if self._serving is None:
            self._show(authority, now)  # No API server connects before the registration.
        bundle = authority.bundle()
        is_replaced = bundle != self._bundle
        if is_replaced and bundle != self._replaced_by:
            self._replaced_by, self._former = bundle, self._bundle
            self._show_from = self._former_until = None
        if not await self._register(self._trusted(authority)):
            return
        if not is_replaced:
            self._show_from = None
            if self._serving is not None and self._serving.needs_renewal(now):
                self._show(authority, now)
        elif self._show_from is None:
            # The time counts from the registration: while the API rejected it, no API server learned of it.
            registered = self._monotonic()
            self._show_from = registered + SPREAD_SECONDS
            self._former_until = registered + OVERLAP_SECONDS
        elif self._monotonic() >= self._show_from:
            self._show(authority, now)
            self._show_from = None

    def _trusted(self, authority: certificates.Authority) -> bytes:
        """Return the bundle to register: this authority and, for `OVERLAP_SECONDS`, the replaced one."""
        bundle = authority.bundle()
        if self._former_until is not None and self._monotonic() >= self._former_until:
            return bundle
        end = b"-----END CERTIFICATE-----\n"
        known = bundle.split(end)
        return bundle + b"".join(one + end for one in self._former.split(end) if one.strip() and one not in known)

    @property
    def notes(self) -> Iterator[str]:
        """Yield the lines for /readyz: one for each hook that API servers cannot use, and the notes of the hooks."""
        for hook in self._hooks:
            if hook in self._failing:
                yield f"{hook.missed}: {self._failing[hook]}"
            elif self._rejection:
                yield (
                    f"{hook.missed}: an API server rejects the certificate ({self._rejection}); compare its clock with "
                    "this host's, and webhooks[].clientConfig.caBundle with what tinkedge has registered"
                )
            yield from hook.notes

    def address(self, hook: Hook) -> Address:
        """Return the address that is registered for a hook."""
        path, settings = hook.path + self._secret, self._settings
        if settings.service:
            return Address(path, namespace=settings.namespace, name=settings.name, port=settings.service_port)
        return Address(path, url=settings.url.rstrip("/") or f"https://{LOOPBACK}:{self.port}")

    async def _register(self, bundle: bytes) -> bool:
        """Register `bundle` for all hooks. Return True if all succeeded."""
        for hook in self._hooks:
            address = self.address(hook)
            try:
                written = await hook.register(self._client, address, bundle)
            except (ApiError, RegistrationError) as error:
                self._failed(hook, error)
                continue
            if written:
                log.info("webhook %s registered at %s", hook.path, address.url or f"Service {self._settings.service}")
            self._registered.add(hook)
            self._failing.pop(hook, None)
        return not self._failing

    def _failed(self, hook: Hook, error: Exception) -> None:
        if hook not in self._failing:
            log.warning("%s: the webhook can't be registered: %s", hook.missed, error)
        self._failing[hook] = error

    def _show(self, authority: certificates.Authority, now: datetime) -> None:
        self._serving = certificates.serving(authority, self._settings.host_names, now)
        self._bundle = authority.bundle()
        self._rejection = ""
        show(self._context, self._serving.pem)

    def _on_handshake(self, rejection: str) -> None:
        """Remember the alert of a client that rejected the certificate, or that a client accepted it ("")."""
        if rejection:
            self.metrics.rejected(rejection)
            if not self._rejection:
                log.warning("an API server rejects the certificate of the webhooks: %s", rejection)
        self._rejection = rejection

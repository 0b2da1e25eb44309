"""The webhooks' shell: HTTPS for the API server, the informers that feed the reviewer, the registration.

`start` returns when the API server has been told where to ask; `run` then keeps certificates and registration fresh,
and `stop` takes the registration back where nobody else would answer in its place.

The path on loopback has a part that nobody can guess and that only readers of the registration know, so that other
users of this machine can't ask what addresses there are, or have some remembered.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from tink.api.v1alpha2 import Raw
from tink.controller.settings import WebhookSettings
from tink.controller.webhooks import certificates
from tink.controller.webhooks.certificates import CertificateError, Keeper, MemoryKeeper, SecretKeeper
from tink.controller.webhooks.registration import Address, configuration, register, remove
from tink.controller.webhooks.reviewer import Request, Reviewer, Verdict
from tink.kube.client import ApiError, KubeClient, NotFoundError
from tink.kube.informer import Informer

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
SERVICE_PORT = 9443
"""Where a Service's endpoints listen, unless told otherwise: what controllers on Kubernetes use by custom."""
SECRET_NAME = "tinkedge-webhook-ca"  # noqa: S105 - the name of a Secret

_LARGEST_REVIEW = 16 << 20
"""Bytes: an old and a new object of the 3 MiB that the API takes, and the growth that escapes in JSON can bring."""
_LOOK_AFTER_SECONDS = 60.0


def _now() -> datetime:
    return datetime.now(UTC)


class Webhooks:
    """Started once, stopped once; `hardware`, `templates` and `workflows` are informers that somebody else runs."""

    def __init__(
        self,
        client: KubeClient,
        *,
        hardware: Informer,
        templates: Informer,
        workflows: Informer,
        settings: WebhookSettings | None = None,
        now: Callable[[], datetime] = _now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._settings = settings or WebhookSettings()
        self._now = now
        self._informers = {"Hardware": hardware, "Template": templates}
        self._synced = (hardware, templates, workflows)
        self._reviewer = Reviewer(self._look_up, self._cached, clock)
        for informer in (hardware, workflows):
            informer.on_change(lambda new, _: self._reviewer.references.apply(new))
            informer.on_delete(self._reviewer.references.remove)
        hardware.on_change(lambda new, _: self._reviewer.claims.apply(new))
        hardware.on_delete(self._reviewer.claims.remove)
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.set_alpn_protocols(["http/1.1"])
        self._keeper: Keeper = MemoryKeeper()
        if self._settings.service:
            self._keeper = SecretKeeper(client, self._settings.namespace, SECRET_NAME)
        self._serving: certificates.Serving | None = None
        self._bundle = b""
        self._failing = False
        self._runner: web.AppRunner | None = None
        self._registered = False
        # All replicas behind a Service are asked by one path, and a NetworkPolicy can say by whom.
        secret = "" if self._settings.service else f"/{secrets.token_urlsafe(16)}"
        self.path = f"/admission{secret}"
        self.port = 0

    async def start(self) -> None:
        """Listen, and register. An API that has no webhooks, or does not let us register, is said in the log.

        Raises OSError if the port can't be had.
        """
        for informer in self._synced:
            await informer.wait_synced()
        app = web.Application(client_max_size=_LARGEST_REVIEW)
        app.router.add_post(self.path, self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        everywhere = self._settings.url or self._settings.service
        port = self._settings.port or (SERVICE_PORT if everywhere else 0)
        site = web.TCPSite(self._runner, "0.0.0.0" if everywhere else LOOPBACK, port, ssl_context=self._context)  # noqa: S104 - the API server is elsewhere
        await site.start()
        self.port = self._runner.addresses[0][1]
        await self.look_after()

    async def run(self) -> None:
        """Keep certificates and registration fresh until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_AFTER_SECONDS)
            await self.look_after()

    async def stop(self) -> None:
        """Unregister what nobody else serves, then stop listening."""
        if self._registered and not self._settings.url and not self._settings.service:
            try:
                await remove(self._client)
            except ApiError as error:
                log.warning("the webhooks can't be unregistered: %s", error)
        if self._runner is not None:
            await self._runner.cleanup()

    async def look_after(self) -> None:
        """Renew what is due and have the API server know. What fails is said once, and tried again the next time."""
        try:
            await self._renew()
        except (ApiError, CertificateError) as error:
            if not self._failing:
                log.warning("writes are not reviewed: the webhooks can't be registered: %s", error)
            self._failing = True
        else:
            self._failing = False

    @property
    def address(self) -> Address:
        """Where the API server is told to ask."""
        settings = self._settings
        if settings.service:
            return Address(self.path, namespace=settings.namespace, name=settings.name, port=settings.service_port)
        return Address(self.path, url=settings.url.rstrip("/") or f"https://{LOOPBACK}:{self.port}")

    async def _renew(self) -> None:
        now = self._now()
        authority = await self._keeper.authority(now)
        if self._serving is None:
            self._show(authority, now)  # nobody asks before the registration; nothing must be broken by it
        wanted = configuration(self.address, authority.bundle(), self._settings.failure_policy)
        if await register(self._client, wanted):
            log.info("webhooks registered at %s", self.address.url.rpartition("/")[0] or self._settings.service)
        self._registered = True
        if self._serving is not None and (now >= self._serving.renew_at or authority.bundle() != self._bundle):
            self._show(authority, now)

    def _show(self, authority: certificates.Authority, now: datetime) -> None:
        self._serving = certificates.serving(authority, self._names(), now)
        self._bundle = authority.bundle()
        certificates.show(self._context, self._serving)

    def _names(self) -> list[str]:
        settings = self._settings
        if settings.service:
            host = f"{settings.name}.{settings.namespace}.svc"
            return [host, f"{host}.cluster.local"]
        if settings.url:
            return [urlsplit(settings.url).hostname or "localhost"]
        return ["localhost", LOOPBACK]

    # --- what is asked --------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            review = orjson.loads(await request.read())
            asked = review["request"]
            uid = asked["uid"]
            if not isinstance(uid, str) or not isinstance(asked, dict):
                raise TypeError("request.uid is no string")
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            return web.Response(status=400, text=f"no AdmissionReview: {error}\n")
        verdict = await self._reviewer.review(Request.read(asked))
        body = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {"uid": uid, **respond(verdict, asked)},
        }
        return web.Response(body=orjson.dumps(body), content_type="application/json")

    async def _look_up(self, kind: str, namespace: str, name: str) -> Raw | None:
        try:
            return await self._client.get(self._informers[kind].resource, name, namespace)
        except NotFoundError:
            return None

    def _cached(self, kind: str, namespace: str, name: str) -> bool:
        return self._informers[kind].get(namespace, name) is not None


def respond(verdict: Verdict, request: Mapping[str, Any]) -> Raw:
    """An AdmissionResponse without its uid; a refusal has the Status that an invalid object gets."""
    response: Raw = {"allowed": not verdict.causes}
    if verdict.warnings:
        response["warnings"] = list(verdict.warnings)
    if verdict.causes:
        asked = Request.read(request)
        causes = [{"reason": c.reason, "message": c.message, "field": c.field} for c in verdict.causes]
        response["status"] = {
            "status": "Failure",
            "code": 422,
            "reason": "Invalid",
            "message": "; ".join(f"{cause.field}: {cause.message}" for cause in verdict.causes),
            "details": {"group": "tinkerbell.org", "kind": asked.kind, "name": asked.key[1], "causes": causes},
        }
    return response

"""The hook that reviews writes: AdmissionReviews in, the reviewer's verdicts out, and the informers that feed it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from aiohttp import web
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.api.mistakes import ELSEWHERE, Site
from tink.api.v1alpha2 import GROUP, Raw, as_mapping
from tink.kube.cache import Informer
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE, OSIE, SECRET, TEMPLATE, WORKFLOW, ResourceType
from tink.metrics.families import counter
from tink.webhooks.registration import NAME, TIMEOUT_SECONDS, Address, configuration, register, reviewed, unregister
from tink.webhooks.reviewer import Examine, Parse, Reviewer, ReviewRequest, Verdict, parse_here

log = logging.getLogger(__name__)


class ReviewMetrics(Collector):
    """Counts reviewed writes by kind and outcome, and writes that were stored without a review."""

    def __init__(self) -> None:
        self._reviewed: Counter[tuple[str, str]] = Counter()
        self._unreviewed: Counter[tuple[str, str]] = Counter({("Hardware", "failed"): 0, ("Hardware", "late"): 0})

    @property
    def unreviewed(self) -> int:
        """The number of writes that were stored unreviewed since the start, as far as this process knows."""
        return self._unreviewed.total()

    def decided(self, request: Mapping[str, Any], outcome: str) -> None:
        """Count a review. `outcome` is `allowed`, `warned`, `refused`, `busy` or `failed`."""
        self._reviewed[_kind(request), outcome] += 1

    def let_in(self, request: Mapping[str, Any], reason: str) -> None:
        """Count a write that its API server stores although the review has `failed`, or came `late`."""
        self._unreviewed[_kind(request), reason] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for one scrape."""
        labels = ["kind", "outcome"]
        yield counter("tinkedge_reviewed_writes", "Writes that were reviewed, by the outcome.", labels, self._reviewed)
        text = "Writes that were let in unreviewed because the review failed or came too late."
        yield counter("tinkedge_unreviewed_writes", text, ["kind", "reason"], self._unreviewed)


_KINDS = frozenset({"Hardware", "OSIE", "Template", "Workflow"})


def _kind(request: Mapping[str, Any]) -> str:
    kind = request.get("kind")
    name = kind.get("kind") if isinstance(kind, dict) else None
    return name if name in _KINDS else "other"


# --- Admission reviews ---


_READ_SECONDS = 30.0
"""Maximum seconds that API servers wait for an answer."""


class Admission:
    """The admission webhook. The caller runs the informers."""

    path = "/admission"
    missed = "writes are not reviewed"

    def __init__(
        self,
        client: KubeClient,
        informers: Mapping[ResourceType, Informer],
        *,
        site: Callable[[], Site] = lambda: ELSEWHERE,
        failure_policy: str = "Fail",
        namespaces: Sequence[str] = (),
        name: str = NAME,
        parse: Parse = parse_here,
        examine: Examine | None = None,
    ) -> None:
        """Review objects of these `namespaces` (empty: of all). `name` is the name of the configuration.

        `informers` has the informers of Hardware, OSIEs, Templates and Workflows.
        """
        self._client = client
        self._failure_policy = failure_policy
        self._namespaces = tuple(namespaces)
        self._name = name
        self._differences: tuple[str, ...] = ()
        """The last log message about a configuration that the chart or an operator made."""
        self._informers = {each.kind: informers[each] for each in (HARDWARE, OSIE, TEMPLATE, WORKFLOW)}
        self.metrics = ReviewMetrics()
        self._reviewer = Reviewer(self._look_up, self._cached, site=site, parse=parse, examine=examine)
        _follow(informers, self._reviewer)
        claims = self._reviewer.claims
        informers[HARDWARE].add_event_handler(lambda new, _: claims.apply(new), claims.remove)

    async def ready(self) -> None:
        """Return when the informers have listed all objects."""
        for informer in self._informers.values():
            await informer.wait_for_cache_sync()

    async def register(self, client: KubeClient, address: Address, bundle: bytes) -> bool:
        """Write the ValidatingWebhookConfiguration, or its caBundle alone; return whether something was written.

        Raises RegistrationError, ApiError.
        """
        wanted = configuration(address, bundle, self._failure_policy, self._namespaces, self._name)
        registered = await register(client, wanted)
        if registered.differences and registered.differences != self._differences:
            log.warning(
                "ValidatingWebhookConfiguration %s is not the one of this version: %s. Some writes may not be "
                "reviewed: run `helm upgrade`, or apply deploy/webhooks.yaml",
                self._name,
                "; ".join(registered.differences),
            )
        self._differences = registered.differences
        return registered.written

    async def unregister(self, client: KubeClient) -> None:
        """Delete the configuration, so that no write waits for a review that can't be held. Raises ApiError."""
        await unregister(client, self._name)

    async def answer(self, request: web.Request) -> web.Response:
        """Review a write."""
        try:
            async with asyncio.timeout(_READ_SECONDS):
                review = orjson.loads(await request.read())
            asked = review["request"]
            uid = asked["uid"]
            if not isinstance(uid, str) or not isinstance(asked, dict):
                raise TypeError("request.uid is no string")
        except TimeoutError:
            return web.Response(status=408, text=f"no AdmissionReview within {_READ_SECONDS:.0f} s\n")
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            return web.Response(status=400, text=f"no AdmissionReview: {error}\n")
        begun, request_read = time.monotonic(), ReviewRequest.read(asked)
        try:
            verdict = await self._reviewer.review(request_read)
        except Exception as error:
            log.exception("%s %s can't be reviewed", request_read.kind, "/".join(request_read.key))
            self._not_decided(asked, "failed")
            return web.Response(status=500, text=f"the review has failed: {error or type(error).__name__}\n")
        self.metrics.decided(asked, verdict.outcome)
        if time.monotonic() - begun > TIMEOUT_SECONDS:
            self._not_decided(asked, "late")
        response = {"uid": uid, **respond(verdict, asked)}
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        return web.Response(body=orjson.dumps(body), content_type="application/json")

    def _not_decided(self, asked: Mapping[str, Any], reason: str) -> None:
        """Count a write that the failure policy of the registration decides. The policy of claims may be Fail."""
        if reason == "failed":
            self.metrics.decided(asked, "failed")
        claims = as_mapping(asked.get("kind")).get("kind") == "Hardware" and asked.get("operation") != "DELETE"
        if not claims or self._failure_policy == "Ignore":
            self.metrics.let_in(asked, reason)

    @property
    def notes(self) -> Iterator[str]:
        """Yield notes for operators about writes that are stored without a review."""
        if self._failure_policy == "Ignore":
            yield "Hardware is written unreviewed while no webhook answers (--webhook-failure-policy Ignore)"
        if self.metrics.unreviewed:
            yield f"{self.metrics.unreviewed} writes were let in unreviewed: see tinkedge_unreviewed_writes_total"

    async def _look_up(self, kind: str, namespace: str, name: str) -> Raw | None:
        try:
            return await self._client.get(self._informers[kind].resource, name, namespace)
        except NotFoundError:
            return None

    def _cached(self, kind: str, namespace: str, name: str) -> Raw | None:
        return self._informers[kind].get(namespace, name)


def respond(verdict: Verdict, request: Mapping[str, Any]) -> Raw:
    """Return an AdmissionResponse without its uid. A rejection has the same Status as an invalid object."""
    response: Raw = {"allowed": not verdict.causes and not verdict.busy}
    if verdict.warnings:
        response["warnings"] = list(verdict.warnings)
    if verdict.causes:
        asked = ReviewRequest.read(request)
        causes = [{"reason": c.reason, "message": c.message, "field": c.field} for c in verdict.causes]
        response["status"] = {
            "status": "Failure",
            "code": 422,
            "reason": "Invalid",
            "message": "; ".join(f"{cause.field}: {cause.message}" for cause in verdict.causes),
            "details": {"group": "tinkerbell.org", "kind": asked.kind, "name": asked.key.name, "causes": causes},
        }
    elif verdict.busy:
        details = {"retryAfterSeconds": 1}
        busy = {"code": 429, "reason": "TooManyRequests", "message": verdict.busy, "details": details}
        response["status"] = {"status": "Failure", **busy}
    return response


def _follow(informers: Mapping[ResourceType, Informer], reviewer: Reviewer) -> None:
    """Let the informers of Hardware and Workflows feed the references."""
    for resource in (HARDWARE, WORKFLOW):
        informers[resource].add_event_handler(lambda new, _: reviewer.references.apply(new), reviewer.references.remove)


# --- Plugin of the embedded API ---


Find = Callable[[str, str, str], Awaitable[Raw | None]]
"""`find(key, namespace, name)` returns an object as it is stored; `key` is such as `tinkerbell.org/hardware`."""

_KEYS: Final = {each.kind: f"{each.group}/{each.plural}" for each in (HARDWARE, OSIE, TEMPLATE, SECRET)}


class ReviewPlugin:
    """Reviews writes in the process of the API server (`tink.kubeapi.apiserver.AdmissionPlugin`).

    The API server feeds it the stored Hardware, commit by commit, so claims are judged in the order of the writes and
    without delay. A write reserves its claims from the review until it has been stored or has failed. A write that
    can't be reviewed is rejected: no call could get lost, and no policy admits it. Deletions and removals of finalizers
    are admitted even then, because an operator must be able to remove any object, and they claim nothing.

    Informers feed the references once they run. References only cause warnings, so no write waits for them.
    """

    followed = f"{GROUP}/{HARDWARE.plural}"

    def __init__(
        self,
        find: Find,
        *,
        site: Callable[[], Site] = lambda: ELSEWHERE,
        namespaces: Sequence[str] = (),
        parse: Parse = parse_here,
        clock: Callable[[], float] = time.monotonic,
        examine: Examine | None = None,
    ) -> None:
        """Review the objects of these `namespaces`; empty: of all. `find` reads the store."""
        self.webhooks = reviewed(namespaces)
        self.metrics = ReviewMetrics()
        self._informers: dict[str, Informer] = {}
        self._namespaces = frozenset(namespaces)
        self._synced = False
        self._unread: set[NamespacedName] = set()
        """Stored Hardware whose claims could not be read. As long as there is one, no Hardware may claim anything."""
        self._find = find
        self._reviewer = Reviewer(self._look_up, self._cached, clock, site, exact=True, parse=parse, examine=examine)

    def follow(self, informers: Mapping[ResourceType, Informer]) -> None:
        """Use these informers for warnings about references, once they run."""
        _follow(informers, self._reviewer)
        self._informers = {each.kind: informers[each] for each in (HARDWARE, OSIE, TEMPLATE)}

    def apply(self, obj: Raw) -> None:
        """Add or update a stored Hardware."""
        if not self._namespaces or obj["metadata"]["namespace"] in self._namespaces:
            self._take_in(obj, self._reviewer.claims.apply)

    def remove(self, obj: Raw) -> None:
        """Remove a Hardware that is no longer stored."""
        self._take_in(obj, self._reviewer.claims.remove)

    def _take_in(self, obj: Raw, change: Callable[[Raw], object]) -> None:
        """Apply a stored change. Never raises: the API server still has to notify its other listeners."""
        key = NamespacedName.of(obj)
        try:
            change(obj)
            self._unread.discard(key)
        except Exception:
            log.exception("Hardware %s: its addresses can't be read; no Hardware may claim any meanwhile", key)
            self._unread.add(key)

    def synced(self) -> None:
        """Start to review: the claims of all stored Hardware are known."""
        self._synced = True

    async def answer(self, request: Raw) -> tuple[Raw, Callable[[], None] | None]:
        """Review an AdmissionRequest. Return an AdmissionResponse, and a function that releases the reserved claims."""
        asked = ReviewRequest.read(request)
        try:
            if not self._synced:
                raise RuntimeError("the Hardware that is stored has not been read yet: try again in a second")
            if self._unread and asked.kind == HARDWARE.kind and not asked.is_harmless:
                one = min(self._unread)
                raise RuntimeError(f"the addresses of Hardware {one} can't be read (see the log): correct or delete it")
            verdict = await self._reviewer.review(asked)
        except Exception as error:
            self.metrics.decided(request, "failed")
            if not asked.is_harmless:
                raise
            log.exception("%s %s: its review has failed; the write claims nothing and is let in", asked.kind, asked.key)
            return {"allowed": True, "warnings": [f"not reviewed: {error or type(error).__name__}"]}, None
        self.metrics.decided(request, verdict.outcome)
        return respond(verdict, request), verdict.release

    def _cached(self, kind: str, namespace: str, name: str) -> Raw | None:
        informer = self._informers.get(kind)
        return informer.get(namespace, name) if informer is not None else None

    async def _look_up(self, kind: str, namespace: str, name: str) -> Raw | None:
        return await self._find(_KEYS[kind], namespace, name)

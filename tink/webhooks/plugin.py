"""The reviewer inside the embedded API, as its admission plugin (`tink.kubeapi.apiserver.AdmissionPlugin`).

The API server feeds it the stored Hardware, commit by commit, so claims are judged in the order of the writes and
without delay. A write reserves its claims from the review until it has been stored or has failed. A write that can't be
reviewed is rejected: no call could get lost, and no policy admits it. Deletions and removals of finalizers are admitted
even then, because an operator must be able to remove any object, and they claim nothing.

Informers feed the references once they run. References only cause warnings, so no write waits for them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from tink.api.mistakes import ELSEWHERE, Site
from tink.api.v1alpha2 import GROUP, Raw
from tink.kube.cache import Informer
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE, OSIE, SECRET, TEMPLATE, WORKFLOW, ResourceType
from tink.webhooks.admission import respond
from tink.webhooks.metrics import ReviewMetrics
from tink.webhooks.registration import reviewed
from tink.webhooks.reviewer import Examine, Lookup, Parse, Request, Reviewer, Verdict, parse_here

log = logging.getLogger(__name__)

Find = Callable[[str, str, str], Awaitable[Raw | None]]
"""`find(key, namespace, name)` returns an object as it is stored; `key` is such as `tinkerbell.org/hardware`."""

_KEYS: Final = {each.kind: f"{each.group}/{each.plural}" for each in (HARDWARE, OSIE, TEMPLATE, SECRET)}


class ReviewPlugin:
    """Reviews writes in the process of the API server.

    `find` reads its store; `site` returns the site for each Hardware.
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
        """Review the objects of these `namespaces`; empty: of all."""
        self.webhooks = reviewed(namespaces)
        self.metrics = ReviewMetrics()
        self._informers: dict[str, Informer] = {}
        self._namespaces = frozenset(namespaces)
        self._synced = False
        self._unread: set[NamespacedName] = set()
        """Stored Hardware whose claims could not be read. As long as there is one, no Hardware may claim anything."""
        self._reviewer = Reviewer(_lookup(find), self._cached, clock, site, exact=True, parse=parse, examine=examine)

    def follow(self, informers: Mapping[ResourceType, Informer]) -> None:
        """Use these informers for warnings about references, once they run."""
        references = self._reviewer.references
        for resource in (HARDWARE, WORKFLOW):
            informers[resource].add_event_handler(lambda new, _: references.apply(new), references.remove)
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
        asked = Request.read(request)
        try:
            verdict = await self._review(asked)
        except Exception as error:
            self.metrics.decided(request, "failed")
            if not asked.is_harmless:
                raise
            log.exception("%s %s: its review has failed; the write claims nothing and is let in", asked.kind, asked.key)
            return {"allowed": True, "warnings": [f"not reviewed: {error or type(error).__name__}"]}, None
        self.metrics.decided(request, verdict.outcome)
        return respond(verdict, request), verdict.release

    async def _review(self, asked: Request) -> Verdict:
        if not self._synced:
            raise RuntimeError("the Hardware that is stored has not been read yet: try again in a second")
        if self._unread and asked.kind == HARDWARE.kind and not asked.is_harmless:
            one = min(self._unread)
            raise RuntimeError(f"the addresses of Hardware {one} can't be read (see the log): correct or delete it")
        return await self._reviewer.review(asked)

    def _cached(self, kind: str, namespace: str, name: str) -> Raw | None:
        informer = self._informers.get(kind)
        return informer.get(namespace, name) if informer is not None else None


def _lookup(find: Find) -> Lookup:
    async def look_up(kind: str, namespace: str, name: str) -> Raw | None:
        return await find(_KEYS[kind], namespace, name)

    return look_up

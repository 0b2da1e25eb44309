"""Lists a collection once, then watches it from the list's resourceVersion: client-go's Reflector.

The list comes as the beginning of the watch where the API can do that (WatchList): from its memory, and one object at a
time. Else page by page.

When the watch breaks it goes on from the last version it saw; when the API no longer has that version (410 Gone) it
lists again and compares, so that it also tells of what went in between ("Efficient detection of changes", Kubernetes
API concepts). An `Informer` has one, which fills its store.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable

import aiohttp
import orjson

from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, KubeClient, api_error
from tink.kube.objects import NamespacedName
from tink.kube.resources import ResourceType
from tink.limits.backoff import Backoff

log = logging.getLogger(__name__)

WATCH_SECONDS = 290
"""How long one watch lasts. The API's bookmarks keep the version fresh, so going on after it costs nothing."""
_MAX_EVENT_BYTES = 16 << 20
_GONE = 410
_DENIED = (401, 403)
_BAD_REQUEST = 400
_NO_WATCH_LIST = (_BAD_REQUEST, 405, 422)
"""What APIs answer that know nothing of `sendInitialEvents`, or have it turned off: Bad Request, Method Not Allowed,
Unprocessable Entity."""
_INTERNAL_ERROR = 500
"""The answer to `sendInitialEvents` over an etcd older than 3.4.31 or 3.5.13, which can't report its progress."""
_INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""The annotation of the bookmark after the last object of a list that comes as a watch."""
SAY_AGAIN_FIRST, SAY_AGAIN_LONGEST = 60.0, 3600.0
"""Seconds until it is said again that the collection can't be followed, and the longest such pause."""
_PAGE_SIZE = 500
"""Objects that are asked for at once. With fewer the API is asked more often; with more of them at a time, which are
10 kB each, reading one takes half as long again."""
_BATCH = 25
"""Objects that are taken in at once; in between the event loop has time for others, and for the next page."""

_sleep = asyncio.sleep


class _ExpiredError(Exception):
    """The API no longer knows the version to watch from: list again."""


class _MalformedError(ApiError):
    """A watch event that can't be read."""

    def __init__(self, resource: ResourceType, what: str) -> None:
        super().__init__(200, "InvalidAnswer", f"watch of {resource.plural}: {what}")


class _NoWatchListError(Exception):
    """The API does not give lists as the beginning of a watch."""


class _WatchListFailedError(ApiError):
    """The API failed to give a list as the beginning of a watch; it may be able to later."""


class Reflector:
    """Tells of the objects of `resource`, of one namespace or of all, that `label_selector` selects."""

    def __init__(
        self,
        client: KubeClient,
        resource: ResourceType,
        namespace: str | None,
        *,
        label_selector: str = "",
        start_jitter: float = 0.0,
        known: Callable[[], Iterable[NamespacedName]],
        on_object: Callable[[Raw], None],
        on_gone: Callable[[NamespacedName, Raw | None], None],
        backoff: Backoff | None = None,
    ) -> None:
        """`known` gives what is believed to be there; `on_object` is called with each object that is listed, added or
        modified, `on_gone` with the key of one that is gone, and what it was then, if the API says that. Before the
        first list it waits for a random time of at most `start_jitter` seconds: where many replicas start together."""
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._label_selector = label_selector
        self._start_jitter = start_jitter
        self._what = resource.plural + (f" of namespace {namespace}" if namespace else "")
        self._watch_list = True
        """Whether lists are asked for as the beginning of a watch."""
        self._list_once = False
        """True if the next list is requested page by page, after an error of the API that may pass."""
        self._replaced: dict[NamespacedName, None] | None = None
        """While such a list comes: what was known before it and has not come yet."""
        self._known = known
        self._on_object = on_object
        self._on_gone = on_gone
        self._backoff = backoff or Backoff(0.2, 10.0)
        self._version: str | None = None
        self._failing = False
        self._failing_since = self._say_again_at = 0.0
        self._say_again = Backoff(SAY_AGAIN_FIRST, SAY_AGAIN_LONGEST)
        self.denied = ""
        """Why the API does not let this program read the collection (401, 403), or not by the selector (400); empty: it
        does."""
        self.unreachable = False
        """Whether the API does not answer, or says that it can't (429, 5xx)."""
        self.synced = asyncio.Event()
        """Set when the collection has been listed once."""

    @property
    def namespace(self) -> str | None:
        """Whose objects it tells of; None: those of all."""
        return self._namespace

    @property
    def failing_for(self) -> float:
        """For how many seconds the collection can't be followed; 0: it is followed."""
        return asyncio.get_running_loop().time() - self._failing_since if self._failing else 0.0

    async def run(self) -> None:
        """Follow the collection for ever. An API that is away, or answers with errors, is asked again and again with
        growing delays; the first failure and the recovery are logged."""
        if self._start_jitter:
            await _sleep(random.uniform(0.0, self._start_jitter))  # noqa: S311 - spreads load
        while True:
            progressed, retry_after = False, 0.0
            try:
                if self._version is None and (self._list_once or not self._watch_list):
                    self._version = await self._list()
                    self._list_once = False
                    self._recovered()
                progressed = await self._watch()
            except _NoWatchListError as error:
                log.debug("%s are listed page by page: %s", self._what, error)
                self._watch_list = False
                continue
            except _WatchListFailedError as error:
                self._failed(error)
                self._list_once = True
            except _ExpiredError:
                # The copy stays readable while it is listed anew; only the version is void.
                self._version = None
            except _MalformedError as error:
                # It would come again from the same version; what it was about is in a list as well.
                self._failed(error)
                self._version = None
            except ApiError as error:
                self._failed(error)
                retry_after = error.retry_after
            if progressed:
                self._backoff.reset()
            else:
                await _sleep(max(self._backoff.next(), retry_after))

    async def _list(self) -> str:
        """Take in the whole collection, page by page; the version to watch from.

        The API makes the next page while the present one is taken in. What is gone is known, and told, when the last
        page is there.
        """
        gone = dict.fromkeys(self._known())
        page = await self._page("")
        while True:
            try:
                version, after = page["metadata"]["resourceVersion"], page["metadata"].get("continue", "")
                following = asyncio.ensure_future(self._page(after)) if after else None
                try:
                    await self._take_in(page["items"], gone)
                except BaseException:
                    if following is not None:
                        await _cancel(following)
                    raise
            except (KeyError, TypeError, AttributeError) as error:
                what = f"list of {self._resource.plural}: not a List of objects with a resourceVersion"
                raise ApiError(200, "InvalidAnswer", what) from error
            if following is None:
                break
            page = await following
        self._complete(gone)
        return str(version)

    def _complete(self, gone: Iterable[NamespacedName]) -> None:
        """All that there is has been told; these are no more."""
        for key in gone:
            self._on_gone(key, None)
        self.synced.set()

    async def _page(self, after: str) -> Raw:
        try:
            return await self._client.list(
                self._resource, self._namespace, limit=_PAGE_SIZE, after=after, label_selector=self._label_selector
            )
        except ApiError as error:
            if error.status == _GONE:  # the pages took longer than the API remembers
                raise _ExpiredError from error
            raise

    async def _take_in(self, items: list[Raw], gone: dict[NamespacedName, None]) -> None:
        """Take in the objects of a page; each is let go of as soon as it is stored, for the next page comes."""
        items.reverse()
        while items:
            await asyncio.sleep(0)
            for _ in range(min(_BATCH, len(items))):
                obj = items.pop()
                # The items of a list carry neither; consumers see the same shape whichever way an object came.
                obj.setdefault("apiVersion", self._resource.api_version)
                obj.setdefault("kind", self._resource.kind)
                gone.pop(NamespacedName.of(obj), None)
                self._on_object(obj)

    async def _watch(self) -> bool:
        """One watch until the API ends it; whether it brought anything (so that it makes sense to go on at once).

        Without a version to begin with, it begins with all that there is.
        """
        started = asyncio.get_running_loop().time()
        begins = self._version is None
        self._replaced = dict.fromkeys(self._known()) if begins else None
        events = 0
        try:
            async with self._client.watch(
                self._resource,
                self._namespace,
                self._version or "",
                WATCH_SECONDS,
                label_selector=self._label_selector,
                send_initial_events=begins,
            ) as stream:
                if not begins:
                    self._recovered()
                async for line in self._event_lines(stream):
                    self._handle(line)
                    events += 1
        except ApiError as error:
            if error.status == _GONE:
                raise _ExpiredError from error
            if begins and error.status in _NO_WATCH_LIST:
                raise _NoWatchListError(str(error)) from error
            if begins and error.status == _INTERNAL_ERROR:
                raise _WatchListFailedError(error.status, error.reason, error.message) from error
            raise
        if self._replaced is not None:
            raise _NoWatchListError("the watch ended before it had said that all initial events are there")
        return events > 0 or asyncio.get_running_loop().time() - started > 1.0

    async def _event_lines(self, stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
        """The lines of a stream, split from whole chunks: half the cost of readline, no limit on a line but ours."""
        rest = b""
        async for chunk in stream.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line:
                    yield line
            if len(rest) > _MAX_EVENT_BYTES:
                raise _MalformedError(self._resource, f"an event is longer than {_MAX_EVENT_BYTES} bytes")
        if rest.strip():
            yield rest

    def _handle(self, line: bytes) -> None:
        try:
            event = orjson.loads(line)
            kind, obj = event["type"], event["object"]
            if kind == "ERROR":
                status = obj.get("code") if isinstance(obj, dict) else None
                raise api_error(status if isinstance(status, int) else 500, obj)
            version = obj["metadata"]["resourceVersion"]
            if kind in ("ADDED", "MODIFIED"):
                if self._replaced is not None:
                    self._replaced.pop(NamespacedName.of(obj), None)
                self._on_object(obj)
            elif kind == "DELETED":
                self._on_gone(NamespacedName.of(obj), obj)
            elif kind != "BOOKMARK":
                raise _MalformedError(self._resource, f"unknown event type {kind!r}")
            elif self._replaced is not None and _INITIAL_EVENTS_END in (obj["metadata"].get("annotations") or {}):
                self._complete(self._replaced)
                self._replaced = None
                self._recovered()
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            start = line[:120].decode("utf-8", "replace")
            raise _MalformedError(self._resource, f"malformed event {start!r}") from error
        if self._replaced is None:
            self._version = version

    def _recovered(self) -> None:
        if self._failing:
            log.info("watching %s again", self._what)
        self._failing = self.unreachable = False
        self.denied = ""

    def _failed(self, error: ApiError) -> None:
        """Say what is wrong: at once, and again and again for as long as it lasts."""
        now = asyncio.get_running_loop().time()
        denied = error.status in _DENIED
        self.unreachable = error.is_away
        self.denied = f"the API does not let tinkedge read {self._what}: {error}" if denied else ""
        if self._label_selector and error.status == _BAD_REQUEST:
            self.denied = f"the API does not read {self._what} by the selector {self._label_selector!r}: {error}"
        advice = ": is what --kubeconfig has (or the service account) still good, and may it do that?" if denied else ""
        if denied and self._namespace is None:
            advice += " Where it may in some namespaces only: --namespaces"
        if not self._failing:
            log.warning("can't follow %s, trying again: %s%s", self._what, error, advice)
            self._say_again.reset()
            self._failing_since = now
        elif now >= self._say_again_at:
            text = "can't follow %s for %.0f s now, still trying: %s%s"
            log.warning(text, self._what, now - self._failing_since, error, advice)
        else:
            return
        self._failing = True
        self._say_again_at = now + self._say_again.next()


async def _cancel(request: asyncio.Future[Raw]) -> None:
    """End a request whose answer nobody waits for any more; how it ends is of no interest."""
    request.cancel()
    await asyncio.wait([request])
    if not request.cancelled():
        request.exception()

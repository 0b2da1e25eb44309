"""A local copy of a collection of Kubernetes objects with a call for each change: client-go's shared informer.

Event handlers are synchronous and run on the event loop, one change at a time, in the order of the API's history. The
store already holds the change when they are called. An object that was deleted and created again is reported as a
deletion followed by an addition, even if the watch missed the deletion.

Objects have no `managedFields` and no last-applied annotation of kubectl. Archived objects (`ArchiveFormat`) are whole
when a handler gets them as new; as old objects, and from `get` and `list`, they are what the archive keeps.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final

import aiohttp
import orjson

from tink.api.v1alpha2 import Raw
from tink.kube.cache.store import ArchiveFormat, InformerStore, ObjectCompressor, strip
from tink.kube.client import PAGE_SIZE, ApiError, KubeClient, api_error
from tink.kube.objects import NamespacedName
from tink.kube.resources import ResourceType
from tink.limits import Backoff

log = logging.getLogger(__name__)

ChangeHandler = Callable[[Raw, Raw | None], object]
"""Called with a new or changed object and its previous state, which is None for a new one."""
DeleteHandler = Callable[[Raw], object]
"""Called with the last known state of a deleted object."""

AWAY_SECONDS: Final = 15.0
"""An API that could not be followed for this long is away, and not just restarting."""

START_JITTER_SECONDS: Final = 2.0
"""Maximum delay of the first lists of replicas in pods, because many may start at the same moment."""


WATCH_SECONDS = 290
"""Duration of one watch. The API's bookmarks keep the version fresh, so the next watch starts where it ended."""
_MAX_EVENT_BYTES = 16 << 20
_GONE = 410
_DENIED = (401, 403)
_BAD_REQUEST = 400
_NO_WATCH_LIST = (_BAD_REQUEST, 405, 422)
"""Answers of an API that does not know `sendInitialEvents` or has disabled it: Bad Request, Method Not Allowed,
Unprocessable Entity."""
_INTERNAL_ERROR = 500
"""The answer to `sendInitialEvents` over an etcd older than 3.4.31 or 3.5.13, which can't report its progress."""
_INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""The annotation of the bookmark after the last object of a list that comes as a watch."""
LOG_AGAIN_FIRST, MAX_LOG_AGAIN = 60.0, 3600.0
"""First and maximum number of seconds until a failure that lasts is logged again."""
_ADVICE = ": check that the credentials of --kubeconfig (or the service account) are valid and may list and watch it"
_BATCH = 25
"""Objects that are processed in one turn of the event loop."""

_sleep = asyncio.sleep


class _ExpiredError(Exception):
    """The API no longer has the version to watch from: list again."""


class _MalformedError(ApiError):
    """A watch event could not be parsed."""

    def __init__(self, resource: ResourceType, what: str) -> None:
        super().__init__(200, "InvalidAnswer", f"watch of {resource.plural}: {what}")


class _NoWatchListError(Exception):
    """The API does not send lists as the beginning of a watch."""


class _WatchListFailedError(ApiError):
    """The API failed to send a list as the beginning of a watch; a later attempt may succeed."""


class Reflector:
    """Lists a collection once, then watches it from the list's resourceVersion: client-go's Reflector.

    An API that supports it (WatchList) sends the list as the beginning of the watch, one object at a time. Any other
    API is asked for pages. When the watch breaks, the next one starts from the last version seen. If the API no longer
    has that version (410 Gone), the reflector lists again and also reports the objects that were deleted meanwhile
    ("Efficient detection of changes", Kubernetes API concepts).
    """

    def __init__(self, informer: Informer, client: KubeClient, namespace: str | None, backoff: Backoff) -> None:
        self._informer = informer
        self._client = client
        self._resource = resource = informer.resource
        self.namespace = namespace
        """The namespace of the objects; None: all namespaces."""
        self._what = resource.plural + (f" of namespace {namespace}" if namespace else "")
        self._watch_list = True
        """True until the API has refused to send a list as the beginning of a watch."""
        self._list_once = False
        """True if the next list is requested page by page, after an error of the API that may pass."""
        self._listed: set[NamespacedName] | None = None
        """The objects that the present watch has listed so far; None after its initial events."""
        self._backoff = backoff
        self._version: str | None = None
        self._failing = False
        self._failing_since = self._log_again_at = 0.0
        self._log_again = Backoff(LOG_AGAIN_FIRST, MAX_LOG_AGAIN)
        self.denied = ""
        """The reason why the API refuses to list the collection (401, 403) or the selector (400); empty if not."""
        self.is_unreachable = False
        """True if the API does not answer, or answers that it is not able to (429, 5xx)."""
        self.synced = asyncio.Event()
        """Set when the collection has been listed once."""

    @property
    def failing_for(self) -> float:
        """The number of seconds since when the collection can't be followed; 0: it is followed."""
        return asyncio.get_running_loop().time() - self._failing_since if self._failing else 0.0

    async def run(self) -> None:
        """Follow the collection until cancelled; retry with growing delays while the API is away or answers errors."""
        if self._informer.start_jitter:
            await _sleep(random.uniform(0.0, self._informer.start_jitter))  # noqa: S311 - spreads load
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
                # The store stays readable during the new list; only the version is void.
                self._version = None
            except _MalformedError as error:
                # The API would send the event again from the same version, and a list has the object as well.
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
        """List the whole collection page by page, and return the version to watch from.

        The next page is requested while the present one is processed.
        """
        listed: set[NamespacedName] = set()
        page = await self._page("")
        while True:
            try:
                version, after = page["metadata"]["resourceVersion"], page["metadata"].get("continue", "")
                following = asyncio.ensure_future(self._page(after)) if after else None
                try:
                    await self._process(page["items"], listed)
                except BaseException:
                    if following is not None:  # it is no longer needed, and its result is ignored
                        following.cancel()
                        await asyncio.wait([following])
                        if not following.cancelled():
                            following.exception()
                    raise
            except (KeyError, TypeError, AttributeError) as error:
                what = f"list of {self._resource.plural}: not a List of objects with a resourceVersion"
                raise ApiError(200, "InvalidAnswer", what) from error
            if following is None:
                break
            page = await following
        self._complete(listed)
        return str(version)

    def _complete(self, listed: set[NamespacedName]) -> None:
        """Report all known objects as gone that a complete list does not have."""
        self.synced.set()  # first: a handler of a deletion must not restore the object from a checkpoint
        for key in list(self._informer):
            if self.namespace in (None, key.namespace) and key not in listed:
                self._informer.gone(key, None)

    async def _page(self, after: str) -> Raw:
        try:
            return await self._client.list(
                self._resource,
                self.namespace,
                limit=PAGE_SIZE,
                after=after,
                label_selector=self._informer.label_selector,
            )
        except ApiError as error:
            if error.status == _GONE:  # the pages took longer than the API remembers
                raise _ExpiredError from error
            raise

    async def _process(self, items: list[Raw], listed: set[NamespacedName]) -> None:
        """Report the objects of a page, and release each as soon as it is stored: the next page takes memory, too."""
        items.reverse()
        while items:
            await asyncio.sleep(0)
            for _ in range(min(_BATCH, len(items))):
                obj = items.pop()
                # The items of a list have neither, unlike the objects of a watch.
                obj.setdefault("apiVersion", self._resource.api_version)
                obj.setdefault("kind", self._resource.kind)
                listed.add(NamespacedName.of(obj))
                self._informer.changed(obj)

    async def _watch(self) -> bool:
        """Watch until the API ends the watch; return True if it reported anything, so that the next can start at once.

        A watch without a version starts with a list of the collection.
        """
        started = asyncio.get_running_loop().time()
        begins = self._version is None
        self._listed = set() if begins else None
        events = 0
        try:
            async with self._client.watch(
                self._resource,
                self.namespace,
                self._version or "",
                WATCH_SECONDS,
                label_selector=self._informer.label_selector,
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
        if self._listed is not None:
            raise _NoWatchListError("the watch ended before the bookmark that follows the initial events")
        return events > 0 or asyncio.get_running_loop().time() - started > 1.0

    async def _event_lines(self, stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
        """Yield the lines of a stream. Splitting chunks costs half as much as `readline`, and allows longer lines."""
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
                if self._listed is not None:
                    self._listed.add(NamespacedName.of(obj))
                self._informer.changed(obj)
            elif kind == "DELETED":
                if self._listed is not None:
                    self._listed.discard(NamespacedName.of(obj))
                self._informer.gone(NamespacedName.of(obj), obj)
            elif kind != "BOOKMARK":
                raise _MalformedError(self._resource, f"unknown event type {kind!r}")
            elif self._listed is not None and _INITIAL_EVENTS_END in (obj["metadata"].get("annotations") or {}):
                self._complete(self._listed)
                self._listed = None
                self._recovered()
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            start = line[:120].decode("utf-8", "replace")
            raise _MalformedError(self._resource, f"malformed event {start!r}") from error
        if self._listed is None:
            self._version = version

    def _recovered(self) -> None:
        if self._failing:
            log.info("watching %s again", self._what)
        self._failing = self.is_unreachable = False
        self.denied = ""

    def _failed(self, error: ApiError) -> None:
        """Log a failure at once, and again with growing pauses while it lasts."""
        now = asyncio.get_running_loop().time()
        denied = error.status in _DENIED
        self.is_unreachable = error.is_away
        self.denied = f"the API does not let tinkedge read {self._what}: {error}" if denied else ""
        if self._informer.label_selector and error.status == _BAD_REQUEST:
            self.denied = (
                f"the API does not read {self._what} by the selector {self._informer.label_selector!r}: {error}"
            )
        advice = _ADVICE if denied else ""
        if denied and self.namespace is None:
            advice += ". If they may in some namespaces only, give --namespaces"
        if not self._failing:
            log.warning("can't follow %s, trying again: %s%s", self._what, error, advice)
            self._log_again.reset()
            self._failing_since = now
        elif now >= self._log_again_at:
            text = "can't follow %s for %.0f s now, still trying: %s%s"
            log.warning(text, self._what, now - self._failing_since, error, advice)
        else:
            return
        self._failing = True
        self._log_again_at = now + self._log_again.next()


class Informer:
    """Keeps a copy of the objects of one resource, in some namespaces or in all.

    Start `run` as one task. Read the objects from the same event loop.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: ResourceType,
        namespaces: Sequence[str] = (),
        *,
        label_selector: str = "",
        start_jitter: float = 0.0,
        backoff: Callable[[], Backoff] = lambda: Backoff(0.2, 10.0),
        compressor: ObjectCompressor | None = None,
        archive_format: ArchiveFormat | None = None,
    ) -> None:
        """Create an informer of `namespaces` (empty: all) and a Kubernetes label selector such as `site=berlin`.

        It waits a random time of at most `start_jitter` seconds before the first list. Pass a `compressor` if an event
        handler keeps compressed objects, and an `archive_format` if most objects are history (`InformerStore`).
        """
        self.resource = resource
        self.label_selector = label_selector
        self.start_jitter = start_jitter
        self._namespaces = frozenset(namespaces)
        self._store = InformerStore(compressor, archive_format)
        self._reflectors = [
            Reflector(self, client, namespace, backoff()) for namespace in dict.fromkeys(namespaces or (None,))
        ]
        self._has_restored = False
        self._on_change: list[ChangeHandler] = []
        self._on_delete: list[DeleteHandler] = []

    def covers(self, obj: Raw) -> bool:
        """Return True if an object of the resource is sure to be in this copy once the API has it."""
        namespace = obj["metadata"].get("namespace", "")
        return not self.label_selector and (not self._namespaces or namespace in self._namespaces)

    def add_event_handler(self, on_change: ChangeHandler | None = None, on_delete: DeleteHandler | None = None) -> None:
        """Call `on_change(new, old)` for each object that is here, now, and for each that is added or changed later.

        `on_delete(old)` is called for each object that is deleted.
        """
        if on_delete is not None:
            self._on_delete.append(on_delete)
        if on_change is not None:
            self._on_change.append(on_change)
            for obj in self.list():
                self._notify(on_change, obj, None)

    def __len__(self) -> int:
        return len(self._store)

    def __contains__(self, key: NamespacedName) -> bool:
        return key in self._store

    def __iter__(self) -> Iterator[NamespacedName]:
        """Yield the keys of all objects."""
        return iter(self._store)

    def get(self, namespace: str, name: str) -> Raw | None:
        """Return an object as last seen, or None. The object is shared: never change it."""
        return self._store.get(NamespacedName(namespace, name))

    def list(self) -> Iterator[Raw]:
        """Yield all objects as last seen, one at a time, because together they take much memory."""
        return self._store.list()

    def restore(self, obj: Raw) -> None:
        """Add an object as it was known before this process began, unless the API has reported it or its absence.

        The list of the API replaces restored objects, also those that are restored while it comes.
        """
        key = NamespacedName.of(obj)
        is_wanted = not self._namespaces or key.namespace in self._namespaces
        has_listed = any(one.synced.is_set() for one in self._reflectors if one.namespace in (None, key.namespace))
        if is_wanted and not has_listed and key not in self._store:
            self._has_restored = True
            self.changed(obj)

    @property
    def has_synced(self) -> bool:
        """True if the collection has been listed once."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    @property
    def denied(self) -> str:
        """The reason why the API does not let this program read the collection (401, 403); empty if it does."""
        return next(filter(None, (reflector.denied for reflector in self._reflectors)), "")

    @property
    def is_unreachable(self) -> bool:
        """True if the API did not answer the last request, or answered that it is not able to."""
        return any(reflector.is_unreachable for reflector in self._reflectors)

    @property
    def failing_for(self) -> float:
        """The seconds since when the collection can't be followed, which is the age of the copy; 0: it is current."""
        return max(reflector.failing_for for reflector in self._reflectors)

    async def wait_for_cache_sync(self) -> None:
        """Return when the collection has been listed once and the handlers have seen all of it."""
        for reflector in self._reflectors:
            await reflector.synced.wait()

    async def run(self) -> None:
        """Follow the collection until cancelled, with growing delays while the API is away or answers with errors."""
        if len(self._reflectors) == 1:
            await self._reflectors[0].run()
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run())

    def changed(self, obj: Raw) -> None:
        """Store an object that a reflector has listed or watched, and call the handlers if it is a change."""
        key = NamespacedName.of(strip(obj))
        old = self._store.get(key)
        if old is not None:
            before, now = old["metadata"], obj["metadata"]
            if before.get("uid") != now.get("uid"):
                self.gone(key, None)
                old = None
            # An API that was restored from a backup may have given the version of a restored object to another state.
            elif before.get("resourceVersion") == now.get("resourceVersion") and (
                not self._has_restored or self.has_synced or old == obj
            ):
                return
        self._store.put(key, obj)
        for handler in self._on_change:
            self._notify(handler, obj, old)

    def gone(self, key: NamespacedName, last: Raw | None) -> None:
        """Forget an object; `last` is its state at the deletion, or None if the API has not reported one."""
        known = self._store.get(key)
        if known is None:
            return
        self._store.delete(key)
        for handler in self._on_delete:
            self._notify(handler, strip(last) if last is not None else known)

    def _notify(self, handler: Callable[..., object], obj: Raw, *old: Raw | None) -> None:
        try:
            handler(obj, *old)
        except Exception:
            # One handler's error about one object must not hide other objects, or this one from other handlers.
            log.exception("a handler failed for %s %s", self.resource.kind, NamespacedName.of(obj))

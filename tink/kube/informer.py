"""A local copy of a collection of Kubernetes objects, and a call for each of its changes.

An `Informer` lists the collection once, page by page, then watches from the list's resourceVersion. When the watch
breaks it goes on from the last version it saw; when the API no longer has that version (410 Gone) it lists again and
compares, so that handlers also hear of what changed or went in between ("Efficient detection of changes", Kubernetes
API concepts).

Handlers are synchronous and run on the event loop, one change at a time, in the order of the API's history. The copy
already holds the change when they are called. An object that was deleted and made anew is reported as a deletion
followed by an addition, even if the deletion itself was never seen.

The copy is packed (`tink.kube.packing`), so that a site of 100,000 objects fits; what is asked for, or has changed, is
at hand for a while as it is. Objects come without `managedFields` and kubectl's last-applied annotation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import orjson

from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, KubeClient, api_error
from tink.kube.packing import Packer, slim
from tink.kube.resources import ResourceType
from tink.limits.backoff import Backoff

log = logging.getLogger(__name__)

ChangeHandler = Callable[[Raw, Raw | None], None]
"""Called with an object that is new or changed, and what it was (None: it is new)."""
DeleteHandler = Callable[[Raw], None]
"""Called with the last known state of an object that is gone."""

Key = tuple[str, str]
"""Namespace (empty for cluster-wide objects) and name."""

WATCH_SECONDS = 290
"""How long one watch lasts. The API's bookmarks keep the version fresh, so going on after it costs nothing."""
_MAX_EVENT_BYTES = 16 << 20
_GONE = 410
_PAGE = 500
"""Objects that are asked for at once. With fewer the API is asked more often; with more of them at a time, which are
10 kB each, reading one takes half as long again."""
_TURN = 25
"""Objects that are taken in at once; in between the event loop has time for others, and for the next page."""
_AT_HAND = 256
"""Objects that are kept unpacked, too, where handlers keep packed ones: those that changed or were asked for last."""
_UNPACKED = 1024
"""Objects that are kept unpacked elsewhere. They are packed when others take their place, so that what changes all the
time is not packed all the time."""


class _ExpiredError(Exception):
    """The API no longer knows the version to watch from: list again."""


class _MalformedError(ApiError):
    """A watch event that can't be read."""

    def __init__(self, resource: ResourceType, what: str) -> None:
        super().__init__(200, "InvalidAnswer", f"watch of {resource.plural}: {what}")


class Informer:
    """Keeps the objects of `resource`, of one namespace or of all. `run` it as one task; read it from its loop."""

    def __init__(
        self,
        client: KubeClient,
        resource: ResourceType,
        namespace: str | None = None,
        *,
        backoff: Backoff | None = None,
        packer: Packer | None = None,
    ) -> None:
        """`packer` is given where a handler keeps packed objects as well, so that there is one copy of each."""
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._backoff = backoff or Backoff(0.2, 10.0)
        self._packer = packer or Packer()
        self._packs_at_once = packer is not None
        self._most_at_hand = _AT_HAND if self._packs_at_once else _UNPACKED
        self._objects: dict[Key, bytes] = {}
        """All objects packed; empty for those that are at hand and have not been packed since they changed."""
        self._at_hand: dict[Key, Raw] = {}
        self._version: str | None = None
        self._synced = asyncio.Event()
        self._failing = False
        self._on_change: list[ChangeHandler] = []
        self._on_delete: list[DeleteHandler] = []

    @property
    def resource(self) -> ResourceType:
        """What this informer keeps."""
        return self._resource

    def on_change(self, handler: ChangeHandler) -> None:
        """Call `handler(new, old)` for each object added or changed from now on, and at once for those already here."""
        self._on_change.append(handler)
        for obj in self.items():
            self._notify(handler, obj, None)

    def on_delete(self, handler: DeleteHandler) -> None:
        """Call `handler(old)` for each object that is gone."""
        self._on_delete.append(handler)

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, namespace: str, name: str) -> Raw | None:
        """The object as last seen; never change it, it is shared."""
        key = (namespace, name)
        obj = self._at_hand.get(key)
        if obj is None:
            packed = self._objects.get(key)
            if packed is None:
                return None
            obj = self._packer.unpack(packed)
            self._lay_out(key, obj)
        return obj

    def items(self) -> Iterator[Raw]:
        """All objects as last seen, of those that are there now; one after the other, for together they take much
        memory."""
        for obj in [packed or self._at_hand[key] for key, packed in self._objects.items()]:
            yield self._packer.unpack(obj) if isinstance(obj, bytes) else obj

    @property
    def synced(self) -> bool:
        """Whether the collection has been listed once."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Return when the collection has been listed once and the handlers have seen all of it."""
        await self._synced.wait()

    async def run(self) -> None:
        """Follow the collection for ever. An API that is away, or answers with errors, is asked again and again with
        growing delays; the first failure and the recovery are logged."""
        while True:
            try:
                if self._version is None:
                    self._version = await self._list()
                    self._recovered()
                progressed = await self._watch(self._version)
            except _ExpiredError:
                # The copy stays readable while it is listed anew; only the version is void.
                self._version = None
                progressed = False
            except _MalformedError as error:
                # It would come again from the same version; what it was about is in a list as well.
                self._failed(error)
                self._version = None
                progressed = False
            except ApiError as error:
                self._failed(error)
                progressed = False
            if progressed:
                self._backoff.reset()
            else:
                await asyncio.sleep(self._backoff.next())

    # --- what the API says --------------------------------------------------------------------------------------

    async def _list(self) -> str:
        """Take in the whole collection, page by page; the version to watch from.

        The API makes the next page while the present one is taken in. What is gone is known, and told, when the last
        page is there.
        """
        gone = dict.fromkeys(self._objects)
        page = await self._page("")
        while True:
            try:
                version, after = page["metadata"]["resourceVersion"], page["metadata"].get("continue", "")
                following = asyncio.ensure_future(self._page(after)) if after else None
                try:
                    await self._take_in(page["items"], gone)
                except BaseException:
                    if following is not None:
                        await _give_up(following)
                    raise
            except (KeyError, TypeError, AttributeError) as error:
                what = f"list of {self._resource.plural}: not a List of objects with a resourceVersion"
                raise ApiError(200, "InvalidAnswer", what) from error
            if following is None:
                break
            page = await following
        for key in gone:
            self._deleted(key)
        self._synced.set()
        return str(version)

    async def _page(self, after: str) -> Raw:
        try:
            return await self._client.list(self._resource, self._namespace, limit=_PAGE, after=after)
        except ApiError as error:
            if error.status == _GONE:  # the pages took longer than the API remembers
                raise _ExpiredError from error
            raise

    async def _take_in(self, items: list[Raw], gone: dict[Key, None]) -> None:
        """Take in the objects of a page; each is let go of as soon as it is packed, for the next page comes."""
        items.reverse()
        while items:
            await asyncio.sleep(0)
            for _ in range(min(_TURN, len(items))):
                obj = items.pop()
                # The items of a list carry neither; consumers see the same shape whichever way an object came.
                obj.setdefault("apiVersion", self._resource.api_version)
                obj.setdefault("kind", self._resource.kind)
                gone.pop(_key(obj), None)
                self._changed(obj)

    async def _watch(self, version: str) -> bool:
        """One watch until the API ends it; whether it brought anything (so that it makes sense to go on at once)."""
        started = asyncio.get_running_loop().time()
        events = 0
        try:
            async with self._client.watch(self._resource, self._namespace, version, WATCH_SECONDS) as stream:
                self._recovered()
                async for line in self._lines(stream):
                    self._event(line)
                    events += 1
        except ApiError as error:
            if error.status == _GONE:
                raise _ExpiredError from error
            raise
        return events > 0 or asyncio.get_running_loop().time() - started > 1.0

    async def _lines(self, stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
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

    def _event(self, line: bytes) -> None:
        try:
            event = orjson.loads(line)
            kind, obj = event["type"], event["object"]
            if kind == "ERROR":
                status = obj.get("code") if isinstance(obj, dict) else None
                raise api_error(status if isinstance(status, int) else 500, obj)
            version = obj["metadata"]["resourceVersion"]
            if kind in ("ADDED", "MODIFIED"):
                self._changed(obj)
            elif kind == "DELETED":
                self._deleted(_key(obj), obj)
            elif kind != "BOOKMARK":
                raise _MalformedError(self._resource, f"unknown event type {kind!r}")
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            start = line[:120].decode("utf-8", "replace")
            raise _MalformedError(self._resource, f"malformed event {start!r}") from error
        self._version = version

    def _recovered(self) -> None:
        if self._failing:
            log.info("watching %s again", self._resource.plural)
        self._failing = False

    def _failed(self, error: ApiError) -> None:
        if not self._failing:
            log.warning("can't follow %s, trying again: %s", self._resource.plural, error)
        self._failing = True

    # --- the copy -----------------------------------------------------------------------------------------------

    def _changed(self, obj: Raw) -> None:
        key = _key(slim(obj))
        old = self.get(*key)
        if old is not None and _meta(old, "uid") != _meta(obj, "uid"):
            self._deleted(key)
            old = None
        if old is not None and _meta(old, "resourceVersion") == _meta(obj, "resourceVersion"):
            return
        self._objects[key] = self._packer.pack(obj) if self._packs_at_once else b""
        self._lay_out(key, obj)
        for handler in self._on_change:
            self._notify(handler, obj, old)

    def _deleted(self, key: Key, last: Raw | None = None) -> None:
        """Forget an object; `last` is what it was when it went, or else it is what was seen last."""
        known = self.get(*key)
        if known is None:
            return
        del self._objects[key]
        del self._at_hand[key]
        for handler in self._on_delete:
            self._notify(handler, slim(last) if last is not None else known)

    def _lay_out(self, key: Key, obj: Raw) -> None:
        """Have an object at hand, in the place of the one that is there for longest."""
        self._at_hand.pop(key, None)
        self._at_hand[key] = obj
        if len(self._at_hand) > self._most_at_hand:
            oldest = next(iter(self._at_hand))
            unused = self._at_hand.pop(oldest)
            if not self._objects[oldest]:
                self._objects[oldest] = self._packer.pack(unused)

    def _notify(self, handler: Callable[..., None], obj: Raw, *old: Raw | None) -> None:
        try:
            handler(obj, *old)
        except Exception:
            # One consumer's mistake about one object must not keep all others from hearing of all objects.
            name = "/".join(filter(None, _key(obj)))
            log.exception("a handler failed for %s %s", self._resource.kind, name)


async def _give_up(request: asyncio.Future[Raw]) -> None:
    """End a request whose answer nobody waits for any more; how it ends is of no interest."""
    request.cancel()
    await asyncio.wait([request])
    if not request.cancelled():
        request.exception()


def _key(obj: Raw) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _meta(obj: Raw, field: str) -> Any:
    return obj["metadata"].get(field)

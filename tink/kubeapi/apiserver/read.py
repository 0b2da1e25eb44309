"""Lists and watches: the verbs on many objects.

A list is read in pages as of one version, so it is consistent however long the client takes. Objects are passed on as
text, and parsed only if a selector needs their fields. A watch is the history since a version, followed by the changes
that the broadcaster delivers; a client cannot tell where the one ends and the other begins.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

import orjson

from tink.kubeapi.apiserver import conversion, errors
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.options import ListOptions, Target, labels_of, match_fields, parse_fields, parse_labels
from tink.kubeapi.apiserver.resources.registry import Resource
from tink.kubeapi.apiserver.store.history import MAX_PAGE_ROWS
from tink.kubeapi.apiserver.store.object_store import ObjectStore
from tink.kubeapi.apiserver.store.objects import Event, ExpiredError, Key, Page, StoredObject
from tink.kubeapi.schema.shapes import Raw

MAX_BACKLOG = 5_000
MAX_BACKLOG_BYTES = 32 << 20
"""A watch with more waiting events, or bytes of events, is ended."""


class Subscription:
    """The changes of one resource since the subscription, in one namespace or in all (None)."""

    def __init__(self, resource: str, namespace: str | None) -> None:
        self.resource = resource
        self.namespace = namespace
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self.ended = False

    def offer(self, event: Event) -> None:
        """Add a change. End the subscription if its backlog is full."""
        if self.ended or (self.namespace is not None and event.key.namespace != self.namespace):
            return
        self._events.append(event)
        self._bytes += len(event.body)
        if len(self._events) > MAX_BACKLOG or self._bytes > MAX_BACKLOG_BYTES:
            self.end()
        self._rouse()

    def end(self) -> None:
        """Stop, and drop the waiting changes."""
        self.ended = True
        self._events.clear()
        self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def next(self, timeout_s: float) -> list[Event]:
        """Wait at most `timeout_s` seconds for changes, and return all that wait. Empty: none, or ended."""
        if not self._events and not self.ended:
            # Hot path, once for each change and watch: this costs a third of asyncio.Event and asyncio.timeout.
            loop = asyncio.get_running_loop()
            self._wake = loop.create_future()
            timer = loop.call_later(timeout_s, self._rouse)
            try:
                await self._wake
            finally:
                timer.cancel()
        events = list(self._events)
        self._events.clear()
        self._bytes = 0
        return events


class Broadcaster:
    """Delivers each stored change to the open watches, on the event loop and in the order of versions.

    A watch that reads too slowly is ended, so that its backlog does not grow. Its client resumes from its last
    resourceVersion, out of the history.
    """

    def __init__(self) -> None:
        self._subscriptions: defaultdict[str, set[Subscription]] = defaultdict(set)
        self._closed = False
        self.version = 0  # The newest delivered version

    def publish(self, event: Event) -> None:
        """Deliver a change to the watches of its resource."""
        self.version = event.version
        for subscription in tuple(self._subscriptions.get(event.key.resource, ())):
            subscription.offer(event)

    def subscribe(self, resource: str, namespace: str | None) -> Subscription:
        """Start to collect changes. The caller removes the subscription."""
        subscription = Subscription(resource, namespace)
        if self._closed:
            subscription.end()
        else:
            self._subscriptions[resource].add(subscription)
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription."""
        found = self._subscriptions.get(subscription.resource)
        if found is not None:
            found.discard(subscription)
            if not found:
                del self._subscriptions[subscription.resource]

    def end(self, resource: str) -> None:
        """End the watches of a resource that is no longer served."""
        for subscription in tuple(self._subscriptions.get(resource, ())):
            subscription.end()

    def close(self) -> None:
        """End every watch, now and in the future."""
        self._closed = True
        for resource in tuple(self._subscriptions):
            self.end(resource)


WATCH_SECONDS = 3600  # Duration of a watch, in seconds, if the client names none
BOOKMARK_SECONDS = 60  # Interval of bookmarks, in seconds, in a watch without changes that wants bookmarks
MAX_LIST_BYTES = 64 << 20  # Size in bytes at which a list with `limit` ends early with a continue token


@dataclass(frozen=True)
class Selection:
    """Selected objects of a resource: in a namespace (None: in all), with a name, and matching the selectors."""

    resource: Resource
    namespace: str | None
    name: str | None
    matches: Callable[[Raw], bool] | None

    def selects(self, stored: StoredObject) -> bool:
        """Return True if a stored object of the resource and namespace is selected."""
        if self.name is not None and stored.name != self.name:
            return False
        return self.matches is None or self.matches(orjson.loads(stored.body))

    def holds(self, obj: Raw) -> bool:
        """Return True if an object of the resource and namespace is selected."""
        return (self.name is None or obj["metadata"]["name"] == self.name) and (
            self.matches is None or self.matches(obj)
        )


def select(resource: Resource, target: Target, options: ListOptions) -> Selection:
    """Compile the selectors of a request. Raises StatusError (400)."""
    known = resource.rules.selectable
    labels = parse_labels(options.labels)
    terms = parse_fields(options.fields, known, builtin=not resource.custom)
    namespace = target.namespace if resource.namespaced and target.namespace else None
    name = None
    rest = []
    for term in terms:
        if term[0] == "metadata.name" and term[2] and name is None:
            name = term[1]
        elif term[0] == "metadata.namespace" and term[2] and namespace is None:
            namespace = term[1]
        else:
            rest.append(term)
    fields = match_fields(rest, known) if rest else None

    def matches(obj: Raw) -> bool:
        return (labels is None or labels(labels_of(obj))) and (fields is None or fields(obj))

    return Selection(resource, namespace, name, matches if labels or fields else None)


@dataclass(frozen=True)
class Listing:
    """A list: its version, a continue token if `limit` cut it, and its objects as text, part by part.

    `remaining` is the number of objects that follow; 0 if there are none, or if selectors make it unknown.
    """

    version: int
    continues: str
    parts: AsyncIterator[list[bytes]]
    remaining: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch: ADDED, MODIFIED, DELETED or BOOKMARK, and the object as text."""

    type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class _Start:
    """The start of a list: the object before it, its version (None: now), and the number of objects after that
    object (None: unknown)."""

    after: tuple[str, str]
    version: int | None
    remaining: int | None = None


class Lists:
    """Lists and watches over a store."""

    def __init__(self, store: ObjectStore, broadcaster: Broadcaster) -> None:
        self._store = store
        self._broadcaster = broadcaster

    async def read(self, resource: Resource, target: Target, options: ListOptions) -> Listing:
        """Begin a list. Raises StatusError."""
        chosen = select(resource, target, options)
        start = await self._where(options)
        if chosen.name is not None and start.version is None:
            return await self._list_one(chosen, chosen.name)
        page = first = await self._page(chosen, start.after, start.version, options.limit)
        if not options.limit:
            return Listing(first.version, "", self._parts(chosen, first))
        items: list[StoredObject] = []
        size = 0
        while True:
            for stored in page.items:
                if not chosen.selects(stored):
                    continue
                if len(items) == options.limit or size > MAX_LIST_BYTES:
                    return await self._cut(chosen, start, first.version, items)
                items.append(stored)
                size += len(stored.body)
            if not page.more:
                return Listing(first.version, "", _once(resource, items))
            last = page.items[-1]
            if len(items) == options.limit and chosen.matches is None:
                return await self._cut(chosen, start, first.version, items)
            page = await self._page(chosen, (last.namespace, last.name), first.version, options.limit - len(items))

    async def _cut(self, chosen: Selection, start: _Start, version: int, items: list[StoredObject]) -> Listing:
        after = (items[-1].namespace, items[-1].name) if items else start.after
        remaining = None
        if chosen.matches is None and chosen.name is None:
            if start.remaining is not None and start.remaining > len(items):
                # As of one version, the previous page's number is still right. Counting would read every object.
                remaining = start.remaining - len(items)
            else:
                try:
                    remaining = await self._store.count(chosen.resource.key, chosen.namespace, after, version)
                except ExpiredError as error:
                    raise _too_old(after) from error
        return Listing(version, _token(version, after, remaining), _once(chosen.resource, items), remaining or 0)

    async def watch(
        self, resource: Resource, target: Target, options: ListOptions
    ) -> AsyncGenerator[list[Change], None]:
        """Watch objects until the timeout or the stop of the server. Raises StatusError (410) if it cannot resume."""
        chosen = select(resource, target, options)
        clock = asyncio.get_running_loop().time
        end = clock() + (max(0, options.timeout_s) if options.timeout_s else WATCH_SECONDS)
        subscription = self._broadcaster.subscribe(resource.key, chosen.namespace)
        try:
            position = int(options.version or 0)
            if position == 0 or options.initial_events is True:
                page = await self._page(chosen, ("", ""), None, 0)
                position = page.version
                async for part in self._parts(chosen, page):
                    yield [Change("ADDED", body) for body in part]
                if options.initial_events and options.bookmarks:
                    yield [_bookmark(resource, position, initial=True)]
            elif position > (newest := await self._store.current()):
                # Possible only after a loss of state: the client must not wait until versions reach this number again.
                raise errors.expired(f"resource version {position} is not known here: the newest is {newest}")
            while True:
                try:
                    events = await self._store.since(resource.key, chosen.namespace, position)
                except ExpiredError as error:
                    raise errors.expired(f"too old resource version: {position} ({error.oldest})") from error
                if not events:
                    break
                yield await self._changes(chosen, events)
                position = events[-1].version
            reported = position
            while not subscription.ended:
                events = await subscription.next(max(0.0, min(end - clock(), BOOKMARK_SECONDS)))
                changes = await self._changes(chosen, [event for event in events if event.version > position])
                # Everything up to this version was offered to the subscription, for this resource or another.
                position = max(position, events[-1].version if events else self._broadcaster.version)
                over = clock() >= end
                if changes:
                    reported = events[-1].version
                # A watch ends with a bookmark of its position, unless the client knows that already.
                if options.bookmarks and not subscription.ended and (position != reported if over else not events):
                    changes.append(_bookmark(resource, position))
                    reported = position
                if changes:
                    yield changes
                if over:
                    return
        finally:
            self._broadcaster.remove(subscription)

    # --- parts ---

    async def _where(self, options: ListOptions) -> _Start:
        if options.continues:
            if options.version not in ("", "0"):
                raise errors.bad_request("specifying resource version is not allowed when using continue")
            return _read_token(options.continues)
        wanted = int(options.version or 0)
        if wanted and wanted > (newest := await self._store.current()):
            raise errors.too_large_version(wanted, newest)
        # With a limit and without a resourceVersionMatch, the match is Exact ("Resource versions" in the Kubernetes API
        # concepts). Otherwise the present objects are never older than the requested version.
        exact = options.version_match == "Exact" or (options.limit > 0 and not options.version_match)
        return _Start(("", ""), wanted if exact and wanted else None)

    async def _page(self, chosen: Selection, after: tuple[str, str], version: int | None, limit: int) -> Page:
        try:
            rows = min(limit, MAX_PAGE_ROWS) if limit and chosen.matches is None else MAX_PAGE_ROWS
            return await self._store.page(
                chosen.resource.key, chosen.namespace, after=after, limit=rows, version=version
            )
        except ExpiredError as error:
            if after == ("", ""):
                raise errors.expired("The resourceVersion for the provided list is too old.") from error
            raise _too_old(after) from error

    async def _list_one(self, chosen: Selection, name: str) -> Listing:
        """List the object of one name, without a scan if its namespace is known."""
        resource = chosen.resource
        if resource.namespaced and chosen.namespace is None:
            page = await self._page(chosen, ("", ""), None, 0)
            return Listing(page.version, "", self._parts(chosen, page))
        version = await self._store.current()
        stored = await self._store.get(Key(resource.key, chosen.namespace or "", name))
        items = [stored] if stored is not None and chosen.selects(stored) else []
        return Listing(version, "", _once(resource, items))

    async def _parts(self, chosen: Selection, page: Page) -> AsyncIterator[list[bytes]]:
        while True:
            selected = [item for item in page.items if chosen.selects(item)]
            yield await conversion.as_served(chosen.resource, selected, listed=True)
            if not page.more:
                return
            last = page.items[-1]
            page = await self._page(chosen, (last.namespace, last.name), page.version, 0)

    @staticmethod
    async def _changes(chosen: Selection, events: list[Event]) -> list[Change]:
        """Convert events for the watch: an object that begins or ceases to match is added or deleted."""
        seen: list[tuple[str, Event | StoredObject]] = []
        for event in events:
            if chosen.matches is None:
                if chosen.name is None or event.key.name == chosen.name:
                    seen.append((event.type, event))
                continue
            is_in = event.type != "DELETED" and chosen.holds(event.object)
            was_in = event.before is not None and chosen.holds(event.before)
            if is_in:
                seen.append(("MODIFIED" if was_in else "ADDED", event))
            elif was_in and event.type == "DELETED":
                seen.append(("DELETED", event))
            elif was_in and event.prior is not None:
                gone = orjson.loads(event.prior)
                gone["metadata"]["resourceVersion"] = str(event.version)
                last = StoredObject(event.key.namespace, event.key.name, event.version, orjson.dumps(gone))
                seen.append(("DELETED", last))
        bodies = await conversion.as_served(chosen.resource, [item for _, item in seen])
        return [Change(kind, body) for (kind, _), body in zip(seen, bodies, strict=True)]


async def watch_lines(
    watch: AsyncGenerator[list[Change], None], body_of: Callable[[Change], bytes] = lambda change: change.body
) -> AsyncGenerator[list[bytes], None]:
    """Yield the events of a watch as lines of JSON. Events that arrive together are in one list."""
    try:
        async for changes in watch:
            yield [b'{"type":"' + each.type.encode() + b'","object":' + body_of(each) + b"}\n" for each in changes]
    except StatusError as error:
        # After a valid request, Kubernetes reports errors inside the watch.
        yield [orjson.dumps({"type": "ERROR", "object": error.body()}) + b"\n"]
    finally:
        await watch.aclose()


async def _once(resource: Resource, items: list[StoredObject]) -> AsyncIterator[list[bytes]]:
    yield await conversion.as_served(resource, items, listed=True)


def _bookmark(resource: Resource, version: int, *, initial: bool = False) -> Change:
    fields: Raw = {"resourceVersion": str(version)}
    if initial:
        fields["annotations"] = {"k8s.io/initial-events-end": "true"}
    obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": fields}
    return Change("BOOKMARK", orjson.dumps(obj))


def _token(version: int, after: tuple[str, str], remaining: int | None = None) -> str:
    token: Raw = {"v": "meta.k8s.io/v1", "rv": version, "start": after}
    if remaining is not None:
        token["remaining"] = remaining
    return base64.urlsafe_b64encode(orjson.dumps(token)).decode()


def _too_old(after: tuple[str, str]) -> StatusError:
    """Return the refusal of a token whose version is gone, with a token that continues with the present objects."""
    error = errors.expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
        "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
        "modified, or deleted between the time the first chunk was returned and now may show up in the list."
    )
    error.metadata["continue"] = _token(0, after)
    return error


def _read_token(token: str) -> _Start:
    """Parse a continue token. Raises StatusError (400)."""
    try:
        read = orjson.loads(base64.urlsafe_b64decode(token.encode()))
        match read:
            case {"rv": int(version), "start": [str(namespace), str(name)]} if version >= 0:
                remaining = read.get("remaining")
                known = remaining if version and isinstance(remaining, int) else None
                return _Start((namespace, name), version or None, known)
    except (ValueError, binascii.Error):
        pass  # rejected below, like a readable token with other content
    raise errors.bad_request("invalid continue token: continue key is not valid: it is not one that this server gave")

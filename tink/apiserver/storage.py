"""The state of the API server: objects and their history, in one SQLite file (`statefile`), for the event loop.

    write  -> queue -> one thread, one connection: what waits together shares one transaction (group commit), so that
                       one disk flush serves many writers
    read   -> recently written and read objects are answered at once, out of memory
           -> queues -> two threads with connections of their own, one for single objects and one for lists: a long
                       list stands before nobody, and no read waits for the disk that a write waits for

What readers may rely on: a read sees every write that was answered before the read was asked for, and nothing that is
not on the disk or that memory and watches have not been told. A read that was faster than the news of a commit waits
for it. Resource versions are given out on the event loop, in the order of the queue, so that the text can be made
before the write.

A checkpoint copies what was written from the write-ahead log into the file. That takes two flushes, so a thread of its
own does it while writes go on; only what that leaves over when writes never cease is done between two writes.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tink.apiserver import statefile
from tink.apiserver.errors import ApiServerError
from tink.apiserver.statefile import (
    PAGE_ROWS,
    Event,
    ExpiredError,
    Key,
    MismatchError,
    Owned,
    Page,
    Reader,
    Stored,
    Write,
    Writer,
)

__all__ = [
    "Event",
    "ExpiredError",
    "Key",
    "MismatchError",
    "Owned",
    "Page",
    "StorageError",
    "Store",
    "Stored",
    "Write",
]

log = logging.getLogger(__name__)

T = TypeVar("T")

BATCH = 256
"""A transaction takes no more writes when it has so many."""
RECENT_BYTES = 16 << 20
"""So much text of recent objects is kept in memory."""
_ENTRY_BYTES = 500
"""What an entry costs beside its text, roughly."""
CHECKPOINT_BYTES = 2 << 20
"""A checkpoint is begun after so much text was written."""


class StorageError(Exception):
    """SQLite could not do it: disk full, input/output error."""


class Recent:
    """Objects that were written or read lately, by key; None for those that were deleted lately. Bounded in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._entries: dict[Key, Stored | None] = {}
        self._asked: dict[Key, object] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Stored | None:
        """Give an object that is here, and keep it longer than those that nobody asks for."""
        found = self._entries[key] = self._entries.pop(key)
        return found

    def ask(self, key: Key) -> object:
        """Say that a read of an object begins; what it brings is kept with the token that this gives."""
        return self._asked.setdefault(key, object())

    def learn(self, key: Key, token: object, found: Stored | None) -> None:
        """Keep what a read brought, unless the object was written meanwhile: then it may be what was there before."""
        if self._asked.get(key) is token:
            del self._asked[key]
            if found is not None:
                self._put(key, found)

    def forget(self, key: Key, token: object) -> None:
        """End a read that brought nothing."""
        if self._asked.get(key) is token:
            del self._asked[key]

    def change(self, event: Event) -> None:
        """Take a change that is on the disk."""
        key = event.key
        self._asked.pop(key, None)
        gone = event.type == "DELETED"
        self._put(key, None if gone else Stored(key.namespace, key.name, event.version, event.body))

    def _put(self, key: Key, found: Stored | None) -> None:
        entries = self._entries
        if key in entries:
            self._size -= _weight(entries.pop(key))
        entries[key] = found
        self._size += _weight(found)
        while self._size > self._limit:
            oldest = next(iter(entries))
            self._size -= _weight(entries.pop(oldest))


def _weight(found: Stored | None) -> int:
    return _ENTRY_BYTES + (len(found.body) if found is not None else 0)


@dataclass(slots=True)
class _Question:
    future: asyncio.Future[Any]
    ask: Callable[[Reader], Any]


@dataclass(slots=True)
class _Change:
    future: asyncio.Future[Event]
    write: Write


_Questions = queue.SimpleQueue[_Question | None]
_Outcome = tuple[asyncio.Future[Event], Event | Exception]


class Store:
    """Objects and their history. All methods are to be called on the event loop that opened it.

    `on_commit` is called on the event loop for every change that is on the disk, in the order of versions, before the
    writer gets its answer. `history` is the number of changes that can be watched from and listed back to.
    """

    def __init__(
        self, path: Path, on_commit: Callable[[Event], None], *, history: int = 10_000, recent: int = RECENT_BYTES
    ) -> None:
        self._path = path
        self._on_commit = on_commit
        self._keep = history
        self._recent = Recent(recent)
        self._gathered: list[_Change] = []
        self._changes: queue.SimpleQueue[list[_Change] | None] = queue.SimpleQueue()
        self._singles: _Questions = queue.SimpleQueue()
        self._lists: _Questions = queue.SimpleQueue()
        self._checkpoint = threading.Event()
        self._failing = False
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._next = 0
        self._told = 0
        """The newest version that memory and `on_commit` know."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._lock: int | None = None

    async def open(self) -> None:
        """Open or create the file. Raises ApiServerError when it cannot be used, or another process uses it."""
        self._lock_file()
        self._loop = asyncio.get_running_loop()
        try:
            self._next = self._told = await self._start("writes", self._write)
            await self._start("reads", partial(self._read, self._singles))
            await self._start("lists", partial(self._read, self._lists))
            await self._start("checkpoints", self._move)
        except (sqlite3.Error, OSError) as error:
            await self.close()
            raise ApiServerError(
                f"{self._path}: cannot be used as state: {error}; move it away to begin anew"
            ) from error

    async def close(self) -> None:
        """Finish what was asked for, then close the file. Nothing may be asked afterwards."""
        if self._closing or self._lock is None:
            return
        self._closing = True
        if self._gathered:
            self._hand_over()
        self._singles.put(None)
        self._lists.put(None)
        self._checkpoint.set()
        # The writer closes after all others: only the last connection to close moves the write-ahead log into the file,
        # and of two that close at once neither is the last.
        for thread in self._threads[1:]:
            await asyncio.to_thread(thread.join)
        self._changes.put(None)
        for thread in self._threads[:1]:
            await asyncio.to_thread(thread.join)
        self._unlock_file()

    def next_version(self) -> int:
        """Give the resourceVersion for a write. The write must be handed over without awaiting in between."""
        self._next += 1
        return self._next

    async def get(self, key: Key) -> Stored | None:
        """Read one object."""
        if key in self._recent:
            return self._recent.get(key)
        token = self._recent.ask(key)
        try:
            found = await self._ask(self._singles, lambda reader: reader.get(key))
            if found is not None:
                await self._news(found.version)
        except BaseException:
            self._recent.forget(key, token)
            raise
        self._recent.learn(key, token, found)
        return found

    async def write(self, change: Write) -> Event:
        """Make a change and wait until it is on the disk. Raises MismatchError, StorageError."""
        if self._closing:
            raise StorageError("the API server is stopping")
        future: asyncio.Future[Event] = self._loop.create_future()
        if not self._gathered:
            # What other requests of this turn of the loop write goes with it: fewer flushes, fewer changes of threads.
            self._loop.call_soon(self._hand_over)
        self._gathered.append(_Change(future, change))
        return await future

    async def page(
        self,
        resource: str,
        namespace: str | None,
        *,
        after: tuple[str, str] = ("", ""),
        limit: int = PAGE_ROWS,
        version: int | None = None,
    ) -> Page:
        """Read objects in the order of namespace and name, as of `version` (None: now). Raises ExpiredError."""
        page = await self._ask(self._lists, lambda reader: reader.page(resource, namespace, after, limit, version))
        await self._news(page.version)
        return page

    async def count(self, resource: str, namespace: str | None, after: tuple[str, str], version: int) -> int:
        """Count the objects that a list as of `version` has after one of them. Raises ExpiredError."""
        return await self._ask(self._lists, lambda reader: reader.count(resource, namespace, after, version))

    async def since(self, resource: str, namespace: str | None, version: int, limit: int = PAGE_ROWS) -> list[Event]:
        """Read the changes after `version`, the oldest first, at most `limit`; none when there are no more.

        Raises ExpiredError when the history does not reach back so far.
        """
        events = await self._ask(self._lists, lambda reader: reader.since(resource, namespace, version, limit))
        await self._news(events[-1].version if events else 0)
        return events

    async def dependents(self, uid: str) -> list[Key]:
        """Give the objects whose ownerReferences name `uid`, in the order of resource, namespace and name."""
        return await self._ask(self._singles, lambda reader: reader.dependents(uid))

    async def owned(self, after: Owned | None = None, limit: int = PAGE_ROWS) -> list[Owned]:
        """Give what has owners, in the order of the owners' uids; at most `limit` that follow `after`.

        An object with two owners comes twice. An empty list: there are no more.
        """
        return await self._ask(self._singles, lambda reader: reader.owned(after, limit))

    async def current(self) -> int:
        """Give the newest version that is on the disk."""
        newest = await self._ask(self._singles, lambda reader: reader.newest())
        await self._news(newest)
        return newest

    # --- event loop side ---

    async def _start(self, name: str, run: Callable[[asyncio.Future[int]], None]) -> int:
        opened: asyncio.Future[int] = self._loop.create_future()
        thread = threading.Thread(target=run, args=(opened,), name=f"apiserver-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)
        return await opened

    async def _ask(self, questions: _Questions, ask: Callable[[Reader], T]) -> T:
        if self._closing:
            raise StorageError("the API server is stopping")
        future: asyncio.Future[T] = self._loop.create_future()
        questions.put(_Question(future, ask))
        return await future

    async def _news(self, version: int) -> None:
        """Wait until the commit of a version that a read has seen is known here. It is on its way."""
        if version > self._told:
            told: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((version, told))
            await told

    def _hand_over(self) -> None:
        self._changes.put(self._gathered)
        self._gathered = []

    def _deliver(self, outcomes: list[_Outcome]) -> None:
        for future, outcome in outcomes:
            if isinstance(outcome, Event):
                self._recent.change(outcome)
                try:
                    self._on_commit(outcome)
                except Exception:  # the write is done, and those that wait for others must get their answers
                    log.exception("state %s: change %d could not be handed on", self._path, outcome.version)
                self._told = outcome.version
            _resolve(future, outcome)
        if self._waiting:
            for version, told in self._waiting:
                if version <= self._told:
                    _resolve(told, None)
            self._waiting = [wait for wait in self._waiting if not wait[1].done()]

    def _lock_file(self) -> None:
        path = self._path.with_suffix(".lock")
        try:
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._unlock_file()
            raise ApiServerError(f"{self._path}: another API server is using it; stop that one first") from error
        except OSError as error:
            raise ApiServerError(f"{path}: cannot be written: {error.strerror}") from error

    def _unlock_file(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- the threads ---

    def _open(self, opened: asyncio.Future[int], use: Callable[[sqlite3.Connection], T]) -> T | None:
        """Open the file for a thread; None when it cannot be, which is then said to who waits for `opened`."""
        db = None
        try:
            db = statefile.connect(self._path)
            return use(db)
        except (sqlite3.Error, OSError) as error:
            if db is not None:
                db.close()
            self._loop.call_soon_threadsafe(_resolve, opened, error)
        return None

    def _write(self, opened: asyncio.Future[int]) -> None:
        def use(db: sqlite3.Connection) -> tuple[sqlite3.Connection, Writer]:
            statefile.prepare(db, self._path)
            return db, Writer(db, self._keep)

        if (found := self._open(opened, use)) is None:
            return
        db, writer = found
        self._loop.call_soon_threadsafe(_resolve, opened, writer.newest)
        written = 0
        stopping = False
        while not stopping:
            batch, stopping = self._batch()
            if batch:
                self._loop.call_soon_threadsafe(self._deliver, self._commit(writer, batch))
            written += sum(len(change.write.body) for change in batch)
            if written > CHECKPOINT_BYTES:
                written = 0
                self._checkpoint.set()
                if statefile.log_is_long(self._path):
                    self._checkpointed(db)
        db.close()

    def _batch(self) -> tuple[list[_Change], bool]:
        """Take the changes that wait, at least one; and whether they were the last."""
        batch: list[_Change] = []
        changes = self._changes.get()
        while changes is not None:
            batch += changes
            if len(batch) >= BATCH or self._changes.empty():
                return batch, False
            changes = self._changes.get()
        return batch, True

    def _commit(self, writer: Writer, batch: list[_Change]) -> list[_Outcome]:
        try:
            done = writer.commit([change.write for change in batch])
        except Exception as error:  # whatever it is: the next write may be a better one
            if not self._failing:
                # A stack only for what is a fault of this program; and once, not for each write while a disk is full.
                log.error("state %s: writes fail: %s", self._path, error, exc_info=not isinstance(error, sqlite3.Error))
            self._failing = True
            failure = StorageError(f"the state could not be written: {error}")
            return [(change.future, failure) for change in batch]
        if self._failing:
            log.info("state %s: writes are possible again", self._path)
            self._failing = False
        return [(change.future, outcome) for change, outcome in zip(batch, done, strict=True)]

    def _read(self, questions: _Questions, opened: asyncio.Future[int]) -> None:
        if (reader := self._open(opened, Reader)) is None:
            return
        self._loop.call_soon_threadsafe(_resolve, opened, 0)
        while (question := questions.get()) is not None:
            try:
                answer = question.ask(reader)
            except (ExpiredError, StorageError) as error:
                answer = error
            except sqlite3.Error as error:
                log.error("state %s: a read failed: %s", self._path, error)
                answer = StorageError(f"the state could not be read: {error}")
            except Exception as error:
                log.exception("state %s: a read failed", self._path)
                answer = StorageError(f"the state could not be read: {error}")
            self._loop.call_soon_threadsafe(_resolve, question.future, answer)
        reader.close()

    def _move(self, opened: asyncio.Future[int]) -> None:
        """Checkpoint whenever enough was written, and once at the start: a killed server leaves a long log."""
        if (db := self._open(opened, lambda db: db)) is None:
            return
        self._loop.call_soon_threadsafe(_resolve, opened, 0)
        while not self._closing:
            self._checkpointed(db)
            self._checkpoint.wait()
            self._checkpoint.clear()
        db.close()

    def _checkpointed(self, db: sqlite3.Connection) -> None:
        try:
            statefile.checkpoint(db)
        except sqlite3.Error as error:  # what is in the log is safe there; a later checkpoint moves it
            log.warning("state %s: no checkpoint could be made: %s", self._path, error)


def _resolve(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.done():  # the client has gone away; what it asked for is done all the same
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)

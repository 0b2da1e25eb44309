"""The state of the API server: objects and their history, in one SQLite file (`statefile`, `layout`), for the event
loop.

    write  -> queue -> one thread, one connection: what waits together shares one transaction (group commit), so that
                       one disk flush serves many writers
    read   -> recently written and read objects are answered at once, out of memory
           -> queues -> two threads with connections of their own, one for single objects and one for lists: a long
                       list stands before nobody, and no read waits for the disk that a write waits for

What readers may rely on: a read sees every write that was answered before the read was asked for, and nothing that is
not on the disk or that memory and watches have not been told. A read that was faster than the news of a commit waits
for it. Resource versions are given out on the event loop, in the order of the queue, so that the text can be made
before the write.

A state that is not whole is refused before anything is served (`soundness`). One that can't be written is read
(`reading`): writes are refused, and tried again until they work. Each commit leaves its version beside it (`newest`).
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tink.apiserver.errors import ApiServerError
from tink.apiserver.store import layout, soundness
from tink.apiserver.store.checkpoints import Checkpoints
from tink.apiserver.store.newest import Newest, place
from tink.apiserver.store.reading import ReadOnly, why
from tink.apiserver.store.recent import RECENT_BYTES, Recent
from tink.apiserver.store.statefile import (
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
RETRY_S = 5.0
"""After so many seconds it is tried again to write a state that could not be written."""


class StorageError(Exception):
    """SQLite could not do it: disk full, input/output error."""


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
    writer gets its answer. `history` is the number of changes that can be watched from and listed back to. `beside` are
    files that are made after the state only: where they are and it is not, it has been lost.
    """

    def __init__(
        self,
        path: Path,
        on_commit: Callable[[Event], None],
        *,
        history: int = 10_000,
        recent: int = RECENT_BYTES,
        beside: Sequence[Path] = (),
    ) -> None:
        self._path = path
        self._beside = beside
        self._on_commit = on_commit
        self._keep = history
        self._recent = Recent(recent)
        self._gathered: list[_Change] = []
        self._changes: queue.SimpleQueue[list[_Change] | None] = queue.SimpleQueue()
        self._singles: _Questions = queue.SimpleQueue()
        self._lists: _Questions = queue.SimpleQueue()
        self._checkpoints = Checkpoints(path)
        self._failure = ""
        """Why the last commit failed; empty when it did not."""
        self._writing: list[threading.Thread] = []
        self._reading: list[threading.Thread] = []
        self._source: ReadOnly | None = None
        self._healing: asyncio.Task[None] | None = None
        self._refusal = ""
        """Why the state was opened for reading only; empty when it was not."""
        self._closing = False
        self._next = 0
        self._told = 0
        """The newest version that memory and `on_commit` know."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._lock: int | None = None

    async def open(self) -> None:
        """Open or create the file. One that can't be written is opened for reading, see `refusal`.

        Raises ApiServerError when it is damaged or none of ours, or another process uses it.
        """
        self._lock_file()
        self._loop = asyncio.get_running_loop()
        try:
            self._source = await asyncio.to_thread(self._examine)
            try:
                await self._start_writing()
            except (sqlite3.OperationalError, OSError) as error:
                if self._source is None:
                    raise
                await self._only_read(self._source, error)
            await self._start(self._reading, "reads", partial(self._read, self._singles))
            await self._start(self._reading, "lists", partial(self._read, self._lists))
            self._give_up_source()  # a copy need not be seen any more; they have it open
        except soundness.DamagedError as error:
            await self.close()
            raise ApiServerError(
                f"{self._path}: {error}. Nothing was changed; docs/api.md, 'When the state is damaged', has what to do"
            ) from error
        except (sqlite3.Error, OSError) as error:
            await self.close()
            raise ApiServerError(
                f"{self._path}: cannot be used as state: {why(self._path, error)}; move it away to begin anew"
            ) from error

    @property
    def refusal(self) -> str:
        """Why writes are refused at the moment; empty when they are not."""
        return self._refusal or self._failure

    async def close(self) -> None:
        """Finish what was asked for, then close the file. Nothing may be asked afterwards."""
        if self._closing or self._lock is None:
            return
        self._closing = True
        if self._healing is not None:
            self._healing.cancel()
            await asyncio.wait([self._healing])
        if self._gathered:
            self._hand_over()
        self._singles.put(None)
        self._lists.put(None)
        for thread in self._reading:
            await asyncio.to_thread(thread.join)
        await self._stop_writing()
        self._give_up_source()
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
        if self._refusal:
            raise StorageError(f"the state can only be read now: {self._refusal}")
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

    async def _start(
        self, threads: list[threading.Thread], name: str, run: Callable[[asyncio.Future[int]], None]
    ) -> int:
        opened: asyncio.Future[int] = self._loop.create_future()
        thread = threading.Thread(target=run, args=(opened,), name=f"apiserver-{name}", daemon=True)
        thread.start()
        threads.append(thread)
        return await opened

    async def _start_writing(self) -> None:
        """Raises sqlite3.Error, OSError."""
        self._changes = queue.SimpleQueue()
        self._checkpoints = Checkpoints(self._path)
        try:
            self._next = self._told = await self._start(self._writing, "writes", self._write)
            await self._start(self._writing, "checkpoints", self._move)
        except BaseException:
            await self._stop_writing()
            raise

    async def _stop_writing(self) -> None:
        # The writer closes after all others: only the last connection to close moves the write-ahead log into the file,
        # and of two that close at once neither is the last.
        self._checkpoints.end()
        for thread in self._writing[1:]:
            await asyncio.to_thread(thread.join)
        self._changes.put(None)
        for thread in self._writing[:1]:
            await asyncio.to_thread(thread.join)
        self._writing = []

    async def _only_read(self, source: ReadOnly, error: Exception) -> None:
        """Read a state that can't be written because of `error`. Raises sqlite3.Error, OSError."""
        await asyncio.to_thread(source.find)  # the way may have been lost with the attempt to write
        with closing(source.connect()) as db:
            found = layout.layout_of(db)
            if found != layout.LAYOUT:
                raise error  # it must be brought to today's layout, and can't be
            self._next = self._told = layout.newest_in(db)
        self._refusal = why(self._path, error)
        log.error(
            "state %s: it can only be read: %s. Writes are refused; they are tried again every %.0f s",
            *(self._path, self._refusal, RETRY_S),
        )
        self._healing = asyncio.create_task(self._heal(), name="apiserver state")

    async def _heal(self) -> None:
        """Try to write again until it works."""
        while self._refusal:
            await asyncio.sleep(RETRY_S)
            try:
                await self._start_writing()
            except (sqlite3.Error, OSError) as error:
                self._refusal = why(self._path, error)
                continue
            try:
                # What they have open does not see what is written from now on.
                for questions in (self._singles, self._lists):
                    await self._ask(questions, lambda reader: reader.use(layout.connect(self._path)))
            except StorageError as error:
                self._refusal = str(error)
                await self._stop_writing()
                continue
            self._refusal = ""
            log.info("state %s: writes are possible again", self._path)

    def _give_up_source(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source = None

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
            try:
                self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                self._lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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

    def _examine(self) -> ReadOnly | None:
        """See that the state is whole, and give a way to read it; None: there is none yet.

        Raises DamagedError, sqlite3.Error, OSError.
        """
        if not soundness.survey(self._path, self._beside):
            layout.make(self._path)
            return None
        source = ReadOnly(self._path)
        try:
            soundness.look_through(source, self._path, self._beside)
        except BaseException:
            source.close()
            raise
        return source

    def _open(
        self,
        opened: asyncio.Future[int],
        connect: Callable[[], sqlite3.Connection],
        use: Callable[[sqlite3.Connection], T],
    ) -> T | None:
        """Open the file for a thread; None when it cannot be, which is then said to who waits for `opened`."""
        db = None
        try:
            db = connect()
            return use(db)
        except (sqlite3.Error, OSError) as error:
            if db is not None:
                db.close()
            self._loop.call_soon_threadsafe(_resolve, opened, error)
        return None

    def _write(self, opened: asyncio.Future[int]) -> None:
        changes = self._changes

        def use(db: sqlite3.Connection) -> tuple[sqlite3.Connection, Writer, Newest]:
            layout.prepare(db, self._path)
            writer = Writer(db, self._keep)
            return db, writer, Newest(place(self._path), writer.newest)

        if (found := self._open(opened, partial(layout.connect, self._path), use)) is None:
            return
        db, writer, newest = found
        self._loop.call_soon_threadsafe(_resolve, opened, writer.newest)
        stopping = False
        while not stopping:
            batch, stopping = _batch(changes)
            if batch:
                self._loop.call_soon_threadsafe(self._deliver, self._commit(writer, newest, batch))
                self._checkpoints.wrote(sum(len(change.write.body) for change in batch), db)
        newest.close()
        db.close()

    def _commit(self, writer: Writer, newest: Newest, batch: list[_Change]) -> list[_Outcome]:
        try:
            done = writer.commit([change.write for change in batch])
        except Exception as error:  # whatever it is: the next write may be a better one
            reason = why(self._path, error)
            if not self._failure:
                # A stack only for what is a fault of this program; and once, not for each write while a disk is full.
                fault = not isinstance(error, sqlite3.Error)
                log.error("state %s: writes fail: %s", self._path, reason, exc_info=fault)
            self._failure = reason
            failure = StorageError(f"the state could not be written: {reason}")
            return [(change.future, failure) for change in batch]
        newest.note(writer.newest)
        if self._failure:
            log.info("state %s: writes are possible again", self._path)
            self._failure = ""
        return [(change.future, outcome) for change, outcome in zip(batch, done, strict=True)]

    def _read(self, questions: _Questions, opened: asyncio.Future[int]) -> None:
        source = self._source if self._refusal else None
        connect = partial(layout.connect, self._path) if source is None else source.connect
        if (reader := self._open(opened, connect, Reader)) is None:
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
        if (db := self._open(opened, partial(layout.connect, self._path), lambda db: db)) is None:
            return
        self._loop.call_soon_threadsafe(_resolve, opened, 0)
        self._checkpoints.run(db)
        db.close()


def _batch(changes: queue.SimpleQueue[list[_Change] | None]) -> tuple[list[_Change], bool]:
    """Take the changes that wait, at least one; and whether they were the last."""
    batch: list[_Change] = []
    found = changes.get()
    while found is not None:
        batch += found
        if len(batch) >= BATCH or changes.empty():
            return batch, False
        found = changes.get()
    return batch, True


def _resolve(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.done():  # the client has gone away; what it asked for is done all the same
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)

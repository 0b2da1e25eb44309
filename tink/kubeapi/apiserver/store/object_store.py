"""The state of the API server for the event loop: objects and their history, in one SQLite file.

    write  -> queue -> one thread, one connection: waiting changes share one transaction (group commit), so that one
                       disk flush serves many writers
    read   -> recently written and read objects are answered at once, from memory (`ObjectCache`)
           -> queues -> two threads with their own connections, one for single objects and one for lists: a long list
                       blocks no other read, and no read waits for a write's flush

Guarantees for readers: a read sees every write that was answered before the read began, and nothing that is not on the
disk, or not yet known to memory and watches. A read that is faster than the notice of a commit waits for it.
resourceVersions are assigned on the event loop, in the order of the queue, so that the text can be made before the
write.

A damaged state is refused before it is served. A state that can't be written is read, and writes are retried until they
work (`integrity`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import shlex
import sqlite3
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from tink.files.data_directory import disk_refuses
from tink.kubeapi.apiserver.errors import ApiServerError
from tink.kubeapi.apiserver.store import database, integrity
from tink.kubeapi.apiserver.store.history import MAX_PAGE_ROWS, StateReader, StateWriter
from tink.kubeapi.apiserver.store.integrity import HighWaterMark, ReadOnlyDatabase, describe, high_water_mark_path
from tink.kubeapi.apiserver.store.objects import (
    MAX_CACHE_BYTES,
    Event,
    ExpiredError,
    Key,
    MismatchError,
    ObjectCache,
    OwnedObject,
    Page,
    StorageError,
    StoredObject,
    Write,
)

log = logging.getLogger(__name__)

CHECKPOINT_BYTES = 2 << 20  # Amount of written text after which a checkpoint begins
CHECKPOINT_SECONDS = 5.0  # Maximum time between a write and a checkpoint


class Checkpointer:
    """Moves the write-ahead log into the file, in its own thread beside the writes: a checkpoint takes two flushes.

    After it the file alone is a complete copy. The writer itself only moves what remains when writes never pause.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = 0
        self._failing = False
        self._wanted = threading.Event()  # there is something to move
        self._due = threading.Event()  # it must be moved at once
        self._ending = False

    def wrote(self, size: int, db: sqlite3.Connection) -> None:
        """Record a commit of so many bytes. Called by the writer with its connection."""
        if not self._wanted.is_set():
            self._wanted.set()
        self._written += size
        if self._written > CHECKPOINT_BYTES:
            self._written = 0
            self._due.set()
            # Checkpoints have not reached the end of the log for a long time.
            if database.wal_path(self._path).stat().st_size > database.MAX_WAL_BYTES:
                self._make(db)

    def run(self, db: sqlite3.Connection) -> None:
        """Make checkpoints until the end, the first at once: a killed server leaves a long log."""
        while not self._ending:
            self._wanted.clear()
            self._due.clear()
            with suppress(OSError):  # flush the high-water mark, if the disk allows it
                handle = os.open(high_water_mark_path(self._path), os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
            if not self._make(db):
                self._wanted.set()
            self._wanted.wait()
            self._due.wait(CHECKPOINT_SECONDS)

    def end(self) -> None:
        """Make `run` return."""
        self._ending = True
        self._wanted.set()
        self._due.set()

    def _make(self, db: sqlite3.Connection) -> bool:
        """Make a checkpoint. Return False if a reader still needs part of the log, or if the disk fails."""
        try:
            whole = database.checkpoint(db)
        except sqlite3.Error as error:  # the log is safe; a later checkpoint moves it
            if not self._failing:
                log.warning("state %s: no checkpoint could be made: %s", self._path, describe(self._path, error))
            self._failing = True
            return False
        self._failing = False
        return whole


T = TypeVar("T")
P = ParamSpec("P")

MAX_BATCH_WRITES = 256  # Maximum number of writes in a transaction
RETRY_SECONDS = 5.0  # Interval between attempts to write a state that could not be written


_Connect = Callable[[], sqlite3.Connection]
_Work = Callable[[sqlite3.Connection], Iterator[int]]
_QueuedRead = tuple[asyncio.Future[Any], Callable[[StateReader], Any]]
_QueuedWrite = tuple[asyncio.Future[Event], Write]
_ReadQueue = queue.SimpleQueue[_QueuedRead | None]
_Outcome = tuple[asyncio.Future[Event], Event | Exception]


class ObjectStore:
    """Objects and their history. All methods are called on the event loop that opened it.

    `on_commit` is called on the event loop for each stored change, in the order of versions, before the writer gets its
    answer. `history` is the number of changes that can be watched and listed back to. `beside` are files that are
    created after the state only: if they exist without it, it has been lost.
    """

    def __init__(
        self,
        path: Path,
        on_commit: Callable[[Event], None],
        *,
        history: int = 10_000,
        cache_bytes: int = MAX_CACHE_BYTES,
        beside: Sequence[Path] = (),
    ) -> None:
        self._path = path
        self._beside = beside
        self._on_commit = on_commit
        self._history = history
        self._cache = ObjectCache(cache_bytes)
        self._pending: list[_QueuedWrite] = []
        self._changes: queue.SimpleQueue[list[_QueuedWrite] | None] = queue.SimpleQueue()
        self._object_reads: _ReadQueue = queue.SimpleQueue()
        self._list_reads: _ReadQueue = queue.SimpleQueue()
        self._checkpoints = Checkpointer(path)
        self._failure = ""  # why the last commit failed
        self._writing: list[threading.Thread] = []
        self._reading: list[threading.Thread] = []
        self._source: ReadOnlyDatabase | None = None
        self._retrying: asyncio.Task[None] | None = None
        self._refusal = ""
        self._closing = False
        self._next = 0
        self._delivered = 0  # The newest version that memory and `on_commit` have received
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._lock: int | None = None

    async def open(self) -> None:
        """Open or create the file. One that can't be written is opened for reading, see `refusal`. Raises
        ApiServerError if it is damaged or not ours, or if another process uses it."""
        path = self._path.with_suffix(".lock")
        try:
            self._lock = database.lock(path)
        except BlockingIOError as error:
            raise ApiServerError(f"{self._path}: another API server is using it; stop that one first") from error
        except OSError as error:
            raise ApiServerError(f"{path}: cannot be written: {error.strerror}") from error
        self._loop = asyncio.get_running_loop()
        try:
            self._source = await asyncio.to_thread(self._check_integrity)
            try:
                await self._start_writing()
            except (sqlite3.OperationalError, OSError) as error:
                if self._source is None:
                    raise
                await self._fall_back_to_read_only(self._source, error)
            source = self._source if self._refusal else None
            connect = partial(database.connect, self._path) if source is None else source.connect
            await self._start(self._reading, "reads", connect, partial(self._read, self._object_reads))
            await self._start(self._reading, "lists", connect, partial(self._read, self._list_reads))
            self._close_source()  # the threads have the files open, so a copy may be deleted
        except integrity.DamagedError as error:
            await self.close()
            raise ApiServerError(f"{self._path}: {error}. {_remedy(self._path)}") from error
        except database.NewerDatabaseError as error:
            await self.close()
            raise ApiServerError(f"{self._path}: {error}") from error
        except (sqlite3.Error, OSError) as error:
            await self.close()
            why = f"{self._path}: can't be used as state: {describe(self._path, error)}"
            if disk_refuses(self._path.parent):
                raise ApiServerError(f"{why}: make room there, and start it again") from error
            raise ApiServerError(f"{why}. {_remedy(self._path)}") from error

    @property
    def refusal(self) -> str:
        """Why writes are refused at present; "" if they are not."""
        return self._refusal or self._failure

    async def close(self) -> None:
        """Finish the queued reads and writes, then close the file."""
        if self._closing or self._lock is None:
            return
        self._closing = True
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.wait([self._retrying])
        if self._pending:
            self._flush()
        self._object_reads.put(None)
        self._list_reads.put(None)
        for thread in self._reading:
            await asyncio.to_thread(thread.join)
        await self._stop_writing()
        self._close_source()
        os.close(self._lock)
        self._lock = None

    def next_version(self) -> int:
        """Return the resourceVersion for a write. Pass the write on without awaiting in between."""
        self._next += 1
        return self._next

    async def get(self, key: Key) -> StoredObject | None:
        """Read one object."""
        if key in self._cache:
            return self._cache.get(key)
        token = self._cache.begin_read(key)
        try:
            found = await self._run_read(self._object_reads, StateReader.get, key)
            if found is not None:
                await self._wait_for_commit(found.version)
        except BaseException:
            self._cache.end_read(key, token, None)
            raise
        self._cache.end_read(key, token, found)
        return found

    async def write(self, change: Write) -> Event:
        """Write a change and wait until it is on the disk. Raises MismatchError, StorageError."""
        if self._closing:
            raise StorageError("the API server is stopping")
        if self._refusal:
            raise StorageError(f"the state can only be read now: {self._refusal}")
        future: asyncio.Future[Event] = self._loop.create_future()
        if not self._pending:
            # Writes of other requests in this turn of the loop join it: fewer flushes and thread switches.
            self._loop.call_soon(self._flush)
        self._pending.append((future, change))
        return await future

    async def page(
        self,
        resource: str,
        namespace: str | None,
        *,
        after: tuple[str, str] = ("", ""),
        limit: int = MAX_PAGE_ROWS,
        version: int | None = None,
    ) -> Page:
        """Read objects in the order of namespace and name, as of `version` (None: now). Raises ExpiredError."""
        page = await self._run_read(self._list_reads, StateReader.page, resource, namespace, after, limit, version)
        await self._wait_for_commit(page.version)
        return page

    async def scan(self, resource: str, namespace: str | None = None) -> AsyncIterator[StoredObject]:
        """Read all objects of a resource, page by page, in the order of namespace and name."""
        after = ("", "")
        more = True
        while more:
            page = await self.page(resource, namespace, after=after)
            for stored in page.items:
                yield stored
                after = (stored.namespace, stored.name)
            more = page.more

    async def count(self, resource: str, namespace: str | None, after: tuple[str, str], version: int) -> int:
        """Count the objects after one of them in a list as of `version`. Raises ExpiredError."""
        return await self._run_read(self._list_reads, StateReader.count, resource, namespace, after, version)

    async def since(
        self, resource: str, namespace: str | None, version: int, limit: int = MAX_PAGE_ROWS
    ) -> list[Event]:
        """Read the changes after `version`, the oldest first, at most `limit`. Raises ExpiredError if the history does
        not reach back so far."""
        events = await self._run_read(self._list_reads, StateReader.since, resource, namespace, version, limit)
        await self._wait_for_commit(events[-1].version if events else 0)
        return events

    async def dependents(self, uid: str) -> list[Key]:
        """Return the objects whose ownerReferences name `uid`, in the order of resource, namespace and name."""
        return await self._run_read(self._object_reads, StateReader.dependents, uid)

    async def namesakes(self, resource: str, name: str, uid: str, limit: int = 100) -> list[StoredObject]:
        """Return the objects of this name, in all namespaces, whose text contains `uid`."""
        return await self._run_read(self._object_reads, StateReader.namesakes, resource, name, uid, limit)

    async def owned(self, after: OwnedObject | None = None, limit: int = MAX_PAGE_ROWS) -> list[OwnedObject]:
        """Return objects with owners, in the order of the owners' uids; at most `limit` that follow `after`. An object
        with two owners occurs twice."""
        return await self._run_read(self._object_reads, StateReader.owned, after, limit)

    async def current(self) -> int:
        """Return the newest version on the disk."""
        newest = await self._run_read(self._object_reads, StateReader.newest)
        await self._wait_for_commit(newest)
        return newest

    # --- event loop side ---

    async def _start(self, threads: list[threading.Thread], name: str, connect: _Connect, work: _Work) -> int:
        """Start a thread, and return the newest version as soon as it has opened the file. Raises sqlite3.Error."""
        opened: asyncio.Future[int] = self._loop.create_future()
        thread = threading.Thread(target=self._run, args=(opened, connect, work), name=f"apiserver-{name}", daemon=True)
        thread.start()
        threads.append(thread)
        return await opened

    async def _start_writing(self) -> None:
        self._changes = queue.SimpleQueue()
        self._checkpoints = Checkpointer(self._path)
        try:
            connect = partial(database.connect, self._path)
            self._next = self._delivered = await self._start(self._writing, "writes", connect, self._write)
            await self._start(self._writing, "checkpoints", connect, self._checkpoint)
        except BaseException:
            await self._stop_writing()
            raise

    async def _stop_writing(self) -> None:
        # The writer closes after all others: only the last connection to close moves the write-ahead log into the file,
        # and of two that close at the same time neither is the last.
        self._checkpoints.end()
        for thread in self._writing[1:]:
            await asyncio.to_thread(thread.join)
        self._changes.put(None)
        for thread in self._writing[:1]:
            await asyncio.to_thread(thread.join)
        self._writing = []

    async def _fall_back_to_read_only(self, source: ReadOnlyDatabase, error: Exception) -> None:
        """Read a state that can't be written because of `error`. Raises sqlite3.Error, OSError."""
        await asyncio.to_thread(source.find_way)  # the attempt to write may have changed the way to read
        with closing(source.connect()) as db:
            if database.schema_version(db) != database.SCHEMA_VERSION:
                raise error  # it must be migrated, and can't be written
            self._next = self._delivered = database.newest_version(db)
        self._refusal = describe(self._path, error)
        log.error(
            "state %s: it can only be read: %s. Machines are served. Writes are refused, and tried again every %.0f s: "
            "make room there, or make the disk writable; nothing has to be started again",
            *(self._path, self._refusal, RETRY_SECONDS),
        )
        self._retrying = asyncio.create_task(self._retry_writes(), name="apiserver state")

    async def _retry_writes(self) -> None:
        while self._refusal:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                await self._start_writing()
            except (sqlite3.Error, OSError) as error:
                self._refusal = describe(self._path, error)
                continue
            try:
                # The present read connections do not see new writes.
                for reads in (self._object_reads, self._list_reads):
                    await self._run_read(reads, lambda reader: reader.switch_to(database.connect(self._path)))
            except StorageError as error:
                self._refusal = str(error)
                await self._stop_writing()
                continue
            self._refusal = ""
            log.info("state %s: writes are possible again", self._path)

    def _close_source(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source = None

    async def _run_read(
        self, reads: _ReadQueue, run: Callable[Concatenate[StateReader, P], T], /, *args: P.args, **more: P.kwargs
    ) -> T:
        if self._closing:
            raise StorageError("the API server is stopping")
        future: asyncio.Future[T] = self._loop.create_future()
        reads.put((future, lambda reader: run(reader, *args, **more)))
        return await future

    async def _wait_for_commit(self, version: int) -> None:
        """Wait until the commit of a version that a read has seen is known here."""
        if version > self._delivered:
            delivered: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((version, delivered))
            await delivered

    def _flush(self) -> None:
        self._changes.put(self._pending)
        self._pending = []

    def _deliver(self, outcomes: list[_Outcome]) -> None:
        for future, outcome in outcomes:
            if isinstance(outcome, Event):
                self._publish(outcome)
            _resolve(future, outcome)
        if self._waiting:
            for version, delivered in self._waiting:
                if version <= self._delivered:
                    _resolve(delivered, None)
            self._waiting = [wait for wait in self._waiting if not wait[1].done()]

    def _publish(self, event: Event) -> None:
        self._cache.apply(event)
        try:
            self._on_commit(event)
        except Exception:  # the write is done, and other writers must get their answers
            log.exception("state %s: change %d could not be delivered", self._path, event.version)
        self._delivered = event.version

    # --- the threads ---

    def _check_integrity(self) -> ReadOnlyDatabase | None:
        """Check the state, and return a way to read it; None if there is no state yet. Raises DamagedError,
        sqlite3.Error, OSError."""
        if not integrity.state_exists(self._path, self._beside):
            # For the owner alone; SQLite gives its log and index the same mode.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            return None
        source = ReadOnlyDatabase(self._path)
        try:
            integrity.check(source, self._path, self._beside)
        except BaseException:
            source.close()
            raise
        return source

    def _run(self, opened: asyncio.Future[int], connect: _Connect, work: _Work) -> None:
        """Open the file in a thread, and work. `work` yields the newest version once, when it is ready."""
        db = None
        try:
            db = connect()
            running = work(db)
            newest = next(running)
        except (sqlite3.Error, OSError) as error:
            if db is not None:
                db.close()
            self._loop.call_soon_threadsafe(_resolve, opened, error)
            return
        self._loop.call_soon_threadsafe(_resolve, opened, newest)
        next(running, None)

    def _write(self, db: sqlite3.Connection) -> Iterator[int]:
        changes = self._changes
        database.prepare(db, self._path)
        writer = StateWriter(db, self._history)
        mark = HighWaterMark(high_water_mark_path(self._path), writer.newest)
        yield writer.newest
        stopping = False
        while not stopping:
            batch, stopping = _batch(changes)
            if batch:
                self._loop.call_soon_threadsafe(self._deliver, self._commit(writer, mark, batch))
                self._checkpoints.wrote(sum(len(change.body) for _, change in batch), db)
        mark.close()
        db.close()

    def _commit(self, writer: StateWriter, mark: HighWaterMark, batch: list[_QueuedWrite]) -> list[_Outcome]:
        try:
            done = writer.commit([change for _, change in batch])
        except Exception as error:  # after any failure, the next write may work
            reason = describe(self._path, error)
            if not self._failure:
                # With a stack trace only for a fault of this program, and once, not for each write to a full disk.
                fault = not isinstance(error, sqlite3.Error)
                log.error("state %s: writes fail: %s", self._path, reason, exc_info=fault)
            self._failure = reason
            failure = StorageError(f"the state could not be written: {reason}")
            return [(future, failure) for future, _ in batch]
        mark.record(writer.newest)
        if self._failure:
            log.info("state %s: writes are possible again", self._path)
            self._failure = ""
        return [(future, outcome) for (future, _), outcome in zip(batch, done, strict=True)]

    def _read(self, reads: _ReadQueue, db: sqlite3.Connection) -> Iterator[int]:
        reader = StateReader(db)
        yield 0
        while (read := reads.get()) is not None:
            future, run = read
            try:
                outcome = run(reader)
            except (ExpiredError, StorageError) as error:
                outcome = error
            except sqlite3.Error as error:
                log.error("state %s: a read failed: %s", self._path, error)
                outcome = StorageError(f"the state could not be read: {error}")
            except Exception as error:
                log.exception("state %s: a read failed", self._path)
                outcome = StorageError(f"the state could not be read: {error}")
            self._loop.call_soon_threadsafe(_resolve, future, outcome)
        reader.close()

    def _checkpoint(self, db: sqlite3.Connection) -> Iterator[int]:
        yield 0
        self._checkpoints.run(db)
        db.close()


class MemoryStore(ObjectStore):
    """A store in memory and without threads. It does not wait, keeps nothing, and may be used without an event loop.

    `state` is the `dump` of another one.
    """

    def __init__(self, on_commit: Callable[[Event], None], *, history: int = 10_000, state: bytes = b"") -> None:
        super().__init__(Path(":memory:"), on_commit, history=history)
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)  # for its finalizer
        if state:
            self._db.deserialize(state)
        else:
            database.prepare(self._db, self._path)
        self._reader = StateReader(self._db)
        self._db.execute("PRAGMA query_only = OFF")  # reads and writes share the connection
        self._writer = StateWriter(self._db, history)
        self._next = self._delivered = self._writer.newest
        weakref.finalize(self, self._db.close)

    async def open(self) -> None:
        """Do nothing: it is always open."""

    async def close(self) -> None:
        """Drop all objects."""
        self._closing = True
        self._db.close()

    def dump(self) -> bytes:
        """Return all objects and their history, as the `state` of another store."""
        return self._db.serialize()

    def read(self, key: Key) -> StoredObject | None:
        """Read one object."""
        return self._reader.get(key)

    def read_all(self, resource: str) -> list[StoredObject]:
        """Read all objects of a resource, in the order of namespace and name."""
        after, found = ("", ""), list[StoredObject]()
        while True:
            page = self._reader.page(resource, None, after, MAX_PAGE_ROWS, None)
            found += page.items
            if not page.more:
                return found
            after = (found[-1].namespace, found[-1].name)

    def commit(self, change: Write) -> Event:
        """Write a change. Raises MismatchError."""
        [outcome] = self._writer.commit([change])
        if isinstance(outcome, MismatchError):
            raise outcome
        self._publish(outcome)
        return outcome

    async def write(self, change: Write) -> Event:
        """Write a change. Raises MismatchError."""
        return self.commit(change)

    async def _run_read(
        self, _: _ReadQueue, run: Callable[Concatenate[StateReader, P], T], /, *args: P.args, **more: P.kwargs
    ) -> T:
        return run(self._reader, *args, **more)


def _batch(changes: queue.SimpleQueue[list[_QueuedWrite] | None]) -> tuple[list[_QueuedWrite], bool]:
    """Take the waiting changes, at least one. Return them, and True if they were the last."""
    batch: list[_QueuedWrite] = []
    found = changes.get()
    while found is not None:
        batch += found
        if len(batch) >= MAX_BATCH_WRITES or changes.empty():
            return batch, False
        found = changes.get()
    return batch, True


def _resolve(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.done():  # the client has disconnected; its request is done regardless
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _remedy(path: Path) -> str:
    """Return what to do about a damaged or unusable state."""
    directory = shlex.quote(str(path.parent))
    salvage = f"tinkedge restore --salvage {directory} --data-dir {directory} --force"
    return (
        f"Nothing was changed. Put the last backup back: 'tinkedge restore FILE --data-dir {directory} --force'. "
        f"Without one, take what can still be read: '{salvage}'. docs/api.md, 'When the state is damaged', has more"
    )

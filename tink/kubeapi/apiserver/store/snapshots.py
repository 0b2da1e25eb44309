"""Snapshots: the state as a file of its own, as of one moment, and operations on such a file before it is served.

    take_snapshot     copies a state that may be in use, by SQLite's backup API (sqlite.org/backup.html)
    survey_snapshot   checks a copy and reports its contents
    advance_snapshot  continues a copy at a later version, like etcd's `--bump-revision` and `--mark-compacted`: clients
                      that remember versions from after the backup must list again, and no version goes back
    salvage_state     writes the readable part of a damaged state to a new file

None of them changes the state that it reads.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tink.kubeapi.apiserver.errors import ApiServerError
from tink.kubeapi.apiserver.store import database, integrity
from tink.kubeapi.apiserver.store.history import StateWriter
from tink.kubeapi.apiserver.store.integrity import ReadOnlyDatabase
from tink.kubeapi.apiserver.store.objects import Key, Write

Progress = Callable[[str, int, int], None]  # Called with the name of the step, the finished amount and the total
Edit = Callable[[str, dict[str, Any]], bool]
"""`edit(resource, object)` may change an object in place. Return True if it did."""

_STEP_PAGES = 1024
_CHUNK = 256
"""Number of objects in one transaction."""
_MAX_PROBES = 100_000  # Maximum number of versions that are read one by one in the damaged part of a file

_ALL_OBJECTS = (
    "SELECT o.resource, o.namespace, o.name, o.version, s.body FROM objects AS o JOIN states AS s "
    "ON s.version = o.version WHERE o.resource = ? AND (o.namespace, o.name) > (?, ?) "
    "ORDER BY o.namespace, o.name LIMIT ?"
)
_STATE_COLUMNS = "version, prior, type, resource, namespace, name, sum, body"


class SnapshotError(ApiServerError):
    """A file can't be used as a state. The message says why."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The contents of a state: layout of the file, newest resourceVersion, and number of objects by resource
    ("group/plural")."""

    layout: int
    version: int
    objects: dict[str, int]


@dataclass(slots=True)
class Salvage:
    """The readable part of a damaged state.

    `lost` are objects that can't be read, `older` those that can be read in an earlier version only. `uncertain`: more
    may be missing, because the list of all objects is damaged.
    """

    objects: int = 0
    lost: list[str] = field(default_factory=list)
    older: list[str] = field(default_factory=list)
    uncertain: bool = False


def take_snapshot(path: Path, destination: Path, progress: Progress) -> None:
    """Copy the present state at `path` into the new file `destination`. The state may be in use. Raises SnapshotError,
    OSError."""
    source = ReadOnlyDatabase(path)
    try:
        source.find_way()
        with closing(source.connect()) as db, closing(sqlite3.connect(destination, isolation_level=None)) as copy:
            db.execute("BEGIN")
            database.newest_version(db)  # fixes the moment as of which all steps read
            db.backup(copy, pages=_STEP_PAGES, progress=lambda _, left, total: progress("state", total - left, total))
            copy.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise SnapshotError(f"{path}: {error}") from error
    finally:
        source.close()


def survey_snapshot(path: Path) -> Survey:
    """Check a copy and return its contents. Raises SnapshotError if it is damaged or not ours."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)) as db:
            layout = database.schema_version(db)
            if not layout:
                raise SnapshotError(f"{path}: it holds nothing")
            integrity.check_rows(db, layout)
            column = "states" if layout > 1 else "history"
            version = db.execute(f"SELECT coalesce(max(version), 0) FROM {column}").fetchone()[0]  # noqa: S608
            counts = db.execute("SELECT resource, count(*) FROM objects GROUP BY resource ORDER BY resource")
            return Survey(layout, version, dict(counts.fetchall()))
    except (sqlite3.Error, integrity.DamagedError, UnicodeDecodeError) as error:
        raise SnapshotError(f"{path}: {error}") from error


def lock_state(directory: Path) -> int:
    """Lock the state in a data directory for as long as the returned descriptor is open. Raises SnapshotError if an API
    server has the lock, OSError."""
    try:
        return database.lock(directory / "state.lock")
    except BlockingIOError as error:
        raise SnapshotError(f"{directory}: an API server is using it; stop that one first") from error


def newest_answered(directory: Path) -> int:
    """Return the newest version that was ever answered from a data directory, by its mark; 0 if unknown."""
    with suppress(OSError, ValueError):
        return integrity.read_high_water_mark(integrity.high_water_mark_path(directory / "state.db")) or 0
    return 0


def advance_snapshot(path: Path, above: int, resources: Iterable[str], edit: Edit) -> int:
    """Migrate an unused copy, and continue it at a version above `above`, without history. Changes that `edit` makes to
    objects of these resources are written. Return the newest version. Raises SnapshotError, OSError."""
    try:
        with closing(database.connect(path)) as db:
            database.prepare(db, path)
            version = max(above, database.newest_version(db))
            writer = StateWriter(db, 1)
            touched = 0
            for resource in resources:
                for chunk in _chunks(db, resource):
                    writes = []
                    for key, expected, body in chunk:
                        obj = orjson.loads(body)
                        if edit(resource, obj):
                            version += 1
                            writes.append(_write(key, version, expected, obj))
                    touched += len(writes)
                    _commit(writer, writes)
            if not touched and (some := db.execute(_SOME_OBJECT).fetchone()) is not None:
                version += 1
                _commit(writer, [_write(Key(*some[:3]), version, some[3], orjson.loads(some[4]))])
            _forget_history(db)
            db.execute("PRAGMA journal_mode = DELETE")
            return database.newest_version(db)
    except sqlite3.Error as error:
        raise SnapshotError(f"{path}: {error}") from error


_SOME_OBJECT = (
    "SELECT o.resource, o.namespace, o.name, o.version, s.body FROM objects AS o JOIN states AS s "
    "ON s.version = o.version ORDER BY o.resource = '/namespaces' DESC, o.version LIMIT 1"
)
"""Query for an object whose version may change without effect: a namespace."""


def _chunks(db: sqlite3.Connection, resource: str) -> Iterator[list[tuple[Key, int, bytes]]]:
    after = ("", "")
    while rows := db.execute(_ALL_OBJECTS, (resource, *after, _CHUNK)).fetchall():
        yield [(Key(*row[:3]), row[3], row[4]) for row in rows]
        after = rows[-1][1], rows[-1][2]


def _write(key: Key, version: int, expected: int, obj: dict[str, Any]) -> Write:
    obj["metadata"]["resourceVersion"] = str(version)
    return Write(key, version, orjson.dumps(obj), expected)


def _commit(writer: StateWriter, writes: list[Write]) -> None:
    for outcome in writer.commit(writes) if writes else ():
        if isinstance(outcome, Exception):
            raise SnapshotError(f"an object is not at the version that the file says: {outcome}")


def _forget_history(db: sqlite3.Connection) -> None:
    """Keep only the newest state of each object. A client that asks for an older change must list again."""
    db.execute("BEGIN IMMEDIATE")
    db.execute("DELETE FROM states WHERE version NOT IN (SELECT version FROM objects)")
    db.execute("UPDATE history SET border = (SELECT coalesce(max(version), 0) FROM states)")
    db.execute("COMMIT")


# --- a damaged state --------------------------------------------------------------------------------------------------


def salvage_state(path: Path, destination: Path, work: Path) -> Salvage:
    """Write the readable part of the damaged state at `path` into the new file `destination`.

    An object is its newest state with a correct checksum. `work` is an empty directory, for a copy that SQLite may
    write to. Raises SnapshotError if nothing can be read, OSError.
    """
    for file in (path, database.wal_path(path)):
        if file.exists():
            shutil.copyfile(file, work / file.name)
    try:
        with closing(sqlite3.connect(work / path.name, isolation_level=None)) as db:
            db.text_factory = lambda raw: raw.decode("utf-8", "replace")
            layout = database.schema_version(db)
            if layout != database.SCHEMA_VERSION:
                raise SnapshotError(f"{path}: layout {layout} cannot be salvaged, only today's layout")
            listed, complete = _read_listed(db)
            newest = _newest_states(db, listed.values())
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise SnapshotError(f"{path}: {error}; SQLite's own `.recover` may still find something in it") from error
    kept = {key: row for key, row in newest.items() if row[2] != "DELETED" and (key in listed or not complete)}
    found = Salvage(len(kept), uncertain=not complete)
    for key, version in sorted(listed.items()):
        if key not in kept:
            found.lost.append(f"{key.resource} {key.namespace}/{key.name}")
        elif kept[key][0] != version:
            found.older.append(f"{key.resource} {key.namespace}/{key.name}")
    if not kept:
        raise SnapshotError(f"{path}: no object in it can be read")
    _write_salvaged(destination, kept)
    return found


_Row = tuple[int, int, str, str, str, str, int, bytes]


def _read_listed(db: sqlite3.Connection) -> tuple[dict[Key, int], bool]:
    """Return the listed objects with their versions, and True if the list is complete."""
    listed: dict[Key, int] = {}
    for order in ("", " DESC"):
        try:
            by = f"resource{order}, namespace{order}, name{order}"
            rows = db.execute(f"SELECT resource, namespace, name, version FROM objects ORDER BY {by}")  # noqa: S608
            for resource, namespace, name, version in rows:
                listed[Key(resource, namespace, name)] = version
        except sqlite3.DatabaseError:
            continue
        return listed, True
    return listed, False


def _newest_states(db: sqlite3.Connection, versions: Iterable[int]) -> dict[Key, _Row]:
    """Return the newest readable state of each object, including deleted ones."""
    newest: dict[Key, _Row] = {}

    def take(row: Any) -> None:
        # In a damaged row, values may be of any type.
        version, prior, kind, resource, namespace, name, checksum, body = row
        if type(body) is not bytes:
            return
        if database.row_checksum(version, prior, kind, resource, namespace, name, body) != checksum:
            return
        key = Key(resource, namespace, name)
        if key not in newest or newest[key][0] < version:
            newest[key] = row

    low = _read_in_order(db, take, "")
    if low is None:
        return newest
    high = _read_in_order(db, take, " DESC")
    between = set(versions) | set(range(low + 1, min(high or low, low + _MAX_PROBES)))
    for version in sorted(between):
        with suppress(sqlite3.DatabaseError):
            row = db.execute(f"SELECT {_STATE_COLUMNS} FROM states WHERE version = ?", (version,)).fetchone()  # noqa: S608
            if row is not None:
                take(row)
    return newest


def _read_in_order(db: sqlite3.Connection, take: Callable[[Any], None], order: str) -> int | None:
    """Read states in order. Return the version of the last one before a fault; None if there was no fault."""
    last = 0
    try:
        for row in db.execute(f"SELECT {_STATE_COLUMNS} FROM states ORDER BY version{order}"):  # noqa: S608
            last = row[0]
            take(row)
    except sqlite3.DatabaseError:
        return last
    return None


def _write_salvaged(destination: Path, kept: dict[Key, _Row]) -> None:
    with closing(database.connect(destination)) as db:
        database.prepare(db, destination)
        newest = sorted(kept.items(), key=lambda item: item[1][0])
        _commit(StateWriter(db, 1), [Write(key, row[0], row[7], 0) for key, row in newest])
        _forget_history(db)
        db.execute("PRAGMA journal_mode = DELETE")

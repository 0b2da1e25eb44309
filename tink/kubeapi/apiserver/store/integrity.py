"""Protection against damaged and read-only disks: integrity check, high-water mark, read-only access.

SQLite reports little: it starts empty if files are missing, ends its log at the first bad frame, and returns damaged
text. So a state is checked before it is served: the structure (PRAGMA quick_check), the checksum of each stored state,
the state of each object, and the high-water mark. A damaged state is not opened for writing, and not changed.
Undetected are the last answered writes before a power cut if the log is damaged as well, and damage in unused bytes.

The high-water mark is the version of the newest write, in a file beside the state. It shows if answered writes are
missing, because the log is lost or ends early. The writer updates it after each commit and before the answers. It is
flushed with checkpoints only, since a flush with each write would double its cost. So after a power cut it may contain
an older version, never one that was not on the disk.

    tinkedge-state 1 00000000000000004711 1c291ca3
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from urllib.parse import quote
from zlib import crc32

from tink.errors import TinkedgeError
from tink.files import private_files
from tink.files.data_directory import disk_refuses
from tink.kubeapi.apiserver.store import database

_LINE = re.compile(rb"(tinkedge-state 1 ([0-9]{20})) ([0-9a-f]{8})\n")


def high_water_mark_path(state: Path) -> Path:
    """Return the path of the high-water mark of a state."""
    return state.with_suffix(".newest")


def read_high_water_mark(path: Path) -> int | None:
    """Return the recorded version; None if there is no file. Raises OSError, and ValueError if it is damaged."""
    try:
        with path.open("rb") as file:
            content = file.read(200)
    except FileNotFoundError:
        return None
    match = _LINE.fullmatch(content)
    if match is None or int(match[3], 16) != zlib.crc32(match[1]):
        raise ValueError("it is damaged")
    return int(match[2])


class HighWaterMark:
    """The open file of the high-water mark, for the one writer."""

    def __init__(self, path: Path, version: int) -> None:
        """Create or open the file, and record `version`. Raises OSError."""
        there = None
        with suppress(ValueError):
            there = read_high_water_mark(path)
        if there is None:
            private_files.write(path, _line(version))
        self._handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self.record(version)

    def record(self, version: int) -> None:
        """Record a version that is on the disk. If that fails, the file keeps an older one, which is never wrong."""
        with suppress(OSError):
            os.pwrite(self._handle, _line(version), 0)  # the same length as before, so it needs no free space

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def _line(version: int) -> bytes:
    text = b"tinkedge-state 1 %020d" % version
    return b"%s %08x\n" % (text, zlib.crc32(text))


_MEMORY_DIRECTORY = Path("/dev/shm")  # noqa: S108 - the copy gets a directory of its own there, 0700


class ReadOnlyDatabase:
    """Connections to a state that can't be written. They must not be used once it is written again.

    SQLite creates two files, the log and its index, before it reads. Where it can't, there are ways without them, tried
    in this order:

        as it is          the index of a killed server exists, or can be created
        immutable         the log is empty, so the file alone is complete (sqlite.org/uri.html#uriimmutable)
        a copy in memory  the log has content that is not in the file, and its index can't be created

    An index on a read-only disk is not used: all connections of a process would share it, and none could write with it
    when the disk is writable again.
    """

    def __init__(self, path: Path) -> None:
        """Call `find_way` before `connect`."""
        self._copy: Path | None = None
        self._uri = ""
        self._path = path

    def find_way(self) -> None:
        """Find the way, again if necessary. Raises sqlite3.Error, OSError."""
        plain = f"file:{quote(str(self._path))}?mode=ro"
        if self._copy is not None:
            return
        if os.access(self._path, os.W_OK):  # fails on a read-only file system (access(2): EROFS)
            self._uri = plain
            with suppress(sqlite3.OperationalError):
                self._try()
                return
        log = database.wal_path(self._path)
        if not log.exists() or not log.stat().st_size:
            self._uri = f"{plain}&immutable=1"
            self._try()
        else:
            self._use_copy()

    def connect(self) -> sqlite3.Connection:
        """Open the state for one thread. Raises sqlite3.Error."""
        return sqlite3.connect(self._uri, uri=True, isolation_level=None, cached_statements=64)

    def close(self) -> None:
        """Delete the copy, if there is one. Open connections to it continue."""
        if self._copy is not None:
            shutil.rmtree(self._copy, ignore_errors=True)
            self._copy = None

    def _try(self) -> None:
        with closing(self.connect()) as db:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def _use_copy(self) -> None:
        path = self._path
        self._copy = Path(
            tempfile.mkdtemp(dir=_MEMORY_DIRECTORY if _MEMORY_DIRECTORY.is_dir() else None, prefix="tinkedge-")
        )
        try:
            for file in (path, database.wal_path(path)):
                shutil.copyfile(file, self._copy / file.name)
            self._uri = f"file:{quote(str(self._copy / path.name))}"
            self._try()
        except BaseException:
            self.close()
            raise


def describe(path: Path, error: Exception) -> str:
    """Return why a file can't be read or written: SQLite has the same words for many reasons."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    seen = disk_refuses(path.parent)
    return f"{reason}: {seen}" if seen and seen not in reason else reason


log = logging.getLogger(__name__)

_MAX_NAMED = 5  # Maximum number of errors in a message
_CHECKSUMS = f"SELECT version, sum, {database.HEAD}, body FROM states"  # noqa: S608 - a constant
_WITHOUT_STATE = """
SELECT o.resource, o.namespace, o.name, o.version FROM objects AS o LEFT JOIN states AS s
ON s.version = o.version AND s.resource = o.resource AND s.namespace = o.namespace AND s.name = o.name
AND s.type <> 'DELETED' WHERE s.version IS NULL
"""


_WRONG_OWNERS = """
SELECT w.resource, w.namespace, w.name FROM owners AS w
LEFT JOIN objects AS o ON o.resource = w.resource AND o.namespace = w.namespace AND o.name = w.name
LEFT JOIN states AS s ON s.version = o.version WHERE NOT coalesce(instr(s.body, CAST(w.uid AS BLOB)), 0)
"""


class DamagedError(TinkedgeError):
    """The state is damaged. The message says how."""


def state_exists(path: Path, beside: Sequence[Path]) -> bool:
    """Return True if there is a state. Raises DamagedError if it is missing but existed, OSError. `beside` are files
    that are created after the state only."""
    if path.exists() and path.stat().st_size:
        return True
    left = _evidence(path, beside)
    if left:
        is_what = "is empty" if path.exists() else "is missing"
        raise DamagedError(f"it {is_what}, but {_join_names(left)} beside it: there was a state. {_advice(left)}")
    return False


def _evidence(path: Path, beside: Iterable[Path]) -> list[str]:
    """Return the names of files that only exist with a state. Raises OSError."""
    candidates = (database.wal_path(path), high_water_mark_path(path), *beside)
    return [file.name for file in candidates if file.exists() and file.stat().st_size]


def check(source: ReadOnlyDatabase, path: Path, beside: Sequence[Path]) -> None:
    """Check an existing state. Raises DamagedError, sqlite3.Error, OSError."""
    try:
        source.find_way()
        with closing(source.connect()) as db:
            _check_database(db, path, beside)
    except (sqlite3.OperationalError, database.ForeignDatabaseError):
        raise
    except UnicodeDecodeError as error:  # raised by the sqlite3 module for SQLite's message about a damaged schema
        raise DamagedError("malformed database schema") from error
    except sqlite3.DatabaseError as error:  # SQLite itself detected damage
        if not _evidence(path, beside):
            raise
        raise DamagedError(str(error)) from error


def _check_database(db: sqlite3.Connection, path: Path, beside: Sequence[Path]) -> None:
    """Check an open state. Raises DamagedError, sqlite3.Error, UnicodeDecodeError."""
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    found = database.schema_version(db)
    if not found:
        if left := _evidence(path, beside):
            raise DamagedError(
                f"it holds nothing, but {_join_names(left)} beside it: there was a state. {_advice(left)}"
            )
        return
    check_rows(db, found)
    if found == database.SCHEMA_VERSION:  # older schemas have no such file
        _check_high_water_mark(path, database.newest_version(db))


def check_rows(db: sqlite3.Connection, found: int) -> None:
    """Check the rows of an open file of the schema `found`. Raises DamagedError, sqlite3.Error."""
    wrong = [text for (text,) in db.execute(f"PRAGMA quick_check({_MAX_NAMED})") if text != "ok"]
    if wrong:
        raise DamagedError("; ".join(" ".join(text.split()) for text in wrong))
    if found > 1:
        _check_states(db, found)
        _check_objects(db)


def _check_states(db: sqlite3.Connection, found: int) -> None:
    if found == database.SCHEMA_VERSION:
        # In a damaged row, values may be of any type.
        bad = (
            version
            for version, checksum, head, body in db.execute(_CHECKSUMS)
            if type(body) is not bytes or type(head) is not bytes or checksum != crc32(body, crc32(head))
        )
        why = "does not have its checksum"
    else:
        bad = (row[0] for row in db.execute("SELECT version FROM states WHERE NOT json_valid(CAST(body AS TEXT))"))
        why = "is no JSON"
    versions = list(islice(bad, 1000))
    if not versions:
        return
    named = []
    for version in versions[:_MAX_NAMED]:
        row = db.execute("SELECT resource, namespace, name FROM states WHERE version = ?", (version,)).fetchone()
        resource, namespace, name = row or ("?", "?", "?")
        named.append(f"the stored text of {resource} {namespace}/{name}, version {version}, {why}")
    more = f"; and {len(versions) - len(named)} others" if len(versions) > len(named) else ""
    raise DamagedError("; ".join(named) + more)


def _check_objects(db: sqlite3.Connection) -> None:
    lost = db.execute(_WITHOUT_STATE).fetchmany(_MAX_NAMED)
    if lost:
        named = ", ".join(f"{resource} {namespace}/{name}" for resource, namespace, name, _ in lost)
        raise DamagedError(f"the stored text of {named} is missing")
    strange = db.execute(_WRONG_OWNERS).fetchmany(_MAX_NAMED)
    if strange:
        named = ", ".join(f"{resource} {namespace}/{name}" for resource, namespace, name in strange)
        raise DamagedError(f"the index of owners contradicts {named}")
    borders = db.execute("SELECT border FROM history").fetchall()
    if len(borders) != 1 or type(borders[0][0]) is not int or not 0 <= borders[0][0] <= database.newest_version(db):
        raise DamagedError("the beginning of its history is missing")


def _check_high_water_mark(path: Path, version: int) -> None:
    file = high_water_mark_path(path)
    try:
        answered = read_high_water_mark(file)
    except ValueError as error:
        log.error("%s: %s: it cannot be checked whether the newest writes are in %s", file, error, path)
        return
    if answered is not None and answered > version:
        raise DamagedError(
            f"it ends at version {version}, but writes up to {answered} were answered: its log "
            f"{database.wal_path(path).name} is missing or damaged, or it is an older copy. Put both files back from "
            f"where they are whole; to go on with what is here, remove {file.name}"
        )


def _join_names(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last} are" if first else f"{last} is"


def _advice(left: Sequence[str]) -> str:
    return f"Put it back, from a backup if need be; to begin with nothing, move {', '.join(left)} away, too"

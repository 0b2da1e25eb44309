"""The SQLite file of a checkpoint.

    meta     format, the cluster's identities, and the Unix time at which the content was known to be current
    object   collection, key (NAMESPACE/NAME), version (UID/RESOURCEVERSION), compressed JSON
    lookup   the MACs and addresses of each Hardware, by which one is found before the others are read

The file is 0600, and is read only if no other user can have written it. It is checked once as a whole, and each object
has a checksum (zlib's). The methods raise CheckpointError, except where they raise OSError as well.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import orjson

from tink.api.v1alpha2 import Raw
from tink.errors import TinkedgeError
from tink.files.data_directory import user_name
from tink.kube.objects import NamespacedName

FILE: Final = "objects.db"
_FORMAT: Final = "3"
_OLD_FILES: Final = ("hardware", "osies", "workflows")  # files of format 2, one for each collection
_LEVEL: Final = 1
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_SCHEMA: Final = """
    CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE object (
        collection TEXT, key TEXT, version TEXT NOT NULL, content BLOB NOT NULL, PRIMARY KEY (collection, key)
    );
    CREATE TABLE lookup (key TEXT, value TEXT, PRIMARY KEY (key, value)) WITHOUT ROWID;
    CREATE INDEX lookup_value ON lookup (value);
"""

LookupValues = Callable[[Raw], Iterable[str]]


class CheckpointError(TinkedgeError):
    """The file can't be used; the message names the file and the reason."""


class Database:
    """The file of one edge. All methods are for threads, except `hardware`, `has` and `close_reader`."""

    def __init__(self, directory: Path, cluster: frozenset[str], lookup_values: LookupValues) -> None:
        self._directory = directory
        self._path = directory / FILE
        self._cluster = cluster
        self._lookup_values = lookup_values
        self._lock = threading.RLock()
        """Held while the connection is used: the thread of a cancelled task goes on for a moment."""
        self._connection: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        """A connection for the event loop, which does not wait for the thread's."""
        self.counts: dict[str, int] = {}  # the number of objects by collection when the file was opened

    @property
    def is_open(self) -> bool:
        """True if the file is open and usable."""
        return self._connection is not None

    # --- opening ------------------------------------------------------------------------------------------------------

    def open(self) -> float | None:
        """Open the file and check it as a whole; return when it was current; None if there is no file."""
        for name in _OLD_FILES:
            with suppress(OSError):
                (self._directory / name).unlink(missing_ok=True)
        if not self._check_owner():
            return None
        with self._errors():
            connection = self._connect()
            try:
                known = self._check_content(connection)
                self.counts = dict(connection.execute("SELECT collection, COUNT(*) FROM object GROUP BY collection"))
                self._reader = self._connect()
                # One read transaction for all look-ups: to begin and end one for each takes longer than the look-up.
                self._reader.execute("BEGIN")
            except BaseException:
                connection.close()
                raise
        self._connection = connection
        return known

    def _check_owner(self) -> bool:
        """Return False if there is no file. Raises CheckpointError if another user may have written it."""
        for path, is_kind in ((self._directory, stat.S_ISDIR), (self._path, stat.S_ISREG)):
            try:
                found = path.lstat()
            except FileNotFoundError:
                return False
            except OSError as error:
                raise CheckpointError(f"{path} can't be read: {error.strerror}") from error
            if not is_kind(found.st_mode):
                raise CheckpointError(f"{path} is not a plain {'file' if path == self._path else 'directory'}")
            if found.st_uid != os.geteuid():
                raise CheckpointError(f"{path} belongs to {user_name(found.st_uid)}, who may have put it there")
            if found.st_mode & _OTHERS_WRITE:
                mode = stat.S_IMODE(found.st_mode)
                raise CheckpointError(f"{path} can be written by others (mode {mode:04o})")
        return True

    def _check_content(self, connection: sqlite3.Connection) -> float | None:
        [(state,)] = connection.execute("PRAGMA quick_check(1)")
        meta = dict(connection.execute("SELECT name, value FROM meta")) if state == "ok" else {}
        if state != "ok" or not meta.keys() >= {"format", "cluster", "known"}:
            raise CheckpointError(f"{self._path} is damaged")
        if meta["format"] != _FORMAT:
            raise CheckpointError(f"{self._path} is of another release (format {meta['format']}, not {_FORMAT})")
        if not self._cluster & set(orjson.loads(meta["cluster"])):
            raise CheckpointError(f"{self._path} is of another cluster")
        return float(meta["known"]) or None  # 0: its first writing did not come to an end

    def _connect(self) -> sqlite3.Connection:
        # Each method runs in whichever thread the executor has free.
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")  # the event loop reads while the thread writes
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")  # a deleted Hardware may have had secrets in its user-data
        return connection

    def open_for_writing(self) -> bool:
        """Replace the file unless it is open; return True if it is a new one. Raises OSError as well."""
        if self._connection is not None:
            return False
        for path in self._directory.glob(f"{FILE}*"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        with self._errors():
            connection = self._connect()
            try:
                connection.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
                meta = {"format": _FORMAT, "cluster": orjson.dumps(sorted(self._cluster)).decode(), "known": "0"}
                connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            except BaseException:
                connection.close()
                raise
        self._connection = connection
        return True

    def close_reader(self) -> None:
        """Close the event loop's connection."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def close(self) -> None:
        """Close the file."""
        self.close_reader()
        with self._lock, suppress(sqlite3.Error):
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise CheckpointError for an error of SQLite; a damaged file is closed, so that it is replaced."""
        try:
            with self._lock:
                yield
        except sqlite3.OperationalError as error:  # such as a full disk
            raise CheckpointError(f"{self._path}: {error}") from error
        except (sqlite3.Error, ValueError, TypeError) as error:
            self.close()
            raise CheckpointError(f"{self._path} is damaged ({error})") from error

    # --- reading ------------------------------------------------------------------------------------------------------

    def objects(self, collection: str, after: str, count: int) -> list[tuple[str, Raw | None]]:
        """Return the next `count` keys and objects after a key ("" for the first); a damaged object is None."""
        query = "SELECT key, content FROM object WHERE collection = ? AND key > ? ORDER BY key LIMIT ?"
        with self._errors():
            found = self._connection.execute(query, (collection, after, count)) if self._connection is not None else ()
            return [(key, _decoded(content)) for key, content in found]

    def hardware(self, values: Iterable[str], skip: Callable[[NamespacedName], bool]) -> list[Raw]:
        """Return the Hardware with any of these values for whose key `skip` returns False.

        A value is a MAC, an address or NAMESPACE/NAME. The file is read as it was at the first call.
        """
        if self._reader is None:
            return []
        lookup = "SELECT key FROM lookup WHERE value = ?"
        query = "SELECT content FROM object WHERE collection = 'hardware' AND key = ?"
        keys: dict[str, None] = {}
        try:
            for value in values:
                if "/" in value:
                    keys[value] = None
                for (key,) in self._reader.execute(lookup, (value,)):
                    keys[key] = None
            wanted = [key for key in keys if "/" in key and not skip(_name(key))]
            found = [_decoded(content) for key in wanted for (content,) in self._reader.execute(query, (key,))]
        except sqlite3.Error as error:
            raise CheckpointError(f"{self._path}: {error}") from error
        return [obj for obj in found if obj is not None]

    def has(self, collection: str, obj: Raw) -> bool:
        """Return True if the file had this version of an object at the first call; False after `close_reader`."""
        if self._reader is None:
            return False
        query = "SELECT version FROM object WHERE collection = ? AND key = ?"
        try:
            found = self._reader.execute(query, (collection, str(NamespacedName.of(obj)))).fetchone()
        except sqlite3.Error:
            return False  # then it is written
        return bool(found == (_version(obj),))

    def size(self, collection: str) -> int:
        """Return the size of the objects of a collection in bytes."""
        query = "SELECT TOTAL(LENGTH(content)) FROM object WHERE collection = ?"
        with self._errors(), self._transaction() as connection:
            [(size,)] = connection.execute(query, (collection,))
            return int(size)

    # --- writing ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self._connection is None:
            raise CheckpointError(f"{self._path} is closed")
        self._connection.execute("BEGIN")
        try:
            yield self._connection
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def write(self, collection: str, objects: Mapping[NamespacedName, Raw | None]) -> None:
        """Write objects whose version differs from the file's; remove a key whose object is None."""
        with self._errors(), self._transaction() as connection:
            for key, obj in objects.items():
                if obj is None:
                    self._delete(connection, collection, str(key))
                else:
                    self._put(connection, collection, str(key), obj)

    def _put(self, connection: sqlite3.Connection, collection: str, key: str, obj: Raw) -> None:
        version = _version(obj)
        query = "SELECT version FROM object WHERE collection = ? AND key = ?"
        if connection.execute(query, (collection, key)).fetchone() == (version,):
            return
        self._delete(connection, collection, key)
        content = zlib.compress(orjson.dumps(obj), _LEVEL)
        connection.execute("INSERT INTO object VALUES (?, ?, ?, ?)", (collection, key, version, content))
        if collection == "hardware":
            values = [(key, value) for value in dict.fromkeys(self._lookup_values(obj))]
            connection.executemany("INSERT INTO lookup VALUES (?, ?)", values)

    def _delete(self, connection: sqlite3.Connection, collection: str, key: str) -> None:
        connection.execute("DELETE FROM object WHERE collection = ? AND key = ?", (collection, key))
        if collection == "hardware":
            connection.execute("DELETE FROM lookup WHERE key = ?", (key,))

    def prune(self, collection: str, keys: Iterable[NamespacedName]) -> None:
        """Remove all objects of a collection except those with these keys."""
        wanted = set(map(str, keys))
        with self._errors(), self._transaction() as connection:
            there = connection.execute("SELECT key FROM object WHERE collection = ?", (collection,)).fetchall()
            for (key,) in there:
                if key not in wanted:
                    self._delete(connection, collection, key)

    def confirm(self, known: float) -> None:
        """Set the Unix time at which the content was known to be current."""
        with self._errors(), self._transaction() as connection:
            connection.execute("UPDATE meta SET value = ? WHERE name = 'known'", (repr(known),))


def _name(key: str) -> NamespacedName:
    return NamespacedName(*key.split("/", 1))


def _version(obj: Raw) -> str:
    return f"{obj['metadata'].get('uid')}/{obj['metadata'].get('resourceVersion')}"


def _decoded(content: bytes) -> Raw | None:
    """Return an object, or None if its checksum is wrong."""
    try:
        obj: Raw = orjson.loads(zlib.decompress(content))
    except (zlib.error, orjson.JSONDecodeError, TypeError):
        return None
    return obj

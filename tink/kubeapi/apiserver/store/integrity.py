"""The integrity check of the state, before it is served: SQLite itself begins anew without a word where files are
missing, ends its log at the first bad frame, and gives out garbled text as it is.

    state_exists   the file is missing or empty, and what lies beside it says that there was one
    check          its structure (PRAGMA quick_check); the checksum of each stored state; each object has its state, and
                   that is no other's; nothing is missing of what was answered (`high_water_mark`)

A state that is not whole is not opened for writing, and nothing about it is changed: what can be saved is in it. Not
seen: what was answered in the last moments before a power cut, when the log is damaged as well; garbled bytes that
nothing uses.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

from tink.kubeapi.apiserver.store import high_water_mark
from tink.kubeapi.apiserver.store.database import (
    HEAD,
    SCHEMA_VERSION,
    ForeignDatabaseError,
    newest_version,
    schema_version,
    wal_path,
)
from tink.kubeapi.apiserver.store.read_only import ReadOnlyDatabase

log = logging.getLogger(__name__)

_NAMED = 5
"""So much of what is wrong is named."""
_CHECKSUMS = f"SELECT version, sum, {HEAD}, body FROM states"  # noqa: S608 - a constant
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


class DamagedError(Exception):
    """The state is not whole; the message says what is wrong."""


def state_exists(path: Path, beside: Sequence[Path]) -> bool:
    """Say whether there is a state; no: it is to be made. Raises DamagedError when there must have been one, OSError.

    `beside` are files that are only ever made after the state.
    """
    if path.exists() and path.stat().st_size:
        return True
    left = _evidence(path, beside)
    if left:
        is_what = "is empty" if path.exists() else "is missing"
        raise DamagedError(f"it {is_what}, but {_and(left)} beside it: there was a state. {_advice(left)}")
    return False


def _evidence(path: Path, beside: Iterable[Path]) -> list[str]:
    """Name the files that say that a state has been there. Raises OSError."""
    candidates = (wal_path(path), high_water_mark.path_beside(path), *beside)
    return [file.name for file in candidates if file.exists() and file.stat().st_size]


def check(source: ReadOnlyDatabase, path: Path, beside: Sequence[Path]) -> None:
    """Check a state that is there. Raises DamagedError, sqlite3.Error, OSError."""
    try:
        source.find_way()
        with closing(source.connect()) as db:
            _check_database(db, path, beside)
    except (sqlite3.OperationalError, ForeignDatabaseError):
        raise
    except UnicodeDecodeError as error:  # the module's own, of SQLite's words about a garbled schema
        raise DamagedError("malformed database schema") from error
    except sqlite3.DatabaseError as error:  # SQLite has come upon it by itself
        if not _evidence(path, beside):
            raise
        raise DamagedError(str(error)) from error


def _check_database(db: sqlite3.Connection, path: Path, beside: Sequence[Path]) -> None:
    """Check an open state. Raises DamagedError, sqlite3.Error, UnicodeDecodeError."""
    db.text_factory = _text
    found = schema_version(db)
    if not found:
        if left := _evidence(path, beside):
            raise DamagedError(f"it holds nothing, but {_and(left)} beside it: there was a state. {_advice(left)}")
        return
    check_rows(db, found)
    if found == SCHEMA_VERSION:  # older ones had no such file
        _check_high_water_mark(path, newest_version(db))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def check_rows(db: sqlite3.Connection, found: int) -> None:
    """Check what an open file of the schema `found` holds. Raises DamagedError, sqlite3.Error."""
    wrong = [text for (text,) in db.execute(f"PRAGMA quick_check({_NAMED})") if text != "ok"]
    if wrong:
        raise DamagedError("; ".join(" ".join(text.split()) for text in wrong))
    if found > 1:
        _check_states(db, found)
        _check_objects(db)


def _check_states(db: sqlite3.Connection, found: int) -> None:
    if found == SCHEMA_VERSION:
        bad = (row[0] for row in db.execute(_CHECKSUMS) if not _has_checksum(*row))
        why = "does not have its checksum"
    else:
        bad = (row[0] for row in db.execute("SELECT version FROM states WHERE NOT json_valid(CAST(body AS TEXT))"))
        why = "is no JSON"
    versions = list(islice(bad, 1000))
    if not versions:
        return
    named = []
    for version in versions[:_NAMED]:
        row = db.execute("SELECT resource, namespace, name FROM states WHERE version = ?", (version,)).fetchone()
        resource, namespace, name = row or ("?", "?", "?")
        named.append(f"the stored text of {resource} {namespace}/{name}, version {version}, {why}")
    more = f"; and {len(versions) - len(named)} others" if len(versions) > len(named) else ""
    raise DamagedError("; ".join(named) + more)


def _has_checksum(_version: Any, found: Any, head: Any, body: Any) -> bool:
    """Say whether a row has its checksum. Its values may be of any type: that is garbled as well."""
    return type(body) is bytes and type(head) is bytes and found == crc32(body, crc32(head))


def _check_objects(db: sqlite3.Connection) -> None:
    lost = db.execute(_WITHOUT_STATE).fetchmany(_NAMED)
    if lost:
        named = ", ".join(f"{resource} {namespace}/{name}" for resource, namespace, name, _ in lost)
        raise DamagedError(f"what was stored of {named} is not there")
    strange = db.execute(_WRONG_OWNERS).fetchmany(_NAMED)
    if strange:
        named = ", ".join(f"{resource} {namespace}/{name}" for resource, namespace, name in strange)
        raise DamagedError(f"the index of owners says something else of {named} than that itself")
    borders = db.execute("SELECT border FROM history").fetchall()
    if len(borders) != 1 or type(borders[0][0]) is not int or not 0 <= borders[0][0] <= newest_version(db):
        raise DamagedError("where its history begins is not there")


def _check_high_water_mark(path: Path, version: int) -> None:
    file = high_water_mark.path_beside(path)
    try:
        answered = high_water_mark.read(file)
    except ValueError as error:
        log.error("%s: %s: whether the newest writes are in %s can't be told this time", file, error, path)
        return
    if answered is not None and answered > version:
        raise DamagedError(
            f"it ends at version {version}, but writes up to {answered} were answered: its log {wal_path(path).name} "
            f"is missing or damaged, or it is an older copy. Put both files back from where they are whole; to go on "
            f"with what is here, remove {file.name}"
        )


def _and(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last} are" if first else f"{last} is"


def _advice(left: Sequence[str]) -> str:
    return f"Put it back, from a backup if need be; to begin with nothing, move {', '.join(left)} away, too"

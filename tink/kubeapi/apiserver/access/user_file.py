"""The file of users, DATA_DIR/users.json: written by the commands that hand out tokens and take them away, and read by
the server.

A change is whole or not there, and two commands at once do not lose each other's: they wait for the lock of the data
directory. It belongs to whom the data directory does, whoever writes it. Without the file there are no users.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from tink.errors import TinkedgeError
from tink.files import private_files
from tink.kubeapi.apiserver.access.users import Credential, UserError, Users

FILE: Final = "users.json"
"""Its name in the data directory."""
_LARGEST_BYTES: Final = 16 << 20


class UserFileError(TinkedgeError):
    """The file can't be used; the message names it and says what to do."""


def read_users(path: Path) -> Users:
    """Read the file. Raises UserFileError, OSError."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except FileNotFoundError:
        return Users()
    advice = "put the right one back, or remove it: then nobody but the administrator is known"
    if len(content) > _LARGEST_BYTES or not content.endswith(b"\n"):
        raise UserFileError(f"{path}: does not end with its line: it has been cut off; {advice}")
    try:
        users = Users.model_validate_json(content)
        users.check()
    except (ValidationError, UserError) as error:
        # Not what stands there: of who edits it by hand, it may be a token.
        why = error.errors(include_input=False, include_url=False)[0] if isinstance(error, ValidationError) else None
        said = f"{'.'.join(map(str, why['loc']))}: {why['msg']}" if why else str(error)
        raise UserFileError(f"{path}: {said}; {advice}") from None
    return users


def issue(
    data_dir: Path, name: str, role: str, namespaces: tuple[str, ...], now: datetime, expires: datetime | None
) -> tuple[Credential, str]:
    """Give a user a new token: its entry, and the token. Raises UserError, UserFileError, OSError."""
    with _changing(data_dir) as users:
        changed, credential, token = users.issue(name, role, namespaces, now, expires)
        _write(data_dir, changed)
    return credential, token


def change_role(data_dir: Path, name: str, role: str, namespaces: tuple[str, ...]) -> None:
    """Change what a user may do. Raises UserError, UserFileError, OSError."""
    with _changing(data_dir) as users:
        _write(data_dir, users.with_role(name, role, namespaces))


def revoke(data_dir: Path, name: str, token_id: str = "") -> None:
    """Take a token away, or the user with all of his. Raises UserError, UserFileError, OSError."""
    with _changing(data_dir) as users:
        _write(data_dir, users.revoke(name, token_id))


@contextmanager
def _changing(data_dir: Path) -> Iterator[Users]:
    handle = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        private_files.sweep(data_dir, FILE)
        yield read_users(data_dir / FILE)
    finally:
        os.close(handle)


def _write(data_dir: Path, users: Users) -> None:
    path = data_dir / FILE
    private_files.write(path, users.model_dump_json(indent=1).encode() + b"\n", owner_of=data_dir)

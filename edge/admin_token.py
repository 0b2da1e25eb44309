"""The token of the operators' HTTP (port 7081), in a file that only its owner reads.

Journeys tell what every machine boots, and what its actions print; a loopback address is open to each user of the host.
So the edge makes DATA_DIR/admin-token, and answers those who know what is in it. `tinkedge watch` reads it by itself.
"""

from __future__ import annotations

from pathlib import Path

from tink.errors import TinkedgeError
from tink.files.key_file import KeyFile

FILE = "admin-token"  # its name in the data directory

_MAX_BYTES = 64 << 10


class AdminTokenError(TinkedgeError):
    """There is no token to show; the message names the file and says what to do."""


def token_file(data_dir: Path, file: Path | None) -> Path:
    """Where it is: `file`, if the operator names one."""
    return file or data_dir / FILE


def accepted(data_dir: Path, file: Path | None) -> KeyFile:
    """The tokens that are accepted, one a line; one is made in the data directory if there is none. KeyFileError."""
    without = "operators' HTTP lets nobody in, and 'tinkedge watch' shows nothing" if file is None else ""
    return KeyFile(token_file(data_dir, file), "admin token", create=file is None, without=without)


def read(file: Path) -> str:
    """The token to show: the first in the file. Raises AdminTokenError."""
    try:
        with file.open(encoding="ascii") as opened:
            lines = [line.strip() for line in opened.read(_MAX_BYTES).splitlines()]
    except FileNotFoundError:
        raise AdminTokenError(
            f"there is no admin token {file}: the edge makes it when it starts; name its --data-dir, or a copy with "
            "--admin-token-file"
        ) from None
    except PermissionError:
        raise AdminTokenError(
            f"admin token {file} is for its owner only: ask as root (sudo), or as the user whom the edge runs as, or "
            "with a copy of it (--admin-token-file)"
        ) from None
    except NotADirectoryError:
        message = f"admin token {file}: {file.parent} is no directory; name the edge's --data-dir"
        raise AdminTokenError(message) from None
    except IsADirectoryError:
        raise AdminTokenError(f"admin token {file} is a directory; name the file in it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise AdminTokenError(f"admin token {file} can't be read: {error}") from error
    token = next((line for line in lines if line and not line.startswith("#")), "")
    if not token or not token.isprintable():
        raise AdminTokenError(
            f"admin token {file} is empty, or no token: remove it, and the edge makes one when it starts"
        )
    return token

"""`file://` URLs: files of the edge's own machine, served as they are, never copied."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from edge.artifacts.artifact import Artifact, Source
from edge.artifacts.errors import BadUrlError, NotFoundError, StorageError
from tink.files.data_directory import first_unreadable, give, user_name


def open_file(url: str, root: Path | None) -> Artifact:
    """The file below `root` (None: no file at all) that a file:// URL names (RFC 8089). Raises ArtifactError."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise BadUrlError(url, "a file URL must be file:///path, of a file on the edge's own machine")
    if root is None:
        raise BadUrlError(url, "this edge serves no files of its own machine (see --osie-dir)")
    try:
        fd = _open_below(url, os.path.realpath(unquote(parts.path)), root)
    except FileNotFoundError as error:
        raise NotFoundError(url, "no such file on the edge's machine") from error
    except PermissionError as error:
        raise StorageError(url, _refused(unquote(parts.path), root)) from error
    except (OSError, ValueError) as error:
        raise StorageError(url, f"can't be opened: {getattr(error, 'strerror', None) or error}") from error
    status = os.fstat(fd)
    if status.st_size == 0:
        os.close(fd)
        raise BadUrlError(url, "an empty file")
    return Artifact(url, fd, status.st_size, f"{status.st_mtime_ns:x}-{status.st_size:x}", Source.FILE, None)


def _refused(path: str, root: Path) -> str:
    """Say which directory or file this process can't read, and the command that lets it."""
    user = os.geteuid()
    shut = first_unreadable(Path(os.path.realpath(path)), Path(os.path.realpath(root))) or root
    return f"{user_name(user)} can't read {shut}: as root: '{give(root, user)}'"


def _open_below(url: str, path: str, root: Path) -> int:
    """Open a regular file. Raises BadUrlError, OSError, ValueError.

    What is found is held first, without opening it (O_PATH): only then it is certain where it is and what it is. Links
    may change between a look and the opening, and to open a device does something to it.
    """
    below = os.path.realpath(root) + "/"
    outside = BadUrlError(url, f"a file URL must name a file below {root} (see --osie-dir)")
    if not path.startswith(below):
        raise outside
    held = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        itself = Path(f"/proc/self/fd/{held}")
        if not str(itself.readlink()).startswith(below):
            raise outside
        if not stat.S_ISREG(os.fstat(held).st_mode):
            raise BadUrlError(url, "not a regular file")
        return os.open(itself, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(held)


def identity(fd: int) -> tuple[int, int, int, int, int]:
    """What changes when the file `fd` is written to or replaced, as far as the file system tells."""
    status = os.fstat(fd)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

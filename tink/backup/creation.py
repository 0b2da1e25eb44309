"""Creates a backup of a data directory while it is in use."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from tink.backup import archive, contents
from tink.backup.archive import Manifest
from tink.errors import TinkedgeError
from tink.files import private_files
from tink.files.archive import Progress, measure
from tink.kubeapi import survey_snapshot, take_snapshot


class BackupError(TinkedgeError):
    """No backup can be made."""


def create(
    directory: Path,
    open_output: Callable[[], BinaryIO],
    *,
    release: str,
    now: datetime,
    progress: Progress,
    osie: bool = False,
    files: bool = False,
    also: Collection[str] = (),
    work: Path | None = None,
) -> Manifest:
    """Write a backup of the data directory to the result of `open_output`.

    `open_output` is called after all files have been read and checked.

    `osie`, `files`: include these large files (`contents`). `also`: further entries of the directory. `work` is the
    place of the temporary copy of the state (None: the data directory), `now` has a time zone. Raises BackupError,
    ArchiveError, OSError.
    """
    state = directory / contents.STATE
    if not state.is_file():
        raise BackupError(
            f"{directory} holds no {contents.STATE}: it is no data directory with an embedded API. Give --data-dir; of "
            "objects in a cluster, the cluster's own backup has care"
        )
    for name in also:
        if not (directory / name).exists() or contents.is_state(name) or "/" in name:
            raise BackupError(f"--also {name}: {directory} has no such file or directory of yours")
    with private_files.directory(work or directory, "backup") as beside:
        copy = beside / contents.STATE
        _check_room(state, beside)
        take_snapshot(state, copy, progress)
        held = survey_snapshot(copy)
        names, paths = [contents.STATE], [copy]
        for name, path in contents.kept_files(directory, osie=osie, files=files, also=also):
            if problem := archive.unusable_name(name):
                raise BackupError(f"{path}: {problem}; move it out of the data directory")
            names.append(name)
            paths.append(path)
        described = tuple(measure(name, path) for name, path in zip(names, paths, strict=True))
        manifest = Manifest(release, now, held.layout, held.version, held.objects, described)
        manifest.check()
        archive.write(open_output(), manifest, paths, progress)
    return manifest


def _check_room(state: Path, beside: Path) -> None:
    """Check that the disk has room for a copy of the state. Raises BackupError."""
    found = os.statvfs(beside)
    free, needed = found.f_bavail * found.f_frsize, state.stat().st_size
    if free < needed:
        raise BackupError(
            f"{beside.parent}: has {free >> 20} MiB free, and a copy of the state takes {needed >> 20} MiB for a "
            "while: give another directory with --work-dir"
        )

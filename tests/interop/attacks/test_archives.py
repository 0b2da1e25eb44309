"""Decompression bombs: `tinkedge restore` of a small backup that expands beyond the room of the disk."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.rack import TINKEDGE

ZEROS = 600 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def _bomb(path: Path) -> None:
    """Write a backup of 600 MB of zeros, with a matching manifest."""
    digest = hashlib.sha256()
    for _ in range(ZEROS >> 20):
        digest.update(bytes(1 << 20))
    files = [{"name": "files/zeros", "size": ZEROS, "sha256": digest.hexdigest()}]
    head = {"format": 1, "tinkedge": "0", "created": "2026-11-23T12:00:00Z", "layout": 1, "version": 1, "objects": {}}
    text = json.dumps(head | {"files": files}).encode()
    with gzip.open(path, "wb", compresslevel=9) as file:
        for name, size in (("manifest.json", len(text)), ("files/zeros", ZEROS)):
            info = tarfile.TarInfo(name)
            info.size = size
            file.write(info.tobuf(tarfile.GNU_FORMAT))
            if name == "manifest.json":
                file.write(text + bytes(-size % tarfile.BLOCKSIZE))
        for _ in range(ZEROS >> 20):
            file.write(bytes(1 << 20))
        file.write(bytes(2 * tarfile.BLOCKSIZE))


def test_backup_of_600_kb_that_becomes_600_mb_writes_nothing_to_a_disk_without_room(disk: Path, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.tgz"
    _bomb(bomb)
    assert bomb.stat().st_size < 1 << 20
    before = os.statvfs(disk).f_bavail
    command = [*TINKEDGE, "restore", str(bomb), "--data-dir", str(disk / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "696 MB are needed there to restore, and 101 MB are free" in done.stderr
    assert not (disk / "data").exists()
    assert os.statvfs(disk).f_bavail == before

"""Files for their owner alone: whole or not there, whatever happens meanwhile."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tink.files import private_files


def test_file_is_closed_from_its_first_moment_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        private_files.write(tmp_path / "a", b"secret")
        assert private_files.create(tmp_path / "b", b"secret")
        private_files.write(tmp_path / "c", b"public", 0o644)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "abc"] == [0o600, 0o600, 0o644]
    assert not private_files.create(tmp_path / "b", b"second"), "the first of two makers wins"
    assert (tmp_path / "b").read_bytes() == b"secret"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failed_write_leaves_what_was_there_and_nothing_beside_it(tmp_path, call, monkeypatch) -> None:
    private_files.write(tmp_path / "a", b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*((os, call, full) if call == "fsync" else (Path, call, full)))
        with pytest.raises(OSError, match="No space left"):
            private_files.write(tmp_path / "a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_file_and_its_name_are_on_the_disk_when_it_has_been_written(tmp_path, monkeypatch) -> None:
    flushed: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    private_files.write(tmp_path / "a", b"1")
    private_files.create(tmp_path / "b", b"1")
    assert [path == str(tmp_path) for path in flushed] == [False, True, False, True]


def test_sweep_removes_only_temporary_files_of_killed_writers(tmp_path: Path) -> None:
    for name in (".token.abcd_123", ".token.mine", "token.abcd_123", ".other.abcd_123"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / ".pki.abcd1234").mkdir()
    (tmp_path / ".pki.abcd1234" / "ca.key").write_bytes(b"x")
    private_files.sweep(tmp_path, "token", "pki")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.abcd_123", ".token.mine", "token.abcd_123"]

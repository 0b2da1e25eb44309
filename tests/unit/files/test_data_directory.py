"""The data directory: its owner, its modes, directories that are never changed, and atomic private files."""

from __future__ import annotations

import os
import pwd
import stat
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edge.commands.backup import ALIKE, name_at
from edge.doctor import check_data_directory
from tink.files import data_directory, private_files
from tink.files.data_directory import (
    DataDirectoryError,
    as_owner,
    as_root_again,
    claim,
    disk_refuses,
    first_unreadable,
    out_of_reach,
    owner_of,
    problems,
)

NOBODY = pwd.getpwnam("nobody").pw_uid


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    made.chmod(0o755)
    return made


def put(directory: Path, *names: str, permissions: int = 0o644) -> None:
    for name in names:
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
        path.chmod(permissions)


def test_missing_directory_is_made_with_mode_0700_without_following_links(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        claim(tmp_path / "a" / "data")
    finally:
        os.umask(before)
    assert mode(tmp_path / "a" / "data") == 0o700
    assert problems(tmp_path / "a" / "data") == []
    put(tmp_path, "keys")
    (tmp_path / "a" / "data" / "metadata-token.key").symlink_to(tmp_path / "keys")
    claim(tmp_path / "a" / "data")
    assert mode(tmp_path / "keys") == 0o644, "a link to a file elsewhere is not followed"
    with pytest.raises(DataDirectoryError, match=f"data directory {tmp_path}/keys: File exists"):
        claim(tmp_path / "keys")
    with pytest.raises(DataDirectoryError, match="Not a directory"):
        claim(tmp_path / "keys" / "below")
    assert disk_refuses(tmp_path) == ""
    assert disk_refuses(tmp_path / "missing") == "No such file or directory"
    assert disk_refuses(Path("/proc")) in ("", "the disk is full (/proc: 0 bytes free of 0 MB)")


@pytest.mark.parametrize("open_mode", [0o755, 0o750, 0o777, 0o2775, 0o1777, 0o711])
def test_open_directory_of_ours_is_closed_and_logged_once(place, open_mode, caplog) -> None:
    place.chmod(open_mode)
    claim(place)
    assert mode(place) & 0o777 == 0o700
    put(place, "state.db", "state.db-wal", "state.db-shm", "state.lock", "state.newest", "token", "kubeconfig")
    put(place, "metadata-token.key", "agent-token.key", "pki/ca.key", "pki/ca.crt", ".token.abcd_123")
    put(place, ".checkpoint.key.abcd_123")
    for name in ("artifacts", "checkpoint", "journey", "machine-logs", "osie", "lost+found"):
        (place / name).mkdir()
    place.chmod(open_mode)
    assert [problem.is_fixable for problem in problems(place)] == [True, True]
    claim(place)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert f"(mode {open_mode:04o}); state.db" not in caplog.text
    assert f"(mode {open_mode:04o}); agent-token.key, kubeconfig, metadata-token.key, pki, state.db" in caplog.text
    assert {mode(path) for path in place.iterdir() if path.is_file() and path.name[0] != "."} == {0o600}
    assert mode(place / "pki") == 0o700
    assert mode(place / "pki" / "ca.key") == 0o600
    assert problems(place) == []
    claim(place)
    assert len(caplog.records) == 2


@pytest.mark.parametrize("name", ["letters", ".bashrc", "etc", "state.db.bak", ".token.abc"])
@pytest.mark.parametrize("beside", [(), ("state.db", "token")])
def test_open_directory_with_something_else_in_it_is_never_touched(place, name, beside) -> None:
    put(place, name, *beside)
    with pytest.raises(
        DataDirectoryError, match=rf"\(mode 0755\); it also has files that are not tinkedge's .*'chmod 700 {place}"
    ):
        claim(place)
    assert mode(place) == 0o755
    assert {mode(path) for path in place.iterdir()} == {0o644}
    place.chmod(0o700)  # what the message names
    claim(place)
    assert mode(place / name) == 0o644


def test_root_and_the_temporary_directory_are_never_touched() -> None:
    for directory in (Path("/"), Path("/tmp"), Path("/usr")):
        before = directory.stat().st_mode
        with pytest.raises(DataDirectoryError):
            claim(directory)
        assert directory.stat().st_mode == before


def test_directory_of_another_user_is_refused_also_when_it_is_closed(place: Path) -> None:
    for permissions in (0o700, 0o755, 0o777):
        place.chmod(permissions)
        os.chown(place, NOBODY, -1)
        with pytest.raises(DataDirectoryError, match=r"belongs to user nobody, .*; run this as user nobody, "):
            claim(place)
        assert mode(place) == permissions


@pytest.mark.parametrize(
    ("owner", "user", "remedy"),
    [
        (0, NOBODY, "as root: 'chown -R nobody: {}', or give a --data-dir"),
        (0, 4242, "as root: 'chown -R 4242: {}', or give a --data-dir"),
        (NOBODY, 0, "run this as user nobody, or give a --data-dir"),
        (NOBODY, 4242, "run this as user nobody or root, or give a --data-dir"),
    ],
)
def test_remedy_gives_away_no_directory_but_one_of_root(place: Path, owner: int, user: int, remedy: str) -> None:
    os.chown(place, owner, -1)
    (found,) = problems(place, user)
    assert found.remedy.startswith(remedy.format(place))


def open_the_way(place: Path) -> None:
    """Let each user reach the directory, because pytest's directories are closed to other users."""
    for each in place.parents:
        each.chmod(each.stat().st_mode | 0o055)


@pytest.fixture
def packaged(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory of the package, with an unprivileged user as the service's user."""
    monkeypatch.setattr(data_directory, "PACKAGED", place)
    monkeypatch.setattr(data_directory, "SERVICE_USER", "nobody")
    return place


def test_package_directory_of_the_wrong_user_names_the_remedy(packaged: Path) -> None:
    for user in (NOBODY, 4242):
        (found,) = problems(packaged, user)
        assert f"as root: 'chown -R nobody: {packaged}'" in found.remedy
    os.chown(packaged, NOBODY, -1)
    (found,) = problems(packaged, 4242)
    assert "'systemctl start tinkedge', or run this as user nobody or root" in found.remedy


def test_missing_directory_of_the_package_is_made_for_its_user_and_any_other_for_the_caller(packaged: Path) -> None:
    open_the_way(packaged)
    packaged.rmdir()
    owner = owner_of(packaged)
    assert owner is not None
    assert owner.user == NOBODY
    with as_owner(packaged):
        assert not packaged.exists(), "only a command that writes there makes it"
    with as_owner(packaged, make=True):
        assert (os.geteuid(), packaged.stat().st_uid, mode(packaged)) == (NOBODY, NOBODY, 0o700)
        claim(packaged)
    other = packaged.parent / "other"
    assert owner_of(other) is None
    with as_owner(other, make=True):
        assert (os.geteuid(), other.exists()) == (0, False)


def test_root_acts_as_the_owner_inside_the_directory_and_as_root_outside(place: Path) -> None:
    os.chown(place, NOBODY, -1)
    place.chmod(0o700)
    open_the_way(place)
    groups = os.getgroups()
    with as_owner(place):
        put(place, "token", permissions=0o600)
        with as_root_again():
            put(place.parent, "backup", permissions=0o600)
        with pytest.raises(PermissionError):
            (place.parent / "backup").read_bytes()
    assert (os.geteuid(), os.getgroups()) == (0, groups)
    assert [path.stat().st_uid for path in (place / "token", place.parent / "backup")] == [NOBODY, 0]


def test_topmost_unreadable_path_of_each_tree_is_found_and_no_link_is_followed(place: Path) -> None:
    os.chown(place, NOBODY, -1)
    place.chmod(0o700)
    open_the_way(place)
    assert out_of_reach(place) == []
    for folder in ("osie/hookos/inner", "files", "images", "other"):
        (place / folder).mkdir(parents=True)
        (place / folder / "kernel").write_text("x")
    (place / "files" / "away").symlink_to("/proc/1")
    assert out_of_reach(place) == [], "a file of root is no mistake while it can be read"
    (place / "osie" / "hookos").chmod(0o700)
    (place / "images" / "kernel").chmod(0o600)
    (place / "other").chmod(0)
    (found,) = out_of_reach(place)
    assert found.seen == "user nobody can't read osie/hookos, images/kernel in it"
    assert found.remedy == f"as root: 'chown -R nobody: {place}/osie; chown -R nobody: {place}/images'"
    with as_owner(place):
        shut = first_unreadable(place / "osie" / "hookos" / "inner" / "kernel", place / "osie")
        assert shut == place / "osie" / "hookos"
        assert first_unreadable(place / "files" / "kernel", place / "files") is None
        assert first_unreadable(Path("/elsewhere"), place) is None


@pytest.mark.parametrize("link", [False, True])
def test_file_that_another_user_has_put_there_is_not_taken(place: Path, tmp_path: Path, link: bool) -> None:
    place.chmod(0o777)
    if link:
        (place / "token").symlink_to(tmp_path / "elsewhere")
    else:
        put(place, "token")
    os.chown(place / "token", NOBODY, -1, follow_symlinks=False)
    with pytest.raises(DataDirectoryError, match="token in it belongs to another user, who may have put it there"):
        claim(place)
    assert mode(place) == 0o777


def test_doctor_reports_faults_and_is_content_after_the_remedy(place: Path) -> None:
    put(place, "state.db")
    directory, files, disk = check_data_directory(place)
    assert (directory.is_fine, files.is_fine, disk.is_fine) == (False, False, True)
    assert "other users of this host can look into it (mode 0755)" in directory.seen
    assert f"'chmod 700 {place}'" in directory.remedy
    assert "state.db in it can be read by others" in files.seen
    assert mode(place) == 0o755
    claim(place)
    assert [finding.is_fine for finding in check_data_directory(place)] == [True, True]
    os.chown(place / "state.db", NOBODY, -1)
    assert "state.db in it belongs to another user" in next(check_data_directory(place)).seen
    os.chown(place, NOBODY, -1)  # tinkedge may run as that user; root only asks
    assert next(check_data_directory(place)).seen == "for user nobody alone"
    os.chown(place, 0, -1)
    os.chown(place / "state.db", 0, -1)
    put(place, "letters")
    place.chmod(0o777)
    assert "write to it (mode 0777)" in next(check_data_directory(place)).seen
    assert next(check_data_directory(place / "missing")).is_fine
    assert not next(check_data_directory(place / "letters" / "below")).is_fine


def test_doctor_names_a_key_that_can_not_be_used(place: Path) -> None:
    place.chmod(0o700)
    put(place, "metadata-token.key", "admin-token", permissions=0o600)
    (place / "admin-token").write_text("a" * 64 + "\n")
    (bad,) = [finding for finding in check_data_directory(place) if not finding.is_fine]
    assert bad.name == f"metadata token key {place}/metadata-token.key"
    assert bad.seen == "a key has less than 32 characters"
    assert "restore it from a backup, or remove it" in bad.remedy


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


@pytest.mark.parametrize("alike", ["", ALIKE])
def test_partial_files_of_killed_writers_are_removed_and_those_of_others_are_not(tmp_path: Path, alike: str) -> None:
    file, earlier = (tmp_path / name_at(datetime(2026, 11, day, tzinfo=UTC), encrypted=True) for day in (29, 28))
    of_file, of_earlier = (tmp_path / f".{each.name}.abcdefgh" for each in (file, earlier))
    other = tmp_path / ".notes.tgz.abcdefgh"
    put(tmp_path, of_file.name, of_earlier.name, other.name)
    with private_files.stream(file, alike) as one, private_files.stream(file, alike) as two:
        assert len([*tmp_path.glob(f".{file.name}.*")]) == 2, "a partial file is in use as long as its writer lives"
        one.write(b"one")
        two.write(b"two")
    assert file.read_bytes() == b"one"
    assert {*tmp_path.iterdir()} == {file, other} | ({of_earlier} if not alike else set())


def test_file_that_is_not_private_keeps_its_mode_and_a_link_stays_one(tmp_path: Path) -> None:
    put(tmp_path, "file", permissions=0o664)
    (tmp_path / "link").symlink_to("file")
    with suppress(ZeroDivisionError), private_files.stream(tmp_path / "link", private=False) as out:
        out.write(b"half")
        raise ZeroDivisionError
    assert (tmp_path / "file").read_bytes() == b"file"
    with private_files.stream(tmp_path / "link", private=False) as out:
        out.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert ((tmp_path / "file").read_bytes(), mode(tmp_path / "file")) == (b"new", 0o664)
    with private_files.stream(Path(os.devnull), private=False) as out:
        out.write(b"to a device")
    with private_files.stream(tmp_path / ("n" * 250), private=False) as out:
        out.write(b"long name")

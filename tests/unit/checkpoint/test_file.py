"""A file of a checkpoint: what was known comes back, and whatever else may stand there is named and ignored."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.checkpoint import file
from edge.checkpoint.file import AbsentError, CheckpointError, Head, LookedUpBy
from tink.kube.cache import ObjectCompressor, Packed
from tink.kube.objects import NamespacedName

CLUSTER = frozenset({"ca:1"})


def machine(number: int) -> dict[str, Any]:
    return {"metadata": {"name": f"m{number}", "namespace": "default", "uid": f"u{number}"}, "spec": {"n": number}}


def packed(count: int) -> Packed:
    """Half of them compressed, as an informer has them, half as they are."""
    compressor = ObjectCompressor()
    objects = {key(n): compressor.compress(machine(n)) if n % 2 == 0 else machine(n) for n in range(count)}
    return Packed(compressor.dictionary, objects)


def key(number: int) -> NamespacedName:
    return NamespacedName("default", f"m{number}")


def read(path: Path, kind: str = "hardware", cluster: frozenset[str] = CLUSTER) -> tuple[Head, list[Any]]:
    with file.opened(path, kind, cluster) as content:
        entries = list(content.entries())
        return content.head, [content.packer.decompress(entry.packed) for entry in entries]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A checkpoint of nine machines, known at 1000."""
    file.write(tmp_path / "hardware", Head("hardware", 1000.0, CLUSTER | {"ca:0"}, 9), packed(9))
    return tmp_path / "hardware"


@pytest.mark.parametrize("count", [0, 1, 2, 500, 1201])
def test_written_objects_are_read_back(tmp_path: Path, count: int) -> None:
    size = file.write(tmp_path / "f", Head("hardware", 1000.0, CLUSTER, count), packed(count))
    head, objects = read(tmp_path / "f")
    assert objects == [machine(n) for n in range(count)]
    assert (head.known, head.objects, (tmp_path / "f").stat().st_size) == (1000.0, count, size)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    file.write(tmp_path / "f", Head("hardware", 1.0, CLUSTER, 1), Packed(b"", {key(7): machine(7)}))
    assert read(tmp_path / "f")[1] == [machine(7)], "one that was never compressed"


def test_entries_have_their_lookup_values_before_they_are_unpacked(tmp_path: Path) -> None:
    """Also what changed since its machines were read, of which nothing is at hand."""
    at_hand = {key(0): ["at hand"]}
    looked_up_by = LookedUpBy(lambda each, _packed: at_hand.get(each), lambda obj: [obj["metadata"]["uid"]])
    file.write(tmp_path / "f", Head("hardware", 1.0, CLUSTER, 3), packed(3), looked_up_by)
    with file.opened(tmp_path / "f", "hardware", CLUSTER) as content:
        found = [(entry.key, entry.looked_up_by) for entry in content.entries()]
    assert found == [(key(0), ["at hand"]), (key(1), ["u1"]), (key(2), ["u2"])]


def test_newer_mtime_moves_the_known_time(path: Path) -> None:
    os.utime(path, (2000, 2000))
    assert read(path)[0].known == 2000.0
    os.utime(path, (500, 500))
    assert read(path)[0].known == 1000.0, "a clock that was set back"


def test_file_that_is_cut_off_anywhere_is_named_and_ignored(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"hardware is damaged, or was cut off: it is ignored, and written"):
            read(path)


def test_file_with_any_other_byte_is_named_and_ignored(path: Path) -> None:
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CheckpointError, match="it is ignored"):
            read(path)


def foreign(path: Path) -> None:
    path.write_bytes(b"tinkedge-checkpoint/3\n{}\n")


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (foreign, "is of another release (format 3, this one has 2)"),
        (linked, "can't be read: Too many levels of symbolic links"),
        (pipe, "is no plain file"),
        (directory, "is no plain file"),
        (lambda path: path.chmod(0o660), "can be written by others (mode 0660)"),
        (lambda path: path.write_bytes(b""), "is damaged"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "is damaged"),
    ],
)
def test_unusable_file_is_named_and_ignored(path: Path, spoil: Callable[[Path], Any], said: str) -> None:
    spoil(path)
    with pytest.raises(CheckpointError) as raised:
        read(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)


def test_file_of_another_cluster_kind_or_user_is_ignored_and_none_is_no_mistake(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AbsentError):
        read(path.with_name("none"))
    with pytest.raises(CheckpointError, match="is of another cluster: it is ignored"):
        read(path, cluster=frozenset({"ca:2"}))
    with pytest.raises(CheckpointError, match="is one of hardware"):
        read(path, kind="osies")
    assert read(path, cluster=frozenset({"ca:0", "ca:7"}))[0].objects == 9, "an authority that is being renewed"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(CheckpointError, match=r"belongs to user \S+, who may have put it there: it is ignored"):
        read(path)


def test_more_than_there_may_be_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "MAX_BYTES", 100)
    with pytest.raises(OSError, match="more than 100 bytes"):
        file.write(tmp_path / "f", Head("hardware", 1.0, CLUSTER, 9), packed(9))
    assert not list(tmp_path.iterdir())

"""What an edge keeps for when the API is away: what it knew, whole or not at all, and the Secrets of its Hardware."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.checkpoint import Checkpoint, KeptSecrets, checkpoint, discard, file
from edge.checkpoint import file as checkpoint_file
from edge.checkpoint.file import AbsentError, CheckpointError, Head, LookedUpBy
from tests.support.informer import InMemoryInformer
from tests.support.virtual_time import elapse
from tink.files.key_file import KeyFile
from tink.kube.cache import ObjectCompressor, Packed
from tink.kube.client import ApiError, NotFoundError, UnreachableError
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE, WORKFLOW

CLUSTER = frozenset({"ca:1"})


def obj(name: str, version: int = 1, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": spec}


class Followed(InMemoryInformer):
    """An informer that is asked about the API in the event loop alone, as the real one."""

    away = 0.0

    @property
    def failing_for(self) -> float:  # type: ignore[override]
        asyncio.get_running_loop()
        return self.away


class Process:
    """What an edge has: informers that hear what a test says, and a clock that it moves."""

    def __init__(self, data_dir: Path) -> None:
        self.now = 5000.0
        self.hardware = Followed(HARDWARE, synced=False, compressor=ObjectCompressor())
        self.workflows = Followed(WORKFLOW, synced=False)
        self.open: list[NamespacedName] = []
        self.checkpoint = Checkpoint(
            data_dir,
            CLUSTER,
            {"hardware": (self.hardware, None), "workflows": (self.workflows, lambda: self.open)},
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )

    def hears(self, *objects: dict[str, Any]) -> None:
        for each in objects:
            self.hardware.feed("MODIFIED", each)

    def listed(self) -> None:
        self.hardware.listed()
        self.workflows.listed()

    def loses_the_api(self) -> None:
        self.hardware.away = self.workflows.away = 10.0

    async def after(self, seconds: float) -> None:
        self.now += seconds
        await self.checkpoint.look()


@pytest.fixture
async def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


def written(data_dir: Path, kind: str = "hardware") -> list[str]:
    path = data_dir / "checkpoint" / kind
    if not path.exists():
        return []
    with checkpoint_file.opened(path, kind, CLUSTER) as content:
        return [entry.key.name for entry in content.entries()]


async def test_changes_that_come_together_are_written_together_and_not_all_the_time(process, tmp_path) -> None:
    process.hears(obj("a"))
    await process.after(60)
    assert not written(tmp_path), "not before all is listed"
    process.listed()
    await process.after(1)
    assert written(tmp_path) == ["a"]
    await process.after(10)
    process.workflows.feed("MODIFIED", obj("runs"))
    process.workflows.feed("MODIFIED", obj("ended"))
    process.open = [NamespacedName("default", "runs"), NamespacedName("default", "just-gone")]
    process.hears(obj("b"))
    await process.after(1)
    assert written(tmp_path) == ["a"], "more may be on its way"
    process.hears(obj("c"))
    await process.after(1)
    assert written(tmp_path) == ["a", "b", "c"]
    assert written(tmp_path, "workflows") == ["runs"], "only those that have not ended"
    process.hears(obj("d"))
    await process.after(5)
    assert written(tmp_path) == ["a", "b", "c"], "ten seconds between two writings"
    await process.after(5)
    assert written(tmp_path) == ["a", "b", "c", "d"]
    process.hears(obj("e"))
    await process.checkpoint.close()
    assert written(tmp_path) == ["a", "b", "c", "d", "e"], "the end writes what waits"
    for _ in range(2):
        discard(tmp_path)
        assert not (tmp_path / "checkpoint").exists()


async def test_large_file_is_written_seldom(process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_BYTES_PER_SECOND", 1)
    process.listed()
    process.hears(obj("a"))
    await process.after(2)
    process.hears(obj("b"))
    await process.after(100)
    assert written(tmp_path) == ["a"]
    await process.after(1000)
    assert written(tmp_path) == ["a", "b"]


async def test_next_process_restores_objects_and_the_time_they_were_known(process: Process, tmp_path: Path) -> None:
    process.listed()
    process.hears(obj("a", 4, ip="10.0.0.1"), obj("b", 7))
    await process.after(2)
    await process.after(60)
    until = process.now
    again = Process(tmp_path)
    again.now = until + 3600
    assert again.checkpoint.exists
    assert await again.checkpoint.restore() == until, "nothing has changed since, and the API was there"
    assert again.hardware.get("default", "a") == obj("a", 4, ip="10.0.0.1")
    assert len(again.hardware) == 2
    assert not again.hardware.has_synced


async def test_known_time_stands_still_while_the_api_is_away(process: Process, tmp_path: Path) -> None:
    """Informers are asked in the event loop, whose clock says for how long: elsewhere that would end the edge."""
    process.listed()
    process.hears(obj("a"))
    await process.after(2)
    known = process.now
    process.loses_the_api()
    await process.after(3600)
    again = Process(tmp_path)
    again.now = process.now
    assert await again.checkpoint.restore() == known
    process.hears(obj("b"))
    await process.after(20)
    again = Process(tmp_path)
    again.now = process.now
    assert await again.checkpoint.restore() == process.now - 10, "written during an outage: the time before it"


async def test_full_disk_is_logged_once_and_retried(process, tmp_path, monkeypatch, caplog) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(checkpoint, "_SPARE_BYTES", 1 << 60)
    process.listed()
    process.hears(obj("a"))
    for _ in range(10):
        await process.after(300)
    said = [line for line in caplog.messages if "the checkpoint of hardware can't be written: less than" in line]
    assert len(said) == 1
    assert process.checkpoint.states["hardware"] == (0, True)
    monkeypatch.setattr(checkpoint, "_SPARE_BYTES", 0)
    await process.after(300)
    assert written(tmp_path) == ["a"]
    assert "the checkpoint of hardware is written again" in caplog.messages


@pytest.mark.looptime
async def test_disk_that_refuses_ends_nothing(process, tmp_path, monkeypatch, caplog) -> None:
    """Read-only for now, or broken: `run` would end the whole edge."""

    def refuse(*_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(checkpoint.private_files, "sweep", refuse)
    monkeypatch.setattr(checkpoint.private_files, "stream", refuse)
    process.listed()
    process.hears(obj("a"))
    process.now += 10
    running = asyncio.create_task(process.checkpoint.run())
    await elapse(5)
    assert "can't be written: Read-only file system" in caplog.text
    assert not running.done()
    running.cancel()
    monkeypatch.setattr(Path, "lstat", refuse)
    assert not process.checkpoint.exists


async def test_damaged_part_costs_that_part_alone(process, tmp_path, caplog) -> None:
    process.listed()
    process.hears(obj("a"))
    process.workflows.feed("MODIFIED", obj("runs"))
    process.open = [NamespacedName("default", "runs")]
    await process.after(2)
    (tmp_path / "checkpoint" / "workflows").write_bytes(b"junk")
    again = Process(tmp_path)
    assert await again.checkpoint.restore() is not None
    assert (len(again.hardware), len(again.workflows)) == (1, 0)
    assert "checkpoint/workflows is damaged" in caplog.text
    (tmp_path / "checkpoint" / "hardware").write_bytes(b"junk")
    assert await Process(tmp_path).checkpoint.restore() is None, "without Hardware there is nothing to serve"


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


WORD = "aHVzaA=="
SECRET = {"type": "Opaque", "data": {"userData": WORD}, "metadata": {"name": "s"}}
AWAY = UnreachableError("no route")


def hardware(name: str, **annotations: str) -> dict[str, Any]:
    named = {f"tinkerbell.org/{kind}-secret": value for kind, value in annotations.items()}
    return {"metadata": {"name": name, "namespace": "ns", "annotations": named}}


class Edge:
    """One process: its copies, the API as it answers it, and its clock."""

    def __init__(self, directory: Path, cluster: frozenset[str] = CLUSTER, key: str = "key") -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {"s": SECRET}
        self.directory = directory / "secrets"
        self.kept = KeptSecrets(
            self.directory,
            KeyFile(directory / key, "checkpoint key", create=True),
            self._read,
            cluster,
            synced=lambda: True,
            clock=lambda: 1000.0,
            monotonic=lambda: self.now,
        )

    async def _read(self, _namespace: str, name: str) -> Any:
        self.asked.append(name)
        found = self.answers.get(name, NotFoundError(404, "NotFound", name))
        if isinstance(found, Exception):
            raise found
        return found

    def files(self) -> list[Path]:
        return sorted(self.directory.iterdir()) if self.directory.exists() else []


@pytest.fixture
async def edge(tmp_path: Path) -> Edge:
    """One that has read ahead the Secret `s` of the machine `m`."""
    edge = Edge(tmp_path)
    edge.kept.apply(hardware("m", userdata="s"))
    await edge.kept.step()
    return edge


async def test_machine_gets_its_secret_while_the_api_is_away(edge: Edge, tmp_path: Path) -> None:
    again = Edge(tmp_path)
    again.answers["s"] = AWAY
    assert await again.kept.read("ns", "s") == {"type": "Opaque", "data": {"userData": WORD}}
    again.answers["s"] = ApiError(503, "ServiceUnavailable", "etcd")
    assert (await again.kept.read("ns", "s"))["data"] == {"userData": WORD}
    [path] = edge.files()
    assert path.stat().st_mode & 0o777 == 0o600
    for word in (WORD, "hush", "userData", "Opaque"):
        assert word.encode() not in path.read_bytes(), "nothing of it can be read on the disk"
    assert path.name != "s"
    key = tmp_path / "key"
    key.write_text("n" * 64 + "\n" + key.read_text())  # a new key reads copies of the old one
    again = Edge(tmp_path)
    again.answers["s"] = AWAY
    assert (await again.kept.read("ns", "s"))["data"] == {"userData": WORD}


async def test_answer_of_the_api_replaces_the_copy(edge: Edge) -> None:
    edge.answers["s"] = ApiError(403, "Forbidden", "no right")
    with pytest.raises(ApiError, match="no right"):
        await edge.kept.read("ns", "s")
    edge.answers["s"] = {"type": "Opaque", "data": {"userData": "bmV3"}}
    assert (await edge.kept.read("ns", "s"))["data"] == {"userData": "bmV3"}
    edge.answers["s"] = AWAY
    assert (await edge.kept.read("ns", "s"))["data"] == {"userData": "bmV3"}
    del edge.answers["s"]
    with pytest.raises(NotFoundError):
        await edge.kept.read("ns", "s")
    edge.answers["s"] = AWAY
    with pytest.raises(UnreachableError):
        await edge.kept.read("ns", "s")
    assert not edge.files()


async def test_secret_goes_with_the_last_hardware_that_names_it(edge: Edge) -> None:
    edge.kept.apply(hardware("other", vendordata="s/key"))
    edge.kept.remove(hardware("m"))
    assert len(edge.files()) == 1
    edge.kept.apply(hardware("other"))
    assert not edge.files()
    await edge.kept.read("ns", "s")
    assert not edge.files(), "no Hardware names it: it is none of ours to keep"


@pytest.mark.parametrize("kind", ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"])
async def test_secrets_that_open_the_cluster_are_never_kept(tmp_path: Path, kind: str) -> None:
    edge = Edge(tmp_path)
    edge.answers["s"] = SECRET | {"type": kind}
    edge.kept.apply(hardware("m", userdata="s"))
    await edge.kept.step()
    assert edge.asked == ["s"]
    assert not edge.files()


async def test_reading_ahead_is_slow_and_goes_round(edge: Edge) -> None:
    for name in ("a", "b"):
        edge.answers[name] = SECRET
        edge.kept.apply(hardware(name, userdata=name))
    assert [await edge.kept.step() for _ in range(3)] == [0.1, 0.1, 1.0], "and then nothing is due"
    assert sorted(edge.asked) == ["a", "b", "s"]
    edge.now = 6 * 3600.0
    await edge.kept.step()
    assert edge.asked[-1] == "s", "the one that was read first"
    edge.answers |= dict.fromkeys(("s", "a", "b"), AWAY)
    edge.now *= 2
    asked = len(edge.asked)
    assert await edge.kept.step() == 30.0, "an API that is away is not asked for every Secret"
    assert len(edge.asked) == asked + 1
    assert len(edge.files()) == 3, "what is kept stays"


async def test_copy_of_another_key_cluster_or_secret_is_named_and_not_served(edge, tmp_path, caplog) -> None:
    [path] = edge.files()
    for other, said in (
        (Edge(tmp_path, key="key2"), "not encrypted with a key of this edge, or damaged"),
        (Edge(tmp_path, frozenset({"ca:2"})), "of another cluster"),
    ):
        other.answers["s"] = AWAY
        with pytest.raises(UnreachableError):
            await other.kept.read("ns", "s")
        assert f"Secret ns/s can't be used: it is {said}" in caplog.text
    edge.answers["other"] = SECRET
    edge.kept.apply(hardware("other", userdata="other"))
    await edge.kept.step()
    [other_path] = set(edge.files()) - {path}
    edge.answers["other"] = AWAY
    path.rename(other_path)
    with pytest.raises(UnreachableError):
        await edge.kept.read("ns", "other")
    other_path.write_bytes(other_path.read_bytes()[:-1])
    with pytest.raises(UnreachableError):
        await edge.kept.read("ns", "other")


@pytest.mark.looptime
async def test_copies_that_no_hardware_names_are_swept(edge: Edge, tmp_path: Path) -> None:
    again = Edge(tmp_path)
    running = asyncio.create_task(again.kept.run())
    await elapse(2)
    running.cancel()
    assert not again.files(), "the Hardware went while the edge was down"

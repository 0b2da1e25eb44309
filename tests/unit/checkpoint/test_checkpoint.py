"""The checkpoint of an edge: what it restores while the API is away, and the Secrets of its Hardware."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.checkpoint import Checkpoint, SecretStore, checkpoint, discard
from tests.support.informer import InMemoryInformer
from tests.support.virtual_time import elapse
from tests.waiting import until
from tink.files.key_file import KeyFile
from tink.kube.client import ApiError, NotFoundError, UnreachableError
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE, WORKFLOW

CLUSTER = frozenset({"ca:1"})


def obj(name: str, version: int = 1, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": spec}


def machine(number: int, mac: str = "") -> dict[str, Any]:
    return obj(f"m{number:03}", mac=mac or f"mac-{number}")


class Process:
    """An edge process with informers that the test feeds and a clock that it moves."""

    def __init__(self, data_dir: Path, cluster: frozenset[str] = CLUSTER, now: float = 5000.0) -> None:
        self.now = now
        self.hardware = InMemoryInformer(HARDWARE, synced=False)
        self.workflows = InMemoryInformer(WORKFLOW, synced=False)
        self.open: list[NamespacedName] = []
        self.checkpoint = Checkpoint(
            data_dir,
            cluster,
            {"hardware": self.hardware, "workflows": self.workflows},
            wanted={"workflows": lambda: self.open},
            lookup_values=lambda hardware: [hardware["spec"]["mac"]] if "mac" in hardware["spec"] else [],
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )

    def has(self, *objects: dict[str, Any]) -> None:
        for each in objects:
            self.hardware.feed("MODIFIED", each)

    def listed(self) -> None:
        self.hardware.listed()
        self.workflows.listed()

    def loses_the_api(self) -> None:
        self.hardware.failing_for = self.workflows.failing_for = 10.0

    async def after(self, seconds: float) -> None:
        self.now += seconds
        await self.checkpoint.look()

    def names(self) -> list[str]:
        return [key.name for key in self.hardware]


@pytest.fixture
async def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


async def restarted(data_dir: Path, now: float = 5000.0, **options: Any) -> Process:
    """Return a new process that has restored what it can."""
    process = Process(data_dir, now=now, **options)
    await process.checkpoint.open()
    await process.checkpoint.restore()
    return process


def path_of(data_dir: Path) -> Path:
    return data_dir / "checkpoint" / "objects.db"


def written(data_dir: Path, collection: str = "hardware") -> list[str]:
    if not path_of(data_dir).exists():
        return []
    connection = sqlite3.connect(path_of(data_dir))
    try:
        found = connection.execute("SELECT key FROM object WHERE collection = ? ORDER BY key", (collection,))
        return [key.partition("/")[2] for (key,) in found]
    finally:
        connection.close()


async def test_changes_that_come_together_are_written_together_with_pauses(process: Process, tmp_path: Path) -> None:
    process.has(obj("a"))
    await process.after(60)
    assert not written(tmp_path), "not before all is listed"
    process.listed()
    await process.after(1)
    assert written(tmp_path) == ["a"]
    await process.after(10)
    process.workflows.feed("MODIFIED", obj("runs"))
    process.workflows.feed("MODIFIED", obj("ended"))
    process.open = [NamespacedName("default", "runs"), NamespacedName("default", "just-gone")]
    process.has(obj("b"))
    await process.after(1)
    assert written(tmp_path) == ["a"], "more changes may follow"
    process.has(obj("c"))
    await process.after(1)
    assert written(tmp_path) == ["a", "b", "c"]
    assert written(tmp_path, "workflows") == ["runs"], "only those that have not ended"
    process.has(obj("d"))
    process.hardware.remove("a")
    await process.after(5)
    assert written(tmp_path) == ["a", "b", "c"], "ten seconds between two writings"
    await process.after(5)
    assert written(tmp_path) == ["b", "c", "d"]
    process.has(obj("e"))
    await process.checkpoint.close()
    assert written(tmp_path) == ["b", "c", "d", "e"], "the end writes the remaining changes"
    for path in path_of(tmp_path).parent.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    for _ in range(2):
        discard(tmp_path)
        assert not (tmp_path / "checkpoint").exists()


async def test_next_process_restores_objects_and_the_time_they_were_known(process: Process, tmp_path: Path) -> None:
    process.listed()
    process.has(obj("a", 4, ip="10.0.0.1"), obj("b", 7))
    await process.after(2)
    await process.after(60)
    until = process.now
    again = Process(tmp_path, now=until + 3600)
    await again.checkpoint.open()
    assert again.checkpoint.exists
    assert again.checkpoint.age == 3600
    assert await again.checkpoint.restore() == until, "nothing has changed since, and the API was there"
    assert again.hardware.get("default", "a") == obj("a", 4, ip="10.0.0.1")
    assert len(again.hardware) == 2
    assert not again.hardware.has_synced


async def test_next_process_removes_objects_that_were_deleted_while_it_was_down(process, tmp_path) -> None:
    process.listed()
    process.has(obj("stays"), obj("gone"), obj("changes"))
    await process.checkpoint.close()
    again = Process(tmp_path)
    await again.checkpoint.open()
    again.has(obj("stays"), obj("changes", 2, new=1))
    again.listed()
    await again.after(2)
    assert written(tmp_path) == ["changes", "stays"]
    last = await restarted(tmp_path)
    assert (last.hardware.get("default", "changes") or {})["spec"] == {"new": 1}


async def test_objects_that_did_not_change_are_not_read_again_after_a_restart(process, tmp_path, monkeypatch) -> None:
    process.listed()
    process.has(obj("same"), obj("changes"), obj("gone"))
    process.workflows.feed("MODIFIED", obj("runs"))
    process.open = [NamespacedName("default", "runs")]
    await process.checkpoint.close()
    again = Process(tmp_path)
    again.open = process.open
    await again.checkpoint.open()
    again.has(obj("same"), obj("changes", 2), obj("new"))
    again.workflows.feed("MODIFIED", obj("runs"))
    again.listed()
    read: list[str] = []
    for informer in (again.hardware, again.workflows):
        monkeypatch.setattr(informer, "get", lambda *key, get=informer.get: read.append(key[1]) or get(*key))
    await again.after(2)
    assert sorted(read) == ["changes", "new"]
    assert (written(tmp_path), written(tmp_path, "workflows")) == (["changes", "new", "same"], ["runs"])
    again.hardware.remove("same")
    await again.after(60)
    assert written(tmp_path) == ["changes", "new"]


async def test_known_time_stands_still_while_the_api_is_away(process: Process, tmp_path: Path) -> None:
    process.listed()
    process.has(obj("a"))
    await process.after(2)
    known = process.now
    process.loses_the_api()
    await process.after(10)
    again = Process(tmp_path, now=process.now)
    await again.checkpoint.open()
    assert await again.checkpoint.restore() == known
    process.has(obj("b"))
    await process.after(20)
    again = Process(tmp_path, now=process.now)
    await again.checkpoint.open()
    assert await again.checkpoint.restore() == process.now - 10, "written during an outage: the time before it"


async def test_known_time_is_that_of_the_oldest_change_that_is_not_written(process: Process, tmp_path: Path) -> None:
    """On a busy site some change is always waiting."""
    process.listed()
    process.has(obj("a"))
    await process.after(2)
    for number in range(20):
        process.has(obj("a", number))
        await process.after(1)
    assert (await restarted(tmp_path, now=process.now)).checkpoint.age <= 30


async def test_full_disk_is_logged_once_and_retried(process, tmp_path, monkeypatch, caplog) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(checkpoint, "_SPARE_BYTES", 1 << 60)
    process.listed()
    process.has(obj("a"))
    for _ in range(10):
        await process.after(300)
    logged = [line for line in caplog.messages if "the checkpoint of hardware can't be written: less than" in line]
    assert len(logged) == 1
    assert process.checkpoint.states["hardware"] == (0, True)
    monkeypatch.setattr(checkpoint, "_SPARE_BYTES", 0)
    await process.after(300)
    assert written(tmp_path) == ["a"]
    assert "the checkpoint of hardware is written again" in caplog.messages
    size, is_failing = process.checkpoint.states["hardware"]
    assert (size > 10, is_failing) == (True, False)


@pytest.mark.looptime
async def test_disk_that_refuses_ends_nothing(process, tmp_path, caplog) -> None:
    """Read-only or broken: an exception in `run` would end the whole edge."""
    (tmp_path / "checkpoint").write_text("no directory")
    process.listed()
    process.has(obj("a"))
    process.now += 10
    running = asyncio.create_task(process.checkpoint.run())
    await until(lambda: "can't be written: File exists" in caplog.text)
    assert not running.done()
    running.cancel()
    again = await restarted(tmp_path)
    assert not again.checkpoint.exists


async def test_damaged_file_is_replaced_with_all_objects(process: Process, tmp_path: Path) -> None:
    process.listed()
    process.has(*map(machine, range(120)))
    await process.after(2)
    connection = sqlite3.connect(path_of(tmp_path))
    connection.execute("DROP TABLE lookup")
    connection.close()
    path_of(tmp_path).write_bytes(b"junk" * 10_000)
    for name in ("objects.db-wal", "objects.db-shm"):
        path_of(tmp_path).with_name(name).unlink()
    for number in range(20):
        process.has(machine(0) | {"spec": {"mac": f"x{number}"}, "metadata": machine(0)["metadata"] | {"uid": "new"}})
        await process.after(300)
    await process.checkpoint.close()
    assert len(written(tmp_path)) == 120


# --- many Hardware: each is restored when a server looks for it -------------------------------------------------------


@pytest.fixture
async def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    """A process that restarts with more Hardware than it restores at once; 7 and 8 claim one MAC."""
    monkeypatch.setattr(checkpoint, "_MAX_AT_ONCE", 100)
    process = Process(tmp_path)
    process.listed()
    process.has(*(machine(number, "rival" if number in (7, 8) else "") for number in range(150)))
    await process.checkpoint.close()
    return await restarted(tmp_path)


async def test_hardware_is_restored_when_it_is_looked_for(large: Process) -> None:
    assert large.names() == []
    assert large.checkpoint.is_restoring
    for value, names in (
        ("mac-3", ["m003"]),
        ("rival", ["m003", "m007", "m008"]),
        ("default/m011", ["m003", "m007", "m008", "m011"]),
        ("unknown", ["m003", "m007", "m008", "m011"]),
        ("mac-3", ["m003", "m007", "m008", "m011"]),
    ):
        large.checkpoint.recall(value)
        assert large.names() == names
    large.hardware.listed()
    large.checkpoint.recall("mac-5")
    assert len(large.names()) == 4, "the API has listed everything"


async def test_handler_may_look_for_further_hardware(large: Process) -> None:
    """One Hardware leads to the next: not recursively."""
    depth = [0]

    def look(new: dict[str, Any], _old: object) -> None:
        depth.append(depth[-1] + 1)
        large.checkpoint.recall(f"mac-{int(new['metadata']['name'][1:]) + 1}")
        assert depth.pop() == 1

    large.hardware.add_event_handler(look)
    large.checkpoint.recall("mac-9")
    assert len(large.names()) == 141


@pytest.mark.looptime
async def test_rest_is_restored_if_the_api_is_away_or_slow(large: Process) -> None:
    restoring = asyncio.create_task(large.checkpoint.restore_rest())
    await elapse(2)
    assert large.names() == [], "the list of the API comes first"
    large.loses_the_api()
    await until(lambda: not large.checkpoint.is_restoring)
    assert len(large.names()) == 150
    await restoring


@pytest.mark.looptime
@pytest.mark.parametrize(("step", "seconds"), [(9, 63), (11, 11)], ids=["a list without an end", "a list that stops"])
async def test_rest_is_restored_beside_a_list_only_if_it_stops_or_takes_too_long(
    large: Process, step: int, seconds: int
) -> None:
    restoring = asyncio.create_task(large.checkpoint.restore_rest())
    await elapse(0.5)
    for number, _ in enumerate(range(0, seconds, step), start=1):
        assert len(large.names()) == number - 1, "the list goes on"
        large.has(obj(f"new{number}"))
        await elapse(1)
        large.now += step
    await until(lambda: not large.checkpoint.is_restoring)
    assert len(large.names()) == 150 + number
    await restoring


@pytest.mark.looptime
async def test_rest_is_not_restored_once_the_api_has_listed_all(large: Process) -> None:
    restoring = asyncio.create_task(large.checkpoint.restore_rest())
    large.hardware.listed()
    await restoring
    assert not large.checkpoint.is_restoring
    assert large.names() == []


# --- files that can't be used -----------------------------------------------------------------------------------------


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """The file of a checkpoint with nine machines."""
    process = Process(tmp_path, CLUSTER | {"ca:0"})
    process.listed()
    process.has(*map(machine, range(9)))
    await process.checkpoint.close()
    return path_of(tmp_path)


def foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE meta SET value = '99' WHERE name = 'format'")
    connection.commit()
    connection.close()


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
    ("spoil", "reason"),
    [
        (foreign, "is of another release (format 99, not 3)"),
        (linked, "is not a plain file"),
        (pipe, "is not a plain file"),
        (directory, "is not a plain file"),
        (lambda path: path.chmod(0o660), "can be written by others (mode 0660)"),
        (lambda path: path.parent.chmod(0o770), "can be written by others (mode 0770)"),
        (lambda path: path.write_bytes(b""), "no such table"),
        (lambda path: path.write_bytes(b"junk" * 1000), "is damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:-4096]), "is damaged"),
    ],
)
async def test_unusable_file_is_named_ignored_and_replaced(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], Any], reason: str
) -> None:
    spoil(path)
    again = await restarted(tmp_path)
    assert (len(again.hardware), again.checkpoint.exists) == (0, False)
    [line] = caplog.messages
    assert reason in line
    assert str(path.parent) in line
    assert line.endswith("it is ignored, and replaced when the Kubernetes API answers")
    path.parent.chmod(0o700)
    again.listed()
    again.has(obj("a"))
    await again.after(10)
    assert written(tmp_path) == ["a"]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_file_of_another_cluster_or_user_is_ignored(path, tmp_path, monkeypatch, caplog) -> None:
    other = await restarted(tmp_path, cluster=frozenset({"ca:2"}))
    assert not other.checkpoint.exists
    assert "objects.db is of another cluster: it is ignored" in caplog.text
    renewed = await restarted(tmp_path, cluster=frozenset({"ca:0", "ca:7"}))
    assert len(renewed.hardware) == 9, "an authority that is being renewed"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not (await restarted(tmp_path)).checkpoint.exists
    assert "who may have put it there: it is ignored" in caplog.text


async def test_absent_file_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not (await restarted(tmp_path)).checkpoint.exists
    assert not caplog.messages


async def test_damaged_object_is_left_out(path: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(
        "UPDATE object SET content = CAST(x'00' || substr(content, 2) AS BLOB) WHERE key = 'default/m003'"
    )
    connection.commit()
    connection.close()
    again = await restarted(tmp_path)
    assert again.names() == [f"m{number:03}" for number in range(9) if number != 3]


async def test_file_that_was_not_written_to_the_end_is_not_served(path: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE meta SET value = '0' WHERE name = 'known'")
    connection.commit()
    connection.close()
    assert not (await restarted(tmp_path)).checkpoint.exists


async def test_files_of_older_releases_are_removed(tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "secrets").mkdir(parents=True)
    for name in ("hardware", "osies", "workflows"):
        (tmp_path / "checkpoint" / name).write_bytes(b"tinkedge-checkpoint/2")
    await restarted(tmp_path)
    assert [each.name for each in (tmp_path / "checkpoint").iterdir()] == ["secrets"]


async def test_deleted_hardware_leaves_nothing_in_the_file(process: Process, tmp_path: Path) -> None:
    """Its user-data may have had a password in it. Compressed, short texts stand as they are."""
    process.listed()
    process.has(obj("a", mac="q8Zp3vX"), obj("b", mac="other"))
    await process.after(2)
    process.hardware.remove("a")
    await process.after(10)
    await process.checkpoint.close()
    assert b"q8Zp3vX" not in path_of(tmp_path).read_bytes()


# --- Secrets ----------------------------------------------------------------------------------------------------------


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
        self.secrets = SecretStore(
            self.directory,
            KeyFile(directory / key, "checkpoint key", create=True),
            self._read,
            cluster,
            has_synced=lambda: True,
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
    edge.secrets.apply(hardware("m", userdata="s"))
    await edge.secrets.step()
    return edge


async def test_machine_gets_its_secret_while_the_api_is_away(edge: Edge, tmp_path: Path) -> None:
    again = Edge(tmp_path)
    again.answers["s"] = AWAY
    assert await again.secrets.read("ns", "s") == {"type": "Opaque", "data": {"userData": WORD}}
    again.answers["s"] = ApiError(503, "ServiceUnavailable", "etcd")
    assert (await again.secrets.read("ns", "s"))["data"] == {"userData": WORD}
    [path] = edge.files()
    assert path.stat().st_mode & 0o777 == 0o600
    for word in (WORD, "hush", "userData", "Opaque"):
        assert word.encode() not in path.read_bytes(), "nothing of it can be read on the disk"
    assert path.name != "s"
    key = tmp_path / "key"
    key.write_text("n" * 64 + "\n" + key.read_text())  # a new key reads copies of the old one
    again = Edge(tmp_path)
    again.answers["s"] = AWAY
    assert (await again.secrets.read("ns", "s"))["data"] == {"userData": WORD}


async def test_answer_of_the_api_replaces_the_copy(edge: Edge) -> None:
    edge.answers["s"] = ApiError(403, "Forbidden", "no right")
    with pytest.raises(ApiError, match="no right"):
        await edge.secrets.read("ns", "s")
    edge.answers["s"] = {"type": "Opaque", "data": {"userData": "bmV3"}}
    assert (await edge.secrets.read("ns", "s"))["data"] == {"userData": "bmV3"}
    edge.answers["s"] = AWAY
    assert (await edge.secrets.read("ns", "s"))["data"] == {"userData": "bmV3"}
    del edge.answers["s"]
    with pytest.raises(NotFoundError):
        await edge.secrets.read("ns", "s")
    edge.answers["s"] = AWAY
    with pytest.raises(UnreachableError):
        await edge.secrets.read("ns", "s")
    assert not edge.files()


async def test_secret_goes_with_the_last_hardware_that_names_it(edge: Edge) -> None:
    edge.secrets.apply(hardware("other", vendordata="s/key"))
    edge.secrets.remove(hardware("m"))
    assert len(edge.files()) == 1
    edge.secrets.apply(hardware("other"))
    assert not edge.files()
    await edge.secrets.read("ns", "s")
    assert not edge.files(), "no Hardware names it: it is none of ours to keep"


@pytest.mark.parametrize("kind", ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"])
async def test_secrets_that_open_the_cluster_are_never_kept(tmp_path: Path, kind: str) -> None:
    edge = Edge(tmp_path)
    edge.answers["s"] = SECRET | {"type": kind}
    edge.secrets.apply(hardware("m", userdata="s"))
    await edge.secrets.step()
    assert edge.asked == ["s"]
    assert not edge.files()


async def test_reading_ahead_is_slow_and_goes_round(edge: Edge) -> None:
    for name in ("a", "b"):
        edge.answers[name] = SECRET
        edge.secrets.apply(hardware(name, userdata=name))
    assert [await edge.secrets.step() for _ in range(3)] == [0.1, 0.1, 1.0], "and then nothing is due"
    assert sorted(edge.asked) == ["a", "b", "s"]
    edge.now = 6 * 3600.0
    await edge.secrets.step()
    assert edge.asked[-1] == "s", "the one that was read first"
    edge.answers |= dict.fromkeys(("s", "a", "b"), AWAY)
    edge.now *= 2
    asked = len(edge.asked)
    assert await edge.secrets.step() == 30.0, "an API that is away is not asked for every Secret"
    assert len(edge.asked) == asked + 1
    assert len(edge.files()) == 3, "what is kept stays"


async def test_copy_of_another_key_cluster_or_secret_is_named_and_not_served(edge, tmp_path, caplog) -> None:
    [path] = edge.files()
    for other, reported in (
        (Edge(tmp_path, key="key2"), "not encrypted with a key of this edge, or damaged"),
        (Edge(tmp_path, frozenset({"ca:2"})), "of another cluster"),
    ):
        other.answers["s"] = AWAY
        with pytest.raises(UnreachableError):
            await other.secrets.read("ns", "s")
        assert f"Secret ns/s can't be used: it is {reported}" in caplog.text
    edge.answers["other"] = SECRET
    edge.secrets.apply(hardware("other", userdata="other"))
    await edge.secrets.step()
    [other_path] = set(edge.files()) - {path}
    edge.answers["other"] = AWAY
    path.rename(other_path)
    with pytest.raises(UnreachableError):
        await edge.secrets.read("ns", "other")
    other_path.write_bytes(other_path.read_bytes()[:-1])
    with pytest.raises(UnreachableError):
        await edge.secrets.read("ns", "other")


@pytest.mark.looptime
async def test_copies_that_no_hardware_names_are_swept(edge: Edge, tmp_path: Path) -> None:
    again = Edge(tmp_path)
    running = asyncio.create_task(again.secrets.run())
    await elapse(2)
    running.cancel()
    assert not again.files(), "the Hardware went while the edge was down"

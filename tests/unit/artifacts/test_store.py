"""The cache's directory survives damage, and a crash at any moment, of the process or with what was not fsynced.

Hypothesis makes up a history of downloads, evictions and restarts, and the system call at which the process dies. After
that, a new store must serve whole files only, and know of a broken-off download no more than is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import stat
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.artifacts.artifact import ArtifactError, Source, StorageError
from edge.artifacts.store import ArtifactStore, StoredArtifact, Unfinished, key_of
from tests.unit.artifacts.conftest import fetch

URLS = ("http://h/kernel", "http://h/initrd", "http://user:secret@h/kernel?x")


class CrashError(BaseException):
    """The machine has lost its power, or the process got a SIGKILL."""


@dataclass
class Machine:
    """Counts system calls down to the crash, and knows what was fsynced: all that a disk keeps for sure."""

    calls_left: int | None = None
    synced: dict[int, bytes] = field(default_factory=dict)

    def tick(self):
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise CrashError

    @contextmanager
    def watching(self):
        """Put the machine between the store and the operating system."""

        def counted(real):
            def call(*args, **kwargs):
                self.tick()
                return real(*args, **kwargs)

            return call

        with (
            mock.patch.object(os, "fsync", counted(self._sync)),
            mock.patch.object(os, "fdatasync", counted(self._sync)),
            mock.patch.object(os, "pwrite", counted(os.pwrite)),
            mock.patch.object(os, "utime", counted(os.utime)),
            mock.patch.object(Path, "rename", counted(Path.rename)),
            mock.patch.object(Path, "unlink", counted(Path.unlink)),
            mock.patch("edge.artifacts.store.os.open", counted(os.open)),
        ):
            yield

    def _sync(self, fd):
        status = os.fstat(fd)
        if status.st_mode & 0o100000:
            self.synced[status.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def lose_power(self, directory):
        """Give each file the content that it had when it was fsynced last."""
        for path in directory.iterdir():
            content = self.synced.get(path.stat().st_ino, b"")
            if path.name != ".lock" and path.read_bytes() != content:
                path.write_bytes(content)


@dataclass(frozen=True)
class Fetch:
    """A download of `url` of which `share` tenths arrive. It is kept as `whole` or put by, or left as it is."""

    url: str
    content: bytes
    share: int
    checkpoint: bool
    ending: str
    pin: bool


@dataclass(frozen=True)
class Change:
    """Something else that happens to the store."""

    what: str
    number: int


contents = st.binary(min_size=10, max_size=40)
events = st.lists(
    st.one_of(
        st.builds(
            Fetch,
            st.sampled_from(URLS),
            contents,
            st.integers(1, 9),
            st.booleans(),
            st.sampled_from(["whole", "whole", "put by", "discard", "killed"]),
            st.booleans(),
        ),
        st.builds(Change, st.sampled_from(["evict", "forget", "hold", "restart"]), st.integers(0, 3)),
    ),
    min_size=1,
    max_size=6,
)


class History:
    """Plays events on a store, and remembers what could be there."""

    def __init__(self, directory):
        self.directory = directory
        self.store = ArtifactStore(directory)
        self.versions = {}
        """The content of each version that was ever started."""
        self.answered = {}
        """Which versions may be there for each key (None: none): while something is done, that before or that after."""
        self.number = 0

    def play(self, event):
        if isinstance(event, Fetch):
            self.fetch(event)
        elif event.what == "restart":
            self.store.close()
            self.store = ArtifactStore(self.directory)
            self.store.open()
        elif event.what == "evict":
            for name in [occupant.name for occupant in self.store.occupants()][: event.number]:
                with self.forgetting(name):
                    for path in self.store.evict(name):
                        path.unlink()
        elif event.number < len(self.store.whole()):
            stored = self.store.whole()[event.number]
            if event.what == "forget":
                with self.forgetting(stored.blob):
                    self.store.forget(stored)
            else:
                os.close(self.store.hold(stored))
                self.store.release(stored.blob)

    @contextmanager
    def forgetting(self, name):
        """Until it is done, the file may be there or not."""
        gone = [key for key, versions in self.answered.items() if name.split(".")[1] in versions]
        for key in gone:
            self.answered[key].add(None)
        yield
        for key in gone:
            self.answered[key] = {None}

    def fetch(self, event):
        pin = hashlib.sha256(event.content).hexdigest() if event.pin else ""
        old = self.store.take_unfinished(event.url, pin)
        if old is not None:
            assert self.intact(old)
            self.store.discard(self.store.location(old))
        self.number += 1
        version = f"{self.number:x}"
        self.versions[version] = event.content
        part = self.store.part_path(event.url, version, pin)
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(fd, 0, len(event.content))
            self.store.claim(part, len(event.content), given=len(event.content))
            self.fill(event, pin, part, fd)
        finally:
            os.close(fd)

    def fill(self, event, pin, part, fd):
        content = event.content
        count = len(content) * event.share // 10
        os.pwrite(fd, content[:count], 0)
        unfinished = Unfinished(
            url=event.url,
            part=part.name,
            size=len(content),
            received=count,
            sha256=hashlib.sha256(content[:count]).hexdigest(),
            etag='"e"',
            last_modified="",
            validator='"e"',
            pin=pin,
        )
        if event.checkpoint or event.ending == "put by":
            self.store.checkpoint(unfinished, fd)
        if event.ending == "put by":
            self.store.keep_unfinished(unfinished)
        elif event.ending == "discard":
            self.store.discard(part)
        elif event.ending == "whole":
            os.pwrite(fd, content[count:], count)
            sha256 = hashlib.sha256(content).hexdigest()
            blob = part.with_suffix(".blob").name
            stored = StoredArtifact(url=event.url, blob=blob, size=len(content), sha256=sha256, pin=pin)
            self.answered[event.url, pin] = self.answered.get((event.url, pin), {None}) | {stored.version}
            self.store.commit(stored, part, fd)
            self.answered[event.url, pin] = {stored.version}
            self.store.adopt(stored, part)

    def intact(self, unfinished):
        there = self.store.location(unfinished).read_bytes()[: unfinished.received]
        return there == self.versions[unfinished.version][: unfinished.received] and (
            hashlib.sha256(there).hexdigest() == unfinished.sha256
        )

    def check(self):
        """Check the files that a new process finds."""
        store = ArtifactStore(self.directory)
        store.open()
        try:
            known = {".lock"}
            for stored in store.whole():
                content = store.path(stored).read_bytes()
                assert content == self.versions[stored.version], f"{stored} is not what came"
                assert hashlib.sha256(content).hexdigest() == stored.sha256
                assert store.get(stored.key) is stored
                known |= {stored.blob, stored.blob.partition(".")[0] + ".json"}
            for (url, pin), versions in self.answered.items():
                found = store.get(key_of(url, pin))
                assert (found.version if found else None) in versions
            for url in URLS:
                for pin in {"", *(hashlib.sha256(content).hexdigest() for content in self.versions.values())}:
                    unfinished = store.take_unfinished(url, pin)
                    if unfinished is not None:
                        assert self.intact(unfinished)
                        known |= {unfinished.part, unfinished.part.replace(".part", ".journal")}
            assert {path.name for path in self.directory.iterdir()} == known
        finally:
            store.close()


def crash_and_check(history_events, crash_at, power):
    """Run the events and return True if the crash happened."""
    machine = Machine()
    with tempfile.TemporaryDirectory(prefix="store-") as directory:
        history = History(Path(directory))
        with machine.watching():
            machine.calls_left = crash_at
            try:
                history.store.open()
                for event in history_events:
                    history.play(event)
            except CrashError:
                crashed = True
            else:
                crashed = False
            machine.calls_left = None
        history.store.close()
        if power:
            machine.lose_power(history.directory)
        history.check()
    return crashed


@given(events, st.integers(0, 60), st.booleans())
@settings(max_examples=250, deadline=None)
def test_crash_at_any_system_call_leaves_whole_files_only(history_events, crash_at, power):
    crash_and_check(history_events, crash_at, power)


@pytest.mark.parametrize("power", [False, True])
def test_crash_at_each_system_call_of_a_replacement_leaves_the_old_file_or_the_new(power):
    kernel, initrd = URLS[:2]
    plot = [
        Fetch(kernel, b"old kernel", 5, True, "whole", False),
        Fetch(initrd, b"the initrd", 5, True, "put by", False),
        Fetch(kernel, b"new kernel, longer", 5, True, "whole", False),
        Change("restart", 0),
        Fetch(initrd, b"the initrd", 5, False, "whole", True),
        Change("evict", 1),
    ]
    crash_at = 0
    while crash_and_check(plot, crash_at, power):
        crash_at += 1
    assert crash_at > 40


@given(events)
@settings(max_examples=60, deadline=None)
def test_restart_finds_the_same_index_as_in_memory(history_events):
    with tempfile.TemporaryDirectory(prefix="store-") as directory:
        history = History(Path(directory))
        with Machine().watching():
            history.store.open()
            for event in history_events:
                if not isinstance(event, Fetch) or event.ending != "killed":
                    history.play(event)
        remembered, used = {stored.blob for stored in history.store.whole()}, history.store.used
        history.store.close()
        again = ArtifactStore(history.directory)
        again.open()
        assert ({stored.blob for stored in again.whole()}, again.used) == (remembered, used)
        again.close()
        history.check()


@pytest.fixture
def store(directory):
    store = ArtifactStore(directory)
    store.open()
    yield store
    store.close()


def put(store, url, content, version):
    part = store.part_path(url, version)
    part.write_bytes(content)
    fd = os.open(part, os.O_RDWR)
    stored = StoredArtifact(url=url, blob=part.with_suffix(".blob").name, size=len(content), sha256="")
    try:
        store.commit(stored, part, fd)
    finally:
        os.close(fd)
    store.adopt(stored, part)
    return stored


@pytest.mark.parametrize("broken", ["fsync", "rename", "replace"])
def test_failed_commit_changes_nothing(store, directory, monkeypatch, broken):
    old = put(store, URLS[0], b"old", "a")
    calls = []

    def fail(*args):
        calls.append(args)
        if broken != "replace" or len(calls) == 2:
            raise OSError(28, "No space left on device")
        real_rename(*args)

    real_rename = Path.rename
    if broken == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="No space left"):
        put(store, URLS[0], b"new", "b")
    monkeypatch.undo()
    store.discard(store.part_path(URLS[0], "b"))
    assert store.get(key_of(URLS[0], "")) == old
    assert sorted(path.suffix for path in directory.iterdir()) == ["", ".blob", ".json"]


def test_entry_of_a_later_version_and_other_peoples_files_are_left_as_they_are(store, directory):
    put(store, URLS[0], b"kernel", "a")
    store.close()
    (directory / "README").write_text("mine")
    (entry,) = directory.glob("*.json")
    entry.write_text(entry.read_text().replace("{", '{"colour": "green", ', 1))
    store.open()
    assert store.get(key_of(URLS[0], "")) is not None
    assert (directory / "README").read_text() == "mine"


@pytest.mark.parametrize(
    "content",
    [
        *(b"[]", b"{}", b"null", b"", b"\x00", b'{"url": 5}', b'{"url": "a", "blob": ["x"], "size": 1}'),
        *(b"[" * 100_000, random.Random(1).randbytes(300), None, "twice"),
    ],
    ids=lambda content: str(content)[:20],
)
def test_malformed_entry_only_costs_another_fetch(store, directory, content):
    put(store, URLS[0], b"kernel", "a")
    store.close()
    (entry,) = directory.glob("*.json")
    there = entry.read_bytes()
    entry.write_bytes(there[:40] if content is None else there * 2 if content == "twice" else content)
    store.open()
    assert store.whole() == []
    assert [path.name for path in directory.iterdir()] == [".lock"]


def test_file_on_a_disk_that_has_become_read_only_is_served(store, monkeypatch):
    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    stored = put(store, URLS[0], b"kernel", "a")
    fd = store.hold(stored)
    assert os.pread(fd, 10, 0) == b"kernel"
    os.close(fd)


def test_new_names_are_made_durable_with_their_directory(store, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(stat.S_ISDIR(os.fstat(fd).st_mode)))
    put(store, URLS[0], b"kernel", "a")
    assert synced == [False, False, True]


def test_room_that_the_disk_has_not_given_yet_is_promised(store):
    part = store.part_path(URLS[0], "a")
    store.claim(part, 1000, given=200)
    assert (store.room(None).promised, store.used, store.claimed(part)) == (800, 1000, 1000)
    store.claim(part, 1000, given=1000)
    assert (store.room(None).promised, store.used) == (0, 1000)
    store.discard(part)
    assert (store.room(None).promised, store.used, store.claimed(part)) == (0, 0, 0)


# --- damage ---


def the(directory, suffix):
    return next(directory.glob(f"*.{suffix}"))


def rewritten(directory, **changes):
    path = the(directory, "json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def flipped(directory):
    """One bit in the middle."""
    content = bytearray(the(directory, "blob").read_bytes())
    content[len(content) // 2] ^= 4
    the(directory, "blob").write_bytes(content)


def replaced_by(directory, suffix, make):
    path = the(directory, suffix)
    path.unlink()
    make(path)


def linked(directory):
    """To a file of the host that happens to have the same length."""
    other = directory.parent / "other"
    other.write_bytes(bytes(the(directory, "blob").stat().st_size))
    replaced_by(directory, "blob", lambda path: path.symlink_to(other))


DAMAGES = {
    "a bit flipped": flipped,
    "zeroed": lambda directory: the(directory, "blob").write_bytes(bytes(the(directory, "blob").stat().st_size)),
    "cut off": lambda directory: os.truncate(the(directory, "blob"), 100),
    "grown": lambda directory: os.truncate(the(directory, "blob"), 2 << 20),
    "gone": lambda directory: the(directory, "blob").unlink(),
    "a directory": lambda directory: replaced_by(directory, "blob", Path.mkdir),
    "a pipe": lambda directory: replaced_by(directory, "blob", os.mkfifo),
    "a link": linked,
    "unreadable": lambda directory: the(directory, "blob").chmod(0),
    "index with another checksum": lambda directory: rewritten(directory, sha256="0" * 64),
    "index with no checksum": lambda directory: rewritten(directory, sha256="x"),
    "index with another size": lambda directory: rewritten(directory, size=7),
    "index of another URL": lambda directory: rewritten(directory, url="http://other/kernel"),
    "index that leads out": lambda directory: rewritten(directory, blob="../../../../etc/passwd"),
    "index that leads to a file beside": lambda directory: (
        (directory.parent / "secret").write_bytes(b"s" * the(directory, "blob").stat().st_size),
        rewritten(directory, blob="../secret"),
    ),
    "index a directory": lambda directory: replaced_by(
        directory, "json", lambda _: (directory / f"{'1' * 32}.json" / "x").mkdir(parents=True)
    ),
    "index a pipe": lambda directory: os.mkfifo(directory / f"{'0' * 32}.json"),
    "foreign files": lambda directory: (directory / "lost+found").mkdir(),
    "foreign directories named like ours": lambda directory: (directory / "0.part" / "x").mkdir(parents=True),
    "link named like ours": lambda directory: (directory / "1.part").symlink_to("/etc/passwd"),
    "journal a directory": lambda directory: (directory / f"{'0' * 32}.1.journal").mkdir(),
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "running"])
async def test_no_damage_reaches_a_machine_or_keeps_the_edge_from_serving(
    start_cache, upstream, directory, clock, name, restarted
):
    cache = await start_cache()
    await fetch(cache, upstream.url)
    if restarted:
        await cache.stop()
    DAMAGES[name](directory)
    if restarted:
        cache = await start_cache()
    clock.now += 11
    in_place = name in ("a bit flipped", "zeroed") and not restarted
    if not in_place:  # what a process has found right is not read again for each machine
        assert (await fetch(cache, upstream.url))[1] == upstream.content
    assert await fetch(cache, f"{upstream.url}-2") == (Source.UPSTREAM, upstream.content)


@pytest.mark.parametrize("pinned", [False, True])
async def test_damaged_file_is_named_and_not_served_though_the_upstream_is_away(
    start_cache, upstream, directory, caplog, pinned
):
    pin = hashlib.sha256(upstream.content).hexdigest() if pinned else ""
    await fetch(await start_cache(), upstream.url, pin)
    flipped(directory)
    cache = await start_cache()
    upstream.mode = "500"
    with pytest.raises(ArtifactError, match="500"):
        await fetch(cache, upstream.url, pin)
    upstream.mode = ""
    assert await fetch(cache, upstream.url, pin) == (Source.UPSTREAM, upstream.content)
    assert await fetch(cache, upstream.url, pin) == (Source.CACHE, upstream.content)
    reported = [record.message for record in caplog.records if "damaged" in record.message]
    assert reported == [f"artifact cache: the file of {upstream.url} was damaged on disk; it is fetched again"]


async def test_stored_file_is_read_once_after_a_start(start_cache, upstream, clock, hashed):
    await fetch(await start_cache(), upstream.url)
    cache = await start_cache()
    for _ in range(3):
        clock.now += 11
        assert (await fetch(cache, upstream.url))[0] is Source.CACHE
    assert hashed == [len(upstream.content)]


@pytest.mark.parametrize("what", ["file", "link"])
async def test_directory_that_goes_away_is_an_error_and_nothing_worse(cache, upstream, directory, clock, what):
    await fetch(cache, upstream.url)
    directory.rename(directory.parent / "moved")
    if what == "file":
        directory.write_bytes(b"")
    else:
        directory.symlink_to("/proc/nothing")
    clock.now += 11
    for url in (upstream.url, f"{upstream.url}-2"):
        with pytest.raises(StorageError, match="can't be written to the cache"):
            await fetch(cache, url)
    directory.unlink()
    (directory.parent / "moved").rename(directory)
    assert (await fetch(cache, f"{upstream.url}-2"))[1] == upstream.content

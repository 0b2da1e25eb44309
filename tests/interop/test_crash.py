"""kill -9 under load, full and read-only disks: the API keeps every answered write, stores no half, and recovers.

The killed servers are processes of `tinkedge apiserver`; the other servers run in this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.interop.rack import Process, tinkedge
from tests.ports import free_port
from tests.waiting import until, wait_until
from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, KubeClient, UnreachableError
from tink.kube.resources import CRD, ResourceType
from tink.kubeapi import ApiServer, ApiServerError
from tink.kubeapi.apiserver.store import object_store

THING = ResourceType("crash.test", "v1", "things", "Thing")
CONFIGMAP = ResourceType("", "v1", "configmaps", "ConfigMap")
ROUNDS = 9
WRITERS = 8


def definition() -> Raw:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": free, "status": free}}}
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}, "schema": schema}
    names = {"plural": THING.plural, "kind": THING.kind}
    return {
        "apiVersion": CRD.api_version,
        "kind": CRD.kind,
        "metadata": {"name": f"{THING.plural}.{THING.group}"},
        "spec": {"group": THING.group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


Connect = Callable[[Path], Awaitable[KubeClient]]
Serve = Callable[..., Awaitable[tuple[ApiServer, KubeClient]]]
Begin = Callable[..., Process]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Create API clients from kubeconfigs."""
    async with AsyncExitStack() as exits:

        async def client(kubeconfig: Path) -> KubeClient:
            return await exits.enter_async_context(await KubeClient.connect(kubeconfig))

        yield client


@pytest.fixture
async def serve(connect: Connect) -> AsyncIterator[Serve]:
    """Start servers in this process."""
    async with AsyncExitStack() as exits:

        async def begin(directory: Path, port: int = 0) -> tuple[ApiServer, KubeClient]:
            server = ApiServer(directory, port=port)
            await server.start()
            exits.push_async_callback(server.stop)
            return server, await connect(server.kubeconfig)

        yield begin


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start servers as processes, to be killed, and wait until they serve."""
    begun: list[Process] = []

    def start(state: Path, port: int, *, ready: bool = True) -> Process:
        words = ["--data-dir", state, "--api-port", str(port), "--metrics-address", "none", "--config", "/dev/null"]
        begun.append(tinkedge(tmp_path, "apiserver", *words))
        if ready:
            wait_until(lambda: "ready: " in begun[-1].err, lambda: begun[-1].err)
        return begun[-1]

    yield start
    for each in begun:
        each.end()


def killed(server: Process) -> None:
    server.popen.kill()
    server.status()


# --- kill -9 in a loop ---------------------------------------------------------------------------------------------


def payload(number: int) -> Raw:
    """Return fields with the same number at both ends and in the middle, so that a half-written object shows."""
    return {"first": number, "text": f"{number} " * 300, "last": number}


def is_whole(value: Raw) -> bool:
    return value == payload(value["first"])


@dataclass
class Ledger:
    """The requests to the API, and its answers."""

    state: dict[str, Raw | None] = field(default_factory=dict)
    """The state of the last answer, by name; None: deleted."""
    pending: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Requests without an answer, by name: the verb and the number."""
    versions: dict[int, str] = field(default_factory=dict)
    """The object of each resourceVersion in an answer."""
    answers: int = 0

    def record_answer(self, name: str, obj: Raw | None) -> None:
        if obj is not None:
            version = int(obj["metadata"]["resourceVersion"])
            assert version not in self.versions, f"version {version} was given to {self.versions[version]} and {name}"
            self.versions[version] = name
        self.state[name] = obj
        self.answers += 1
        del self.pending[name]

    def check(self, stored: dict[str, Raw]) -> None:
        """Compare with the objects after a restart, and continue from them."""
        for name in self.state.keys() | self.pending.keys() | stored.keys():
            have, answered = stored.get(name), self.state.get(name)
            verb, number = self.pending.get(name, ("", 0))
            if have == answered:
                continue
            if have is None:
                assert verb == "delete", f"{name} was answered and is lost: {answered}"
            else:
                assert verb in ("create", "spec", "status"), f"{name}: {have} is stored, {answered} was answered"
                assert have["status" if verb == "status" else "spec"] == payload(number)
                assert answered is None or int(have["metadata"]["resourceVersion"]) > int(
                    answered["metadata"]["resourceVersion"]
                )
            self.state[name] = have
        self.pending.clear()
        for obj in stored.values():
            assert is_whole(obj["spec"])
            assert "status" not in obj or is_whole(obj["status"])


def thing_object(name: str, number: int) -> Raw:
    about = {"apiVersion": THING.api_version, "kind": THING.kind, "metadata": {"name": name, "namespace": "default"}}
    return about | {"spec": payload(number)}


async def write(client: KubeClient, ledger: Ledger, writer: int, dice: random.Random) -> None:
    """Create, update, set the status and delete, until the server is gone."""
    number = ledger.answers * 100 + writer
    with suppress(UnreachableError):
        while True:
            name = f"w{writer}-{dice.randrange(12)}"
            number += 100
            answered = ledger.state.get(name)
            verb = "create" if answered is None else dice.choice(("spec", "spec", "status", "status", "delete"))
            ledger.pending[name] = (verb, number)
            if answered is None:
                ledger.record_answer(name, await client.create(THING, thing_object(name, number)))
            elif verb == "delete":
                await client.delete(THING, name, "default")
                ledger.record_answer(name, None)
            else:
                change = {
                    "metadata": {"resourceVersion": answered["metadata"]["resourceVersion"]},
                    verb: payload(number),
                }
                subresource = "status" if verb == "status" else None
                ledger.record_answer(name, await client.patch(THING, name, "default", change, subresource=subresource))


@dataclass
class Watcher:
    """One watch through all lives of the server, resumed each time from the last version that it saw."""

    position: int = 0
    versions: dict[int, str] = field(default_factory=dict)
    state: dict[str, Raw] = field(default_factory=dict)

    async def follow(self, client: KubeClient) -> None:
        """Take events until the server is gone."""
        with suppress(aiohttp.ClientError, OSError, UnreachableError):
            async with client.watch(THING, "default", str(self.position), 600) as lines:
                async for line in lines:
                    if line.endswith(b"\n"):
                        self.take(json.loads(line))

    def take(self, event: Raw) -> None:
        obj, kind = event["object"], event["type"]
        if kind == "BOOKMARK":
            return
        assert kind in ("ADDED", "MODIFIED", "DELETED"), event
        name, version = obj["metadata"]["name"], int(obj["metadata"]["resourceVersion"])
        assert version > self.position, f"{kind} {name} {version} came again or late, after {self.position}"
        assert (kind == "ADDED") == (name not in self.state), f"{kind} {name}: an event before it was lost"
        self.position = version
        self.versions[version] = name
        if kind == "DELETED":
            del self.state[name]
        else:
            self.state[name] = obj


def is_sound(state: Path) -> bool:
    """Return True if SQLite's integrity check passes."""
    with closing(sqlite3.connect(state / "state.db")) as db:
        return bool(db.execute("PRAGMA integrity_check").fetchone() == ("ok",))


def is_sound_copy(state: Path, copy: Path) -> bool:
    """Check a copy, so that the next server finds the files as the killed one left them."""
    copy.mkdir(exist_ok=True)
    for name in ("state.db", "state.db-wal"):
        if (state / name).exists():
            shutil.copy(state / name, copy)
        else:
            (copy / name).unlink(missing_ok=True)
    return is_sound(copy)


async def items(client: KubeClient, resource: ResourceType) -> dict[str, Raw]:
    """Return the objects of a list by name, in the form of single GETs."""
    about = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {item["metadata"]["name"]: about | item for item in (await client.list(resource, "default"))["items"]}


async def test_killed_repeatedly_under_load_api_keeps_every_answer_and_watches_resume(
    begin: Begin, connect: Connect, tmp_path: Path
) -> None:
    state, port = tmp_path / "state", free_port()
    ledger, watcher, dice = Ledger(), Watcher(), random.Random()
    for life in range(ROUNDS):
        if life % 3 == 2:  # killed while it recovers the log of a server that was killed under load
            server = begin(state, port, ready=False)
            await asyncio.sleep(dice.uniform(0.0, 0.3))
            killed(server)
        server = begin(state, port)
        client = await connect(state / "kubeconfig")
        if not life:
            await client.create(CRD, definition())
            listed = await until(lambda client=client: listed_or_none(client))
            watcher.position = int(listed["metadata"]["resourceVersion"])
        version = int((await client.list(THING, "default"))["metadata"]["resourceVersion"])
        ledger.check(await items(client, THING))
        assert version >= max(ledger.versions, default=0)
        tasks = [asyncio.create_task(watcher.follow(client))]
        tasks += [asyncio.create_task(write(client, ledger, number, dice)) for number in range(WRITERS)]
        enough = ledger.answers + 21 + dice.randrange(100)
        await until(lambda enough=enough: ledger.answers >= enough, every=0.001)
        killed(server)
        await asyncio.gather(*tasks)
        assert is_sound_copy(state, tmp_path / "copy")
    begin(state, port)
    client = await connect(state / "kubeconfig")
    stored = await items(client, THING)
    ledger.check(stored)
    last = await client.create(THING, thing_object("last", 0))
    rest = asyncio.create_task(watcher.follow(client))
    await until(lambda: watcher.position >= int(last["metadata"]["resourceVersion"]), lambda: watcher.position)
    rest.cancel()
    await asyncio.gather(rest, return_exceptions=True)
    assert watcher.state == {**stored, "last": last}
    assert ledger.versions.items() <= watcher.versions.items()
    assert ledger.answers > 20 * ROUNDS


async def listed_or_none(client: KubeClient) -> Raw | None:
    """Return the list of things; None if the API does not serve them yet."""
    with suppress(ApiError):
        return await client.list(THING, "default")
    return None


# --- disks that refuse ---------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)


def config(name: str) -> Raw:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": name * 20_000}}


async def refused(call: Awaitable[Raw]) -> str:
    """Return the API's error message for a write that it can't store."""
    with pytest.raises(ApiError) as caught:
        await call
    assert (caught.value.status, caught.value.reason) == (500, "InternalError")
    return caught.value.message


async def test_full_disk_refuses_writes_with_a_status_and_works_again_when_there_is_room(
    disk: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server, client = await serve(disk / "state")
    answered: dict[str, Raw] = {}
    with suppress(ApiError):
        while True:
            name = f"c{len(answered)}"
            answered[name] = await client.create(CONFIGMAP, config(name))
    assert len(answered) > 5
    for number in range(50, 54):
        assert "database or disk is full" in await refused(client.create(CONFIGMAP, config(f"c{number}")))
    assert sum("writes fail" in record.message for record in caplog.records) == 1
    assert await items(client, CONFIGMAP) == answered
    remount(disk, "size=30m")
    for number in range(100, 110):
        answered[f"c{number}"] = await client.create(CONFIGMAP, config(f"c{number}"))
    await server.stop()
    assert is_sound(disk / "state")
    _, client = await serve(disk / "state")
    assert await items(client, CONFIGMAP) == answered


def fill(disk: Path) -> None:
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass


def read_only(disk: Path) -> None:
    remount(disk, "ro")


@pytest.mark.parametrize("how", ["stopped", "killed", "killed without index"])
@pytest.mark.parametrize("refuse", [fill, read_only])
async def test_disk_that_refuses_writes_at_the_start_is_read_and_written_later(
    disk: Path,
    serve: Serve,
    begin: Begin,
    connect: Connect,
    refuse: Callable[[Path], None],
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(object_store, "RETRY_SECONDS", 0.2)
    server, client = await serve(disk / "state", free_port())
    port = urlsplit(server.url).port or 0
    expected = {"c0": await client.create(CONFIGMAP, config("c0"))}
    await server.stop()
    if how != "stopped":  # a killed server has some answered writes only in the log
        process = begin(disk / "state", port)
        client = await connect(disk / "state" / "kubeconfig")
        expected["c0"] = await client.patch(CONFIGMAP, "c0", "default", {"data": {"text": "changed"}})
        expected["late"] = await client.create(CONFIGMAP, config("late"))
        killed(process)
    if how == "killed without index":
        (disk / "state" / "state.db-shm").unlink()
    refuse(disk)
    version = max(int(obj["metadata"]["resourceVersion"]) for obj in expected.values())

    server, client = await serve(disk / "state", port)
    assert list(Path("/dev/shm").glob("tinkedge-*")) == []  # the copy is unlinked, so it ends with the process
    why = "the disk is full" if refuse is fill else "the disk is read-only"
    # With the killed server's index, the state opens for writing, and the first write is refused.
    at_once = (refuse, how) != (fill, "killed")
    assert (why in server.refusal) == at_once
    messages = [record.message for record in caplog.records if "it can only be read" in record.message]
    assert [why in message for message in messages] == [True] * at_once
    found = await items(client, CONFIGMAP)
    assert {name: obj["data"] for name, obj in found.items()} == {name: obj["data"] for name, obj in expected.items()}
    await client.get(CONFIGMAP, "c0", "default")
    async with client.watch(CONFIGMAP, "default", str(version - 1), 60) as lines:
        assert json.loads(await lines.readline())["object"]["metadata"]["resourceVersion"] == str(version)
    for call in (
        client.create(CONFIGMAP, config("new")),
        client.patch(CONFIGMAP, "c0", "default", {"data": {"text": "new"}}),
        client.delete(CONFIGMAP, "c0", "default"),
    ):
        message = await refused(call)
        assert f"the state {'can only be read now' if at_once else 'could not be written'}: " in message
        assert why in message

    async def created() -> Raw | None:
        with suppress(ApiError):
            return await client.create(CONFIGMAP, config("new"))
        return None

    async with client.watch(CONFIGMAP, "default", str(version), 60) as lines:
        remount(disk, "rw,size=30m")
        done = await until(created, every=0.05)
        answer = json.loads(await lines.readline())
    assert (answer["type"], answer["object"]["metadata"]["name"]) == ("ADDED", "new")
    assert int(done["metadata"]["resourceVersion"]) > version
    assert server.refusal == ""
    names = {*expected, "new"}
    assert set(await items(client, CONFIGMAP)) == names
    assert sum("writes are possible again" in record.message for record in caplog.records) == 1
    await server.stop()
    assert is_sound(disk / "state")
    _, client = await serve(disk / "state", port)
    assert set(await items(client, CONFIGMAP)) == names


async def test_disk_that_refuses_a_new_database_is_named(disk: Path, serve: Serve) -> None:
    fill(disk)
    with pytest.raises(ApiServerError, match=str(disk)):
        await serve(disk / "state")
    (disk / "filler").unlink()
    await serve(disk / "state")


async def test_server_keeps_reading_when_its_disk_breaks(
    tmp_path: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """ext4 remounts itself read-only after an error; here a command triggers that."""
    image, place = tmp_path / "image", tmp_path / "ext4"
    place.mkdir()
    image.touch()
    os.truncate(image, 32 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop,errors=remount-ro", image, place], check=True)
    try:
        device = next(line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if str(place) in line)
        server, client = await serve(place / "state", free_port())
        kept = await client.create(CONFIGMAP, config("kept"))
        Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("broken for a test\n")
        for number in range(3):
            message = await refused(client.create(CONFIGMAP, config(f"lost{number}")))
            assert "the state could not be written: " in message
        assert sum("writes fail" in record.message for record in caplog.records) == 1
        assert set(await items(client, CONFIGMAP)) == {"kept"}
        await server.stop()
        server, client = await serve(place / "state", urlsplit(server.url).port)
        assert server.refusal
        assert (await client.get(CONFIGMAP, "kept", "default"))["data"] == kept["data"]
        await server.stop()
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)

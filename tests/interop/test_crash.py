"""kill -9 under load, full and read-only disks: what was answered is there, nothing is half there, and it goes on.

The server is a process of its own, forked off one that has imported everything, so that many lives fit into a test.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import shutil
import signal
import sqlite3
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml

from tests.ports import free_port
from tests.waiting import PATIENCE_SECONDS, until
from tink.apiserver import ApiServer, ApiServerError
from tink.apiserver.store import object_store

GROUP = "crash.test"
THINGS = f"/apis/{GROUP}/v1/namespaces/default/things"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
THING = {"apiVersion": f"{GROUP}/v1", "kind": "Thing"}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"things.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}
ROUNDS = 14
WRITERS = 8

_NURSERY = """
import asyncio, os, sys
from pathlib import Path
from tink.apiserver import ApiServer

async def main(ready):
    await ApiServer(Path(sys.argv[1]), port=int(sys.argv[2])).start()
    os.write(ready, b"ready\\n")
    await asyncio.sleep(120)

for line in sys.stdin:
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.close(receive)
        asyncio.run(main(send))
        os._exit(0)
    os.close(send)
    print(child, flush=True)
    print(os.read(receive, 100).decode().strip(), flush=True)
    os.close(receive)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


class Nursery:
    """Starts servers over one data directory, one after the other."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @staticmethod
    async def open(directory: Path, port: int = 0) -> Nursery:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _NURSERY,
            str(directory),
            str(port),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return Nursery(process)

    async def _line(self) -> str:
        assert self._process.stdout is not None
        return (await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_SECONDS)).decode().strip()

    async def begin(self) -> int:
        """Fork a server, and give its process id at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return int(await self._line())

    async def ready(self) -> bool:
        """Wait until it serves; or has died."""
        return await self._line() == "ready"

    async def gone(self) -> None:
        assert await self._line() == "gone"

    async def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()


class Api:
    """Requests to the server of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        content = yaml.safe_load(kubeconfig.read_text())
        cluster = content["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._session = aiohttp.ClientSession(
            cluster["server"],
            connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=authority), limit=50),
            headers={"Authorization": f"Bearer {content['users'][0]['user']['token']}"},
            timeout=aiohttp.ClientTimeout(total=20),
        )

    async def close(self) -> None:
        await self._session.close()

    async def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, path, data=data, headers={"Content-Type": kind}) as response:
            return response.status, await response.json()

    @asynccontextmanager
    async def watch(self, path: str, version: int) -> AsyncIterator[aiohttp.StreamReader]:
        query = {"watch": "true", "resourceVersion": str(version)}
        async with self._session.get(path, params=query) as response:
            assert response.status == 200
            response.content._high_water = 1 << 24
            yield response.content


Connect = Callable[[Path], Api]
Serve = Callable[..., Awaitable[tuple[ApiServer, Api]]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Make clients out of kubeconfigs."""
    made: list[Api] = []

    def client(kubeconfig: Path) -> Api:
        made.append(Api(kubeconfig))
        return made[-1]

    yield client
    for each in made:
        await each.close()


@pytest.fixture
async def nursery(tmp_path: Path) -> AsyncIterator[Nursery]:
    """Servers over `tmp_path / "state"`, to be killed."""
    made = await Nursery.open(tmp_path / "state")
    yield made
    await made.close()


@pytest.fixture
async def serve(connect: Connect) -> AsyncIterator[Serve]:
    """Start servers in this process."""
    running: list[ApiServer] = []

    async def begin(directory: Path, port: int = 0) -> tuple[ApiServer, Api]:
        running.append(ApiServer(directory, port=port))
        await running[-1].start()
        return running[-1], connect(running[-1].kubeconfig)

    yield begin
    for each in running:
        await each.stop()


# --- kill -9 in a loop ---------------------------------------------------------------------------------------------


def payload(number: int) -> dict[str, Any]:
    """Both ends and the middle say the same: what is half there shows."""
    return {"first": number, "text": f"{number} " * 300, "last": number}


def is_whole(value: dict[str, Any]) -> bool:
    return value == payload(value["first"])


@dataclass
class Ledger:
    """What was asked for and what was answered."""

    state: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    """The last answered state by name; None: deleted."""
    asked: dict[str, tuple[str, int]] = field(default_factory=dict)
    """What was asked for and not answered: the verb and the number."""
    versions: dict[int, str] = field(default_factory=dict)
    """Every version that an answer had, and of which object."""
    answers: int = 0

    def answered(self, name: str, obj: dict[str, Any]) -> None:
        version = int(obj["metadata"]["resourceVersion"])
        assert version not in self.versions, f"version {version} was given to {self.versions[version]} and {name}"
        self.versions[version] = name
        self.state[name] = obj
        self.answers += 1

    def check(self, found: dict[str, dict[str, Any]]) -> None:
        """Compare with what is there after a restart, and go on from that."""
        for name in self.state.keys() | self.asked.keys() | found.keys():
            have, was = found.get(name), self.state.get(name)
            verb, number = self.asked.get(name, ("", 0))
            if have == was:
                continue
            if have is None:
                assert verb == "delete", f"{name} was answered and is lost: {was}"
            else:
                assert verb in ("create", "update", "status"), f"{name}: {have} is there, {was} was answered"
                assert have["status" if verb == "status" else "spec"] == payload(number)
                assert was is None or int(have["metadata"]["resourceVersion"]) > int(was["metadata"]["resourceVersion"])
            self.state[name] = have
        self.asked.clear()
        for obj in found.values():
            assert is_whole(obj["spec"])
            assert "status" not in obj or is_whole(obj["status"])


async def write(api: Api, ledger: Ledger, writer: int, dice: random.Random) -> None:
    """Create, update, set the status and delete, until the server is gone."""
    number = ledger.answers * 100 + writer
    while True:
        name = f"w{writer}-{dice.randrange(12)}"
        number += 100
        was = ledger.state.get(name)
        if was is None:
            verb, call = "create", ("POST", THINGS, {**THING, "metadata": {"name": name}, "spec": payload(number)})
        else:
            verb = dice.choice(("update", "update", "status", "status", "delete"))
            call = {
                "update": ("PUT", f"{THINGS}/{name}", {**was, "spec": payload(number)}),
                "status": ("PATCH", f"{THINGS}/{name}/status", {"status": payload(number)}),
                "delete": ("DELETE", f"{THINGS}/{name}", None),
            }[verb]
        ledger.asked[name] = (verb, number)
        try:
            status, answer = await api(*call)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return
        assert status in (200, 201), answer["message"]
        del ledger.asked[name]
        if verb == "delete":
            ledger.state[name] = None
            ledger.answers += 1
        else:
            ledger.answered(name, answer)


@dataclass
class Watcher:
    """One watch through all lives of the server, resumed each time from the last version that it saw."""

    position: int = 0
    events: list[tuple[int, str, str]] = field(default_factory=list)
    state: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def follow(self, api: Api) -> None:
        """Take events until the server is gone."""
        with suppress(aiohttp.ClientError, OSError):
            async with api.watch(THINGS, self.position) as lines:
                async for line in lines:
                    if line.endswith(b"\n"):
                        self.take(json.loads(line))

    def take(self, event: dict[str, Any]) -> None:
        obj, kind = event["object"], event["type"]
        assert kind in ("ADDED", "MODIFIED", "DELETED"), event
        name, version = obj["metadata"]["name"], int(obj["metadata"]["resourceVersion"])
        assert version > self.position, f"{kind} {name} {version} came again or late, after {self.position}"
        assert (kind == "ADDED") == (name not in self.state), f"{kind} {name}: an event before it was lost"
        self.position = version
        self.events.append((version, kind, name))
        if kind == "DELETED":
            del self.state[name]
        else:
            self.state[name] = obj


def integrity(state: Path, copy: Path) -> str:
    """SQLite's own check, of a copy: the server is to find what the dead one left."""
    copy.mkdir(exist_ok=True)
    for name in ("state.db", "state.db-wal"):
        if (state / name).exists():
            shutil.copy(state / name, copy)
        else:
            (copy / name).unlink(missing_ok=True)
    with closing(sqlite3.connect(copy / "state.db")) as db:
        return str(db.execute("PRAGMA integrity_check").fetchone()[0])


async def begin(nursery: Nursery, connect: Connect, kubeconfig: Path) -> tuple[int, Api]:
    server = await nursery.begin()
    assert await nursery.ready()
    return server, connect(kubeconfig)


async def things(api: Api) -> tuple[int, dict[str, dict[str, Any]]]:
    """Give the version of a list and its objects by name."""
    status, answer = await api("GET", THINGS)
    assert status == 200, answer
    found = {item["metadata"]["name"]: THING | item for item in answer["items"]}
    return int(answer["metadata"]["resourceVersion"]), found


async def define(api: Api) -> int:
    """Install the definition, and give the version from which on watches see all things."""
    status, answer = await api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
    assert status == 201, answer
    for _ in range(200):
        status, answer = await api("GET", THINGS)
        if status == 200:
            break
        await asyncio.sleep(0.02)
    return (await things(api))[0]


async def test_killed_again_and_again_under_load_it_keeps_every_answer_and_watches_go_on(
    nursery: Nursery, connect: Connect, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    ledger, watcher, dice = Ledger(), Watcher(), random.Random()
    for life in range(ROUNDS):
        if life % 4 == 3:  # killed while it takes over what one that was killed under load has left
            server = await nursery.begin()
            await asyncio.sleep(dice.uniform(0.0, 0.08))
            os.kill(server, signal.SIGKILL)
            await nursery.ready()
            await nursery.gone()
        server, api = await begin(nursery, connect, state / "kubeconfig")
        if not life:
            watcher.position = await define(api)
        version, found = await things(api)
        ledger.check(found)
        assert version >= max(ledger.versions, default=0)
        tasks = [asyncio.create_task(watcher.follow(api))]
        tasks += [asyncio.create_task(write(api, ledger, number, dice)) for number in range(WRITERS)]
        enough = ledger.answers + 21 + dice.randrange(100)
        await until(lambda enough=enough: ledger.answers >= enough, every=0.001)
        os.kill(server, signal.SIGKILL)
        await asyncio.gather(*tasks)
        await nursery.gone()
        assert integrity(state, tmp_path / "copy") == "ok"
    _, api = await begin(nursery, connect, state / "kubeconfig")
    _, found = await things(api)
    ledger.check(found)
    status, last = await api("POST", THINGS, {**THING, "metadata": {"name": "last"}, "spec": payload(0)})
    assert status == 201
    rest = asyncio.create_task(watcher.follow(api))
    await until(lambda: watcher.position >= int(last["metadata"]["resourceVersion"]), lambda: watcher.position)
    rest.cancel()
    await asyncio.gather(rest, return_exceptions=True)
    assert watcher.state == {**found, "last": last}
    told = {version: name for version, _, name in watcher.events}
    assert ledger.versions.items() <= told.items()
    assert ledger.answers > 20 * ROUNDS


# --- disks that refuse ---------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB. `remount` changes what it is mounted with."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)


def config(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": name * 20_000}}


async def test_full_disk_refuses_writes_with_a_status_and_works_again_when_there_is_room(
    disk: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server, api = await serve(disk / "state")
    kept, refused = {}, []
    while len(refused) < 5:
        name = f"c{len(kept) + len(refused)}"
        status, answer = await api("POST", CONFIGMAPS, config(name))
        if status == 201:
            kept[name] = answer
        else:
            refused.append((status, answer["kind"], answer["reason"], answer["message"]))
    assert len(kept) > 5
    assert {refusal[:3] for refusal in refused} == {(500, "Status", "InternalError")}
    assert all("database or disk is full" in message for *_, message in refused)
    assert sum("writes fail" in record.message for record in caplog.records) == 1

    async def listed() -> dict[str, Any]:
        status, answer = await api("GET", CONFIGMAPS)
        assert status == 200
        return {item["metadata"]["name"]: {**item, "apiVersion": "v1", "kind": "ConfigMap"} for item in answer["items"]}

    assert await listed() == kept
    remount(disk, "size=30m")
    for number in range(100, 110):
        status, kept[f"c{number}"] = await api("POST", CONFIGMAPS, config(f"c{number}"))
        assert status == 201
    await server.stop()
    with closing(sqlite3.connect(disk / "state" / "state.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    _, api = await serve(disk / "state")
    assert await listed() == kept


def fill(disk: Path) -> None:
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass


def read_only(disk: Path) -> None:
    remount(disk, "ro")


def mend(disk: Path) -> None:
    remount(disk, "rw,size=30m")


async def changed_after_the_stop(state: Path, nursery: Nursery, connect: Connect) -> dict[str, Any]:
    """What a server has answered that was then killed: some of it is in the log alone."""
    server, api = await begin(nursery, connect, state / "kubeconfig")
    answered = {}
    for name in ("c0", "late"):
        status, answered[name] = await api("POST", CONFIGMAPS, config(name))
        if status == 409:
            status, answered[name] = await api("PATCH", f"{CONFIGMAPS}/{name}", {"data": {"text": "changed"}})
        assert status in (200, 201)
    os.kill(server, signal.SIGKILL)
    await nursery.gone()
    return answered


@pytest.mark.parametrize("how", ["stopped", "killed", "killed without index"])
@pytest.mark.parametrize("refuse", [fill, read_only])
async def test_disk_that_refuses_at_the_start_is_read_and_written_when_it_can_be(
    disk: Path,
    serve: Serve,
    connect: Connect,
    refuse: Callable[[Path], None],
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(object_store, "RETRY_SECONDS", 0.2)
    server, api = await serve(disk / "state", free_port())
    url = urlsplit(server.url)
    status, kept = await api("POST", CONFIGMAPS, config("c0"))
    assert status == 201
    await server.stop()
    expected = {"c0": kept}
    if how != "stopped":
        nursery = await Nursery.open(disk / "state", url.port or 0)
        try:
            expected |= await changed_after_the_stop(disk / "state", nursery, connect)
        finally:
            await nursery.close()
    if how == "killed without index":
        (disk / "state" / "state.db-shm").unlink()
    refuse(disk)
    version = max(int(obj["metadata"]["resourceVersion"]) for obj in expected.values())

    server, api = await serve(disk / "state", url.port or 0)
    assert list(Path("/dev/shm").glob("tinkedge-*")) == []  # a copy is seen by nobody, and goes with the process
    why = "the disk is full" if refuse is fill else "the disk is read-only"
    # With the index that the killed one has left, the state can be opened for writing, and the first write is refused.
    at_once = (refuse, how) != (fill, "killed")
    assert (why in server.refusal) == at_once
    said = [record.message for record in caplog.records if "it can only be read" in record.message]
    assert [why in message for message in said] == [True] * at_once
    status, answer = await api("GET", CONFIGMAPS)
    assert status == 200
    assert {item["metadata"]["name"]: item["data"] for item in answer["items"]} == {
        name: obj["data"] for name, obj in expected.items()
    }
    assert (await api("GET", f"{CONFIGMAPS}/c0"))[0] == 200
    async with api.watch(CONFIGMAPS, version - 1) as lines:
        assert json.loads(await lines.readline())["object"]["metadata"]["resourceVersion"] == str(version)
    for verb, path, body in (
        ("POST", CONFIGMAPS, config("new")),
        ("PATCH", f"{CONFIGMAPS}/c0", {"data": {"text": "new"}}),
        ("DELETE", f"{CONFIGMAPS}/c0", None),
    ):
        status, answer = await api(verb, path, body)
        assert (status, answer["kind"], answer["reason"]) == (500, "Status", "InternalError")
        assert f"the state {'can only be read now' if at_once else 'could not be written'}: " in answer["message"]
        assert why in answer["message"]

    async def created() -> tuple[int, Any] | None:
        answer = await api("POST", CONFIGMAPS, config("new"))
        return answer if answer[0] == 201 else None

    async with api.watch(CONFIGMAPS, version) as lines:
        mend(disk)
        done = await until(created, every=0.05)
        told = json.loads(await lines.readline())
    assert (told["type"], told["object"]["metadata"]["name"]) == ("ADDED", "new")
    assert int(done[1]["metadata"]["resourceVersion"]) > version
    assert server.refusal == ""
    names = {item["metadata"]["name"] for item in (await api("GET", CONFIGMAPS))[1]["items"]}
    assert names == {*expected, "new"}
    assert sum("writes are possible again" in record.message for record in caplog.records) == 1
    await server.stop()
    with closing(sqlite3.connect(disk / "state" / "state.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    _, api = await serve(disk / "state", url.port or 0)
    assert {item["metadata"]["name"] for item in (await api("GET", CONFIGMAPS))[1]["items"]} == names


async def test_new_state_on_a_disk_that_refuses_is_named(disk: Path, serve: Serve) -> None:
    fill(disk)
    with pytest.raises(ApiServerError, match=str(disk)):
        await serve(disk / "state")
    (disk / "filler").unlink()
    await serve(disk / "state")


async def test_disk_that_breaks_under_a_running_server_is_read_on(
    tmp_path: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """ext4 makes itself read-only when it comes upon an error; here it is told to."""
    image, place = tmp_path / "image", tmp_path / "ext4"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop,errors=remount-ro", image, place], check=True)
    try:
        device = next(line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if str(place) in line)
        server, api = await serve(place / "state", free_port())
        status, kept = await api("POST", CONFIGMAPS, config("kept"))
        assert status == 201
        Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("broken for a test\n")
        for number in range(3):
            status, answer = await api("POST", CONFIGMAPS, config(f"lost{number}"))
            assert (status, answer["kind"], answer["reason"]) == (500, "Status", "InternalError")
            assert "the state could not be written: " in answer["message"]
        assert sum("writes fail" in record.message for record in caplog.records) == 1
        status, answer = await api("GET", CONFIGMAPS)
        assert (status, [item["metadata"]["name"] for item in answer["items"]]) == (200, ["kept"])
        await server.stop()
        server, api = await serve(place / "state", urlsplit(server.url).port)
        assert server.refusal
        status, answer = await api("GET", f"{CONFIGMAPS}/kept")
        assert (status, answer["data"]) == (200, kept["data"])
        await server.stop()
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)

"""The server as a whole: start, stop, restart, and what is on the disk afterwards."""

from __future__ import annotations

import asyncio
import socket
import stat
import sys
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.web
import pytest
import yaml

from tests.unit.kubeapi.apiserver.conftest import Client
from tests.waiting import until
from tink.kube.client import KubeClient
from tink.kube.resources import HARDWARE
from tink.kubeapi import ApiServer, ApiServerError

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


async def make(api: Client, *names: str) -> None:
    for name in names:
        assert (await api("POST", CONFIGMAPS, {"metadata": {"name": name}})).status == 201


async def test_everything_survives_a_restart_and_watches_resume(start: Any) -> None:
    server, api = await start()
    kubeconfig, authority = server.kubeconfig.read_text(), (server.kubeconfig.parent / "pki/ca.crt").read_bytes()
    await make(api, "a")
    since = (await api("GET", CONFIGMAPS)).json["metadata"]["resourceVersion"]
    await make(api, "b")
    await api("DELETE", f"{CONFIGMAPS}/a")
    last = (await api("GET", CONFIGMAPS)).json
    uid = (await api("GET", "/api/v1/namespaces/default")).json["metadata"]["uid"]
    await server.stop()

    server, api = await start()
    assert (server.kubeconfig.parent / "pki/ca.crt").read_bytes() == authority
    same = [line for line in kubeconfig.splitlines() if "server:" not in line]  # the port is a free one each time
    assert [line for line in server.kubeconfig.read_text().splitlines() if "server:" not in line] == same
    assert (await api("GET", CONFIGMAPS)).json == last
    assert (await api("GET", "/api/v1/namespaces/default")).json["metadata"]["uid"] == uid
    async with api.watch(CONFIGMAPS, resourceVersion=since) as watch:
        assert await watch.kinds(2) == [("ADDED", "b"), ("DELETED", "a")]
        await make(api, "c")
        event = await watch.next()
        assert int(event["object"]["metadata"]["resourceVersion"]) > int(last["metadata"]["resourceVersion"])


async def test_token_of_the_administrator_is_changed_while_the_server_and_its_clients_run(
    start: Any, crds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, api = await start()
    await crds(api)
    file, new = server.kubeconfig.parent / "token", "n" * 43
    old = file.read_text().strip()
    for module in ("kube.client", "files.rereading"):
        monkeypatch.setattr(f"tink.{module}._RECHECK_SECONDS", 0)
    async with await KubeClient.connect(server.kubeconfig) as component:
        file.write_text(f"{new}\n{old}\n")
        assert (await api("GET", CONFIGMAPS, token=new)).status == 200
        assert yaml.load(server.kubeconfig.read_text(), Loader=yaml.CSafeLoader)["users"][0]["user"]["token"] == new
        assert (await api("GET", CONFIGMAPS)).status == 200, "the old one is good until it is taken out"
        file.write_text(f"{new}\n")
        assert (await api("GET", CONFIGMAPS)).status == 401
        assert (await component.list(HARDWARE))["items"] == []
        file.write_text("garbled\n")
        assert (await api("GET", CONFIGMAPS, token=new)).status == 200, "what was good stays"


async def test_secrets_on_the_disk_are_for_their_owner_only(start: Any) -> None:
    server, _ = await start()
    directory = server.kubeconfig.parent
    for path in directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((directory / "pki/ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert sorted(path.name for path in directory.iterdir()) == [
        "kubeconfig",
        "pki",
        "state.db",
        "state.db-shm",
        "state.db-wal",
        "state.lock",
        "state.newest",
        "token",
    ]


async def test_stop_ends_watches_and_lets_writes_finish(start: Any) -> None:
    server, api = await start()
    async with api.watch(CONFIGMAPS, resourceVersion="0") as watch:
        writes = [asyncio.create_task(api("POST", CONFIGMAPS, {"metadata": {"name": f"c{n}"}})) for n in range(8)]
        await watch.kinds(1)
        await server.stop()
        while await watch.next() is not None:
            pass
    answers = await asyncio.gather(*writes, return_exceptions=True)
    answered = {answer.json["metadata"]["name"] for answer in answers if not isinstance(answer, BaseException)}
    _, api = await start()
    stored = {item["metadata"]["name"] for item in (await api("GET", CONFIGMAPS)).json["items"]}
    assert answered <= stored


async def test_disconnected_watcher_is_no_error_in_the_log(start, caplog, monkeypatch) -> None:
    server, api = await start()
    gone = []

    async def nobody_there(*_: object) -> None:
        gone.append(True)
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    async with api.watch(CONFIGMAPS) as watch:
        await make(api, "a")
        assert await watch.next()
        monkeypatch.setattr(aiohttp.web.StreamResponse, "write_eof", nobody_there)
        await server.stop()
    assert gone
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_used_port_is_named_with_advice(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ApiServerError, match=f"127.0.0.1:{port}: another program has the port .*--api-port"):
            await ApiServer(tmp_path / "state", port=port).start()
    server = ApiServer(tmp_path / "state", port=port)
    await server.start()
    assert server.url == f"https://127.0.0.1:{port}"
    await server.stop()


_SERVER = """
import asyncio, sys
from pathlib import Path
from tink.kubeapi import ApiServer

async def main():
    await ApiServer(Path(sys.argv[1]), port=0).start()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def _longer(names: list[str], than: int) -> bool:
    return len(names) > than


async def test_killed_server_keeps_every_answered_write(connect: Any, start: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    answered: list[str] = []

    async def write(api: Client, prefix: str) -> None:
        for number in range(10_000):
            name = f"{prefix}-{number}"
            try:
                if (await api("POST", CONFIGMAPS, {"metadata": {"name": name}})).status == 201:
                    answered.append(name)
            except (aiohttp.ClientError, OSError):
                return

    for life in range(3):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _SERVER, str(state), stdout=asyncio.subprocess.PIPE
        )
        assert await process.stdout.readline() == b"ready\n"
        api = connect(state / "kubeconfig")
        writers = [asyncio.create_task(write(api, f"life-{life}-{writer}")) for writer in range(4)]
        enough = len(answered) + 10
        await until(partial(_longer, answered, enough))
        process.kill()
        await asyncio.gather(*writers, process.wait())
    _, api = await start()
    stored = {item["metadata"]["name"] for item in (await api("GET", CONFIGMAPS)).json["items"]}
    assert set(answered) <= stored

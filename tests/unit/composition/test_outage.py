"""A start while the API of a cluster is away: machines that are known are served; what is new comes when it is back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from edge.composition import outage, readiness, stack
from edge.composition.settings import EdgeSettings, Service, StackSettings
from edge.composition.stack import Stack
from edge.composition.tasks import StackError
from tests.ports import free_port
from tests.waiting import until
from tink.api.crds import generate
from tink.apiserver import ApiServer
from tink.kube.cache.reflector import Reflector
from tink.kube.client import KubeClient
from tink.kube.manifests import apply_object
from tink.kube.resources import CRD, HARDWARE, OSIE, SECRET, WORKFLOW
from tink.server import server as grpc_server

Make = Callable[..., Stack]


def mac(number: int) -> str:
    return f"52:54:00:00:00:{number:02x}"


def hardware(number: int, **annotations: str) -> dict[str, Any]:
    dhcp = {"ip": f"127.0.1.{number}", "netmask": "255.0.0.0"}
    spec = {"networkInterfaces": {mac(number): {"dhcp": dhcp}}, "osie": {"name": "osie"}}
    metadata = {"name": f"m{number}", "namespace": "default", "annotations": annotations}
    return {"apiVersion": HARDWARE.api_version, "kind": "Hardware", "metadata": metadata, "spec": spec}


class Api:
    """A cluster's API that goes, and comes back at the same place."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._server: ApiServer | None = None
        self.kubeconfig = directory / "kubeconfig"

    async def come(self) -> None:
        self._server = ApiServer(self._directory, port=self._port)
        await self._server.start()

    async def go(self) -> None:
        if self._server is not None:
            await self._server.stop()
        self._server = None

    async def client(self) -> KubeClient:
        return await KubeClient.connect(self.kubeconfig)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """With two machines, their OSIE, and a Workflow for one of them."""
    api = Api(tmp_path / "api")
    await api.come()
    async with await api.client() as client:
        for definition in generate():
            await apply_object(client, CRD, definition, "test")
        await client.create(HARDWARE, hardware(1))
        await client.create(HARDWARE, hardware(2))
        osie = {"apiVersion": OSIE.api_version, "kind": "OSIE", "metadata": {"name": "osie", "namespace": "default"}}
        await client.create(OSIE, osie | {"spec": {"kernelUrl": "http://x/k", "initrdUrl": "http://x/i"}})
        metadata = {"name": "w", "namespace": "default"}
        work = {"apiVersion": WORKFLOW.api_version, "kind": "Workflow", "metadata": metadata}
        await client.create(WORKFLOW, work | {"spec": {"hardwareRef": {"name": "m1"}, "templateRef": {"name": "t"}}})
    yield api
    await api.go()


@pytest.fixture
async def make(tmp_path: Path, api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """A process beside that API, with a directory of its own that stays."""
    monkeypatch.setattr(outage, "SHORT_SECONDS", 1.0)
    monkeypatch.setattr(readiness, "AWAY_SECONDS", 0.1)
    monkeypatch.setattr(grpc_server, "AWAY_SECONDS", 0.1)
    made: list[Stack] = []
    (tmp_path / "ipxe").mkdir()
    (tmp_path / "ipxe" / "snponly.efi").write_bytes(b"MZ")

    def make(*services: Service, **settings: Any) -> Stack:
        edge: dict[str, Any] = {"ipxe_dir": tmp_path / "ipxe", "http_port": free_port(), "admin_port": free_port()}
        given: dict[str, Any] = {"data_dir": tmp_path / "data", "kubeconfig": api.kubeconfig, "grpc_port": free_port()}
        made.append(Stack(StackSettings(frozenset(services), edge=EdgeSettings(**edge, **settings), **given)))
        return made[-1]

    yield make
    for each in made:
        await each.stop()


async def known(make: Make, **settings: Any) -> None:
    """An edge has run and ended well."""
    first = make(Service.HTTP, Service.ADMIN, **settings)
    await first.start()
    await until(lambda: len(first.inventory) == 2)
    await first.stop()


async def fetch(one: Stack, path: str, machine: str = "127.0.0.1") -> tuple[int, str]:
    url = f"http://127.0.0.1:{one._settings.edge.http_port}{path}"
    connector = aiohttp.TCPConnector(local_addr=(machine, 0))
    async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def told(one: Stack, path: str) -> str:
    """What operators are told, at the beginning of the answer."""
    token = (one._settings.data_dir / "admin-token").read_text().strip()
    url = f"http://127.0.0.1:{one._settings.edge.admin_port}{path}"
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as answer:
        found = b""
        while b"\n\n" not in found.removeprefix(b": journey\n\n") and (more := await answer.content.readany()):
            found += more
        return found.decode()


async def test_edge_serves_what_it_knew_says_so_and_follows_when_the_api_is_back(
    make: Make, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await known(make)
    await api.go()
    one = make(Service.HTTP, Service.ADMIN)
    await one.start()
    assert sorted(machine.mac for machine in one.inventory.machines()) == [mac(1), mac(2)]
    assert one._pending.has_pending("default", "m1")
    assert not one._pending.has_pending("default", "m2")
    assert one._informers[OSIE].get("default", "osie") is not None
    status, script = await fetch(one, f"/ipxe/script/{mac(1)}/auto.ipxe", "127.0.1.1")
    assert status == 200, script
    said = "serving from what was known at 20"
    assert one.not_ready == ""
    assert one.readiness.text.startswith(f"ok: {said}")
    await until(lambda: any(line.startswith(said) for line in caplog.messages))
    assert (await told(one, "/readyz")).startswith(f"ok: {said}")
    assert said in await told(one, "/api/v1/events?since=now"), "also for who looks later"
    await api.come()
    async with await api.client() as client:
        await client.delete(HARDWARE, "m2", "default")
        await client.create(HARDWARE, hardware(3))
    await until(lambda: sorted(machine.mac for machine in one.inventory.machines()) == [mac(1), mac(3)])
    await until(lambda: one.readiness.text == "ok")
    await until(lambda: any("answers again" in line for line in caplog.messages))


async def test_restart_of_a_large_edge_serves_what_it_knew_and_is_right_when_the_api_has_listed(
    make: Make, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for no list, and reads a machine when it asks."""
    monkeypatch.setattr(outage, "LARGE_BYTES", 1)
    monkeypatch.setattr(stack, "_FEW", 0)
    await known(make)
    async with await api.client() as client:
        await client.delete(HARDWARE, "m2", "default")
        await client.create(HARDWARE, hardware(3))
    listing, asked = asyncio.Event(), Reflector.run

    async def late(reflector: Reflector) -> None:
        await listing.wait()
        await asked(reflector)

    monkeypatch.setattr(Reflector, "run", late)
    one = make(Service.HTTP, Service.ADMIN)
    await one.start()
    informer = one._informers[HARDWARE]
    assert (informer.untold, informer.has_synced) == (1, False), "m1 has a Workflow"
    assert (await fetch(one, f"/ipxe/script/{mac(1)}/auto.ipxe", "127.0.1.1"))[0] == 200
    assert one.readiness.text.startswith("ok: 1 Hardware are still to be read"), "nothing is wrong with the API"
    assert one.inventory.by_mac(mac(2)) is not None
    assert informer.untold == 0
    assert one.readiness.text == "ok"
    listing.set()
    await until(lambda: sorted(machine.mac for machine in one.inventory.machines()) == [mac(1), mac(3)])


async def test_what_is_not_of_a_moment_ago_or_soon_listed_anew_is_not_served_at_a_restart(
    make: Make, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await known(make)
    async with await api.client() as client:
        await client.delete(HARDWARE, "m2", "default")
    small = make(Service.HTTP)
    await small.start()
    assert len(small.inventory) == 1
    monkeypatch.setattr(outage, "LARGE_BYTES", 1)
    await small.stop()
    async with await api.client() as client:
        await client.delete(HARDWARE, "m1", "default")
    file = small._settings.data_dir / "checkpoint" / "hardware"
    old = file.stat().st_mtime - outage.RECENT_SECONDS - 10
    monkeypatch.setattr(outage.Checkpoint, "age", property(lambda _: time.time() - old))
    late = make(Service.HTTP)
    await late.start()
    assert len(late.inventory) == 0


async def test_what_went_while_the_edge_was_down_is_gone_when_the_api_is_back(make: Make, api: Api) -> None:
    await known(make)
    async with await api.client() as client:
        await client.delete(HARDWARE, "m2", "default")
        changed = hardware(1)
        changed["spec"]["networkInterfaces"][mac(1)]["dhcp"]["ip"] = "127.0.1.99"
        await client.patch(HARDWARE, "m1", "default", changed)
    await api.go()
    one = make(Service.HTTP)
    await one.start()
    assert one.inventory.by_ip("127.0.1.1") is not None
    await api.come()
    await until(lambda: len(one.inventory) == 1)
    await until(lambda: one.inventory.by_ip("127.0.1.99"))
    assert one.inventory.by_ip("127.0.1.1") is None


async def test_checkpoint_of_another_cluster_or_a_damaged_one_serves_nobody(
    make: Make, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outage, "SYNC_SECONDS", 1.0)
    await known(make)
    await api.go()
    other = Api(tmp_path / "other")
    await other.come()
    await other.go()
    kubeconfig, api.kubeconfig = api.kubeconfig, other.kubeconfig
    with pytest.raises(StackError, match="the API has not listed"):
        await make(Service.HTTP).start()
    assert "checkpoint/hardware is of another cluster: it is ignored, and written anew" in caplog.text
    api.kubeconfig = kubeconfig
    (tmp_path / "data" / "checkpoint" / "hardware").write_bytes(b"")
    with pytest.raises(StackError, match="the API has not listed"):
        await make(Service.HTTP).start()
    assert "checkpoint/hardware is damaged" in caplog.text


async def test_edge_that_is_not_to_keep_anything_does_not(
    make: Make, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "SYNC_SECONDS", 1.0)
    await known(make)
    await known(make, checkpoint=False)
    assert not (tmp_path / "data" / "checkpoint").exists()
    await api.go()
    with pytest.raises(StackError, match="the API has not listed"):
        await make(Service.HTTP, checkpoint=False).start()


async def test_user_data_of_a_secret_is_served_where_the_operator_lets_it_be_kept(make: Make, api: Api) -> None:
    async with await api.client() as client:
        metadata = {"name": "s", "namespace": "default"}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"userData": "aHVzaA=="}}
        await client.create(SECRET, secret)
        annotation = {"metadata": {"annotations": {"tinkerbell.org/userdata-secret": "s"}}}
        await client.patch(HARDWARE, "m1", "default", annotation)
        dhcp = {"networkInterfaces": {mac(1): {"dhcp": {"ip": "127.0.0.1", "netmask": "255.0.0.0"}}}}
        await client.patch(HARDWARE, "m1", "default", {"spec": dhcp})
    first = make(Service.HTTP, checkpoint_secrets=True)
    await first.start()
    directory = first._settings.data_dir / "checkpoint" / "secrets"
    await until(lambda: directory.is_dir() and any(not path.name.startswith(".") for path in directory.iterdir()))
    await first.stop()
    await api.go()
    one = make(Service.HTTP, checkpoint_secrets=True)
    await one.start()
    assert await fetch(one, "/latest/user-data") == (200, "hush")
    await one.stop()
    without = make(Service.HTTP)
    await without.start()
    assert (await fetch(without, "/latest/user-data"))[0] == 503


@pytest.mark.parametrize("role", [Service.SERVER, Service.CONTROLLER])
async def test_who_writes_to_the_api_waits_for_it_and_does_not_end(role: Service, make: Make, api: Api) -> None:
    """A process that ends is started again more and more seldom, and would be late when the API is back."""
    await api.go()
    one = make(role)
    await one.start()
    assert "the Kubernetes API has not" in one.not_ready
    assert one.starting == ""
    await api.come()
    await until(lambda: one.not_ready == "")


async def test_webhooks_and_manifests_come_when_the_api_is_back(
    make: Make, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviewed = asyncio.Event()

    async def seen(*_: Any) -> None:
        reviewed.set()

    await known(make)
    await api.go()
    monkeypatch.setattr(stack.Stack, "_start_webhooks", seen)
    one = make(Service.HTTP)
    await one.start()
    assert not reviewed.is_set()
    await api.come()
    await asyncio.wait_for(reviewed.wait(), 30)
    await until(lambda: one.readiness.text == "ok")
    assert not one._tasks.failure, "what has done its work may end"


class Silent:
    """An informer whose list does not come."""

    has_synced = False

    def __init__(self, *, unreachable: bool = False, failing_for: float = 0.0, denied: str = "") -> None:
        self.unreachable = unreachable
        self.failing_for = failing_for
        self.denied = denied
        self.known = 0

    def __len__(self) -> int:
        return self.known

    async def wait_for_cache_sync(self) -> None:
        await asyncio.Event().wait()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_STEP_SECONDS", 0.01), ("SHORT_SECONDS", 0.03), ("SYNC_SECONDS", 0.1)):
        monkeypatch.setattr(outage, name, seconds)


@pytest.mark.parametrize("silent", [Silent(unreachable=True, failing_for=4), Silent()], ids=["refused", "swallowed"])
async def test_api_that_says_nothing_is_away(hasty: None, silent: Any) -> None:
    assert await outage._listed({HARDWARE: silent}, without_api=True) is False
    with pytest.raises(outage.NotListedError, match="has not listed hardware"):
        await outage._listed({HARDWARE: silent}, without_api=False)


@pytest.mark.parametrize(
    ("silent", "said"),
    [
        (Silent(failing_for=4), "Are the CRDs installed"),
        (Silent(failing_for=4, denied="the API does not let tinkedge read hardware"), "give a --kubeconfig .* may"),
    ],
    ids=["404", "403"],
)
async def test_api_that_says_no_is_not_away(hasty: None, silent: Any, said: str) -> None:
    with pytest.raises(outage.NotListedError, match=said):
        await outage._listed({HARDWARE: silent}, without_api=True)


async def test_api_that_is_slow_is_waited_for(hasty: None) -> None:
    slow = Silent()
    waiting = asyncio.create_task(outage._listed({HARDWARE: slow}, without_api=True))  # type: ignore[dict-item]
    for _ in range(20):
        slow.known += 1
        await asyncio.sleep(0.01)
    assert not waiting.done()
    slow.has_synced = True
    assert await waiting is True

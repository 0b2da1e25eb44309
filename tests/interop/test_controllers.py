"""Controllers against the embedded API: two of them, of which one acts whatever happens to the other, and one that has
thousands of Workflows in trouble."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api import serving
from tests.waiting import PATIENCE_SECONDS, until
from tink.api.crds import generate
from tink.api.v1alpha2 import FINALIZER, Raw
from tink.apiserver import ApiServer
from tink.controller import ControllerSettings, WorkflowController
from tink.kube.cache import Informer
from tink.kube.client import ConflictError, KubeClient
from tink.kube.resources import EVENT, HARDWARE, LEASE, TEMPLATE, WORKFLOW
from tink.kube.runtime import LeaderElectionConfig, LeaderElector

ELECTION = LeaderElectionConfig(
    "tinkedge-controller", "default", lease_duration=3, renew_deadline=1.5, retry_period=0.3
)
"""Seconds."""


def obj(kind: str, name: str, spec: Raw) -> Raw:
    return {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def workflow(name: str, hardware: str = "h", template: str = "t", **spec: Any) -> Raw:
    return obj("Workflow", name, {"hardwareRef": {"name": hardware}, "templateRef": {"name": template}, **spec})


class Replica:
    """A controller with its own client, and when it wrote."""

    def __init__(
        self, name: str, client: KubeClient, *, election: LeaderElectionConfig | None = ELECTION, **settings: Any
    ) -> None:
        self.name = name
        self.writes: list[tuple[float, float]] = []
        """When the writes to Workflows began and ended, however they did."""
        self.informers = [Informer(client, kind) for kind in (WORKFLOW, HARDWARE, TEMPLATE)]
        self.elector = LeaderElector(client, election, identity=name) if election else None
        patch = client.patch

        async def recorded(resource: Any, *words: Any, **options: Any) -> Raw:
            begun = time.monotonic()
            try:
                return await patch(resource, *words, **options)
            finally:
                if resource is WORKFLOW:
                    self.writes.append((begun, time.monotonic()))

        client.patch = recorded  # type: ignore[method-assign]
        workflows, hardware, templates = self.informers
        self.controller = WorkflowController(
            client,
            workflows=workflows,
            hardware=hardware,
            templates=templates,
            settings=ControllerSettings(**settings),
            elector=self.elector,
        )
        self.tasks = [asyncio.create_task(informer.run()) for informer in self.informers]
        self.main = asyncio.create_task(self.controller.run())

    async def stop(self) -> None:
        for task in (self.main, *self.tasks):
            task.cancel()
        await asyncio.wait([self.main, *self.tasks])


class Proxy:
    """Between a client and the API; while it is `stalled`, connections stay and nothing passes."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._passes = asyncio.Event()
        self._passes.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def stall(self) -> None:
        self._passes.clear()

    def heal(self) -> None:
        self._passes.set()

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pass_on(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while piece := await source.read(65536):
                    await self._passes.wait()
                    sink.write(piece)
                    await sink.drain()
        finally:
            sink.close()


class Site:
    def __init__(self, api: ApiServer, client: KubeClient, directory: Path, stack: AsyncExitStack) -> None:
        self.api = api
        self.client = client
        self._directory = directory
        self.stack = stack
        self.created = 0

    async def connect(self, port: int | None = None) -> KubeClient:
        file = self._directory / f"kubeconfig-{port}"
        config = yaml.safe_load(self.api.kubeconfig.read_text())
        if port is not None:
            config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        file.write_text(yaml.safe_dump(config))
        client = await KubeClient.connect(file)
        self.stack.push_async_callback(client.close)
        return client

    async def replica(self, name: str, port: int | None = None, **options: Any) -> Replica:
        built = Replica(name, await self.connect(port), **options)
        self.stack.push_async_callback(built.stop)
        return built

    async def hardware(self) -> None:
        await self.client.create(HARDWARE, obj("Hardware", "h", {"networkInterfaces": {"52:54:00:00:00:01": {}}}))

    async def references(self) -> None:
        await self.hardware()
        await self.client.create(TEMPLATE, obj("Template", "t", {"actions": [{"name": "a", "image": "i"}]}))

    async def load(self, stop: asyncio.Event) -> None:
        """Keep whoever leads busy."""
        while not stop.is_set():
            await self.client.create(WORKFLOW, workflow(f"w{self.created}"))
            self.created += 1
            await asyncio.sleep(0.05)

    async def holder(self) -> str:
        lease = await self.client.get(LEASE, ELECTION.name, ELECTION.namespace)
        return str(lease["spec"].get("holderIdentity"))

    async def until_held(self, name: str) -> None:
        async def held() -> bool:
            with suppress(Exception):
                return await self.holder() == name
            return False

        await until(held)

    async def state(self, name: str) -> str | None:
        status = (await self.client.get(WORKFLOW, name, "default")).get("status", {})
        state: str | None = status.get("state")
        return None if state == "Pending" and "actions" not in status else state  # it was created, and no more

    async def until(self, name: str, state: str | None) -> float:
        async def in_state() -> bool:
            return await self.state(name) == state

        begun = time.monotonic()
        await until(in_state)
        return time.monotonic() - begun

    async def all_prepared(self) -> None:
        async def prepared() -> list[Raw] | None:
            items: list[Raw] = (await self.client.list(WORKFLOW, "default"))["items"]
            return items if all("actions" in item.get("status", {}) for item in items) else None

        assert len(await until(prepared, every=0.1)) == self.created


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        api, client = await stack.enter_async_context(serving(tmp_path / "api", generate()))
        yield Site(api, client, tmp_path, stack)


async def test_a_controller_that_is_cut_off_has_stopped_writing_before_the_other_begins(
    site: Site, record_property: Any
) -> None:
    await site.references()
    proxy = Proxy(int(site.api.url.rpartition(":")[2]))
    port = await proxy.start()
    site.stack.push_async_callback(proxy.stop)
    a = await site.replica("a", port)
    await site.until_held("a")
    b = await site.replica("b")
    enough = asyncio.Event()
    load = asyncio.create_task(site.load(enough))
    await until(lambda: a.writes)
    proxy.stall()
    cut = time.monotonic()
    await site.until_held("b")
    proxy.heal()
    await asyncio.sleep(1.5)
    enough.set()
    await load
    await site.all_prepared()
    assert a.writes
    assert b.writes
    assert max(ended for _, ended in a.writes) < min(begun for begun, _ in b.writes), "both wrote"
    assert max(ended for _, ended in a.writes) - cut < ELECTION.lease_duration


async def test_a_controller_that_stops_hands_over_at_once(site: Site) -> None:
    await site.references()
    # Longer than the test waits: the other leads only if the Lease is released. The leader never misses its deadline.
    long = replace(ELECTION, lease_duration=10 * PATIENCE_SECONDS, renew_deadline=5 * PATIENCE_SECONDS)
    a = await site.replica("a", election=long)
    await site.until_held("a")
    await site.replica("b", election=long)
    await site.client.create(WORKFLOW, workflow("first"))
    await site.until("first", "Pending")
    await a.stop()
    await site.until_held("b")
    await site.client.create(WORKFLOW, workflow("second"))
    await site.until("second", "Pending")


CHILD = """
import asyncio, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_controllers as t

async def main():
    client = await t.KubeClient.connect(Path(sys.argv[1]))
    patch = client.patch
    async def told(resource, *words, **options):
        if resource is t.WORKFLOW:
            print("write", time.monotonic(), flush=True)
        return await patch(resource, *words, **options)
    client.patch = told
    replica = t.Replica("child", client)
    await replica.main

asyncio.run(main())
"""


async def child(site: Site) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(site.api.kubeconfig), str(Path(__file__).parent),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip

    async def end() -> None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    site.stack.push_async_callback(end)
    return process


async def writes(process: asyncio.subprocess.Process) -> list[float]:
    assert process.stdout is not None
    text = (await process.stdout.read()).decode()
    return [float(line.split()[1]) for line in text.splitlines() if line.startswith("write ")]


async def test_a_controller_that_was_frozen_or_killed_is_replaced_and_does_not_write_when_it_wakes_up(
    site: Site,
) -> None:
    await site.references()
    process = await child(site)
    await site.until_held("child")
    b = await site.replica("b")
    enough = asyncio.Event()
    load = asyncio.create_task(site.load(enough))
    await until(lambda: site.created)
    await site.until("w0", "Pending")  # it has written

    process.send_signal(signal.SIGSTOP)
    frozen = time.monotonic()
    await site.until_held("b")
    await asyncio.sleep(0.3)
    process.send_signal(signal.SIGCONT)
    await asyncio.sleep(1)
    before_it_led_again = time.monotonic()
    await b.stop()
    await site.until_held("child")
    later = site.created + 1  # nobody but the child can prepare it
    await until(lambda: site.created > later)
    await site.until(f"w{later}", "Pending")

    c = await site.replica("c")
    process.kill()
    await site.until_held("c")
    enough.set()
    await load
    await site.all_prepared()
    theirs = await writes(process)
    assert min(theirs) < frozen
    assert max(theirs) > before_it_led_again
    assert not [at for at in theirs if min(begun for begun, _ in b.writes) <= at <= before_it_led_again], "both wrote"
    assert max(theirs) < min(begun for begun, _ in c.writes)


async def test_hundreds_of_workflows_that_wait_do_not_hold_up_a_good_one(site: Site) -> None:
    await site.references()
    replica = await site.replica("a", election=None)
    alone = await prepared_within(site, "alone")
    numbers = iter(range(250))

    async def create() -> None:
        for number in numbers:
            await site.client.create(WORKFLOW, workflow(f"lost{number}", template="missing"))

    await asyncio.gather(*(create() for _ in range(8)))
    beside = await prepared_within(site, "beside")
    print(f"prepared within {alone:.3f} s alone, {beside:.3f} s beside 250 that wait; {len(replica.writes)} writes")
    assert beside < max(1.0, 4 * alone)


async def prepared_within(site: Site, name: str) -> float:
    """The median of some."""
    times = []
    for index in range(9):
        await site.client.create(WORKFLOW, workflow(f"{name}{index}"))
        times.append(await site.until(f"{name}{index}", "Pending"))
    return sorted(times)[4]


async def test_kubectl_describe_tells_what_became_of_a_workflow(site: Site) -> None:
    await site.replica("a", election=None, reference_note_after=0.05)
    await site.client.create(TEMPLATE, obj("Template", "t", {"actions": [{"name": "a", "image": "i"}]}))
    await site.client.create(WORKFLOW, workflow("w"))

    async def missed() -> bool:
        found = (await site.client.list(EVENT, "default"))["items"]
        return any(item["reason"] == "HardwareNotFound" for item in found)

    await until(missed, every=0.05)
    await site.hardware()
    await site.until("w", "Pending")
    await site.client.delete(WORKFLOW, "w", "default")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(items := (await site.client.list(EVENT, "default"))["items"]) < 3:
            await asyncio.sleep(0.05)
    told = [(item["type"], item["reason"]) for item in items]
    assert sorted(told) == [("Normal", "Canceled"), ("Normal", "Prepared"), ("Warning", "HardwareNotFound")]
    assert {item["involvedObject"]["name"] for item in items} == {"w"}


async def test_a_workflow_that_is_deleted_while_it_is_prepared_goes(site: Site) -> None:
    await site.references()
    await site.replica("a", election=None)
    for index in range(12):
        await site.client.create(WORKFLOW, workflow(f"w{index}"))
        await asyncio.sleep(0.002 * index)
        await site.client.delete(WORKFLOW, f"w{index}", "default")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await site.client.list(WORKFLOW, "default"))["items"]:
            await asyncio.sleep(0.02)


async def test_hardware_that_is_deleted_does_not_keep_its_workflow_from_ending(site: Site) -> None:
    await site.references()
    await site.replica("a", election=None, cancelling_timeout=0.5)
    await site.client.create(WORKFLOW, workflow("w"))
    await site.until("w", "Pending")
    actions = (await site.client.get(WORKFLOW, "w", "default"))["status"]["actions"]
    actions[0] |= {"state": "Running"}
    await site.client.patch(
        WORKFLOW, "w", "default", {"status": {"state": "Running", "actions": actions}}, subresource="status"
    )
    await site.client.delete(HARDWARE, "h", "default")
    await site.client.delete(TEMPLATE, "t", "default")
    await asyncio.sleep(0.2)
    assert await site.state("w") == "Running"
    await site.client.delete(WORKFLOW, "w", "default")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await site.client.list(WORKFLOW, "default"))["items"]:
            await asyncio.sleep(0.02)


async def test_parameters_of_a_megabyte_fail_their_workflow_and_no_other(site: Site) -> None:
    await site.references()
    args = ["{{ .Params." + f"p{index}" + " }}" for index in range(8)]
    many = [{"name": f"a{index}", "image": "i"} for index in range(128)]
    many[0]["args"] = args  # type: ignore[assignment]
    await site.client.create(TEMPLATE, obj("Template", "big", {"actions": many}))
    await site.replica("a", election=None)
    params = {f"p{index}": "x" * 120_000 for index in range(8)}
    await site.client.create(WORKFLOW, workflow("huge", template="big", templateParams=params))
    await site.client.create(WORKFLOW, workflow("w"))
    await site.until("w", "Pending")
    await site.until("huge", "Failed")
    found = await site.client.get(WORKFLOW, "huge", "default")
    said = next(c for c in found["status"]["conditions"] if c["type"] == "Succeeded")
    assert "bytes" in said["message"]
    assert FINALIZER not in found["metadata"].get("finalizers", [])


async def test_a_finalizer_that_somebody_took_away_comes_back(site: Site) -> None:
    await site.references()
    await site.replica("a", election=None)
    await site.client.create(WORKFLOW, workflow("w"))
    await site.until("w", "Pending")
    with suppress(ConflictError):
        await site.client.patch(WORKFLOW, "w", "default", {"metadata": {"finalizers": None}})
    async with asyncio.timeout(PATIENCE_SECONDS):
        while FINALIZER not in (await site.client.get(WORKFLOW, "w", "default"))["metadata"].get("finalizers", []):
            await asyncio.sleep(0.02)

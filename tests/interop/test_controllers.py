"""Controllers against the embedded API over HTTP: of two, only one acts, whatever happens to the other."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api import serving
from tests.waiting import PATIENCE_SECONDS, until
from tink.api.crds import generate
from tink.api.v1alpha2 import Raw
from tink.controller import ControllerSettings, WorkflowController
from tink.kube.cache import Informer
from tink.kube.client import KubeClient
from tink.kube.resources import EVENT, HARDWARE, LEASE, TEMPLATE, WORKFLOW
from tink.kube.runtime import LeaderElectionConfig, LeaderElector
from tink.kubeapi import ApiServer

ELECTION = LeaderElectionConfig(
    "tinkedge-controller", "default", lease_duration=3, renew_deadline=1.5, retry_period=0.3
)
"""Seconds."""


def obj(kind: str, name: str, spec: Raw) -> Raw:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "tinkerbell.org/v1alpha2", "kind": kind, "metadata": metadata, "spec": spec}


class Replica:
    """A controller with its own client. `writes` are the begin and end of its attempts to write Workflows; each
    calls `note`."""

    def __init__(
        self,
        name: str,
        client: KubeClient,
        *,
        election: LeaderElectionConfig | None = ELECTION,
        note: Callable[[float, float], None] = lambda *_: None,
        **settings: Any,
    ) -> None:
        self.client = client
        self.writes: list[tuple[float, float]] = []
        workflows, hardware, templates = informers = [Informer(client, kind) for kind in (WORKFLOW, HARDWARE, TEMPLATE)]
        patch = client.patch

        async def recorded(resource: Any, *words: Any, **options: Any) -> Raw:
            begun = time.monotonic()
            try:
                return await patch(resource, *words, **options)
            finally:
                if resource is WORKFLOW:
                    self.writes.append((begun, time.monotonic()))
                    note(*self.writes[-1])

        client.patch = recorded  # type: ignore[method-assign]
        controller = WorkflowController(
            client,
            workflows=workflows,
            hardware=hardware,
            templates=templates,
            settings=ControllerSettings(**settings),
            elector=LeaderElector(client, election, identity=name) if election else None,
        )
        self.tasks = [asyncio.create_task(each.run()) for each in (*informers, controller)]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


class Proxy:
    """A proxy between a client and the API. It passes data only if `passes` is set; connections stay open."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.passes = asyncio.Event()
        self.passes.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

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
                    await self.passes.wait()
                    sink.write(piece)
                    await sink.drain()
        finally:
            sink.close()


class Site:
    """The API with a Hardware and a Template, and the actions of an operator."""

    def __init__(self, api: ApiServer, client: KubeClient, directory: Path, stack: AsyncExitStack) -> None:
        self.api = api
        self.client = client
        self.directory = directory
        self.stack = stack
        self.created = 0

    async def replica(self, name: str, port: int | None = None, **options: Any) -> Replica:
        """Start a controller that reaches the API at this port."""
        file = self.directory / f"kubeconfig-{name}"
        config = yaml.safe_load(self.api.kubeconfig.read_text())
        if port is not None:
            config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        file.write_text(yaml.safe_dump(config))
        client = await KubeClient.connect(file)
        self.stack.push_async_callback(client.close)
        built = Replica(name, client, **options)
        self.stack.push_async_callback(built.stop)
        return built

    async def create(self, name: str) -> None:
        spec = {"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}}
        await self.client.create(WORKFLOW, obj("Workflow", name, spec))

    async def create_hardware(self) -> None:
        await self.client.create(HARDWARE, obj("Hardware", "h", {"networkInterfaces": {"52:54:00:00:00:01": {}}}))

    async def load(self, enough: asyncio.Event) -> None:
        """Keep the leader busy, then wait until everything is prepared."""
        while not enough.is_set():
            await self.create(f"w{self.created}")
            self.created += 1
            await asyncio.sleep(0.05)
        for number in range(self.created):
            await self.until_prepared(f"w{number}")

    async def until_held(self, name: str) -> None:
        async def is_held() -> bool:
            with suppress(Exception):
                lease = await self.client.get(LEASE, ELECTION.name, ELECTION.namespace)
                return bool(lease["spec"].get("holderIdentity") == name)
            return False

        await until(is_held)

    async def until_prepared(self, name: str) -> None:
        async def prepared() -> bool:
            return "actions" in (await self.client.get(WORKFLOW, name, "default")).get("status", {})

        await until(prepared, every=0.02)

    async def until_all_gone(self) -> None:
        async def are_gone() -> bool:
            return not (await self.client.list(WORKFLOW, "default"))["items"]

        await until(are_gone, every=0.02)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        api, client = await stack.enter_async_context(serving(tmp_path / "api", generate()))
        await client.create(TEMPLATE, obj("Template", "t", {"actions": [{"name": "a", "image": "i"}]}))
        yield Site(api, client, tmp_path, stack)


async def test_disconnected_controller_stops_writing_before_the_other_begins(site: Site) -> None:
    await site.create_hardware()
    proxy = Proxy(int(site.api.url.rpartition(":")[2]))
    port = await proxy.start()
    site.stack.push_async_callback(proxy.stop)
    a = await site.replica("a", port)
    await site.until_held("a")
    b = await site.replica("b")
    enough = asyncio.Event()
    load = asyncio.create_task(site.load(enough))
    await until(lambda: a.writes)
    proxy.passes.clear()
    await site.until_held("b")
    proxy.passes.set()
    later = site.created + 2
    await until(lambda: site.created > later)
    await a.client.get(WORKFLOW, f"w{later}", "default")  # it could write again
    enough.set()
    await load
    assert max(ended for _, ended in a.writes) < min(begun for begun, _ in b.writes), "both wrote"


async def test_stopped_controller_hands_over_at_once(site: Site) -> None:
    await site.create_hardware()
    # Longer than the test waits: the other leads only if the Lease is released. The leader never misses its deadline.
    long = replace(ELECTION, lease_duration=10 * PATIENCE_SECONDS, renew_deadline=5 * PATIENCE_SECONDS)
    a = await site.replica("a", election=long)
    await site.until_held("a")
    await site.replica("b", election=long)
    await site.create("first")
    await site.until_prepared("first")
    await a.stop()
    await site.until_held("b")
    await site.create("second")
    await site.until_prepared("second")


async def lead(kubeconfig: Path) -> None:
    """Run a controller in its own process, and print its writes and signs of life."""
    replica = Replica(
        "child", await KubeClient.connect(kubeconfig), note=lambda begun, _: print("write", begun, flush=True)
    )
    while not replica.tasks[-1].done():
        print("alive", time.monotonic(), flush=True)
        await asyncio.sleep(0.1)


CHILD = "import sys; from tests.interop.test_controllers import *; asyncio.run(lead(Path(sys.argv[1])))"


async def test_frozen_or_killed_controller_is_replaced_and_does_not_write_when_it_resumes(
    site: Site,
) -> None:
    await site.create_hardware()
    out = site.directory / "child"
    with out.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, str(site.api.kubeconfig), stdout=file
        )

    def printed(word: str) -> list[float]:
        lines = [line.split() for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [float(at) for event, at in lines if event == word]

    async def end() -> None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    site.stack.push_async_callback(end)
    await site.until_held("child")
    b = await site.replica("b")
    enough = asyncio.Event()
    load = asyncio.create_task(site.load(enough))
    await until(lambda: printed("write"), every=0.05)

    process.send_signal(signal.SIGSTOP)
    frozen = time.monotonic()
    await site.until_held("b")
    await until(lambda: b.writes)
    process.send_signal(signal.SIGCONT)
    lived = len(printed("alive"))
    await until(lambda: len(printed("alive")) > lived + 10, every=0.05)
    before_it_led_again = time.monotonic()
    await b.stop()
    await site.until_held("child")
    later = site.created + 1  # only the child can prepare it
    await until(lambda: site.created > later)
    await site.until_prepared(f"w{later}")

    c = await site.replica("c")
    process.kill()
    await site.until_held("c")
    enough.set()
    await load
    theirs = printed("write")
    assert min(theirs) < frozen
    assert max(theirs) > before_it_led_again
    assert not [at for at in theirs if min(begun for begun, _ in b.writes) <= at <= before_it_led_again], "both wrote"
    assert max(theirs) < min(begun for begun, _ in c.writes)


async def test_result_of_a_workflow_is_in_its_events_and_the_order_of_deletion_does_not_matter(site: Site) -> None:
    await site.replica("a", election=None, reference_note_after=0.05, cancelling_timeout=0.5)

    async def events() -> set[tuple[str, str, str]]:
        items = (await site.client.list(EVENT, "default"))["items"]
        return {(item["type"], item["reason"], item["involvedObject"]["name"]) for item in items}

    async def wait_for_events(*expected: tuple[str, str, str]) -> None:
        async def has_events() -> bool:
            return await events() == set(expected)

        await until(has_events, events, every=0.05)

    await site.create("w")
    missed, prepared = ("Warning", "HardwareNotFound", "w"), ("Normal", "Prepared", "w")
    await wait_for_events(missed)
    await site.create_hardware()
    await wait_for_events(missed, prepared)
    await site.client.delete(WORKFLOW, "w", "default")
    await wait_for_events(missed, prepared, ("Normal", "Canceled", "w"))
    # While it is prepared.
    for index in range(12):
        await site.create(f"w{index}")
        await asyncio.sleep(0.002 * index)
        await site.client.delete(WORKFLOW, f"w{index}", "default")
    await site.until_all_gone()
    # While it runs, and when its Hardware and its Template have gone.
    await site.create("running")
    await site.until_prepared("running")
    actions = (await site.client.get(WORKFLOW, "running", "default"))["status"]["actions"]
    status = {"status": {"state": "Running", "actions": [actions[0] | {"state": "Running"}]}}
    await site.client.patch(WORKFLOW, "running", "default", status, subresource="status")
    await site.client.delete(HARDWARE, "h", "default")
    await site.client.delete(TEMPLATE, "t", "default")
    await site.client.delete(WORKFLOW, "running", "default")
    await site.until_all_gone()

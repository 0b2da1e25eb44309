"""Long watches of the embedded API by kubernetes-asyncio and our own informer.

The server restarts, loses its history (410), sends bookmarks, has a slow reader, and its clients elect a leader.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.client.rest import ApiException
from kubernetes_asyncio.dynamic import DynamicClient
from kubernetes_asyncio.leaderelection import electionconfig, leaderelection
from kubernetes_asyncio.leaderelection.resourcelock.leaselock import LeaseLock

from tests.ports import free_port
from tests.support import objects
from tests.waiting import PATIENCE_SECONDS, until
from tink.api.crds import generate
from tink.kube.cache import Informer
from tink.kube.client import KubeClient
from tink.kube.resources import HARDWARE, ResourceType
from tink.kubeapi import ApiServer
from tink.limits import Backoff

MAPS = ResourceType("", "v1", "configmaps", "ConfigMap")
HISTORY = 20
"""Number of changes in the history of these servers."""


class Cluster:
    """An API server that can stop and start again on the same port, with the same objects."""

    def __init__(self, state: Path) -> None:
        self.kubeconfig = state / "kubeconfig"
        self._port = free_port()

    async def start(self) -> None:
        self._server = ApiServer(self.kubeconfig.parent, port=self._port, history=HISTORY)
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path / "state")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def kube(cluster: Cluster) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(cluster.kubeconfig) as connected:
        yield connected


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[ApiClient]:
    """A client of kubernetes-asyncio."""
    settings = client.Configuration()
    await config.load_kube_config(str(cluster.kubeconfig), client_configuration=settings)
    async with ApiClient(settings) as made:
        yield made


def config_map(name: str, **data: str) -> Any:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def put(kube: KubeClient, name: str, **data: str) -> None:
    await kube.create(MAPS, config_map(name, **data), "default")


async def overflow_history(kube: KubeClient) -> None:
    """Make more changes than the server's history holds."""
    await put(kube, "churn")
    for number in range(HISTORY * 2):
        await kube.patch(MAPS, "churn", "default", {"data": {"n": str(number)}})


@contextlib.asynccontextmanager
async def run_informer(kube: KubeClient, resource: ResourceType = MAPS) -> AsyncIterator[tuple[Informer, list[str]]]:
    """Run our informer, and yield it with the names that its handlers receive: `-NAME` for a deleted object."""
    informer = Informer(kube, resource, ["default"], backoff=lambda: Backoff(0.05, 0.5))
    events: list[str] = []
    informer.add_event_handler(
        lambda new, _: events.append(new["metadata"]["name"]), lambda old: events.append(f"-{old['metadata']['name']}")
    )
    task = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(informer.wait_for_cache_sync(), PATIENCE_SECONDS)
        yield informer, events
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- our informer ---


async def test_our_informer_continues_after_a_restart_and_lists_again_without_history(
    cluster: Cluster, kube: KubeClient
) -> None:
    await put(kube, "kept")
    await put(kube, "lost")
    async with run_informer(kube) as (informer, events):
        await cluster.stop()
        await until(lambda: informer.is_unreachable)
        await cluster.start()
        await put(kube, "after")
        await kube.delete(MAPS, "after", "default")
        await until(lambda: events[-1:] == ["-after"])
        assert events == ["kept", "lost", "after", "-after"], "each event arrives exactly once"

        await cluster.stop()
        # While the informer retries, another server makes more changes to the same state than the history holds.
        elsewhere = Cluster(cluster.kubeconfig.parent)
        await elsewhere.start()
        async with await KubeClient.connect(elsewhere.kubeconfig) as busy:
            await busy.delete(MAPS, "lost", "default")
            await overflow_history(busy)
        await elsewhere.stop()
        assert events[4:] == []
        await cluster.start()
        await until(lambda: "-lost" in events and informer.get("default", "churn") is not None)
        await put(kube, "last")
        await until(lambda: events[-1] == "last")
        assert {obj["metadata"]["name"] for obj in informer.list()} == {"kept", "churn", "last"}


# --- kubernetes-asyncio ---


def watch_maps(core: client.CoreV1Api, version: str = "", seconds: int = 20, **more: Any) -> Any:
    listing = core.list_namespaced_config_map
    return watch.Watch().stream(listing, "default", resource_version=version, timeout_seconds=seconds, **more)


async def follow(api: ApiClient, version: str, last: str, seen: list[tuple[str, str]]) -> None:
    """Add the events of a watch to `seen`, up to the addition of the object `last`."""
    async with watch_maps(client.CoreV1Api(api), version) as stream:
        async for event in stream:
            seen.append((event["type"], event["object"].metadata.name))
            if seen[-1] == ("ADDED", last):
                return


async def latest_version(api: ApiClient) -> str:
    return str((await client.CoreV1Api(api).list_namespaced_config_map("default")).metadata.resource_version)


async def test_watch_sees_every_change_in_order_ends_with_the_server_and_continues_from_its_version(
    cluster: Cluster, kube: KubeClient, api: ApiClient
) -> None:
    version = await latest_version(api)
    seen: list[tuple[str, str]] = []
    task = asyncio.create_task(follow(api, version, "c", seen))
    await put(kube, "a")
    await kube.patch(MAPS, "a", "default", {"data": {"k": "v"}})
    await put(kube, "b")
    await kube.delete(MAPS, "a", "default")
    expected = [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    await until(lambda: len(seen) == 4)
    assert seen == expected
    await cluster.stop()
    await asyncio.wait([task], timeout=PATIENCE_SECONDS)
    assert task.done()
    with contextlib.suppress(Exception):
        await task
    await cluster.start()
    await put(kube, "c")
    replayed: list[tuple[str, str]] = []
    await asyncio.wait_for(follow(api, version, "c", replayed), PATIENCE_SECONDS)
    assert replayed == [*expected, ("ADDED", "c")]


async def test_watch_from_an_expired_version_gets_an_error(kube: KubeClient, api: ApiClient) -> None:
    version = await latest_version(api)
    await overflow_history(kube)
    with pytest.raises(ApiException) as refused:
        await follow(api, version, "never", [])
    assert refused.value.status == 410


async def test_initial_events_end_with_a_bookmark_that_has_a_version(kube: KubeClient, api: ApiClient) -> None:
    """client-go's reflector requests this since 1.35: a watch that begins with the list."""
    await put(kube, "a")
    options = {"send_initial_events": True, "allow_watch_bookmarks": True, "resource_version_match": "NotOlderThan"}
    kinds: list[tuple[str, str]] = []
    async with watch_maps(client.CoreV1Api(api), **options) as stream:
        async for event in stream:
            metadata = event["raw_object"]["metadata"]
            kinds.append((event["type"], metadata.get("name", "")))
            if event["type"] == "BOOKMARK":
                assert metadata["annotations"] == {"k8s.io/initial-events-end": "true"}
                assert int(metadata["resourceVersion"]) > 0
                break
    assert kinds == [("ADDED", "a"), ("BOOKMARK", "")]


async def test_stalled_reader_delays_no_other_reader(kube: KubeClient, api: ApiClient) -> None:
    # The test never reads the first watch; the second must see each change at once.
    async with kube.watch(MAPS, "default", "", 30), run_informer(kube) as (informer, _):
        await put(kube, "large", filler="x" * 200_000)
        for number in range(40):
            patch = {"data": {"filler": f"{number:04}" * 50_000}}
            await asyncio.wait_for(kube.patch(MAPS, "large", "default", patch), PATIENCE_SECONDS)

        def last() -> bool:
            found = informer.get("default", "large")
            return found is not None and found["data"]["filler"].startswith("0039")

        await until(last)


async def test_dynamic_client_and_our_informer_follow_a_kind_that_is_defined_while_they_run(
    kube: KubeClient, api: ApiClient
) -> None:
    extensions = client.ApiextensionsV1Api(api)
    for definition in generate():
        await extensions.create_custom_resource_definition(definition)
    async with run_informer(kube, HARDWARE) as (_, events):
        dynamic = await DynamicClient(api)
        machines = await dynamic.resources.get(api_version="tinkerbell.org/v1alpha2", kind="Hardware")
        assert machines.namespaced
        made = await machines.create(body=objects.hardware("m"), namespace="default")
        assert made.metadata.uid
        change = {"metadata": {"labels": {"rack": "a"}}}
        await machines.patch(body=change, name="m", namespace="default", content_type="application/merge-patch+json")
        listed = await machines.get(namespace="default", label_selector="rack=a")
        assert [item.metadata.name for item in listed.items] == ["m"]
        await until(lambda: events == ["m", "m"])
        await extensions.delete_custom_resource_definition("hardware.tinkerbell.org")
        await until(lambda: events[2:] == ["-m"])


async def test_one_of_two_candidates_leads_and_the_other_takes_over(api: ApiClient) -> None:
    leading: list[str] = []
    attempts: Counter[str] = Counter()

    class CountingLock(LeaseLock):
        """A lock that counts how often a candidate reads the Lease: it does so at each attempt to lead."""

        async def get(self, name: str, namespace: str) -> Any:
            attempts[self.identity] += 1
            return await super().get(name, namespace)

    def candidate(name: str) -> Awaitable[None]:
        async def started() -> None:
            leading.append(name)

        async def stopped() -> None:
            leading.append(f"-{name}")

        lock = CountingLock("leader", "default", name, api)
        callbacks = {"onstarted_leading": started, "onstopped_leading": stopped}
        settings = electionconfig.Config(lock, lease_duration=3, renew_deadline=2, retry_period=1.1, **callbacks)
        return leaderelection.LeaderElection(settings).run()

    first = asyncio.create_task(candidate("one"))
    await until(lambda: leading == ["one"])
    second = asyncio.create_task(candidate("two"))
    try:
        await until(lambda: attempts["two"] >= 2)
        assert leading == ["one"]
        first.cancel()
        await until(lambda: leading[-1] == "two")
        lease = await client.CoordinationV1Api(api).read_namespaced_lease("leader", "default")
        assert lease.spec.holder_identity == "two"
    finally:
        first.cancel()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)

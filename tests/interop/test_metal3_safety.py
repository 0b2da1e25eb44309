"""That no machine of Metal3's netboots which must not: at no moment, however slow the API is, however much waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.interop.metal3_site import HOST, NAMESPACE, Site, host, mac, site, status
from tink.api.metal3.crds import generate
from tink.api.v1alpha2 import Raw
from tink.kube.cache import Informer
from tink.kube.client import ApiError, KubeClient
from tink.kube.resources import CRD, HARDWARE, SECRET, ResourceType
from tink.metal3.following import HOSTS
from tink.metal3.ownership import netboots
from tink.metal3.settings import Metal3Settings

__all__ = ["site"]


class Slow:
    """The API's Secrets, which take as long as the test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self._answering = asyncio.Event()
        self._answering.set()
        get = KubeClient.get

        async def delayed(client: KubeClient, resource: ResourceType, name: str, namespace: str | None) -> Raw:
            if resource is SECRET:
                self.asked += 1
                await self._answering.wait()
            return await get(client, resource, name, namespace)

        monkeypatch.setattr(KubeClient, "get", delayed)

    def stop(self) -> None:
        self.asked = 0
        self._answering.clear()

    def go_on(self) -> None:
        self._answering.set()

    async def has_been_asked(self, times: int) -> None:
        while self.asked < times:
            await asyncio.sleep(0.02)


async def record_netboots(site: Site, name: str) -> list[bool]:
    """Whether a Hardware netboots, from now on after each change of it."""
    seen: list[bool] = []
    informer = Informer(site.client, HARDWARE, [NAMESPACE])
    informer.add_event_handler(lambda new, _: seen.append(netboots(new)) if new["metadata"]["name"] == name else None)
    site.keep(informer.run())
    await informer.wait_for_cache_sync()
    return seen


async def test_hosts_stop_netbooting_though_all_that_is_looked_at_hangs_and_they_are_looked_at(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.secret("net", networkData=b"{}")
    for number in range(12):
        await site.host(f"n{number}", number, networkData={"name": "net"})
    slow = Slow(monkeypatch)
    await site.follow()
    for number in range(12):
        await site.becomes(f"n{number}", True)
    slow.stop()
    for number in range(12):
        await site.client.patch(HOST, f"n{number}", NAMESPACE, {"metadata": {"labels": {"changed": "yes"}}})
    await slow.has_been_asked(6)
    for number in range(12):
        await site.state(f"n{number}", "provisioned")
    for number in range(12):
        await site.becomes(f"n{number}", False)
    slow.go_on()


async def test_host_of_which_the_informer_does_not_know_that_it_is_provisioned_gets_a_hardware_that_does_not_netboot(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = KubeClient.watch

    @contextlib.asynccontextmanager
    async def silent(client: KubeClient, resource: ResourceType, *words: Any, **more: Any) -> AsyncIterator[Any]:
        if resource.plural == "baremetalhosts" and not more["send_initial_events"]:
            await asyncio.Event().wait()
        if resource.plural == "baremetalhosts":
            raise ApiError(422, "Invalid", "this one lists, and then watches")
        async with watch(client, resource, *words, **more) as stream:
            yield stream

    monkeypatch.setattr(KubeClient, "watch", silent)
    await site.host("n0", 1, networkData={"name": "net"})
    await site.follow(Metal3Settings(retry_longest=0.3))
    await site.is_told("n0", "NotInStep", "net")
    await site.state("n0", "provisioned")
    seen = await record_netboots(site, "n0")
    await site.secret("net", networkData=b"{}")
    await site.becomes("n0", False)
    assert set(seen) <= {False}


async def test_host_that_is_taken_while_its_secret_is_read_does_not_netboot_for_a_moment(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.secret("net", networkData=b"{}")
    await site.host("n0", 1, networkData={"name": "net"})
    slow = Slow(monkeypatch)
    await site.follow()
    await site.becomes("n0", True)
    await site.state("n0", "provisioned")
    await site.becomes("n0", False)
    await site.is_told("n0", "NetbootRefused", "provisioned")
    seen = await record_netboots(site, "n0")
    slow.stop()
    await site.state("n0", "available")
    await slow.has_been_asked(1)
    await site.client.patch(
        HOST, "n0", NAMESPACE, {"metadata": {"annotations": {"baremetalhost.metal3.io/paused": ""}}}
    )
    await asyncio.sleep(3)  # until the informer knows
    slow.go_on()
    await site.is_told("n0", "NetbootRefused", "paused")
    assert set(seen) == {False}


async def test_netboot_is_turned_off_soon_after_an_api_that_refused_it_for_long(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tink.metal3.controller._SAFETY_RETRY_SECONDS", 0.5)
    await site.host("n0", 1)
    await site.follow(Metal3Settings(retry_first=30.0, retry_longest=60.0))
    await site.becomes("n0", True)
    apply = KubeClient.apply

    async def refused(*_: Any, **__: Any) -> Raw:
        raise ApiError(503, "ServiceUnavailable", "the API is not well")

    monkeypatch.setattr(KubeClient, "apply", refused)
    await site.state("n0", "provisioned")
    await site.is_told("n0", "NotInStep", "not well")
    monkeypatch.setattr(KubeClient, "apply", apply)
    await site.becomes("n0", False)


async def test_hosts_are_followed_as_they_are_stored_when_the_webhook_that_converts_them_dies(site: Site) -> None:
    old, new = HOSTS
    hosts = generate(storage="v1beta1")[0]
    await site.client.patch(CRD, hosts["metadata"]["name"], None, {"spec": {"versions": hosts["spec"]["versions"]}})
    body = host("n0", 1)
    body = {**body, "apiVersion": new.api_version, "spec": {"poweredOn": True, "bootMACAddress": mac(1)}}
    await site.client.create(new, body)
    await site.client.patch(new, "n0", NAMESPACE, {"status": status("available")}, subresource="status")
    await site.follow()
    await site.becomes("n0", False)  # read as v1alpha1 without a webhook: nobody says that it is online
    dead = {"strategy": "Webhook", "webhook": {
        "conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/convert"},
    }}  # fmt: skip
    await site.client.patch(CRD, hosts["metadata"]["name"], None, {"spec": {"conversion": dead}})
    with pytest.raises(ApiError, match="webhook"):
        await site.client.list(old)
    await site.becomes("n0", True)
    await site.client.patch(new, "n0", NAMESPACE, {"status": status("provisioned")}, subresource="status")
    await site.becomes("n0", False)

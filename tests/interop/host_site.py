"""Fixtures for tests of BareMetalHost on a live API: the embedded API, and the conversion webhook beside it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api import serving
from tests.interop.conftest import Kubectl, Program
from tests.interop.privileges import Gate, Grant, Upstream
from tink.api.v1alpha2 import Raw
from tink.convert.metal3.versions import ConversionSettings
from tink.kube.client import KubeClient
from tink.kube.resources import CRD, HOST_V1ALPHA1, HOST_V1BETA1
from tink.kubeapi import ApiServer
from tink.metal3.definition import NAME
from tink.metal3.webhook import HostConversion
from tink.webhooks.server import Webhooks

OLD, NEW = "metal3.io/v1alpha1", "metal3.io/v1beta1"
HARDWARE = {
    "cpu": {"arch": "x86_64", "count": 8},
    "nics": [{"name": "eth0", "mac": "00:5c:52:31:3a:9c", "pxe": True}],
    "storage": [{"name": "/dev/sda", "sizeBytes": 10**12}],
}


def host(name: str, **spec: Any) -> Raw:
    """A v1alpha1 host."""
    bmc = {"address": f"redfish://192.0.2.1/{name}", "credentialsName": "secret"}
    return {
        "apiVersion": OLD,
        "kind": "BareMetalHost",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"online": True, "bmc": bmc, "bootMACAddress": "00:5c:52:31:3a:9c", **spec},
    }


def inspected(**status: Any) -> Raw:
    """The status of a host that was inspected."""
    provisioning = {"state": "available", "ID": "1"}
    common = {"errorCount": 0, "errorMessage": "", "operationalStatus": "OK", "poweredOn": True}
    return {"status": {**common, "provisioning": provisioning, "hardware": HARDWARE, **status}}


class Site:
    """The API, a client of its administrator, and the webhook, which a test can stop and start."""

    def __init__(self, api: ApiServer, client: KubeClient) -> None:
        self.api = api
        self.client = client
        self.webhooks: Webhooks | None = None

    async def start_webhook(self, empty_checksum_type: Any = "md5", *, install: bool = True) -> None:
        self.webhooks = Webhooks(
            self.client, [HostConversion(ConversionSettings(empty_checksum_type), install=install)]
        )
        await self.webhooks.start()

    async def stop_webhook(self) -> None:
        if self.webhooks is not None:
            await self.webhooks.stop()
        self.webhooks = None

    async def create(self, *hosts: Raw) -> None:
        for each in hosts:
            await self.client.create(HOST_V1ALPHA1 if each["apiVersion"] == OLD else HOST_V1BETA1, each)

    async def set_status(self, name: str, status: Raw) -> None:
        await self.client.patch(HOST_V1ALPHA1, name, "default", status, subresource="status")

    async def old(self, name: str) -> Raw:
        return await self.client.get(HOST_V1ALPHA1, name, "default")

    async def new(self, name: str) -> Raw:
        return await self.client.get(HOST_V1BETA1, name, "default")

    async def definition(self) -> Raw:
        return await self.client.get(CRD, NAME, None)


ROLES = Path(__file__).parents[2] / "deploy" / "metal3-webhook.yaml"


async def gate(site: Site, grants: set[Grant], directory: Path) -> Gate:
    """Start a gate between a component with these rights and the API; the caller stops it."""
    made = Gate("", Upstream.read(site.api.kubeconfig), directory)
    made.allow(grants)
    await made.start()
    return made


@pytest.fixture
async def empty_site(tmp_path: Path) -> AsyncIterator[Site]:
    """An API without our definitions, and no webhook."""
    async with contextlib.AsyncExitStack() as exits:
        api, client = await exits.enter_async_context(serving(tmp_path / "state"))
        made = Site(api, client)
        exits.push_async_callback(made.stop_webhook)
        yield made


@pytest.fixture
async def site(empty_site: Site) -> Site:
    """With the definitions and the webhook."""
    await empty_site.start_webhook()
    return empty_site


@pytest.fixture
def kubectl_there(program: Program, site: Site, tmp_path: Path) -> Kubectl:
    """A kubectl for that API."""
    home = tmp_path / "home"
    home.mkdir()
    return Kubectl(program, site.api.kubeconfig, home)

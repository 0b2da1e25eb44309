"""Whoever replaces the authority of the webhooks breaks nothing: no review is refused, by no replica, and no write goes
unreviewed."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.api import serving
from tests.ports import free_ports
from tests.waiting import until
from tink.kube.client import KubeClient
from tink.kube.manifests import apply_object
from tink.kube.resources import SECRET
from tink.webhooks import Address, Webhooks, WebhookSettings, server
from tink.webhooks.certificates import renewed
from tink.webhooks.registration import CONFIGURATION

HOST = "hook.default.svc"


class Hook:
    """Keeps what was registered, as an API server would that learns of it a moment later."""

    path, missed = "/hook", "nothing is asked"

    def __init__(self, registered: deque[bytes]) -> None:
        self.registered = registered

    async def ready(self) -> None:
        pass

    async def answer(self, request: web.Request) -> web.Response:
        return web.Response()

    async def register(self, client: KubeClient, address: Address, bundle: bytes) -> bool:
        if self.registered and self.registered[-1] == bundle:
            return False
        self.registered.append(bundle)
        return True

    async def unregister(self, client: KubeClient) -> None:
        pass


def shakes_hands(port: int, bundle: bytes) -> None:
    """Raises ssl.SSLError if that authority is not the one whose certificate is shown."""
    context = ssl.create_default_context(cadata=bundle.decode())
    with (
        socket.create_connection(("127.0.0.1", port), 20) as connection,
        context.wrap_socket(connection, server_hostname=HOST),
    ):
        pass


async def test_reviews_go_on_while_the_secret_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SERVICE_PORT", 0)  # any that is free
    monkeypatch.setattr(server, "_SPREAD_SECONDS", 2.0)
    monkeypatch.setattr(server, "_OVERLAP_SECONDS", 4.0)
    monkeypatch.setattr(server, "_LOOK_AFTER_SECONDS", 3600.0)
    registered: deque[bytes] = deque()
    async with serving(tmp_path / "state") as (_, client):
        replicas = [Webhooks(client, [Hook(registered)], WebhookSettings(service="default/hook")) for _ in range(2)]
        for replica in replicas:
            await replica.start()
        ports = [replica.port for replica in replicas]
        running = [asyncio.create_task(replica.run()) for replica in replicas]
        first = registered[-1]
        reviews = 0

        async def review() -> None:
            """As two API servers do: one that knows the registration, and one that hears of it half a second later."""
            nonlocal reviews
            clock = asyncio.get_running_loop().time
            known = late = registered[-1]
            heard = clock()
            while True:
                for port in ports:
                    if registered[-1] != known:
                        late, known, heard = known, registered[-1], clock()
                    elif clock() - heard > 0.5:  # however busy this machine is: later than that, it has heard of it
                        late = known
                    for bundle in (known, late):
                        await asyncio.to_thread(shakes_hands, port, bundle)
                        reviews += 1

        reviewing = asyncio.create_task(review())
        try:
            await until(lambda: reviews > 20)
            made = renewed(None, datetime.now(UTC))
            data: dict[str, Any] = {
                "ca.crt": base64.b64encode(made.bundle()).decode(),
                "ca.key": base64.b64encode(made.private()).decode(),
            }
            await client.patch(SECRET, server.SECRET_NAME, "default", {"data": data})
            await until(lambda: registered[-1].startswith(made.bundle()) and first in registered[-1])
            await until(lambda: [replica._bundle for replica in replicas] == [made.bundle()] * 2)
            before = reviews
            await until(lambda: reviewing.done() or reviews > before + 40, within=60)
            assert not reviewing.done(), reviewing.exception()
        finally:
            for task in (reviewing, *running):
                task.cancel()
            await asyncio.wait([reviewing, *running])
            for replica in replicas:
                await replica.stop()


class RegisteredHook(Hook):
    """Has an API server ask it about Secrets, and counts which writes it was asked about."""

    missed = "Secrets are not reviewed"

    def __init__(self, name: str) -> None:
        super().__init__(deque(maxlen=2))
        self.name = name
        self.url = ""
        self.asked: set[str] = set()

    async def answer(self, request: web.Request) -> web.Response:
        review = await request.json()
        self.asked.add(review["request"]["name"])
        response = {"uid": review["request"]["uid"], "allowed": True}
        return web.json_response({**{k: review[k] for k in ("apiVersion", "kind")}, "response": response})

    async def register(self, client: KubeClient, address: Address, bundle: bytes) -> bool:
        if not await super().register(client, address, bundle):
            return False
        webhook = {
            "name": f"{self.name}.test.org",
            "clientConfig": {"url": self.url + address.path, "caBundle": base64.b64encode(bundle).decode()},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]},
            ],
            "failurePolicy": "Ignore",  # what can't be asked about goes in unreviewed
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        obj: Any = {"apiVersion": CONFIGURATION.api_version, "kind": CONFIGURATION.kind, "webhooks": [webhook]}
        await apply_object(client, CONFIGURATION, obj | {"metadata": {"name": self.name}}, "test")
        return True


async def test_of_a_thousand_writes_none_goes_unreviewed_while_the_secret_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = free_ports(2)
    monkeypatch.setattr(server, "_SPREAD_SECONDS", 1.0)
    monkeypatch.setattr(server, "_OVERLAP_SECONDS", 3.0)
    monkeypatch.setattr(server, "_LOOK_AFTER_SECONDS", 3600.0)
    monkeypatch.setattr(Webhooks, "_names", lambda _: ["127.0.0.1"])  # an embedded API knows no Services
    async with serving(tmp_path / "state") as (_, client):
        hooks = [RegisteredHook(f"replica-{number}") for number in range(2)]
        replicas = []
        for hook, port in zip(hooks, ports, strict=True):
            hook.url = f"https://127.0.0.1:{port}"
            replicas.append(Webhooks(client, [hook], WebhookSettings(service="default/hook", port=port)))
            await replicas[-1].start()
        running = [asyncio.create_task(replica.run()) for replica in replicas]
        written: list[str] = []
        enough = asyncio.Event()

        async def write(writer: int) -> None:
            while not enough.is_set():
                name = f"w-{writer}-{len(written)}"
                metadata = {"name": name, "namespace": "default"}
                await client.create(SECRET, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
                written.append(name)

        writers = [asyncio.create_task(write(number)) for number in range(4)]
        try:
            await until(lambda: len(written) > 100)
            made = renewed(None, datetime.now(UTC))
            data: dict[str, Any] = {
                "ca.crt": base64.b64encode(made.bundle()).decode(),
                "ca.key": base64.b64encode(made.private()).decode(),
            }
            await client.patch(SECRET, server.SECRET_NAME, "default", {"data": data})
            await until(lambda: [replica._bundle for replica in replicas] == [made.bundle()] * 2)
            after = len(written)
            await until(lambda: len(written) >= max(1000, after + 100), within=60)
            enough.set()
            await asyncio.gather(*writers)  # none was refused
            for hook in hooks:
                assert set(written) <= hook.asked, f"{hook.name} was not asked about {len(set(written) - hook.asked)}"
        finally:
            for task in (*writers, *running):
                task.cancel()
            await asyncio.wait([*writers, *running])
            for replica in replicas:
                await replica.stop()

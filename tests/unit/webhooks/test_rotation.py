"""Whoever replaces the authority of the webhooks breaks nothing: no review is refused, by no replica, and no write goes
unreviewed."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from tests.api import serving
from tests.ports import free_ports
from tests.waiting import until
from tink.kube.client import ApiError, KubeClient
from tink.kube.manifests import apply_object
from tink.kube.resources import SECRET
from tink.webhooks import Webhooks, WebhookSettings, server
from tink.webhooks.certificates import renewed
from tink.webhooks.registration import CONFIGURATION

HOST = "hook.default.svc"
PATIENT_SECONDS = 300.0
"""A busy machine takes long for a thousand writes, and for one that an API server is late with."""


def going_on(*tasks):
    """Raises what has ended one of them."""
    for task in tasks:
        if task.done():
            task.result()
    return True


class Hook:
    """Keeps what was registered, as an API server would that learns of it a moment later."""

    path, missed = "/hook", "nothing is asked"

    def __init__(self, registered):
        self.registered = registered
        self.refusal = None

    async def ready(self):
        pass

    async def answer(self, request):
        return web.Response()

    async def register(self, client, address, bundle):
        if self.refusal is not None:
            raise self.refusal
        if self.registered and self.registered[-1] == bundle:
            return False
        self.registered.append(bundle)
        return True

    async def unregister(self, client):
        pass


def shakes_hands(port, bundle):
    """Raises ssl.SSLError if that authority is not the one whose certificate is shown."""
    context = ssl.create_default_context(cadata=bundle.decode())
    with (
        socket.create_connection(("127.0.0.1", port), 20) as connection,
        context.wrap_socket(connection, server_hostname=HOST),
    ):
        pass


@dataclass
class Clock:
    """Virtual time, for several replicas."""

    now: datetime = datetime(2026, 11, 1, tzinfo=UTC)

    def __call__(self):
        return self.now

    def pass_seconds(self, seconds):
        self.now += timedelta(seconds=seconds)


@dataclass
class Replicas:
    """Two controllers behind one Service, and the bundles that they registered."""

    client: KubeClient
    hook: Hook
    clock: Clock
    webhooks: list[Webhooks]

    async def look_after(self):
        for replica in self.webhooks:
            await replica.look_after()

    async def review(self, *bundles):
        """Ask each replica for a review as an API server that trusts the bundle, for each of `bundles`.

        Raises ssl.SSLError.
        """
        for replica in self.webhooks:
            for bundle in bundles:
                await asyncio.to_thread(shakes_hands, replica.port, bundle)

    async def replace_secret(self):
        """Overwrite the Secret with a new authority, and return its bundle."""
        made = renewed(None, self.clock())
        data = {"ca.crt": base64.b64encode(made.bundle()).decode(), "ca.key": base64.b64encode(made.private()).decode()}
        await self.client.patch(SECRET, "hook-ca", "default", {"data": data})
        return made.bundle()


@pytest.fixture
async def replicas(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "SERVICE_PORT", 0)  # any that is free
    hook, clock, settings = Hook(deque()), Clock(), WebhookSettings(service="default/hook")
    async with serving(tmp_path / "state") as (_, client):
        webhooks = [Webhooks(client, [hook], settings, clock) for _ in range(2)]
        for replica in webhooks:
            await replica.start()
        yield Replicas(client, hook, clock, webhooks)
        for replica in webhooks:
            await replica.stop()


async def test_api_server_that_learns_late_of_a_replaced_authority_is_served(replicas):
    old = replicas.hook.registered[-1]
    new = await replicas.replace_secret()
    await replicas.look_after()
    both = replicas.hook.registered[-1]
    assert new in both
    assert old in both
    await replicas.review(old, both)
    replicas.clock.pass_seconds(server._SPREAD_SECONDS - 1)
    await replicas.look_after()
    await replicas.review(old, both)
    replicas.clock.pass_seconds(1)
    await replicas.look_after()
    await replicas.review(both, new)
    with pytest.raises(ssl.SSLError):
        await replicas.review(old)
    replicas.clock.pass_seconds(server._OVERLAP_SECONDS)
    await replicas.look_after()
    assert replicas.hook.registered[-1] == new


async def test_new_certificate_waits_for_a_registration_that_the_api_refused_at_first(replicas):
    old = replicas.hook.registered[-1]
    new = await replicas.replace_secret()
    replicas.hook.refusal = ApiError(403, "Forbidden", "not now")
    for _ in range(5):
        await replicas.look_after()
        replicas.clock.pass_seconds(server._OVERLAP_SECONDS)
    replicas.hook.refusal = None
    await replicas.look_after()
    both = replicas.hook.registered[-1]
    assert old in both
    await replicas.review(old, both)
    replicas.clock.pass_seconds(server._SPREAD_SECONDS)
    await replicas.look_after()
    await replicas.review(both, new)


async def test_replica_that_cannot_watch_the_secret_is_trusted_until_it_shows_the_new_authority(replicas):
    watching, looking = replicas.webhooks
    new = await replicas.replace_secret()
    await watching.look_after()
    replicas.clock.pass_seconds(server._LOOK_AFTER_SECONDS)
    await replicas.look_after()
    replicas.clock.pass_seconds(server._SPREAD_SECONDS)
    await replicas.review(replicas.hook.registered[-1])
    await looking.look_after()
    await replicas.review(replicas.hook.registered[-1], new)


class RegisteredHook(Hook):
    """Has an API server ask it about Secrets, and counts which writes it was asked about."""

    missed = "Secrets are not reviewed"

    def __init__(self, name):
        super().__init__(deque(maxlen=2))
        self.name = name
        self.url = ""
        self.asked = set()

    async def answer(self, request):
        review = await request.json()
        self.asked.add(review["request"]["name"])
        response = {"uid": review["request"]["uid"], "allowed": True}
        return web.json_response({**{k: review[k] for k in ("apiVersion", "kind")}, "response": response})

    async def register(self, client, address, bundle):
        if not await super().register(client, address, bundle):
            return False
        webhook = {
            "name": f"{self.name}.test.org",
            "clientConfig": {"url": self.url + address.path, "caBundle": base64.b64encode(bundle).decode()},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}],
            "failurePolicy": "Ignore",  # what can't be asked about goes in unreviewed
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        obj = {"apiVersion": CONFIGURATION.api_version, "kind": CONFIGURATION.kind, "webhooks": [webhook]}
        await apply_object(client, CONFIGURATION, obj | {"metadata": {"name": self.name}}, "test")
        return True


async def test_of_a_thousand_writes_none_goes_unreviewed_while_the_secret_is_replaced(tmp_path, monkeypatch):
    ports = free_ports(2)
    monkeypatch.setattr(server, "_SPREAD_SECONDS", 1.0)
    monkeypatch.setattr(server, "_OVERLAP_SECONDS", PATIENT_SECONDS)
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
        written = []
        enough = asyncio.Event()

        async def write(writer):
            while not enough.is_set():
                name = f"w-{writer}-{len(written)}"
                metadata = {"name": name, "namespace": "default"}
                await client.create(SECRET, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
                written.append(name)

        writers = [asyncio.create_task(write(number)) for number in range(4)]
        try:
            await until(lambda: going_on(*writers) and len(written) > 100, within=PATIENT_SECONDS)
            made = renewed(None, datetime.now(UTC))
            data = {
                "ca.crt": base64.b64encode(made.bundle()).decode(),
                "ca.key": base64.b64encode(made.private()).decode(),
            }
            await client.patch(SECRET, "hook-ca", "default", {"data": data})
            await until(lambda: [replica._bundle for replica in replicas] == [made.bundle()] * 2)
            after = len(written)
            many = max(1000, after + 100)
            await until(lambda: going_on(*writers) and len(written) >= many, within=PATIENT_SECONDS)
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

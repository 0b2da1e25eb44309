"""Which authority the API server trusts, and that its replacement breaks nothing: no review is refused, by no replica,
and no write goes unreviewed."""

import asyncio
import base64
import contextlib
import socket
import ssl
from collections import deque
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from tests.api import serving
from tests.ports import free_ports
from tests.support.api import InProcessApi
from tests.waiting import until
from tink.kube.certificates import show
from tink.kube.client import ApiError
from tink.kube.manifests import apply_object
from tink.kube.resources import SECRET
from tink.webhooks import certificates, server
from tink.webhooks.certificates import CertificateError, MemoryKeeper, SecretKeeper
from tink.webhooks.registration import CONFIGURATION
from tink.webhooks.server import Webhooks, WebhookSettings

NOW = datetime(2027, 1, 15, 8, tzinfo=UTC)
DAY = timedelta(days=1)


def secret(**fields):
    metadata = {"name": "ca", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", **fields}


def handshake(bundle, server, name):
    """A TLS handshake in memory. Raises ssl.SSLError."""
    client_context = ssl.create_default_context(cadata=bundle.decode())
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT  # Python's own way from 3.13 on
    a_in, a_out, b_in, b_out = (ssl.MemoryBIO() for _ in range(4))
    client = client_context.wrap_bio(a_in, a_out, server_hostname=name)
    served = server.wrap_bio(b_in, b_out, server_side=True)
    for _ in range(4):
        for side, out, into in ((client, a_out, b_in), (served, b_out, a_in)):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
            into.write(out.read())


def served_by(authority, now):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    show(context, certificates.serving(authority, ["127.0.0.1", "w.ns.svc"], now).pem)
    return context


def test_certificate_is_trusted_for_its_names_and_by_its_bundle_and_is_replaced_without_a_restart():
    now = datetime.now(UTC)
    authority, other = certificates.renewed(None, now), certificates.renewed(None, now)
    context = served_by(authority, now)
    handshake(authority.bundle(), context, "127.0.0.1")
    handshake(authority.bundle(), context, "w.ns.svc")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(authority.bundle(), context, "10.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(other.bundle(), context, "127.0.0.1")
    ended = served_by(certificates.renewed(None, now - 100 * DAY), now - 100 * DAY)
    show(ended, certificates.serving(authority, ["127.0.0.1"], now).pem)
    handshake(authority.bundle(), ended, "127.0.0.1")
    made = certificates.serving(certificates.renewed(None, NOW), ["x"], NOW)
    assert made.renew_at == NOW + 60 * DAY, "a month before it ends"
    with pytest.raises(ValueError, match="not that of the first"):
        certificates.Authority.read(authority.bundle(), other.private())


async def test_authority_is_renewed_in_its_last_third_and_the_old_one_stays_trusted():
    keeper = MemoryKeeper()
    first = await keeper.authority(NOW)
    assert await keeper.authority(NOW + 2000 * DAY) is first
    second = await keeper.authority(NOW + 2500 * DAY)
    assert second.certificates == (second.certificates[0], first.certificates[0])
    assert second.key != first.key
    assert (await keeper.authority(NOW + 6000 * DAY)).certificates[1:] == (second.certificates[0],), "ended: no trust"


def test_certificates_begin_with_unix_time_and_end_after_this_release_whatever_the_clock_says():
    for now in (datetime(1970, 1, 1, tzinfo=UTC), NOW, NOW + 4000 * DAY):
        for certificate in certificates.renewed(None, now).certificates:
            assert certificate.not_valid_before_utc == datetime(1970, 1, 1, tzinfo=UTC)
            assert certificate.not_valid_after_utc > NOW + 3000 * DAY
    ahead = certificates.serving(certificates.renewed(None, NOW), ["x"], NOW + 4000 * DAY)
    assert ahead.needs_renewal(NOW), "it would live for eleven years"


async def test_authority_that_has_not_begun_is_replaced(monkeypatch):
    later = NOW + 4000 * DAY
    monkeypatch.setattr("tink.kube.certificates.VALID_FROM", later - DAY)  # as earlier releases made it
    keeper = MemoryKeeper()
    made = await keeper.authority(later)
    monkeypatch.undo()
    assert (await keeper.authority(NOW)).key != made.key


@pytest.mark.parametrize("stored", [{}, {"data": None}, {"data": {}}], ids=["no Secret", "the chart's", "empty"])
async def test_replicas_share_one_authority(stored):
    api = InProcessApi(*([secret(**stored)] if stored else []))
    mine, theirs = SecretKeeper(api, "default", "ca"), SecretKeeper(api, "default", "ca")
    for time in (NOW, NOW + 3000 * DAY):
        one, two = await asyncio.gather(mine.authority(time), theirs.authority(time))
        assert one.bundle() == two.bundle()
        assert len(one.certificates) == (1 if time == NOW else 2)
    assert len(api.objects(SECRET)) == 1
    written = api.count("create") + api.count("patch")
    assert (await SecretKeeper(api, "default", "ca").authority(time)).bundle() == one.bundle()
    assert api.count("create") + api.count("patch") == written


async def test_secret_that_may_not_be_created_or_holds_no_authority_is_named_with_the_remedy():
    api = InProcessApi()
    api.fail("create", ApiError(403, "Forbidden", "no"))
    remedy = r"Secret default/ca does not exist, and .*kubectl create secret generic -n"
    with pytest.raises(CertificateError, match=remedy):
        await SecretKeeper(api, "default", "ca").authority(NOW)
    for data in ({"ca.crt": "eA==", "ca.key": "eA=="}, {"ca.crt": 7, "ca.key": "!"}):
        with pytest.raises(CertificateError, match=r"Secret default/ca: no certificate authority: .*Empty it"):
            await SecretKeeper(InProcessApi(secret(data=data)), "default", "ca").authority(NOW)


# --- replacement -----------------------------------------------------------------------------------------------------

HOST = "hook.default.svc"
PATIENT_SECONDS = 300.0
"""A busy machine takes long for hundreds of writes, and for one that an API server is late with."""


def going_on(*tasks):
    """Raises what has ended one of them."""
    for task in tasks:
        if task.done():
            task.result()
    return True


class Hook:
    """Keeps what was registered, as an API server would that learns of it a moment later."""

    path, missed, notes = "/hook", "nothing is asked", ()

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


def data_of(authority):
    """Return the data of a Secret with that authority."""
    pair = {"ca.crt": authority.bundle(), "ca.key": authority.private()}
    return {"data": {name: base64.b64encode(value).decode() for name, value in pair.items()}}


class Replicas:
    """Two controllers behind one Service, the bundles that they registered, and their clock."""

    def __init__(self):
        self.api, self.hook, self.now = InProcessApi(), Hook(deque()), datetime.now(UTC)
        settings = WebhookSettings(service="default/hook")
        self.seconds = 0.0
        clocks = (lambda: self.now, lambda: self.seconds)
        self.webhooks = [Webhooks(self.api, [self.hook], settings, *clocks) for _ in range(2)]

    def pass_seconds(self, seconds):
        self.now += timedelta(seconds=seconds)
        self.seconds += seconds

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
        made = certificates.renewed(None, self.now)
        await self.api.patch(SECRET, "hook-ca", "default", data_of(made))
        return made.bundle()


@pytest.fixture
async def replicas(monkeypatch):
    monkeypatch.setattr(server, "SERVICE_PORT", 0)  # any that is free
    replicas = Replicas()
    for replica in replicas.webhooks:
        await replica.start()
    yield replicas
    for replica in replicas.webhooks:
        await replica.stop()


async def test_api_server_that_learns_late_of_a_replaced_authority_is_served(replicas):
    old = replicas.hook.registered[-1]
    new = await replicas.replace_secret()
    await replicas.look_after()
    both = replicas.hook.registered[-1]
    assert new in both
    assert old in both
    await replicas.review(old, both)
    replicas.pass_seconds(server.SPREAD_SECONDS - 1)
    await replicas.look_after()
    await replicas.review(old, both)
    replicas.pass_seconds(1)
    await replicas.look_after()
    await replicas.review(both, new)
    with pytest.raises(ssl.SSLError):
        await replicas.review(old)
    replicas.pass_seconds(server.OVERLAP_SECONDS)
    await replicas.look_after()
    assert replicas.hook.registered[-1] == new


async def test_new_certificate_waits_for_a_registration_that_the_api_refused_at_first(replicas):
    old = replicas.hook.registered[-1]
    new = await replicas.replace_secret()
    replicas.hook.refusal = ApiError(403, "Forbidden", "not now")
    for _ in range(5):
        await replicas.look_after()
        replicas.pass_seconds(server.OVERLAP_SECONDS)
    replicas.hook.refusal = None
    await replicas.look_after()
    both = replicas.hook.registered[-1]
    assert old in both
    await replicas.review(old, both)
    replicas.pass_seconds(server.SPREAD_SECONDS)
    await replicas.look_after()
    await replicas.review(both, new)


@pytest.mark.parametrize("wrong", [datetime(1970, 1, 1, tzinfo=UTC), NOW + 4000 * DAY], ids=["1970", "ahead"])
async def test_clock_that_was_wrong_at_the_first_start_leaves_no_write_unreviewed(replicas, wrong):
    right, replicas.now = replicas.now, wrong
    await replicas.replace_secret()
    await replicas.look_after()
    replicas.pass_seconds(server.SPREAD_SECONDS / 2)
    replicas.now = right  # corrected while the new authority waits to be shown
    await replicas.look_after()
    replicas.pass_seconds(server.SPREAD_SECONDS / 2)
    await replicas.look_after()
    await replicas.review(replicas.hook.registered[-1])
    for replica in replicas.webhooks:
        assert list(replica.notes) == []


async def test_note_says_that_an_api_server_rejects_the_certificate_until_one_accepts_it(replicas):
    replica, good = replicas.webhooks[0], replicas.hook.registered[-1]
    with pytest.raises(ssl.SSLError):
        await replicas.review(certificates.renewed(None, replicas.now).bundle())
    await until(lambda: list(replica.notes))
    assert "nothing is asked: an API server rejects the certificate (unknown ca)" in next(iter(replica.notes))
    (rejections, *_) = [each for each in replica.metrics.collect() if "rejected" in each.name]
    assert [(each.labels["alert"], each.value) for each in rejections.samples] == [("unknown ca", 1)]
    answers, scanner = await asyncio.open_connection("127.0.0.1", replica.port)
    scanner.write(b"GET / HTTP/1.0\r\n\r\n")
    with contextlib.suppress(ConnectionResetError):
        await answers.read()
    scanner.close()
    assert list(replica.notes), "a port scan says nothing of the certificate"
    await replicas.review(good)
    await until(lambda: not list(replica.notes))


async def test_replica_that_cannot_watch_the_secret_is_trusted_until_it_shows_the_new_authority(replicas):
    watching, looking = replicas.webhooks
    new = await replicas.replace_secret()
    await watching.look_after()
    replicas.pass_seconds(server.LOOK_AFTER_SECONDS)
    await replicas.look_after()
    replicas.pass_seconds(server.SPREAD_SECONDS)
    await replicas.review(replicas.hook.registered[-1])
    await looking.look_after()
    await replicas.review(replicas.hook.registered[-1], new)
    assert new in replicas.hook.registered[-1]


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


async def test_of_hundreds_of_writes_none_goes_unreviewed_while_the_secret_is_replaced(tmp_path, monkeypatch):
    ports = free_ports(2)
    monkeypatch.setattr(server, "SPREAD_SECONDS", 1.0)
    monkeypatch.setattr(server, "OVERLAP_SECONDS", PATIENT_SECONDS)
    monkeypatch.setattr(server, "LOOK_AFTER_SECONDS", 3600.0)
    # An embedded API knows no Services.
    monkeypatch.setattr(WebhookSettings, "host_names", ["127.0.0.1"])
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
            made = certificates.renewed(None, datetime.now(UTC))
            await client.patch(SECRET, "hook-ca", "default", data_of(made))
            await until(lambda: [replica._bundle for replica in replicas] == [made.bundle()] * 2)
            many = len(written) + 100
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

"""The reviewer inside the embedded API: no write is stored unreviewed, and no two Hardware get one address."""

import asyncio
import shutil

import pytest

from tests.api import serving
from tests.support.objects import MAC, OTHER_MAC, hardware, template
from tests.unit.kubeapi.apiserver.conftest import Client
from tests.waiting import until
from tink.api.crds import generate
from tink.kube.client import ApiError, KubeClient
from tink.kube.resources import HARDWARE
from tink.kubeapi import ApiServer
from tink.kubeapi.apiserver.store.object_store import ObjectStore
from tink.template_process import BusyError
from tink.webhooks import claims
from tink.webhooks.admission import ReviewPlugin

HARDWARES = "/apis/tinkerbell.org/v1alpha2/namespaces/default/hardware"


def machine(name, mac=MAC, **metadata):
    """As a user writes it, without a uid."""
    return hardware(name, mac, f"192.0.2.{int(mac[-2:], 16)}") | {"metadata": {"name": name, **metadata}}


class Reviewed:
    """An API server with a plugin, and clients: of Kubernetes, and of HTTP."""

    def __init__(self, api, plugin):
        self.api, self.plugin = api, plugin

    async def start(self):
        await self.api.start()
        self.client, self.http = await KubeClient.connect(self.api.kubeconfig), Client(self.api.kubeconfig)
        return self

    async def stop(self):
        await self.http.close()
        await self.client.close()
        await self.api.stop()

    async def create(self, obj):
        return await self.client.create(HARDWARE, obj, "default")

    async def refused(self, obj):
        """The error of a create."""
        with pytest.raises(ApiError) as caught:
            await self.create(obj)
        return caught.value

    async def names(self):
        listed = await self.client.list(HARDWARE, "default")
        return [item["metadata"]["name"] for item in listed["items"]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A data directory with the definitions."""
    directory = tmp_path_factory.mktemp("installed")

    async def install():
        async with serving(directory, generate()):
            pass

    asyncio.run(install())
    return directory


@pytest.fixture
async def begin(installed, tmp_path):
    """Start a server over the data directory of the one before."""
    running = []
    shutil.copytree(installed, tmp_path / "state")

    async def started(**options):
        for before in running:
            await before.stop()

        async def find(key, namespace, name):
            return await api.find(key, namespace, name)

        plugin = ReviewPlugin(find, **options)
        api = ApiServer(tmp_path / "state", port=0, plugin=plugin)
        running[:] = [await Reviewed(api, plugin).start()]
        return running[0]

    yield started
    await running[0].stop()


async def test_of_thirty_writes_at_once_that_claim_one_mac_one_is_stored(begin):
    reviewed = await begin()
    assert (await reviewed.http("POST", HARDWARES, machine("dry"), dryRun="All")).status == 201
    writes = (reviewed.create(machine(f"m{number}")) for number in range(30))
    results = await asyncio.gather(*writes, return_exceptions=True)
    refused = [result for result in results if isinstance(result, ApiError)]
    assert [error.status for error in refused] == [422] * 29
    assert len(await reviewed.names()) == 1


async def test_claim_of_a_write_that_fails_or_of_a_machine_that_is_gone_is_free_afterwards(begin):
    reviewed = await begin()
    await reviewed.create(machine("a", finalizers=["example.org/held"]))
    assert (await reviewed.refused(machine("a", OTHER_MAC))).status == 409
    await reviewed.create(machine("b", OTHER_MAC))
    await reviewed.client.delete(HARDWARE, "a", "default")
    await reviewed.client.patch(HARDWARE, "a", "default", {"metadata": {"finalizers": None}})
    assert await reviewed.names() == ["b"]
    await reviewed.create(machine("c"))


async def test_client_that_goes_away_frees_no_claim_before_the_write_is_settled(begin, monkeypatch):
    reviewed = await begin()
    written, original, begun, gate = [], ObjectStore.write, asyncio.Event(), asyncio.Event()

    async def late(store, change):
        if change.key.name == "a":
            begun.set()
            await gate.wait()
        written.append(change.key.name)
        return await original(store, change)

    monkeypatch.setattr(ObjectStore, "write", late)
    client = await KubeClient.connect(reviewed.api.kubeconfig)
    task = asyncio.create_task(client.create(HARDWARE, machine("a"), "default"))
    await begun.wait()
    task.cancel()
    await client.close()
    for number in range(5):  # enough requests for the server to notice that the client has disconnected
        error = await reviewed.refused(machine(f"b{number}"))
        assert "is that of Hardware default/a, which is written at this moment" in str(error)
    gate.set()
    await until(lambda: written)
    assert await until(reviewed.names) == ["a"]
    monkeypatch.undo()
    # The reservation is gone: the same claim is stored now.
    error = await reviewed.refused(machine("c"))
    assert "is that of Hardware default/a already" in str(error)


@pytest.mark.parametrize("broken", [False, True], ids=["read", "can not be read"])
async def test_hardware_from_before_the_start_is_known_at_the_first_write(begin, monkeypatch, broken):
    """Hardware whose claims can't be read lets no other claim anything until it is gone."""
    reviewed = await begin()
    read = claims.claims_of
    if broken:
        odd = lambda hardware: 1 / 0 if hardware["metadata"]["name"] == "a" else read(hardware)  # noqa: E731
        monkeypatch.setattr(claims, "claims_of", odd)
    await reviewed.create(machine("a"))
    status, why = (
        (500, "addresses of Hardware default/a can't be read")
        if broken
        else (422, f"MAC address {MAC} is that of Hardware default/a already (spec.networkInterfaces[{MAC}])")
    )
    for again in range(2):
        error = await reviewed.refused(machine("b"))
        assert (error.status, why in str(error)) == (status, True)
        if not again:
            reviewed = await begin()
    await reviewed.client.delete(HARDWARE, "a", "default")
    await reviewed.create(machine("b"))


async def test_review_that_fails_refuses_the_write_and_is_counted(begin, monkeypatch):
    reviewed = await begin()
    monkeypatch.setattr("tink.webhooks.reviewer.claims_of", lambda _: 1 / 0)
    error = await reviewed.refused(machine("a"))
    assert error.status == 500
    assert "hardware.admission.tinkerbell.org" in str(error)
    assert "nothing was stored" in str(error)
    assert await reviewed.names() == []
    counted = {
        tuple(sample.labels.values()): sample.value
        for family in reviewed.plugin.metrics.collect()
        for sample in family.samples
        if family.name == "tinkedge_reviewed_writes"
    }
    assert counted == {("Hardware", "failed"): 1.0}


async def test_template_that_can_not_be_parsed_now_is_refused_with_when_to_try_again(begin):
    async def full(namespace, _template):
        raise BusyError(f"8 Templates of namespace {namespace} wait to be parsed")

    reviewed = await begin(parse=full)
    answer = await reviewed.http("POST", HARDWARES.replace("hardware", "templates"), template())
    assert answer.status == 429
    assert answer.headers["Retry-After"] == ["1"]
    assert answer.json["reason"] == "TooManyRequests"


async def test_failing_review_refuses_every_write_of_a_spec_and_keeps_no_object_from_being_removed(begin, monkeypatch):
    reviewed = await begin()
    await reviewed.create(machine("a", finalizers=["example.org/held"]))
    await reviewed.create(machine("b", OTHER_MAC))
    before = {name: await reviewed.client.get(HARDWARE, name, "default") for name in "ab"}
    monkeypatch.setattr("tink.webhooks.reviewer.claims_of", lambda _: 1 / 0)
    monkeypatch.setattr("tink.webhooks.reviewer.Reviewer._deletion", lambda *_: 1 / 0)
    client = reviewed.http
    moved = machine("a", "52:54:00:00:00:03")
    owner = {"metadata": {"annotations": {"tinkerbell.org/agent-id": "b"}}}
    apply = {"content": "application/apply-patch+yaml", "fieldManager": "m", "force": "true"}
    answers = [
        await client("POST", HARDWARES, machine("c", "52:54:00:00:00:03")),
        await client("PUT", f"{HARDWARES}/a", before["a"] | {"spec": moved["spec"]}),
        await client.merge(f"{HARDWARES}/a", {"spec": moved["spec"]}),
        await client.merge(f"{HARDWARES}/a", owner),
        await client("PATCH", f"{HARDWARES}/a", moved, **apply),
        await client("PATCH", f"{HARDWARES}/c", machine("c", "52:54:00:00:00:03"), **apply),
    ]
    assert [answer.status for answer in answers] == [500] * 6
    assert {name: await reviewed.client.get(HARDWARE, name, "default") for name in "ab"} == before
    assert (await client.merge(f"{HARDWARES}/b", {"metadata": {"labels": {"a": "b"}}})).status == 200
    for name in "ab":
        answer = await client("DELETE", f"{HARDWARES}/{name}")
        assert answer.status == 200
        assert "not reviewed: division by zero" in answer.headers["Warning"][0]
    assert await reviewed.names() == ["a"]
    assert (await client.merge(f"{HARDWARES}/a", {"metadata": {"finalizers": None}})).status == 200
    assert await reviewed.names() == []


async def test_secret_that_a_hardware_names_is_looked_for_in_the_store(begin):
    reviewed = await begin()
    annotations = {"tinkerbell.org/userdata-secret": "mine"}
    missing = await reviewed.http("POST", HARDWARES, machine("a", annotations=annotations))
    assert "there is no Secret default/mine yet" in missing.headers["Warning"][0]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine"}, "stringData": {"userData": "x"}}
    assert (await reviewed.http("POST", "/api/v1/namespaces/default/secrets", secret)).status == 201
    found = await reviewed.http("POST", HARDWARES, machine("b", OTHER_MAC, annotations=annotations))
    assert (found.status, "Warning" in found.headers) == (201, False)

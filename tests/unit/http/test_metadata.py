"""Metadata over HTTP: who gets what, answers that stand ready, and documents that stand in Secrets."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from edge.http.metadata import FastPath, MetadataCache
from edge.journey.events import Outcome, Step
from edge.machines import Inventory, SecretDocuments, secret_documents
from hegel.instance import SecretReference, SecretUnusableError
from tests.support.api import InProcessApi
from tests.support.objects import MAC, OTHER_MAC, hardware
from tests.support.virtual_time import elapse, turns
from tests.unit.http.conftest import IP, OTHER_IP, Rack, reader, secret
from tests.waiting import until
from tink.api.user_data import problem
from tink.kube.client import ApiError, UnreachableError

CLOUD_INIT = {"User_Agent": "Cloud-Init/22.4.2"}


@pytest.fixture
def machines(rack: Rack) -> Rack:
    rack.register(instance={"userdata": "#cloud-config\n# of m1\n", "vendordata": "v1"})
    rack.register("m2", OTHER_MAC, OTHER_IP, instance={"userdata": "#cloud-config\n# of m2\n"})
    return rack


async def test_cloud_inits_ec2_crawl_finds_everything(machines):
    async def get(path: str) -> tuple[int, str]:
        reply = await machines.ask(path, **CLOUD_INIT)
        return reply.status, reply.text

    assert await get("/2009-04-04/meta-data/instance-id") == (200, "m1")
    for version in ("2021-03-23", "2018-09-24", "2016-09-02"):
        assert (await get(f"/{version}/meta-data/instance-id"))[0] == 404
    assert await get("/2009-04-04/user-data") == (200, "#cloud-config\n# of m1\n")
    status, listing = await get("/2009-04-04/meta-data/")
    assert status == 200
    for name in listing.split("\n"):
        assert (await get(f"/2009-04-04/meta-data/{name}"))[0] == 200
    for version in ("2009-04-04", "latest"):
        assert await get(f"/{version}/meta-data") == await get(f"/{version}/meta-data/") == (200, listing)
        assert await get(f"/{version}") == await get(f"/{version}/") == (200, "meta-data/\nuser-data\nvendor-data")
    assert (await machines.ask("/latest")).headers["Content-Type"] == "text/plain; charset=utf-8"
    assert machines.lines()[:3] == [
        (Step.METADATA, Outcome.OK, "instance-id to Cloud-Init/22.4.2"),
        (Step.METADATA, Outcome.OK, "user-data to Cloud-Init/22.4.2"),
        (Step.METADATA, Outcome.INFO, "meta-data to Cloud-Init/22.4.2"),
    ]


async def test_missing_document_is_not_found_and_a_stranger_gets_its_address(machines):
    for path in ("vendor-data", "meta-data/public-keys/", "dynamic/instance-identity/document"):
        assert (await machines.ask(f"/latest/{path}", ip=OTHER_IP)).status == 404
    reply = await machines.ask("/2009-04-04/meta-data/instance-id", ip="127.0.0.9")
    assert (reply.status, reply.text) == (404, "no Hardware has the address 127.0.0.9\n")


@pytest.mark.parametrize("fast", [True, False])
async def test_rootio_without_partitions_fails_and_the_journey_names_the_missing_field(rack, fast):
    rack.register()
    headers = {"User_Agent": "bootkit"} | ({} if fast else {"X_Any": "makes it no plain request"})
    reply = await rack.ask("/metadata", **headers)
    why = "Hardware m1 has no annotation tinkerbell.org/storage, which names partitions and filesystems"
    assert (reply.status, yaml.safe_load(reply.text)["metadata"]["instance"]["storage"]) == (200, why)
    assert rack.lines() == [(Step.METADATA, Outcome.FAILED, f"rootio leaves the disks alone and fails: {why}")]
    rack.register(annotations={"tinkerbell.org/storage": "{}"})
    await rack.ask("/metadata", **headers)
    assert rack.lines()[1:] == [(Step.METADATA, Outcome.OK, "metadata to bootkit")]


async def test_two_hardware_with_one_mac_do_not_get_each_others_data(rack):
    rack.register("m1", MAC, IP, instance={"userdata": "of m1"})
    rack.register("m2", MAC, OTHER_IP, instance={"userdata": "of m2"})
    for _ in range(2):
        assert (await rack.ask("/latest/user-data", ip=IP)).text == "of m1"
        assert (await rack.ask("/latest/user-data", ip=OTHER_IP)).text == "of m2"


async def test_nocloud_files_are_all_there_for_their_machine_and_nothing_shows_others_which_machines_exist(machines):
    for who in (MAC, MAC.upper(), MAC.replace(":", "-"), "m1"):
        meta_data = await machines.ask(f"/nocloud/{who}/meta-data", **CLOUD_INIT)
        assert yaml.safe_load(meta_data.text) == {"instance-id": "m1", "local-hostname": "m1"}
    for path in ("/nocloud/m1/user-data", "/tootles/instanceID/m1/2009-04-04/user-data"):
        assert (await machines.ask(path)).text == "#cloud-config\n# of m1\n"
        real, invented = [await machines.ask(path.replace("m1", name), ip=OTHER_IP) for name in ("m1", "m9")]
        assert (real.status, real.text) == (invented.status, invented.text)
    assert (real.status, real.text) == (403, "127.0.0.6 is not an address of the requested instance\n")
    assert (await machines.ask("/nocloud/m1/vendor-data")).text == "v1"
    assert "version: 2" in (await machines.ask("/nocloud/m1/network-config")).text
    empty = await machines.ask("/nocloud/m2/vendor-data", ip=OTHER_IP)
    assert (empty.status, empty.body) == (200, b"")


async def test_look_at_the_headers_alone_is_no_document_on_the_journey_and_a_long_name_does_not_fill_it(machines):
    assert (await machines.ask("/latest/user-data", method="HEAD")).headers["Content-Length"] == "22"
    assert machines.lines() == []
    await machines.ask("/latest/user-data", User_Agent="x" * 3000)
    assert len(machines.lines()[0][2]) < 100


# --- phone home ---


async def test_cloud_init_that_finished_is_on_the_journey(machines):
    form = {"hostname": "web-1", "instance_id": "m1", "fqdn": "web-1.example.org", "pub_key_rsa": "ssh-rsa AAAA"}
    assert (await machines.ask("/phone-home/m1", ip=OTHER_IP, method="POST", data=form)).status == 403
    assert (await machines.ask("/phone-home/m1", method="POST", data=form)).status == 200
    assert machines.lines() == [(Step.METADATA, Outcome.OK, "cloud-init finished on web-1, instance m1")]
    assert machines.journey.events(MAC)[0].detail == {"hostname": "web-1", "instance_id": "m1"}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"a=" + b"x" * 100_000, 413),
        ("&".join(f"a{number}=1" for number in range(100)).encode(), 400),
        (b"\xff\xfe", 200),
    ],
)
async def test_report_is_bounded(machines, data, status):
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    assert (await machines.ask("/phone-home/m1", method="POST", data=data, **form)).status == status
    assert (await machines.ask("/phone-home/m1", method="POST", data=b"{}", Content_Type="text/json")).status == 415


@pytest.mark.parametrize(
    ("path", "datasource"), [("/2009-04-04/user-data", "Ec2"), ("/nocloud/m1/user-data", "NoCloud")]
)
async def test_report_of_cloud_init_names_the_datasource_of_this_instance(machines, path, datasource):
    async def report(name: str, instance: str) -> str:
        await machines.ask(f"/phone-home/{name}", method="POST", data={"hostname": name, "instance_id": instance})
        step, outcome, line = machines.lines()[-1]
        assert (step, outcome) == (Step.METADATA, Outcome.OK)
        return line

    await machines.ask(path)
    machines.register(instance={"userdata": "changed meanwhile"})
    assert await report("m1", "i-1") == f"cloud-init finished on m1, instance i-1, datasource {datasource}"
    # The next instance may have had its user-data from elsewhere.
    assert await report("m1", "i-2") == "cloud-init finished on m1, instance i-2"
    await machines.ask(path)
    machines.inventory.remove({"metadata": {"name": "m1", "namespace": "default"}})
    machines.register("m9")  # has the same MAC address
    assert await report("m9", "2") == "cloud-init finished on m9, instance 2"


async def test_only_user_data_that_cloud_init_ignores_is_reported_when_it_is_sent(rack):
    rack.register(instance={"userdata": "# cloud-config\nusers: []\n"})
    rack.register("m2", OTHER_MAC, OTHER_IP, instance={"userdata": "#!/bin/sh\n", "vendordata": "#upstart-job\n"})
    for ip in (IP, OTHER_IP):
        assert (await rack.ask("/latest/user-data", ip=ip, **CLOUD_INIT)).status == 200
    assert (await rack.ask("/nocloud/m2/vendor-data", ip=OTHER_IP, **CLOUD_INIT)).status == 200
    wrong = "its first line is not #cloud-config, so cloud-init ignores it"
    assert rack.lines() == [(Step.METADATA, Outcome.FAILED, f"user-data to Cloud-Init/22.4.2: {wrong}")]
    assert rack.lines(OTHER_MAC) == [
        (Step.METADATA, Outcome.OK, "user-data to Cloud-Init/22.4.2"),
        (
            Step.METADATA,
            Outcome.FAILED,
            "vendor-data to Cloud-Init/22.4.2 (NoCloud): cloud-init handles no #upstart-job any more",
        ),
    ]


@pytest.mark.parametrize(("client", "outcome"), [("Cloud-Init/22.4.2", Outcome.FAILED), ("curl/8", Outcome.OK)])
async def test_text_that_another_program_may_read_is_a_problem_when_cloud_init_fetches_it(rack, client, outcome):
    rack.register(instance={"userdata": "version: v1alpha1\nmachine: {}\n"})
    for _ in range(2):
        assert (await rack.ask("/latest/user-data", User_Agent=client)).status == 200
    assert [line[1] for line in rack.lines()] == [outcome]


async def test_large_user_data_is_checked_once_and_beside_the_event_loop(rack, monkeypatch):
    checks: list[str] = []

    def check(user_data: str) -> str:
        checks.append(threading.current_thread().name)
        return problem(user_data)

    monkeypatch.setattr("edge.http.metadata.problem", check)
    large = "#cloud-config\n[" + "a," * 15_000 + "]"
    rack.register(instance={"userdata": large})
    for number, path in enumerate(("/latest/user-data", "/nocloud/m1/user-data"), 1):
        assert (await rack.ask(path, **CLOUD_INIT)).text == large
        await until(lambda wanted=number: len(rack.lines()) == wanted)
    wrong = "it is YAML, but no mapping of names to values, so cloud-init ignores it"
    sent = "user-data to Cloud-Init/22.4.2"
    assert [line[1:] for line in rack.lines()] == [
        (Outcome.FAILED, f"{sent}: {wrong}"),
        (Outcome.FAILED, f"{sent} (NoCloud): {wrong}"),
    ]
    assert len(checks) == 1, "once for each change of the Hardware"
    assert checks[0].startswith("large")


# --- compiled metadata: which answers stand ready, and that they take a bounded room ---


class Site:
    """An inventory with compiled metadata, and `sent`: the documents that the fast path reported as sent."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self.cache = MetadataCache(1_000_000)
        self.sent: list[tuple[str, ...]] = []
        said = lambda machine, *what: self.sent.append((machine.name, *what))  # noqa: E731
        services: Any = SimpleNamespace(inventory=self.inventory, clock=lambda: 0.0)
        self.fast_path = FastPath(services, self.cache, said, lambda _: {})
        self.inventory.on_change(self.cache.forget)

    def apply(self, number: int = 1, name: str = "", **fields: Any) -> None:
        mac = f"52:54:00:00:{number >> 8:02x}:{number & 255:02x}"
        interfaces = {mac: {"dhcp": {"ip": self.ip(number)}}, mac.replace("52:", "56:"): {}}
        self.inventory.apply(hardware(name or f"m{number}", interfaces=interfaces, **fields))

    def ip(self, number: int) -> str:
        return f"10.0.{number >> 8}.{number & 255}"

    def compiled(self, number: int = 1) -> Any:
        return self.cache.of(self.inventory.by_ip(self.ip(number)))

    def responses(self, number: int = 1) -> Any:
        return self.fast_path.of(self.inventory.by_ip(self.ip(number)))


@pytest.fixture
def site() -> Site:
    return Site()


def test_documents_that_clients_request_are_prepared(site):
    site.apply(instance={"userdata": "u"})
    compiled, responses = site.compiled(), site.responses()
    for path, body in compiled.tree.ec2.items():
        for version in ("latest", "2009-04-04"):
            for slash in ("", "/"):
                response = responses.get(f"/{version}/{path}{slash}".replace("//", "/").encode())
                assert response.body == body
                assert response.head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n")
                assert b"no-store" in response.head
    for who in ("m1", "52:54:00:00:00:01", "56:54:00:00:00:01"):
        for name, body in compiled.tree.nocloud.items():
            assert responses.get(f"/nocloud/{who}/{name}".encode()).body == body
    response = responses.get(b"/metadata")
    assert (response.body, b"application/json" in response.head) == (compiled.tree.legacy, True)
    response.on_sent("curl/8")
    responses.get(b"/nocloud/m1/user-data").on_sent("curl/8")
    assert site.sent == [("m1", "metadata", "", "curl/8"), ("m1", "user-data", " (NoCloud)", "curl/8")]


@pytest.mark.parametrize(
    "target",
    [
        *(b"", b"/", b"latest", b"//latest", b"/Latest", b"/latest//user-data", b"/latest/user-data//"),
        *(b"/latest/none", b"/latest/api/token", b"/latest/user-data?", b"/latest/%75ser-data", b"/latest/\xff"),
        *(b"/nocloud/m2/user-data", b"/nocloud/M1/user-data", b"/nocloud/52-54-00-00-00-01/user-data"),
        *(b"/nocloud/m1/user-data/", b"/nocloud/m1/", b"/nocloud/m1", b"/nocloud//user-data"),
        *(b"/machine/m1/latest/user-data", b"/2021-03-23/user-data", b"/2021-03-23/meta-data/instance-id/"),
        *(b"/healthz", b"\xff\xfe"),
    ],
)
def test_everything_else_takes_a_closer_look(site, target):
    site.apply(instance={"userdata": "u"})
    responses = site.responses()
    assert (responses.get(target), len(responses)) == (None, 0)


def test_missing_documents_are_prepared_too(site):
    site.apply()
    responses = site.responses()
    for path in ("2021-03-23/meta-data/instance-id", "latest/user-data", "2009-04-04/vendor-data"):
        assert responses.get(f"/{path}".encode()).head.startswith(b"HTTP/1.1 404 ")
    assert b"no-store" in responses.get(b"/latest/user-data").head  # it may be there soon


def test_document_of_a_secret_and_a_name_that_could_be_a_mac_never_stand_ready(site):
    site.apply(annotations={"tinkerbell.org/userdata-secret": "s"}, instance={"userdata": "u"})
    responses = site.responses()
    assert [responses.get(path) for path in (b"/latest/user-data", b"/nocloud/m1/user-data")] == [None, None]
    site.apply(2, name="52-54-00-00-00-03")
    assert site.responses(2).get(b"/nocloud/52-54-00-00-00-03/user-data") is None


def test_change_of_a_hardware_changes_its_answers(site):
    site.apply(instance={"userdata": "old"})
    first = site.responses()
    assert site.responses() is first
    site.apply(instance={"userdata": "new"})
    assert site.responses().get(b"/latest/user-data").body == b"new"
    assert first.get(b"/latest/vendor-data") is not None  # of a connection that still has it
    site.inventory.remove({"metadata": {"name": "m1", "namespace": "default"}})
    assert site.cache.size_bytes == 0


def test_metadata_of_many_machines_takes_a_bounded_room(site):
    for number in range(1, 301):
        site.apply(number, instance={"userdata": "x" * 5000})
        responses = site.responses(number)
        for path in (b"/latest/user-data", b"/2009-04-04/user-data", b"/metadata", b"/nocloud/m1/user-data"):
            responses.get(path)
        assert site.cache.size_bytes <= 1_000_000
    assert site.cache.size_bytes > 900_000
    # A machine that alone takes more is served all the same.
    site.apply(999, instance={"userdata": "x" * 2_000_000})
    assert site.compiled(999) is site.compiled(999)
    site.apply(999)
    assert site.cache.size_bytes < 1_000_000


# --- Secrets: permission, number of reads, and the answer if there is none ---

WORD = "#cloud-config\n# of the Secret\n"
REFERENCE = SecretReference("s1")


def register_secret(rack: Rack, name: str = "m1", mac: str = MAC, ip: str = IP, namespace: str = "default") -> None:
    annotations = {"tinkerbell.org/userdata-secret": "s1"}
    rack.inventory.apply(hardware(name, mac, ip, namespace=namespace, annotations=annotations))


async def test_document_of_a_secret_is_served_wherever_the_document_is_and_to_its_own_machine_alone(rack):
    register_secret(rack)
    register_secret(rack, "m2", OTHER_MAC, OTHER_IP, "other")
    rack.api.put(secret(content=WORD.encode()))
    for path in ("latest/user-data", "2009-04-04/user-data/", "nocloud/m1/user-data", "machine/m1/latest/user-data"):
        reply = await rack.ask(f"/{path}")
        assert (reply.status, reply.text, reply.headers["Cache-Control"]) == (200, WORD, "no-store")
    assert "user-data" in (await rack.ask("/latest/")).text.split("\n")
    assert (await rack.ask("/latest/user-data", method="HEAD")).headers["Content-Length"] == str(len(WORD))
    assert rack.api.count("get") == 1
    assert WORD not in str(rack.lines())
    reply = await rack.ask("/latest/user-data", ip=OTHER_IP)
    assert (reply.status, "of the Secret" in reply.text) == (503, False)
    assert (await rack.ask("/nocloud/m1/user-data", ip=OTHER_IP)).status == 403


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({}, "Secret default/s1 (key userData or value) does not exist: create it"),
        (ApiError(403, "Forbidden", "no right"), "let the edge get it (deploy/rbac-secrets.yaml)"),
        (UnreachableError("no route"), "Secret default/s1 (key userData or value) could not be read: no route"),
        ({"data": {"other": "QQ=="}}, "namespace default: Secret s1 has no key userData or value: add it"),
        ({"data": {"userData": "*"}}, "Secret s1: the value of userData is not base64"),
        ({"type": "kubernetes.io/service-account-token"}, "which no machine gets"),
        ({"type": "bootstrap.kubernetes.io/token"}, "which no machine gets"),
        ({"data": {}}, "has no key"),
        ({"data": None}, "has no key"),
    ],
)
async def test_machine_without_its_secret_waits_and_does_not_come_up_unconfigured(rack, found, said):
    register_secret(rack)
    if isinstance(found, Exception):
        rack.api.fail("get", *[found] * 3)
    elif found:
        rack.api.put(secret(content=WORD.encode(), **found))
    for _ in range(3):
        reply = await rack.ask("/latest/user-data")
        assert (reply.status, reply.headers["Retry-After"]) == (503, "10")
        assert said in reply.text
        assert "of the Secret" not in reply.text
    ((step, outcome, line),) = rack.lines()
    assert (step, outcome) == (Step.METADATA, Outcome.FAILED)
    assert said in line


@dataclass
class Reading:
    """Documents of Secrets that stand in `api`, at the time `now`."""

    api: InProcessApi
    now: float = 0.0

    def __post_init__(self) -> None:
        self.documents = SecretDocuments(reader(self.api), lambda: self.now)

    async def document(self, reference: SecretReference = REFERENCE) -> bytes:
        return await self.documents.document("default", reference)


@pytest.fixture
def reading() -> Reading:
    return Reading(InProcessApi(secret(content=WORD.encode())))


async def test_machines_that_ask_at_once_share_one_reading_even_if_the_first_goes_away(reading):
    gate = reading.api.hold("get")
    asking = [asyncio.create_task(reading.document()) for _ in range(20)]
    await gate.reached.wait()
    asking[0].cancel()
    await turns()
    gate.open()
    assert {await task for task in asking[1:]} == {WORD.encode()}
    assert reading.api.count("get") == 1


async def test_secret_is_read_again_after_its_seconds_and_a_problem_after_one_and_not_before(reading):
    await reading.document()
    reading.api.put(secret(content=b"new"))
    reading.now = 9.9
    assert await reading.document() == WORD.encode()
    reading.now = 10.0
    assert await reading.document() == b"new"
    reading.now = 20.0
    reading.api.fail("get", UnreachableError("x"))
    for _ in range(5):
        with pytest.raises(SecretUnusableError):
            await reading.document()
    assert reading.api.count("get") == 3
    reading.now = 21.0
    assert await reading.document() == b"new"


async def test_two_keys_of_one_secret_are_two_documents(reading):
    reading.api.put(secret(data={"a": "YQ==", "b": "Yg=="}))
    for key in ("a", "b"):
        assert await reading.document(SecretReference("s1", (key,))) == key.encode()


async def test_concurrent_calls_of_the_api_are_limited(reading):
    for number in range(100):
        reading.api.put(secret(f"s{number}"))
    gate = reading.api.hold("get")
    asking = [asyncio.create_task(reading.document(SecretReference(f"s{number}"))) for number in range(100)]
    await turns(20)
    assert reading.api.count("get") == 32
    gate.open()
    await asyncio.gather(*asking)
    assert reading.api.count("get") == 100


@pytest.mark.looptime
async def test_api_that_does_not_answer_is_waited_for_so_long(reading):
    reading.api.hold("get")
    asking = asyncio.create_task(reading.document())
    await elapse(0.99 * secret_documents.READ_SECONDS)
    assert not asking.done()
    with pytest.raises(SecretUnusableError, match="did not answer within"):
        await asking


async def test_large_secrets_of_many_machines_do_not_fill_the_memory(reading, monkeypatch):
    monkeypatch.setattr(secret_documents, "MAX_KEPT_BYTES", 10_000)
    for number in range(100):
        reading.api.put(secret(f"s{number}", b"x" * 1000))
        for _ in range(2):
            await reading.document(SecretReference(f"s{number}"))
    assert reading.api.count("get") == 100
    assert reading.documents.size_bytes <= 10_000
    await reading.document(SecretReference("s0"))
    assert reading.api.count("get") == 101
    reading.now = 20
    await reading.document(SecretReference("s0"))
    assert reading.documents.size_bytes < 2_000

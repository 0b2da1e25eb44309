"""Documents that stand in Secrets: whose, how often they are read, and what a machine is told where there is none."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from edge.journey.events import Outcome, Step
from edge.machines import SecretDocuments, secret_documents
from hegel.secret import SecretReference, SecretUnusableError
from tink.kube.client import ApiError, NotFoundError, UnreachableError

MAC, IP, OTHER_IP = "52:54:00:00:00:01", "127.0.0.5", "127.0.0.6"
WORD = "#cloud-config\n# of the Secret\n"


def secret(content: bytes = WORD.encode(), key: str = "userData", **more: Any) -> dict[str, Any]:
    return {"data": {key: base64.b64encode(content).decode()}} | more


def register(rack: Any, name: str = "m1", ip: str = IP, namespace: str = "default", reference: str = "s1") -> None:
    rack.inventory.apply(
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "annotations": {"tinkerbell.org/userdata-secret": reference},
            },
            "spec": {"networkInterfaces": {f"52:54:00:00:00:0{ip[-1]}": {"dhcp": {"ip": ip}}}},
        }
    )


async def test_document_of_a_secret_is_served_wherever_the_document_is(rack: Any) -> None:
    register(rack)
    rack.secrets["default", "s1"] = secret()
    for path in (
        "/latest/user-data",
        "/2009-04-04/user-data/",
        "/nocloud/m1/user-data",
        "/machine/m1/latest/user-data",
    ):
        reply = await rack.ask(path)
        assert (reply.status, reply.text, reply.headers["Cache-Control"]) == (200, WORD, "no-store")
    assert "user-data" in (await rack.ask("/latest/")).text.split("\n")
    assert (await rack.ask("/latest/user-data", method="HEAD")).headers["Content-Length"] == str(len(WORD))
    assert rack.secrets_read == 1
    assert WORD not in str(rack.lines("52:54:00:00:00:05"))


async def test_secret_of_another_namespace_or_machine_is_out_of_reach(rack: Any) -> None:
    register(rack)
    register(rack, "m2", OTHER_IP, "other")
    rack.secrets["default", "s1"] = secret()
    assert (await rack.ask("/latest/user-data")).text == WORD
    reply = await rack.ask("/latest/user-data", ip=OTHER_IP)
    assert reply.status == 503
    assert "of the Secret" not in reply.text
    assert (await rack.ask("/nocloud/m1/user-data", ip=OTHER_IP)).status == 403


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (NotFoundError(404, "NotFound", "none"), "Secret default/s1 (key userData or value) does not exist: create it"),
        (ApiError(403, "Forbidden", "no right"), "let the edge get it (deploy/rbac-secrets.yaml)"),
        (UnreachableError("no route"), "Secret default/s1 (key userData or value) could not be read: no route"),
        ({"data": {"other": "QQ=="}}, "namespace default: Secret s1 has no key userData or value: add it"),
        ({"data": {"userData": "*"}}, "Secret s1: the value of userData is not base64"),
        (secret(type="kubernetes.io/service-account-token"), "which no machine gets"),
        (secret(type="bootstrap.kubernetes.io/token"), "which no machine gets"),
        ({}, "has no key"),
        ({"data": None}, "has no key"),
    ],
)
async def test_machine_without_its_secret_waits_and_does_not_come_up_unconfigured(
    rack: Any, found: Any, said: str
) -> None:
    register(rack)
    rack.secrets["default", "s1"] = found
    for _ in range(3):
        reply = await rack.ask("/latest/user-data")
        assert (reply.status, reply.headers["Retry-After"]) == (503, "10")
        assert said in reply.text
        assert "of the Secret" not in reply.text
    lines = rack.lines("52:54:00:00:00:05")
    assert len(lines) == 1
    assert lines[0][:2] == (Step.METADATA, Outcome.FAILED)
    assert said in lines[0][2]


class Api:
    """Secrets as they are read: how often, and how many at the same time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reads = self.most = self._now_reading = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.found: Any = secret()

    async def read(self, _namespace: str, _name: str) -> Any:
        self.reads += 1
        self._now_reading += 1
        self.most = max(self.most, self._now_reading)
        try:
            await self.gate.wait()
        finally:
            self._now_reading -= 1
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def documents(self) -> SecretDocuments:
        return SecretDocuments(self.read, lambda: self.now)


async def test_machines_that_ask_at_once_share_one_reading_even_if_the_first_goes_away() -> None:
    api = Api()
    api.gate.clear()
    documents = api.documents()
    asking = [asyncio.create_task(documents.document("ns", SecretReference("s1"))) for _ in range(20)]
    await asyncio.sleep(0)
    asking[0].cancel()
    await asyncio.sleep(0)
    api.gate.set()
    assert {await task for task in asking[1:]} == {WORD.encode()}
    assert api.reads == 1


async def test_changed_secret_is_read_again_when_its_seconds_are_over() -> None:
    api = Api()
    documents, reference = api.documents(), SecretReference("s1")
    await documents.document("ns", reference)
    api.found, api.now = secret(b"new"), 9.9
    assert await documents.document("ns", reference) == WORD.encode()
    api.now = 10.0
    assert await documents.document("ns", reference) == b"new"


async def test_problem_is_asked_about_again_after_a_second_and_not_before() -> None:
    api = Api()
    documents, reference = api.documents(), SecretReference("s1")
    api.found = UnreachableError("x")
    for _ in range(5):
        with pytest.raises(SecretUnusableError):
            await documents.document("ns", reference)
    assert api.reads == 1
    api.found, api.now = secret(), 1.0
    assert await documents.document("ns", reference) == WORD.encode()


async def test_two_keys_of_one_secret_are_two_documents() -> None:
    api = Api()
    api.found = {"data": secret(b"a", "a")["data"] | secret(b"b", "b")["data"]}
    documents = api.documents()
    assert await documents.document("ns", SecretReference("s", ("a",))) == b"a"
    assert await documents.document("ns", SecretReference("s", ("b",))) == b"b"


async def test_api_is_not_asked_by_a_whole_rack_at_once() -> None:
    api = Api()
    api.gate.clear()
    documents = api.documents()
    asking = [asyncio.create_task(documents.document("ns", SecretReference(f"s{n}"))) for n in range(100)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert api.reads == 32
    api.gate.set()
    await asyncio.gather(*asking)
    assert (api.reads, api.most) == (100, 32)


async def test_api_that_does_not_answer_is_waited_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_documents, "READ_SECONDS", 0.05)
    api = Api()
    api.gate.clear()
    with pytest.raises(SecretUnusableError, match="did not answer within"):
        await api.documents().document("ns", SecretReference("s1"))


async def test_large_secrets_of_many_machines_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_documents, "MAX_KEPT_BYTES", 10_000)
    api = Api()
    api.found = secret(b"x" * 1000)
    documents = api.documents()
    for number in range(100):
        await documents.document("ns", SecretReference(f"s{number}"))
        await documents.document("ns", SecretReference(f"s{number}"))
    assert api.reads == 100
    assert documents.size_bytes <= 10_000
    await documents.document("ns", SecretReference("s0"))
    assert api.reads == 101
    api.now = 20
    await documents.document("ns", SecretReference("s0"))
    assert documents.size_bytes < 2_000

"""Compiled metadata: which answers stand ready, and that they take a bounded room."""

from __future__ import annotations

from typing import Any

import pytest

from edge.http.metadata import FastPath, MetadataCache
from edge.http.metadata.compiled import Compiled
from edge.machines import Inventory, Machine

VERSIONS = ("latest", "2009-04-04")


def apply(inventory: Inventory, number: int = 1, name: str = "", **spec: Any) -> None:
    mac, ip = f"52:54:00:00:{number >> 8:02x}:{number & 255:02x}", f"10.0.{number >> 8}.{number & 255}"
    interfaces = {mac: {"dhcp": {"ip": ip}}, mac.replace("52:", "56:"): {}}
    metadata = {"name": name or f"m{number}", "namespace": "default", "annotations": spec.pop("annotations", {})}
    inventory.apply({"metadata": metadata, "spec": {"networkInterfaces": interfaces} | spec})


def machine(inventory: Inventory, number: int = 1) -> Machine:
    found = inventory.by_ip(f"10.0.{number >> 8}.{number & 255}")
    assert found is not None
    return found


class Site:
    """An inventory whose machines' metadata is compiled, and `sent`: what the fast path said of what it sent."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self.cache = MetadataCache(1_000_000)
        self.sent: list[tuple[str, ...]] = []
        self.fast_path = FastPath(self.inventory, None, self.cache, self._sent, lambda _: {}, lambda: 0.0)  # type: ignore[arg-type]
        self.inventory.on_change(self.cache.forget)

    def _sent(self, machine: Machine, *what: str) -> None:
        self.sent.append((machine.name, *what))

    def apply(self, number: int = 1, name: str = "", **spec: Any) -> None:
        apply(self.inventory, number, name, **spec)

    def compiled(self, number: int = 1) -> Compiled:
        return self.cache.of(machine(self.inventory, number))

    def responses(self, number: int = 1) -> Any:
        return self.fast_path.of(machine(self.inventory, number))


@pytest.fixture
def site() -> Site:
    return Site()


def test_what_clients_ask_for_stands_ready(site: Site) -> None:
    site.apply(instance={"userdata": "u"})
    compiled, responses = site.compiled(), site.responses()
    for path, body in compiled.tree.ec2.items():
        for version in VERSIONS:
            for slash in ("", "/"):
                response = responses.get(f"/{version}/{path}{slash}".replace("//", "/").encode())
                assert response is not None
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
        b"",
        b"/",
        b"latest",
        b"//latest",
        b"/Latest",
        b"/latest//user-data",
        b"/latest/user-data//",
        b"/latest/none",
        b"/latest/api/token",
        b"/latest/user-data?",
        b"/latest/%75ser-data",
        b"/nocloud/m2/user-data",
        b"/nocloud/M1/user-data",
        b"/nocloud/52-54-00-00-00-01/user-data",
        b"/nocloud/m1/user-data/",
        b"/nocloud/m1/",
        b"/nocloud/m1",
        b"/nocloud//user-data",
        b"/machine/m1/latest/user-data",
        b"/2021-03-23/user-data",
        b"/2021-03-23/meta-data/instance-id/",
        b"/healthz",
        b"\xff\xfe",
        b"/latest/\xff",
    ],
)
def test_everything_else_takes_a_closer_look(site: Site, target: bytes) -> None:
    site.apply(instance={"userdata": "u"})
    responses = site.responses()
    assert responses.get(target) is None
    assert len(responses) == 0


def test_what_is_not_there_stands_ready_too_for_every_cloud_init_asks(site: Site) -> None:
    site.apply()
    responses = site.responses()
    for path in ("2021-03-23/meta-data/instance-id", "latest/user-data", "2009-04-04/vendor-data"):
        assert responses.get(f"/{path}".encode()).head.startswith(b"HTTP/1.1 404 ")
    assert b"no-store" in responses.get(b"/latest/user-data").head  # it may be there soon


def test_document_of_a_secret_never_stands_ready(site: Site) -> None:
    site.apply(annotations={"tinkerbell.org/userdata-secret": "s"}, instance={"userdata": "u"})
    responses = site.responses()
    assert [responses.get(path) for path in (b"/latest/user-data", b"/nocloud/m1/user-data")] == [None, None]


def test_name_that_could_be_a_mac_is_taken_for_one(site: Site) -> None:
    site.apply(name="52-54-00-00-00-02")
    responses = site.responses()
    assert responses.get(b"/nocloud/52-54-00-00-00-02/user-data") is None


def test_change_of_a_hardware_makes_its_answers_anew(site: Site) -> None:
    site.apply(instance={"userdata": "old"})
    first = site.responses()
    assert site.responses() is first
    site.apply(instance={"userdata": "new"})
    assert site.responses().get(b"/latest/user-data").body == b"new"
    assert first.get(b"/latest/vendor-data") is not None  # of a connection that still has it
    site.inventory.remove({"metadata": {"name": "m1", "namespace": "default"}})
    assert site.cache.size_bytes == 0


def test_metadata_of_many_machines_takes_a_bounded_room(site: Site) -> None:
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

"""Compiled metadata: which answers stand ready, and that they take a bounded room."""

from __future__ import annotations

from typing import Any

import pytest

from edge.http.metadata.compiled import Shelf
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


@pytest.fixture
def noted() -> list[tuple[str, str, str, str]]:
    return []


@pytest.fixture
def shelf(noted: list[tuple[str, str, str, str]]) -> Shelf:
    return Shelf(Inventory(), lambda machine, *what: noted.append((machine.name, *what)), 1_000_000)


def test_what_clients_ask_for_stands_ready(shelf: Shelf, noted: list[tuple[str, str, str, str]]) -> None:
    apply(shelf.inventory, instance={"userdata": "u"})
    compiled = shelf.of(machine(shelf.inventory))
    table = compiled.table
    for path, body in compiled.tree.ec2.items():
        for version in VERSIONS:
            for slash in ("", "/"):
                ready = table.get(f"/{version}/{path}{slash}".replace("//", "/").encode())
                assert ready is not None
                assert ready.body == body
                assert ready.head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n")
                assert b"no-store" in ready.head
    for who in ("m1", "52:54:00:00:00:01", "56:54:00:00:00:01"):
        for name, body in compiled.tree.nocloud.items():
            assert table.get(f"/nocloud/{who}/{name}".encode()).body == body
    ready = table.get(b"/metadata")
    assert (ready.body, b"application/json" in ready.head) == (compiled.tree.legacy, True)
    ready.noted("curl/8")
    table.get(b"/nocloud/m1/user-data").noted("curl/8")
    assert noted == [("m1", "metadata", "", "curl/8"), ("m1", "user-data", " (NoCloud)", "curl/8")]


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
def test_everything_else_takes_a_closer_look(shelf: Shelf, target: bytes) -> None:
    apply(shelf.inventory, instance={"userdata": "u"})
    table = shelf.of(machine(shelf.inventory)).table
    assert table.get(target) is None
    assert len(table) == 0


def test_what_is_not_there_stands_ready_too_for_every_cloud_init_asks(shelf: Shelf) -> None:
    apply(shelf.inventory)
    table = shelf.of(machine(shelf.inventory)).table
    for path in ("2021-03-23/meta-data/instance-id", "latest/user-data", "2009-04-04/vendor-data"):
        assert table.get(f"/{path}".encode()).head.startswith(b"HTTP/1.1 404 ")
    assert b"no-store" in table.get(b"/latest/user-data").head  # it may be there soon


def test_document_of_a_secret_never_stands_ready(shelf: Shelf) -> None:
    apply(shelf.inventory, annotations={"tinkerbell.org/userdata-secret": "s"}, instance={"userdata": "u"})
    table = shelf.of(machine(shelf.inventory)).table
    assert [table.get(path) for path in (b"/latest/user-data", b"/nocloud/m1/user-data")] == [None, None]


def test_name_that_could_be_a_mac_is_taken_for_one(shelf: Shelf) -> None:
    apply(shelf.inventory, name="52-54-00-00-00-02")
    table = shelf.of(machine(shelf.inventory)).table
    assert table.get(b"/nocloud/52-54-00-00-00-02/user-data") is None


def test_change_of_a_hardware_makes_its_answers_anew(shelf: Shelf) -> None:
    apply(shelf.inventory, instance={"userdata": "old"})
    first = shelf.of(machine(shelf.inventory))
    assert shelf.of(machine(shelf.inventory)) is first
    apply(shelf.inventory, instance={"userdata": "new"})
    assert shelf.of(machine(shelf.inventory)).table.get(b"/latest/user-data").body == b"new"
    assert first.table.get(b"/latest/vendor-data") is not None  # of a connection that still has it
    shelf.inventory.remove({"metadata": {"name": "m1", "namespace": "default"}})
    assert shelf.size_bytes == 0


def test_metadata_of_many_machines_takes_a_bounded_room(shelf: Shelf) -> None:
    for number in range(1, 301):
        apply(shelf.inventory, number, instance={"userdata": "x" * 5000})
        table = shelf.of(machine(shelf.inventory, number)).table
        for path in (b"/latest/user-data", b"/2009-04-04/user-data", b"/metadata", b"/nocloud/m1/user-data"):
            table.get(path)
        assert shelf.size_bytes <= 1_000_000
    assert shelf.size_bytes > 900_000
    # A machine that alone takes more is served all the same.
    apply(shelf.inventory, 999, instance={"userdata": "x" * 2_000_000})
    compiled = shelf.of(machine(shelf.inventory, 999))
    assert shelf.of(machine(shelf.inventory, 999)) is compiled
    apply(shelf.inventory, 999)
    assert shelf.size_bytes < 1_000_000

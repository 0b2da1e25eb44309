"""cloud-init on a machine whose SMBIOS says that it is Amazon's: it shows a session token with each request, and gives
up where it gets none.

The edge demands those tokens here, so that a crawl that ends well has shown one with each request. On all other
machines cloud-init asks for none: they need a signed URL at such an edge. And where an image insists on Amazon's
hardware (`strict_id`), cloud-init on a machine of another make does not ask at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.cloud_init.computer import HERE, Computer, release, releases
from tests.interop.cloud_init.rack import BASE, MetadataRack, Registered
from tests.interop.rack import IN_EDGE, TINKEDGE

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBJmHi2b0lmbUaodGcZfYcKqm6dSYYFVxvEYCwNbmTLn"
MACHINE = Registered(
    "amazon", "52:54:00:00:0f:01", "172.31.77.151", {"ssh-public-keys": KEY}, userdata="#!/bin/sh\n# of amazon\n"
)
STRANGER = "172.31.77.152"
UUID = "ec2e1916-9099-7caf-fd21-012345abcdef"
TOKEN = f"PUT {BASE}/latest/api/token"


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetadataRack]:
    with MetadataRack(tmp_path_factory.mktemp("rack")) as running:
        running.up("--disable", "dhcp", "--disable", "tftp", "--imds-tokens", "required")
        running.register(MACHINE)
        running.address(MACHINE.name, f"{MACHINE.address}/24", f"{STRANGER}/24")
        yield running


def amazons(computer: Computer, uuid: str) -> Computer:
    computer.mainboard(product_uuid=uuid, product_serial=uuid, sys_vendor="Amazon EC2", product_name="m5.metal")
    return computer


def crawl(computer: Computer, *cases: dict[str, Any], first: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """What came of each case, and in what `first` says is run before."""
    computer.write("srv/crawl.py", (HERE / "crawl.py").read_text())
    computer.write("srv/cases.json", json.dumps([{"address": MACHINE.address, "url": BASE} | case for case in cases]))
    status, said = computer.run(*first, "python3 /srv/crawl.py /srv/cases.json")
    assert status == 0, said
    answers: list[dict[str, Any]] = json.loads(next(line for line in said.splitlines() if line.startswith("[{")))
    return answers


@pytest.mark.parametrize("name", releases())
def test_amazons_machine_shows_a_token_with_each_request_and_is_told_all(
    rack: MetadataRack, name: str, tmp_path: Path
) -> None:
    computer = amazons(Computer(rack, MACHINE.name, release(name), tmp_path), UUID)
    own, stranger = crawl(
        computer,
        *({"strict_id": True}, {"strict_id": True, "address": STRANGER}),
        first=("/usr/lib/cloud-init/ds-identify --force",),
    )
    # Here cloud-init is switched on without a word in the image.
    assert (tmp_path / "report/cloud.cfg").read_text().startswith("datasource_list: [ Ec2")
    assert own["found"], own
    assert own["instance-id"] == MACHINE.name
    assert own["hostname"].partition(".")[0] == MACHINE.name
    assert own["user-data"] == MACHINE.userdata
    assert own["keys"] == [KEY]
    assert own["asked"][0] == f"{TOKEN} 200"
    assert not [line for line in own["asked"] if line.endswith(" 401")]

    assert not stranger["found"]
    assert f"{TOKEN} 404" in stranger["asked"]
    assert MACHINE.name not in json.dumps(stranger)


def test_machine_of_another_make_needs_a_signed_url_where_tokens_are_required(
    rack: MetadataRack, tmp_path: Path
) -> None:
    data = ["--data-dir", rack.directory / "data", "--public-ip", "172.31.77.1"]
    printed = rack.run(IN_EDGE, *TINKEDGE, "metadata-url", MACHINE.name, *data, "-o", "json").out
    plain, signed, strict = crawl(
        Computer(rack, MACHINE.name, release("bookworm"), tmp_path),
        *({}, {"url": json.loads(printed)[0]["ec2"], "address": STRANGER}, {"strict_id": True}),
    )
    assert not plain["found"]
    assert plain["asked"]
    assert all(line.endswith(" 401") for line in plain["asked"]), plain
    assert (signed["found"], signed.get("user-data")) == (True, MACHINE.userdata)
    assert (strict["found"], strict["asked"]) == (False, [])

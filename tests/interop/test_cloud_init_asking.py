"""How each release of cloud-init finds the edge's metadata: ds-identify reads a machine's configuration, and
DataSourceEc2 reads the metadata tree of each kind of Hardware, by each URL that leads to it.

The cases come from crawls of faulty servers: a listing with a missing entry, no listing, values with a newline, keys
that are no directory, an answer to every version, an empty instance id.

- On a machine whose SMBIOS names Amazon, cloud-init sends a session token with each request, and stops if it gets no
  token. One edge here requires tokens, so a successful crawl has sent one with each request.
- On other machines cloud-init requests no token. They need a signed URL at such an edge.
- If an image accepts only Amazon's hardware (`strict_id`), cloud-init on other hardware sends no request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.interop.cloud_init.computer import HERE, Computer, release, releases
from tests.interop.cloud_init.rack import BASE, MetadataRack, Registered, documented
from tests.interop.rack import IN_EDGE, TINKEDGE

CRAWLER = "crawler"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBJmHi2b0lmbUaodGcZfYcKqm6dSYYFVxvEYCwNbmTLn"
NAT = "172.31.77.99"
"""The address of all machines behind NAT."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A Hardware, and the metadata that cloud-init should read for it."""

    name: str
    hardware: Registered
    instance_id: str
    hostname: str | None = None
    keys: tuple[str, ...] = ()
    userdata: str = ""


def shapes() -> list[Shape]:
    def at(number: int, name: str, **more: Any) -> Registered:
        return Registered(name, f"52:54:00:00:0b:{number:02x}", f"172.31.77.{110 + number}", **more)

    several = "\n".join([f"{KEY} =odd= name/with slash", f"  {KEY[:-1]}m  ", "no key at all", f"{KEY[:-1]}k {{json}}"])
    return [
        Shape("plain", at(1, "plain"), "plain", "plain"),
        Shape("without hostname", at(2, "nameless", hostname=None), "nameless", "nameless"),
        Shape("user-data", at(3, "script", userdata="#!/bin/sh\n\n"), "script", "script", userdata="#!/bin/sh\n\n"),
        Shape("vendor-data", at(4, "vendor", vendordata="#!/bin/sh\n"), "vendor", "vendor"),
        Shape("instance id with a newline", at(5, "line", annotations={"instance-id": "i-5\n"}), "i-5", "line"),
        Shape("instance id of digits", at(6, "digits", annotations={"instance-id": "0123"}), "0123", "digits"),
        Shape("instance id like JSON", at(7, "json", annotations={"instance-id": '{"a":1}'}), "json", "json"),
        Shape("instance id of words", at(8, "words", annotations={"instance-id": "a b\nc"}), "words", "words"),
        Shape("empty instance id", at(9, "empty", annotations={"instance-id": ""}), "empty", "empty"),
        Shape(
            "keys", at(10, "keys", annotations={"ssh-public-keys": several}), "keys", "keys",
            keys=(f"{KEY} =odd= name/with slash", f"{KEY[:-1]}m", f"{KEY[:-1]}k {{json}}"),
        ),
        Shape("VLAN", at(11, "vlan", vlan="100"), "vlan", "vlan"),
        Shape("two cards", at(12, "cards", more=("52:54:00:00:0b:ff",)), "cards", "cards"),
    ]  # fmt: skip


SHAPES = shapes()


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetadataRack]:
    with MetadataRack(tmp_path_factory.mktemp("rack")) as running:
        # One card plays all of the machines.
        known = ("--known-by-address", "172.31.77.0/24")
        running.up("--disable", "dhcp", "--disable", "tftp", "--metadata-nat", f"{NAT}/32", *known)
        running.register(*(shape.hardware for shape in SHAPES), namespaces=False)
        running.add(CRAWLER)
        running.card(CRAWLER, "eth0", "52:54:00:00:0b:fe", "rack0")
        running.address(CRAWLER, f"{NAT}/24", *(f"{shape.hardware.address}/24" for shape in SHAPES))
        yield running


@pytest.fixture(params=releases())
def computer(request: pytest.FixtureRequest, rack: MetadataRack, tmp_path: Path) -> Computer:
    return Computer(rack, CRAWLER, release(request.param), tmp_path)


def crawl(computer: Computer, *cases: dict[str, Any], first: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Crawl each case with cloud-init's code, after the commands in `first`; return the results."""
    computer.write("srv/crawl.py", (HERE / "crawl.py").read_text())
    computer.write("srv/cases.json", json.dumps(cases))
    status, output = computer.run(*first, "python3 /srv/crawl.py /srv/cases.json")
    assert status == 0, output
    answers: list[dict[str, Any]] = json.loads(next(line for line in output.splitlines() if line.startswith("[{")))
    assert len(answers) == len(cases)
    return answers


@dataclass(frozen=True, slots=True)
class Crawls:
    """The results of one release, in one process: for each shape, for URLs, and for servers that are no datasource."""

    shapes: dict[str, dict[str, Any]]
    urls: dict[str, dict[str, Any]]
    strangers: list[dict[str, Any]]


@pytest.fixture(scope="module", params=releases())
def crawls(request: pytest.FixtureRequest, rack: MetadataRack, tmp_path_factory: pytest.TempPathFactory) -> Crawls:
    machine = SHAPES[0].hardware
    signed = json.loads(metadata_url(rack, machine, "json"))[0]["ec2"]
    by_mac = f"{BASE}/machine/{machine.mac}"
    urls = [signed, signed.rstrip("/"), by_mac, f"{by_mac}/", f"{BASE}/machine/{machine.mac.replace(':', '-')}"]
    token = signed.rstrip("/")
    forged = token[:-2] + ("A" if token[-2] != "A" else "B") + token[-1]
    strangers = [BASE, forged, f"{BASE}/machine/52:54:00:99:99:99"]

    cases = [{"address": shape.hardware.address, "url": BASE} for shape in SHAPES]
    cases += [{"address": NAT, "url": url} for url in (*urls, *strangers)]
    computer = Computer(rack, CRAWLER, release(request.param), tmp_path_factory.mktemp(f"crawls-{request.param}"))
    found = iter(crawl(computer, *cases))
    return Crawls(
        shapes={shape.name: next(found) for shape in SHAPES},
        urls={url: next(found) for url in urls},
        strangers=list(found),
    )


def metadata_url(rack: MetadataRack, machine: Registered, output: str) -> str:
    """Return the output of `tinkedge metadata-url`."""
    data = ["--data-dir", rack.directory / "data", "--public-ip", "172.31.77.1"]
    process = rack.run(IN_EDGE, *TINKEDGE, "metadata-url", machine.mac, *data, "-o", output)
    assert process.popen.returncode == 0, process.err
    return process.out


def test_every_kind_of_hardware_is_read_completely_and_without_a_retry(crawls: Crawls) -> None:
    for shape in SHAPES:
        answer = crawls.shapes[shape.name]
        assert answer["found"], (shape.name, answer)
        assert answer["instance-id"] == shape.instance_id, shape.name
        assert answer["keys"] == sorted(shape.keys), shape.name
        assert answer["user-data"] == shape.userdata, shape.name
        if shape.hostname is not None:
            assert answer["hostname"].partition(".")[0] == shape.hostname, shape.name
        values = {name: value for name, value in answer["metadata"].items() if name not in ("network", "public-keys")}
        assert all(isinstance(value, str) for value in values.values()), (shape.name, values)
        assert f"GET {BASE}/2009-04-04/meta-data/ 200" in answer["asked"], shape.name
        refused = [line for line in answer["asked"] if not line.endswith(" 200")]
        expected = r"GET \S+/(20(16-09-02|18-09-24|21-03-23)/meta-data/instance-id|2009-04-04/user-data) 404"
        assert all(re.fullmatch(expected, line) for line in refused), (shape.name, refused)
        assert len(refused) == len(set(refused)), (shape.name, refused)


def test_network_config_is_dhcp_by_mac_if_every_card_has_dhcp_and_else_absent(crawls: Crawls) -> None:
    assert "network" in crawls.shapes["plain"]["metadata"]
    assert not any("network" in warning for warning in crawls.shapes["plain"]["warnings"])
    assert "network" not in crawls.shapes["VLAN"]["metadata"]


def test_urls_with_a_path_lead_to_the_same_metadata_from_behind_nat(crawls: Crawls) -> None:
    for url, answer in crawls.urls.items():
        assert answer["found"], (url, answer)
        assert answer["instance-id"] == SHAPES[0].instance_id


def test_without_a_hardware_or_a_good_token_there_is_no_datasource(crawls: Crawls) -> None:
    assert len(crawls.strangers) == 3
    for answer in crawls.strangers:
        assert not answer["found"]
        assert "error" not in answer


# --- the configuration of images and kernel command lines -------------------------------------------------------------


def test_file_that_metadata_url_prints_lets_the_machine_find_itself_from_anywhere(
    rack: MetadataRack, computer: Computer
) -> None:
    machine = SHAPES[0].hardware
    computer.configure("90_tinkedge", metadata_url(rack, machine, "cloud-init"))
    boot = computer.boot(stages=("cloud-init init",))
    assert boot.hostname == machine.name, computer.log()
    assert computer.read("var/lib/cloud/data/instance-id").strip() == machine.name


@pytest.mark.parametrize(
    ("cmdline", "files", "sources"),
    [
        (f"ds=nocloud;s={BASE}/nocloud/plain/", (), "NoCloud"),
        (f"ds=nocloud-net;s={BASE}/nocloud/plain/", (), "NoCloud"),
        ("ci.ds=Ec2", (), "Ec2"),
        ("", ("90_tinkedge.cfg",), "NoCloud"),
        ("", ("90_tinkedge_ec2.cfg",), "Ec2"),
        ("", ("ds-identify.cfg",), "Ec2"),
    ],
    ids=["nocloud", "nocloud-net", "ci.ds", "file-nocloud", "file-ec2", "image"],
)
def test_ds_identify_enables_cloud_init(computer: Computer, cmdline: str, files: tuple[str, ...], sources: str) -> None:
    for name in files:
        if name == "ds-identify.cfg":
            computer.write("etc/cloud/ds-identify.cfg", (IMAGE / name).read_text())
        else:
            computer.configure(name.removesuffix(".cfg"), documented(name, "plain"))
    status, output = identify(computer, cmdline)
    assert status == 0, output
    # Newer releases write the name as on the command line; cloud-init ignores its case.
    assert re.match(rf"datasource_list: \[ {sources}\b", report(computer), re.IGNORECASE), report(computer)


def test_ds_identify_leaves_cloud_init_off_without_a_sign_of_a_data_source(computer: Computer) -> None:
    status, output = identify(computer, "")
    assert status == 1, output


IMAGE = Path(__file__).resolve().parents[2] / "deploy/image/cloud/rootfs/etc/cloud"


def identify(computer: Computer, cmdline: str) -> tuple[int, str]:
    """Run ds-identify as systemd's generator does early in each boot; return its exit status and output."""
    (computer.disk / "cmdline").write_text(f"BOOT_IMAGE=/vmlinuz ro {cmdline}\n")
    return computer.run("/usr/lib/cloud-init/ds-identify --force")


def report(computer: Computer) -> str:
    return (computer.disk / "report/cloud.cfg").read_text()


# --- Amazon's hardware, and tokens ------------------------------------------------------------------------------------

MACHINE = Registered(
    "amazon", "52:54:00:00:0f:01", "172.31.77.151", {"ssh-public-keys": KEY}, userdata="#!/bin/sh\n# of amazon\n"
)
STRANGER = "172.31.77.152"
UUID = "ec2e1916-9099-7caf-fd21-012345abcdef"
TOKEN = f"PUT {BASE}/latest/api/token"
CASE: dict[str, Any] = {"address": MACHINE.address, "url": BASE}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetadataRack]:
    with MetadataRack(tmp_path_factory.mktemp("rack")) as running:
        running.up("--disable", "dhcp", "--disable", "tftp", "--imds-tokens", "required")
        running.register(MACHINE)
        running.address(MACHINE.name, f"{MACHINE.address}/24", f"{STRANGER}/24")
        yield running


@pytest.mark.parametrize("name", releases())
def test_ec2_data_source_sends_a_token_with_each_request_and_gets_all_metadata(
    strict: MetadataRack, name: str, tmp_path: Path
) -> None:
    computer = Computer(strict, MACHINE.name, release(name), tmp_path)
    computer.mainboard(product_uuid=UUID, product_serial=UUID, sys_vendor="Amazon EC2", product_name="m5.metal")
    own, stranger = crawl(
        computer,
        CASE | {"strict_id": True},
        CASE | {"strict_id": True, "address": STRANGER},
        first=("/usr/lib/cloud-init/ds-identify --force",),
    )
    # ds-identify enables cloud-init here without any configuration in the image.
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
    strict: MetadataRack, tmp_path: Path
) -> None:
    url = json.loads(metadata_url(strict, MACHINE, "json"))[0]["ec2"]
    computer = Computer(strict, MACHINE.name, release("bookworm"), tmp_path)
    cases = (CASE, CASE | {"url": url, "address": STRANGER}, CASE | {"strict_id": True})
    plain, signed, other = crawl(computer, *cases)
    assert not plain["found"]
    assert plain["asked"]
    assert all(line.endswith(" 401") for line in plain["asked"]), plain
    assert (signed["found"], signed.get("user-data")) == (True, MACHINE.userdata)
    assert (other["found"], other["asked"]) == (False, [])

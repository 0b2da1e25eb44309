"""The real cloud-init, old and new releases, against a running edge: it must apply the edge's metadata.

Each release boots two machines: one with a NoCloud URL on its kernel command line, three times (first boot, second
boot, and a boot after its instance id has changed), and one whose image names the Ec2 datasource, once.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path

import pytest

from tests.interop.cloud_init.computer import Boot, Computer, release, releases, version
from tests.interop.cloud_init.rack import BASE, MetadataRack, Registered, documented
from tests.waiting import wait_until

KEYS = [
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBJmHi2b0lmbUaodGcZfYcKqm6dSYYFVxvEYCwNbmTLn operator@office",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEQ6tZ0kYT0H0qtyXfLYVPMAE3T5dfE0N1aYFFXKGMBm",
]
pytestmark = pytest.mark.long  # The boot of a fixture counts for the first test that uses it.

MARKS = "srv"
"""Where modules leave their marks, below the root of the machine's disk."""


def multipart(name: str) -> str:
    """User-data of three kinds in one: a cloud-config, a boothook and a script."""
    config = {
        "write_files": [{"path": f"/{MARKS}/written", "content": "Grüße, written once\n"}],
        "bootcmd": [f"echo bootcmd >> /{MARKS}/bootcmd"],
        "runcmd": [f"echo runcmd >> /{MARKS}/runcmd"],
        "phone_home": {"url": f"{BASE}/phone-home/{name}", "post": ["instance_id", "hostname", "fqdn"], "tries": 2},
    }
    message = MIMEMultipart()
    message.attach(MIMEText("#cloud-config\n" + json.dumps(config), "cloud-config"))
    message.attach(MIMEText(f"#!/bin/sh\necho boothook >> /{MARKS}/boothook\n", "cloud-boothook"))
    message.attach(MIMEText(f"#!/bin/sh\necho script >> /{MARKS}/script\n", "x-shellscript"))
    return message.as_string()


@dataclass(frozen=True, slots=True)
class Installed:
    rack: MetadataRack
    machine: Registered
    computer: Computer
    boots: list[Boot]

    def mark(self, name: str) -> list[str]:
        return self.computer.read(f"{MARKS}/{name}").splitlines()

    def reports(self) -> list[dict[str, str]]:
        events = self.rack.journey(self.machine)
        return [event["detail"] for event in events if "instance_id" in event["detail"]]


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetadataRack]:
    with MetadataRack(tmp_path_factory.mktemp("rack")) as running:
        running.up("--disable", "dhcp", "--disable", "tftp")
        yield running


EVERYDAY = "bookworm"
"""The release that `make test` tries; `make test-all` tries the others."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=[pytest.mark.smoke] if each == EVERYDAY else []) for each in releases()],
)
def system(request: pytest.FixtureRequest) -> Path:
    return release(request.param)


# --- NoCloud ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nocloud(rack: MetadataRack, system: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    number = releases().index(system.name)
    name = f"nocloud-{system.name}"
    machine = Registered(
        name=name,
        mac=f"52:54:00:00:0c:{number:02x}",
        address=f"172.31.77.{50 + number}",
        annotations={"instance-id": "i-0001", "ssh-public-keys": "\n".join(KEYS)},
        userdata=multipart(name),
        vendordata=f"#!/bin/sh\necho vendor >> /{MARKS}/vendor\n",
    )
    rack.register(machine)
    computer = Computer(rack, name, system, tmp_path_factory.mktemp(name))
    # Older ones look into the network for NoCloud only if it is called so.
    datasource = "nocloud" if version(system) >= (23, 2) else "nocloud-net"
    cmdline = f"ds={datasource};s={BASE}/nocloud/{machine.mac}/"
    boots = [computer.boot(cmdline), computer.boot(cmdline)]
    rack.kubectl("annotate", "--overwrite", "hardware", name, "tinkerbell.org/instance-id=i-0002")
    wait_until(lambda: "i-0002" in rack.get(machine, f"/nocloud/{machine.mac}/meta-data"))
    boots.append(computer.boot(cmdline))
    return Installed(rack, machine, computer, boots)


def test_nocloud_over_http_is_found_and_applied_completely(nocloud: Installed) -> None:
    name, computer = nocloud.machine.name, nocloud.computer
    for boot in nocloud.boots:
        assert boot.result["errors"] == [], computer.log()
        assert boot.result["datasource"].startswith("DataSourceNoCloudNet")
        assert boot.status == 0, boot.output
        assert boot.hostname == name
    assert computer.read("etc/hostname").strip() == name
    assert computer.read(f"{MARKS}/written") == "Grüße, written once\n"
    for part in ("bootcmd", "runcmd", "boothook", "script", "vendor"):
        assert part in nocloud.mark(part), (part, computer.log())
    assert sorted(computer.read("home/debian/.ssh/authorized_keys").splitlines()) == sorted(KEYS)
    # Each instance reports once.
    reported = [(one["instance_id"], one["hostname"]) for one in nocloud.reports()]
    assert reported == [("i-0001", name), ("i-0002", name)]


def test_second_boot_of_an_instance_runs_no_per_instance_module_and_a_new_instance_id_runs_them_again(
    nocloud: Installed,
) -> None:
    for per_instance in ("runcmd", "script", "vendor"):
        assert len(nocloud.mark(per_instance)) == 2, per_instance
    assert len(nocloud.mark("bootcmd")) >= 3  # each boot


def test_network_config_is_rendered_for_the_card_with_this_mac(nocloud: Installed) -> None:
    machine, computer = nocloud.machine, nocloud.computer
    if version(computer.system) < (24, 3):
        # These ask for no network-config over HTTP: docs/metadata.md has an action fetch the files as a seed.
        for file in ("meta-data", "user-data", "vendor-data", "network-config"):
            text = nocloud.rack.get(machine, f"/nocloud/{machine.mac}/{file}")
            computer.write(f"var/lib/cloud/seed/nocloud/{file}", text.replace("i-0002", "i-0003"))
        computer.boot(stages=("cloud-init init --local",))
        assert computer.read("var/lib/cloud/data/instance-id").strip() == "i-0003"
    assert machine.mac in computer.read("etc/netplan/50-cloud-init.yaml")
    status, output = computer.run("netplan generate", "grep -rh . /run/systemd/network")
    assert status == 0, output
    for line in (f"Address={machine.address}/24", "DNS=172.31.77.2", "DNS=172.31.77.3", "Gateway=172.31.77.1"):
        assert line in output, output


# --- Ec2 --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ec2(rack: MetadataRack, system: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    number = releases().index(system.name)
    name = f"ec2-{system.name}"
    userdata = {
        "write_files": [{"path": f"/{MARKS}/written", "content": "unzipped"}],
        "runcmd": [f"echo runcmd >> /{MARKS}/runcmd"],
        "phone_home": {"url": f"{BASE}/phone-home/{name}", "post": "all", "tries": 2},
    }
    machine = Registered(
        name=name,
        mac=f"52:54:00:00:0e:{number:02x}",
        address=f"172.31.77.{80 + number}",
        annotations={"ssh-public-keys": "\n".join(KEYS)},
        # As those send it who are short of space: base64 of gzip, in lines.
        userdata=base64.encodebytes(gzip.compress(f"#cloud-config\n{json.dumps(userdata)}".encode())).decode(),
        vendordata="#!/bin/sh\nexit 1\n",
    )
    rack.register(machine)
    computer = Computer(rack, name, system, tmp_path_factory.mktemp(name), renderer="eni")
    computer.configure("90_tinkedge_ec2", documented("90_tinkedge_ec2.cfg", name))
    return Installed(rack, machine, computer, [computer.boot()])


def test_ec2_tree_is_found_and_applied_completely(ec2: Installed) -> None:
    (boot,), computer = ec2.boots, ec2.computer
    assert boot.result["errors"] == [], computer.log()
    assert boot.result["datasource"].startswith("DataSourceEc2")
    assert boot.status == 0, boot.output
    assert boot.hostname == ec2.machine.name
    assert ec2.mark("written") == ["unzipped"]
    assert ec2.mark("runcmd") == ["runcmd"]
    assert sorted(computer.read("home/debian/.ssh/authorized_keys").splitlines()) == sorted(KEYS)
    (report,) = ec2.reports()
    assert report["instance_id"] == ec2.machine.name
    interfaces = computer.read("etc/network/interfaces.d/50-cloud-init")
    assert "iface eth0 inet dhcp" in interfaces, interfaces

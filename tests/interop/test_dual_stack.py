"""A network with IPv4 and IPv6: each machine is served by the way it has come, and addresses of both are followed.

edge's namespace: eth1 10.77.1.1/24, fd77:1::1/64 --- cable --- eth0 of the machine "one"
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.rack import IN_EDGE, Kubectl, Namespaces, ip
from tests.waiting import wait_until

MAC, ONE = "52:54:00:77:01:01", "one"
DHCP = {
    "ip": "10.77.1.50",
    "netmask": "255.255.255.0",
    "gateway": "10.77.1.1",
    "ipv6": {"address": "fd77:1::50", "nameservers": ["fd77:1::1"]},
}


def manifest(kind: str, name: str, spec: object) -> str:
    about = {"apiVersion": "tinkerbell.org/v1alpha2", "kind": kind, "metadata": {"name": name, "namespace": "default"}}
    return json.dumps(about | {"spec": spec})


class DualStack(Namespaces):
    """The edge, of so many workers, and a machine that has both its addresses."""

    def __init__(self, directory: Path, workers: int) -> None:
        self.workers = workers
        super().__init__(directory)

    def build(self) -> None:
        self.add(IN_EDGE)
        self.add(ONE)
        edge, machine = self.namespaces[IN_EDGE], self.namespaces[ONE]
        ip("-n", machine, "link", "add", "eth0", "address", MAC, "type", "veth", "peer", "name", "eth1", "netns", edge)
        ends = ((edge, "eth1", ("10.77.1.1/24", "fd77:1::1/64")), (machine, "eth0", ("10.77.1.50/24", "fd77:1::50/64")))
        for namespace, card, addresses in ends:
            ip("-n", namespace, "link", "set", card, "up")
            for address in addresses:
                ip("-n", namespace, "address", "add", address, "dev", card, *(["nodad"] if ":" in address else []))
        boot, objects = self.directory / "ipxe", self.directory / "manifests"
        boot.mkdir()
        objects.mkdir()
        for name in ("undionly.kpxe", "snponly.efi"):
            (boot / name).write_bytes(b"MZ" * 1000)
        hardware = {"networkInterfaces": {MAC: {"dhcp": DHCP}}, "osie": {"name": "stub"}}
        osie = {"kernelUrl": "http://mirror/k", "initrdUrl": "http://mirror/i"}
        (objects / "m1.json").write_text(manifest("Hardware", "m1", hardware))
        (objects / "stub.json").write_text(manifest("OSIE", "stub", osie))
        self.data_dir = self.directory / "data"
        command = ["up", "--ipv6", "--workers", str(self.workers), "--interface", "eth1"]
        command += ["--data-dir", self.data_dir, "--ipxe-dir", boot]
        self.process = self.tinkedge(IN_EDGE, *command, "--manifests", objects)
        wait_until(lambda: re.search("(ready|started): ", self.process.err), lambda: self.process.err)
        self.kubectl = Kubectl(self, self.data_dir / "kubeconfig")

    def get(self, host: str, path: str) -> str:
        return self.run(ONE, "curl", "-sg", "--max-time", "5", f"http://{host}:7080{path}").out


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def site(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[DualStack]:
    with DualStack(tmp_path_factory.mktemp("dual-stack"), request.param) as made:
        yield made


@pytest.mark.parametrize("host", ["10.77.1.1", "[fd77:1::1]"])
def test_script_names_the_edge_as_the_machine_has_reached_it(site: DualStack, host: str) -> None:
    script = site.get(host, f"/ipxe/script/{MAC}/auto.ipxe")
    assert f"grpc_authority={host}:42113 " in script
    assert f"kernel http://{host}:7080/osie/stub/kernel" in script
    other = "[fd77" if host.startswith("10.") else "10.77"
    assert other not in script


def test_metadata_is_told_over_ipv6_to_the_machine_that_has_the_address(site: DualStack) -> None:
    assert site.get("[fd77:1::1]", "/2009-04-04/meta-data/ipv6") == "fd77:1::50"
    assert "dhcp6: true" in site.get("[fd77:1::1]", "/nocloud/m1/network-config")
    ip("-n", site.namespaces[ONE], "address", "add", "fd77:1::66/64", "dev", "eth0", "nodad")
    own = ["curl", "-sg", "--interface", "fd77:1::66", "http://[fd77:1::1]:7080/2009-04-04/meta-data/instance-id"]
    assert site.run(ONE, *own).out == "m1", "at another address the kernel knows its MAC"


def test_every_service_listens_on_both(site: DualStack) -> None:
    lines = site.run(IN_EDGE, "ss", "-Hlntu").out.splitlines()
    listening = Counter(line.split()[4] for line in lines)
    assert {"10.77.1.1:7080", "[fd77:1::1]:7080"} <= listening.keys()
    assert {"[::ffff:10.77.1.1]:42113", "[fd77:1::1]:42113"} <= listening.keys(), "gRPC has IPv6 sockets for both"
    assert {"[::]%eth1:547", "[fd77:1::1]%eth1:69"} <= listening.keys(), listening
    assert [listening[f"{host}:7080"] for host in ("10.77.1.1", "[fd77:1::1]")] == [site.workers] * 2


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("fd77:1:0::50", "IP address fd77:1::50 is that of Hardware default/m1 already"),
        ("fe80::1", "must be an address that routers know"),
        ("FD77::1", "must be an IPv6 address in lower case"),
    ],
)
def test_address_that_can_not_be_is_refused(site: DualStack, address: str, said: str) -> None:
    spec = {"networkInterfaces": {"52:54:00:77:01:02": {"dhcp": {"ipv6": {"address": address}}}}}
    file = site.directory / "refused.json"
    file.write_text(manifest("Hardware", "m2", spec))
    refused = site.kubectl.run("apply", "-f", file)
    assert refused.popen.returncode != 0
    assert said in refused.err


def test_address_that_is_replaced_is_followed(site: DualStack) -> None:
    edge = site.namespaces[IN_EDGE]
    ip("-n", edge, "address", "add", "fd77:1::2/64", "dev", "eth1", "nodad")
    ip("-n", edge, "address", "del", "fd77:1::1/64", "dev", "eth1")
    wait_until(lambda: site.get("[fd77:1::2]", "/healthz"), lambda: site.process.err)
    script = site.get("[fd77:1::2]", f"/ipxe/script/{MAC}/auto.ipxe")
    assert "grpc_authority=[fd77:1::2]:42113 " in script
    said = "eth1 has fd77:1::2 now: machines there are served by it over IPv6"
    wait_until(lambda: said in site.process.err, lambda: site.process.err)
    networks = site.operators(site.data_dir, "/api/v1/networks")
    assert '"ipv6": "fd77:1::2"' in networks or '"ipv6":"fd77:1::2"' in networks, networks

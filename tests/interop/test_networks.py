"""Networks that change while the edge runs: addresses and links come, go and are replaced, and machines do not notice.

edge's namespace: eth1 10.77.1.1/24 --- cable --- eth0 of the machine "one"
                  eth2 10.77.2.1/24 --- cable --- eth0 of the machine "two"
"""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.interop.rack import IN_EDGE, Kubectl, Namespaces, Process, ip, manifest
from tests.waiting import wait_until

MACS = {"one": "52:54:00:77:01:01", "two": "52:54:00:77:02:01"}
CARDS = {"one": "eth1", "two": "eth2"}
ADDRESSES = {"one": "10.77.1.1", "two": "10.77.2.1"}
PROGRAM = bytes(range(256)) * 4000


class Host(Namespaces):
    """The edge with a cable to each of two machines."""

    def build(self) -> None:
        self.add(IN_EDGE)
        for machine in MACS:
            self.add(machine)
            self.cable(machine)
            self.in_edge("address", "add", f"{ADDRESSES[machine]}/24", "dev", CARDS[machine])
        self.data_dir = self.directory / "data"
        boot = self.directory / "ipxe"
        boot.mkdir()
        for name in ("undionly.kpxe", "snponly.efi"):
            (boot / name).write_bytes(PROGRAM)

    def cable(self, machine: str) -> None:
        edge, card = self.namespaces[IN_EDGE], CARDS[machine]
        where = self.namespaces[machine]
        end = ["eth0", "address", MACS[machine], "type", "veth", "peer", "name", card, "netns", edge]
        ip("-n", where, "link", "add", *end)
        ip("-n", where, "link", "set", "eth0", "up")
        self.in_edge("link", "set", card, "up")

    def in_edge(self, *words: str) -> None:
        ip("-n", self.namespaces[IN_EDGE], *words)

    def up(self, *interfaces: str, options: Sequence[str | Path] = ()) -> Process:
        networks = [word for interface in interfaces for word in ("--interface", interface)]
        files = ["--data-dir", self.data_dir, "--ipxe-dir", self.directory / "ipxe"]
        self.process = self.started(self.tinkedge(IN_EDGE, "up", *networks, *files, *options))
        self.kubectl = Kubectl(self, self.data_dir / "kubeconfig")
        return self.process

    def register(self, machine: str, net: str) -> None:
        dhcp = {"ip": f"{net}.50", "netmask": "255.255.255.0", "gateway": f"{net}.1"}
        self.kubectl.apply(manifest("Hardware", machine, {"networkInterfaces": {MACS[machine]: {"dhcp": dhcp}}}))
        wait_until(lambda: dhcp["ip"] in self.operators(self.data_dir, "/api/v1/machines"))

    def readiness(self) -> tuple[int, str]:
        url = "http://127.0.0.1:7081/readyz"
        answer = self.run(IN_EDGE, "curl", "-s", "-w", " %{http_code}", url).out.rpartition(" ")
        return int(answer[2]), answer[0].strip()

    def http(self, machine: str, address: str, seconds: int = 15) -> str:
        return self.run(machine, "curl", "-s", "--max-time", str(seconds), f"http://{address}:7080/healthz").out.strip()

    def tftp(self, machine: str, address: str) -> bytes:
        got = self.directory / secrets.token_hex(4)
        command = ["timeout", "30", "busybox", "tftp", "-g", "-b", "1468", "-r", "snponly.efi", "-l", got, address]
        self.run(machine, *command)
        return got.read_bytes() if got.exists() else b""

    def metric(self, name: str, interface: str) -> str:
        metrics = self.run(IN_EDGE, "curl", "-sf", "http://127.0.0.1:7081/metrics").out
        found = re.search(rf'^{name}{{interface="{interface}"}} (\S+)$', metrics, re.MULTILINE)
        assert found, metrics
        return found[1]

    def watch(self, *options: str) -> Process:
        return self.tinkedge(IN_EDGE, "watch", "--events", "--data-dir", self.data_dir, *options)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A running edge that follows both interfaces; each test leaves them as it has found them."""
    with Host(tmp_path_factory.mktemp("networks")) as host:
        host.up("eth1", "eth2")
        host.register("one", "10.77.1")
        host.register("two", "10.77.2")
        yield host


def served(host: Host, machine: str, address: str) -> None:
    """Wait until the machine gets all files from `address`."""
    wait_until(lambda: host.udhcpc(machine, tries=1).get("serverid") == address)
    wait_until(lambda: host.http(machine, address) == "ok")
    wait_until(lambda: host.tftp(machine, address) == PROGRAM)


def test_machine_is_served_with_the_new_address(host: Host) -> None:
    other = host.udhcpc("two", tries=10)
    watch = host.watch()
    wait_until(lambda: watch.out, "the journey of the other machine is there")
    host.in_edge("address", "del", "10.77.1.1/24", "dev", "eth1")
    host.in_edge("address", "add", "10.77.1.9/24", "dev", "eth1")
    served(host, "one", "10.77.1.9")
    wait_until(lambda: "eth1 has 10.77.1.9 now, and no longer 10.77.1.1" in watch.out, lambda: watch.out)
    watch.end()
    assert host.http("one", "10.77.1.1", 2) == ""
    wait_until(lambda: host.readiness() == (200, "ok"), host.readiness)
    wait_until(lambda: "gRPC server: listening on 10.77.1.9:42113" in host.process.err, lambda: host.process.err)
    assert host.udhcpc("two", tries=10) == other
    assert host.process.err.count("DHCP on eth2 as") == 1, "the other network was not touched"
    host.in_edge("address", "del", "10.77.1.9/24", "dev", "eth1")
    host.in_edge("address", "add", "10.77.1.1/24", "dev", "eth1")
    served(host, "one", "10.77.1.1")
    listening = host.run(IN_EDGE, "ss", "-Hlnt").out
    assert "10.77.1.9" not in listening, "nobody listens where there is no address any more"
    assert "10.77.1.1]:42113" in listening or "10.77.1.1:42113" in listening


def test_network_without_address_is_reported_everywhere_and_gets_no_answer(host: Host) -> None:
    message = "eth1 has no IPv4 address"
    before = host.process.err.count(message)
    host.in_edge("address", "del", "10.77.1.1/24", "dev", "eth1")
    wait_until(lambda: host.readiness() == (503, f"not ready: {message}"), host.readiness)
    assert host.udhcpc("one", tries=1) == {}, "an address that is not there is offered to nobody"
    host.address("two", "10.77.2.50/24")
    assert host.http("two", "10.77.2.1") == "ok", "this process lives"
    assert host.udhcpc("two", tries=10)["serverid"] == "10.77.2.1"
    assert (host.metric("tinkedge_network_ready", "eth1"), host.metric("tinkedge_network_ready", "eth2")) == (
        "0.0",
        "1.0",
    )
    shown = {one["interface"]: one for one in json.loads(host.operators(host.data_dir, "/api/v1/networks"))}
    assert (shown["eth1"]["ready"], shown["eth1"]["problem"]) == (False, message)
    assert (shown["eth2"]["ready"], shown["eth2"]["address"]) == (True, "10.77.2.1")
    watch = host.watch("--output", "json")  # started after the change
    wait_until(lambda: message in watch.out, lambda: watch.out + watch.err)
    host.in_edge("address", "add", "10.77.1.1/24", "dev", "eth1")
    served(host, "one", "10.77.1.1")
    wait_until(lambda: host.readiness() == (200, "ok"), host.readiness)
    wait_until(lambda: "eth1 has 10.77.1.1: machines there are served again" in watch.out, lambda: watch.out)
    watch.end()
    assert host.process.err.count(message) == before + 1, "once when it begins"
    assert host.metric("tinkedge_network_ready", "eth1") == "1.0"


def test_link_that_is_made_again_or_has_its_name_again_is_served_again(host: Host) -> None:
    host.in_edge("link", "del", "eth1")
    wait_until(lambda: "there is no interface eth1 (there are: eth2, lo)" in host.readiness()[1], host.readiness)
    host.cable("one")
    wait_until(lambda: "eth1 has no IPv4 address" in host.readiness()[1], host.readiness)
    host.in_edge("address", "add", "10.77.1.1/24", "dev", "eth1")
    served(host, "one", "10.77.1.1")
    host.in_edge("link", "set", "eth1", "down")
    wait_until(lambda: host.readiness() == (503, "not ready: eth1 is down ('ip link set eth1 up')"), host.readiness)
    host.in_edge("link", "set", "eth1", "name", "old1")
    host.in_edge("link", "set", "old1", "up")
    wait_until(lambda: "there is no interface eth1" in host.readiness()[1], host.readiness)
    assert host.udhcpc("one", tries=1) == {}
    host.in_edge("link", "set", "old1", "down")
    host.in_edge("link", "set", "old1", "name", "eth1")
    host.in_edge("link", "set", "eth1", "up")
    served(host, "one", "10.77.1.1")


def test_edge_stays_ready_when_a_cable_is_pulled(host: Host) -> None:
    where = host.namespaces["one"]
    ip("-n", where, "link", "set", "eth0", "down")
    wait_until(lambda: host.metric("tinkedge_network_carrier", "eth1") == "0.0")
    assert host.readiness() == (200, "ok"), "a bridge without machines has no carrier"
    ip("-n", where, "link", "set", "eth0", "up")
    wait_until(lambda: host.metric("tinkedge_network_carrier", "eth1") == "1.0")
    served(host, "one", "10.77.1.1")


def test_transfer_goes_on_when_the_address_comes_back(host: Host) -> None:
    """The address is absent for a moment, as at a restart of the host's DHCP client."""
    host.address("one", "10.77.1.50/24")
    slow = ["tc", "qdisc", "add", "dev", "eth1", "root", "tbf", "rate", "4mbit", "burst", "16k", "latency", "400ms"]
    assert host.run(IN_EDGE, *slow).popen.returncode == 0
    try:
        got = {"tftp": host.directory / "got-tftp", "http": host.directory / "got-http"}
        tftp = ["busybox", "tftp", "-g", "-b", "1468", "-r", "snponly.efi", "-l", got["tftp"], "10.77.1.1"]
        url = "http://10.77.1.1:7080/ipxe/binary/snponly.efi"
        clients = [
            host.start("one", *tftp),
            host.start("one", "curl", "-sf", "--max-time", "30", "-o", got["http"], url),
        ]
        wait_until(lambda: all(file.exists() and file.stat().st_size for file in got.values()))
        host.in_edge("address", "del", "10.77.1.1/24", "dev", "eth1")
        wait_until(lambda: host.readiness()[0] == 503, host.readiness)
        assert all(client.popen.poll() is None for client in clients), "it was over before the address went"
        host.in_edge("address", "add", "10.77.1.1/24", "dev", "eth1")
        assert [client.status() for client in clients] == [0, 0]
        assert [file.read_bytes() for file in got.values()] == [PROGRAM] * 2
    finally:
        host.run(IN_EDGE, "tc", "qdisc", "del", "dev", "eth1", "root")


def test_interface_and_fixed_address_may_come_after_the_start(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.in_edge("link", "del", "eth2")
        process = host.up("eth1=10.77.1.9", "eth2")
        assert (
            "10.77.1.9 is no address of this host (eth1 has 10.77.1.1): machines on eth1 are not served" in process.err
        )
        assert "there is no interface eth2 (there are: eth1, lo): machines on eth2 are not served" in process.err
        assert "not ready: 10.77.1.9 is no address of this host" in host.readiness()[1]
        host.register("one", "10.77.1")
        host.register("two", "10.77.2")
        assert host.udhcpc("one", tries=1) == {}
        host.in_edge("address", "add", "10.77.1.9/24", "dev", "eth1")
        served(host, "one", "10.77.1.9")
        host.cable("two")
        host.in_edge("address", "add", "10.77.2.1/24", "dev", "eth2")
        served(host, "two", "10.77.2.1")
        wait_until(lambda: host.readiness() == (200, "ok"), host.readiness)
        # The edge keeps the operator's fixed address although the interface has another one.
        host.in_edge("address", "del", "10.77.1.9/24", "dev", "eth1")
        wait_until(lambda: host.readiness()[0] == 503, host.readiness)
        assert host.udhcpc("one", tries=1) == {}
        assert process.terminate() == 0, process.err


def test_valid_objects_with_mistakes_are_reported_by_kubectl_the_journey_and_the_hardware(host: Host) -> None:
    def condition(name: str) -> str:
        path = "jsonpath={.status.conditions[?(@.type=='Misconfigured')]['status','reason']}"
        return host.kubectl("get", "hardware", name, "-o", path)

    def apply(name: str, mac: str, ip: str) -> str:
        dhcp = {"ip": ip, "netmask": "255.255.255.0"}
        spec = {"networkInterfaces": {mac: {"dhcp": dhcp}}, "osie": {"name": "none"}}
        file = host.directory / f"{name}.json"
        file.write_text(manifest("Hardware", name, spec))
        applied = host.kubectl.run("apply", "-f", file)
        assert applied.popen.returncode == 0, applied.err
        return applied.err

    mac, far = "52:54:00:77:09:01", "52:54:00:77:09:02"
    warned = apply("itself", mac, "10.77.1.1")
    assert f"Warning: spec.networkInterfaces[{mac}].dhcp.ip: 10.77.1.1 is the address of the edge " in warned
    assert "Warning: spec.osie.name: there is no OSIE default/none yet" in warned
    wait_until(lambda: condition("itself") == "True ServerAddress", lambda: condition("itself"))
    warned = apply("far", far, "10.77.9.50")
    assert "10.77.9.50 is in 10.77.9.0/24, and the edge " in warned
    wait_until(lambda: condition("far") == "True OSIENotFound", lambda: condition("far"))

    def messages() -> str:
        return host.operators(host.data_dir, f"/api/v1/machines/{far}/events")

    ip("-n", host.namespaces["one"], "link", "set", "eth0", "address", far)
    try:
        assert host.udhcpc("one")["ip"] == "10.77.9.50", "a relay may need it"
        assert (
            "sent a request on a link of this edge (10.77.1.0/24), "
            "but its address 10.77.9.50 belongs to another network" in messages()
        )
    finally:
        ip("-n", host.namespaces["one"], "link", "set", "eth0", "address", MACS["one"])


# --- IPv4 and IPv6 ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """An edge on a network with both, and a machine that has both its addresses."""
    with Host(tmp_path_factory.mktemp("dual-stack")) as host:
        host.in_edge("address", "add", "fd77:1::1/64", "dev", "eth1", "nodad")
        host.address("one", "10.77.1.50/24")
        ip("-n", host.namespaces["one"], "address", "add", "fd77:1::50/64", "dev", "eth0", "nodad")
        objects = host.directory / "manifests"
        objects.mkdir()
        dhcp = {"ip": "10.77.1.50", "netmask": "255.255.255.0", "gateway": "10.77.1.1"}
        dhcp |= {"ipv6": {"address": "fd77:1::50", "nameservers": ["fd77:1::1"]}}
        hardware = {"networkInterfaces": {MACS["one"]: {"dhcp": dhcp}}, "osie": {"name": "stub"}}
        (objects / "m1.json").write_text(manifest("Hardware", "m1", hardware))
        urls = {"kernelUrl": "http://mirror/k", "initrdUrl": "http://mirror/i"}
        (objects / "stub.json").write_text(manifest("OSIE", "stub", urls))
        host.up("eth1", options=("--ipv6", "--manifests", objects))
        yield host


def test_machine_of_two_networks_is_served_on_the_one_that_it_uses(dual: Host) -> None:
    def get(address: str, path: str, *options: str) -> str:
        return dual.curl("one", f"http://{address}:7080{path}", *options)

    for address, other in (("10.77.1.1", "[fd77"), ("[fd77:1::1]", "10.77")):
        script = get(address, f"/ipxe/script/{MACS['one']}/auto.ipxe")
        assert f"grpc_authority={address}:42113 " in script
        assert f"kernel http://{address}:7080/osie/stub/kernel" in script
        assert other not in script
    assert get("[fd77:1::1]", "/2009-04-04/meta-data/ipv6") == "fd77:1::50"
    assert "dhcp6: true" in get("[fd77:1::1]", "/nocloud/m1/network-config")
    ip("-n", dual.namespaces["one"], "address", "add", "fd77:1::66/64", "dev", "eth0", "nodad")
    own = get("[fd77:1::1]", "/2009-04-04/meta-data/instance-id", "--interface", "fd77:1::66")
    assert own == "m1", "at another address the kernel knows its MAC"
    listening = Counter(line.split()[4] for line in dual.run(IN_EDGE, "ss", "-Hlntu").out.splitlines())
    assert [listening[f"{host}:7080"] for host in ("10.77.1.1", "[fd77:1::1]")] == [1, 1]
    assert {"[::ffff:10.77.1.1]:42113", "[fd77:1::1]:42113"} <= listening.keys(), "gRPC has IPv6 sockets for both"
    assert {"[::]%eth1:547", "[fd77:1::1]%eth1:69"} <= listening.keys(), listening


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("fd77:1:0::50", "IP address fd77:1::50 is that of Hardware default/m1 already"),
        ("fe80::1", "must be an address that routers know"),
        ("FD77::1", "must be an IPv6 address in lower case"),
    ],
)
def test_impossible_ipv6_address_is_rejected(dual: Host, address: str, message: str) -> None:
    file = dual.directory / "refused.json"
    interfaces = {"52:54:00:77:01:02": {"dhcp": {"ipv6": {"address": address}}}}
    file.write_text(manifest("Hardware", "m2", {"networkInterfaces": interfaces}))
    refused = dual.kubectl.run("apply", "-f", file)
    assert refused.popen.returncode != 0
    assert message in refused.err


def test_ipv6_address_that_is_replaced_is_followed(dual: Host) -> None:
    dual.in_edge("address", "add", "fd77:1::2/64", "dev", "eth1", "nodad")
    dual.in_edge("address", "del", "fd77:1::1/64", "dev", "eth1")
    wait_until(lambda: dual.curl("one", "http://[fd77:1::2]:7080/healthz"), lambda: dual.process.err)
    script = dual.curl("one", f"http://[fd77:1::2]:7080/ipxe/script/{MACS['one']}/auto.ipxe")
    assert "grpc_authority=[fd77:1::2]:42113 " in script
    message = "eth1 has fd77:1::2 now: machines there are served by it over IPv6"
    wait_until(lambda: message in dual.process.err, lambda: dual.process.err)
    assert '"ipv6":"fd77:1::2"' in dual.operators(dual.data_dir, "/api/v1/networks").replace(" ", "")

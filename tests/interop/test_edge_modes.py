"""The edge in each of its modes, as operators run it: `tinkedge up` with their options, and the machines' boots.

    edge's namespace: rack0 172.31.77.1 --- bridge --- eth0 of each machine, every machine in a namespace of its own
                      rack1 172.31.78.1 --- bridge --- eth0 of the machine "far"

The API, kubectl, dnsmasq and the clients (udhcpc, curl, tftp-hpa, busybox) are real. udhcpc plays firmware by options
for what it sends; only where two servers answer one packet, the test makes the packet.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.dhcp import BOOTP, DHCP

from tests.interop.conftest import in_namespace
from tests.interop.rack import ADDRESS, IN_EDGE, Kubectl, Namespaces, Process, manifest
from tests.waiting import wait_until

FAR_ADDRESS = "172.31.78.1"
OTHER_SERVER = "172.31.77.2"
IPXE = Path("/usr/lib/ipxe")

MACS = {"near": "52:54:00:00:01:01", "far": "52:54:00:00:01:02", "stranger": "52:54:00:00:01:03"}
ADDRESSES = {"near": "172.31.77.50", "far": "172.31.78.50", "stranger": "172.31.77.90"}

BIOS = ("PXEClient:Arch:00000:UNDI:002001", "0000")
UEFI = ("PXEClient:Arch:00007:UNDI:003016", "0007")
"""DHCP options 60 and 93 of x86 ROMs (RFC 4578)."""
PXE = [("vendor_class_id", BIOS[0].encode()), ("pxe_client_architecture", bytes.fromhex(BIOS[1]))]

UDHCPC = ["busybox", "udhcpc", "-i", "eth0", "-f", "-n", "-q", "-t", "3", "-T", "1"]
CLIENTS = ("tftp-hpa", "busybox")
CACHE_SIZE = 400_000
WEB_SERVER = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "8080"]


class Edge(Namespaces):
    """A running `tinkedge up` and its machines."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.data_dir = directory / "data"
        self.kubectl = Kubectl(self, self.data_dir / "kubeconfig")

    def up(self, *options: str | Path, far: bool = False) -> None:
        """Start `tinkedge up`, with the OSIE "lab" among its manifests."""
        self.add(IN_EDGE)
        self.bridge("rack0", f"{ADDRESS}/24")
        if far:
            self.bridge("rack1", f"{FAR_ADDRESS}/24")
        osie = self.data_dir / "osie"
        osie.mkdir(parents=True)
        for name in ("kernel", "initrd"):
            (osie / name).write_bytes(content(name))
        manifests = self.directory / "manifests"
        manifests.mkdir()
        urls = {f"{part}Url": f"file://{osie}/{part}" for part in ("kernel", "initrd")}
        (manifests / "osie.yaml").write_text(manifest("OSIE", "lab", urls))
        networks = ["--interface", "rack0", *(["--interface", "rack1"] if far else [])]
        files: list[str | Path] = ["--data-dir", self.data_dir, "--manifests", manifests]
        self.process = self.tinkedge(IN_EDGE, "up", *networks, *files, *options)
        self.ready(self.process)

    def machine(self, name: str, mac: str = "", network: str = "rack0", address: str = "") -> str:
        """Connect a machine to a network, unless it is connected already; return its MAC."""
        mac = mac or MACS[name]
        if name not in self.namespaces:
            self.add(name)
            self.card(name, "eth0", mac, network)
        if address:
            self.address(name, f"{address}/24")
        return mac

    # --- the operator's side ---

    def register(self, name: str, address: str, *, mac: str = "") -> None:
        """Create a Hardware for a machine and wait until the edge has received it."""
        mac, gateway = mac or MACS[name], address.rpartition(".")[0] + ".1"
        dhcp = {"ip": address, "netmask": "255.255.255.0", "gateway": gateway, "hostname": name}
        instance = {"userdata": f"I am {name}"}
        spec = {"networkInterfaces": {mac: {"dhcp": dhcp}}, "osie": {"name": "lab"}, "instance": instance}
        self.kubectl.apply(manifest("Hardware", name, spec))

        def is_known() -> bool:
            machines = json.loads(self.operators(self.data_dir, "/api/v1/machines"))
            return mac in {machine["mac"] for machine in machines if machine["registered"]}

        wait_until(is_known)

    def journey(self, mac: str, outcome: str) -> list[str]:
        """Return the messages of a machine's journey with this outcome."""
        events = json.loads(self.operators(self.data_dir, f"/api/v1/machines/{mac}/events"))
        return [event["message"] for event in events if event["outcome"] == outcome]

    def metric(self, name: str) -> float:
        metrics = self.run(IN_EDGE, "curl", "-sf", "http://127.0.0.1:7081/metrics").out
        match = re.search(rf"^tinkedge_artifact_{re.escape(name)} (\S+)$", metrics, re.MULTILINE)
        assert match, metrics
        return float(match[1])

    # --- the machine's side ---

    def rom(self, where: str, firmware: tuple[str, str] = BIOS) -> dict[str, str]:
        """Request a lease as a PXE ROM on the machine; return it as the variables of udhcpc."""
        vendor, architecture = firmware
        return self.udhcpc(where, "-V", vendor, "-x", f"0x5d:{architecture}", "-O", "43", "-O", "66", "-O", "67")

    def discover(self, where: str, mac: str, *options: Any, servers: set[str]) -> dict[str, Any]:
        """Return the offers to a DISCOVER with these options, by server.

        The DISCOVER is repeated until all of `servers` have answered; then the test waits for answers of others.
        """
        xid = random.getrandbits(32)
        message = BOOTP(op=1, xid=xid, flags=0x8000, chaddr=bytes.fromhex(mac.replace(":", "")))
        packet = bytes(message / DHCP(options=[("message-type", "discover"), *options, "end"]))
        offers: dict[str, Any] = {}
        with contextlib.closing(in_namespace(self.namespaces[where], _dhcp_socket)) as client:
            for _ in range(10):
                client.sendto(packet, ("255.255.255.255", 67))
                give_up = time.monotonic() + 0.5
                while (left := give_up - time.monotonic()) > 0:
                    client.settimeout(left)
                    with contextlib.suppress(TimeoutError):
                        offer = BOOTP(client.recv(4096))
                        if offer.xid == xid:
                            offers[options_of(offer)["server_id"]] = offer
                if servers <= set(offers):
                    break
        return offers

    def get(self, where: str, path: str, address: str = ADDRESS) -> tuple[int, bytes]:
        """Fetch a path from the edge; return status and body. The status is 0 if the body is incomplete."""
        body = self.directory / secrets.token_hex(4)
        url = f"http://{address}:7080{path}"
        curl = self.run(where, "curl", "-s", "--max-time", "10", "-o", body, "-w", "%{http_code}", url)
        status = int(curl.out) if curl.popen.returncode == 0 else 0
        return status, body.read_bytes() if body.exists() else b""

    def script(self, where: str, address: str = ADDRESS, mac: str = "") -> str:
        """Return the script that the edge sends to iPXE on the machine."""
        status, body = self.get(where, f"/ipxe/script/{mac or MACS[where]}/auto.ipxe", address)
        assert status == 200, body
        return body.decode()

    def tftp(self, where: str, name: str, client: str = "tftp-hpa", address: str = ADDRESS) -> tuple[bytes, str]:
        """Fetch a file; return it and the client's output. Write a MAC with dashes: tftp-hpa reads HOST:FILE."""
        assert ":" not in name
        target = self.directory / secrets.token_hex(4)
        commands: dict[str, list[str | Path]] = {
            "tftp-hpa": ["timeout", "5", "tftp", "-m", "binary", address, "-c", "get", name, target],
            "busybox": ["timeout", "5", "busybox", "tftp", "-g", "-b", "1468", "-r", name, "-l", target, address],
        }
        process = self.run(where, *commands[client])
        return target.read_bytes() if target.exists() else b"", process.out + process.err


def _dhcp_socket() -> socket.socket:
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
    client.bind(("", 68))
    return client


def dashed(mac: str) -> str:
    return mac.replace(":", "-")


def options_of(offer: Any) -> dict[str, Any]:
    """Return the options of a DHCP message by name."""
    return {option[0]: option[1] for option in offer[DHCP].options if isinstance(option, tuple)}


def content(name: str, size: int = 70_001) -> bytes:
    """Return random bytes, the same for each name."""
    return random.Random(name).randbytes(size)


@contextlib.contextmanager
def running(directory: Path, *options: str | Path, far: bool = False) -> Iterator[Edge]:
    with Edge(directory) as edge:
        edge.up(*options, far=far)
        yield edge


def boots_lab(script: str, address: str = ADDRESS) -> bool:
    """Return True if a script boots the OSIE "lab" with all URLs at this address of the edge."""
    kernel, initrd = (f"http://{address}:7080/osie/lab/{part}" for part in ("kernel", "initrd"))
    return kernel in script and initrd in script and f" grpc_authority={address}:42113 " in script


# --- reservations -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reservation_edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """Two networks, and everything that goes with reservations."""
    directory = tmp_path_factory.mktemp("reservation_edge")
    extra = directory / "tftp"
    (extra / "overlays").mkdir(parents=True)
    (extra / "start4.elf").write_bytes(content("start4.elf"))
    (extra / "overlays" / "vc4.dtbo").write_bytes(content("vc4.dtbo", 512))
    sizes = ["--decline-quarantine", "10", "--cache-size", str(CACHE_SIZE), "--allow-upstream", "127.0.0.1"]
    with running(directory, *sizes, "--tftp-single-port", "--tftp-dir", extra, far=True) as edge:
        edge.register("near", ADDRESSES["near"])
        edge.register("far", ADDRESSES["far"])
        edge.machine("near")
        edge.machine("far", network="rack1")
        yield edge


def test_machines_of_two_networks_get_lease_boot_program_and_script_from_our_address_there(
    reservation_edge: Edge,
) -> None:
    for name, address, other in (("near", ADDRESS, FAR_ADDRESS), ("far", FAR_ADDRESS, ADDRESS)):
        lease = reservation_edge.rom(name, UEFI)
        assert (lease["ip"], lease["serverid"], lease["siaddr"]) == (ADDRESSES[name], address, address)
        assert lease["boot_file"] == "snponly.efi"
        # The boot program is iPXE, which the server recognises by its user class.
        lease = reservation_edge.udhcpc(name, "-x", f"0x4d:{b'iPXE'.hex()}")
        assert lease["boot_file"] == f"http://{address}:7080/ipxe/script/{MACS[name]}/auto.ipxe"
        script = reservation_edge.script(name, address)
        assert boots_lab(script, address), script
        assert other not in script
        assert reservation_edge.get(name, "/osie/lab/initrd", address) == (200, content("initrd"))
        assert reservation_edge.tftp(name, "snponly.efi", address=address)[0] == (IPXE / "snponly.efi").read_bytes()
        script = reservation_edge.tftp(name, f"{dashed(MACS[name])}/auto.ipxe", address=address)[0].decode()
        assert f"tftp://{address}/{MACS[name]}/osie/lab/kernel" in script
        assert other not in script
        # The workflow server must answer at the address in the script.
        in_namespace(reservation_edge.namespaces[name], partial(socket.create_connection, (address, 42113), 5)).close()


def test_declined_address_shows_on_the_hardware_and_is_offered_again_after_the_quarantine(
    reservation_edge: Edge,
) -> None:
    def conflict() -> str:
        condition = '{.status.conditions[?(@.type=="AddressConflict")]'
        shown = f"{condition}.status}} {condition}.reason}} {condition}.message}}"
        return reservation_edge.kubectl("get", "hardware", "declining", "-o", f"jsonpath={shown}").strip()

    address, mac = "172.31.77.60", "52:54:00:00:01:06"
    reservation_edge.register("declining", address, mac=mac)
    reservation_edge.machine("declining", mac)
    # Another host uses the machine's address.
    reservation_edge.machine("squatter", "52:54:00:00:01:07", address=address)
    assert set(reservation_edge.discover("declining", mac, servers={ADDRESS})) == {ADDRESS}
    client = reservation_edge.start("declining", *UDHCPC, "-s", "/bin/true", "-a", "-A", "5")
    wait_until(lambda: conflict().startswith("True "), lambda: client.err)
    client.end()
    assert conflict().startswith(f"True DeclinedByClient {address} is used by another host: {mac} declined it; ")
    reservation_edge.address("squatter", "172.31.77.61/24")
    assert reservation_edge.discover("declining", mac, servers=set()) == {}
    assert any("is in quarantine" in message for message in reservation_edge.journey(mac, "refused"))
    # No request arrives meanwhile; the condition changes nevertheless.
    wait_until(lambda: conflict().startswith("False QuarantineEnded"), conflict, every=0.2)
    assert reservation_edge.udhcpc("declining", "-a")["ip"] == address


@pytest.fixture(scope="module")
def upstream(reservation_edge: Edge) -> Iterator[Path]:
    """The directory of a web server, which the edge reaches as 127.0.0.1:8080."""
    root = reservation_edge.directory / "www"
    root.mkdir()
    server = reservation_edge.start(IN_EDGE, *WEB_SERVER, "--directory", root)
    wait_until(lambda: "tcp:8080" in reservation_edge.listening(), lambda: server.err)
    yield root
    server.end()


def publish(edge: Edge, root: Path, name: str, size: int, sha256: str = "") -> None:
    """Create an OSIE with an initrd of this size, and wait until the machine "near" can boot it."""
    (root / f"{name}-kernel").write_bytes(content(f"{name}-kernel", 1000))
    (root / f"{name}-initrd").write_bytes(content(name, size))
    urls = {f"{part}Url": f"http://127.0.0.1:8080/{name}-{part}" for part in ("kernel", "initrd")}
    edge.kubectl.apply(manifest("OSIE", name, urls, **({"initrd-sha256": sha256} if sha256 else {})))
    edge.machine("near", address=ADDRESSES["near"])
    wait_until(lambda: edge.get("near", f"/osie/{name}/kernel")[0] == 200)


def test_initrd_larger_than_the_cache_is_refused_with_the_option_to_change(
    reservation_edge: Edge, upstream: Path
) -> None:
    publish(reservation_edge, upstream, "large", CACHE_SIZE + 1)
    status, body = reservation_edge.get("near", "/osie/large/initrd")
    line = body.decode()
    assert (status, len(line.splitlines())) == (500, 1)
    assert "OSIE default/large: initrdUrl http://127.0.0.1:8080/large-initrd: " in line
    assert f"{CACHE_SIZE + 1} bytes are more than the whole cache may hold, {CACHE_SIZE} (see --cache-size)" in line
    # The machine's screen shows the reason, too: its script fetches it.
    screen = reservation_edge.get("near", f"/ipxe/script/{MACS['near']}/auto.ipxe?failed")[1].decode()
    assert f"echo {line.partition(' (see')[0]}" in screen
    assert "--cache-size" in screen
    assert line.strip() in reservation_edge.journey(MACS["near"], "failed")[-1]
    assert "--cache-size" in reservation_edge.process.err
    assert reservation_edge.metric('failures_total{kind="no_room"}') == 1


def test_machine_never_receives_a_whole_file_with_a_wrong_checksum(reservation_edge: Edge, upstream: Path) -> None:
    size = 200_000
    publish(reservation_edge, upstream, "wrong", size, hashlib.sha256(b"another file").hexdigest())
    for _ in range(2):
        status, body = reservation_edge.get("near", "/osie/wrong/initrd")
        assert status != 200
        assert len(body) < size
    said_of = reservation_edge.journey(MACS["near"], "failed")[-1]
    assert "OSIE default/wrong: initrdUrl http://127.0.0.1:8080/wrong-initrd: wrong SHA-256: the OSIE says " in said_of
    assert reservation_edge.metric('failures_total{kind="checksum"}') > 0
    right = content("right", size)
    fetched = reservation_edge.metric("fetched_bytes_total")
    publish(reservation_edge, upstream, "right", size, hashlib.sha256(right).hexdigest())
    for _ in range(2):
        assert reservation_edge.get("near", "/osie/right/initrd") == (200, right)
    # One download for both, and the kernel's.
    assert reservation_edge.metric("fetched_bytes_total") == fetched + size + 1000
    assert reservation_edge.metric("stored_bytes") <= CACHE_SIZE


def test_machine_behind_a_firewall_gets_boot_program_and_extra_files_from_port_69_and_an_unregistered_one_none(
    reservation_edge: Edge,
) -> None:
    where, mac, address = "walled", "52:54:00:00:01:08", "172.31.77.70"
    reservation_edge.register(where, address, mac=mac)
    reservation_edge.machine(where, mac, address=address)
    rule = ["INPUT", "-p", "udp", "!", "--sport", "69", "-j", "DROP"]
    assert reservation_edge.run(where, "iptables", "-A", *rule).popen.returncode == 0
    for client in CLIENTS:
        got, _ = reservation_edge.tftp(where, "snponly.efi", client)
        assert got == (IPXE / "snponly.efi").read_bytes()
        # A Raspberry Pi requests files below its serial number first; there is no such directory.
        assert reservation_edge.tftp(where, "1a2b3c4d/start4.elf", client)[0] == content("start4.elf")
        assert reservation_edge.tftp(where, "overlays/vc4.dtbo", client)[0] == content("vc4.dtbo", 512)
        for name in ("overlays/none.dtbo", "../data/kubeconfig", "overlays/../../data/kubeconfig"):
            assert reservation_edge.tftp(where, name, client)[0] == b""
    reservation_edge.machine("stranger", address=ADDRESSES["stranger"])
    got, said_of = reservation_edge.tftp("stranger", "start4.elf")
    assert got == b""
    assert "no such file" in said_of


# --- only while there is work -----------------------------------------------------------------------------------------


def test_machine_netboots_only_while_it_has_a_workflow_that_has_not_ended(tmp_path: Path) -> None:
    with running(tmp_path, "--netboot-when", "workflow") as working:
        working.register("near", ADDRESSES["near"])
        working.machine("near")
        assert_netboots_only_with_a_workflow(working)


def assert_netboots_only_with_a_workflow(working: Edge) -> None:
    def refused(why: str) -> None:
        wait_until(lambda: why in working.script("near"), lambda: working.script("near"))
        script = working.script("near")
        assert "/osie/" not in script
        assert working.get("near", "/osie/lab/kernel")[0] == 403
        lease = working.rom("near")
        assert lease["ip"] == ADDRESSES["near"]
        assert not lease.get("boot_file")
        # A PXE menu with one item, the next boot device; its prompt is the reason, truncated to fit.
        menu = bytes.fromhex(lease["opt43"])
        assert b"Local boot" in menu
        assert f"No netboot: {why[:15]}".encode() in menu
        assert menu.rstrip(b"\xff").endswith(why[-15:].encode())

    assert working.rom("near")["ip"] == ADDRESSES["near"]
    refused("no Workflow for default/near: create one")
    assert working.tftp("near", "undionly.kpxe")[0] == b""
    working.kubectl.apply(manifest("Template", "idle", {"actions": [{"name": "idle", "image": "none"}]}))
    workflow = {"hardwareRef": {"name": "near"}, "templateRef": {"name": "idle"}}
    working.kubectl.apply(manifest("Workflow", "first", workflow))
    wait_until(lambda: boots_lab(working.script("near")), lambda: working.script("near"))
    lease = working.rom("near")
    assert (lease["boot_file"], lease["siaddr"]) == ("undionly.kpxe", ADDRESS)
    assert working.tftp("near", "undionly.kpxe")[0] == (IPXE / "undionly.kpxe").read_bytes()
    assert working.get("near", "/osie/lab/kernel") == (200, content("kernel"))
    end = json.dumps({"status": {"state": "Failed"}})
    working.kubectl("patch", "workflow", "first", "--subresource=status", "--type=merge", "-p", end)
    refused("Workflow default/first has Failed: create another")


# --- beside another DHCP server ---------------------------------------------------------------------------------------


def dnsmasq(edge: Edge) -> Process:
    """Start another DHCP server on rack0, with a pool from .100 on."""
    edge.machine("other-server", "52:54:00:00:01:99", address=OTHER_SERVER)
    options = ["--keep-in-foreground", "--port=0", "--user=root", "--interface=eth0", "--leasefile-ro", "--no-ping"]
    files = ["--conf-file=/dev/null", f"--pid-file={edge.directory}/dnsmasq.pid"]
    lease = ["--dhcp-range=172.31.77.100,172.31.77.200,255.255.255.0,1h", "--dhcp-authoritative", "--log-facility=-"]
    server = edge.start("other-server", "dnsmasq", *options, *files, *lease)
    wait_until(lambda: "DHCP, IP range" in server.err, lambda: server.err)
    return server


@pytest.fixture(scope="module")
def proxy_edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with running(tmp_path_factory.mktemp("proxy_edge"), "--dhcp-mode", "proxy") as edge:
        dnsmasq(edge)
        edge.register("near", ADDRESSES["near"])
        edge.machine("near")
        yield edge


def test_machine_gets_its_address_from_the_other_server_and_its_boot_file_from_the_edge(proxy_edge: Edge) -> None:
    mac = MACS["near"]
    both = {OTHER_SERVER, ADDRESS}
    assert set(proxy_edge.discover("near", mac, servers={OTHER_SERVER})) == {OTHER_SERVER}
    offers = proxy_edge.discover("near", mac, *PXE, servers=both)
    assert set(offers) == both
    assert offers[OTHER_SERVER].yiaddr.startswith("172.31.77.1")
    ours = offers[ADDRESS]
    assert (ours.yiaddr, ours.siaddr, ours.file.rstrip(b"\0")) == ("0.0.0.0", ADDRESS, b"undionly.kpxe")
    assert options_of(ours)["vendor_class_id"] == b"PXEClient"
    assert "lease_time" not in options_of(ours)
    lease = proxy_edge.udhcpc("near")
    assert lease["serverid"] == OTHER_SERVER
    assert 100 <= int(lease["ip"].rpartition(".")[2]) <= 200
    # No Hardware has that address; the edge identifies the machine by it nevertheless.
    assert boots_lab(proxy_edge.script("near"))
    assert proxy_edge.get("near", "/osie/lab/kernel") == (200, content("kernel"))
    assert proxy_edge.get("near", "/2009-04-04/user-data") == (200, b"I am near")


def test_machine_is_identified_by_its_mac_and_another_at_its_address_gets_nothing(
    proxy_edge: Edge,
) -> None:
    mac = "52:54:00:00:01:04"
    proxy_edge.register("silent", "172.31.77.51", mac=mac)
    proxy_edge.machine("silent", mac, address="172.31.77.180")  # without any DHCP
    assert proxy_edge.get("silent", "/2009-04-04/user-data") == (200, b"I am silent")
    assert boots_lab(proxy_edge.script("silent", mac=mac))
    proxy_edge.machine("stranger")
    refusals = {f"/ipxe/script/{MACS['near']}/auto.ipxe": 403, "/osie/lab/kernel": 403}
    refusals |= {"/2009-04-04/user-data": 404, f"/nocloud/{MACS['near']}/user-data": 404}
    for address in (ADDRESSES["stranger"], ADDRESSES["near"]):
        proxy_edge.address("stranger", f"{address}/24")
        assert {path: proxy_edge.get("stranger", path)[0] for path in refusals} == refusals
        assert proxy_edge.tftp("stranger", f"{dashed(MACS['near'])}/auto.ipxe")[0] == b""
    offers = proxy_edge.discover("stranger", MACS["stranger"], *PXE, servers={OTHER_SERVER})
    assert set(offers) == {OTHER_SERVER}


# --- machines without a Hardware --------------------------------------------------------------------------------------


@pytest.fixture
def adoption_edge(tmp_path: Path) -> Iterator[Edge]:
    with running(tmp_path, "--dhcp-mode", "auto-proxy", "--default-osie", "lab") as edge:
        dnsmasq(edge)
        edge.machine("stranger")
        yield edge


def test_machine_without_hardware_netboots_the_default_osie_and_nothing_else(adoption_edge: Edge) -> None:
    mac = MACS["stranger"]
    ours = adoption_edge.discover("stranger", mac, *PXE, servers={ADDRESS})[ADDRESS]
    assert ours.yiaddr == "0.0.0.0"
    program = ours.file.rstrip(b"\0").decode()
    assert adoption_edge.udhcpc("stranger")["serverid"] == OTHER_SERVER
    assert program == "undionly.kpxe"
    script = adoption_edge.script("stranger")
    assert boots_lab(script)
    assert f" worker_id={mac} " in script
    for client in CLIENTS:
        assert adoption_edge.tftp("stranger", program, client)[0] == (IPXE / "undionly.kpxe").read_bytes()
        # An iPXE without HTTP gets the same.
        script = adoption_edge.tftp("stranger", f"{dashed(mac)}/auto.ipxe", client)[0].decode()
        assert f"tftp://{ADDRESS}/{mac}/osie/lab/kernel" in script
        for part in ("kernel", "initrd"):
            assert adoption_edge.tftp("stranger", f"{dashed(mac)}/osie/lab/{part}", client)[0] == content(part)
    for part in ("kernel", "initrd"):
        assert adoption_edge.get("stranger", f"/osie/lab/{part}") == (200, content(part))
    assert adoption_edge.get("stranger", "/osie/other/kernel")[0] == 403
    for path in ("2009-04-04/user-data", "2009-04-04/meta-data/", f"nocloud/{mac}/meta-data"):
        assert adoption_edge.get("stranger", f"/{path}")[0] == 404


# --- without DHCP -----------------------------------------------------------------------------------------------------


def test_edge_without_dhcp_leaves_its_port_alone_and_serves_scripts_and_kernels(tmp_path: Path) -> None:
    with running(tmp_path, "--dhcp-mode", "off") as edge:
        edge.register("near", ADDRESSES["near"])
        edge.machine("near", address="172.31.77.120")
        assert not {"udp:67", "udp:4011"} & edge.listening()
        assert boots_lab(edge.script("near"))
        assert edge.get("near", "/osie/lab/kernel") == (200, content("kernel"))
        assert edge.tftp("near", "snponly.efi")[0] == (IPXE / "snponly.efi").read_bytes()
        assert edge.discover("near", MACS["near"], *PXE, servers=set()) == {}

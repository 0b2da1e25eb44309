"""Machines beside each other: what one gets that pretends to be another, or wants to keep it out.

    edge's namespace: rack0 172.31.77.1 --- bridge --- "victim" .50, "attacker" .51, "router" .52 --- "far" 172.31.79.50

`tinkedge up` runs as it does by default; the attackers are curl, ip and sockets in namespaces of their own.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.cloud_init.rack import BASE, MetadataRack, Registered
from tests.interop.conftest import in_namespace
from tests.interop.rack import ADDRESS, IN_EDGE, TINKEDGE, ip
from tests.waiting import wait_until

SECRET = "password: 8h1t"
VICTIM = Registered("victim", "52:54:00:00:0a:50", "172.31.77.50", userdata=SECRET)
ATTACKER = Registered("attacker", "52:54:00:00:0a:51", "172.31.77.51", userdata="nothing")
FAR = Registered("far", "52:54:00:00:0a:52", "172.31.79.50", userdata="I am far away", gateway="172.31.79.1")
USERDATA = "/2009-04-04/user-data"
OF_VICTIM = [USERDATA, f"/nocloud/{VICTIM.mac}/user-data", f"/ipxe/script/{VICTIM.mac}/auto.ipxe", "/metadata"]


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetadataRack]:
    with MetadataRack(tmp_path_factory.mktemp("neighbours")) as rack:
        rack.up()
        rack.register(VICTIM, ATTACKER)
        _put_far_away(rack)
        yield rack


def _put_far_away(rack: MetadataRack) -> None:
    rack.add("router")
    rack.card("router", "eth0", "52:54:00:00:0a:5f", "rack0")
    rack.address("router", "172.31.77.52/24")
    rack.register(FAR, namespaces=False)
    rack.add("far")
    router, far = rack.namespaces["router"], rack.namespaces["far"]
    ip("-n", far, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1", "netns", router)
    for namespace, card, address in ((router, "eth1", "172.31.79.1/24"), (far, "eth0", f"{FAR.address}/24")):
        ip("-n", namespace, "link", "set", card, "up")
        ip("-n", namespace, "address", "add", address, "dev", card)
    rack.run("router", "sysctl", "-qw", "net.ipv4.ip_forward=1")
    ip("-n", far, "route", "add", "default", "via", "172.31.79.1")
    ip("-n", rack.namespaces[IN_EDGE], "route", "add", "172.31.79.0/24", "via", "172.31.77.52")


@pytest.fixture
def second_address(rack: MetadataRack) -> Iterator[None]:
    """The attacker has the victim's address beside its own."""
    ip("-n", rack.namespaces["attacker"], "address", "add", f"{VICTIM.address}/32", "dev", "eth0")
    yield
    ip("-n", rack.namespaces["attacker"], "address", "del", f"{VICTIM.address}/32", "dev", "eth0")


def ask(rack: MetadataRack, where: str, path: str, source: str = "") -> tuple[int, str]:
    """Status and body; `source` is the address to ask from.

    It asks by ARP first who the edge is, by which the edge's kernel learns who has the address now.
    """
    rack.run(where, "ip", "neigh", "flush", "to", ADDRESS)
    sender = ["--interface", source] if source else []
    done = rack.run(where, "curl", "-s", "--max-time", "5", *sender, "-w", "\n%{http_code}", f"{BASE}{path}")
    body, _, status = done.out.rpartition("\n")
    return int(status), body


def refusals(rack: MetadataRack, machine: Registered) -> list[dict[str, Any]]:
    return [event for event in rack.journey(machine) if event["outcome"] == "refused"]


@pytest.mark.usefixtures("second_address")
def test_second_address_gets_nothing_of_its_machine_whose_journey_names_the_attacker(rack: MetadataRack) -> None:
    for path in OF_VICTIM:
        status, body = ask(rack, "attacker", path, VICTIM.address)
        assert (status, SECRET in body) == (403, False), path
        assert "victim" not in body, "who asks learns nothing of another machine, not even its name"
        assert ask(rack, "attacker", USERDATA, ATTACKER.address) == (200, "nothing")
        assert ask(rack, "victim", USERDATA) == (200, SECRET), "when it asks again, the kernel knows that it is back"

    def by_tftp(where: str) -> str:
        rack.run(where, "ip", "neigh", "flush", "to", ADDRESS)
        url = f"tftp://{ADDRESS}/{VICTIM.mac}/auto.ipxe"
        return rack.run(where, "curl", "-s", "--max-time", "5", "--interface", VICTIM.address, url).out

    assert "victim" in by_tftp("victim")
    assert "victim" not in by_tftp("attacker")
    events = {event["step"]: event for event in refusals(rack, VICTIM)}
    for step in ("metadata", "script"):
        assert events[step]["detail"] == {"from": VICTIM.address, "from_mac": ATTACKER.mac}
        assert f"from {VICTIM.address} by {ATTACKER.mac}, which is no MAC of this machine" in events[step]["message"]


@pytest.mark.usefixtures("second_address")
def test_address_that_is_taken_over_within_a_second_is_noticed(rack: MetadataRack) -> None:
    """The edge caches the kernel's neighbour entry for a second; an attacker must not profit from that cache."""
    answers = []
    for _ in range(8):
        assert ask(rack, "victim", USERDATA) == (200, SECRET)
        answers.append(ask(rack, "attacker", USERDATA, VICTIM.address)[0])
    assert answers == [403] * 8


def test_attacker_whose_mac_the_kernel_has_dropped_is_not_taken_for_another_machine(rack: MetadataRack) -> None:
    """A connection, no more answers to ARP, and when the entry has run out, the rest of the request."""
    assert ask(rack, "victim", USERDATA) == (200, SECRET)
    victim = rack.namespaces["victim"]
    mac = rack.run(IN_EDGE, "cat", "/sys/class/net/rack0/address").out.strip()
    with in_namespace(victim, lambda: socket.create_connection((ADDRESS, 7080), 5)) as connection:
        connection.sendall(f"GET {USERDATA} HTTP/1.1\r\n".encode())
        known = rack.run(IN_EDGE, "ip", "neigh", "show", VICTIM.address)
        assert VICTIM.mac in known.out, known.out + known.err + rack.run(IN_EDGE, "ip", "neigh").out
        ip("-n", victim, "neigh", "replace", ADDRESS, "lladdr", mac, "dev", "eth0", "nud", "permanent")
        try:
            rack.run("victim", "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=8")
            ip("-n", rack.namespaces[IN_EDGE], "neigh", "del", VICTIM.address, "dev", "rack0")
            connection.sendall(b"Host: edge\r\n\r\n")
            wait_until(lambda: "the kernel does not know the MAC" in rack.process.err)
        finally:
            rack.run("victim", "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=0")
            ip("-n", victim, "neigh", "del", ADDRESS, "dev", "eth0")
        answer = connection.recv(4096).decode()
    assert answer.startswith("HTTP/1.1 503 "), answer
    assert "ask again" in answer
    assert ask(rack, "victim", USERDATA) == (200, SECRET)


def test_agent_at_anothers_address_does_not_speak_for_it(rack: MetadataRack) -> None:
    """Its address alone would give it the Workflows of that machine, with their secrets."""
    rack.address("attacker", f"{VICTIM.address}/24")
    try:
        rack.run("attacker", "ip", "neigh", "flush", "dev", "eth0")
        state = rack.directory / "agent"
        command = ("agent", "--agent-id", VICTIM.mac, "--server", f"{ADDRESS}:42113", "--runtime", "process")
        agent = rack.tinkedge("attacker", *command, "--state-dir", state)
        wait_until(lambda: "its address is that of another machine" in agent.err, lambda: agent.err)
        agent.end()
    finally:
        rack.address("attacker", f"{ATTACKER.address}/24")
    (refused,) = (event for event in refusals(rack, VICTIM) if event["step"] == "agent")
    assert refused["detail"] == {"from": VICTIM.address}
    assert f"has that address, as has {ATTACKER.mac}, which is no MAC of it" in refused["message"]


def test_machine_behind_a_router_is_known_by_its_address(rack: MetadataRack) -> None:
    assert ask(rack, "far", USERDATA) == (200, "I am far away")


def test_boot_program_requested_for_another_machine_reveals_nothing_of_it(rack: MetadataRack) -> None:
    manifest = VICTIM.manifest()
    manifest["spec"]["networkInterfaces"][VICTIM.mac]["disableNetboot"] = True
    rack.kubectl.apply(json.dumps(manifest))
    path = f"/ipxe/binary/{VICTIM.mac}/snponly.efi"
    wait_until(lambda: ask(rack, "victim", path)[0] == 403)
    assert "disableNetboot" in ask(rack, "victim", path)[1]
    assert ask(rack, "attacker", path) == (403, "no netboot\n")
    found = [event for event in refusals(rack, VICTIM) if event["step"] == "binary" and "from" in event["detail"]]
    assert [event["detail"] for event in found] == [{"from": ATTACKER.address, "from_mac": ATTACKER.mac}]
    assert f"no boot program to {ATTACKER.address}" in found[0]["message"]
    rack.kubectl.apply(json.dumps(VICTIM.manifest()))


# --- connections that only wait ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def idle(rack: MetadataRack, where: str, address: tuple[str, int], count: int) -> Iterator[None]:
    """Open connections; every second one has sent half of a request."""
    with contextlib.ExitStack() as exits:

        def open_all() -> None:
            for number in range(count):
                one = exits.enter_context(socket.create_connection(address, 5))
                if number % 2:
                    one.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")

        in_namespace(rack.namespaces[where], open_all)
        yield


def open_files(rack: MetadataRack) -> int:
    """Sockets and files of the edge."""
    return len(list(Path(f"/proc/{rack.process.popen.pid}/fd").iterdir()))


@pytest.mark.parametrize(
    ("where", "address", "bound"), [("attacker", (ADDRESS, 7080), 64), (IN_EDGE, ("127.0.0.1", 7081), 128)]
)
def test_waiting_connections_block_no_machine(
    rack: MetadataRack, where: str, address: tuple[str, int], bound: int
) -> None:
    before = open_files(rack)
    with idle(rack, where, address, 800):
        assert open_files(rack) - before <= bound + 8
        assert ask(rack, "victim", USERDATA) == (200, SECRET)
        assert ask(rack, "attacker", USERDATA) == (200, "nothing"), "nor themselves"
        assert rack.journey(VICTIM)
    assert "idle ones are closed" in rack.process.err


FLOOD = """
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
kept, made, end = [], 0, time.monotonic() + 10
while time.monotonic() < end:
    for address in sys.argv[2:]:
        one = socket.socket()
        one.setblocking(False)
        try:
            one.bind((address, 0))
            one.connect_ex((sys.argv[1], 7080))
        except OSError:
            continue
        kept.append(one)
        made += 1
        if len(kept) > 10000:
            kept.pop(0).close()
print(made)
"""


@pytest.mark.soak
def test_flood_of_connections_from_many_addresses_blocks_no_machine(rack: MetadataRack) -> None:
    """250 addresses reopen their share of connections for ten seconds, as fast as they can."""
    attacker, before = rack.namespaces["attacker"], open_files(rack)
    addresses = [f"172.31.77.{number}" for number in range(100, 250)]
    batch = "".join(f"address add {address}/32 dev eth0\n" for address in addresses)
    subprocess.run(["ip", "-n", attacker, "-batch", "-"], input=batch, text=True, check=True)
    flood = rack.start("attacker", sys.executable, "-c", FLOOD, ADDRESS, *addresses)
    try:
        answers, most = [], 0
        while flood.popen.poll() is None:
            answers.append(ask(rack, "victim", USERDATA))
            most = max(most, open_files(rack) - before)
    finally:
        flood.end()
        batch = batch.replace("add ", "del ")
        subprocess.run(["ip", "-n", attacker, "-batch", "-"], input=batch, text=True, check=True)
    assert len(answers) > 20
    assert set(answers) == {(200, SECRET)}
    print(f"{flood.out.strip()} connections; {len(answers)} answers; {most} files more")
    assert most <= 4096 + 64
    wait_until(lambda: open_files(rack) - before < 100)


# --- operators' HTTP, for others on the same host ---------------------------------------------------------------------

AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def test_other_users_of_the_host_read_no_journey(rack: MetadataRack) -> None:
    for path in ("machines", f"machines/{VICTIM.mac}/events", "events?since=all"):
        curl = ("curl", "-s", "--max-time", "2", "-w", "%{http_code}", f"http://127.0.0.1:7081/api/v1/{path}")
        done = rack.run(IN_EDGE, *AS_NOBODY, *curl)
        assert done.out.endswith("401"), path
        assert VICTIM.mac not in done.out
    token = rack.directory / "data" / "admin-token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.read_text().strip() not in rack.process.err


def test_watch_needs_only_its_own_permission(rack: MetadataRack) -> None:
    data = rack.directory / "data"
    watch = rack.tinkedge(IN_EDGE, "watch", VICTIM.mac, "--data-dir", data)
    wait_until(lambda: VICTIM.mac in watch.out, lambda: watch.err)
    watch.end()
    wrong = rack.directory / "wrong"
    wrong.write_text("0" * 64)
    for file, why in ((wrong, "has another token than"), (data / "none", "there is no admin token")):
        refused = rack.run(IN_EDGE, *TINKEDGE, "watch", "--admin-token-file", file)
        assert refused.popen.returncode == 1
        assert re.search(why, refused.err), refused.err

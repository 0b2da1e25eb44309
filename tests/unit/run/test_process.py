"""A process that serves and its host: what it reports, SIGHUP, its memory, its addresses."""

from __future__ import annotations

import asyncio
import builtins
import gc
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path
from typing import Any

import pytest

from edge.neighbour.host import HostError, Network, NetworkState, default_interface, interface_address, state_of
from edge.neighbour.links import HostLink
from edge.run.errors import HealthError
from edge.run.networks import agents
from edge.run.networks.agents import AgentsAddresses
from edge.run.process import memory as heap
from edge.run.process.health import HealthServer, OperatorAddresses
from edge.run.process.memory import default_server_memory, memory
from edge.run.process.reload import Reload
from edge.run.process.service_manager import Notifier, Watchdog, report, status_line
from edge.run.readiness import Readiness
from edge.settings.model import Service, StackSettings
from tests.ports import free_port
from tests.support.virtual_time import elapse
from tests.waiting import until
from tink.files.key_file import KeyFile
from tink.metrics.process import process_registry


class Manager:
    """The manager's end of the socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)

    def received(self) -> list[str]:
        found = []
        with suppress(BlockingIOError):
            while True:
                found.append(self.socket.recv(4096).decode())
        return found


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.socket.close()


@pytest.fixture
def notifier(tmp_path: Path, manager: Manager) -> Notifier:
    return Notifier(str(tmp_path / "notify"), watchdog_seconds=20)


def test_manager_is_reached_by_the_variables_it_gave_which_are_not_inherited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "A": "b"}
    found = Notifier.from_environment(environment)
    assert (found.address, found.watchdog_seconds) == ("/run/n", 30.0)
    assert environment == {"A": "b"}
    assert Notifier.from_environment({"WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"}).watchdog_seconds == 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        name = f"tinkedge-{os.getpid()}"
        listening.bind(f"\0{name}")
        Notifier(f"@{name}").ready("serving\nforged=1")
        assert listening.recv(4096) == b"READY=1\nSTATUS=serving forged=1"
    assert not caplog.records
    gone = Notifier(str(tmp_path / "nobody"))
    gone.alive()
    gone.alive()
    assert len(caplog.records) == 1, "that it is gone is said once"


@pytest.mark.looptime
async def test_ready_is_sent_when_machines_can_be_served_and_not_before(manager: Manager, notifier: Notifier) -> None:
    reasons = ["no address"]
    task = asyncio.create_task(
        report(notifier, lambda: reasons[0], lambda: f"not ready: {reasons[0]}" if reasons[0] else "serving")
    )
    await elapse(60)
    assert manager.received() == ["STATUS=not ready: no address"]
    reasons[0] = ""
    await elapse(60)
    task.cancel()
    assert manager.received() == ["READY=1\nSTATUS=serving"]


@pytest.mark.looptime
async def test_watchdog_is_fed_while_the_loop_and_its_probes_answer(
    manager: Manager, notifier: Notifier, caplog: pytest.LogCaptureFixture
) -> None:
    answers = asyncio.Event()
    answers.set()
    task = asyncio.create_task(Watchdog(notifier, {"the embedded API": answers.wait}).run())
    await elapse(20)
    assert set(manager.received()) == {"WATCHDOG=1"}
    answers.clear()
    await elapse(20)
    assert "from: the embedded API; after 20 s this is ended" in caplog.text
    manager.received()
    await elapse(3600)
    assert manager.received() == []
    answers.set()
    await elapse(20)
    assert set(manager.received()) == {"WATCHDOG=1"}
    task.cancel()


def test_status_says_what_is_served_and_where() -> None:
    settings = StackSettings(frozenset({Service.DHCP, Service.HTTP}), networks=(Network("eth1", ""),))
    networks = [NetworkState("eth1", "10.0.0.1")]
    assert status_line(settings, networks, Readiness(), 1) == "serving dhcp, http on eth1 (10.0.0.1) for 1 machine"
    assert status_line(settings, networks, Readiness("starting"), 1) == "not ready: starting"
    leads = Readiness("", ("this replica leads",))
    reported = status_line(StackSettings(frozenset({Service.CONTROLLER})), [], leads, 0)
    assert reported == "serving controller; this replica leads"


async def test_sighup_reads_keys_again_and_says_which_are_bad(
    tmp_path: Path, manager: Manager, notifier: Notifier, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    good, bad = tmp_path / "good", tmp_path / "bad"
    for file in (good, bad):
        file.write_text("k" * 40 + "\n")
    keys = [KeyFile(file, "key", create=False) for file in (good, bad)]
    good.write_text("n" * 41 + "\n")
    bad.write_text("short\n")
    reload = Reload(notifier, lambda: "serving")
    reload.hangup()
    assert manager.received() == []  # not before the start is done
    reload.ready()
    received = manager.received()
    assert received[0].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert received[1:] == ["READY=1\nSTATUS=serving"]
    assert keys[0].holds("n" * 41)
    assert keys[1].holds("k" * 40)
    assert f"key {bad}: a key has less than" in caplog.text


async def ask(port: int, line: str, host: str = "127.0.0.1") -> tuple[str, str]:
    """Status and body."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return head.split(" ")[1], body.strip()


async def test_health_answers_probes_and_says_why_not() -> None:
    found, port = [Readiness("no address")], free_port()
    server = HealthServer(lambda: found[0], process_registry(lambda: found[0].problem))
    async with server.listening(OperatorAddresses(health=("127.0.0.1", port))):
        assert await ask(port, "GET /healthz") == ("200", "ok")
        assert await ask(port, "GET /livez") == ("200", "ok")
        assert await ask(port, "GET /readyz") == ("503", "no address")
        found[0] = Readiness("", ("this replica leads",))
        assert await ask(port, "GET /readyz") == ("200", "ok: this replica leads")
        assert await ask(port, "HEAD /readyz") == ("200", "")
        assert (await ask(port, "GET /secrets"))[0] == "404"
        assert (await ask(port, "POST /readyz"))[0] == "405"
        assert (await ask(port, "GET /metrics"))[0] == "404", "a port for probes that is open to all tells no more"
    found[0] = Readiness("no address")
    async with server.listening(OperatorAddresses(metrics=("127.0.0.1", port), wanted=True)):
        status, text = await ask(port, "GET /metrics")
        assert (status, "tinkedge_ready 0.0" in text.splitlines()) == ("200", True)
        assert "# TYPE process_resident_memory_bytes gauge" in text.splitlines()
        assert await ask(port, "GET /livez") == ("200", "ok")


@pytest.mark.parametrize(("address", "asked"), [("::1", ["::1"]), ("::", ["::1", "127.0.0.1"])])
async def test_probes_are_answered_with_ipv6(address: str, asked: list[str]) -> None:
    port = free_port()
    server = HealthServer(Readiness, process_registry(str))
    async with server.listening(OperatorAddresses(health=(address, port))):
        assert [await ask(port, "GET /readyz", host) for host in asked] == [("200", "ok")] * len(asked)
        with pytest.raises(HealthError, match=rf"--metrics-address \[{address}\]:{port}: can't listen there"):
            async with server.listening(OperatorAddresses(metrics=(address, port), wanted=True)):
                pass


def test_metrics_of_the_process_are_there_in_a_unit_that_hides_the_rest_of_proc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = builtins.open

    def hiding(name: Any, *args: Any, **options: Any) -> Any:
        if str(name) == "/proc/stat":
            raise FileNotFoundError(name)
        return known(name, *args, **options)

    monkeypatch.setattr(builtins, "open", hiding)
    registry = process_registry(str)
    assert (registry.get_sample_value("process_resident_memory_bytes") or 0) > 0
    begun = registry.get_sample_value("process_start_time_seconds") or 0
    assert 0 < time.time() - begun < 86400


async def test_second_service_on_a_host_runs_without_the_metrics_that_the_operator_did_not_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = ("127.0.0.1", free_port())
    server = HealthServer(Readiness, process_registry(str))
    async with server.listening(OperatorAddresses(metrics=place)):
        async with server.listening(OperatorAddresses(metrics=place)):
            assert f"--metrics-address 127.0.0.1:{place[1]}: can't listen there" in caplog.text
        with pytest.raises(HealthError, match="--metrics-address"):
            async with server.listening(OperatorAddresses(metrics=place, wanted=True)):
                pass
        with pytest.raises(HealthError, match="--health-address"):
            async with server.listening(OperatorAddresses(health=place)):
                pass


_MAPS = """\
5581a0000000-5581a0001000 r--p 00000000 fd:00 12345                      /usr/bin/python3
5581a1100000-5581a1b00000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000500000 rw-p 00000000 00:00 0 nothing
7f0001000000-7f0001400000 rw-s 00000000 00:01 77                         /dev/zero (deleted)
7f0002000000-7f0002400000 rw-p 00000000 fd:00 99                         /usr/lib/libpython3.so
7f0003100000-7f0003200000 rw-p 00000000 00:00 0 nothing
7f0004100000-7f0004400000 rw-p 00000000 00:00 0 nothing
7ffc00000000-7ffc00400000 rw-p 00000000 00:00 0                          [stack]
"""

# A heap as an inventory makes it, and how much of it is in huge pages before and after.
_PROGRAM = """
import sys
from pathlib import Path
from edge.run.process import memory as heap
def huge():
    return sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHuge"))
objects = [str(number).zfill(100) for number in range(700_000)]
found = [huge()]
for policy in sys.argv[1:]:
    heap._POLICY = Path(policy)
    heap.settle(huge_pages=True)
    found.append(huge())
assert objects[::100_000] == [str(number).zfill(100) for number in range(0, 700_000, 100_000)]
print(*found)
"""


def test_only_private_memory_without_a_file_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = tmp_path / "maps"
    maps.write_text(_MAPS.replace("nothing", ""))
    monkeypatch.setattr(heap, "_MAPS", maps)
    assert list(heap._anonymous_ranges()) == [
        (0x5581A1200000, 0x5581A1A00000),
        (0x7F0000000000, 0x7F0000400000),
        (0x7F0004200000, 0x7F0004400000),
    ]


def test_server_that_no_packet_waits_for_stays_as_small_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)  # of the tests' own process
    asked: list[None] = []
    monkeypatch.setattr(heap, "_anonymous_ranges", lambda: iter(asked.append(None) or ()))
    heap.settle(huge_pages=False)
    assert asked == []
    heap.settle(huge_pages=True)
    assert asked == [None]


def test_a_large_heap_gets_huge_pages_where_the_kernel_has_them_and_they_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "forbidden").write_text("always madvise [never]\n")
    policies = (tmp_path / "unknown to the kernel", tmp_path / "forbidden", heap._POLICY)
    command = [sys.executable, "-c", _PROGRAM, *map(str, policies)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, unknown, forbidden, after = map(int, done.stdout.split())
    assert before >= unknown >= forbidden
    major, minor = map(int, Path("/proc/sys/kernel/osrelease").read_text().split(".")[:2])
    if heap._is_allowed() and (major, minor) >= (6, 1):
        assert after > forbidden + 30 * 1024
    else:
        assert after == forbidden


HEADER = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
NETWORK = "eth1\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
DEFAULT = "eth7\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
DOWN = "eth9\t00000000\t0101A8C0\t0002\t0\t0\t100\t00000000\t0\t0\t0\n"


def routes(directory: Path, *lines: str) -> Path:
    file = directory / "route"
    file.write_text(HEADER + "".join(lines))
    return file


def test_default_is_the_interface_of_the_default_route_or_else_has_to_be_named(tmp_path: Path) -> None:
    assert default_interface(routes(tmp_path, NETWORK, DOWN, DEFAULT)) == "eth7"
    with pytest.raises(HostError, match="give --interface"):
        default_interface(routes(tmp_path, NETWORK))


@pytest.mark.parametrize("name", ["absent0", "a-name-that-is-too-long-for-linux", "lo\0", "ä", "eth\udcff"])
def test_address_is_the_interfaces_first_and_a_missing_interface_is_named_with_those_that_are_there(name: str) -> None:
    assert interface_address("lo") == "127.0.0.1"
    with pytest.raises(HostError, match=r"there is no interface .*there are: .*lo"):
        interface_address(name)


def link(*addresses: str, up: bool = True) -> HostLink:
    return HostLink("eth1", 7, up, carrier=up, mtu=1500, addresses=tuple(map(IPv4Interface, addresses)))


def nobody(_address: IPv4Address | IPv6Address) -> bool:
    return False


FOLLOWED, FIXED = Network("eth1"), Network("eth1", "10.0.0.9")
DOWN_LINK, NO_ADDRESS = "eth1 is down ('ip link set eth1 up')", "10.0.0.9 is no address of this host"


def test_address_stays_as_long_as_the_interface_has_it() -> None:
    assert state_of(FOLLOWED, link("10.0.0.1/24", "10.0.0.2/24")).address == "10.0.0.1"
    both = state_of(FOLLOWED, link("10.0.0.1/24", "10.0.0.2/24"), "10.0.0.2")
    assert (both.address, both.problem, both.networks) == ("10.0.0.2", "", (IPv4Network("10.0.0.0/24"),))
    assert state_of(FOLLOWED, link("10.0.0.3/24"), "10.0.0.2").address == "10.0.0.3"
    state = state_of(Network("eth1", "10.9.0.1"), link("10.0.0.1/24"), "", lambda address: str(address) == "10.9.0.1")
    assert (state.address, state.problem) == ("10.9.0.1", ""), "a fixed one may be that of another interface"


@pytest.mark.parametrize(
    ("network", "found", "address", "problem"),
    [
        (FOLLOWED, link(), "", "eth1 has no IPv4 address"),
        (FOLLOWED, link("10.0.0.1/24", up=False), "10.0.0.1", DOWN_LINK),
        (FOLLOWED, link(up=False), "", DOWN_LINK),
        (FIXED, link("10.0.0.1/24", "10.1.0.1/24"), "", f"{NO_ADDRESS} (eth1 has 10.0.0.1, 10.1.0.1)"),
        (FIXED, link(), "", f"{NO_ADDRESS} (eth1 has none)"),
    ],
)
def test_problem_of_a_network_is_named(network: Network, found: HostLink, address: str, problem: str) -> None:
    state = state_of(network, found, "10.0.0.1", nobody)
    assert (state.address, state.problem) == (address, problem)


def test_ipv6_address_is_used_only_if_ipv6_is_served_and_stays_while_it_is_there() -> None:
    both = replace(link("10.0.0.1/24"), addresses6=(IPv6Interface("fd00::1/64"), IPv6Interface("fd00::2/64")))
    assert state_of(Network("eth1"), both).addresses == ("10.0.0.1",)
    served = Network("eth1", ipv6=True)
    state = state_of(served, both)
    assert (state.addresses, state.networks6) == (("10.0.0.1", "fd00::1"), (IPv6Network("fd00::/64"),))
    assert state_of(served, both, before6="fd00::2").address6 == "fd00::2"
    assert state_of(served, both, before6="fd00::3").address6 == "fd00::1"
    fixed = Network("eth1", ipv6=True, address6="fd00::2")
    assert state_of(fixed, both).address6 == "fd00::2"
    assert state_of(replace(fixed, address6="fd00::9"), both, "", nobody).address6 == ""
    alone = replace(link(), addresses6=(IPv6Interface("fd00::1/64"),))
    state = state_of(served, alone)
    assert (state.address, state.address6, state.problem) == ("", "fd00::1", ""), "IPv6 alone is served"
    assert state_of(Network("eth1"), alone).problem == "eth1 has no IPv4 address"
    assert state_of(served, link()).problem == "eth1 has no IP address"


def test_smallest_control_group_around_the_process_limits_memory(tmp_path: Path) -> None:
    own, none = tmp_path / "cgroup", tmp_path / "nothing"
    own.write_text("0::/pods/edge\n")
    root, group = tmp_path / "fs", tmp_path / "fs" / "pods" / "edge"
    group.mkdir(parents=True)
    host = memory(root, none)
    (group / "memory.max").write_text("max\n")
    assert memory(root, own) == host
    (group.parent / "memory.max").write_text("536870912\n")
    assert memory(root, own) == 536_870_912
    for total, most in ((512_000_000, 400_000_000), (4_000_000_000, 1_000_000_000), (64_000_000_000, 4_000_000_000)):
        assert default_server_memory(alone=False, total=total) == most, "a quarter beside others, within bounds"
        assert default_server_memory(alone=True, total=total) == total


VIP = "192.0.2.250"


class Host:
    """Addresses that come and go, and the calls of `listen_at`."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = set(addresses)
        self.listened: list[list[str]] = []
        self.refuses = 0
        self.changed: Any = None

    def owned(self, address: IPv4Address) -> bool:
        return str(address) in self.addresses

    async def listen_at(self, addresses: Collection[str]) -> None:
        if self.refuses:
            self.refuses -= 1
            raise OSError(98, "Address already in use")
        self.listened.append(list(addresses))

    def tells(self, changed: Any) -> Host:
        self.changed = changed
        return self

    def close(self) -> None:
        self.changed = None


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host("10.0.0.1")
    monkeypatch.setattr(agents, "LinkChanges", host.tells)
    monkeypatch.setattr(agents, "_RETRY_SECONDS", 0.01)
    return host


async def test_address_is_listened_at_when_it_comes_and_kept_when_it_goes(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    follow = AgentsAddresses(["10.0.0.1", VIP], 42113, host.owned)
    assert follow.listening == ["10.0.0.1:42113"]
    assert follow.note == f"{VIP} is not here: agents find it on another host"
    running = asyncio.create_task(follow.run(host))  # type: ignore[arg-type] # stands in for the server
    await until(lambda: host.changed)
    host.addresses.add(VIP)
    host.refuses = 3
    host.changed()
    await until(lambda: host.listened == [["10.0.0.1:42113", f"{VIP}:42113"]])
    assert "agents can't be served at all addresses: Address already in use" in caplog.text
    assert follow.note == ""
    host.addresses.discard(VIP)
    host.changed()
    await until(lambda: follow.note)
    host.addresses.add(VIP)
    host.changed()
    await until(lambda: not follow.note)
    assert len(host.listened) == 1, "who listened at an address hears again when it is back"
    running.cancel()


def test_all_addresses_are_always_here() -> None:
    six = AgentsAddresses(["::", "fd00::1", "fd00::2"], 42113, Host("fd00::1").owned)
    assert six.listening == ["[::]:42113", "[fd00::1]:42113"]
    follow = AgentsAddresses(["0.0.0.0"], 42113, Host().owned)
    assert (follow.listening, follow.note) == (["0.0.0.0:42113"], "")

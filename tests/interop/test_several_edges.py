"""Three edges on one segment, no VIP: any of them may be killed at any moment, and every machine boots.

The machines are `tests.interop.site.machine`, the edges real processes; `make soak` repeats it for 200 boots.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from edge.building.builder import default_cache
from tests.interop.rack import TINKEDGE
from tests.interop.site.machine import Boot, Machine
from tests.interop.site.site import OUTSIDE, Site, address_of, mac_of
from tests.waiting import wait_until

KNOWN = {1: 1, 2: 2, 3: 1}
"""Number of other edges that each edge knows, if the others' options name only the second edge."""

PATIENCE_OF_FIRMWARE = {"TFTP", "script"}
"""Steps in which a ROM knows only one edge, and restarts if that edge disappears. It survives that in all others."""

EMULATED = {11: "bios", 12: "uefi", 13: "bios"}
"""QEMU machines that boot at the same time."""

pytestmark = pytest.mark.long


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as site:
        yield site


class Boots:
    """Machines that boot repeatedly and in parallel until there have been `count` boots."""

    def __init__(self, site: Site, count: int, pace: float = 0.0, **machine: Any) -> None:
        self._left = itertools.count(1)
        self._count = count
        self.done: list[Boot] = []
        self._pool = ThreadPoolExecutor(len(site.machines))
        self._running = [
            self._pool.submit(self._run, Machine(site, number, pace, **machine)) for number in site.machines
        ]

    @property
    def over(self) -> bool:
        return all(running.done() for running in self._running)

    def _run(self, machine: Machine) -> None:
        machine.enter()
        while next(self._left) <= self._count:
            self.done.append(machine.boot())

    def join(self) -> list[Boot]:
        for running in self._running:
            running.result()
        self._pool.shutdown()
        return self.done


def boot_while_edges_are_killed(site: Site, count: int, *, pace: float, every: float) -> list[Boot]:
    boots, stop = Boots(site, count, pace), threading.Event()
    killer = threading.Thread(target=kill_in_turn, args=(site, boots, every, stop))
    killer.start()
    try:
        return boots.join()
    finally:
        stop.set()
        killer.join()


def kill_in_turn(site: Site, boots: Boots, every: float, stop: threading.Event) -> None:
    """Kill one edge after the other (SIGKILL), and restart each after a moment, as systemd or a kubelet does."""
    for edge in itertools.cycle(site.edges):
        if stop.wait(random.uniform(0.5, 1.5) * every) or boots.over:
            return
        site.kill(edge)
        time.sleep(1.0)
        site.up(edge)
        site.is_ready(edge)


def watched(site: Site, edge: int, *options: str) -> list[dict[str, Any]]:
    """Return the output of `tinkedge watch` about that edge."""
    where = ("--once", "--json", "--data-dir", site.directory / f"data{edge}")
    shown = site.run(f"edge{edge}", *TINKEDGE, "watch", "--config=/dev/null", *where, *options)
    assert shown.popen.returncode == 0, shown.err
    return [json.loads(line) for line in shown.out.splitlines()]


def assert_each_edge_knows_all_machines_and_agents(site: Site) -> None:
    """The server runs apart from the edges."""
    port, server = "42113", site.tinkedge(
        *("outside", "server", "--config=/dev/null", "--kubeconfig", site.kubeconfig, "--agent-auth=none"),
        *("--interface", f"rack0={OUTSIDE}", "--reports-key", site.directory / "reports.key"),
        *site.find_each_other(),
    )  # fmt: skip
    wait_until(lambda: "ready: server" in server.err, lambda: server.err)
    agent = site.tinkedge(
        *("m1", "agent", "--config=/dev/null", "--agent-id", mac_of(1), "--server", f"{OUTSIDE}:{port}"),
        *("--runtime", "process", "--state-dir", site.directory / "agent", "--kernel-command-line", "/dev/null"),
    )
    machines = {mac_of(machine) for machine in site.machines}

    def knows_all(edge: int) -> bool:
        rows = {row["mac"]: row for row in watched(site, edge)}
        booted = all(rows[mac]["heard"] for mac in machines)
        return booted and rows[mac_of(1)]["state"] == "agent connected"

    for edge in site.edges:
        wait_until(lambda edge=edge: knows_all(edge), lambda: agent.err + server.err + site.output(), every=1.0)
        events = [event for event in watched(site, edge, mac_of(1)) if "step" in event]
        seen = {str(event["detail"].get("seen_by_kind", "here")) for event in events}
        assert {"server", "edge"} <= seen, events
    for process in (agent, server):
        assert process.terminate() == 0, process.err


def test_three_edges_fetch_each_file_once_and_no_boot_fails_if_one_is_killed(site: Site) -> None:
    site.all_up()
    boots = Boots(site, 8)
    boots.join()
    assert [boot for boot in boots.done if not boot.ok or boot.restarts] == [], site.output()
    assert_each_edge_knows_all_machines_and_agents(site)
    # By now, each edge has served them, or serves them now.
    for edge in site.edges:
        for part in ("kernel", "initrd"):
            url = f"http://{address_of(edge)}:7080/osie/lab/{part}"
            assert site.run("m1", "curl", "-sf", "-o", "/dev/null", url).popen.returncode == 0
    assert {part: site.fetched(part).count(200) for part in ("kernel", "initrd")} == {"kernel": 1, "initrd": 1}
    assert sum(site.metric(edge, "tinkedge_artifact_peer_downloads_total") for edge in site.edges) == 4

    done = boot_while_edges_are_killed(site, 30, pace=1.0, every=2.0)
    assert [boot for boot in done if not boot.ok] == [], site.output()
    assert [boot for boot in done if set(boot.restarts) - PATIENCE_OF_FIRMWARE] == [], site.output()
    assert site.kills >= 2
    # An edge that was killed restores the earlier events.
    for edge in site.edges:
        events = [event for event in watched(site, edge, mac_of(1)) if "step" in event]
        assert any(event["detail"].get("seen_by_kind") == "server" for event in events), "the agent, of the first boots"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_200_boots_and_an_edge_is_killed_every_ten_seconds(tmp_path: Path) -> None:
    kernel = default_cache() / "osie" / "kernel"
    assert kernel.exists(), "tests/boot make one"
    with Site(tmp_path, machines=10, kernel=kernel.read_bytes()) as site:
        site.all_up()
        emulated = [site.emulated(number, firmware, 900) for number, firmware in EMULATED.items()]
        boots = boot_while_edges_are_killed(site, 200, pace=2.0, every=10.0)
        machines = [json.loads(machine.out) for machine in emulated if machine.status(900) == 0]
        output = site.output()
    sys.stderr.write(f"\nQEMU: {[machine['seconds'] for machine in machines]} s\n")
    failed = [boot for boot in boots if not boot.ok]
    restarts = Counter(step for boot in boots for step in boot.restarts)
    elsewhere, rediscoveries = (sum(getattr(boot, name) for boot in boots) for name in ("elsewhere", "rediscoveries"))
    sys.stderr.write(
        f"\n{len(boots)} boots, {site.kills} edges killed: {len(failed)} failed, rounds of firmware {dict(restarts)}, "
        f"{elsewhere} files from another edge than the script, {rediscoveries} times DHCP again, "
        f"longest {max(boot.seconds for boot in boots):.0f} s\n"
    )
    assert failed == [], output
    assert set(restarts) <= PATIENCE_OF_FIRMWARE, output
    assert len(boots) == 200
    assert [machine for machine in machines if machine["seconds"] is None] == []
    assert len(machines) == len(EMULATED)
    assert site.kills >= 10


STEPS = ("REQUEST", "kernel", "half of /osie/lab/initrd")


def test_machine_goes_on_with_another_edge_whenever_its_own_is_killed(site: Site) -> None:
    """Only one edge has `--peer`: the other one connects back."""
    site.up(1, "--peer", address_of(2))
    site.up(2, "--peer", address_of(3))
    site.up(3, "--peer", address_of(2))
    for edge, others in KNOWN.items():
        site.is_ready(edge)
        site.knows(edge, others)
    for step in STEPS:
        killed: list[int] = []

        def kill(now: str, address: str, at: str = step, killed: list[int] = killed) -> None:
            if now == at and not killed:
                killed.append(int(address.rpartition(".")[2]))
                site.kill(killed[0])

        (boot,) = Boots(site, 1, before=kill).join()
        assert (boot.ok, boot.restarts, len(killed)) == (True, [], 1), (step, boot, site.output())
        (gone,) = killed
        site.up(gone, "--peer", address_of(2 if gone != 2 else 3))
        site.is_ready(gone)
        for edge, others in KNOWN.items():
            site.knows(edge, others)

"""Memory: the whole edge with 100,000 Hardware of two interfaces each, against Kea with the same reservations.

Ours is `tinkedge edge` as operators run it: DHCP, TFTP, HTTP and the admin pages, with all Hardware of the embedded
API, which is another process. Kea keeps its reservations in memory, from its configuration file; it does not store the
other data of a machine (user data, OSIE, kernel parameters). Kea is measured when it serves, the edge when it has read
all Hardware. Then each is restarted, the edge with its checkpoint. Nearly all machines are outside of the edge's
network, which is its worst case: each of them has a mistake that a condition reports.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from tests.bench.bed import SERVER_IP, BenchError, Cable, Server, installed, measured, python
from tests.bench.filled import fill, machine
from tests.bench.results import Round, Row, Sample, row, say

OBJECTS = 100_000
API_PORT = 6443
DHCP_PORT = 67
PEER = "Kea"
_CHECKPOINT_SECONDS = 300.0


def run(directory: Path, objects: int = OBJECTS) -> list[Row]:
    """Measure memory and return its rows of the table."""
    ours = _ours(directory / "ours", objects)
    peer = None
    if kea := installed("kea-dhcp4"):
        peer = _kea(kea, directory / "kea", objects)
    rounds = [Round(ours, peer)]
    title = f"edge with {objects:,} Hardware"
    note = "Kea: the same addresses and host names as reservations, from its configuration file"
    return [
        row("memory", f"{title}: resident", "MB", rounds, "resident", PEER, less_is_better=True, note=note),
        row("memory", f"{title}: most ever", "MB", rounds, "most", PEER, less_is_better=True, note=note),
        row("memory", f"{title}: start until it serves", "s", rounds, "start", PEER, less_is_better=True, note=note),
        row(
            "memory", f"{title}: restart until it serves", "s", rounds, "restart", PEER, less_is_better=True, note=note
        ),
        row(
            "memory",
            f"{title}: restart until all are from the API",
            "s",
            [Round(ours, None)],
            "complete",
            "",
            less_is_better=True,
        ),
    ]


# --- ours ----------------------------------------------------------------------------------------------------------


def _ours(home: Path, objects: int) -> Sample:
    state = home / "state"
    home.mkdir(mode=0o700)
    (home / "ipxe").mkdir()
    (home / "ipxe" / "snponly.efi").write_bytes(b"MZ" + bytes(1000))
    with ExitStack() as stack:
        cable = stack.enter_context(Cable())
        _start_api(stack, cable, state)
        kubeconfig = {"kubeconfig": str(state / "kubeconfig")}
        for step in ({"do": "define"}, {"do": "make", "names": ["seed-0"]}):
            measured(cable.neighbour(python("api_client", **step, **kubeconfig)))
    say(f"memory: {objects:,} Hardware are made")
    fill(state, "hardware", objects)
    with ExitStack() as stack:
        cable = stack.enter_context(Cable())
        _start_api(stack, cable, state)
        edge = [sys.executable, "-m", "edge.cli", "edge", "--interface", f"srv0={SERVER_IP}"]
        edge += ["--kubeconfig", str(state / "kubeconfig"), "--data-dir", str(home), "--ipxe-dir", str(home / "ipxe")]
        sample = _sample(lambda: cable.serve(edge, home / "edge.log", port=DHCP_PORT, protocol="udp"), home)
        begin = time.monotonic()
        server = cable.serve(edge, home / "edge.log", port=DHCP_PORT, protocol="udp")
        _wait_for_list(cable)
        sample["complete"] = time.monotonic() - begin
        server.stop()
        return sample


def _start_api(stack: ExitStack, cable: Cable, state: Path) -> None:
    """Start the API on the clients' core, so that it does not take CPU time from the edge."""
    command = cable.neighbour(python("ours", server="api", directory=str(state)))
    kubeconfig = state / "kubeconfig"
    kubeconfig.unlink(missing_ok=True)
    server = Server(command, state.parent / "api.log", lambda _: kubeconfig.exists())
    stack.callback(server.stop)


# --- the peer ------------------------------------------------------------------------------------------------------


def _kea(program: str, home: Path, objects: int) -> Sample:
    home.mkdir()
    reservations = []
    for number in range(objects):
        spec = machine(number)["spec"]
        for mac, interface in spec["networkInterfaces"].items():
            dhcp = interface["dhcp"]
            reservations.append({"hw-address": mac, "ip-address": dhcp["ip"], "hostname": dhcp["hostname"]})
    options = [{"name": "routers", "data": "10.255.255.254"}, {"name": "domain-name-servers", "data": "10.255.255.253"}]
    subnet = {"id": 1, "subnet": "10.0.0.0/8", "reservations": reservations, "option-data": options}
    config = {
        "interfaces-config": {"interfaces": ["srv0"], "dhcp-socket-type": "udp"},
        "lease-database": {"type": "memfile", "persist": False},
        "host-reservation-identifiers": ["hw-address"],
        "reservations-out-of-pool": True,
        "subnet4": [subnet],
    }
    path = home / "kea.json"
    path.write_text(json.dumps({"Dhcp4": config}))
    where = [f"KEA_{name}_DIR={home}" for name in ("PIDFILE", "LOCKFILE")]
    with Cable() as cable:
        command = ["env", *where, program, "-c", str(path)]
        return _sample(lambda: cable.serve(command, home / "kea.log", port=DHCP_PORT, protocol="udp"))


def _sample(start: Callable[[], Server], home: Path | None = None) -> Sample:
    """Start a server and restart it; `home` is the data directory of our edge."""
    server, took = _timed(start)
    if home is None:
        time.sleep(1)  # until the memory for the start is released
    else:
        _wait_for_checkpoint(home)
    sample = {"resident": server.memory("VmRSS"), "most": server.memory("VmHWM"), "start": took}
    server.stop()
    server, sample["restart"] = _timed(start)
    server.stop()
    return sample


def _timed(start: Callable[[], Server]) -> tuple[Server, float]:
    begin = time.monotonic()
    return start(), time.monotonic() - begin


def _wait_for_checkpoint(home: Path) -> None:
    """Wait until the checkpoint has all Hardware. Raises BenchError."""
    give_up = time.monotonic() + _CHECKPOINT_SECONDS
    while not _has_checkpoint(home / "checkpoint" / "objects.db"):
        if time.monotonic() > give_up:
            raise BenchError(f"there is no checkpoint after {_CHECKPOINT_SECONDS} s")
        time.sleep(0.1)
    time.sleep(1)


def _wait_for_list(cable: Cable) -> None:
    """Wait until the edge has all Hardware from the API. Raises BenchError."""
    get = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:7081/metrics').read().decode())"
    give_up = time.monotonic() + _CHECKPOINT_SECONDS
    while time.monotonic() < give_up:
        done = subprocess.run(
            cable.neighbour([sys.executable, "-c", get]), capture_output=True, text=True, check=False, timeout=60
        )
        if 'tinkedge_informer_synced{resource="hardware"} 1' in done.stdout:
            return
        time.sleep(0.5)
    raise BenchError(f"the edge has not listed all Hardware after {_CHECKPOINT_SECONDS} s")


def _has_checkpoint(path: Path) -> bool:
    if not path.exists():
        return False
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        try:
            [(known,)] = database.execute("SELECT value FROM meta WHERE name = 'known'")
        except (sqlite3.Error, ValueError):  # the checkpoint is being written
            return False
    return bool(known != "0")

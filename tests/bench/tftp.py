"""TFTP: one client in windows of 1, 16 and 64 blocks, slow firmware, and 200 clients at once, against the best of three
peers.

The clients are one program (`tests/bench/load/tftp.c`), which compares every block with the file. Peers that do not
grant a window (RFC 7440) are left out; the best peer is the fastest of the others. The runs with 200 clients also
measure how fairly the server shares its speed, the effect of 1 % packet loss in both directions, and the latency of
DHCP, which runs on the same event loop.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.bed import SERVER_IP, BenchError, Cable, Server, installed, machine_ip, measured, python
from tests.bench.compiled import compiled
from tests.bench.dhcp import FIRST, RELAY
from tests.bench.results import Round, Row, Sample, row, say

NAME = "snponly.efi"  # which DHCP names too
SIZE = 64 << 20
BLOCK = 1468
WINDOWS = (1, 16, 64)
ROUNDS = 3
PORT = 69

CROWD = 200
CROWD_SIZE = 3 << 20
CROWD_WINDOW = 4
"""The windowsize that EDK2 requests (RFC 7440)."""
CROWD_SECONDS = 25.0  # then a client has failed
LOSSY_SIZE = 1 << 20
SLOW_SIZE = 2300 << 10
SLOW = ("-p", "24", "-s", "70")
"""Options for OVMF's observed pause after each window, and its occasional longer pause, in milliseconds."""
DHCP_RATE, DHCP_MACHINES = 500, 1000

_Start = Callable[[ExitStack, Path, Path], "_Side | None"]


@dataclass(frozen=True)
class _Side:
    """One server and its clients."""

    name: str
    cable: Cable
    server: Server
    boot: Path

    def fetch(self, window: int, clients: int = 1, seconds: float = CROWD_SECONDS, *more: str) -> dict[str, Any]:
        """Run the clients' program; return its results with `server_cpu` in seconds."""
        options = [
            "-b",
            str(BLOCK),
            "-w",
            str(window),
            "-n",
            str(clients),
            "-a",
            machine_ip(0),
            "-t",
            str(seconds),
            *more,
        ]
        program = [str(compiled("tftp")), SERVER_IP, str(PORT), NAME, str(self.boot / NAME), *options]
        before = self.server.cpu_seconds()
        result: dict[str, Any] = measured(self.cable.client(program))
        result["server_cpu"] = self.server.cpu_seconds() - before
        return result


# --- the servers -----------------------------------------------------------------------------------------------------


def _ours(stack: ExitStack, home: Path, boot: Path) -> _Side:
    home.mkdir(exist_ok=True)
    if not (home / "boot").exists():
        (home / "boot").symlink_to(boot)
    arguments = {"clients": CROWD, "first": FIRST, "count": DHCP_MACHINES}
    return _serve(stack, "ours", home, boot, python("ours", server="tftp_and_dhcp", directory=str(home), **arguments))


def _atftpd(stack: ExitStack, home: Path, boot: Path) -> _Side | None:
    quiet = ["--verbose=3", "--logfile", "-"]  # warnings
    command = ["--daemon", "--no-fork", "--user", "root.root", "--bind-address", SERVER_IP, *quiet]
    return _peer(stack, "atftpd", home, boot, "atftpd", [*command, "--maxthread", str(2 * CROWD), str(boot)])


def _dnsmasq(stack: ExitStack, home: Path, boot: Path) -> _Side | None:
    tftp = ["--enable-tftp", f"--tftp-root={boot}", f"--tftp-max={2 * CROWD}"]
    rest = ["--keep-in-foreground", "--port=0", "--user=root", "--interface=srv0", "--bind-interfaces"]
    return _peer(stack, "dnsmasq", home, boot, "dnsmasq", [*tftp, *rest, f"--pid-file={home}/dnsmasq.pid"])


def _tftpd_hpa(stack: ExitStack, home: Path, boot: Path) -> _Side | None:
    command = ["--foreground", "--user", "root", "--address", f"{SERVER_IP}:{PORT}", "--secure", str(boot)]
    return _peer(stack, "tftpd-hpa", home, boot, "tftpd-hpa", command)


PEERS: Sequence[_Start] = (_atftpd, _dnsmasq, _tftpd_hpa)
CROWD_PEERS = PEERS[:2]  # tftpd-hpa, a process for each transfer, is at half their speed


def _peer(stack: ExitStack, name: str, home: Path, boot: Path, program: str, arguments: list[str]) -> _Side | None:
    path = installed(program)
    return None if path is None else _serve(stack, name, home, boot, [path, *arguments])


def _serve(stack: ExitStack, name: str, home: Path, boot: Path, command: list[str]) -> _Side:
    home.mkdir(exist_ok=True)
    cable = stack.enter_context(Cable(clients=CROWD))
    return _Side(name, cable, cable.serve(command, home / f"{name}.log", port=PORT, protocol="udp"), boot)


# --- the subject -----------------------------------------------------------------------------------------------------


def run(directory: Path) -> list[Row]:
    """Measure TFTP and return its rows of the table."""
    compiled("tftp")
    rows = _one_client(directory)
    rows += _slow_firmware(directory)
    rows += _crowd(directory, "", CROWD_SIZE, lambda _: None)
    rows += _crowd(directory, ", 1 % loss", LOSSY_SIZE, _lose)
    return rows


def _boot_directory(directory: Path, name: str, size: int) -> Path:
    """Create a boot directory with the file, readable for servers that do not run as root."""
    boot = directory / name
    boot.mkdir()
    (boot / NAME).write_bytes(os.urandom(size))
    for path in (directory, boot):
        path.chmod(0o755)
    return boot


def _one_client(directory: Path) -> list[Row]:
    boot = _boot_directory(directory, "one", SIZE)
    rows = []
    with ExitStack() as stack:
        ours = _ours(stack, directory / "ours-one", boot)
        peers = [side for start in PEERS if (side := start(stack, directory / "peers-one", boot)) is not None]
        for window in WINDOWS:
            say(f"tftp: {SIZE >> 20} MiB, window {window}")
            samples_by_server: dict[str, list[Sample]] = {}
            for _ in range(ROUNDS):
                for side in (ours, *peers):
                    sample = _speed(side, window)
                    if sample["window"] == window:
                        samples_by_server.setdefault(side.name, []).append(sample)
                    else:
                        peers = [peer for peer in peers if peer is not side]
            title = f"{SIZE >> 20} MiB, blksize {BLOCK}, window {window}"
            rows += _rows(title, samples_by_server, "")
    return rows


def _speed(side: _Side, window: int) -> Sample:
    result = side.fetch(window)
    if result["failures"]:
        raise BenchError(f"TFTP, window {window}, from {side.name}: {result['failures'][0]}")
    megabytes = result["bytes"] / 1e6
    return {
        "speed": megabytes / result["seconds"],
        "cpu": result["server_cpu"] * 1e3 / megabytes,
        "busy": result["server_cpu"] / result["seconds"],
        "window": result["window"],
    }


def _rows(title: str, samples_by_server: dict[str, list[Sample]], more: str) -> list[Row]:
    """Return the rows of speed and CPU, each against its best peer; the note has the figures of all servers."""
    note = ", ".join(
        f"{name} {_median(samples, 'speed'):.0f} (busy {_median(samples, 'busy'):.0%})"
        for name, samples in samples_by_server.items()
    )
    fastest = max(
        samples_by_server.keys() - {"ours"}, key=lambda name: _median(samples_by_server[name], "speed"), default=""
    )
    # tftpd-hpa has a process for each transfer, whose CPU time is unknown after its end.
    known = [name for name, samples in samples_by_server.items() if name != "ours" and _median(samples, "busy") > 0.01]
    thriftiest = min(known, key=lambda name: _median(samples_by_server[name], "cpu"), default="")
    speeds, cpus = _rounds(samples_by_server, fastest), _rounds(samples_by_server, thriftiest)
    return [
        row("tftp", title, "MB/s", speeds, "speed", fastest or "a peer", note=f"{note}{more}"),
        row("tftp", f"{title}: CPU", "ms/MB", cpus, "cpu", thriftiest or "a peer", less_is_better=True),
    ]


def _rounds(samples_by_server: dict[str, list[Sample]], peer: str) -> list[Round]:
    if not peer:
        return [Round(sample, None) for sample in samples_by_server["ours"]]
    return [
        Round(ours, theirs) for ours, theirs in zip(samples_by_server["ours"], samples_by_server[peer], strict=True)
    ]


def _median(samples: list[Sample], key: str) -> float:
    return median(sample[key] for sample in samples)


def _slow_firmware(directory: Path) -> list[Row]:
    """Count the packets of a download by firmware that is late now and then, without packet loss."""
    say("tftp: slow firmware")
    boot = _boot_directory(directory, "slow", SLOW_SIZE)
    samples_by_server: dict[str, list[Sample]] = {}
    failures = []
    with ExitStack() as stack:
        for start in (_ours, *CROWD_PEERS):
            side = start(stack, directory / f"slow{start.__name__}", boot)
            if side is None:
                continue
            fetched = side.fetch(CROWD_WINDOW, 1, CROWD_SECONDS, *SLOW)
            if fetched["failures"]:
                if side.name == "ours":
                    raise BenchError(f"TFTP, slow firmware: {fetched['failures'][0]}")
                failures.append(f"{side.name}: {fetched['failures'][0]}")
                continue
            packets = fetched["blocks"] + fetched["repeated_blocks"]
            samples_by_server[side.name] = [{"packets": packets, "repeated": fetched["repeated_blocks"]}]
    best = min(samples_by_server.keys() - {"ours"}, key=lambda name: samples_by_server[name][0]["packets"], default="")
    twice = (f"{name} {samples[0]['repeated']:.0f}" for name, samples in samples_by_server.items())
    note = f"sent twice: {', '.join([*twice, *failures])}"
    title = f"{SLOW_SIZE / 1e6:.1f} MB to slow firmware, window {CROWD_WINDOW}: blocks"
    rounds = _rounds(samples_by_server, best)
    return [row("tftp", title, "", rounds, "packets", best or "a peer", less_is_better=True, note=note)]


def _crowd(directory: Path, suffix: str, size: int, prepare: Callable[[Cable], None]) -> list[Row]:
    say(f"tftp: {CROWD} clients at once{suffix}")
    home = directory / f"crowd{len(suffix)}"
    home.mkdir()
    boot = _boot_directory(home, "boot-files", size)
    samples_by_server: dict[str, list[Sample]] = {}
    failures = []
    dhcp: list[Round] = []
    for start in (_ours, *CROWD_PEERS):
        with ExitStack() as stack:
            side = start(stack, home / start.__name__, boot)
            if side is None:
                continue
            if side.name == "ours" and not suffix:
                idle = _dhcp(side.cable)()
                waiting = _dhcp(side.cable)
            prepare(side.cable)
            crowd = side.fetch(CROWD_WINDOW, CROWD)
            if side.name == "ours" and not suffix:
                dhcp.append(Round(waiting(), idle))
        shares = sorted(crowd["clients"])
        failures.append(f"{side.name} {len(crowd['failures'])} failures")
        samples_by_server[side.name] = [
            {
                "speed": crowd["bytes"] / 1e6 / crowd["seconds"],
                "cpu": crowd["server_cpu"] * 1e3 / max(crowd["bytes"] / 1e6, 1e-3),
                "busy": crowd["server_cpu"] / crowd["seconds"],
                "slowest": shares[-1] / shares[0],
            }
        ]
    what = f"{CROWD} clients, {size >> 20} MiB each, window {CROWD_WINDOW}{suffix}"
    rows = _rows(what, samples_by_server, f"; {', '.join(failures)}")
    fairest = min(
        samples_by_server.keys() - {"ours"}, key=lambda name: samples_by_server[name][0]["slowest"], default=""
    )
    shares = _rounds(samples_by_server, fairest)
    rows.append(
        row("tftp", f"{what}: slowest / fastest", "", shares, "slowest", fairest or "a peer", less_is_better=True)
    )
    for key, name in (("p50_us", "p50"), ("p99_us", "p99")):
        if dhcp:
            what = f"DHCP answer meanwhile, {DHCP_RATE} exchanges/s: {name}"
            rows.append(row("tftp", what, "us", dhcp, key, "ours, idle", less_is_better=True))
    return rows


def _dhcp(cable: Cable) -> Callable[[], Sample]:
    """Start to measure the latency of DHCP; the returned function waits for the end and returns the result."""
    load = [str(FIRST), str(DHCP_MACHINES), "open", str(DHCP_RATE), "1.5"]
    command = cable.client([str(compiled("dhcp")), SERVER_IP, RELAY, *load])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def finish() -> Sample:
        output, _ = process.communicate(timeout=30)
        if process.returncode != 0:
            raise BenchError(f"the load of DHCP ended with {process.returncode}")
        result: Sample = json.loads(output)
        return result

    return finish


def _lose(cable: Cable) -> None:
    """One packet in a hundred, on both ends of the cable; windows are cut into packets before they go onto it."""
    drop = ["-p", "udp", "-m", "statistic", "--mode", "random", "--probability", "0.01", "-j", "DROP"]
    for command in (
        cable.neighbour(["ip", "link", "set", "srv0", "gso_max_segs", "1"]),
        cable.neighbour(["iptables", "-A", "INPUT", *drop]),
        cable.client(["iptables", "-A", "INPUT", *drop]),
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"{' '.join(command[-6:])}: {done.stderr.strip()}")

"""A segment with several edges, each a process on a host of its own, as operators run them: no VIP, one API, one key.

bridge --- outside 10.88.0.250: the embedded API, and the upstream of the OSIE, which logs its requests
       --- edge1 10.88.0.1 ... edge3 10.88.0.3: `tinkedge edge`
       --- m1 10.88.0.101 ...: machines
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
from pathlib import Path

from tests.interop.rack import Namespaces, Process, ip
from tests.waiting import wait_until

OUTSIDE = "10.88.0.250"
NET = "10.88.0"
UPSTREAM_PORT = 8080
ALL_MACHINES = 16
"""The machines with a Hardware."""
KERNEL_BYTES, INITRD_BYTES = 300_000, 1_500_000
PROGRAM = bytes(range(256)) * 300

UPSTREAM = """
import sys, time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

class Handler(SimpleHTTPRequestHandler):
    def log_request(self, code="-", size="-"):
        print(self.path, int(code), flush=True)

ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""


def file_bytes(name: str) -> bytes:
    return random.Random(name).randbytes(KERNEL_BYTES if name == "kernel" else INITRD_BYTES)


def address_of(edge: int) -> str:
    return f"{NET}.{edge}"


def mac_of(machine: int) -> str:
    return f"52:54:00:88:00:{machine:02x}"


def ip_of(machine: int) -> str:
    return f"{NET}.{100 + machine}"


class Site(Namespaces):
    """A segment with `edges` edges and `machines` machines, which are switched off."""

    def __init__(self, directory: Path, *, edges: int = 3, machines: int = 4, kernel: bytes = b"") -> None:
        """`kernel`: a real kernel, for machines that start it; without it, the file has other bytes."""
        super().__init__(directory)
        self.files = {part: file_bytes(part) for part in ("kernel", "initrd")} | ({"kernel": kernel} if kernel else {})
        self.edges = range(1, edges + 1)
        self.machines = range(1, machines + 1)
        self.processes: dict[int, Process] = {}
        self.kills = 0

    def build(self) -> None:
        self.add("outside")
        outside = self.namespaces["outside"]
        ip("-n", outside, "link", "add", "rack0", "type", "bridge", "forward_delay", "0")
        ip("-n", outside, "address", "add", f"{OUTSIDE}/24", "dev", "rack0")
        ip("-n", outside, "link", "set", "rack0", "up")
        for edge in self.edges:
            self._plug(f"edge{edge}", f"52:54:00:88:01:{edge:02x}")
            self.address(f"edge{edge}", f"{address_of(edge)}/24")
        for machine in self.machines:
            self._plug(f"m{machine}", mac_of(machine))
        programs = self.directory / "ipxe"
        programs.mkdir()
        for name in ("undionly.kpxe", "snponly.efi"):
            real = Path("/usr/lib/ipxe") / name
            (programs / name).write_bytes(real.read_bytes() if self.emulates else PROGRAM)
        for name in ("edges", "reports"):
            key = self.directory / f"{name}.key"
            key.write_text(hashlib.sha256(name.encode()).hexdigest() + "\n")
            key.chmod(0o600)
        self._start_outside()

    def _plug(self, where: str, mac: str) -> None:
        self.add(where)
        self._cards += 1
        outside, port = self.namespaces["outside"], f"port{self._cards}"
        end = ["eth0", "address", mac, "type", "veth", "peer", "name", port, "netns", outside]
        ip("-n", self.namespaces[where], "link", "add", *end)
        ip("-n", outside, "link", "set", port, "master", "rack0", "up")
        ip("-n", self.namespaces[where], "link", "set", "eth0", "up")

    def _start_outside(self) -> None:
        data = self.directory / "api"
        self.api = self.tinkedge(
            "outside", "apiserver", "--config=/dev/null", "--data-dir", data, "--api-address", OUTSIDE
        )
        files = self.directory / "files"
        files.mkdir()
        for name, content in self.files.items():
            (files / name).write_bytes(content)
        script = self.directory / "upstream.py"
        script.write_text(UPSTREAM)
        command = ["sh", "-c", 'cd "$0" && exec "$@"', files, sys.executable, script, OUTSIDE, UPSTREAM_PORT]
        self.upstream = self.start("outside", *map(str, command))
        wait_until(lambda: "ready: apiserver" in self.api.err, lambda: self.api.err)
        kubeconfig = (data / "kubeconfig").read_text()
        self.kubeconfig = self.directory / "kubeconfig"
        self.kubeconfig.write_text(re.sub(r"https://127\.0\.0\.1:(\d+)", rf"https://{OUTSIDE}:\1", kubeconfig))
        self.kubeconfig.chmod(0o600)
        self._apply_objects()

    def _apply_objects(self) -> None:
        urls = {f"{part}Url": f"http://{OUTSIDE}:{UPSTREAM_PORT}/{part}" for part in ("kernel", "initrd")}
        objects = [_object("OSIE", "lab", urls)]
        for machine in range(1, ALL_MACHINES + 1):
            dhcp = {"ip": ip_of(machine), "netmask": "255.255.255.0", "leaseTimeSeconds": 600}
            spec = {"networkInterfaces": {mac_of(machine): {"dhcp": dhcp}}, "osie": {"name": "lab"}}
            objects.append(_object("Hardware", f"m{machine}", spec))
        file = self.directory / "objects.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        self.kubectl("apply", "-f", str(file))

    def kubectl(self, *words: str) -> str:
        flags = [f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.directory / 'kubectl'}"]
        process = self.run("outside", "kubectl", *flags, *words)
        assert process.popen.returncode == 0, process.err
        return process.out

    # --- emulated machines ---

    def emulated(self, machine: int, firmware: str, within: float) -> Process:
        """Switch on a QEMU machine with the MAC of `machine`, which must not run otherwise."""
        outside, tap = self.namespaces["outside"], f"tap{machine}"
        ip("-n", outside, "tuntap", "add", "dev", tap, "mode", "tap")
        ip("-n", outside, "link", "set", tap, "master", "rack0", "up")
        directory = self.directory / f"emulated{machine}"
        directory.mkdir()
        program = [sys.executable, "-m", "tests.interop.site.emulated", firmware, mac_of(machine), tap, str(directory)]
        return self.start("outside", *program, str(within))

    # --- edges ---

    @property
    def emulates(self) -> bool:
        return self.files["kernel"] != file_bytes("kernel")

    @property
    def program(self) -> bytes:
        return (self.directory / "ipxe" / "undionly.kpxe").read_bytes()

    def up(self, edge: int, *options: str) -> Process:
        process = self.processes[edge] = self.tinkedge(
            f"edge{edge}",
            *("edge", "--config=/dev/null", "--kubeconfig", self.kubeconfig, "--interface", "eth0"),
            *("--data-dir", self.directory / f"data{edge}", "--ipxe-dir", self.directory / "ipxe"),
            *("--metadata-token-key", self.directory / "edges.key", "--reports-key", self.directory / "reports.key"),
            *(options or self.find_each_other()),
        )
        return process

    def find_each_other(self) -> tuple[str, ...]:
        return ("--peer-group", "rack", "--lease-namespace", "default")

    def all_up(self, *options: str) -> None:
        """Start all edges and wait until they serve and know each other."""
        for edge in self.edges:
            self.up(edge, *options)
        for edge in self.edges:
            self.is_ready(edge)
            self.knows(edge, len(self.edges) - 1)

    def is_ready(self, edge: int) -> None:
        process = self.processes[edge]
        wait_until(lambda: re.search("(ready|started): ", process.err), lambda: process.err)

    def knows(self, edge: int, others: int) -> None:
        """Wait until the edge knows `others` live edges."""
        process = self.processes[edge]
        wait_until(lambda: self.metric(edge, "tinkedge_peer_living") == others, lambda: process.err, every=0.2)

    def kill(self, edge: int) -> None:
        """Kill all processes of an edge (SIGKILL)."""
        self.kills += 1
        self.kill_all(f"edge{edge}")
        self.processes[edge].status()

    def metric(self, edge: int, name: str) -> float:
        """Return the sum of a metric over its labels; -1 if the edge does not answer."""
        metrics = self.run(f"edge{edge}", "curl", "-s", "http://127.0.0.1:7081/metrics").out
        values = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", metrics, re.MULTILINE)
        return sum(map(float, values)) if values else -1

    def fetched(self, part: str) -> list[int]:
        """Return the statuses of the upstream's answers for a file."""
        return [int(status) for path, status in map(str.split, self.upstream.out.splitlines()) if path == f"/{part}"]

    def output(self) -> str:
        return "\n".join(f"--- edge{edge}\n{process.err[-4000:]}" for edge, process in self.processes.items())


def _object(kind: str, name: str, spec: dict[str, object]) -> dict[str, object]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "tinkerbell.org/v1alpha2", "kind": kind, "metadata": metadata, "spec": spec}

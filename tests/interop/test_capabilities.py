"""Capabilities: each service runs as an ordinary user with the capabilities that docs/security.md names.

    edge's namespace: cap0 172.31.77.1 --- bridge --- eth0 172.31.77.50, a machine with a Hardware

The user is that with the id 65534, without groups. All other capabilities are removed from the bounding set.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.doctor.host import CAPABILITIES
from tests.interop.rack import ADDRESS, IN_EDGE, TINKEDGE, Kubectl, Namespaces, Process
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
MAC, IN_MACHINE = "52:54:00:ca:00:01", "machine"
ALL = ("net_bind_service", "net_raw", "net_admin")
HARDWARE = f"""
apiVersion: tinkerbell.org/v1alpha2
kind: Hardware
metadata: {{name: machine}}
spec:
  networkInterfaces: {{"{MAC}": {{dhcp: {{ip: 172.31.77.50, netmask: 255.255.255.0}}}}}}
"""


def readable(directory: Path) -> str:
    """Return shell commands that make Python and the project readable for every user, even in the home of root.

    They need a mount namespace of their own. Only the path is opened; `directory` is for temporary mount points.
    """
    needed = sorted({Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), ROOT})
    shut = {parent for path in needed for parent in path.parents if not parent.stat().st_mode & 0o001}
    lines = []
    for top in sorted(top for top in shut if not shut & set(top.parents)):
        places = {path: directory / f"way-{number}" for number, path in enumerate(needed) if top in path.parents}
        for path, place in places.items():
            place.mkdir()
            lines.append(f"mount --bind '{path}' '{place}'")
        lines.append(f"mount -t tmpfs -o mode=0755 tmpfs '{top}'")
        lines += [f"mkdir -p '{path}' && mount --bind '{place}' '{path}'" for path, place in places.items()]
    return "\n".join(lines)


class Rack(Namespaces):
    """The two namespaces, and a directory of the ordinary user."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.home = Path(tempfile.mkdtemp(prefix="capabilities-"))
        os.chown(self.home, NOBODY, NOBODY)
        self.way = readable(directory)
        """Shell commands that make Python and the project readable for an ordinary user."""

    def build(self) -> None:
        self.network("cap0", {IN_MACHINE: MAC})

    def as_nobody(self, capabilities: tuple[str, ...], *words: str | Path) -> Process:
        """Start `tinkedge` as an ordinary user with these capabilities only."""
        listed = ",".join(("-all", *(f"+{name}" for name in capabilities)))
        given = [f"--{kind}={listed}" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
        user = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--no-new-privs"]
        script = f"set -e\n{self.way}\ncd '{ROOT}'\nexec \"$@\""
        return self.start(IN_EDGE, "sh", "-c", script, "sh", "setpriv", *user, *given, *TINKEDGE, *words)

    def up(self, capabilities: tuple[str, ...]) -> Process:
        network = ["--interface", "cap0", "--public-ip", ADDRESS]
        return self.as_nobody(capabilities, "up", *network, "--data-dir", self.home / "data")

    def lease(self) -> Process:
        ask = ["busybox", "udhcpc", "-f", "-n", "-q", "-t", "5", "-T", "1", "-s", "/bin/true", "-i", "eth0"]
        return self.run(IN_MACHINE, *ask)

    def remove(self) -> None:
        super().remove()
        shutil.rmtree(self.home)


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path) as running:
        yield running


def identity(process: Process) -> tuple[set[str], set[str]]:
    """Return user and group ids of a process, and the union of its capability sets."""
    lines = Path(f"/proc/{process.popen.pid}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    mask = 0
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        mask |= int(status[kind][0], 16)
    names = {number: name.removeprefix("CAP_").lower() for name, number in CAPABILITIES.items()}
    return {*status["Uid"], *status["Gid"]}, {names.get(bit, str(bit)) for bit in range(64) if mask >> bit & 1}


def assert_serves(rack: Rack, data_dir: Path) -> None:
    """Check that a machine gets its address, its boot program and files over HTTP."""
    Kubectl(rack, data_dir / "kubeconfig").apply(HARDWARE)
    wait_until(lambda: rack.lease().popen.returncode == 0)
    rack.address(IN_MACHINE, "172.31.77.50/24")
    for url in (f"tftp://{ADDRESS}/undionly.kpxe", f"http://{ADDRESS}:7080/2009-04-04/meta-data/instance-id"):
        download = rack.run(IN_MACHINE, "curl", "-sSf", "-o", "/dev/null", url)
        assert download.popen.returncode == 0, download.err


@pytest.mark.parametrize(
    ("capabilities", "missing"), [(ALL, ""), (("net_bind_service",), "CAP_NET_RAW is missing")], ids=["all", "one"]
)
def test_up_serves_as_an_ordinary_user_with_three_capabilities(
    rack: Rack, capabilities: tuple[str, ...], missing: str
) -> None:
    process = rack.up(capabilities)
    rack.ready(process)
    assert identity(process) == ({str(NOBODY)}, set(capabilities))
    assert_serves(rack, rack.home / "data")
    assert missing in process.err
    assert ("CAP_" in process.err) == bool(missing)
    assert "Traceback" not in process.err
    assert process.terminate() == 0


def test_missing_capability_is_reported_by_up_and_by_doctor(rack: Rack) -> None:
    process = rack.up(("net_raw", "net_admin"))
    assert process.status() == 1
    last = process.err.splitlines()[-1]
    assert "UDP port 6" in last
    assert "CAP_NET_BIND_SERVICE" in last
    assert "Traceback" not in process.err
    process = rack.as_nobody((), "doctor", "--interface", "cap0")
    process.status()
    assert "missing: CAP_NET_BIND_SERVICE, CAP_NET_RAW" in process.out


def test_services_with_high_ports_need_no_capability(rack: Rack) -> None:
    data_dir = rack.home / "data"
    api = rack.as_nobody((), "apiserver", "--data-dir", data_dir)
    wait_until(lambda: (data_dir / "kubeconfig").exists() and "ready" in api.err, lambda: api.err)
    network = ["--interface", "cap0", "--public-ip", ADDRESS]
    cluster = ["--kubeconfig", data_dir / "kubeconfig"]
    others = [
        rack.as_nobody((), "controller", *cluster, "--no-leader-elect"),
        rack.as_nobody((), "server", *cluster, *network),
        rack.as_nobody(
            (), "edge", *cluster, *network, "--data-dir", rack.home / "edge", "--disable", "dhcp", "--disable", "tftp"
        ),
    ]
    rack.ready(api, *others)
    for process in (*others, api):
        wait_until(lambda process=process: "ready: " in process.err, lambda process=process: process.err)  # type: ignore[misc]
        assert identity(process) == ({str(NOBODY)}, set())
        assert "CAP_" not in process.err
        assert process.terminate() == 0

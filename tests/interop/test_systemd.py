"""The units of deploy/systemd under a real systemd: readiness, reload, watchdog, privileges, real clients."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.systemd_host import UNITS, SystemdHost
from tests.waiting import wait_until

MOST_EXPOSED = 3.0
MAC = "52:54:00:12:34:56"
HARDWARE = f"""\
apiVersion: tinkerbell.org/v1alpha2
kind: Hardware
metadata: {{name: m}}
spec:
  networkInterfaces:
    "{MAC}":
      dhcp: {{ip: 10.9.0.50, netmask: 255.255.255.0}}
"""


@pytest.mark.parametrize("unit", sorted(UNITS.glob("*.service")), ids=lambda unit: unit.name)
def test_unit_is_not_exposed(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", unit],
        capture_output=True,
        text=True,
        check=True,
    )
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout + done.stderr)
    assert level is not None
    assert float(level[1]) < MOST_EXPOSED


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdHost]:
    with SystemdHost(tmp_path_factory.mktemp("host")) as host:
        host.run("ip", "netns", "add", "machine")
        host.run(*f"ip link add eth1 type veth peer name eth0 address {MAC} netns machine".split())
        host.run("ip", "address", "add", "10.9.0.1/24", "dev", "eth1")
        host.run("ip", "link", "set", "eth1", "up")
        host.run(*["ip", "-n", "machine", "link", "set", "eth0", "up"])
        host.write("/etc/tinkedge/tinkedge.yaml", "interface: eth1\nhealth-address: 7082")
        host.run("systemctl", "start", "tinkedge")
        yield host


def test_start_returns_when_machines_are_served_and_status_says_which(host: SystemdHost) -> None:
    assert host.run("curl", "-sf", "http://10.9.0.1:7080/readyz").strip() == "ok"
    assert host.run("tinkedge", "health", "--json").startswith('{"ok": true')
    assert "eth1 (10.9.0.1)" in host.show("tinkedge", "StatusText")
    pid = host.show("tinkedge", "MainPID")
    status = host.run("cat", f"/proc/{pid}/status")
    assert "\nUid:\t0" not in status
    assert re.search(r"^CapEff:\s+0000000000003400$", status, re.MULTILINE)  # 10, 12, 13
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE)


def test_machine_gets_address_boot_program_and_metadata_from_the_confined_service(host: SystemdHost) -> None:
    host.write("/tmp/hardware.yaml", HARDWARE)
    kubectl = shutil.which("kubectl") or "kubectl"
    host.run(kubectl, "--kubeconfig=/var/lib/tinkedge/kubeconfig", "apply", "-f", "/tmp/hardware.yaml")
    host.write("/tmp/script", '#!/bin/sh\n[ "$1" != bound ] || ip address add $ip/24 dev eth0')
    host.run("chmod", "+x", "/tmp/script")
    ask = "ip netns exec machine busybox udhcpc -f -n -q -t 5 -T 1 -i eth0 -s /tmp/script"
    assert "10.9.0.50" in host.run(*ask.split())
    fetch = "ip netns exec machine curl -sf --max-time 20 -o /tmp/program tftp://10.9.0.1/undionly.kpxe"
    host.run(*fetch.split())
    assert int(host.run("stat", "-c", "%s", "/tmp/program")) > 10_000
    name = "ip netns exec machine curl -sf http://10.9.0.1:7080/2009-04-04/meta-data/instance-id"
    assert host.run(*name.split()).strip()
    # What was refused by the filter of system calls, or for want of a privilege, would be here.
    assert not [line for line in host.journal("-u", "tinkedge", "-p", "warning").splitlines() if "tinkedge" in line]


def test_reload_is_waited_for_and_changes_what_it_can(host: SystemdHost) -> None:
    pid = host.show("tinkedge", "MainPID")
    host.run("sh", "-c", "echo 'log-level: debug' >>/etc/tinkedge/tinkedge.yaml")
    host.run("systemctl", "reload", "tinkedge")
    wait_until(lambda: "log-level is debug now" in host.journal("-u", "tinkedge"))
    assert host.show("tinkedge", "ActiveState") == "active"
    assert host.show("tinkedge", "MainPID") == pid


def test_lines_in_the_journal_have_priorities_and_no_second_time(host: SystemdHost) -> None:
    lines = host.journal("-u", "tinkedge", "-o", "cat", "-p", "info").splitlines()
    assert any(line.startswith("edge.composition.stack: ready") for line in lines)


def test_journal_is_asked_for_a_machine_and_prometheus_for_the_process(host: SystemdHost) -> None:
    said = host.journal("-u", "tinkedge", f"TINKEDGE_MAC={MAC}", "TINKEDGE_STEP=dhcp", "-o", "cat").splitlines()
    assert said
    assert all(f": {MAC} dhcp " in line for line in said), said
    metrics = host.run("curl", "-sf", "http://127.0.0.1:7081/metrics").splitlines()
    assert "tinkedge_ready 1.0" in metrics
    assert any(line.startswith("process_resident_memory_bytes ") for line in metrics), "the unit hides /proc/stat"


def test_process_that_stands_still_is_ended_by_the_watchdog_and_starts_again(host: SystemdHost) -> None:
    host.run("mkdir", "-p", "/run/systemd/system/tinkedge.service.d")
    host.write("/run/systemd/system/tinkedge.service.d/fast.conf", "[Service]\nWatchdogSec=4s")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", "tinkedge")
    pid = host.show("tinkedge", "MainPID")
    host.run("kill", "-STOP", pid)
    wait_until(lambda: "Watchdog timeout" in host.journal("-u", "tinkedge"), within=30)
    wait_until(lambda: host.show("tinkedge", "NRestarts") == "1", within=30)
    wait_until(lambda: host.show("tinkedge", "ActiveState") == "active", within=60)
    assert "Fatal Python error: Aborted" in host.journal("-u", "tinkedge")


def test_stop_ends_it_and_apiserver_alone_starts_without_any_privilege(host: SystemdHost) -> None:
    host.run("systemctl", "stop", "tinkedge")
    assert host.show("tinkedge", "Result") == "success"
    host.run("systemctl", "start", "tinkedge-apiserver")
    status = host.run("cat", f"/proc/{host.show('tinkedge-apiserver', 'MainPID')}/status")
    assert re.search(r"^CapEff:\s+0000000000000000$", status, re.MULTILINE)
    host.run("systemctl", "stop", "tinkedge-apiserver")

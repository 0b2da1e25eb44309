"""The units of deploy/systemd under a real systemd: all in one, and each role; readiness, reload, watchdog, privileges,
and a machine that is installed by what they confine."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.interop.installed import manifests
from tests.interop.installed.host import ADDRESS, UNITS, Checkout, Host
from tests.interop.installed.machine import assert_machine_is_installed

MOST_EXPOSED = 3.0
ROLES = ("apiserver", "controller", "edge", "metal3", "metal3-webhook", "server")
HEALTH = {role: 7190 + number for number, role in enumerate(ROLES)}
WATCHDOG = "[Service]\nWatchdogSec=10s\n"
"""Six times sooner than in the units, and still long for a process that has to wait for a busy machine."""


def test_units_are_not_exposed_and_wait_for_network_and_clock_where_the_host_waits_for_them() -> None:
    units = sorted(UNITS.glob("*.service"))
    assert len(units) == 2 + len(ROLES)
    for unit in units:
        command = ["systemd-analyze", "security", "--offline=true", "--no-pager", unit]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        level = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout + done.stderr)
        assert level is not None
        assert float(level[1]) < MOST_EXPOSED, unit.name
        if unit.name != "tinkedge-backup.service":
            assert "\nAfter=network-online.target time-sync.target\n" in unit.read_text(), unit.name


def installed(directory: Path) -> Checkout:
    """A host, off, whose watchdog is less patient."""
    host = Checkout(directory)
    for unit in (UNITS / f"{name}.service" for name in ("tinkedge", *(f"tinkedge-{role}" for role in ROLES))):
        override = host.disk / f"etc/systemd/system/{unit.name}.d/watchdog.conf"
        override.parent.mkdir()
        override.write_text(WATCHDOG)
    return host


def privileges(host: Host, unit: str) -> tuple[bool, int, bool]:
    """Return a unit's privileges: whether it runs as root, its capabilities, and whether system calls are filtered."""
    status = host.run("cat", f"/proc/{host.show(unit, 'MainPID')}/status")
    found = {name: value.split() for name, _, value in (line.partition(":") for line in status.splitlines())}
    return "0" in found["Uid"], int(found["CapEff"][0], 16), found["Seccomp"] == ["2"]


def freeze(host: Host, *units: str) -> None:
    """Stop the units' processes with a signal; the watchdog kills them, and systemd restarts them."""
    before = {unit: int(host.show(unit, "NRestarts")) for unit in units}
    host.run("kill", "-STOP", *(host.show(unit, "MainPID") for unit in units))
    host.wait(lambda: all(int(host.show(unit, "NRestarts")) > before[unit] for unit in units))
    host.wait(lambda: all(host.show(unit, "ActiveState") == "active" for unit in units))
    for unit in units:
        output = host.journal("-u", unit)
        assert "Watchdog timeout" in output
        assert "Fatal Python error: Aborted" in output, "it leaves the stack of each thread"


# --- all in one process -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with installed(tmp_path_factory.mktemp("host") / "one") as host:
        host.path("/etc/tinkedge/tinkedge.yaml").write_text("interface: eth1\nhealth-address: 7082\n")
        host.run("systemctl", "start", "tinkedge")
        yield host


def test_start_returns_when_machines_are_served_and_status_says_which(host: Host) -> None:
    assert host.answers("/readyz")
    assert json.loads(host.run("tinkedge", "health", "--json"))["ok"]
    assert f"eth1 ({ADDRESS})" in host.show("tinkedge", "StatusText")
    assert privileges(host, "tinkedge") == (False, 1 << 10 | 1 << 12 | 1 << 13, True)


def warnings(host: Host, *options: str) -> list[str]:
    """All that there are, but not that this machine is busy."""
    lines = host.journal("-u", "tinkedge", "-p", "warning", *options).splitlines()
    return [line for line in lines if "the event loop stood still" not in line]


def test_machine_is_installed_by_the_confined_service(host: Host, tmp_path: Path) -> None:
    assert_machine_is_installed(host, tmp_path / "machine")
    # What was refused by the filter of system calls, or for want of a privilege, would be here.
    assert warnings(host) == []


def test_reload_is_waited_for_and_changes_what_it_can(host: Host) -> None:
    pid = host.show("tinkedge", "MainPID")
    with host.path("/etc/tinkedge/tinkedge.yaml").open("a") as settings:
        settings.write("log-level: debug\n")
    host.run("systemctl", "reload", "tinkedge")
    host.wait(lambda: "log-level is debug now" in host.journal("-u", "tinkedge"))
    assert host.show("tinkedge", "ActiveState") == "active"
    assert host.show("tinkedge", "MainPID") == pid


def test_journal_is_asked_for_a_machine_and_prometheus_for_the_process(host: Host) -> None:
    lines = host.journal("-u", "tinkedge", "-o", "cat", "-p", "info").splitlines()
    assert any(line.startswith("edge.run.graph: ready") for line in lines), "priorities, and no second time"
    asked = (f"TINKEDGE_MAC={manifests.MAC}", "TINKEDGE_STEP=dhcp")
    output = host.journal("-u", "tinkedge", *asked, "-o", "cat").splitlines()
    assert output
    assert all(f": {manifests.MAC} dhcp " in line for line in output), output
    wrote = ("TINKEDGE_USER=admin", "TINKEDGE_WORKFLOW=default/first", "TINKEDGE_OUTCOME=created")
    (line,) = host.journal("-u", "tinkedge", *wrote, "-o", "cat").splitlines()
    assert line.endswith("admin from 127.0.0.1: create workflows.tinkerbell.org default/first: created")
    metrics = host.run("curl", "-sf", "http://127.0.0.1:7081/metrics").splitlines()
    assert "tinkedge_ready 1.0" in metrics
    assert any(line.startswith("process_resident_memory_bytes ") for line in metrics), "the unit hides /proc/stat"


def test_backup_is_made_by_its_unit_and_the_oldest_goes(host: Host) -> None:
    host.path("/etc/default/tinkedge").write_text("TINKEDGE_KEEP=1\n")
    host.run("systemctl", "start", "tinkedge-backup")
    backups = host.path("/var/lib/tinkedge-backups")
    (backups / "tinkedge-20200101T000000Z.tgz").write_text("of long ago")
    (backups / "notes").write_text("of somebody")
    host.run("systemctl", "start", "tinkedge-backup")
    made = sorted(each.name for each in backups.iterdir())
    assert len(made) == 2, made
    assert "of long ago" not in (backups / made[1]).read_bytes().decode("latin1")
    assert host.run("stat", "-c", "%U %a", f"/var/lib/tinkedge-backups/{made[1]}").strip() == "tinkedge 600"
    assert host.journal("-u", "tinkedge-backup", "-p", "warning") == ""
    assert host.show("tinkedge", "ActiveState") == "active"
    host.run("systemctl", "enable", "--now", "tinkedge-backup.timer")
    assert host.show("tinkedge-backup.timer", "NextElapseUSecRealtime")


def test_data_directory_where_the_unit_may_not_write_is_reported_with_the_remedy(host: Host) -> None:
    elsewhere = host.path("/srv/tinkedge")
    elsewhere.mkdir(mode=0o700)
    host.run("chown", "tinkedge:", "/srv/tinkedge")
    settings = host.path("/etc/tinkedge/tinkedge.yaml")
    before = settings.read_text()
    settings.write_text(f"{before}data-dir: /srv/tinkedge\n")
    host.run("systemctl", "restart", "--no-block", "tinkedge")
    host.wait(lambda: "ReadWritePaths=/srv/tinkedge" in host.journal("-u", "tinkedge"))
    override = host.path("/etc/systemd/system/tinkedge.service.d/data.conf")
    override.write_text("[Service]\nReadWritePaths=/srv/tinkedge\n")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", "tinkedge")
    assert (elsewhere / "state.db").exists()
    settings.write_text(before)
    override.unlink()
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", "tinkedge")


def test_hanging_process_is_ended_by_the_watchdog_and_restarted(host: Host) -> None:
    freeze(host, "tinkedge")
    host.run("systemctl", "stop", "tinkedge")
    assert host.show("tinkedge", "Result") == "success"


# --- each role by itself ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """All roles are enabled on one host, with the API of the first."""
    settings: dict[str, object] = {"interface": "eth1", "kubeconfig": "/var/lib/tinkedge/kubeconfig"}
    settings |= {role: {"health-address": port} for role, port in HEALTH.items()}
    settings["metal3-webhook"] = {"health-address": HEALTH["metal3-webhook"], "webhook-url": "https://127.0.0.1:9443"}
    with installed(tmp_path_factory.mktemp("roles") / "host") as host:
        host.path("/etc/tinkedge/tinkedge.yaml").write_text(yaml.safe_dump(settings))
        yield host


def test_role_is_started_again_until_its_api_is_there_and_start_returns_when_it_is_ready(roles: Host) -> None:
    roles.run("systemctl", "start", "--no-block", "tinkedge-controller")
    roles.wait(lambda: "there is no file" in roles.journal("-u", "tinkedge-controller"))
    roles.wait(lambda: roles.show("tinkedge-controller", "ActiveState") == "activating")
    roles.run("systemctl", "start", "tinkedge-apiserver")
    roles.path("/root/hosts.yaml").write_text(roles.run("tinkedge", "crds", "--metal3"))
    roles.kubectl("apply", "--server-side", "-f", "/root/hosts.yaml")
    roles.wait(lambda: roles.show("tinkedge-controller", "ActiveState") == "active")
    roles.run("systemctl", "start", *(f"tinkedge-{role}" for role in ROLES))
    for role in ROLES:
        assert roles.answers("/readyz", "127.0.0.1", HEALTH[role]), role
        assert roles.show(f"tinkedge-{role}", "StatusText"), role


def test_machine_is_installed_by_roles_that_each_run_by_themselves(roles: Host, tmp_path: Path) -> None:
    assert_machine_is_installed(roles, tmp_path / "machine")


def test_role_has_no_more_privileges_than_it_needs_and_a_reload_does_not_end_it(roles: Host) -> None:
    for role in ROLES:
        unit, capabilities = f"tinkedge-{role}", 1 << 10 | 1 << 12 | 1 << 13 if role == "edge" else 0
        assert privileges(roles, unit) == (False, capabilities, True), role
        pid = roles.show(unit, "MainPID")
        roles.run("systemctl", "reload", unit)
        roles.wait(lambda unit=unit: "SIGHUP: done" in roles.journal("-u", unit))
        assert roles.show(unit, "MainPID") == pid


def test_hanging_roles_are_ended_by_the_watchdog_restart_and_stop_on_request(roles: Host) -> None:
    units = [f"tinkedge-{role}" for role in ROLES]
    freeze(roles, *units)
    roles.run("systemctl", "stop", *units)
    assert {roles.show(unit, "Result") for unit in units} == {"success"}

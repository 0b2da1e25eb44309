"""`tinkedge fleet`: its machines boot from a real stack, all of them, and no action is run twice, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from edge.building.shell import family
from edge.fleet.network import PREFIX, MachineLink
from edge.fleet.objects import Boots, Objects
from edge.fleet.population import Profile, identity
from edge.fleet.settings import FleetSettings
from edge.fleet.stack import Stack
from edge.lab.namespaces import inside, remove_abandoned
from tests.interop.authority import Authority
from tests.waiting import until
from tink.kube.client import KubeClient
from tink.kube.resources import HARDWARE, WORKFLOW

FLEET = [sys.executable, "-m", "edge.cli", "fleet", "--quiet"]
SYNCED = {"disk": True, "output": ["{percent} %", "synced"]}
QUICK: dict[str, Any] = {
    "firmware": {"bios": 6, "uefi": 1, "uefi-http": 1},
    "power-on": [0, 1],
    "post": [0.1, 0.3],
    **dict.fromkeys(("loader", "kernel", "osie", "reboot", "system"), 0.1),
    "actions": {
        "inspect": {"seconds": 0.1, "output": ["a disk"]},
        "write-image": {"seconds": [0.1, 0.3], **SYNCED},
        "verify": {"seconds": 0.1},
    },
}
PLAGUED: dict[str, Any] = {
    **QUICK,
    "power-on": [0, 3],
    "round-pause": 1,
    "power-off": [0.2, 1],
    "hang": [1, 3],
    "patience": 30,
    "actions": {
        "inspect": {"seconds": [0.5, 1]},
        "write-image": {"seconds": [2, 6], **SYNCED},
        "verify": {"seconds": [0.5, 1]},
    },
    "faults": {
        "lost-packets": 0.02,
        "power-cuts": 0.3,
        "hanging-firmware": 0.1,
        "failing-actions": 0.05,
        "slow-disks": 0.1,
        "lying-clocks": 0.05,
    },
}


def run(directory: Path, profile: dict[str, Any], *options: str, prefix: tuple[str, ...] = ()) -> tuple[int, Any, str]:
    """Its exit status, its report as JSON (None: there is none), and what it printed."""
    (directory / "profile.yaml").write_text(yaml.safe_dump(profile))
    report = directory / "report.json"
    files = ["--profile", str(directory / "profile.yaml"), "--json", str(report)]
    command = [*prefix, *FLEET, *files, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = json.loads(report.read_text()) if report.exists() else None
    return done.returncode, found, done.stdout + done.stderr


def secured(directory: Path, address: str) -> list[str]:
    """Options of a stack whose agents need a token, over TLS."""
    chain, key = Authority(directory).sign("server", x509.IPAddress(IPv4Address(address)))
    options = [f"--grpc-tls-cert={chain}", f"--grpc-tls-key={key}", "--agent-auth=token"]
    return [word for option in options for word in ("--stack-option", option)]


def test_thirty_machines_boot_without_a_failure_over_tls_and_with_tokens(tmp_path: Path) -> None:
    options = ["--machines", "30", "--initrd-size", "4MB", "--kernel-size", "1MB", *secured(tmp_path, "192.0.2.1")]
    namespaces = lambda: set(Path("/run/netns").glob("tinkedge-fleet-*"))  # noqa: E731
    before = namespaces()
    status, report, printed = run(tmp_path, QUICK, *options, "--bar", "installed=30", "--limit", "240")
    assert status == 0, printed
    assert [error for error in report["errors"] if " again" not in error] == []  # late is not wrong
    numbers = report["numbers"]
    assert (numbers["failed"], numbers["twice"], numbers["actions"]) == (0, 0, 90)
    assert namespaces() == before, "what it made is gone"


def test_unknown_machines_are_discovered_approved_by_a_list_and_installed_and_each_error_is_found(
    tmp_path: Path,
) -> None:
    options = ["--machines", "24", "--unknown", "--planted", "11", "--initrd-size", "4MB", "--kernel-size", "1MB"]
    status, report, printed = run(tmp_path, QUICK, *options, "--limit", "400")
    assert status == 0, printed
    assert report["conditions"]["planted errors"] == "11 planted, 11 found, 0 false"
    unapproved = 3  # two with one serial number, and one with another BMC
    assert report["numbers"]["installed"] == 24 - unapproved
    assert report["numbers"]["failed"] == 0


def test_machines_that_are_off_are_powered_on_by_bmc_control(tmp_path: Path) -> None:
    options = ["--machines", "12", "--bmc", "--initrd-size", "4MB", "--kernel-size", "1MB", "--limit", "240"]
    status, report, printed = run(tmp_path, QUICK, *options, "--bar", "powered-on=12", "--bar", "installed=12")
    assert status == 0, printed
    assert "12 machines powered on, in 12 starts" in report["conditions"]["BMCs"]
    assert report["conditions"]["BMCs"].endswith(" 0 refused, 0 sessions left")


async def test_killed_fleet_takes_its_stack_along_even_if_the_stack_does_not_react(tmp_path: Path) -> None:
    fleet = subprocess.Popen([*FLEET, "--machines", "1"], env={**os.environ, "TMPDIR": str(tmp_path)})
    stack: list[int] = []
    try:
        await until(lambda: any("ready: " in log.read_text() for log in tmp_path.glob("*/up.log")), within=60)
        _, *stack = family(fleet.pid)
        assert len(stack) > 1, "the gRPC server is a process of its own"
        os.kill(stack[0], signal.SIGSTOP)
        fleet.kill()
        fleet.wait()
        await until(lambda: not any(map(is_running, stack)))
    finally:
        for process in (fleet.pid, *stack):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        fleet.wait()
        await remove_abandoned(PREFIX)


def is_running(pid: int) -> bool:
    """Return True if a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_no_host_is_attacked_by_accident(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("{}")
    options = ["--target", "127.0.0.1", "--kubeconfig", str(tmp_path / "kubeconfig"), "--osie", "lab"]
    status, report, printed = run(tmp_path, QUICK, *options)
    assert (status, report) == (2, None)
    assert "the host's own network namespace, where no machine may run" in printed


@pytest.mark.soak
@pytest.mark.parametrize("link", [MachineLink.RELAY, MachineLink.DIRECT])
def test_no_action_runs_twice_when_machines_fail(tmp_path: Path, link: MachineLink) -> None:
    address = "192.0.2.1" if link is MachineLink.RELAY else "10.64.0.1"
    options = ["--machines", "100", "--link", link, "--initrd-size", "4MB", "--limit", "240"]
    options += secured(tmp_path, address)
    status, report, printed = run(tmp_path, PLAGUED, *options)
    assert status == 0, printed
    assert report["twice"] == []
    assert report["numbers"]["failed-without-fault"] == 0
    assert report["numbers"]["provisioned"] >= 50
    assert {"datagrams lost", "power cuts", "firmware hung", "actions failed"} <= set(report["faults"])
    assert any("by the machine's clock" in error for error in report["errors"])


@pytest.mark.soak
async def test_existing_site_is_used_and_left_unchanged(tmp_path: Path) -> None:
    network = IPv4Network("10.80.0.0/16")
    (tmp_path / "site").mkdir()
    async with AsyncExitStack() as stack:
        settings = FleetSettings(1, Profile(), network=network, kernel_bytes=1_000_000, initrd_bytes=4_000_000)
        site = Stack(settings, tmp_path / "site")
        await site.up(stack)
        # In the API's namespace, with the machines in another one.
        prefix = ("nsenter", f"--net={site.namespace}")
        target = ["--target", site.server, "--netns", site.machines.name, "--kubeconfig", str(site.kubeconfig)]
        target += ["--network", str(network), "--machines", "20", "--limit", "60"]
        boots = ["--kernel-url", site.boots.kernel_url, "--initrd-url", site.boots.initrd_url]
        run_and_install_all(tmp_path, *target, *boots, prefix=prefix)
        assert await names_in(site, HARDWARE) == await names_in(site, WORKFLOW) == []

        machines = [identity("rack", network, number) for number in range(20)]
        with inside(site.namespace):
            async with await KubeClient.connect(site.kubeconfig) as client:
                objects = Objects(client, "default", "operators", lambda *_: None)
                made = Boots("", site.boots.kernel_url, site.boots.initrd_url)
                await objects.generate(machines, Profile.model_validate(QUICK), network, str(network[1]), made)
        cluster = ["--hardware", "cluster", "-l", "tinkedge.org/fleet=operators"]
        run_and_install_all(tmp_path, *target, *cluster, prefix=prefix)
        assert len(await names_in(site, HARDWARE)) == 20


def run_and_install_all(directory: Path, *options: str, prefix: tuple[str, ...]) -> None:
    status, report, printed = run(directory, QUICK, *options, prefix=prefix)
    assert (status, report["numbers"]["installed"]) == (0, 20), printed


async def names_in(site: Stack, resource: Any) -> list[str]:
    with inside(site.namespace):
        async with await KubeClient.connect(site.kubeconfig) as client:
            found = await client.list(resource, "default")
    return [item["metadata"]["name"] for item in found["items"]]

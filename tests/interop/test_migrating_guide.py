"""docs/migrating.md, "A running site, in an afternoon, and back": the test types each line in order.

    edge's namespace: rack0 172.31.77.1 --- bridge --- eth0 of a machine whose HookOS runs, with its agent

tinkedge, kubectl, udhcpc, curl and logger are real. The old stack is simulated: its DHCP by dnsmasq, its Tink server
and the agent by `old_site`, its API by an embedded one with v1alpha1's definitions. Lines that can't run here
(systemd's services, the scaling of the old deployments) are replaced by their effects.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.installed.transcript import blocks
from tests.interop.rack import ADDRESS, IN_EDGE, TINKEDGE, Kubectl, Namespaces, Process
from tests.waiting import wait_until

pytestmark = pytest.mark.long

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrating.md"
CHAPTERS = (
    "## A running site, in an afternoon, and back",
    "### 1. Look",
    "### 2. Say what HookOS needs",
    "### 3. Check, without serving a machine",
    "### 4. Let what runs end",
    "### 5. Swap",
    "### 6. Try one machine",
)
BACK = "### Back"
IN_MACHINE, MACHINE, ADDRESS_OF_MACHINE = "machine", "52:54:00:00:07:01", "172.31.77.50"
AGENT = "rack1-u07"
NAMESPACE = "tink-system"
OLD_PORT = "7443"

OLD_OBJECTS = f"""
apiVersion: v1
kind: Namespace
metadata: {{name: {NAMESPACE}}}
---
apiVersion: tinkerbell.org/v1alpha1
kind: Hardware
metadata: {{name: u07, namespace: {NAMESPACE}}}
spec:
  agentID: {AGENT}
  interfaces:
  - dhcp:
      mac: "{MACHINE}"
      arch: x86_64
      hostname: u07
      ip: {{address: {ADDRESS_OF_MACHINE}, netmask: 255.255.255.0, gateway: {ADDRESS}}}
      name_servers: [{ADDRESS}]
    netboot:
      allowPXE: true
      allowWorkflow: true
      osie: {{baseURL: "http://172.31.77.9/hook", kernel: vmlinuz-x86_64, initrd: initramfs-x86_64}}
  disks: [{{device: /dev/sda}}]
  metadata:
    facility: {{facility_code: lab, plan_slug: c3.small}}
    instance: {{id: "{MACHINE}", tags: [blue], operating_system: {{distro: ubuntu, version: "24.04"}}}}
---
apiVersion: tinkerbell.org/v1alpha1
kind: Template
metadata: {{name: install, namespace: {NAMESPACE}}}
spec:
  data: |
    version: "0.1"
    name: install
    global_timeout: 1800
    tasks:
    - name: os
      worker: "{{{{.device_1}}}}"
      actions:
      - name: stream image
        image: quay.io/tinkerbell/actions/image2disk:latest
        timeout: 600
        environment:
          DEST_DISK: {{{{ index .Hardware.Disks 0 }}}}
      - name: write netplan
        image: quay.io/tinkerbell/actions/writefile:latest
        timeout: 90
"""


def workflow(name: str, state: str) -> str:
    return f"""
---
apiVersion: tinkerbell.org/v1alpha1
kind: Workflow
metadata: {{name: {name}, namespace: {NAMESPACE}}}
spec:
  templateRef: install
  hardwareRef: u07
  hardwareMap: {{device_1: "{MACHINE}"}}
status: {{state: {state}}}
"""


class Site(Namespaces):
    """The network with the old stack and a machine, later with the new stack."""

    def build(self) -> None:
        self.network("rack0", {IN_MACHINE: MACHINE})
        self.old_kubeconfig = self.directory / "old-api" / "kubeconfig"
        self.data_dir, self.etc = self.directory / "data", self.directory / "etc"
        self.etc.mkdir()
        self.bin = self.directory / "bin"
        self.bin.mkdir()
        (self.bin / "tinkedge").write_text(f'#!/bin/sh\nexec {" ".join(TINKEDGE)} "$@"\n')
        (self.bin / "tinkedge").chmod(0o755)
        (self.bin / "kubectl").symlink_to(str(shutil.which("kubectl")))
        self.services: dict[str, Process] = {}
        self.exports: list[str] = []
        self.old_stack: list[Process] = []
        api = self._program("api", str(self.old_kubeconfig.parent), OLD_PORT)
        wait_until(lambda: "ready" in api.out, lambda: api.err)
        self.old = Kubectl(self, self.old_kubeconfig)
        self.old.apply(OLD_OBJECTS + workflow("done", "STATE_SUCCESS") + workflow("next", "STATE_PENDING"))
        self.script = self.directory / "udhcpc"
        self.script.write_text(
            '#!/bin/sh\n[ "$1" = bound ] && ip -4 addr replace "$ip/$mask" dev "$interface"\nexit 0\n'
        )
        self.script.chmod(0o755)

    def _program(self, name: str, *words: str, where: str = IN_EDGE) -> Process:
        return self.start(where, sys.executable, "-m", f"tests.interop.old_site.{name}", *words)

    # --- the old stack ------------------------------------------------------------------------------------------------

    def scale(self, replicas: int) -> None:
        """Scale the simulated deployments of Smee and the Tink server."""
        for process in self.old_stack:
            process.end()
        self.old_stack = []
        if replicas:
            dnsmasq = [
                "dnsmasq", "--conf-file=/dev/null", "--keep-in-foreground", "--port=0", "--user=root",
                "--interface=rack0", "--bind-interfaces", f"--pid-file={self.directory}/dnsmasq.pid",
                f"--dhcp-leasefile={self.directory}/leases", "--dhcp-range=172.31.77.0,static",
                f"--dhcp-host={MACHINE},{ADDRESS_OF_MACHINE}", "--dhcp-authoritative", "--log-dhcp",
                "--log-facility=-",
            ]  # fmt: skip
            server = self._program("tink_server", f"{ADDRESS}:42113")
            self.old_stack = [self.start(IN_EDGE, *dnsmasq), server]
            wait_until(lambda: "ready" in server.out, lambda: server.err)

    # --- the machine --------------------------------------------------------------------------------------------------

    def request_lease(self) -> str:
        """Run the machine's DHCP client; return its output."""
        ask = ["busybox", "udhcpc", "-i", "eth0", "-f", "-n", "-q", "-t", "5", "-T", "1", "-s", self.script]
        process = self.run(IN_MACHINE, *ask)
        assert process.popen.returncode == 0, process.err
        return process.out + process.err

    def fetch(self, url: str) -> str:
        return self.run(IN_MACHINE, "curl", "-s", "--max-time", "15", f"http://{ADDRESS}{url}").out

    # --- the page's lines ---------------------------------------------------------------------------------------------

    def type(self, line: str) -> str:
        """Execute a line of the page and return its output. Raises AssertionError if it fails."""
        if line.startswith("export "):
            self.exports.append(self._here(line))
            return ""
        if "scale deployment" in line:
            self.scale(int(line.rpartition("=")[2]))
            return ""
        if line.startswith("systemctl "):
            self._service(*line.removeprefix("systemctl ").replace(" --now", "").split())
            return ""
        typed = "\n".join(["set -eo pipefail", f"cd {self.directory}", *self.exports, self._here(line)])
        process = self.run(
            IN_EDGE, "env", f"PATH={self.bin}:/usr/bin:/bin:/usr/sbin:/usr/local/bin", "bash", "-c", typed
        )
        # The conversion drops a field: the machine's arch, which its firmware sends.
        lossy = line.startswith("tinkedge convert --from-cluster")
        assert process.popen.returncode in ((0, 2) if lossy else (0,)), (line, process.out, process.err)
        return process.out + process.err

    def _here(self, line: str) -> str:
        line = line.replace("~/old.kubeconfig", str(self.old_kubeconfig)).replace("eth1", "rack0")
        return line.replace("/etc/tinkedge", str(self.etc)).replace("/var/lib/tinkedge", str(self.data_dir))

    def _service(self, verb: str, unit: str) -> None:
        if verb in ("stop", "disable"):
            assert self.services.pop(unit).terminate() == 0
            return
        command = {"tinkedge": "up", "tinkedge-apiserver": "apiserver"}[unit]
        settings = self.etc / "tinkedge.yaml"
        process = self.start(IN_EDGE, *TINKEDGE, command, "--config", settings, "--data-dir", self.data_dir)
        self.services[unit] = process
        wait_until(lambda: "ready: " in process.err, lambda: process.err)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as site:
        site.scale(1)
        yield site


def test_page_swaps_the_control_plane_and_back(site: Site) -> None:
    assert ADDRESS_OF_MACHINE in site.request_lease()
    agent = site._program("tink_agent", f"{ADDRESS}:42113", AGENT, where=IN_MACHINE)
    asked = f"asked by {AGENT}"
    wait_until(lambda: asked in site.old_stack[1].out, lambda: agent.out + agent.err)

    after: dict[str, Callable[[str], None]] = {
        "systemctl enable": lambda _: assert_serves(site, agent),
        "apply --server-side --dry-run": lambda said: expect(said, "workflow.tinkerbell.org/next", "(server dry run)"),
        "get hardware,workflows": lambda said: expect(said, "u07", "next", "Succeeded"),
    }
    for chapter in CHAPTERS:
        lines = blocks(PAGE, chapter)
        assert lines, chapter
        for line in lines:
            said = site.type(line)
            for part, check in after.items():
                if part in line:
                    check(said)
    report = (site.directory / "report.txt").read_text()
    assert "the Workflow has ended (SUCCESS)" in report
    assert "dhcp.arch" in report

    for line in blocks(PAGE, BACK):
        site.type(line)
    assert "next" not in site.old("get", "workflows", "-A"), "what has run does not run once more"
    assert "done" in site.old("get", "workflows", "-A")
    wait_until(lambda: asked in site.old_stack[1].out, lambda: agent.out + agent.err)
    assert ADDRESS_OF_MACHINE in site.request_lease()
    assert agent.popen.poll() is None


def expect(output: str, *words: str) -> None:
    assert all(word in output for word in words), output


def assert_serves(site: Site, agent: Process) -> None:
    """Check that the new stack serves the machine and its agent, and runs the waiting Workflow."""
    new = Kubectl(site, site.data_dir / "kubeconfig")
    process = site.services["tinkedge"]

    def state() -> str:
        return new("-n", NAMESPACE, "get", "workflow", "next", "-o", "jsonpath={.status.state}")

    wait_until(lambda: state() == "Succeeded", lambda: agent.out + agent.err + process.err, every=0.2)
    ran = [line for line in agent.out.splitlines() if line.startswith("ran ")]
    assert [line.split()[1:3] for line in ran] == [["stream", "image"], ["write", "netplan"]], "each once"
    annotations = json.loads(new("-n", NAMESPACE, "get", "hardware", "u07", "-o", "json"))["metadata"]["annotations"]
    assert json.loads(annotations["tinkerbell.org/agent-attributes"]) == {
        "cpu": {"totalCores": 4},
        "memory": {"total": "8GB"},
    }
    # The machine is powered on again: DHCP, script, requests of cloud-init and actions, log lines.
    assert ADDRESS_OF_MACHINE in site.request_lease()
    script = site.fetch(":8080/auto.ipxe")
    expect(script, f" worker_id={AGENT} ", f" hw_addr={MACHINE} ", f" syslog_host={ADDRESS} ", " tink_worker_image=")
    tree = "/2009-04-04/meta-data/"
    names = ("instance-id", "facility", "plan", "tags", "operating-system/distro")
    assert [site.fetch(f":50061{tree}{name}") for name in names] == [MACHINE, "lab", "c3.small", "blue", "ubuntu"]
    watch = site.start(IN_EDGE, *TINKEDGE, "watch", "--logs", "--data-dir", site.data_dir, MACHINE)

    def is_logged() -> bool:
        site.run(IN_MACHINE, "logger", "-n", ADDRESS, "-P", "514", "-d", "--rfc3164", "-t", "image2disk", "written")
        return "image2disk: written" in watch.out

    wait_until(is_logged, lambda: watch.out + watch.err, every=0.2)
    watch.end()
    journey = site.operators(site.data_dir, f"/api/v1/machines/{MACHINE}/events")
    assert f"tink-agent connected from {ADDRESS_OF_MACHINE}" in journey

"""The edge, and a namespace for each fault."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

from tests.interop.faults.boots import HEALTHY
from tests.interop.faults.fault import Fault
from tests.interop.faults.machine import UPSTREAM, Scripted
from tests.interop.rack import ADDRESS, IN_EDGE, Kubectl, Namespaces

OSIES = {
    "good": "http://127.0.0.1:8099/good",
    "missing": "http://127.0.0.1:8099/nothing",
    "stalls": "http://127.0.0.1:8099/stalls",
    "silent": "http://127.0.0.1:8099/silent",
    "page": "http://127.0.0.1:8099/page",
    "truncated": "http://127.0.0.1:8099/truncated",
    "refused": "http://127.0.0.1:8098/kernel",
    "no-name": "http://no-such-host.invalid/kernel",
    "bad-tls": "https://127.0.0.1:8099/good",
    "bad-checksum": "http://127.0.0.1:8099/another",
    "bad-certificate": "https://127.0.0.1:8097/good",
}
_DOCUMENT = """
apiVersion: tinkerbell.org/v1alpha2
kind: {kind}
metadata: {{name: {name}, annotations: {{{annotations}}}}}
spec: {spec}
---
"""


class Site(Namespaces):
    """All machines are there from the start; `faults` are played on them."""

    def __init__(self, directory: Path, faults: list[Fault]) -> None:
        super().__init__(directory)
        self.faults = faults
        self.data_dir = directory / "data"
        self._lock = threading.Lock()
        self._listed_at = 0.0
        self._hardware: dict[str, dict[str, Any]] = {}

    def build(self) -> None:
        self.network("rack0", {})
        self.start(IN_EDGE, sys.executable, UPSTREAM, "127.0.0.1", "8099")
        self.start(IN_EDGE, sys.executable, UPSTREAM, "127.0.0.1", "8097", _certificate(self.directory))
        options = ["--interface", "rack0", "--public-ip", ADDRESS, "--allow-upstream", "127.0.0.1/32"]
        self.edge = self.tinkedge(IN_EDGE, "up", *options, "--data-dir", self.data_dir)
        played = [*self.faults, HEALTHY]
        self.machines = {fault.name: self._machine(number, fault) for number, fault in enumerate(played, start=1)}
        self.ready(self.edge)
        self.kubectl = Kubectl(self, self.data_dir / "kubeconfig")
        objects = [*map(_osie, OSIES), *(_hardware(self.machines[fault.name], fault) for fault in played)]
        self.kubectl.apply("".join([*objects, *map(_workflow, self.faults)]))

    def _machine(self, number: int, fault: Fault) -> Scripted:
        where = f"m{number}"
        # Who is not registered is far from everybody, but for the one who is not.
        mac = f"52:54:00:0e:00:{number:02x}" if fault.registered else f"02:10:00:{255 - number:02x}:00:{number:02x}"
        if fault.name == "one digit off":
            mac = "52:54:00:0e:fe:01"
        self.add(where)
        self.card(where, "eth0", mac, "rack0")
        address = fault.ip or f"172.31.77.{100 + number}"
        if fault.drop:
            self._drop(where, address, *fault.drop.split())
        if fault.ip:  # it has none that it could use, and yet has to send to its relay's server
            self.address(where, f"172.31.77.{200 + number}/24")
        machine = Scripted(self, where, mac, address)
        machine.told = lambda: self.told(mac)
        return machine

    def _drop(self, where: str, address: str, side: str, protocol: str, port: str) -> None:
        drop = ["-p", protocol, "--dport", port, "-j", "DROP"]
        if side == "here":
            self.run(IN_EDGE, "iptables", "-w", "-A", "INPUT", "-s", address, *drop)
        elif side == "blocks":  # they come from a port of their own
            self.run(where, "iptables", "-w", "-A", "INPUT", "-p", protocol, "--sport", "1024:", "-j", "DROP")
        else:
            self.run(where, "iptables", "-w", "-A", "OUTPUT", *drop)

    def events(self, mac: str) -> list[dict[str, Any]]:
        """What its journey says, oldest first."""
        return list(json.loads(self.operators(self.data_dir, f"/api/v1/machines/{mac}/events") or "[]"))

    def hardware(self, name: str) -> dict[str, Any]:
        """A Hardware as kubectl shows it, which is asked for all of them twice a second, however many wait."""
        with self._lock:
            if time.monotonic() - self._listed_at > 0.5:
                listed = json.loads(self.kubectl("get", "hardware", "-o", "json"))["items"]
                self._hardware = {one["metadata"]["name"]: one for one in listed}
                self._listed_at = time.monotonic()
            return self._hardware[name]

    def told(self, mac: str) -> str:
        """The same as lines."""
        return "\n".join(f"{event['outcome']} {event['message']}" for event in self.events(mac))


def _certificate(directory: Path) -> Path:
    """A certificate that nobody has signed but its owner, with its key."""
    path = directory / "upstream.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(path), "-out", str(directory / "upstream.crt")]
    subprocess.run([*words, "-subj", "/CN=127.0.0.1", "-days", "2", *files], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + (directory / "upstream.crt").read_bytes())
    return path


def _osie(name: str) -> str:
    annotations = f"tinkerbell.org/kernel-sha256: '{'0' * 64}'" if name == "bad-checksum" else ""
    spec = f"{{kernelUrl: '{OSIES[name]}', initrdUrl: '{OSIES['good']}'}}"
    return _DOCUMENT.format(kind="OSIE", name=name, annotations=annotations, spec=spec)


def _hardware(firmware: Scripted, fault: Fault) -> str:
    name, mac = fault.slug, firmware.mac
    if not fault.registered:
        if fault.name != "one digit off":
            return ""
        name, mac = "never-heard", "52:54:00:0e:ff:01"
    dhcp = f"dhcp: {{ip: {firmware.ip}, {fault.dhcp or 'netmask: 255.255.255.0'}}}"
    interface = ", ".join(one for one in (fault.interface, dhcp) if one)
    osie = f"osie: {{name: {fault.osie}}}, " if fault.osie else ""
    spec = f"{{{osie}networkInterfaces: {{'{mac}': {{{interface}}}}}}}"
    return _DOCUMENT.format(kind="Hardware", name=name, annotations="", spec=spec)


def _workflow(fault: Fault) -> str:
    """Its Workflow and Template, if it is to have them."""
    if not fault.actions and not fault.workflow:
        return ""
    name = fault.slug
    template = f"\n  actions:\n{textwrap.indent(fault.actions, '  ')}"
    more = fault.workflow or f"templateRef: {{name: {name}}}"
    workflow = f"{{hardwareRef: {{name: {name}}}, {more}}}"
    return (_DOCUMENT.format(kind="Template", name=name, annotations="", spec=template) if fault.actions else "") + (
        _DOCUMENT.format(kind="Workflow", name=name, annotations="", spec=workflow)
    )

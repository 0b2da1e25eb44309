"""The edge, and a namespace for each fault."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys
import textwrap
import threading
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography import x509

from tests.interop.authority import Authority
from tests.interop.faults import power
from tests.interop.faults.boots import HEALTHY
from tests.interop.faults.machine import UPSTREAM, Fault, Scripted
from tests.interop.faults.work import shell
from tests.interop.rack import ADDRESS, IN_EDGE, Kubectl, Namespaces, ip
from tests.support.bmc import USER
from tests.waiting import wait_until

OSIES = {
    "good": "http://127.0.0.1:8099/good",
    "missing": "http://127.0.0.1:8099/nothing",
    "stalls": "http://127.0.0.1:8099/stalls",
    "silent": "http://127.0.0.1:8099/silent",
    "huge": "http://127.0.0.1:8099/huge",
    "page": "http://127.0.0.1:8099/page",
    "truncated": "http://127.0.0.1:8099/truncated",
    "refused": "http://127.0.0.1:8098/kernel",
    "no-name": "http://no-such-host.invalid/kernel",
    "bad-tls": "https://127.0.0.1:8099/good",
    "bad-checksum": "http://127.0.0.1:8099/another",
    "bad-certificate": "https://127.0.0.1:8097/good",
}
LOOK_SECONDS = 1.5
SECOND = "172.31.78.1"
"""The edge's address in its second network."""
OTHER_CARD = "02:30:00:00:00:01"
NEAR = "never-heard"
"""The Hardware whose MAC differs in one digit from that of a machine."""
TWICE = "MAC of two Hardware"
_DOCUMENT = """
apiVersion: tinkerbell.org/v1alpha2
kind: {kind}
metadata: {{name: {name}, annotations: {{{annotations}}}}}
spec: {spec}
---
"""

_SECRET = """
apiVersion: v1
kind: Secret
metadata: {{name: {name}}}
stringData: {{username: {user}, password: {password}}}
---
"""
_LIST = """
apiVersion: v1
kind: ConfigMap
metadata: {{name: {name}, labels: {{tinkerbell.org/expected-machines: "true"}}}}
data:
  list.csv: |
    name,mac,ip,links
    {line}
---
"""
_MACHINE = """
apiVersion: bmc.tinkerbell.org/v1alpha1
kind: Machine
metadata: {{name: {name}}}
spec:
  connection:
    host: {host}
    insecureTLS: false
    certificateFingerprint: "{fingerprint}"
    authSecretRef: {{name: {name}, namespace: default}}
    providerOptions: {{preferredOrder: [gofish], redfish: {{port: {port}}}}}
---
"""


class Site(Namespaces):
    """All machines are there from the start; `faults` are played on them."""

    def __init__(self, directory: Path, faults: list[Fault]) -> None:
        super().__init__(directory)
        self.faults = faults
        self.data_dir = directory / "data"
        self._reading, self._looking = threading.Lock(), threading.Lock()
        self._read, self._looked = 0, 0.0
        self._events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._reasons: dict[str, set[str]] = defaultdict(set)
        self._problems: dict[str, str] = {}

    def build(self) -> None:
        self.network("rack0", {})
        self._second_network()
        self.start(IN_EDGE, sys.executable, UPSTREAM, "127.0.0.1", "8099")
        self.start(IN_EDGE, sys.executable, UPSTREAM, "127.0.0.1", "8097", _certificate(self.directory))
        authority = Authority(self.directory)
        chain, key = authority.sign("tls", x509.IPAddress(ipaddress.ip_address(ADDRESS)))
        self.authority = authority.file
        options = ["--interface", "rack0", "--interface", "rack1", "--allow-upstream", "127.0.0.1/32"]
        options += ["--cache-size", "2000000", "--bmc-boot-named-after", str(power.NAMED_AFTER)]
        options += ["--bmc-boot-next-after", "7200"]
        options += ["--agent-auth", "token", "--grpc-tls-cert", str(chain), "--grpc-tls-key", str(key)]
        for number, fault in enumerate(self.faults, start=1):
            options += _rule(number, fault)
        played = [*self.faults, HEALTHY]
        self.machines = {fault.name: self._machine(number, fault) for number, fault in enumerate(played, start=1)}
        self.kubectl = Kubectl(self, self.data_dir / "kubeconfig")
        twins = [fault for fault in played if fault.name == TWICE]
        twins += [replace(fault, name="its twin") for fault in twins]
        self._apply_unreviewed("".join(_hardware(self.machines[TWICE], fault) for fault in twins))
        self.edge = self.tinkedge(IN_EDGE, "up", *options, "--data-dir", self.data_dir)
        self.ready(self.edge)
        self._follow()
        self._serve_bmcs()
        objects = [
            _template(power.TEMPLATE, shell("true")),
            *map(_bmc_objects, self.faults, map(self._bmc_of, self.faults)),
        ]
        objects += [_lists(self.machines[fault.name], fault) for fault in self.faults]
        objects += [*map(_osie, OSIES), *(_hardware(self.machines[fault.name], fault) for fault in played)]
        self.warnings = self._applied("".join([*objects, *map(_workflow, self.faults)]))

    def _serve_bmcs(self) -> None:
        """Start the BMCs of all faults in one process."""
        faults = [fault for fault in self.faults if fault.bmc is not None and fault.bmc.state]
        states = [fault.bmc.state for fault in faults if fault.bmc is not None]
        self._bmc_process = self.start(IN_EDGE, sys.executable, "-m", "tests.interop.fake_bmc", *states)
        wait_until(lambda: self._bmc_process.out.count("\n") >= len(faults), lambda: self._bmc_process.err)
        lines = self._bmc_process.out.splitlines()
        self._bmcs = {fault.name: json.loads(line) for fault, line in zip(faults, lines, strict=False)}

    def _bmc_of(self, fault: Fault) -> dict[str, Any]:
        """Return `port` and `fingerprint` of a fault's BMC; empty without one."""
        return self._bmcs.get(fault.name, {})

    def bmc_state(self, fault: Fault) -> dict[str, Any]:
        """Return the last state that the BMC of a fault has printed."""
        states = map(json.loads, self._bmc_process.out.splitlines()[len(self._bmcs) :])
        found: dict[str, Any] = [each for each in states if each["port"] == self._bmc_of(fault)["port"]][-1]
        return found

    def _second_network(self) -> None:
        """With a second card of the edge on the same Ethernet, which answers ARP for the edge's address there, too."""
        self.bridge("rack1", f"{SECOND}/24")
        edge = self.namespaces[IN_EDGE]
        ip("-n", edge, "link", "add", "other1", "address", OTHER_CARD, "type", "veth", "peer", "name", "other1-port")
        ip("-n", edge, "link", "set", "other1-port", "master", "rack1", "up")
        ip("-n", edge, "link", "set", "other1", "up")

    def _applied(self, text: str) -> str:
        """Apply objects; return kubectl's warnings."""
        file = self.directory / "objects.yaml"
        file.write_text(text)
        applied = self.kubectl.run("apply", "-f", file)
        assert applied.popen.returncode == 0, applied.err
        return applied.err

    def _apply_unreviewed(self, text: str) -> None:
        """Store objects that a review would reject: `tinkedge apiserver` alone does not review."""
        api = self.tinkedge(IN_EDGE, "apiserver", "--data-dir", self.data_dir)
        wait_until(lambda: "ready: " in api.err, lambda: api.err)
        self._applied(text)
        api.end()

    def _machine(self, number: int, fault: Fault) -> Scripted:
        where = f"m{number}"
        # Who is not registered is far from everybody, but for the one who is not.
        mac = f"52:54:00:0e:00:{number:02x}" if fault.registered else f"02:10:00:{255 - number:02x}:00:{number:02x}"
        if fault.discovered is not None:
            mac = f"{_prefix(number)}:00:00:01"
        if fault.name == "one digit off":
            mac = "52:54:00:0e:fe:01"
        self.add(where)
        self.card(where, "eth0", mac, "rack1" if fault.second else "rack0")
        address = fault.ip or f"172.31.{78 if fault.second else 77}.{100 + number}"
        if fault.second:  # whose answer came first, is left to chance otherwise
            card = ["lladdr", OTHER_CARD, "dev", "eth0", "nud", "permanent"]
            ip("-n", self.namespaces[where], "neigh", "replace", SECOND, *card)
        if fault.drop:
            self._drop(where, address, *fault.drop.split())
        if fault.ip and not fault.routed:  # it has none that it could use, and yet has to send to its relay's server
            self.address(where, f"172.31.77.{200 + number}/24")
        if fault.routed:
            self._route(where, address)
        machine = Scripted(self, where, mac, address, SECOND if fault.second else ADDRESS)
        machine.authority = self.authority
        machine.journey_text = lambda: self.journey_text(mac)
        machine.state = lambda: str(self.machine(mac)["state"])
        return machine

    def _route(self, where: str, address: str) -> None:
        """The edge has a way to the network of the relay, behind a router that is there."""
        self.address(where, "172.31.77.199/24")
        network = address.rpartition(".")[0] + ".0/24"
        ip("-n", self.namespaces[IN_EDGE], "route", "add", network, "via", "172.31.77.199")

    def _drop(self, where: str, address: str, side: str, protocol: str, port: str) -> None:
        drop = ["-p", protocol, "--dport", port, "-j", "DROP"]
        if side == "here":
            self.run(IN_EDGE, "iptables", "-w", "-A", "INPUT", "-s", address, *drop)
        elif side == "blocks":  # they come from a port of their own
            self.run(where, "iptables", "-w", "-A", "INPUT", "-p", protocol, "--sport", "1024:", "-j", "DROP")
        else:
            self.run(where, "iptables", "-w", "-A", "OUTPUT", *drop)

    def _follow(self) -> None:
        """All journeys by one stream, for there are many who ask what theirs says."""
        token = (self.data_dir / "admin-token").read_text().strip()
        url = "http://127.0.0.1:7081/api/v1/events?since=all"
        self._stream = self.start(IN_EDGE, "curl", "-sN", "-H", f"Authorization: Bearer {token}", url)

    def events(self, mac: str) -> list[dict[str, Any]]:
        """Return the events of a machine's journey, oldest first."""
        with self._reading:
            output = self._stream.out_since(self._read)
            whole = output[: output.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                if line.startswith(b"data:") and b'"mac"' in line:
                    event = json.loads(line[5:])
                    self._events[event["mac"]].append(event)
            return list(self._events[mac])

    def shown(self, name: str) -> set[str]:
        """The reasons that `kubectl describe hardware NAME` has: of its condition, and of its Events."""
        with self._looking:
            if time.monotonic() - self._looked > LOOK_SECONDS:
                listed = json.loads(self.kubectl("get", "hardware,events", "-o", "json"))["items"]
                self._reasons, self._problems = defaultdict(set), {}
                for obj in listed:
                    if obj["kind"] == "Event":
                        self._reasons[obj["involvedObject"]["name"]].add(obj["reason"])
                    for one in obj.get("status", {}).get("conditions", []):
                        if one["type"] == "BootProblem":
                            self._reasons[obj["metadata"]["name"]].add(one["reason"])
                            self._problems[obj["metadata"]["name"]] = one["message"]
                self._looked = time.monotonic()
            return self._reasons[name]

    def problem(self, name: str) -> str:
        """Return the message of the condition of a Hardware as it was looked at last, with the MAC; "" without one."""
        with self._looking:
            return self._problems.get(name, "")

    def machine(self, mac: str) -> dict[str, Any]:
        """Return what the admin API says of one machine."""
        token = (self.data_dir / "admin-token").read_text().strip()
        url = f"http://127.0.0.1:7081/api/v1/machines/{mac}"
        done = self.run(IN_EDGE, "curl", "-sf", "-H", f"Authorization: Bearer {token}", url)
        found: dict[str, Any] = json.loads(done.out)
        return found

    def create_workflow(self, name: str, *, hardware: str, actions: str) -> None:
        """Create a Workflow and its Template for a Hardware."""
        reference = f"hardwareRef: {{name: {hardware}}}, templateRef: {{name: {name}}}"
        self._applied(_workflow(Fault(name, lambda _machine: None, "", "", actions=actions, workflow=reference)))

    def journey_text(self, mac: str) -> str:
        """The same as lines."""
        return "\n".join(f"{event['outcome']} {event['message']}" for event in self.events(mac))


def _certificate(directory: Path) -> Path:
    """Write a self-signed certificate with its key."""
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


def _prefix(number: int) -> str:
    """Return the first bytes of the MAC address of the machine with this number, if it is discovered."""
    return f"02:d1:{number:02x}"


def _rule(number: int, fault: Fault) -> list[str]:
    """Return the option with the rule that is for the machine of a fault; empty if none is."""
    if fault.discovered is None:
        return []
    address = f"172.31.77.{100 + number}"
    where = f"range={address}-{address}/24,mac={_prefix(number)},name=rule-{number}"
    return ["--discover", f"{where},osie=default/{fault.discovered.osie}"]


def _lists(firmware: Scripted, fault: Fault) -> str:
    """Return the list with the line for the machine of a fault, and the Hardware that has its address."""
    found = fault.discovered
    if found is None:
        return ""
    line = found.line.format(mac=firmware.mac)
    text = _LIST.format(name=fault.slug, line=line) if line else ""
    if found.is_full:
        spec = f"{{networkInterfaces: {{'02:40:00:00:00:01': {{dhcp: {{ip: {firmware.ip}}}}}}}}}"
        text += _DOCUMENT.format(kind="Hardware", name="holder", annotations="", spec=spec)
    return text


def _hardware(firmware: Scripted, fault: Fault) -> str:
    name, mac = fault.slug, firmware.mac
    if not fault.registered:
        if fault.name != "one digit off":
            return ""
        name, mac = NEAR, "52:54:00:0e:ff:01"
    dhcp = f"dhcp: {{ip: {firmware.ip}, {fault.dhcp or 'netmask: 255.255.255.0'}}}"
    interface = ", ".join(one for one in (fault.interface, dhcp) if one)
    osie = f"osie: {{name: {fault.osie}}}, " if fault.osie else ""
    bmc = f"bmcRef: {{name: {fault.slug}}}, " if fault.bmc else ""
    instance = f"instance: {{userdata: {json.dumps(fault.userdata)}}}, " if fault.userdata else ""
    spec = f"{{{osie}{bmc}{instance}networkInterfaces: {{'{mac}': {{{interface}}}}}}}"
    return _DOCUMENT.format(kind="Hardware", name=name, annotations="", spec=spec)


def _workflow(fault: Fault) -> str:
    """Its Workflow and Template, if it is to have them."""
    if not fault.actions and not fault.workflow:
        return ""
    name = fault.slug
    more = fault.workflow or f"templateRef: {{name: {name}}}"
    own = "" if "hardwareRef" in more else f"hardwareRef: {{name: {name}}}, "
    workflow = f"{{{own}{more}}}"
    return (_template(name, fault.actions) if fault.actions else "") + (
        _DOCUMENT.format(kind="Workflow", name=name, annotations="", spec=workflow)
    )


def _template(name: str, actions: str) -> str:
    spec = f"\n  actions:\n{textwrap.indent(actions, '  ')}"
    return _DOCUMENT.format(kind="Template", name=name, annotations="", spec=spec)


def _bmc_objects(fault: Fault, served: dict[str, Any]) -> str:
    """Return the Machine of a fault's BMC, and its Secret."""
    bmc, name = fault.bmc, fault.slug
    if bmc is None:
        return ""
    secret = _SECRET.format(name=name, user=USER, password=bmc.password) if bmc.password else ""
    fingerprint = bmc.fingerprint or served.get("fingerprint", "ab" * 32)
    return secret + _MACHINE.format(name=name, host=bmc.host, fingerprint=fingerprint, port=served.get("port", 443))

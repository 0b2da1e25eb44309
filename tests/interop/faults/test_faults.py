"""Faults on a real network, against a real `tinkedge up`: each is named on the journey and on the Hardware, and truly.

Every machine is a namespace of its own whose firmware is a script (`firmware`). All faults are played at the same time,
for most of what there is to do is waiting.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.interop.faults.firmware import IPXE, ROM, Firmware
from tests.interop.rack import ADDRESS, IN_EDGE, TINKEDGE, Kubectl, Namespaces, Process
from tests.waiting import wait_until

pytestmark = pytest.mark.long

UPSTREAM = Path(__file__).with_name("upstream.py")
UUID = "4c4c4544-0042-3510-8052-b4c04f4a3232"
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
    "bad-checksum": "http://127.0.0.1:8099/good?other",
}
_DOCUMENT = """
apiVersion: tinkerbell.org/v1alpha2
kind: {kind}
metadata: {{name: {name}, annotations: {{{annotations}}}}}
spec: {spec}
---
"""


@dataclass(frozen=True)
class Fault:
    """`play` gives back when the fault could be known, in seconds since the epoch; None: when it ended.

    `dhcp` is what the Hardware says otherwise than the network is; `osie` what it boots. `rules` are those that may
    name it, which depends on what comes first.
    """

    name: str
    play: Callable[[Firmware], float | None]
    rules: str
    sentence: str
    osie: str = "good"
    dhcp: str = ""
    ip: str = ""
    registered: bool = True
    drop: str = ""
    seconds: float = 10.0


def lease_and_knock(firmware: Firmware) -> float:
    firmware.lease()
    began = time.time()
    firmware.knock_at_tftp(4)
    return began


def lease(firmware: Firmware) -> None:
    firmware.lease()


def discovers(firmware: Firmware) -> None:
    for _ in range(3):
        firmware.discover()
        time.sleep(1)


def behind_relay(firmware: Firmware) -> None:
    for _ in range(3):
        firmware.discover(giaddr="10.98.0.1")
        time.sleep(1)


def no_script(firmware: Firmware) -> float:
    firmware.to_ipxe()
    began = time.time()
    firmware.get(f"/ipxe/script/{firmware.mac}/auto.ipxe", within=8)
    return began


def kernel(osie: str) -> Callable[[Firmware], float]:
    def play(firmware: Firmware) -> float:
        firmware.to_ipxe()
        firmware.script()
        began = time.time()
        assert firmware.kernel(osie, within=14) != 0
        return began

    return play


def refused(firmware: Firmware) -> None:
    firmware.discover()


def second_card(firmware: Firmware) -> None:
    # The first card has to have said its UUID before.
    time.sleep(14)
    firmware.discover(ROM, uuid=UUID)


def no_agent(firmware: Firmware) -> float:
    firmware.to_osie(uuid=UUID)
    began = time.time()
    firmware.get_tcp(42113, seconds=8)
    return began


def idle_agent(firmware: Firmware) -> float:
    firmware.to_osie()
    firmware.agent()
    return time.time()


def starts_again(firmware: Firmware) -> None:
    firmware.to_osie()
    time.sleep(2)
    firmware.discover()


def shim_and_grub(firmware: Firmware) -> None:
    """What EDK2, shim 16 and GRUB 2.12 ask for, as was seen; most of it is not there, and that is as it should be."""
    firmware.lease()
    firmware.tftp("snponly.efi")
    for name in ("revocations_sku.efi", "revocations_sbat.efi", "shim_certificate_0.efi"):
        firmware.tftp(name)
    for name in ("command", "fs", "crypto", "terminal"):
        firmware.tftp(f"grub/x86_64-efi/{name}.lst")
    firmware.tftp("grub/grub.cfg")
    firmware.lease(IPXE)
    firmware.ipxe_to_osie()


FAULTS = [
    Fault(
        "this host drops udp/69",
        lease_and_knock,
        "NoTFTPRequest",
        r"this host's firewall drops udp/69 \(arrived (twice|\d times) on rack0, and never here\)",
        drop="here udp 69",
    ),
    Fault(
        "udp/69 is lost on the way",
        lease_and_knock,
        "NoTFTPRequest",
        r"udp/69 is blocked on the way \(nothing arrived on rack0 lately\)",
        drop="away udp 69",
    ),
    Fault(
        "netmask /32",
        lease,
        "NoTFTPRequest",
        r"its gateway 172\.31\.77\.1 is not on its network, netmask /32",
        dhcp="netmask: 255.255.255.255, gateway: 172.31.77.1",
    ),
    Fault(
        "offers are lost",
        discovers,
        "OfferNotTaken",
        r"was offered 172\.31\.77\.\d+ 3 times in \d+ s, and never asked for it",
    ),
    Fault(
        "reservation in another subnet",
        discovers,
        "OfferNotTaken|DhcpFailed",
        r"its address 10\.99\.0\.5 is of another network|can't use the address \(10\.99\.0\.0/24 is not 172",
        ip="10.99.0.5",
    ),
    Fault(
        "answers to a relay are lost",
        behind_relay,
        "OfferNotTaken",
        r"the answers are lost between here and the relay, or behind it",
        ip="10.98.0.5",
    ),
    Fault(
        "this host drops tcp/7080",
        no_script,
        "NoScriptRequest",
        r"this host's firewall drops tcp/7080",
        drop="here tcp 7080",
    ),
    Fault(
        "this host drops tcp/42113",
        no_agent,
        "AgentMissing",
        r"this host's firewall drops tcp/42113",
        drop="here tcp 42113",
    ),
    Fault("upstream has no such file", kernel("missing"), "KernelFailed", r"404 Not Found", "missing"),
    Fault("upstream refuses", kernel("refused"), "KernelFailed", r"[Rr]efuse|Connect call failed", "refused"),
    Fault("upstream has no name", kernel("no-name"), "KernelFailed", r"no-such-host\.invalid", "no-name"),
    Fault("upstream says a page", kernel("page"), "KernelFailed", r"HTML|text/html|web page", "page"),
    Fault(
        "upstream breaks off",
        kernel("truncated"),
        "KernelFailed|UpstreamStalls",
        r"broke after|nothing more for",
        "truncated",
    ),
    Fault("upstream speaks no TLS", kernel("bad-tls"), "KernelFailed", r"(?i)tls|ssl|certificate", "bad-tls"),
    Fault(
        "upstream stalls",
        kernel("stalls"),
        "UpstreamStalls|KernelFailed",
        r"127\.0\.0\.1 (has sent .* and nothing more for|had sent nothing for \d+ s, and the machine gave up)",
        "stalls",
        seconds=13,
    ),
    Fault(
        "upstream does not answer",
        kernel("silent"),
        "UpstreamStalls|KernelFailed",
        r"127\.0\.0\.1 has sent nothing of it for|does not answer|no answer",
        "silent",
    ),
    Fault("netboot is not allowed", refused, "DhcpRefused", r"disableNetboot is true", dhcp="disabled"),
    Fault("agent without a Workflow", idle_agent, "NoWorkflow", r"there is no Workflow for Hardware default/"),
    Fault(
        "the machine starts again",
        starts_again,
        "KernelRestarted|OfferNotTaken",
        r"firmware asked for an address again",
    ),
    Fault(
        "one digit off",
        refused,
        "AlmostRegistered",
        r"one digit off from 52:54:00:0e:ff:01 of Hardware default/never-heard",
        registered=False,
    ),
    Fault(
        "second card",
        second_card,
        "SecondCard",
        r"has the UUID of Hardware default/this-host-drops-tcp-42113",
        registered=False,
    ),
]
HEALTHY = Fault("shim and grub", shim_and_grub, "", "")


class Site(Namespaces):
    """The edge, and a namespace for each fault."""

    def start_all(self) -> None:
        self.data_dir = self.directory / "data"
        self.network("rack0", {})
        self.start(IN_EDGE, "python3", UPSTREAM, "127.0.0.1", "8099")
        options = ["--interface", "rack0", "--public-ip", ADDRESS, "--allow-upstream", "127.0.0.1/32"]
        self.edge = self.start(IN_EDGE, *TINKEDGE, "up", *options, "--data-dir", self.data_dir)
        self.machines = {fault.name: self._machine(number, fault) for number, fault in enumerate(PLAYED, start=1)}
        self.ready(self.edge)
        self.kubectl = Kubectl(self, self.data_dir / "kubeconfig")
        self.kubectl.apply("".join(map(_osie, OSIES)) + "".join(_hardware(self.machines[f.name], f) for f in PLAYED))

    def _machine(self, number: int, fault: Fault) -> Firmware:
        where, mac = f"m{number}", f"52:54:00:0e:00:{number:02x}"
        if fault.name == "one digit off":
            mac = "52:54:00:0e:fe:01"
        self.add(where)
        self.card(where, "eth0", mac, "rack0")
        address = fault.ip or f"172.31.77.{100 + number}"
        if fault.drop:
            self._drop(where, address, *fault.drop.split())
        if fault.ip:  # it has none that it could use, and yet has to send to its relay's server
            self.address(where, f"172.31.77.{200 + number}/24")
        return Scripted(self, where, mac, address)

    def _drop(self, where: str, address: str, side: str, protocol: str, port: str) -> None:
        if side == "here":
            rule = ["INPUT", "-s", address]
            self.run(IN_EDGE, "iptables", "-w", "-A", *rule, "-p", protocol, "--dport", port, "-j", "DROP")
        else:
            self.run(where, "iptables", "-w", "-A", "OUTPUT", "-p", protocol, "--dport", port, "-j", "DROP")

    def events(self, mac: str) -> list[dict[str, Any]]:
        return list(json.loads(self.operators(self.data_dir, f"/api/v1/machines/{mac}/events") or "[]"))


class Scripted(Firmware):
    """With what comes after the firmware."""

    def get_tcp(self, port: int, seconds: int) -> None:
        """Knock at a port that does not answer."""
        words = ["curl", "-s", "--max-time", str(seconds), f"http://{ADDRESS}:{port}/"]
        self._rack.start(self._where, *words).status(60)

    def agent(self) -> Process:
        options = ["--agent-id", self.mac, "--server", f"{ADDRESS}:42113", "--runtime", "process"]
        return self._rack.start(
            self._where, *TINKEDGE, "agent", *options, "--state-dir", self._rack.directory / self._where
        )


PLAYED = [*FAULTS, HEALTHY]


def _name(fault: Fault) -> str:
    return re.sub(r"[^a-z0-9]+", "-", fault.name.lower()).strip("-")


def _osie(name: str) -> str:
    annotations = f"tinkerbell.org/kernel-sha256: '{'0' * 64}'" if name == "bad-checksum" else ""
    spec = f"{{kernelUrl: '{OSIES[name]}', initrdUrl: '{OSIES['good']}'}}"
    return _DOCUMENT.format(kind="OSIE", name=name, annotations=annotations, spec=spec)


def _hardware(firmware: Firmware, fault: Fault) -> str:
    name, mac = _name(fault), firmware.mac
    if not fault.registered:
        if fault.name != "one digit off":
            return ""
        name, mac = "never-heard", "52:54:00:0e:ff:01"
    disabled = "disableNetboot: true, " if fault.dhcp == "disabled" else ""
    more = fault.dhcp if fault.dhcp and not disabled else "netmask: 255.255.255.0"
    interfaces = f"{{'{mac}': {{{disabled}dhcp: {{ip: {firmware.ip}, {more}}}}}}}"
    spec = f"{{osie: {{name: {fault.osie}}}, networkInterfaces: {interfaces}}}"
    return _DOCUMENT.format(kind="Hardware", name=name, annotations="", spec=spec)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("faults")) as site:
        site.start_all()
        yield site


@dataclass
class Named:
    """How a fault was named."""

    fault: str
    rule: str
    message: str
    seconds: float


def played(site: Site, fault: Fault) -> Named:
    """Play it, and wait until it has a name. Raises AssertionError."""
    machine = site.machines[fault.name]
    known = fault.play(machine) or time.time()
    found = wait_until(lambda: _finding(site, fault), lambda: _told(site, machine), within=60, every=0.5)
    return Named(fault.name, found["rule"], found["message"], found["time"] - known)


def _finding(site: Site, fault: Fault) -> dict[str, Any] | None:
    """What the journey says: a warning, or the failure that says it itself; and the Hardware says the same."""
    machine = site.machines[fault.name]
    for event in reversed(site.events(machine.mac)):
        rule = event["detail"].get("rule") or f"{event['step'].capitalize()}{event['outcome'].capitalize()}"
        if re.fullmatch(fault.rules, rule) and re.search(fault.sentence, event["message"]):
            if fault.registered and not _shown(site, _name(fault), rule):
                return None
            return {**event, "rule": rule}
    return None


def _shown(site: Site, name: str, rule: str) -> bool:
    described = json.loads(site.kubectl("get", "hardware", name, "-o", "json"))
    conditions = {one["type"]: one for one in described.get("status", {}).get("conditions", [])}
    problem = conditions.get("BootProblem", {})
    return problem.get("reason") == rule


def _told(site: Site, machine: Firmware) -> str:
    return "\n".join(f"{event['outcome']} {event['message']}" for event in site.events(machine.mac))


def test_each_fault_is_named_truly_on_the_journey_and_on_the_hardware(site: Site) -> None:
    with ThreadPoolExecutor(len(PLAYED)) as pool:
        playing = {fault.name: pool.submit(played, site, fault) for fault in FAULTS}
        healthy = pool.submit(shim_and_grub, site.machines[HEALTHY.name])
        problems = {name: str(error) for name, one in playing.items() if (error := one.exception()) is not None}
        healthy.result()
    for name, one in playing.items():
        if name not in problems:
            named = one.result()
            print(f"{named.seconds:6.1f} s  {name:32} {named.rule:18} {named.message}")
    assert not problems, "\n\n".join(f"{name}:\n{why}" for name, why in problems.items())
    late = {name: one.result().seconds for name, one in playing.items() if one.result().seconds > 30}
    assert not late, "a busy machine is late, but not that late"
    _nothing_false(site)


def _nothing_false(site: Site) -> None:
    """Whatever else was said of a machine while its fault was played is true of it, too."""
    for fault in FAULTS:
        warnings = [one for one in site.events(site.machines[fault.name].mac) if one["outcome"] == "warning"]
        others = [one["message"] for one in warnings if not re.fullmatch(fault.rules, one["detail"]["rule"])]
        assert not others, f"{fault.name}: {others}"
    told = site.events(site.machines[HEALTHY.name].mac)
    assert [one["message"] for one in told if one["outcome"] in ("warning", "failed", "refused")] == []


def test_describe_tells_why_a_machine_does_not_boot(site: Site) -> None:
    name = _name(FAULTS[2])
    described = wait_until(
        lambda: (
            out
            if "NoTFTPRequest" in (out := site.kubectl("describe", "hardware", name)).partition("Events:")[2]
            else ""
        ),
        lambda: site.kubectl("describe", "hardware", name) + site.edge.err[-3000:],
    )
    assert "BootProblem" in described
    assert "netmask /32" in described

"""Machines without a disk: a network namespace on the rack's bridge for each, with the agent that an OSIE would run."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge.building.shell import CommandError, Daemon, run
from tests.support.bmc import PASSWORD, USER
from tink.api.annotations import EXPECTED_MACHINES_LABEL

API_VERSION = "tinkerbell.org/v1alpha2"
OLD_API_VERSION = "tinkerbell.org/v1alpha1"
BMC_API_VERSION = "bmc.tinkerbell.org/v1alpha1"


@dataclass(frozen=True)
class Simulated:
    """One of them."""

    number: int

    @property
    def name(self) -> str:
        return f"machine{self.number}"

    @property
    def mac(self) -> str:
        return f"52:54:00:77:00:{self.number:02x}"

    @property
    def address(self) -> str:
        return f"172.31.77.{100 + self.number}"

    def hardware(self) -> dict[str, Any]:
        dhcp = {"ip": self.address, "netmask": "255.255.255.0", "leaseTimeSeconds": 3600}
        interfaces = {self.mac: {"dhcp": dhcp, "disableNetboot": True}}
        return _object("Hardware", self.name, {"networkInterfaces": interfaces})

    def expected(self) -> dict[str, Any]:
        """Return a list of expected machines with this one alone, which its MAC address identifies."""
        text = f"name,mac,ip\n{self.name},{self.mac},{self.address}/24\n"
        metadata = {"name": "expected", "namespace": "default", "labels": {EXPECTED_MACHINES_LABEL: "true"}}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"list.csv": text}}

    def workflow(self, series: str) -> dict[str, Any]:
        reference = {"hardwareRef": {"name": self.name}, "templateRef": {"name": "count"}}
        params = {"file": f"{series}-{self.number}"}
        return _object("Workflow", f"{series}-{self.number}", {**reference, "templateParams": params, "timeout": 600})


def template(directory: Path, actions: int, seconds: float) -> dict[str, Any]:
    """Actions that each write a line into a file of `directory`: what ran, and how often."""
    script = f'echo "$0" >> {directory}/"$1"; sleep {seconds}'
    made = [
        {"name": f"a{n}", "image": "none", "cmd": "/bin/sh", "args": ["-c", script, f"a{n}", "{{ .Params.file }}"]}
        for n in range(actions)
    ]
    return _object("Template", "count", {"actions": made})


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def v1alpha1_objects(machine: Simulated) -> list[dict[str, Any]]:
    """Return a Hardware, a Template and a Workflow of v1alpha1, all named `old`.

    The Workflow runs the Template of `template` on `machine`. Templates of v1alpha1 need images.
    """
    text = 'version: "0.1"\nname: old\ntasks:\n  - name: "os"\n    worker: "{{.device_1}}"\n    actions:\n'
    text += '      - {name: "look", image: "none", timeout: 60}  # a comment stays\n'
    dhcp = {
        "mac": "52:54:00:77:00:fe",
        "ip": {"address": "172.31.77.251", "netmask": "255.255.255.0"},
        "arch": "x86_64",
    }
    specs: dict[str, dict[str, Any]] = {
        "Hardware": {"interfaces": [{"dhcp": dhcp, "netboot": {"allowPXE": False, "allowWorkflow": True}}]},
        "Template": {"data": text},
        "Workflow": {"hardwareRef": machine.name, "templateRef": "count", "hardwareMap": {"file": "old"}},
    }
    return [{**_object(kind, "old", spec), "apiVersion": OLD_API_VERSION} for kind, spec in specs.items()]


def machine_with_bmc(host: str, port: int, fingerprint: str) -> list[dict[str, Any]]:
    """Return a Machine named `bmc`, whose fake BMC is at this address, and its Secret."""
    about = {"name": "bmc", "namespace": "default"}
    connection = {
        "host": host,
        "insecureTLS": False,
        "certificateFingerprint": fingerprint,
        "authSecretRef": about,
        "providerOptions": {"redfish": {"port": port}},
    }
    account = {"username": USER, "password": PASSWORD}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": about, "stringData": account},
        {"apiVersion": BMC_API_VERSION, "kind": "Machine", "metadata": about, "spec": {"connection": connection}},
    ]


def power_job(action: str) -> dict[str, Any]:
    """Return a Job of the name `action` for the Machine of `machine_with_bmc`."""
    spec = {"machineRef": {"name": "bmc", "namespace": "default"}, "tasks": [{"powerAction": action}]}
    about = {"name": action, "namespace": "default"}
    return {"apiVersion": BMC_API_VERSION, "kind": "Job", "metadata": about, "spec": spec}


def listed(objects: list[dict[str, Any]]) -> str:
    """For `kubectl apply -f -`."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


_WITHOUT_DMI: Final = """\
for each in /sys/firmware/dmi/tables /sys/class/dmi/id; do
  [ ! -d $each ] || mount -t tmpfs none $each
done
exec "$@"
"""
"""Runs a command without the tables of SMBIOS, in the mount namespace of `ip netns exec`.

Otherwise the serial number of this host would be that of every machine, and discovery would refuse the duplicates.
"""


class Machines:
    """Their agents run from `up` until `down`."""

    def __init__(self, directory: Path, bridge: str, server: str, count: int) -> None:
        self.all = [Simulated(number) for number in range(count)]
        self._directory = directory
        self._bridge = bridge
        self._server = server
        self._stack = AsyncExitStack()

    async def up(self) -> None:
        """Raises CommandError."""
        self._directory.mkdir()
        for machine in self.all:
            within = ["ip", "-n", await self._connect(machine)]
            await run([*within, "address", "add", f"{machine.address}/24", "dev", "eth0"])
            await self._start_agent(machine)

    async def boot_unknown(self, machine: Simulated) -> None:
        """Boot a machine without a Hardware: it asks for an address as firmware does, and starts its agent with that.

        Raises CommandError.
        """
        space, script = await self._connect(machine), self._directory / "lease"
        script.write_text('#!/bin/sh\n[ "$1" != bound ] || exec ip address replace "$ip/$mask" dev "$interface"\n')
        script.chmod(0o755)
        client = ["busybox", "udhcpc", "-i", "eth0", "-f", "-n", "-q", "-t", "60", "-T", "2", "-s", script]
        firmware = ["-V", "PXEClient:Arch:00000:UNDI:002001", "-x", "0x5d:0000"]
        await run(["ip", "netns", "exec", space, *client, *firmware], timeout=180)
        await self._start_agent(machine)

    async def _connect(self, machine: Simulated) -> str:
        """Create a machine's namespace, with a card on the bridge; return its name."""
        space, link = f"tinkedge-{machine.name}", f"m{machine.number}"
        await run(["ip", "netns", "add", space])
        self._stack.push_async_callback(run, ["ip", "netns", "delete", space])
        await run(["ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space])
        await run(["ip", "link", "set", link, "master", self._bridge, "up"])
        within = ["ip", "-n", space]
        await run([*within, "link", "set", "eth0", "address", machine.mac])
        await run([*within, "link", "set", "eth0", "up"])
        return space

    async def _start_agent(self, machine: Simulated) -> None:
        agent = [sys.executable, "-m", "edge.cli", "agent", "--runtime", "process", "--config", "/dev/null"]
        who = ["--agent-id", machine.mac, "--server", self._server, "--state-dir", self._directory / machine.name]
        within = ["ip", "netns", "exec", f"tinkedge-{machine.name}", "sh", "-c", _WITHOUT_DMI, "sh"]
        daemon = await Daemon.start(machine.name, [*within, *agent, *who], self._directory / f"{machine.name}.log")
        self._stack.push_async_callback(daemon.stop, 2)

    async def down(self) -> None:
        """All at once."""
        await self._stack.aclose()

    def ran(self, series: str, directory: Path) -> list[list[str]]:
        """Return the actions that each machine's Workflow of a series ran. Raises CommandError if one ran none."""
        try:
            return [(directory / f"{series}-{machine.number}").read_text().split() for machine in self.all]
        except FileNotFoundError as error:
            raise CommandError(f"{error.filename}: this Workflow has run nothing") from None

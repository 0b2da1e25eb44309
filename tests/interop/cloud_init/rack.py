"""`tinkedge up` as a process, and machines with a Hardware each, in namespaces: what the tests of metadata share."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interop.rack import ADDRESS, IN_EDGE, Kubectl, Namespaces
from tests.waiting import wait_until

BASE = f"http://{ADDRESS}:7080"
_MACHINES = "/api/v1/machines"


@dataclass(frozen=True, slots=True)
class Registered:
    """A machine and the content of its Hardware."""

    name: str
    mac: str
    address: str
    annotations: dict[str, str] = field(default_factory=dict)
    userdata: str | None = None
    vendordata: str | None = None
    hostname: str | None = ""
    """If empty, the name; None: none."""
    vlan: str | None = None
    gateway: str = ADDRESS
    more: tuple[str, ...] = ()
    """MACs of cards without an address."""

    def manifest(self) -> dict[str, Any]:
        dhcp = {
            "ip": self.address,
            "netmask": "255.255.255.0",
            "gateway": self.gateway,
            "nameservers": ["172.31.77.2", "172.31.77.3"],
        }
        if self.hostname is not None:
            dhcp["hostname"] = self.hostname or self.name
        if self.vlan is not None:
            dhcp["vlanId"] = self.vlan
        instance = {"userdata": self.userdata, "vendordata": self.vendordata}
        annotations = {f"tinkerbell.org/{key}": value for key, value in self.annotations.items()}
        return {
            "apiVersion": "tinkerbell.org/v1alpha2",
            "kind": "Hardware",
            "metadata": {"name": self.name, "annotations": annotations},
            "spec": {
                "networkInterfaces": {self.mac: {"dhcp": dhcp}} | {mac: {} for mac in self.more},
                "instance": {key: value for key, value in instance.items() if value is not None},
            },
        }


class MetadataRack(Namespaces):
    """The edge, and a namespace for each machine."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._data_dir = directory / "data"
        self.kubectl = Kubectl(self, self._data_dir / "kubeconfig")

    def up(self, *options: str) -> None:
        if IN_EDGE not in self.namespaces:
            self.add(IN_EDGE)
        self.bridge("rack0", f"{ADDRESS}/24")
        networks = ["--interface", "rack0", "--data-dir", str(self._data_dir)]
        self.process = self.tinkedge(IN_EDGE, "up", *networks, *options)
        self.ready(self.process)

    def register(self, *machines: Registered, namespaces: bool = True) -> None:
        """Give each its Hardware, and its namespace with its address; wait until the edge knows them."""
        items = [machine.manifest() for machine in machines]
        self.kubectl.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        for machine in machines:
            if namespaces:
                self.add(machine.name)
                self.card(machine.name, "eth0", machine.mac, "rack0")
                self.address(machine.name, f"{machine.address}/24")
        wait_until(lambda: {one.mac for one in machines} <= self._known())

    def journey(self, machine: Registered) -> list[dict[str, Any]]:
        """Return the events of a machine's journey."""
        answer = self.operators(self._data_dir, f"{_MACHINES}/{machine.mac}/events")
        events: list[dict[str, Any]] = json.loads(answer)
        return events

    def get(self, machine: Registered, path: str) -> str:
        """Fetch a path as the machine; empty if the request fails."""
        return self.run(machine.name, "curl", "-sf", "--max-time", "5", f"{BASE}{path}").out

    def _known(self) -> set[str]:
        machines = json.loads(self.operators(self._data_dir, _MACHINES))
        return {machine["mac"] for machine in machines if machine["registered"]}


def documented(name: str, machine: str) -> str:
    """The example of docs/metadata.md for the file of this name, or any that has this text, for a machine of ours."""
    text = (Path(__file__).resolve().parents[3] / "docs/metadata.md").read_text()
    (block,) = (block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if name in block)
    example: str = block.replace("http://192.168.1.1:7080", BASE).replace("machine-1", machine)
    assert BASE in example
    return example

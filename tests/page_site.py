"""A rack of machines and the page about it, without a network: journeys are scripted, and time is an argument."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Any

import aiohttp
from aiohttp import web

from edge.artifacts.cache import ArtifactCache
from edge.http.admin import AdminApp, admin_runner
from edge.http.connections import has_ended
from edge.journey.events import Milestone, Notice, Outcome, Step, Value
from edge.journey.expectations import Expectations, Facts, KnownNetworks, Registered, Story
from edge.journey.recorder import Journey
from edge.machines import Inventory
from edge.page import (
    About,
    Access,
    Api,
    EdgeStatus,
    ExpectedStatus,
    Health,
    Live,
    Osie,
    Other,
    Pages,
    Rack,
    Site,
)
from tink.discovery.expected import ExpectedMachines
from tink.kube.objects import NamespacedName

TOKEN = "a" * 64
BEARER = {"Authorization": f"Bearer {TOKEN}"}
NETWORK = IPv4Network("10.0.0.0/16")
T0 = 1_700_000_000.0

Played = tuple[float, Step, Outcome, str, dict[str, Value]]
"""Seconds after the beginning, and an event."""

INSTALLATION: list[Played] = [
    (0.0, Step.DHCP, Outcome.OK, "DHCPOFFER to UEFI x86-64 PXE ROM, boot file snponly.efi",
     {"stage": "PXE ROM", "dhcp": "offer", "client": "UEFI x86-64 PXE ROM", "boot": "boot file snponly.efi"}),
    (4.9, Step.DHCP, Outcome.OK, "DHCPACK to UEFI x86-64 PXE ROM, boot file snponly.efi",
     {"stage": "PXE ROM", "dhcp": "ack", "client": "UEFI x86-64 PXE ROM", "boot": "boot file snponly.efi"}),
    (5.2, Step.TFTP, Outcome.INFO, "asks for snponly.efi", {"phase": "begun"}),
    (5.9, Step.TFTP, Outcome.OK, "snponly.efi sent, 285.7 kB", {"size_bytes": 285696}),
    (8.6, Step.DHCP, Outcome.OK, "DHCPOFFER to iPXE, its script", {"stage": "iPXE", "dhcp": "offer"}),
    (9.7, Step.DHCP, Outcome.OK, "DHCPACK to iPXE, its script", {"stage": "iPXE", "dhcp": "ack"}),
    (9.9, Step.SCRIPT, Outcome.OK, "script sent: OSIE hook", {"osie": "hook"}),
    (10.2, Step.KERNEL, Outcome.INFO, "asks for the kernel of OSIE hook", {"phase": "begun", "osie": "hook"}),
    (11.4, Step.KERNEL, Outcome.OK, "kernel sent, 11.2 MB", {"size_bytes": 11_200_000, "osie": "hook"}),
    (11.5, Step.INITRD, Outcome.INFO, "asks for the initrd of OSIE hook", {"phase": "begun", "osie": "hook"}),
    (18.0, Step.INITRD, Outcome.OK, "initrd sent, 148.3 MB", {"size_bytes": 148_300_000, "osie": "hook"}),
    (18.3, Step.BOOT, Outcome.INFO, "iPXE starts the kernel", {"phase": "starting", "model": "Supermicro X12STH"}),
    (39.8, Step.DHCP, Outcome.OK, "DHCPOFFER to Linux", {"stage": "operating system", "dhcp": "offer"}),
    (40.1, Step.DHCP, Outcome.OK, "DHCPACK to Linux", {"stage": "operating system", "dhcp": "ack"}),
    (41.2, Step.BOOT, Outcome.INFO, "the OSIE is up", {"phase": "up"}),
    (46.5, Step.AGENT, Outcome.OK, "agent connected from 10.0.0.5", {"peer": "10.0.0.5"}),
    (46.8, Step.WORKFLOW, Outcome.INFO, "workflow default/{name}: Running", {"state": "Running"}),
    (47.1, Step.ACTION, Outcome.INFO, "action stream-image started (1 of 3)",
     {"action": "stream-image", "number": 1, "state": "Running", "of": 3}),
    (60.0, Step.ACTION, Outcome.INFO, "640 MiB of 2.1 GiB written, 49 MiB/s",
     {"action": "stream-image", "output": "fetching http://images.example/debian-13.raw.gz\n"
      "writing to /dev/nvme0n1\n640 MiB of 2.1 GiB written, 49 MiB/s"}),
    (90.6, Step.ACTION, Outcome.OK, "action stream-image succeeded in 43.5 s (1 of 3)",
     {"action": "stream-image", "number": 1, "state": "Succeeded", "of": 3, "duration_seconds": 43.5}),
    (91.0, Step.ACTION, Outcome.INFO, "action grow-partition started (2 of 3)",
     {"action": "grow-partition", "number": 2, "state": "Running", "of": 3}),
    (94.2, Step.ACTION, Outcome.OK, "action grow-partition succeeded in 3.2 s (2 of 3)",
     {"action": "grow-partition", "number": 2, "state": "Succeeded", "of": 3, "duration_seconds": 3.2}),
    (94.5, Step.ACTION, Outcome.INFO, "action reboot started (3 of 3)",
     {"action": "reboot", "number": 3, "state": "Running", "of": 3}),
    (96.0, Step.ACTION, Outcome.OK, "action reboot succeeded in 1.5 s (3 of 3)",
     {"action": "reboot", "number": 3, "state": "Succeeded", "of": 3, "duration_seconds": 1.5}),
    (96.1, Step.WORKFLOW, Outcome.OK, "workflow default/{name}: Succeeded after 49.3 s", {"state": "Succeeded"}),
    (127.0, Step.DHCP, Outcome.OK, "DHCPOFFER to Linux", {"stage": "operating system", "dhcp": "offer"}),
    (127.2, Step.DHCP, Outcome.OK, "DHCPACK to Linux", {"stage": "operating system", "dhcp": "ack"}),
    (131.5, Step.METADATA, Outcome.OK, "metadata sent to Cloud-Init/25.1.4", {}),
]  # fmt: skip
"""From the first packet to cloud-init."""

BY_BMC: list[Played] = [
    *(
        (after, Step.POWER, Outcome.INFO, f"pxe, attempt 1: {message}", {"reason": reason, "way": "pxe", "attempt": 1})
        for after, reason, message in (
            (0.0, "PoweringOff", "switching the machine off"),
            (6.1, "OverrideSet", "setting the boot device"),
            (7.4, "PoweringOn", "switching the machine on"),
            (9.2, "WaitingForDiscover", "the machine is on, waiting for its DISCOVER"),
        )
    ),
    *((34.0 + after, *event) for after, *event in INSTALLATION),
]
"""An installation by BMC control, from its first report to cloud-init."""

IN_ACTION: list[Played] = [
    *(event for event in BY_BMC if event[0] <= 125.0),
    (138.0, Step.ACTION, Outcome.INFO, "resizing /dev/nvme0n1p1 to 1.8 TiB",
     {"action": "grow-partition", "output": "partition table: GPT, 2 entries\nresizing /dev/nvme0n1p1 to 1.8 TiB"}),
]  # fmt: skip
"""The same up to the middle of the second of three actions."""


class FixedKeys:
    """One key."""

    def __init__(self, key: str) -> None:
        self.key = key

    def sign(self, label: str, claims: str) -> str:
        return hmac.new(self.key.encode(), f"{label}\0{claims}".encode(), hashlib.sha256).hexdigest()

    def signed(self, label: str, claims: str, signature: str) -> bool:
        return hmac.compare_digest(self.sign(label, claims), signature)


class NoNetworks:
    """One network that is served."""

    def shown(self) -> list[dict[str, object]]:
        return [{"interface": "eth1", "address": "10.0.0.1", "ipv6": "", "ready": True, "carrier": True, "problem": ""}]

    def notices(self) -> list[Notice]:
        return []


@dataclass
class PageSite:
    """Everything behind the page."""

    at: float = field(default_factory=time.time)
    workflows: dict[str, dict[str, Any]] = field(default_factory=dict)
    health: Health = field(default_factory=Health)
    about: About = field(default_factory=About)
    osies: list[Osie] = field(default_factory=list)
    cache: ArtifactCache | None = None
    follows_time: bool = False
    live: Live = field(default_factory=Live)

    def __post_init__(self) -> None:
        self.journey = Journey(self.clock)
        self.inventory = Inventory()
        self.expectations = Expectations(self.journey, self._facts, lambda _mac, _finding: None, self.clock)
        self.rack = Rack(self.journey, self.inventory, self.expectations)
        others = [Other("edge", "10.0.0.2", 12_345), Other("server", "server-0<b>", 7)]
        self.status = EdgeStatus(
            lambda: self.health,
            NoNetworks().shown,
            list,
            self.journey,
            self.cache,
            time.monotonic,
            others=lambda: others,
            about=lambda: self.about,
            osies=lambda: self.osies,
        )
        self.expected = ExpectedMachines()
        missing = ExpectedStatus(self.expected, self._is_present, self.clock)
        self.pages = Pages(self.rack, self.status, lambda _space, name: self.workflows.get(name), self.clock, missing)
        self.keys = FixedKeys(TOKEN)
        self.access = Access(self.keys, self.clock)
        self.site = Site(self.pages, self.access, self.live, has_ended)

    def _is_present(self, key: NamespacedName) -> bool:
        return bool(self.inventory.by_name(key.name, key.namespace))

    def clock(self) -> float:
        return time.time() if self.follows_time else self.at

    def hardware(self, name: str, number: int, **metadata: Any) -> str:
        """Register a machine, with a BMC if its `power` is given, and return its MAC address."""
        mac = f"52:54:00:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}"
        ip = f"10.0.{number >> 8 & 255}.{number & 255}"
        spec: dict[str, Any] = {"networkInterfaces": {mac: {"dhcp": {"ip": ip, "netmask": "255.255.0.0"}}}}
        if osie := metadata.pop("osie", ""):
            spec["osie"] = {"name": osie}
        power = metadata.pop("power", None)
        if power is not None:
            spec["bmcRef"] = {"name": f"bmc-{name}"}
        status = {"power": power, "conditions": metadata.pop("conditions", None)}
        obj = {"metadata": {"name": name, "namespace": metadata.pop("namespace", "default"), **metadata}, "spec": spec}
        obj |= {"status": {field: value for field, value in status.items() if value}}
        self.inventory.apply(obj)
        return mac

    def play(self, mac: str, events: list[Played], began: float, name: str = "") -> None:
        """Let these happen, beginning at a time; the last expectation is swept."""
        for after, step, outcome, message, detail in events:
            self.at = began + after
            self.journey.record(mac, step, outcome, message.replace("{name}", name), **detail)
            self.sweep()

    def sweep(self, at: float | None = None) -> None:
        """Run the check of each second for late machines."""
        self.at = at or self.at
        for _ in self.expectations.sweep():
            pass

    @asynccontextmanager
    async def served(self, host: str = "127.0.0.1", **headers: str) -> AsyncIterator[aiohttp.ClientSession]:
        """The operators' port, and a client that has the token unless other headers are given."""
        app = AdminApp(self.journey, self.inventory, NoNetworks(), lambda token: token == TOKEN, pages=self.site)
        runner = admin_runner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, 0).start()
            base = f"http://{host}:{runner.addresses[0][1]}"
            jar = aiohttp.CookieJar(unsafe=True)
            connector = aiohttp.TCPConnector(limit=0)
            given = headers if headers else BEARER
            async with aiohttp.ClientSession(base, headers=given, cookie_jar=jar, connector=connector) as client:
                yield client
        finally:
            await runner.cleanup()

    async def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, str]:
        """One request to the operators' port; gives status, headers and text."""
        async with self.served(**headers) as client, client.request(method, path) as response:
            return response.status, response.headers, await response.text()

    def _facts(self, story: Story, now: float, limit: Callable[[Milestone], float]) -> Facts:
        machine = self.inventory.by_mac(story.mac)
        registered = None
        if machine is not None:
            registered = Registered(f"{machine.namespace}/{machine.name}", machine.ip or "", "255.255.0.0", "10.0.0.1")
        network = KnownNetworks((NETWORK,), (), "10.0.0.1", "eth1")
        workflow = f"default/{machine.name}" if machine is not None else ""
        return Facts(now=now, registered=registered, network=network, limit=limit, workflow=workflow)


def played(events: list[Played] | None = None, began: float = T0) -> tuple[PageSite, str]:
    """A site with one machine, m1, to which these happened; gives its MAC, too."""
    site = PageSite(began)
    mac = site.hardware("m1", 1)
    site.play(mac, events or [], began, "m1")
    return site, mac


def cut(until: Milestone | None, events: list[Played] | None = None) -> list[Played]:
    """The events up to and with the first that is this milestone."""
    from edge.journey.events import milestone

    found = []
    for event in events or INSTALLATION:
        found.append(event)
        if until is not None and milestone(event[1], event[2], event[4]) is until:
            break
    return found


def populate(site: PageSite, now: float) -> dict[str, str]:
    """A small rack in which there is one of each kind; gives MACs by name."""
    macs: dict[str, str] = {}
    stages = [*Milestone][1:]
    for number in range(1, 49):
        name = f"node-{number}"
        labels = {"rack": "abc"[number % 3], "role": "storage" if number % 5 == 0 else "compute"}
        power = "on" if number in (35, 36) else None
        macs[name] = site.hardware(
            name, number, labels=labels, osie="rescue" if number % 7 == 0 else "hook", power=power
        )
        if number <= 20:
            site.play(macs[name], INSTALLATION, now - 86_400 + 700 * number, name)
        elif number == 36:
            site.play(macs[name], IN_ACTION, now - IN_ACTION[-1][0] - 1, name)
        elif number < 36:
            events = cut(stages[number - 21])
            site.play(macs[name], events, now - events[-1][0] - 1 - number % 5, name)
    lost = macs["node-37"] = site.hardware("node-37", 37, labels={"rack": "b", "role": "compute"}, osie="hook")
    site.play(lost, cut(Milestone.LEASED), now - 24.0, "node-37")
    failing = macs["node-38"] = site.hardware("node-38", 38, labels={"rack": "c", "role": "compute"}, osie="hook")
    site.play(failing, [*cut(Milestone.ACTION_BEGUN),
                        (58.0, Step.ACTION, Outcome.INFO, "no such device: /dev/nvme1n1",
                         {"action": "stream-image", "output": "fetching http://images.example/debian-13.raw.gz\n"
                          "no such device: /dev/nvme1n1"}),
                        (58.4, Step.ACTION, Outcome.FAILED, "action stream-image failed after 11.3 s (1 of 3): "
                         "NonZeroExit: exit status 1", {"action": "stream-image", "state": "Failed"}),
                        (58.6, Step.WORKFLOW, Outcome.FAILED, "workflow default/node-38: Failed: ActionFailed",
                         {"state": "Failed"})], now - 95.0, "node-38")  # fmt: skip
    manifest = (
        "apiVersion: tinkerbell.org/v1alpha2\nkind: Hardware\nmetadata:\n  name: m-02-00-00-aa-bb-cc\nspec:\n"
        "  networkInterfaces:\n    02:00:00:aa:bb:cc:\n      dhcp:\n        ip: 10.0.0.?\n"
    )
    macs["stranger"] = "02:00:00:aa:bb:cc"
    site.at = now - 30
    site.journey.record(macs["stranger"], Step.SEEN, Outcome.INFO, "seen (UEFI x86-64 PXE ROM), not registered",
                        manifest=manifest, client="UEFI x86-64 PXE ROM")  # fmt: skip
    site.about = About(
        version="0.1.0",
        host="edge-1.example.org",
        started=now - 93_000,
        data_dir="/var/lib/tinkedge",
        free_bytes=412_300_000_000,
        total_bytes=998_000_000_000,
        synchronised=True,
        api=Api("embedded", "https://127.0.0.1:6443"),
    )
    site.osies = [
        Osie(f"default/{name}", (("kernel", f"http://images.example/{name}/vmlinuz"),
                                 ("initrd", f"http://images.example/{name}/initramfs")))
        for name in ("hook", "rescue")
    ]  # fmt: skip
    for name in ("node-20", "node-36", "node-38"):
        site.workflows[name] = workflow(name, now, failed=name == "node-38", done=name == "node-20")
    for second in range(12, -1, -1):
        site.sweep(now - second)
    return macs


def workflow(name: str, now: float, *, failed: bool = False, done: bool = False) -> dict[str, Any]:
    """As the API has it."""

    def stamp(ago: float) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - ago))

    states = ["Succeeded"] * 3 if done else ["Succeeded", "Running", "Pending"]
    states = ["Failed", "Pending", "Pending"] if failed else states
    names = ["stream-image", "grow-partition", "reboot"]
    actions: list[dict[str, Any]] = []
    for state, action in zip(states, names, strict=True):
        image = f"quay.io/tinkerbell/actions/{action}:v1"
        given: dict[str, Any] = {"id": action, "state": state, "rendered": {"name": action, "image": image}}
        if state != "Pending":
            given |= {"startedAt": stamp(48), "lastTransitioned": stamp(37)}
        if state == "Failed":
            given |= {"failureReason": "NonZeroExit", "failureMessage": "exit status 1: no such device: /dev/nvme1n1"}
        actions.append(given)
    state = "Succeeded" if done else "Failed" if failed else "Running"
    message = {"Succeeded": "all 3 actions have succeeded", "Failed": "ActionFailed: stream-image: exit status 1"}
    return {
        "metadata": {"name": f"install-{name}", "namespace": "default", "resourceVersion": "1"},
        "spec": {"hardwareRef": {"name": name}, "templateRef": {"name": "debian"}},
        "status": {"state": state, "message": message.get(state, "action 2 of 3: grow-partition"),
                   "startedAt": stamp(49), "actions": actions},
    }  # fmt: skip

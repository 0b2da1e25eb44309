"""Boots of Workflows by BMC under random events: a machine is never switched off while a Workflow may use it.

`Site` stands for the machine, its agent, and the writes of edge and server. The real decision of the server
(`tink.server.decision`) claims Workflows, from a copy that is a second old.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.bmc import FakeBmc, MemoryTransport
from tests.support.virtual_time import elapse
from tests.unit.bmc.rig import HOST, MAC, NETBOOT, NOW, Rig, computer, machine, secret, workflow
from tink.api.annotations import HOLD_ANNOTATION
from tink.api.v1alpha2 import Raw
from tink.bmc.model import BmcConnection, BmcCredentials
from tink.bmc.quirks import Quirks
from tink.bmc.redfish import Answer, RedfishClient
from tink.kube.resources import HARDWARE, WORKFLOW
from tink.server.decision import AgentView, ClaimAndSend, GiveBack, Start, next_move
from tink.timestamps import rfc3339
from tink.workflow.guards import awaits_boot, has_ended
from tink.workflow.status import creation_order, deleted

ACTIVE = ("Scheduled", "Running", "Cancelling")
EVENTS = ("create", "cancel", "delete", "hold", "release", "bmc", "password", "reset", "stall", "restart", "")
RESTARTS = 3
WEIGHTS = (9, 1, 1, 3, 4, 1, 1, 3, 1, 1, 3)


class Site:
    """The machine `m1`, its agent and the server, second by second."""

    def __init__(self, rig: Rig, chance: random.Random) -> None:
        self.rig, self.chance = rig, chance
        self.problems: list[str] = []
        self.wrong_passwords = 0
        self._agent: AgentView | None = None
        self._copy: list[Raw] = []
        self._boots = self._resets = 0
        self._discovered = False
        self._prepared: set[str] = set()
        self._created = 0

    def workflows(self) -> list[Raw]:
        return sorted(self.rig.api.objects(WORKFLOW), key=creation_order)

    def change(self, obj: Raw, **status: Any) -> None:
        now = rfc3339(NOW + asyncio.get_running_loop().time(), "milliseconds")
        self.rig.api.change(WORKFLOW, obj["metadata"]["name"], status={"lastTransitioned": now, **status})

    async def run(self) -> None:
        while True:
            self._machine()
            self._controller()
            self._server()
            self._copy = self.workflows()
            await elapse(1)

    # --- the machine and its edge ---

    def _machine(self) -> None:
        bmc = self.rig.bmc
        bmc.run_until(asyncio.get_running_loop().time())
        if len(bmc.resets) > self._resets:
            self._resets, self._agent, self._discovered = len(bmc.resets), None, False
        for target in bmc.boots[self._boots :]:
            if self.chance.random() < 0.7:
                self._discover("Netboot" if target == "Pxe" else "OperatingSystem")
        self._boots = len(bmc.boots)

    def _discover(self, client: str) -> None:
        at = rfc3339(NOW + asyncio.get_running_loop().time(), "milliseconds")
        self._discovered = self._discovered or client == "Netboot"
        self._agent = AgentView(says=True) if client == "Netboot" else None
        self.rig.api.change(HARDWARE, "m1", status={"lastBoot": {"at": at, "client": client, "mac": MAC}})

    def is_used(self) -> list[str]:
        """Return the Workflows that an agent has, or that the machine was booted for."""
        used = []
        for obj in self.workflows():
            is_booted = obj["spec"].get("bootOptions") and not awaits_boot(obj) and not has_ended(obj)
            if obj["status"]["state"] in ACTIVE or is_booted:
                used.append(f"{obj['metadata']['name']} {obj['status']['state']}")
        return used

    # --- the controller of Workflows and the server ---

    def _controller(self) -> None:
        for obj in self.workflows():
            name, state = obj["metadata"]["name"], obj["status"]["state"]
            if state == "Cancelling" or (deleted(obj) and state == "Pending"):
                self.change(obj, state="Canceled")
            elif state == "Running" and (self._agent is None or self.chance.random() < 0.05):
                self.change(obj, state="Succeeded" if self._agent else "Failed")
            if obj["spec"].get("bootOptions") and not awaits_boot(obj) and name not in self._prepared:
                self._prepared.add(name)
                if not self._discovered:
                    self.problems.append(f"{name} is prepared without a DISCOVER after the last power-on")

    def _server(self) -> None:
        if self._agent is None:
            return
        move = next_move(self._copy, self._agent, NOW + asyncio.get_running_loop().time(), 60.0)
        if not isinstance(move, ClaimAndSend | GiveBack | Start):
            for obj in self.workflows():
                if obj["status"]["state"] == "Scheduled" and obj["metadata"]["uid"] in self._agent.started:
                    self.change(obj, state="Running", startedAt="2027-01-15T08:00:00Z")
            return
        metadata = move.workflow["metadata"]
        present = self.rig.api.read(WORKFLOW, metadata["name"])
        if present is None or present["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            return  # a conflict
        if isinstance(move, GiveBack):
            self.change(present, state="Pending")
            return
        self._agent.sent(present, 0.0)
        if isinstance(move, ClaimAndSend):
            self.change(present, state="Scheduled")

    # --- events ---

    async def do(self, event: str) -> None:
        rig, workflows = self.rig, [each for each in self.workflows() if not has_ended(each)]
        obj = self.chance.choice(workflows) if workflows else None
        match event:
            case "create" if len(workflows) < 4:
                rig.informers[WORKFLOW].release()
                self._created += 1
                version = str(self._created)
                options = NETBOOT if self.chance.random() < 0.7 else None
                rig.api.put(workflow(f"w{version}", options=options, creationVersion=version))
            case "cancel" if obj is not None:
                self.change(obj, state="Canceled" if obj["status"]["state"] == "Pending" else "Cancelling")
            case "delete" if obj is not None and obj["status"]["state"] == "Pending":
                await rig.api.delete(WORKFLOW, obj["metadata"]["name"], "default")
            case "hold" | "release" if obj is not None:
                annotations = {HOLD_ANNOTATION: "later"} if event == "hold" else {}
                rig.api.change(WORKFLOW, obj["metadata"]["name"], metadata={"annotations": annotations})
            case "bmc":
                (rig.hanging.discard if HOST in rig.hanging else rig.hanging.add)(HOST)
            case "password":
                is_wrong = self.chance.random() < 0.5
                self.wrong_passwords += is_wrong
                rig.api.put(secret(f"wrong {self.wrong_passwords}") if is_wrong else secret())
            case "reset" if rig.bmc.power == "On" and not self.is_used():
                self._discover(self.chance.choice(("Netboot", "OperatingSystem")))
            case "stall":
                rig.informers[WORKFLOW].hold()


class SlowTransport(MemoryTransport):
    """A transport to a BMC that needs up to 0.6 s for each answer."""

    chance: random.Random

    async def exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        await elapse(self.chance.uniform(0.0, 0.6))
        return await super().exchange(method, path, headers, body)


class SlowRig(Rig):
    """A rig whose BMC is slow."""

    chance: random.Random

    def client(self, connection: BmcConnection, credentials: BmcCredentials, quirks: Quirks) -> Any:
        if connection.host in self.hanging:
            return super().client(connection, credentials, quirks)
        transport = SlowTransport(self.bmc)
        transport.chance = self.chance
        return RedfishClient(connection, credentials, transport=transport)


class Resets(list[str]):
    """The resets of a BMC. Each one that ends the work of the machine is checked."""

    site: Site

    def append(self, kind: str) -> None:
        if kind != "On" and (used := self.site.is_used()):
            self.site.problems.append(f"{kind} while the machine is used by {', '.join(used)}")
        super().append(kind)


@pytest.mark.looptime
@pytest.mark.parametrize("seed", range(12))
async def test_machine_in_use_is_never_switched_off_and_every_workflow_is_released(seed: int) -> None:
    chance = random.Random(seed)
    # Polls are spread at random. A process that stops just after a refused login, before it has noted it, repeats it:
    # with polls at other times, one seed in some fifty does that.
    random.seed(seed)
    bmc = FakeBmc(power=chance.choice(("On", "Off")), power_seconds=5.0, post_seconds=20.0)
    rig = SlowRig(computer(), machine(), secret(), bmc=bmc)
    rig.chance = chance
    site, resets = Site(rig, chance), Resets()
    resets.site, bmc.resets = site, resets
    running = asyncio.create_task(site.run())
    try:
        for _ in range(RESTARTS):  # with a clock that is set back
            async with rig.running():
                for event in chance.choices(EVENTS, WEIGHTS, k=20):
                    if event == "restart":
                        break
                    await site.do(event)
                    await elapse(chance.choice((0.5, 3.0, 30.0, 200.0)))
                    if chance.random() < 0.7:
                        rig.informers[WORKFLOW].release()
        rig.hanging.clear()
        async with rig.running():
            rig.api.put(secret())
            for obj in site.workflows():
                if not has_ended(obj):
                    site.change(obj, state="Canceled")
            await elapse(4500)
            assert [each["metadata"].get("finalizers") for each in site.workflows()] == [None] * len(site.workflows())
            assert rig.manager.remembered_boots == 0
    finally:
        running.cancel()
    assert site.problems == []
    assert bmc.failed_logins <= site.wrong_passwords

"""The machine attributes that tink-agent reports: bounded, and on the Hardware for `kubectl get hardware -o yaml`."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proto import older_pb2 as pb
from tests.support.api import InProcessApi
from tests.support.objects import hardware
from tests.unit.server.conftest import Rig
from tests.unit.server.older.test_agents import MAC, TinkAgent, hold, refused
from tests.waiting import PATIENCE_SECONDS, until
from tink.api.annotations import AGENT_ATTRIBUTES_ANNOTATION
from tink.discovery.report import CollectionMethod, read_attributes
from tink.kube.client import ApiError
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE
from tink.kube.runtime import EventRecorder
from tink.printable import printable
from tink.server.inventory import InventoryKeeper
from tink.server.older.messages import in_band
from tink.server.older.service import MAX_BYTES, AttributesKeeper, as_json

SAID = pb.AgentAttributes(
    cpu=pb.AgentAttributes.CPU(total_cores=8, total_threads=16),
    memory=pb.AgentAttributes.Memory(total="32GB", usable="31GB"),
    block=[pb.AgentAttributes.Block(name="sda", size="480GB", physical_block_size="512B", wwn="0x5")],
    network=[pb.AgentAttributes.Network(name="eth0", mac=MAC, speed="10Gbit/s")],
    chassis=pb.AgentAttributes.Chassis(serial="C1", vendor="v"),
    product=pb.AgentAttributes.Product(name="p", serial_number="S1"),
)


def test_names_are_those_of_tinkerbells_own_annotation() -> None:
    assert json.loads(as_json(SAID)) == {
        "blockDevices": [{"name": "sda", "physicalBlockSize": "512B", "size": "480GB", "wwn": "0x5"}],
        "chassis": {"serial": "C1", "vendor": "v"},
        "cpu": {"totalCores": 8, "totalThreads": 16},
        "memory": {"total": "32GB", "usable": "31GB"},
        "networkInterfaces": [{"name": "eth0", "mac": MAC, "speed": "10Gbit/s"}],
        "product": {"name": "p", "serialNumber": "S1"},
    }
    assert as_json(pb.AgentAttributes()) == ""


blocks = st.builds(lambda name: [pb.AgentAttributes.Block(name=f"0{name}", model=name)] * 90, st.text())


@settings(max_examples=30, deadline=None)
@given(blocks, st.text(min_size=1, max_size=400).filter(lambda text: printable(text[:128], " ").strip()))
@example([pb.AgentAttributes.Block(name="\U0001d54a" * 20, model="\U0001d54a" * 20)] * 90, "0")
def test_text_of_an_agent_is_bounded_and_printable(block: list[pb.AgentAttributes.Block], text: str) -> None:
    cards = [pb.AgentAttributes.Network(name="n" * 500, mac=text, speed="s" * 500)] * 500
    logged = as_json(pb.AgentAttributes(block=block, network=cards, memory=pb.AgentAttributes.Memory(total=text)))
    assert len(logged.encode()) <= MAX_BYTES
    assert logged.isprintable()
    found = json.loads(logged)
    left_out = set(found.get("leftOut", "").split(", ")) - {""}
    assert left_out == {"blockDevices", "networkInterfaces", "memory"} - found.keys()


@pytest.fixture
async def agent(rig: Rig) -> TinkAgent:
    await rig.serve()
    hold(rig, 0.01)
    return TinkAgent(rig.agent(apart=True).channel)


def kept(rig: Rig) -> Any:
    annotations = rig.read("h", HARDWARE)["metadata"].get("annotations", {})
    return json.loads(annotations.get(AGENT_ATTRIBUTES_ANNOTATION, "null"))


HOSTILE = pb.AgentAttributes(
    cpu=pb.AgentAttributes.CPU(total_cores=4),
    memory=pb.AgentAttributes.Memory(total="16GB"),
    block=[pb.AgentAttributes.Block(name="sda", size="480GB")],
    network=[pb.AgentAttributes.Network(name="eth0", mac=MAC), pb.AgentAttributes.Network(name="ifb0")],
    product=pb.AgentAttributes.Product(vendor="V\x1b[31m", name="P", serial_number="unknown"),
)


@pytest.mark.parametrize(
    ("attributes", "story"),
    [
        (SAID, f"p, serial S1, chassis C1, 8 cores, 32GB memory, sda 480GB, eth0 {MAC}"),
        (HOSTILE, f"V [31m P, 4 cores, 16GB memory, sda 480GB, eth0 {MAC}"),
    ],
    ids=["plain", "hostile"],
)
async def test_they_are_on_the_hardware_written_once_and_on_the_journey(
    rig: Rig, agent: TinkAgent, attributes: pb.AgentAttributes, story: str
) -> None:
    for _ in range(3):
        await refused(agent.poll(attributes=attributes))
    await until(lambda: kept(rig))
    assert kept(rig) == json.loads(as_json(attributes))
    (logged,) = [each.message for each in rig.seen]
    assert logged.endswith(f": {story}")
    for number in range(5):  # what changes all the time is not written all the time
        await refused(agent.poll(attributes=pb.AgentAttributes(memory=pb.AgentAttributes.Memory(usable=f"{number}G"))))
    assert kept(rig) == json.loads(as_json(attributes))
    assert len([body for body in rig.api.bodies("patch") if "metadata" in body]) == 1


async def test_server_without_the_right_to_write_attributes_logs_that_and_serves(
    rig: Rig, agent: TinkAgent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rig.api.fail("patch", *[ApiError(403, "Forbidden", "no")] * 2)
    await refused(agent.poll(attributes=SAID))
    await until(lambda: "server.agentAttributes of the chart, or deploy/rbac-attributes.yaml" in caplog.text)
    assert kept(rig) is None
    hold(rig, PATIENCE_SECONDS)  # until the server has heard of the Workflow
    rig.workflow()
    assert (await agent.poll()).action_id == "a0"


async def test_a_server_that_was_refused_asks_once_an_hour_and_logs_it_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now, writes, api = 1000.0, [], InProcessApi(hardware("h"), hardware("i"))
    api.fail("patch", *[ApiError(403, "Forbidden", "no")] * 99)
    informer = api.informer(HARDWARE)
    inventories = InventoryKeeper(api, informer.get, lambda work: work.close(), EventRecorder(api, "test"))
    keeper = AttributesKeeper(api, informer.get, writes.append, inventories, lambda: now)

    async def report() -> int:
        """Report the attributes of two machines and return the number of requests."""
        for name in ("h", "i"):
            keeper.store(NamespacedName("default", name), SAID)
        while writes:
            await writes.pop()
        return api.count("patch")

    assert await report() == 1
    now += 3599
    assert await report() == 1
    now += 2
    assert await report() == 2
    assert caplog.text.count("are not stored in Hardware") == 1


def test_sizes_of_tink_agent_are_binary_and_its_names_are_those_of_the_in_band_inventory() -> None:
    assert read_attributes(in_band(SAID)).attributes == {
        "cpu": {"totalCores": 8, "totalThreads": 16},
        "memory": {"totalBytes": 32 << 30},
        "blockDevices": [
            {"name": "/dev/sda", "sizeBytes": 480 << 30, "physicalBlockSizeBytes": 512, "wwn": "0x5"},
        ],
        "networkInterfaces": [{"ports": [{"name": "eth0", "mac": MAC, "speedMbps": 10_000}]}],
        "product": {"model": "p", "serialNumber": "S1"},
        "chassis": {"vendor": "v", "serialNumber": "C1"},
    }


@settings(max_examples=50, deadline=None)
@given(st.text(), st.text(), st.text())
def test_any_text_of_tink_agent_makes_a_valid_inventory(size: str, speed: str, name: str) -> None:
    attributes = pb.AgentAttributes(
        memory=pb.AgentAttributes.Memory(total=size),
        block=[pb.AgentAttributes.Block(name=name, size=size)],
        network=[pb.AgentAttributes.Network(name=name, mac=MAC, speed=speed)],
    )
    assert read_attributes(in_band(attributes)).problems == ()


async def test_they_become_the_in_band_inventory_unless_a_current_agent_has_reported(
    rig: Rig, agent: TinkAgent
) -> None:
    def inventory() -> Any:
        return rig.read("h", HARDWARE).get("status", {}).get("inventory", {}).get("inBand")

    await refused(agent.poll(attributes=SAID))
    await until(inventory)
    assert inventory()["collectionMethod"] == "tink-agent"
    assert inventory()["product"] == {"model": "p", "serialNumber": "S1"}
    current = {"collectionMethod": CollectionMethod.AGENT.value, "product": {"serialNumber": "S2"}}
    rig.api.change(HARDWARE, "h", "d", status={"inventory": {"inBand": current}})
    await refused(agent.poll(attributes=pb.AgentAttributes(cpu=pb.AgentAttributes.CPU(total_cores=4))))
    await rig.server.stop()  # which writes what is pending
    assert inventory() == current
    assert json.loads(as_json(pb.AgentAttributes(cpu=pb.AgentAttributes.CPU(total_cores=4)))) == kept(rig)

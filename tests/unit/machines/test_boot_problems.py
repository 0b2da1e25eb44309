"""The condition BootProblem and its Events: why a machine does not boot is on its Hardware while it is so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from edge.machines import BootProblemWriter, Inventory, Machine, Problem
from tests.unit.machines.test_mistakes import MAC, Api, hardware
from tests.waiting import until
from tink.api.v1alpha2 import Raw
from tink.kube.cache import Informer
from tink.kube.client import KubeClient
from tink.kube.objects import NamespacedName

OTHER = "52:54:00:12:34:57"
LATE = Problem("NoTFTPRequest", "has 10.0.0.5, but for 8 s no TFTP request came in")
REFUSED = Problem("DhcpRefused", "disableNetboot is true", warning=False)


class Watched(Api):
    """With the Events that were created."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Raw] = []

    async def create(self, _resource: Any, body: Raw) -> Raw:
        self.events.append(body)
        return body


@asynccontextmanager
async def writing(api: Watched) -> AsyncIterator[tuple[BootProblemWriter, Machine]]:
    inventory = Inventory()
    for obj in [*api.objects.values()]:
        inventory.apply(obj)
    machine = inventory.by_mac(MAC)
    assert machine is not None
    writer = BootProblemWriter(cast(KubeClient, api), cast(Informer, api), lambda: 0.0)
    task = asyncio.create_task(writer.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    try:
        yield writer, machine
    finally:
        task.cancel()


async def test_problem_is_shown_until_the_machine_gets_on_and_told_once() -> None:
    api = Watched()
    api.put(hardware())
    async with writing(api) as (writer, machine):
        writer.found(machine, LATE)
        await until(lambda: api.condition() == ("True", "NoTFTPRequest"))
        writer.found(machine, None)
        await until(lambda: api.condition() == ("False", "GetsOn"))
        writer.found(machine, LATE)
        await until(lambda: api.condition() == ("True", "NoTFTPRequest"))
        await until(lambda: api.events)
    (event,) = api.events
    assert (event["type"], event["reason"]) == ("Warning", "NoTFTPRequest")
    assert event["message"] == f"{MAC}: {LATE.message}"
    assert event["involvedObject"]["kind"] == "Hardware"


async def test_machine_that_gets_on_is_never_written() -> None:
    api = Watched()
    api.put(hardware())
    async with writing(api) as (writer, machine):
        writer.found(machine, None)
        await asyncio.sleep(0.05)
    assert api.patches == []


async def test_what_is_as_it_is_wanted_is_no_problem_but_said() -> None:
    api = Watched()
    api.put(hardware())
    async with writing(api) as (writer, machine):
        writer.found(machine, REFUSED)
        await until(lambda: api.condition() == ("False", "DhcpRefused"))
        await until(lambda: api.events)
    assert api.events[0]["type"] == "Normal"


async def test_problem_of_an_earlier_run_ends_when_the_machine_gets_on() -> None:
    api = Watched()
    condition = {"type": "BootProblem", "status": "True", "reason": "NoTFTPRequest", "message": "before"}
    api.put({**hardware(), "status": {"conditions": [condition]}})
    async with writing(api) as (writer, machine):
        writer.found(machine, None)
        await until(lambda: api.condition() == ("False", "GetsOn"))


async def test_problem_of_another_machine_ends_when_the_hardwares_own_gets_on_or_by_itself() -> None:
    api = Watched()
    api.put(hardware())
    near = Problem("AlmostRegistered", "one digit off")
    async with writing(api) as (writer, machine):
        key = NamespacedName(machine.namespace, machine.name)
        for end in (lambda: writer.found(machine, None), lambda: writer.found_of_another(key, OTHER, None)):
            writer.found_of_another(key, OTHER, near)
            await until(lambda: api.condition() == ("True", "AlmostRegistered"))
            end()
            await until(lambda: api.condition() == ("False", "GetsOn"))
        await until(lambda: api.events)
    assert api.events[0]["message"] == f"{OTHER}: one digit off"


async def test_problem_of_one_card_stays_while_the_other_gets_on() -> None:
    api = Watched()
    obj = hardware()
    obj["spec"]["networkInterfaces"][OTHER] = {"dhcp": {"ip": "10.0.0.6", "netmask": "255.255.255.0"}}
    api.put(obj)
    inventory = Inventory()
    inventory.apply(obj)
    other = inventory.by_mac(OTHER)
    assert other is not None
    async with writing(api) as (writer, machine):
        writer.found(machine, LATE)
        writer.found(other, REFUSED)
        writer.found(other, None)
        await until(lambda: api.condition() == ("True", "NoTFTPRequest"))

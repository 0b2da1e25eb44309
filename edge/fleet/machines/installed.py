"""What follows a Workflow that has Succeeded: the machine boots its disk, and cloud-init reads what it is to be.

The order of requests, with a connection for each, is what cloud-init 22.4 to 25.3 send (DataSourceEc2, and
DataSourceNoCloud over HTTP); a name in a listing that can't be read rejects all of it, as there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from edge.fleet.machines import firmware
from edge.fleet.machines.lease import lease
from edge.fleet.machines.surroundings import BootError
from edge.fleet.population import BootOrder, CloudInit
from edge.fleet.protocols import http
from edge.fleet.protocols.dhcp import Clients
from edge.fleet.results import Question, Step

if TYPE_CHECKING:
    from edge.fleet.machines.machine import Machine

_VERSION: Final = "/2009-04-04"
_NEWER_VERSIONS: Final = ("/2021-03-23", "/2018-09-24", "/2016-09-02")
_NOCLOUD_FILES: Final = ("network-config", "meta-data", "user-data", "vendor-data")
_HEADERS: Final = ("User-Agent: Cloud-Init/25.1.4", "Accept: */*", "Connection: close")
_REFUSED: Final = "/netboot-not-allowed"
"""The end of the URL by which an edge, Smee too, has HTTP Boot go on: the answer is an error."""
_ATTEMPTS: Final = 6
_MAX_NAMES: Final = 1000


async def boot(machine: Machine) -> None:
    """Until cloud-init has all. Raises BootError, HttpError."""
    traits, profile = machine.traits, machine.around.profile
    machine.at(Step.REBOOT)
    await asyncio.sleep(traits.reboot + traits.post)
    machine.at(Step.DISK_BOOT)
    if profile.boot_order is BootOrder.NETWORK:
        await _pass_by_the_network(machine)
    machine.at(Step.SYSTEM)
    await asyncio.sleep(traits.system)
    machine.at(Step.SYSTEM_DHCP)
    await lease(machine, Clients.SYSTEM.value)
    machine.at(Step.CLOUD_INIT)
    if profile.cloud_init is CloudInit.EC2:
        await _ec2(machine)
    elif profile.cloud_init is CloudInit.NOCLOUD:
        for name in _NOCLOUD_FILES:
            await _document(machine, f"/nocloud/{machine.identity.mac_text}/{name}", {200})


async def _pass_by_the_network(machine: Machine) -> None:
    """Firmware that tries the network first is to be told that there is nothing for it. Raises BootError."""
    try:
        file, _ = await firmware.offered(machine)
        if file.endswith(_REFUSED):
            return
    except firmware.NoNetbootError:
        return
    raise BootError(f"is to boot {file} from the network again, though its Workflow has Succeeded (a boot loop)")


async def _ec2(machine: Machine) -> None:
    await _document(machine, f"{_VERSION}/meta-data/instance-id", {200})
    for version in _NEWER_VERSIONS:
        await _document(machine, f"{version}/meta-data/instance-id", {404})
    await _document(machine, f"{_VERSION}/user-data", {200, 404})
    directories, seen = [f"{_VERSION}/meta-data/"], 0
    while directories:
        directory = directories.pop()
        listing = (await _document(machine, directory, {200})).decode("utf-8", "replace")
        for name in listing.split("\n"):
            seen += 1
            if seen > _MAX_NAMES:
                raise BootError(f"cloud-init: more than {_MAX_NAMES} names in the metadata")
            if name.endswith("/"):
                directories.append(directory + name)
            elif name:
                index, is_key, _ = name.partition("=")
                await _document(machine, f"{directory}{index}/openssh-key" if is_key else directory + name, {200})


async def _document(machine: Machine, path: str, expected: set[int]) -> bytes:
    """A document of the edge's. Raises BootError, HttpError."""
    loop = asyncio.get_running_loop()
    for attempt in range(_ATTEMPTS):
        began = loop.time()
        found = await http.get(machine.identity.address, f"http://{machine.edge}{path}", _HEADERS)
        machine.around.recorder.took(Question.METADATA_GET, loop.time() - began)
        if found.status in expected:
            return found.body
        if found.status < 500 or attempt == _ATTEMPTS - 1:
            said = found.body[:200].decode("utf-8", "replace")
            raise BootError(f"cloud-init: {path} is answered with {found.status} {said}".strip())
        machine.error(f"metadata: {found.status}")
        await asyncio.sleep(1)
    raise AssertionError("the last attempt ends it")

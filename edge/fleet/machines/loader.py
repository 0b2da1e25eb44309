"""iPXE: an address of its own, the script, and what that says, up to the kernel's start."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from edge.fleet.machines.lease import lease
from edge.fleet.machines.surroundings import BootError
from edge.fleet.population import Firmware
from edge.fleet.protocols import http, ipxe
from edge.fleet.protocols.dhcp import Clients
from edge.fleet.results import Question, Step

if TYPE_CHECKING:
    from edge.fleet.machines.machine import Machine

_HEADERS: Final = ("User-Agent: iPXE/1.21.1", "Connection: keep-alive")
_STEPS: Final = {"kernel": Step.KERNEL, "initrd": Step.INITRD}


async def run(machine: Machine) -> ipxe.Boot:
    """The kernel that is started. Raises BootError, HttpError."""
    machine.at(Step.IPXE_DHCP)
    settings = _settings(machine)
    await _configure(machine, settings)
    url = http.Url.of(settings["filename"])
    machine.at(Step.SCRIPT)
    machine.edge = f"{url.host}:{url.port}"
    began = asyncio.get_running_loop().time()
    text = await _text(machine, settings["filename"])
    machine.around.recorder.took(Question.SCRIPT_GET, asyncio.get_running_loop().time() - began)
    found = await _carry_out(machine, ipxe.Interpreter(text, settings))
    if found.booted is None:
        raise BootError(f"the script ended: {found.said or f'status {found.status}'}")
    return found.booted


async def _configure(machine: Machine, settings: dict[str, str]) -> None:
    """DHCP, as iPXE. Raises BootError."""
    bios = machine.traits.firmware is Firmware.BIOS
    found = await lease(machine, (Clients.IPXE_BIOS if bios else Clients.IPXE_UEFI).value)
    if not found.file:
        raise BootError("iPXE: nothing to boot")
    settings["ip"], settings["filename"], settings["next-server"] = found.address, found.file, found.next_server


async def _carry_out(machine: Machine, script: ipxe.Interpreter) -> ipxe.Exit:
    """What the script wants, one after the other."""
    steps = script.run()
    answer: ipxe.Answer = None
    while True:
        try:
            wanted = steps.send(answer)
        except StopIteration as end:
            found: ipxe.Exit = end.value
            return found
        answer = None
        if isinstance(wanted, ipxe.Sleep):
            await asyncio.sleep(wanted.seconds)
        elif isinstance(wanted, ipxe.ConfigureNetwork):
            answer = await _configured(machine, script.settings)
        elif isinstance(wanted, ipxe.Fetch):
            answer = await _fetched(machine, wanted)


async def _configured(machine: Machine, settings: dict[str, str]) -> bool:
    try:
        await _configure(machine, settings)
    except BootError as error:
        machine.error(str(error))
        return False
    return True


async def _fetched(machine: Machine, wanted: ipxe.Fetch) -> str | None:
    """The text of what was fetched (empty of a kernel); None: it could not be."""
    try:
        if wanted.what == "text":
            return await _text(machine, wanted.url)
        step = _STEPS[wanted.what]
        if machine.step is not step:
            machine.at(step)
        await _file(machine, wanted)
    except (http.HttpError, BootError) as error:
        machine.error(str(error))
        return None
    return ""


async def _file(machine: Machine, wanted: ipxe.Fetch) -> None:
    around = machine.around
    around.check(http.Url.of(wanted.url).host)
    source = machine.identity.address
    if around.by_reference:
        found = await http.length(source, wanted.url, _HEADERS)
    else:
        found = await http.get(source, wanted.url, _HEADERS, keep=False)
    if found.status != 200:
        said = found.body[:200].decode("utf-8", "replace")
        raise BootError(f"{wanted.what}: {found.status} {said}".strip())
    around.recorder.bytes_received[wanted.what] += found.length


async def _text(machine: Machine, url: str) -> str:
    machine.around.check(http.Url.of(url).host)
    found = await http.get(machine.identity.address, url, _HEADERS)
    text = found.body.decode("utf-8", "replace")
    if found.status not in (200, 204):
        raise BootError(f"{http.Url.of(url).target.partition('?')[0]}: {found.status} {text[:200]}".strip())
    return text


def _settings(machine: Machine) -> dict[str, str]:
    """iPXE's, as scripts ask for them."""
    mac = machine.identity.mac_text
    return {
        "mac": mac,
        "ifname": "net0",
        "uuid": "-".join(
            machine.traits.uuid.hex()[begin:end] for begin, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
        ),
        "manufacturer": "tinkedge",
        "product": "fleet",
        "platform": "pcbios" if machine.traits.firmware is Firmware.BIOS else "efi",
        "buildarch": "x86_64",
        "unixtime": str(max(int(time.time() + machine.traits.clock_error), 0)),
    }

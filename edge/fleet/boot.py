"""The life of one machine, from power-on to its installed system: a coroutine that sleeps nearly always.

    firmware -> boot program -> iPXE -> kernel, initrd -> OSIE -> agent -> Workflow -> disk -> cloud-init

The firmware repeats a boot that has failed. A power cut ends the boot, and erases the agent's memory. A machine with a
BMC starts when the BMC powers it on, and starts again after each reset by the BMC.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final
from uuid import UUID

from edge.fleet import agent
from edge.fleet.bmc import NETWORK_BOOT, PowerSupply
from edge.fleet.machine import BootError, GaveUpError, SimulatedMachine
from edge.fleet.network import DatagramSocket
from edge.fleet.population import BootOrder, CloudInit, Firmware, HangsAt
from edge.fleet.protocols import http, ipxe, tftp
from edge.fleet.protocols.dhcp import Client, Clients, Conversation, Lease, NakError
from edge.fleet.results import FleetStep, Question, Whole
from tink.agent import AgentError, AgentSettings, from_kernel_command_line

_CLIENTS: Final[dict[Firmware, Client]] = {
    Firmware.BIOS: Clients.BIOS.value,
    Firmware.UEFI: Clients.UEFI.value,
    Firmware.UEFI_HTTP: Clients.UEFI_HTTP.value,
}
_HTTP_HEADERS: Final = ("Accept: */*", "User-Agent: UefiHttpBoot/1.0")
_MAX_NAKS = 3
_IPXE_HEADERS: Final = ("User-Agent: iPXE/1.21.1", "Connection: keep-alive")
_STEPS: Final = {"kernel": FleetStep.KERNEL, "initrd": FleetStep.INITRD}
_SIGN = "tinkedge_sign="
_VERSION: Final = "/2009-04-04"
_NEWER_VERSIONS: Final = ("/2021-03-23", "/2018-09-24", "/2016-09-02")
_NOCLOUD_FILES: Final = ("network-config", "meta-data", "user-data", "vendor-data")
_CLOUD_INIT_HEADERS: Final = ("User-Agent: Cloud-Init/25.1.4", "Accept: */*", "Connection: close")
_REFUSED: Final = "/netboot-not-allowed"
"""End of the boot file's URL in a refusal to HTTP Boot clients, of Smee's too: firmware gets an error and goes on."""
_MAX_ATTEMPTS: Final = 6
_MAX_NAMES: Final = 1000


async def live(machine: SimulatedMachine) -> None:
    """Run a machine's whole life. Failures go to the recorder; raises nothing."""
    if machine.power is None:
        await asyncio.sleep(machine.traits.power_on)
        await _run(machine)
        return
    while not await _run_until_interrupted(machine, machine.power):
        machine.was_cut = True
        machine.at(FleetStep.OFF, completed=False)


async def _run_until_interrupted(machine: SimulatedMachine, power: PowerSupply) -> bool:
    """Wait until the BMC starts the machine, and run it. Return False if the BMC has cut its power before its end."""
    await power.started()
    if power.requested_at is not None:
        machine.around.recorder.took(Question.POWER_ON, time.monotonic() - power.requested_at)
        power.requested_at = None
    life, interruption = asyncio.create_task(_run(machine)), asyncio.create_task(power.interrupted())
    try:
        await asyncio.wait({life, interruption}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        life.cancel()
        interruption.cancel()
        await asyncio.wait({life, interruption})
    if life.cancelled():
        return False
    life.result()
    return True


async def _run(machine: SimulatedMachine) -> None:
    """Run a machine from its start to the installed system."""
    loop, recorder = asyncio.get_running_loop(), machine.around.recorder
    began = loop.time()
    machine.power_on()
    try:
        if machine.power is not None and machine.power.boot_device != NETWORK_BOOT:
            raise GaveUpError(f"its BMC started it with the boot device {machine.power.boot_device}: its disk is empty")
        await _provision_with_faults(machine)
        if not machine.is_expected:
            machine.at(FleetStep.DONE)
            return
        recorder.took(Whole.PROVISIONED, loop.time() - began)
        await _boot_disk(machine)
        recorder.took(Whole.INSTALLED, loop.time() - began)
        machine.at(FleetStep.DONE)
    except GaveUpError as error:
        machine.fail(str(error), injected=error.injected)
    except (BootError, http.HttpError) as error:  # of the installed system, which boots only once
        machine.fail(str(error), injected=False)


async def _provision_with_faults(machine: SimulatedMachine) -> None:
    try:
        async with asyncio.timeout(machine.traits.cut_at) as power:
            await _provision(machine)
            return
    except TimeoutError:
        if not power.expired():
            raise
    machine.was_cut = True
    machine.blame_fleet()
    machine.around.recorder.faults["power cuts"] += 1
    machine.at(FleetStep.OFF, completed=False)
    await asyncio.sleep(machine.traits.off)
    await _provision(machine)


async def _provision(machine: SimulatedMachine) -> None:
    """Boot until the Workflow has Succeeded. Raises GaveUpError."""
    rounds = machine.around.profile.rounds
    for number in range(1, rounds + 1):
        try:
            return await _boot_network(machine)
        except (BootError, http.HttpError, OSError) as error:
            machine.error(str(error))
            if number == rounds:
                raise GaveUpError(f"{error} (after {rounds} boots)") from error
        await asyncio.sleep(machine.traits.round_pause)
    return None


async def _boot_network(machine: SimulatedMachine) -> None:
    """Boot once from the network, to the end of the Workflow. Raises BootError, HttpError, OSError, GaveUpError."""
    machine.at(FleetStep.FIRMWARE, completed=False)
    await asyncio.sleep(machine.traits.post)
    await _hang(machine, HangsAt.POST)
    await _load_boot_program(machine)
    machine.at(FleetStep.LOADER)
    await _hang(machine, HangsAt.LOADER)
    await asyncio.sleep(machine.traits.loader)
    kernel = await _run_ipxe(machine)
    machine.at(FleetStep.STARTING)
    await asyncio.sleep(machine.traits.kernel)
    settings = await _start_osie(machine, kernel)
    await agent.work(machine, settings)


async def _hang(machine: SimulatedMachine, where: HangsAt) -> None:
    """Hang here once, if the traits have it. Raises BootError after the power was switched off and on."""
    if machine.traits.hangs_at is not where or machine.has_hung:
        return
    machine.has_hung = True
    machine.around.recorder.faults["firmware hung"] += 1
    await asyncio.sleep(machine.traits.hang + machine.traits.off)
    raise BootError(f"hung in {where.value}, and was switched off and on")


# --- firmware: an address, and the boot program by TFTP or HTTP ---


class NoNetbootError(BootError):
    """The server refuses the network boot; firmware tries the next boot device."""


async def _load_boot_program(machine: SimulatedMachine) -> None:
    """Download the boot program. Raises BootError, HttpError, NoNetbootError."""
    machine.at(FleetStep.FIRMWARE_DHCP, completed=False)
    file, server = await _offered(machine)
    machine.at(FleetStep.BOOT_PROGRAM)
    if machine.traits.firmware is Firmware.UEFI_HTTP:
        await _by_http(machine, file)
    else:
        await _by_tftp(machine, server, file)


async def _offered(machine: SimulatedMachine) -> tuple[str, str]:
    """Return the boot file and the server that DHCP names. Raises BootError, NoNetbootError."""
    found = await _lease(machine, _CLIENTS[machine.traits.firmware])
    if found.local_boot or not found.file:
        raise NoNetbootError("the server answers: boot from the next device")
    return found.file, found.next_server or found.server


async def _by_http(machine: SimulatedMachine, text: str) -> None:
    """Download by HTTP as EDK2 does: HEAD and GET on one connection, a Host without the port (HttpBootClient.c)."""
    url = http.Url.of(text)
    machine.around.check(url.host)
    headers = (f"Host: {url.host}", *_HTTP_HEADERS)
    with contextlib.closing(await http.HttpConnection.connect(machine.identity.address, url)) as connection:
        head = await connection.request("HEAD", url.target, headers)
        if head.status == 403:
            raise NoNetbootError("the server answers 403: boot from the next device")
        if head.status != 200 or not head.length:
            raise BootError(f"the boot program: HEAD is answered with {head.status} and {head.length} bytes")
        file = await connection.request("GET", url.target, headers, keep=False)
    if file.status != 200 or file.length != head.length:
        raise BootError(f"the boot program: {file.status}, {file.length} bytes instead of the {head.length} of HEAD")
    machine.around.recorder.bytes_received["boot program"] += file.length


async def _by_tftp(machine: SimulatedMachine, server: str, file: str) -> None:
    machine.around.check(server)
    reads = tftp.Reads.BIOS if machine.traits.firmware is Firmware.BIOS else tftp.Reads.UEFI
    probe, asked = reads.value
    size = (await _transfer(machine, server, tftp.Reading(file, probe, probe=True))).size
    transfer = await _transfer(machine, server, tftp.Reading(file, asked))
    if size is not None and transfer.received != size:
        raise BootError(f"TFTP: {file} has {transfer.received} bytes instead of the {size} that the server announced")
    machine.around.recorder.bytes_received["boot program"] += transfer.received


async def _transfer(machine: SimulatedMachine, server: str, reading: tftp.Reading) -> tftp.Reading:
    """Run a TFTP transfer to its last block. Raises BootError."""
    loop, recorder = asyncio.get_running_loop(), machine.around.recorder
    try:
        with contextlib.closing(DatagramSocket(machine.identity.address, machine.lost)) as sock:
            began, port, tries, packet = loop.time(), 0, 0, reading.packet()
            while not reading.done:
                sock.send(packet, (server, port or tftp.PORT))
                try:
                    async with asyncio.timeout(tftp.TIMEOUT_SECONDS):
                        answer = None
                        while answer is None and not reading.done:
                            datagram, sender = await sock.receive()
                            if sender[0] != server or (port and sender[1] != port):
                                continue
                            if not port:  # the server answers from a new port (RFC 1350 section 4)
                                port = sender[1]
                                recorder.took(Question.TFTP, loop.time() - began)
                            answer = reading.receive(datagram)
                except TimeoutError:
                    tries += 1
                    if tries >= tftp.ATTEMPTS:
                        raise BootError(f"TFTP: {server} does not answer") from None
                    recorder.error(machine.step, "TFTP: a packet was sent again")
                    packet = reading.repeated()
                    continue
                tries, packet = 0, answer or b""
            if packet:
                sock.send(packet, (server, port))  # the last acknowledgement
            return reading
    except OSError as error:
        raise BootError(f"TFTP: {error.strerror}") from error
    except tftp.TftpError as error:
        raise BootError(f"TFTP: {error}") from error


# --- leases ---


async def _lease(machine: SimulatedMachine, client: Client) -> Lease:
    """Return a DHCP lease for a client program of the machine. Raises BootError."""
    for _ in range(_MAX_NAKS):
        try:
            found = await _converse(machine, client)
        except NakError as error:
            machine.error(f"{client.name}: {error}")
            continue
        if not machine.takes_address(found.address):
            raise BootError(f"{client.name} was given {found.address} instead of its Hardware's address")
        return found
    raise BootError(f"{client.name}: DHCPNAK {_MAX_NAKS} times")


async def _converse(machine: SimulatedMachine, client: Client) -> Lease:
    """Run one DHCP conversation, as patient as the client program. Raises BootError, NakError."""
    loop, port, mac = asyncio.get_running_loop(), machine.around.port, machine.identity.mac
    xid = int(machine.chance() * 2**32).to_bytes(4, "big")
    conversation = Conversation(client, mac, machine.traits.uuid, xid, port.giaddr)
    packets: asyncio.Queue[bytes] = asyncio.Queue()
    began = loop.time()

    async def exchange(question: Question, without: str) -> None:
        """Send the packet until an answer arrives or the client gives up."""
        for wait in client.waits:
            if client.jitter:
                wait += client.jitter * (2 * machine.chance() - 1)
            sent = loop.time()
            packet = conversation.packet(sent - began)
            if not machine.lost():
                port.send(mac, packet)
            try:
                async with asyncio.timeout(wait):
                    while True:
                        payload = await packets.get()
                        if not machine.lost() and conversation.receive(payload):
                            break
            except TimeoutError:
                machine.around.recorder.error(machine.step, f"{client.name} sent its packet again after {wait:.0f} s")
                continue
            now = loop.time()
            machine.around.recorder.took(question, now - sent)
            if question is Question.DHCP_OFFER:
                rest = wait - (now - sent) if client.collects else conversation.waits_for_proxy
                await asyncio.sleep(max(rest, 0.0))
            return
        raise BootError(f"{client.name}: {without} within {sum(client.waits):.0f} s")

    port.listen(mac, packets.put_nowait)
    try:
        await exchange(Question.DHCP_OFFER, "no offer")
        conversation.take()
        await exchange(Question.DHCP_ACK, "an offer, but no acknowledgement")
    finally:
        port.listen(mac, None)
    if conversation.lease is None:
        raise BootError(f"{client.name}: no lease")
    return conversation.lease


# --- iPXE: a lease of its own, the script, and the script's commands up to the kernel's start ---


async def _run_ipxe(machine: SimulatedMachine) -> ipxe.KernelStart:
    """Run iPXE; return the kernel that the script boots. Raises BootError, HttpError."""
    machine.at(FleetStep.IPXE_DHCP)
    settings = _settings(machine)
    await _configure(machine, settings)
    url = http.Url.of(settings["filename"])
    machine.at(FleetStep.SCRIPT)
    machine.edge = f"{url.host}:{url.port}"
    began = asyncio.get_running_loop().time()
    text = await _text(machine, settings["filename"])
    machine.around.recorder.took(Question.SCRIPT_GET, asyncio.get_running_loop().time() - began)
    found = await _carry_out(machine, ipxe.Interpreter(text, settings))
    if found.booted is None:
        raise BootError(f"the script ended: {found.shown or f'status {found.status}'}")
    return found.booted


async def _configure(machine: SimulatedMachine, settings: dict[str, str]) -> None:
    """Get a lease as iPXE and store it in `settings`. Raises BootError."""
    bios = machine.traits.firmware is Firmware.BIOS
    found = await _lease(machine, (Clients.IPXE_BIOS if bios else Clients.IPXE_UEFI).value)
    if not found.file:
        raise BootError("iPXE: nothing to boot")
    settings["ip"], settings["filename"], settings["next-server"] = found.address, found.file, found.next_server


async def _carry_out(machine: SimulatedMachine, script: ipxe.Interpreter) -> ipxe.Exit:
    """Execute the script's commands; return how it ended."""
    steps = script.run()
    answer: ipxe.Answer = None
    while True:
        try:
            wanted = steps.send(answer)
        except StopIteration as end:
            found: ipxe.Exit = end.value
            return found
        try:
            answer = await _execute(machine, script.settings, wanted)
        except (http.HttpError, BootError) as error:
            machine.error(str(error))
            answer = None


async def _execute(machine: SimulatedMachine, settings: dict[str, str], wanted: ipxe.Wanted) -> ipxe.Answer:
    """Execute a script's command; return its answer (empty for a kernel or initrd). Raises BootError, HttpError."""
    match wanted:
        case ipxe.Sleep():
            await asyncio.sleep(wanted.seconds)
        case ipxe.ConfigureNetwork():
            await _configure(machine, settings)
            return True
        case ipxe.Fetch(what="text"):
            return await _text(machine, wanted.url)
        case ipxe.Fetch():
            if machine.step is not _STEPS[wanted.what]:
                machine.at(_STEPS[wanted.what])
            await _file(machine, wanted)
            return ""
    return None


async def _file(machine: SimulatedMachine, wanted: ipxe.Fetch) -> None:
    around = machine.around
    around.check(http.Url.of(wanted.url).host)
    source = machine.identity.address
    if around.by_reference:
        found = await http.length(source, wanted.url, _IPXE_HEADERS)
    else:
        found = await http.get(source, wanted.url, _IPXE_HEADERS, keep=False)
    if found.status != 200:
        said = found.body[:200].decode("utf-8", "replace")
        raise BootError(f"{wanted.what}: {found.status} {said}".strip())
    around.recorder.bytes_received[wanted.what] += found.length


async def _text(machine: SimulatedMachine, url: str) -> str:
    machine.around.check(http.Url.of(url).host)
    found = await http.get(machine.identity.address, url, _IPXE_HEADERS)
    text = found.body.decode("utf-8", "replace")
    if found.status not in (200, 204):
        raise BootError(f"{http.Url.of(url).target.partition('?')[0]}: {found.status} {text[:200]}".strip())
    return text


def _settings(machine: SimulatedMachine) -> dict[str, str]:
    """Return the iPXE settings that scripts read."""
    return {
        "mac": machine.identity.mac_text,
        "ifname": "net0",
        "uuid": str(UUID(bytes=machine.traits.uuid)),
        "manufacturer": "tinkedge",
        "product": "fleet",
        "platform": "pcbios" if machine.traits.firmware is Firmware.BIOS else "efi",
        "buildarch": "x86_64",
        "unixtime": str(max(int(time.time() + machine.traits.clock_error), 0)),
    }


# --- the OSIE: from the first DISCOVER to the agent's start ---


async def _start_osie(machine: SimulatedMachine, kernel: ipxe.KernelStart) -> AgentSettings:
    """Start the OSIE; return the agent's settings from the kernel command line. Raises BootError, HttpError."""
    machine.at(FleetStep.OSIE_DHCP)
    await _lease(machine, Clients.OSIE.value)
    machine.at(FleetStep.OSIE)
    sign = next((word.removeprefix(_SIGN) for word in kernel.command_line.split() if word.startswith(_SIGN)), "")
    if sign:
        try:  # The OSIE goes on if this report fails.
            machine.around.check(http.Url.of(sign).host)
            await http.get(machine.identity.address, sign)
        except (http.HttpError, BootError) as error:
            machine.error(str(error))
    await asyncio.sleep(machine.traits.osie)
    try:
        return from_kernel_command_line(kernel.command_line)
    except AgentError as error:
        raise BootError(f"the agent can't be started with this kernel command line: {error}") from error


# --- the installed system ---
#
# cloud-init 22.4 to 25.3 send their requests in this order, with a connection for each (DataSourceEc2, and
# DataSourceNoCloud over HTTP). As there, one unreadable name in a listing fails the whole listing.


async def _boot_disk(machine: SimulatedMachine) -> None:
    """Boot the disk and run cloud-init to its end. Raises BootError, HttpError."""
    traits, profile = machine.traits, machine.around.profile
    machine.at(FleetStep.REBOOT)
    await asyncio.sleep(traits.reboot)
    if machine.power is not None and machine.power.restart() == NETWORK_BOOT:
        raise BootError(f"its BMC has the boot device {NETWORK_BOOT} again, although its Workflow has Succeeded")
    await asyncio.sleep(traits.post)
    machine.at(FleetStep.DISK_BOOT)
    if profile.boot_order is BootOrder.NETWORK:
        await _try_network_first(machine)
    machine.at(FleetStep.SYSTEM)
    await asyncio.sleep(traits.system)
    machine.at(FleetStep.SYSTEM_DHCP)
    await _lease(machine, Clients.SYSTEM.value)
    machine.at(FleetStep.CLOUD_INIT)
    if profile.cloud_init is CloudInit.EC2:
        await _ec2(machine)
    elif profile.cloud_init is CloudInit.NOCLOUD:
        for name in _NOCLOUD_FILES:
            await _document(machine, f"/nocloud/{machine.identity.mac_text}/{name}", {200})


async def _try_network_first(machine: SimulatedMachine) -> None:
    """Check that the edge refuses a network boot of the installed machine. Raises BootError."""
    try:
        file, _ = await _offered(machine)
        if file.endswith(_REFUSED):
            return
    except NoNetbootError:
        return
    raise BootError(f"boots {file} from the network again, although its Workflow has Succeeded (a boot loop)")


async def _ec2(machine: SimulatedMachine) -> None:
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


async def _document(machine: SimulatedMachine, path: str, expected: set[int]) -> bytes:
    """Return a metadata document of the edge. Raises BootError, HttpError."""
    loop = asyncio.get_running_loop()
    for attempt in range(_MAX_ATTEMPTS):
        began = loop.time()
        found = await http.get(machine.identity.address, f"http://{machine.edge}{path}", _CLOUD_INIT_HEADERS)
        machine.around.recorder.took(Question.METADATA_GET, loop.time() - began)
        if found.status in expected:
            return found.body
        if found.status < 500 or attempt == _MAX_ATTEMPTS - 1:
            said = found.body[:200].decode("utf-8", "replace")
            raise BootError(f"cloud-init: {path} is answered with {found.status} {said}".strip())
        machine.error(f"metadata: {found.status}")
        await asyncio.sleep(1)
    raise AssertionError("the last attempt ends it")

"""Switch on one machine in a rack of its own, with `tinkedge up` and one Hardware, and report the boot.

    python tests/boot/netboot.py --firmware uefi --until 'script sent' [--spec JSON] [--beside-dnsmasq] [--vlan N]
        [--osie DIR] [--memory MIB] [--ipv6 [--relayed]] [--host-clock] [--medium cdrom|usb] [--static] [--image FILE]
        [--kernel FILE] [--uki FILE] [--type COMMAND] [-- UP-FLAGS]

A program of its own, because the rack's network namespace becomes that of the process. Ends when a line of the journey
or of the machine's screen matches `--until`, or after `--within` seconds. Prints JSON: `seconds` from power-on to the
match (null: none), `journey` and `screen`, and `dhcp`: the number of DHCP packets from the machine. With `--medium` it
starts from the edge's boot medium, fetched as a BMC does, or from the file `--image`. With `--relayed`, the machine is
on a link that has no edge, behind a router with a DHCPv6 relay. Without --osie, the OSIE is a file that no machine can
start: such tests end with the download.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import re
import shlex
import shutil
import socket
import struct
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from edge.admin_token import read, token_file
from edge.building.shell import Daemon, run
from edge.journey.events import JourneyEvent
from edge.journey.follow import follow
from edge.lab.machine import Drive, Firmware, MachineSettings, VirtualMachine
from edge.lab.rack import IPV6, Rack, RackNetwork
from tests.boot import relayed
from tests.boot.boards import ARM64_KERNEL, Board, BoardMachine

# linux/if_tun.h, if_packet.h, if_ether.h
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_SOL_PACKET, _PACKET_AUXDATA, _TP_STATUS_VLAN_VALID, _ETH_P_ALL = 263, 8, 0x10, 3

MAC, ADDRESS, ADDRESS6 = "52:54:00:12:34:56", "172.31.77.10", "fd31:77::10"
_ICOUNT = 5
"""32 ns an instruction: UEFI busy-waits for offers of other DHCP servers and for missing answers.

With this clock, its four seconds pass in half a second, and it still repeats its requests.
"""


class Watched:
    """The journey and the screen so far, and the time at which the expected text appeared."""

    def __init__(self, until: str, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._until = re.compile(until)
        self.started = time.monotonic()
        self.found = asyncio.Event()
        self.seconds: float | None = None
        self.journey: list[str] = []

    def record_line(self, line: str) -> None:
        if self.seconds is None and self._until.search(line):
            self.seconds = round(time.monotonic() - self.started, 2)
            self.found.set()

    async def follow_journey(self, *, further: bool) -> None:
        """Follow the journey to the expected event. A quick machine is past it by the time that the event arrives."""
        token = read(token_file(self._data_dir, None))
        async for event in follow("http://127.0.0.1:7081", token, history=True):
            if isinstance(event, JourneyEvent):
                after = time.monotonic() - self.started
                if event.detail.get("phase") != "begun":
                    self.journey.append(f"{after:7.2f} {event.step} {event.outcome}: {event.message}")
                self.record_line(line := f"{event.step} {event.outcome}: {event.message}")
                if self._until.search(line) and not further:
                    return

    async def follow_screen(self, machine: VirtualMachine) -> None:
        while True:
            for line in machine.last_lines(40):
                self.record_line(f"screen: {line}")
            await asyncio.sleep(0.1)


def manifests(directory: Path, spec: dict[str, Any], osie_dir: Path, *, address6: str, has_uki: bool) -> None:
    dhcp: dict[str, Any] = {"ip": ADDRESS, "netmask": "255.255.255.0", "gateway": "172.31.77.1"}
    dhcp = {"ipv6": {"address": address6}} if address6 else dhcp
    hardware = {"networkInterfaces": {MAC: {"dhcp": dhcp} | spec.pop("interface", {})}, "osie": {"name": "stub"}} | spec
    osie = {"kernelUrl": f"file://{osie_dir}/kernel", "initrdUrl": f"file://{osie_dir}/initrd"}
    for kind, name, content in (("Hardware", "m1", hardware), ("OSIE", "stub", osie)):
        metadata: dict[str, Any] = {"name": name, "namespace": "default"}
        if has_uki and kind == "OSIE":
            metadata["annotations"] = {"tinkerbell.org/uki-url": f"file://{osie_dir}/uki.efi"}
        obj = {"apiVersion": "tinkerbell.org/v1alpha2", "kind": kind, "metadata": metadata, "spec": content}
        (directory / f"{name}.json").write_text(json.dumps(obj))


async def power_on(arguments: argparse.Namespace, directory: Path, stack: AsyncExitStack) -> Watched:
    network = IPV6 if arguments.ipv6 else RackNetwork()
    board = Board(arguments.firmware) if arguments.firmware in set(Board) else None
    rack = Rack(network)
    stack.push_async_callback(rack.down)
    await rack.up()
    osie_dir, objects = arguments.osie or directory / "osie", directory / "manifests"
    objects.mkdir()
    if not arguments.osie:
        osie_dir.mkdir()
        for part in ("kernel", "initrd"):
            (osie_dir / part).write_bytes(b"MZ no kernel" * 10000)
        if board in (Board.U_BOOT, Board.U_BOOT_NEW):
            (osie_dir / "kernel").write_bytes(ARM64_KERNEL.ljust(1 << 20, b"\0"))
    if arguments.kernel is not None:
        shutil.copyfile(arguments.kernel, osie_dir / "kernel")
    if arguments.uki is not None:
        shutil.copyfile(arguments.uki, osie_dir / "uki.efi")
    has_uki = arguments.uki is not None
    address6 = (relayed.ADDRESS if arguments.relayed else ADDRESS6) if arguments.ipv6 else ""
    manifests(objects, json.loads(arguments.spec), osie_dir, address6=address6, has_uki=has_uki)
    if arguments.relayed:
        await relayed.start_relay(rack, directory, stack)
    if arguments.vlan:
        await _start_trunk(network, arguments.vlan, stack)
    if arguments.beside_dnsmasq:
        await _start_dnsmasq(network, directory, stack)
    up = [sys.executable, "-m", "edge.cli", "up", "--data-dir", directory / "data", "--osie-dir", osie_dir]
    if arguments.relayed:  # no machine reaches the edge directly
        up += ["--interface", network.bridge, "--ipv6"]
    elif arguments.ipv6:
        up += ["--router-advertisements"]
        up += ["--interface", network.bridge, "--ipv6", "--ipv6-router", network.bridge]
    else:
        up += ["--interface", f"{network.bridge}={network.address}"]
    up += ["--manifests", objects, *arguments.up]
    log = directory / "up.log"
    edge = await Daemon.start("up", up, log)
    stack.push_async_callback(edge.stop)
    await _ready(edge, network.host)
    memory = 1024 if arguments.uki else arguments.memory  # a UKI: a whole OSIE
    firmware = Firmware.BIOS if board else Firmware(arguments.firmware)
    # Kernels, and firmware that boots over IPv6 or from a medium, need the host's clock.
    by_host = arguments.osie or arguments.uki or arguments.medium or arguments.ipv6 or arguments.host_clock
    more = {"memory_mib": memory, "ipv6": arguments.ipv6, "icount": None if by_host else _ICOUNT}
    settings = MachineSettings(MAC, network.tap, firmware, processors=1, disk_mib=1, **more)
    if arguments.medium:
        image = directory / "medium"
        if arguments.image is not None:
            shutil.copyfile(arguments.image, image)
        else:
            await _fetch_medium(network.address, directory / "data", image, static=arguments.static)
        settings = replace(settings, medium=image, drive=Drive(arguments.medium))
    dhcp_count = _count_dhcp(network.tap, stack)
    machine = (
        BoardMachine(board, settings, directory, tuple(arguments.type))
        if board
        else VirtualMachine(settings, directory)
    )
    watched = Watched(arguments.until, directory / "data")
    stack.push_async_callback(machine.power_off)
    await machine.power_on()
    watched.started = time.monotonic()
    follow_journey = watched.follow_journey(further=arguments.linger > 0)
    followers = [asyncio.create_task(follow_journey), asyncio.create_task(watched.follow_screen(machine))]
    try:
        async with asyncio.timeout(arguments.within):
            await watched.found.wait()
        # The edge's events of the same moment may arrive after the screen's output.
        await asyncio.sleep(max(arguments.linger, 1.0))
    except TimeoutError:
        pass
    finally:
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
    report = {"seconds": watched.seconds, "journey": watched.journey, "screen": machine.last_lines(60)}
    report["dhcp"] = dhcp_count[0]
    if arguments.ipv6:
        report["ipv4_packets"] = rack.ipv4_packets()
    if arguments.log:
        report["log"] = log.read_text().splitlines()[-60:]
        if arguments.relayed:
            report["router"] = (directory / "router.log").read_text().splitlines()[-60:]
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return watched


async def _fetch_medium(address: str, data_dir: Path, image: Path, *, static: bool) -> None:
    command = [sys.executable, "-m", "edge.cli", "iso", "--mac", MAC, "--url", "--public-ip", address]
    url = (await run([*command, "--data-dir", data_dir, *(["--static"] if static else [])])).strip()
    async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(url) as response:
        image.write_bytes(await response.read())


def _count_dhcp(tap: str, stack: AsyncExitStack) -> list[int]:
    """Count the machine's frames to UDP port 67; the returned list has the current count."""
    packet_socket = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)))
    packet_socket.setblocking(False)
    packet_socket.bind((tap, _ETH_P_ALL))
    count = [0]

    def take() -> None:
        frame, sender = packet_socket.recvfrom(128)
        is_ipv4_udp = frame[12:14] == b"\x08\0" and frame[23] == socket.IPPROTO_UDP
        header = 14 + (frame[14] & 0xF) * 4
        if sender[2] != socket.PACKET_OUTGOING and is_ipv4_udp and frame[header + 2 : header + 4] == b"\0\x43":
            count[0] += 1

    loop = asyncio.get_running_loop()
    loop.add_reader(packet_socket, take)
    stack.callback(loop.remove_reader, packet_socket)
    return count


async def _start_dnsmasq(network: RackNetwork, directory: Path, stack: AsyncExitStack) -> None:
    """Start the DHCP server that assigns addresses beside our proxy, in a network namespace of its own."""
    serve = [
        *("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--no-ping"),
        *("--interface=dnsmasq1", "--dhcp-range=172.31.77.10,172.31.77.10,1h", "--log-dhcp", "--log-facility=-"),
        f"--dhcp-leasefile={directory}/dnsmasq.leases",
    ]
    waiting = "until ip address add 172.31.77.254/24 dev dnsmasq1 2>/dev/null; do sleep 0.05; done"
    command = f"{waiting}; ip link set dnsmasq1 up; exec {shlex.join(serve)}"
    server = await Daemon.start("dnsmasq", ["unshare", "--net", "sh", "-c", command], directory / "dnsmasq.log")
    stack.push_async_callback(server.stop)
    while Path(f"/proc/{server.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
        await asyncio.sleep(0.01)
    await run(["ip", "link", "add", "dnsmasq0", "type", "veth", "peer", "name", "dnsmasq1"])
    await run(["ip", "link", "set", "dnsmasq1", "netns", str(server.pid)])
    await run(["ip", "link", "set", "dnsmasq0", "master", network.bridge, "up"])


async def _start_trunk(network: RackNetwork, vlan: int, stack: AsyncExitStack) -> None:
    """Make the machine's port a trunk: its frames in `vlan` go through a second port of the bridge, without the tag.

    This runs in user space, since some kernels lack 802.1Q devices. The tag of a received frame is in auxiliary data
    (packet(7), PACKET_AUXDATA).
    """
    access = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    stack.callback(os.close, access)
    fcntl.ioctl(access, _TUNSETIFF, struct.pack("16sH", b"vlan-port", _IFF_TAP | _IFF_NO_PI))
    await run(["ip", "link", "set", "vlan-port", "master", network.bridge, "up"])
    # A full frame with a tag exceeds the tap's MTU.
    await run(["ip", "link", "set", network.bridge, "mtu", "1400"])
    trunk = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)))
    trunk.setblocking(False)
    trunk.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
    trunk.bind((network.tap, _ETH_P_ALL))
    tag = struct.pack("!HH", 0x8100, vlan)

    def from_machine() -> None:
        frame, ancillary, _, sender = trunk.recvmsg(65536, 256)
        for _, _, beside in ancillary:
            status, _, _, _, _, tci, _ = struct.unpack_from("IIIHHHH", beside)
            if sender[2] != socket.PACKET_OUTGOING and status & _TP_STATUS_VLAN_VALID and tci & 0xFFF == vlan:
                os.write(access, frame)

    def to_machine() -> None:
        frame = os.read(access, 65536)
        trunk.send(frame[:12] + tag + frame[12:])

    loop = asyncio.get_running_loop()
    loop.add_reader(trunk, from_machine)
    loop.add_reader(access, to_machine)
    stack.callback(loop.remove_reader, trunk)
    stack.callback(loop.remove_reader, access)


async def _ready(edge: Daemon, address: str) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        for _ in range(600):
            if edge.returncode is not None:
                raise SystemExit(f"tinkedge up ended with status {edge.returncode}:\n{edge.log_tail()}")
            try:
                async with session.get(f"http://{address}:7080/readyz") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)
    raise SystemExit(f"tinkedge up is not ready:\n{edge.log_tail()}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--firmware", choices=[*map(str, Firmware), *map(str, Board)], required=True)
    parser.add_argument("--type", action="append", default=[], help="a command for U-Boot's console, repeatable")
    parser.add_argument("--until", required=True)
    parser.add_argument("--within", type=float, default=50)
    parser.add_argument("--linger", type=float, default=0)
    parser.add_argument("--spec", default="{}")
    parser.add_argument("--beside-dnsmasq", action="store_true")
    parser.add_argument("--medium", choices=[drive.value for drive in Drive])
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--image", type=Path)
    parser.add_argument("--kernel", type=Path)
    parser.add_argument("--uki", type=Path)
    parser.add_argument("--vlan", type=int, default=0)
    parser.add_argument("--osie", type=Path)
    parser.add_argument("--memory", type=int, default=512)
    parser.add_argument("--log", action="store_true")
    parser.add_argument("--ipv6", action="store_true")
    parser.add_argument("--relayed", action="store_true")
    parser.add_argument("--host-clock", action="store_true", help="as long as the edge waits, the firmware does, too")
    parser.add_argument("up", nargs="*")
    with tempfile.TemporaryDirectory(prefix="netboot-") as name:
        async with AsyncExitStack() as stack:
            await power_on(parser.parse_args(), Path(name), stack)


if __name__ == "__main__":
    asyncio.run(main())

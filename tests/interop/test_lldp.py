"""The agent's LLDP listener, with Debian's lldpd as the switch.

LldpListener at eth0 -- veth -- srv0, a port of the switch -- lldpd
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import Network, ip
from tests.waiting import until
from tink.agent.inventory.ioctls import driver_firmware, permanent_mac, set_up
from tink.agent.inventory.lldp import MAX_FRAMES_A_SECOND, LldpListener, Neighbours
from tink.api.v1alpha2 import LldpNeighbour

CONFIGURATION = """\
configure system hostname switch-7
configure lldp portidsubtype local Ethernet1/7 description rack-7-slot-12
configure lldp tx-interval 1
configure lldp custom-tlv oui 00,80,c2 subtype 1 oui-info 00,64
"""
"""The last line is the port VLAN ID 100: lldpd sends one of its own only for a bridge with VLANs."""
START = """\
mount -t tmpfs -o mode=755 tmpfs /run && mkdir /run/lldpd && cp "$1" /run/lldpd.conf
exec lldpd -d -u /run/lldpd.socket -I srv0 -C srv0 -O /run/lldpd.conf
"""
"""lldpcli reads the configuration as another user, so a copy is where that user may read."""


@contextmanager
def switch(network: Network, directory: Path, configuration: str = CONFIGURATION) -> Iterator[None]:
    """Run lldpd at the server's end of the cable. It has a /run of its own, so that it meets no other one."""
    file, log = directory / "lldpd.conf", directory / "lldpd.log"
    file.write_text(configuration)
    command = ["ip", "netns", "exec", network.server, "unshare", "--mount", "sh", "-c", START, "sh", str(file)]
    with log.open("ab") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield
        finally:
            process.terminate()


def listen(
    network: Network, act: Callable[[Callable[[], dict[str, Any]]], Any], times: list[float] | None = None
) -> None:
    """Call `act` with a function that returns the neighbour at the client's eth0, which listens meanwhile.

    `times` gets the time of each frame.
    """

    async def listening() -> None:
        loop = asyncio.get_running_loop()
        neighbours = Neighbours()

        def on_frame(card: str, frame: bytes) -> None:
            neighbours.receive(card, frame, loop.time())
            if times is not None:
                times.append(loop.time())

        listener = LldpListener(on_frame)
        listener.listen(["eth0", "absent0"])
        try:
            await act(lambda: neighbours.present(loop.time()).get("eth0", {}))
        finally:
            listener.close()

    network.inside(network.client, lambda: asyncio.run(listening()))


def link(namespace: str, name: str) -> Any:
    """Return a network card as `ip` shows it."""
    shown = subprocess.run(["ip", "-n", namespace, "-json", "link", "show", name], check=True, capture_output=True)
    return json.loads(shown.stdout)[0]


@pytest.mark.parametrize("place", ["alone", "bridged"])
def test_port_of_the_switch_and_its_vlan_are_known(network: Network, tmp_path: Path, place: str) -> None:
    if place == "bridged":
        ip("-n", network.client, "link", "add", "br0", "type", "bridge")
        ip("-n", network.client, "link", "set", "eth0", "master", "br0")
        ip("-n", network.client, "link", "set", "br0", "up")

    async def meet(neighbour: Callable[[], dict[str, Any]]) -> None:
        with switch(network, tmp_path):
            await until(neighbour, lambda: (tmp_path / "lldpd.log").read_text())
            found = neighbour()
            LldpNeighbour.model_validate(found)
            assert found == {
                "chassisID": link(network.server, "srv0")["address"], "portID": "Ethernet1/7",
                "portDescription": "rack-7-slot-12", "systemName": "switch-7", "vlanID": 100,
            }  # fmt: skip
        await until(lambda: not neighbour(), "a switch that ends closes its ports at once")

    listen(network, meet)


def test_cable_that_moves_to_another_port_is_noticed(network: Network, tmp_path: Path) -> None:
    async def move(neighbour: Callable[[], dict[str, Any]]) -> None:
        for port in ("Ethernet1/7", "Ethernet1/8"):
            with switch(network, tmp_path, CONFIGURATION.replace("Ethernet1/7", port)):
                await until(lambda port=port: neighbour().get("portID") == port)  # type: ignore[misc]

    listen(network, move)


def test_flood_of_frames_lets_the_agent_work_and_ends(network: Network) -> None:
    """The listener rests for a second after each 32 frames, and goes on."""
    times: list[float] = []

    def unit(port: bytes, seconds: int) -> bytes:
        parts = ((1, b"\x07switch-7"), (2, b"\x05" + port), (3, seconds.to_bytes(2, "big")), (0, b""))
        tlvs = (struct.pack("!H", kind << 9 | len(value)) + value for kind, value in parts)
        return bytes.fromhex("0180c200000e 525400000001 88cc") + b"".join(tlvs)

    def sender() -> socket.socket:
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        opened.bind(("srv0", 0))
        return opened

    async def flood(neighbour: Callable[[], dict[str, Any]]) -> None:
        with sending:
            for _ in range(100):  # less than the socket's buffer holds
                sending.send(unit(b"flood", 1))
            await until(lambda: sending.send(unit(b"after", 60)) and neighbour().get("portID") == "after")
        batches = [times[at : at + 2] for at in range(MAX_FRAMES_A_SECOND - 1, len(times) - 1, MAX_FRAMES_A_SECOND)]
        assert [after - before > 0.9 for before, after in batches] == [True] * len(batches)
        assert len(batches) >= 3

    sending = network.inside(network.server, sender)
    listen(network, flood, times)


def test_card_that_is_down_is_set_up(network: Network) -> None:
    ip("-n", network.client, "link", "set", "eth0", "down")

    assert "UP" not in link(network.client, "eth0")["flags"]
    for _ in range(2):
        network.inside(network.client, lambda: set_up("eth0"))
        assert "UP" in link(network.client, "eth0")["flags"]
    for wrong in ("absent0", "a-name-that-is-too-long"):
        with pytest.raises(OSError, match="No such device"):
            network.inside(network.client, lambda wrong=wrong: set_up(wrong))  # type: ignore[misc]


def test_virtual_card_has_no_permanent_mac(network: Network) -> None:
    assert network.inside(network.client, lambda: permanent_mac("eth0")) == ""
    assert network.inside(network.client, lambda: driver_firmware("eth0")) == ""
    with pytest.raises(OSError, match="No such device"):
        network.inside(network.client, lambda: permanent_mac("absent0"))

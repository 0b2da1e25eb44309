"""Recognises the last boot of a machine by its DHCP packets, for `status.lastBoot` of its Hardware. Pure.

An edge sees packets, not the power of a machine. So a DHCP packet begins a boot if it can't belong to the boot before:

| DHCP client | its packet belongs to the boot before |
|---|---|
| any | if it repeats its DISCOVER (with growing pauses) or REQUEST, or if another relay forwards the same |
| firmware | if it tries another card, version of IP or program, while it tries its boot devices in turn |
| iPXE | if firmware has loaded it as a program, or if it tries another card, or the VLAN of its script |
| an operating system | if an edge has sent its kernel, so that it is the OSIE, until the Workflow has ended |
| an installed system | if it comes from another card or from a second DHCP client, shortly after the first packet |

An ACK to an operating system without an offer is its INIT-REBOOT (RFC 2131 section 3.2), which begins a boot, too. A
renewal never does. Two boots are at least `LEAST_SECONDS` apart.

If the BMC has reported in between that the machine is off, the next packet always begins a boot. Two cases look like a
boot and count as one: firmware that begins its list of boot devices again, and an operating system that configures its
network again. The other division of a journey (`edge.journey.expectations.story`) follows the progress of one card.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from edge.journey.events import Milestone, Step, shows_power_off
from edge.journey.history import (
    Entry,
    Happened,
    detail_of,
    is_from_elsewhere,
    is_heard,
    message_of,
    milestone,
    step_of,
)
from tink.api.v1alpha2 import BootClient

LEAST_SECONDS: Final = 5.0
"""Minimum time between the first packets of two boots. A virtual machine needs a few seconds from reset to DHCP."""
_SLACK_SECONDS: Final = 8.0
"""Time that a pause between DISCOVERs may be longer than all pauses before it together."""
MAX_PAUSES: Final = {BootClient.NETBOOT: 40.0, BootClient.OPERATING_SYSTEM: 70.0}
"""Longest pause between two DISCOVERs. PXE 2.1 section 2.2.2: 4, 8, 16 and 32 s; systemd-networkd: up to 64 s."""
_TO_REQUEST_SECONDS: Final = 60.0
"""Longest time from an offer to the REQUEST."""
_RESTART_RATIO: Final = 0.6
"""Pauses between DISCOVERs grow. One that is shorter than this part of the pause before begins a new sequence."""
_LONG_PAUSE_SECONDS: Final = 6.0
"""Shortest pause after which a shorter one shows a new sequence."""
_NEXT_DEVICE_SECONDS: Final = 45.0
"""Longest silence of firmware or iPXE before its next card or version of IP: the last pause of a PXE ROM is 32 s."""
_PROGRAM_SECONDS: Final = 60.0
"""Longest silence between a boot program and the DHCP of the iPXE in it: a switch port without portfast takes 30 s."""
_VLAN_SECONDS: Final = 30.0
"""Longest time from a script that leads iPXE into a VLAN to the DHCP of iPXE there."""
_OSIE_SECONDS: Final = 300.0
"""Longest silence between a kernel and the DHCP of its OSIE (`edge.journey.expectations.limits`)."""
_OSIE_AGAIN_SECONDS: Final = 60.0
"""Longest time between two DHCP clients of an OSIE on one card: that of its initrd, and that of its system."""
_AGENT_AGAIN_SECONDS: Final = 20.0
"""The same time after the agent has connected: such an OSIE has its addresses."""
_SYSTEM_AGAIN_SECONDS: Final = 10.0
"""Longest time between two DHCP clients of an installed system on one card."""
_SYSTEM_CARDS_SECONDS: Final = 60.0
"""Longest time between the packets of an installed system on its cards."""

_PROXY_OFFER: Final = "ProxyDHCP offer"
"""The beginning of the message of an offer in a proxy mode (`edge.dhcp.proxy`), which has no detail `dhcp`."""
_MESSAGES: Final = {"offer": (4, False), "ack": (4, True), "advertise": (6, False), "reply": (6, True)}
_IPXE: Final = "iPXE"
_OPERATING_SYSTEM: Final = "operating system"
_PROGRAM_OF_FIRMWARE: Final = "firmware"  # a boot program that uses the firmware's network stack


class Boot(NamedTuple):
    """A boot: the time of its first packet (Unix seconds), and the DHCP client and the card that sent the packet.

    `is_seen_here`: this edge itself has received a DHCP packet of the boot.
    """

    time: float
    client: BootClient
    mac: str
    is_seen_here: bool


class _Packet(NamedTuple):
    """A DHCP message that was answered. `is_lease`: a REQUEST, or a SOLICIT with Rapid Commit; else a DISCOVER."""

    stage: str
    program: str
    version: int
    is_lease: bool

    @property
    def client(self) -> BootClient:
        return BootClient.OPERATING_SYSTEM if self.stage == _OPERATING_SYSTEM else BootClient.NETBOOT


def is_boot_packet(entry: Entry) -> bool:
    """Return True if an entry may begin a boot: a DHCP packet, or the script of a boot medium, that this edge saw."""
    if step_of(entry) is Step.SCRIPT:
        is_one = "medium" in dict(detail_of(entry))
    else:
        is_one = step_of(entry) is Step.DHCP and _packet(entry) is not None
    return is_one and not is_from_elsewhere(entry)


def last_boot(events: Iterable[Happened]) -> Boot | None:
    """Return the last boot of a machine from the events of all its cards; None if they have no packet of a boot."""
    reader = _Reader()
    for happened in sorted(events, key=lambda each: each.time):
        reader.take(happened)
    return reader.boot


def _packet(entry: Entry) -> _Packet | None:
    detail = dict(detail_of(entry))
    stage = detail.get("stage")
    if not isinstance(stage, str):
        return None
    found = _MESSAGES.get(str(detail.get("dhcp", "")))
    # An OSIE and an installed system are distinguished by what came before.
    program = str(detail.get("client", "")) if stage != _OPERATING_SYSTEM else ""
    if found is not None:
        return _Packet(stage, program, *found)
    return _Packet(stage, program, 4, False) if message_of(entry).startswith(_PROXY_OFFER) else None


class _Phase(IntEnum):
    """The progress of a netboot; SYSTEM is the boot of an installed system."""

    NONE = 0
    FIRMWARE = 1
    PROGRAM = 2
    IPXE = 3
    OSIE = 4
    AGENT = 5
    WORK = 6
    DONE = 7
    SYSTEM = 8


_REACHED: Final = {
    Milestone.PROGRAM_BEGUN: _Phase.PROGRAM,
    Milestone.PROGRAM_SENT: _Phase.PROGRAM,
    Milestone.SCRIPT_SENT: _Phase.IPXE,
    Milestone.KERNEL_BEGUN: _Phase.OSIE,
    Milestone.KERNEL_SENT: _Phase.OSIE,
    Milestone.INITRD_BEGUN: _Phase.OSIE,
    Milestone.INITRD_SENT: _Phase.OSIE,
    Milestone.KERNEL_STARTED: _Phase.OSIE,
    Milestone.OSIE_UP: _Phase.OSIE,
    Milestone.AGENT_CONNECTED: _Phase.AGENT,
    Milestone.WORKFLOW_RUNNING: _Phase.WORK,
    Milestone.ACTION_BEGUN: _Phase.WORK,
    Milestone.ACTION_ENDED: _Phase.WORK,
}


@dataclass(slots=True)
class _Client:
    """The packets of one DHCP client on one card; times are Unix seconds.

    `pause` is the time between its last two DISCOVERs.
    """

    first: float
    last: float
    has_lease: bool
    pause: float = 0.0


class _Reader:
    """Reads the events of a machine in the order of time. `boot` is the last boot so far."""

    def __init__(self) -> None:
        self.boot: Boot | None = None
        self._was_off = False
        self._phase = _Phase.NONE
        self._heard = 0.0
        """The time of the last event that the machine has caused."""
        self._sent = 0.0
        """The time of its last DHCP packet."""
        self._vlan = 0.0
        """The time of a script that leads iPXE into a VLAN."""
        self._clients: dict[tuple[str, str, str, int], _Client] = {}
        """The DHCP clients of this boot, by MAC, stage, program and version of IP."""

    def take(self, happened: Happened) -> None:
        """Process the next event."""
        time, mac, entry = happened
        packet = _packet(entry) if step_of(entry) is Step.DHCP else None
        if packet is not None:
            self._take_packet(time, mac, packet)
        elif step_of(entry) is Step.POWER:
            self._was_off = self._was_off or shows_power_off(Step.POWER, dict(detail_of(entry)))
        else:
            self._take_other(time, mac, entry)
        if self.boot is not None and is_boot_packet(entry):
            self.boot = self.boot._replace(is_seen_here=True)
        if is_heard(entry):
            self._heard = max(self._heard, time)

    def _take_packet(self, time: float, mac: str, packet: _Packet) -> None:
        key = _key(mac, packet)
        client = self._clients.get(key)
        if client is not None and not self._was_off and _is_repetition(client, packet, time):
            if _begins_again(client, packet, time):
                self._begin(client.last, mac, packet)
                client = self._clients[key]
            if not packet.is_lease and time > client.last:
                client.pause = time - client.last
            client.last, client.has_lease = time, client.has_lease or packet.is_lease
        elif self._was_off or not self._continues(time, packet, client):
            self._begin(time, mac, packet)
        else:
            self._clients[key] = _Client(time, time, packet.is_lease)
            if packet.stage == _IPXE:
                self._phase = max(self._phase, _Phase.IPXE)
        self._sent = max(self._sent, time)

    def _begin(self, time: float, mac: str, packet: _Packet) -> None:
        self.boot = Boot(time, packet.client, mac, is_seen_here=False)
        self._was_off = False
        self._vlan = 0.0
        self._clients = {_key(mac, packet): _Client(time, time, packet.is_lease)}
        is_system = packet.client is BootClient.OPERATING_SYSTEM
        self._phase = _Phase.SYSTEM if is_system else _Phase.IPXE if packet.stage == _IPXE else _Phase.FIRMWARE

    def _continues(self, time: float, packet: _Packet, client: _Client | None) -> bool:
        """Return True if a new exchange belongs to the boot before.

        `client` is None if it is the client's first exchange in this boot.
        """
        if self.boot is None and self._phase is _Phase.NONE:
            return False
        phase, silence = self._phase, time - self._heard
        if packet.stage == _OPERATING_SYSTEM:
            return self._continues_system(time, client)
        if packet.stage == _PROGRAM_OF_FIRMWARE:
            return phase is not _Phase.SYSTEM and silence <= _OSIE_SECONDS
        if client is None:
            longest = _PROGRAM_SECONDS if phase is _Phase.PROGRAM else _NEXT_DEVICE_SECONDS
            last_phase = _Phase.IPXE if packet.stage == _IPXE else _Phase.PROGRAM
            return _Phase.FIRMWARE <= phase <= last_phase and silence <= longest
        return packet.stage == _IPXE and phase is _Phase.IPXE and 0 < time - self._vlan <= _VLAN_SECONDS

    def _continues_system(self, time: float, client: _Client | None) -> bool:
        phase, silence = self._phase, time - self._heard
        if phase is _Phase.SYSTEM:
            if client is None:
                return time - self._sent <= _SYSTEM_CARDS_SECONDS
            return time - client.last <= _SYSTEM_AGAIN_SECONDS
        if not _Phase.OSIE <= phase <= _Phase.WORK:
            return False
        if client is None:
            return silence <= _OSIE_SECONDS
        return time - client.last <= (_OSIE_AGAIN_SECONDS if phase is _Phase.OSIE else _AGENT_AGAIN_SECONDS)

    def _take_other(self, time: float, mac: str, entry: Entry) -> None:
        reached = milestone(entry)
        if reached is None:
            return
        if reached is Milestone.SCRIPT_SENT:
            detail = dict(detail_of(entry))
            is_first = self._phase is _Phase.NONE or self._phase >= _Phase.OSIE
            if "medium" in detail and (is_first or self._was_off or time - self._heard > _NEXT_DEVICE_SECONDS):
                # iPXE from a medium, with an address that is not from this edge.
                self._begin(time, mac, _Packet(_IPXE, "", 4, is_lease=True))
            self._vlan = time if "vlan" in detail else self._vlan
        if reached is Milestone.WORKFLOW_ENDED:
            # A Workflow that never ran ends beside what the machine does.
            self._phase = _Phase.DONE if self._phase is _Phase.WORK else self._phase
            return
        phase = _REACHED.get(reached, _Phase.NONE)
        if self._phase is _Phase.DONE and phase is _Phase.WORK:
            self._phase = phase  # the next Workflow in the same OSIE
        elif self._phase is not _Phase.SYSTEM:
            self._phase = max(self._phase, phase)
        elif phase in (_Phase.OSIE, _Phase.AGENT):
            self._phase = phase


def _key(mac: str, packet: _Packet) -> tuple[str, str, str, int]:
    return mac, packet.stage, packet.program, packet.version


def _is_repetition(client: _Client, packet: _Packet, time: float) -> bool:
    """Return True if a packet belongs to the exchange that the client has begun."""
    pause = time - client.last
    if pause < LEAST_SECONDS:
        return True
    if client.has_lease:
        return False
    if packet.is_lease:
        return pause <= _TO_REQUEST_SECONDS
    # Each pause is at most as long as all pauses before it together, and one more.
    return pause <= min(client.last - client.first + _SLACK_SECONDS, MAX_PAUSES[packet.client])


def _begins_again(client: _Client, packet: _Packet, time: float) -> bool:
    """Return True if the DISCOVER before this one was the first of a sequence: the pauses begin to grow again."""
    if packet.is_lease or client.has_lease or packet.client is not BootClient.NETBOOT:
        return False
    pause = time - client.last
    return client.pause >= _LONG_PAUSE_SECONDS and 1.0 <= pause < _RESTART_RATIO * client.pause

"""Machines that nobody registered: shown to the operator with what to do about it.

A machine without a Hardware gets silence on the wire, for another DHCP server may own it; but for `auto-proxy`, which
has it boot. Its operator finds a journey entry that carries a Hardware manifest to fill in and apply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from edge.dhcp.boot import Client
from edge.dhcp.wire import options
from edge.dhcp.wire.codec import Message, MessageType
from edge.journey.events import Outcome, Recorder, Step
from edge.machines import hardware_manifest
from tink.limits.once_per import OncePer
from tink.limits.token_bucket import TokenBuckets

INTERVAL_SECONDS = 60.0
MACHINES_PER_INTERVAL = 600
"""A rack that is powered on is heard in full within its ROMs' four tries; a flood of invented MACs stops here."""

PACKETS_AT_ONCE: Final = 1000.0
PACKETS_A_SECOND: Final = 200.0
"""Maximum number of packets of machines without a Hardware that are read; the rest of a flood is dropped unread."""


def proposed(server_ip: str) -> tuple[str, ...]:
    """The lines of an address that are free to be filled in, in the network of this server."""
    network = server_ip.rpartition(".")[0]
    return (
        f"ip: {network}.50  # a free address of the machine's network; without it the machine gets no answer",
        "netmask: 255.255.255.0",
        f"gateway: {network}.1",
    )


class Unregistered:
    """Reports machines without a Hardware, each at most once a minute."""

    def __init__(self, record: Recorder, clock: Callable[[], float], server_ip: str) -> None:
        self._record = record
        self._clock = clock
        self._server_ip = server_ip
        self._once = OncePer(INTERVAL_SECONDS, MACHINES_PER_INTERVAL)
        self._packets = TokenBuckets(PACKETS_AT_ONCE, PACKETS_A_SECOND)

    def may_send(self, link: str = "") -> bool:
        """Return True if one more packet of a machine without a Hardware may be read now.

        `link` names a kind of network that has an allowance of its own.
        """
        return self._packets.allows(link, self._clock())

    def heard(self, mac: str, message_type: MessageType, message: Message, client: Client, answer: str = "") -> None:
        """Take note of `message`, which `mac` sent, and of what it was told to boot, if it was."""
        if not self._once.due(mac, self._clock()):
            return
        relay = options.dotted(message.giaddr) if any(message.giaddr) else ""
        where = f" through relay {relay}" if relay else ""
        text = f"seen, not registered: DHCP{message_type.name} from {client.description}{where}"
        if answer:
            text += f", told to boot: {answer}"
        detail = {"client": client.description, "manifest": hardware_manifest(mac, proposed(self._server_ip))}
        if relay:
            detail["relay"] = relay
        uuid = message.options.get(options.CLIENT_UUID, b"")  # RFC 4578 section 2.3: a type, which is 0, and 16 bytes
        if len(uuid) == 17 and not uuid[0]:
            detail["uuid"] = str(UUID(bytes=uuid[1:]))
        self._record(mac, Step.SEEN, Outcome.INFO, text, **detail)

"""Reports of the DHCPv4 server (`edge.dhcp_common.reports`): leases, machines without a Hardware, floods. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Final
from uuid import UUID

from edge.dhcp.boot import NO_BOOT, Boot, Client, Verdict
from edge.dhcp.wire import Message, MessageType, options
from edge.dhcp_common import FREE_ADDRESS, INTERVAL_SECONDS, IPV4, MAX_PACKET_LINES, DhcpReports, boot_facts
from edge.journey.events import Note, NoteTaker, Outcome, Recorder, Step, Value
from tink.limits.once_per import Tally, times
from tink.limits.token_bucket import TokenBuckets

log = logging.getLogger(__name__)

PACKETS_AT_ONCE: Final = 1000.0
PACKETS_A_SECOND: Final = 200.0
"""Maximum rate of packets of machines without a Hardware that are parsed; the rest of a flood is dropped before."""


def proposed(server_ip: str) -> tuple[str, ...]:
    """Return the lines of a manifest that the operator completes with an address of this server's network."""
    network = server_ip.rpartition(".")[0]
    return f"ip: {network}.50  # {FREE_ADDRESS}", "netmask: 255.255.255.0", f"gateway: {network}.1"


class Reports(DhcpReports):
    """Reports of one DHCPv4 server."""

    def __init__(self, record: Recorder, take: NoteTaker | None, clock: Callable[[], float], server_ip: str) -> None:
        """Create the reports; `record`, `take` and `clock` are those of `DhcpReports`."""
        super().__init__(IPV4, record, take, clock, proposed(server_ip))
        self._withheld = Tally(INTERVAL_SECONDS, MAX_PACKET_LINES)
        self._packets = TokenBuckets(PACKETS_AT_ONCE, PACKETS_A_SECOND)

    def sent(
        self, mac: str, what: str, client: Client, verdict: Verdict, outcome: Outcome = Outcome.OK, **detail: Value
    ) -> None:
        """Report that `what` was sent to `client` with this verdict."""
        outcome = Outcome.REFUSED if verdict.refusal else outcome
        line = f"{what} to {client.description}{verdict.words}"
        facts = boot_facts(client.description, client.kind.value, verdict.boot.text)
        self._record(mac, Step.DHCP, outcome, line, **facts, **detail)

    def leased(self, mac: str, message_type: MessageType, client: Client, verdict: Verdict) -> None:
        """Report an OFFER or ACK with an address."""
        if verdict.refusal or not (verdict.boot.shared or verdict.boot is NO_BOOT):
            self.sent(mac, f"DHCP{message_type.name}", client, verdict, dhcp=message_type.name.lower())
        else:
            self.take(mac, lease_note(message_type, client, verdict.boot))

    def unknown(
        self, mac: str, message_type: MessageType, message: Message, client: Client, relay: str, answer: str = ""
    ) -> None:
        """Report a machine without a Hardware; `relay` and `answer` are those of `DhcpReports.unregistered`."""
        detail: dict[str, Value] = {"relay": relay} if relay else {}
        # RFC 4578 section 2.3: a type, which is 0, and 16 bytes. Some ROMs send other shapes.
        uuid = message.options.get(options.CLIENT_UUID, b"")
        if len(uuid) == 17 and not uuid[0]:
            detail["uuid"] = str(UUID(bytes=uuid[1:]))
        self.unregistered(mac, f"DHCP{message_type.name}", client.description, relay, answer, **detail)

    def may_read(self, link: str = "") -> bool:
        """Return True if one more packet of a machine without a Hardware may be parsed now.

        `link` names a kind of network that has a limit of its own.
        """
        return self._packets.allows(link, self._clock())

    def unread(self) -> None:
        """Log that packets of machines without a Hardware are dropped unread. Once a minute."""
        held_back = self._withheld.due("unread", self._clock())
        if held_back is not None:
            log.warning(
                "DHCP packets of machines without a Hardware come too fast: most are dropped%s", times(held_back)
            )

    def withheld(self, destination: str, limit: int) -> None:
        """Log that replies to `destination` exceed their limit, in replies a second. Once a minute."""
        held_back = self._withheld.due(destination, self._clock())
        if held_back is not None:
            log.warning(
                "DHCP replies to %s (%d a second) or to all such addresses exceed their limit: the rest is dropped%s",
                destination, limit, times(held_back),
            )  # fmt: skip


@lru_cache(maxsize=1024)
def lease_note(message_type: MessageType, client: Client, boot: Boot) -> Note:
    """Return the prepared step of a lease: it is the same for all machines whose client boots the same."""
    line = f"DHCP{message_type.name} to {client.description}{Verdict(boot).words}"
    facts = boot_facts(client.description, client.kind.value, boot.text) | {"dhcp": message_type.name.lower()}
    return Note(Step.DHCP, Outcome.OK, line, facts)

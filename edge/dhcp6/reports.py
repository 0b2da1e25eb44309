"""Reports of the DHCPv6 server (`edge.dhcp_common.DhcpReports`): replies, and machines without a Hardware. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from uuid import UUID

from edge.dhcp6.boot import Boot6, Client6
from edge.dhcp6.wire import Message6, MessageType6, Option, Relay
from edge.dhcp_common import FREE_ADDRESS, IPV6, DhcpReports, boot_facts
from edge.journey.events import Note, NoteTaker, Outcome, Recorder, Step, Value


class Reports6(DhcpReports):
    """Reports of one DHCPv6 server."""

    def __init__(self, record: Recorder, take: NoteTaker | None, clock: Callable[[], float], prefix: str) -> None:
        """Create the reports; `record`, `take` and `clock` are those of `DhcpReports`.

        `prefix` is a network of ours, for the manifest that the operator completes.
        """
        super().__init__(IPV6, record, take, clock, ("ipv6:", f"  address: {prefix}50  # {FREE_ADDRESS}"))

    def sent(self, mac: str, kind: MessageType6, client: Client6, boot: Boot6, *, lease: bool) -> None:
        """Report that a message of this kind was sent to `client`; `lease`: with its address."""
        if boot.shared:
            self.take(mac, prepared(kind, client, boot, lease=lease))
        else:
            outcome = Outcome.REFUSED if boot.refusal else Outcome.OK
            self._record(mac, Step.DHCP, outcome, _line(kind, client, boot), **_facts(kind, client, boot, lease=lease))

    def unknown(self, mac: str, message: Message6, client: Client6, relays: tuple[Relay, ...]) -> None:
        """Report a machine without a Hardware."""
        detail: dict[str, Value] = {}
        duid = message.get(Option.CLIENTID) or b""
        if duid[:2] == b"\0\4" and len(duid) == 18:
            # iPXE and operating systems write the UUID in network order, EDK2 in SMBIOS' mixed order. The bytes do not
            # say which one it is, so the client decides.
            is_network_order = client.architectures == () or "iPXE" in client.description
            detail["uuid"] = str(UUID(bytes=duid[2:]) if is_network_order else UUID(bytes_le=duid[2:]))
        relay = str(relays[0].link) if relays else ""
        self.unregistered(mac, f"DHCPv6 {message.type.name}", client.description, relay, **detail)


@lru_cache(maxsize=1024)
def prepared(kind: MessageType6, client: Client6, boot: Boot6, *, lease: bool) -> Note:
    """Return the prepared step of a reply: it is the same for all machines whose client boots the same."""
    return Note(Step.DHCP, Outcome.OK, _line(kind, client, boot), _facts(kind, client, boot, lease=lease))


def _line(kind: MessageType6, client: Client6, boot: Boot6) -> str:
    return f"DHCPv6 {kind.name} to {client.description}{boot.words}"


def _facts(kind: MessageType6, client: Client6, boot: Boot6, *, lease: bool) -> dict[str, Value]:
    facts = boot_facts(client.description, client.stage.value, boot.text)
    return facts | {"dhcp": kind.name.lower()} if lease else facts

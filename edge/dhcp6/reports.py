"""What operators hear of DHCPv6: steps of a machine's journey, and log lines about what belongs to no machine. Pure.

What is sent is one note per kind of client, prepared once (`edge.journey.events.Note`), for there may be thousands a
second; everything else is told in full, but the same about the same machine once a minute only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Final
from uuid import UUID

from edge.dhcp6.boot import Boot6, Client6
from edge.dhcp6.datagram import Received6
from edge.dhcp6.wire import Message6, MessageType6, Option, Relay
from edge.journey.events import Note, NoteTaker, Outcome, Recorder, Step, Value
from edge.machines import Machine, hardware_manifest
from tink.limits.once_per import OncePer, Tally, times

log = logging.getLogger(__name__)

_INTERVAL_SECONDS: Final = 60.0
_MACHINES: Final = 600
_OF_ONE_MACHINE: Final = 30
"""Maximum number of these lines about one machine: other hosts can send in its name and choose the text of a line."""
_PACKETS: Final = 20


class Reports6:
    """Tells the journey and the log, at a bounded rate."""

    def __init__(self, record: Recorder, take: NoteTaker | None, clock: Callable[[], float], prefix: str) -> None:
        """`take` None: `record` takes the prepared notes, too. `clock` gives seconds of any epoch; `prefix` is a
        network of ours, for manifests to copy."""
        self._record = record
        self.take: NoteTaker = take if take is not None else self._note
        self._clock = clock
        free = "a free address of the machine's network; without it the machine gets no answer"
        self._address = ("ipv6:", f"  address: {prefix}50  # {free}")
        self._machine_once = OncePer(_INTERVAL_SECONDS, _MACHINES, _OF_ONE_MACHINE)
        self._tally = Tally(_INTERVAL_SECONDS, _MACHINES)
        self._stranger_once = OncePer(_INTERVAL_SECONDS, _MACHINES)
        self._packet_once = OncePer(_INTERVAL_SECONDS, _PACKETS)

    def _note(self, mac: str, note: Note) -> None:
        self._record(mac, note.step, note.outcome, note.message, **note.detail)

    def sent(self, mac: str, kind: MessageType6, client: Client6, boot: Boot6, *, lease: bool) -> None:
        """`kind` was sent to `client`; `lease`: with its address."""
        if boot.shared:
            self.take(mac, prepared(kind, client, boot, lease=lease))
        else:
            outcome = Outcome.REFUSED if boot.refusal else Outcome.OK
            self._record(mac, Step.DHCP, outcome, _line(kind, client, boot), **_facts(kind, client, boot, lease=lease))

    def refused(self, machine: Machine, reason: str) -> None:
        """Nothing was answered, and why: once a minute."""
        self.once(machine.mac, Outcome.REFUSED, f"no DHCPv6 answer: {reason}", reason=reason)

    def once(self, mac: str, outcome: Outcome, line: str, **detail: Value) -> None:
        """Tell `line` about a machine, if it was not told in the last minute."""
        if self._machine_once.due((mac, line), self._clock(), owner=mac):
            self._record(mac, Step.DHCP, outcome, line, **detail)

    def tallied(self, mac: str, key: str, line: str, **detail: Value) -> None:
        """The same of what anybody can bring about in a machine's name: with how often it was, besides."""
        held_back = self._tally.due((mac, key), self._clock())
        if held_back is not None:
            self._record(mac, Step.DHCP, Outcome.INFO, line + times(held_back), **detail)

    def unregistered(self, mac: str, message: Message6, client: Client6, relays: tuple[Relay, ...]) -> None:
        """Somebody without a Hardware: shown with a manifest to copy, once a minute."""
        if not self._stranger_once.due(mac, self._clock()):
            return
        where = f" through relay {relays[0].link}" if relays else ""
        line = f"seen, not registered: DHCPv6 {message.type.name} from {client.description}{where}"
        detail: dict[str, Value] = {"client": client.description, "manifest": hardware_manifest(mac, self._address)}
        duid = message.get(Option.CLIENTID) or b""
        if duid[:2] == b"\0\4" and len(duid) == 18:
            # iPXE and systems write it as it is; EDK2 in SMBIOS' order, which nothing tells from that.
            uuid = UUID(bytes=duid[2:]) if client.architectures == () or "iPXE" in client.description else None
            detail["uuid"] = str(uuid or UUID(bytes_le=duid[2:]))
        self._record(mac, Step.SEEN, Outcome.INFO, line, **detail)

    def ignored(self, received: Received6, why: str) -> None:
        """A message makes no sense; who sent it may be anybody."""
        if self._packet_once.due((received.source, why[:40]), self._clock()):
            log.warning("a DHCPv6 message from %s port %d is ignored: %s", *received[:2], why)


@lru_cache(maxsize=1024)
def prepared(kind: MessageType6, client: Client6, boot: Boot6, *, lease: bool) -> Note:
    """The step "`kind` was sent": the same for all machines that are told the same."""
    return Note(Step.DHCP, Outcome.OK, _line(kind, client, boot), _facts(kind, client, boot, lease=lease))


def _line(kind: MessageType6, client: Client6, boot: Boot6) -> str:
    return f"DHCPv6 {kind.name} to {client.description}{boot.words}"


def _facts(kind: MessageType6, client: Client6, boot: Boot6, *, lease: bool) -> dict[str, Value]:
    facts: dict[str, Value] = {"client": client.description, "stage": client.stage.value}
    if lease:
        facts["dhcp"] = kind.name.lower()
    if boot.text:
        facts["boot"] = boot.text
    return facts

"""What the operator hears of DHCP: steps of a machine's journey, and log lines about what belongs to no machine.

A lease is one note per kind of client, prepared once (`edge.journey.events.Note`), for there are thousands a second;
everything else is told in full, but the same about the same machine once a minute only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from edge.dhcp.boot import NO_BOOT, Boot, Client, Verdict
from edge.dhcp.datagram import Received
from edge.dhcp.wire import MessageType
from edge.journey.events import Note, NoteTaker, Outcome, Recorder, Step, Value
from tink.limits.once_per import OncePer, Tally, times

log = logging.getLogger(__name__)

_INTERVAL_SECONDS: Final = 60.0
_REPEATED_PER_INTERVAL: Final = 600
_OF_ONE_MACHINE: Final = 30
"""Maximum number of these lines about one machine: other hosts can send in its name and choose the text of a line."""
_PACKETS_PER_INTERVAL: Final = 20


class Reports:
    """Tells the journey and the log, at a bounded rate."""

    def __init__(self, record: Recorder, take: NoteTaker | None, clock: Callable[[], float]) -> None:
        """`take` None: `record` takes the prepared notes, too. `clock` gives seconds of any epoch."""
        self._record = record
        self.take: NoteTaker = take if take is not None else self._note
        self._clock = clock
        self._machine_once = OncePer(_INTERVAL_SECONDS, _REPEATED_PER_INTERVAL, _OF_ONE_MACHINE)
        self._machine_tally = Tally(_INTERVAL_SECONDS, _REPEATED_PER_INTERVAL)
        self._packet_once = OncePer(_INTERVAL_SECONDS, _PACKETS_PER_INTERVAL)
        self._withheld = Tally(_INTERVAL_SECONDS, _PACKETS_PER_INTERVAL)

    def _note(self, mac: str, note: Note) -> None:
        self._record(mac, note.step, note.outcome, note.message, **note.detail)

    def step(self, mac: str, outcome: Outcome, line: str, **detail: Value) -> None:
        """Tell `line` about a machine, each time."""
        self._record(mac, Step.DHCP, outcome, line, **detail)

    def sent(
        self, mac: str, what: str, client: Client, verdict: Verdict, outcome: Outcome = Outcome.OK, **detail: Value
    ) -> None:
        """`what` was sent to `client`, with what the verdict gives it to boot."""
        outcome = Outcome.REFUSED if verdict.refusal else outcome
        line = f"{what} to {client.description}{verdict.words}"
        self._record(mac, Step.DHCP, outcome, line, **_facts(client, verdict.boot), **detail)

    def leased(self, mac: str, message_type: MessageType, client: Client, verdict: Verdict) -> None:
        """An address was offered or acknowledged."""
        if verdict.refusal or not (verdict.boot.shared or verdict.boot is NO_BOOT):
            self.sent(mac, f"DHCP{message_type.name}", client, verdict, dhcp=message_type.name.lower())
        else:
            self.take(mac, lease_note(message_type, client, verdict.boot))

    def refused(self, mac: str, what: str, reason: str) -> None:
        """Nothing was answered; `what` is missing ("DHCP answer"), and `reason` says why. Once a minute."""
        self.once(mac, Outcome.REFUSED, f"no {what}: {reason}", reason=reason)

    def once(self, mac: str, outcome: Outcome, line: str, **detail: Value) -> None:
        """Tell `line` about a machine, if it was not told in the last minute."""
        if self._machine_once.due((mac, line), self._clock(), owner=mac):
            self._record(mac, Step.DHCP, outcome, line, **detail)

    def tallied(self, mac: str, key: str, line: str, **detail: Value) -> None:
        """Tell `line` about a machine, once a minute of those with this key, and how many there were besides.

        For what anybody can bring about in a machine's name, as often as they like.
        """
        held_back = self._machine_tally.due((mac, key), self._clock())
        if held_back is not None:
            self._record(mac, Step.DHCP, Outcome.INFO, line + times(held_back), **detail)

    def withheld(self, whom: str, most: int) -> None:
        """More answers to `whom` were asked for than go there in a second."""
        held_back = self._withheld.due(whom, self._clock())
        if held_back is not None:
            log.warning(
                "more answers were asked for than go to %s (%d a second), or to all such: the rest is dropped%s",
                whom, most, times(held_back),
            )  # fmt: skip

    def unread(self) -> None:
        """Log that packets of machines without a Hardware are dropped unread. Once a minute."""
        held_back = self._withheld.due("unread", self._clock())
        if held_back is not None:
            log.warning(
                "DHCP packets of machines without a Hardware come too fast: most are dropped%s", times(held_back)
            )

    def ignored(self, received: Received, why: str) -> None:
        """A packet makes no sense; who sent it may be anybody."""
        if self._packet_once.due((received.source, why[:40]), self._clock()):
            log.warning("a packet from %s port %d is ignored: %s", received.source, received.source_port, why)


@lru_cache(maxsize=1024)
def lease_note(message_type: MessageType, client: Client, boot: Boot) -> Note:
    """The step "an address was offered, or acknowledged": the same for all machines that are told the same."""
    line = f"DHCP{message_type.name} to {client.description}{Verdict(boot).words}"
    facts = {**_facts(client, boot), "dhcp": message_type.name.lower()}
    return Note(Step.DHCP, Outcome.OK, line, facts)


def _facts(client: Client, boot: Boot) -> dict[str, Value]:
    facts: dict[str, Value] = {"client": client.description, "stage": client.kind.value}
    if boot.text:
        facts["boot"] = boot.text
    return facts

"""Reports of a DHCP server: steps of a machine's journey, and log lines about packets of no machine. Pure.

Both servers build on `DhcpReports`. The rate of everything that other hosts can cause is limited. A lease is one note
per kind of client that is prepared once (`edge.journey.events.Note`), because a site sends thousands of them a second.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Final

from edge.dhcp_common.boot import BootAnswer, Client
from edge.dhcp_common.site import DhcpSite, Family
from edge.journey.events import Note, NoteTaker, Outcome, Step, Value
from edge.machines import hardware_manifest
from tink.limits import OncePer, Tally, times

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 60.0
MAX_MACHINES: Final = 600
"""Maximum number of machines that are reported in an interval.

It is enough for a rack that is powered on, within its ROMs' four tries, and it stops a flood of invented MACs.
"""
MAX_LINES_OF_ONE_MACHINE: Final = 30
"""Maximum number of lines about one machine: other hosts can send in its name and choose the text of a line."""
MAX_PACKET_LINES: Final = 20
"""Maximum number of log lines about packets of no machine in an interval."""

FREE_ADDRESS: Final = "a free address of the machine's network; without it the machine gets no answer"


class DhcpReports:
    """Reports of one server to the journey and the log, at a limited rate."""

    def __init__(self, family: Family, site: DhcpSite, *reservation_lines: str) -> None:
        """`reservation_lines` are those of an address in the Hardware manifest that the operator completes."""
        self._name = family.name
        self._record = site.record
        self.take: NoteTaker = site.take if site.take is not None else self._record_note
        self._clock = site.clock
        self._reservation_lines = reservation_lines
        self._machine_once = OncePer(INTERVAL_SECONDS, MAX_MACHINES, MAX_LINES_OF_ONE_MACHINE)
        self._machine_tally = Tally(INTERVAL_SECONDS, MAX_MACHINES)
        self._unregistered_once = OncePer(INTERVAL_SECONDS, MAX_MACHINES)
        self._packet_once = OncePer(INTERVAL_SECONDS, MAX_PACKET_LINES)
        self._packet_tally = Tally(INTERVAL_SECONDS, MAX_PACKET_LINES)

    def _record_note(self, mac: str, note: Note) -> None:
        self._record(mac, note.step, note.outcome, note.message, **note.detail)

    def sent(
        self,
        mac: str,
        message: str,
        client: Client,
        boot: BootAnswer,
        *,
        lease: str = "",
        outcome: Outcome = Outcome.OK,
        **detail: Value,
    ) -> None:
        """Report that a message was sent to `client`. `lease` is the detail `dhcp` of a reply with an address."""
        if boot.shared and outcome is Outcome.OK:
            self.take(mac, reply_note(message, client, boot, lease))
        else:
            line, facts = _reply(message, client, boot, lease)
            self._record(mac, Step.DHCP, Outcome.REFUSED if boot.refusal else outcome, line, **facts, **detail)

    def step(self, mac: str, outcome: Outcome, line: str, **detail: Value) -> None:
        """Report `line` about a machine each time."""
        self._record(mac, Step.DHCP, outcome, line, **detail)

    def once(self, mac: str, outcome: Outcome, line: str, **detail: Value) -> None:
        """Report `line` about a machine at most once a minute."""
        if self._machine_once.due((mac, line), self._clock(), owner=mac):
            self._record(mac, Step.DHCP, outcome, line, **detail)

    def tallied(self, mac: str, key: str, line: str, **detail: Value) -> None:
        """Report the first line of `key` in a minute, with the number of lines that were held back before it."""
        # For events that any host can cause in a machine's name, as often as it likes.
        held_back = self._machine_tally.due((mac, key), self._clock())
        if held_back is not None:
            self._record(mac, Step.DHCP, Outcome.INFO, line + times(held_back), **detail)

    def refused(self, mac: str, reason: str, what: str = "") -> None:
        """Report once a minute why nothing was answered. `what` is missing; by default it is the address."""
        self.once(mac, Outcome.REFUSED, f"no {what or f'{self._name} answer'}: {reason}", reason=reason)

    def unregistered(
        self,
        mac: str,
        message: str,
        client: str,
        relay: str,
        answer: str = "",
        admission: str = "",
        needs_manifest: bool = True,
        /,
        **detail: Value,
    ) -> None:
        """Report a machine without a Hardware once a minute, with a manifest to fill in and apply if it needs one.

        `relay`, the relay's address, `answer`, what the machine boots, and `admission`, what a rule of --discover does
        with it, may be empty.
        """
        if not self._unregistered_once.due(mac, self._clock()):
            return
        line = f"seen, not registered: {message} from {client}"
        line += f" through relay {relay}" if relay else ""
        line += f", boot file in the answer: {answer}" if answer else ""
        line += f"; {admission}" if admission else ""
        if needs_manifest:
            detail["manifest"] = hardware_manifest(mac, self._reservation_lines)
        self._record(mac, Step.SEEN, Outcome.INFO, line, client=client, **detail)

    def ignored(self, source: object, port: int, why: str) -> None:
        """Log a packet that makes no sense. Any host may have sent it."""
        if self._packet_once.due((source, why[:40]), self._clock()):
            log.warning("a %s packet from %s port %d is ignored: %s", self._name, source, port, why)

    def dropped(self, key: str, line: str) -> None:
        """Log that packets or replies are dropped, once a minute for each `key`."""
        held_back = self._packet_tally.due(key, self._clock())
        if held_back is not None:
            log.warning("%s%s", line, times(held_back))


def _reply(message: str, client: Client, boot: BootAnswer, lease: str) -> tuple[str, dict[str, Value]]:
    facts: dict[str, Value] = {"client": client.description, "stage": client.stage.value}
    facts |= {"boot": boot.text} if boot.text else {}
    facts |= {"dhcp": lease} if lease else {}
    words = f", {boot.text}" if boot.text else ""
    if boot.refusal:
        why = "because it may not netboot" if boot.text else "nothing to boot"
        words += f", {why}: {boot.refusal}"
    return f"{message} to {client.description}{words}", facts


@lru_cache(maxsize=1024)
def reply_note(message: str, client: Client, boot: BootAnswer, lease: str = "") -> Note:
    """Return the prepared step of a reply: it is the same for all machines whose client boots the same."""
    return Note(Step.DHCP, Outcome.OK, *_reply(message, client, boot, lease))

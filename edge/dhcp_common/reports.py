"""Reports of a DHCP server: steps of a machine's journey, and log lines about packets of no machine. Pure.

Both servers build on `DhcpReports`. The rate of everything that other hosts can cause is limited. A lease is one note
per kind of client that is prepared once (`edge.journey.events.Note`), because a site sends thousands of them a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from edge.dhcp_common.quarantine import Family
from edge.journey.events import Note, NoteTaker, Outcome, Recorder, Step, Value
from edge.machines import hardware_manifest
from tink.limits.once_per import OncePer, Tally, times

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
    """Reports to the journey and the log at a limited rate."""

    def __init__(
        self,
        family: Family,
        record: Recorder,
        take: NoteTaker | None,
        clock: Callable[[], float],
        reservation_lines: Sequence[str],
    ) -> None:
        """Create the reports of one server.

        `take` records prepared notes; if it is None, `record` does. `clock` returns seconds of any epoch.
        `reservation_lines` are the lines of an address in the Hardware manifest that the operator copies.
        """
        self._name = family.name
        self._record = record
        self.take: NoteTaker = take if take is not None else self._record_note
        self._clock = clock
        self._reservation_lines = reservation_lines
        self._machine_once = OncePer(INTERVAL_SECONDS, MAX_MACHINES, MAX_LINES_OF_ONE_MACHINE)
        self._machine_tally = Tally(INTERVAL_SECONDS, MAX_MACHINES)
        self._unregistered_once = OncePer(INTERVAL_SECONDS, MAX_MACHINES)
        self._packet_once = OncePer(INTERVAL_SECONDS, MAX_PACKET_LINES)

    def _record_note(self, mac: str, note: Note) -> None:
        self._record(mac, note.step, note.outcome, note.message, **note.detail)

    def step(self, mac: str, outcome: Outcome, line: str, **detail: Value) -> None:
        """Report `line` about a machine each time."""
        self._record(mac, Step.DHCP, outcome, line, **detail)

    def once(self, mac: str, outcome: Outcome, line: str, **detail: Value) -> None:
        """Report `line` about a machine at most once a minute."""
        if self._machine_once.due((mac, line), self._clock(), owner=mac):
            self._record(mac, Step.DHCP, outcome, line, **detail)

    def tallied(self, mac: str, key: str, line: str, **detail: Value) -> None:
        """Report the first line of `key` in a minute, with the number of lines that were held back before it.

        This is for events that any host can cause in a machine's name, as often as it likes.
        """
        held_back = self._machine_tally.due((mac, key), self._clock())
        if held_back is not None:
            self._record(mac, Step.DHCP, Outcome.INFO, line + times(held_back), **detail)

    def refused(self, mac: str, reason: str, what: str = "") -> None:
        """Report once a minute why nothing was answered. `what` is missing; by default it is the address."""
        self.once(mac, Outcome.REFUSED, f"no {what or f'{self._name} answer'}: {reason}", reason=reason)

    def unregistered(
        self, mac: str, message: str, client: str, relay: str, answer: str = "", /, **detail: Value
    ) -> None:
        """Report a machine without a Hardware once a minute, with a manifest to fill in and apply.

        `message` is the name of its message and `client` the description of the client. `relay` is the relay's address
        and `answer` what the machine boots; both may be empty.
        """
        if not self._unregistered_once.due(mac, self._clock()):
            return
        line = f"seen, not registered: {message} from {client}"
        line += f" through relay {relay}" if relay else ""
        line += f", told to boot: {answer}" if answer else ""
        manifest = hardware_manifest(mac, self._reservation_lines)
        self._record(mac, Step.SEEN, Outcome.INFO, line, client=client, manifest=manifest, **detail)

    def ignored(self, source: object, port: int, why: str) -> None:
        """Log a packet that makes no sense. Any host may have sent it."""
        if self._packet_once.due((source, why[:40]), self._clock()):
            log.warning("a %s packet from %s port %d is ignored: %s", self._name, source, port, why)


def boot_words(text: str, refusal: str) -> str:
    """Return the end of a report's line: what the client boots (`text`), and why it may not boot otherwise.

    It is empty or begins with a comma, because it follows the name of the message that was sent.
    """
    if refusal:
        return f", {text}, because it may not netboot: {refusal}" if text else f", nothing to boot: {refusal}"
    return f", {text}" if text else ""


def boot_facts(client: str, stage: str, boot: str) -> dict[str, Value]:
    """Return the details of a reply's step: client, stage of the boot and, unless it is empty, what it boots."""
    facts: dict[str, Value] = {"client": client, "stage": stage}
    if boot:
        facts["boot"] = boot
    return facts

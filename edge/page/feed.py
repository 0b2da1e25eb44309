"""The content of the pages as JSON: `tinkedge watch` shows it in a terminal.

/live/rows                  all machines, then those that change (Server-Sent Events): {"rows": [...], "gone": [MAC],
                            "more": there is more of the first list, "notices": what is wrong with the edge}
/api/v1/machines/MAC        one machine: where it is, and its boots, each step with how long it took
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from edge.page.live import TimeSlice
from edge.page.machine import Machines, MachineShown
from edge.page.rack import Rack
from edge.page.rows import Packed, Row
from edge.page.status import EdgeStatus
from edge.page.timeline import Timeline

AT_ONCE: Final = 500  # rows of one message
MAX_BOOTS: Final = 9


class RowsSource:
    """All machines, for one reader."""

    def __init__(self, rack: Rack, status: EdgeStatus) -> None:
        self._rack = rack
        self._status = status
        self._version = -1
        self._more = True
        self._known: dict[str, Packed] = {}
        self._notices: list[str] | None = None

    async def news(self, turns: TimeSlice) -> dict[str, object]:
        """See `edge.page.live.Source`."""
        news: dict[str, object] = {}
        notices = self._status.notices()
        if notices != self._notices:
            self._notices = news["notices"] = notices
        await self._rack.update(turns)
        whole = self._rack.is_whole
        if self._rack.version == self._version and not (self._more and whole):
            return news
        version, rows = self._rack.version, self._rack.rows
        changed = list(islice((packed for mac, packed in rows.items() if self._known.get(mac) is not packed), AT_ONCE))
        gone = [mac for mac in self._known if mac not in rows]
        for mac in gone:
            del self._known[mac]
        for packed in changed:
            self._known[Row._make(packed).mac] = packed
            await turns.rest()
        if len(changed) < AT_ONCE:
            self._version = version
        self._more = len(changed) == AT_ONCE or not whole
        changes = [row_json(Row._make(packed)) for packed in changed]
        return news | {"rows": changes, "gone": gone, "more": self._more}


def row_json(row: Row) -> dict[str, object]:
    """Return a row for programs; times are in seconds since the epoch, null: never or not known.

    `action` of `actions` is where its Workflow is; what it is `waiting_for` is due at `deadline`.
    """
    return {
        "mac": row.mac,
        "hardware": row.name or None,
        "address": row.ip or None,
        "kind": row.kind.value,
        "state": row.state,
        "since": row.since or None,
        "heard": row.heard or None,
        "action": row.number or None,
        "actions": row.of or None,
        "osie": row.osie or None,
        "model": row.model or None,
        "waiting_for": row.awaited or None,
        "deadline": row.until or None,
        "usual_seconds": row.usual or None,
        "reason": row.reason or None,
        "wrong": row.wrong or None,
        "warning": row.warning,
        "message": row.message,
    }


def machine_json(machines: Machines, mac: str) -> dict[str, object] | None:
    """Return one machine for programs; None if it is unknown."""
    shown = machines.shown(mac)
    if shown is None:
        return None
    wrong = shown.wrong
    return {
        **row_json(shown.row),
        "workflow": shown.workflow.name if shown.workflow is not None else None,
        "workflow_state": shown.workflow.line if shown.workflow is not None else None,
        "workflow_failure": (shown.workflow.failure or None) if shown.workflow is not None else None,
        "last_output": shown.last_line or None,
        "problem": {
            "reason": wrong.reason,
            "began": wrong.began,
            "facts": wrong.facts,
            "causes": list(wrong.causes),
            "remedy": list(wrong.remedy),
        }
        if wrong is not None
        else None,
        "boots": [boot_json(boot) for boot in _boots(shown)],
    }


def _boots(shown: MachineShown) -> Iterator[Timeline]:
    """The oldest first."""
    earlier = [boot for number, boot in shown.earlier[:MAX_BOOTS] if number != shown.number]
    yield from reversed(earlier)
    if shown.timeline is not None:
        yield shown.timeline


def boot_json(boot: Timeline) -> dict[str, Any]:
    """One boot, or one installation."""
    return {
        "began": boot.began,
        "seconds": round(boot.seconds, 3),
        "reached": boot.reached,
        "steps": [
            {
                "step": bar.label,
                "began": bar.begin,
                "seconds": round(bar.seconds, 3),
                "usual_seconds": bar.usual,
                "limit_seconds": bar.limit,
                "running": bar.open,
                "overdue": bar.late,
                "failed": bar.failed,
            }
            for bar in boot.bars
        ],
    }

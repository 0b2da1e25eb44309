"""The content of the pages as JSON: `tinkedge watch` shows it in a terminal.

/live/rows                  all machines, then each change (Server-Sent Events): {"rows": [...], "gone": [MAC],
                            "more": the first list continues, "notices": problems of the edge}
/api/v1/machines/MAC        one machine: its state, and its boots with the duration of each step
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from edge.page.live import TimeSlice
from edge.page.machine import Machines
from edge.page.rack import Rack
from edge.page.rows import Packed, Row
from edge.page.status import EdgeStatus
from edge.page.timeline import Timeline

MAX_ROWS: Final = 500  # rows of one message
MAX_BOOTS: Final = 9


@dataclass(eq=False)
class RowsSource:
    """The rows of all machines for one reader."""

    rack: Rack
    status: EdgeStatus
    _version: int = -1
    _more: bool = True
    _known: dict[str, Packed] = field(default_factory=dict)
    _notices: list[str] | None = None

    async def news(self, turns: TimeSlice) -> dict[str, object]:
        """Return the rows that have changed (`edge.page.live.News`)."""
        news: dict[str, object] = {}
        notices = self.status.notices()
        if notices != self._notices:
            self._notices = news["notices"] = notices
        await self.rack.update(turns)
        version, rows, whole = self.rack.version, self.rack.rows, self.rack.is_whole
        if version == self._version and not (self._more and whole):
            return news
        unknown = (packed for mac, packed in rows.items() if self._known.get(mac) is not packed)
        changed = list(islice(unknown, MAX_ROWS))
        gone = [mac for mac in self._known if mac not in rows]
        for mac in gone:
            del self._known[mac]
        for packed in changed:
            self._known[Row._make(packed).mac] = packed
            await turns.rest()
        if len(changed) < MAX_ROWS:
            self._version = version
        self._more = len(changed) == MAX_ROWS or not whole
        changes = [row_json(Row._make(packed)) for packed in changed]
        return news | {"rows": changes, "gone": gone, "more": self._more}


def row_json(row: Row) -> dict[str, object]:
    """Return a row for programs; times are Unix seconds or null. `action` of `actions` is the position in it."""
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
        "power": row.power or None,
        "waiting_for": row.awaited or None,
        "deadline": row.until or None,
        "usual_seconds": row.usual or None,
        "reason": row.reason or None,
        "wrong": row.wrong or None,
        "warning": row.warning,
        "message": row.message,
    }


def machine_json(machines: Machines, mac: str) -> dict[str, object] | None:
    """Return one machine for programs; None if it is unknown. Its boots begin with the oldest."""
    shown = machines.shown(mac)
    if shown is None:
        return None
    wrong, workflow = shown.wrong, shown.workflow
    boots = [boot for number, boot in reversed(shown.earlier[:MAX_BOOTS]) if number != shown.number]
    boots += [shown.timeline] if shown.timeline is not None else []
    return {
        **row_json(shown.row),
        "workflow": workflow.name if workflow is not None else None,
        "workflow_state": workflow.line if workflow is not None else None,
        "workflow_failure": (workflow.failure or None) if workflow is not None else None,
        "last_output": shown.last_line or None,
        "difference": (shown.discovery.difference or None) if shown.discovery is not None else None,
        "approve_command": (shown.discovery.command or None) if shown.discovery is not None else None,
        "power_commands": [command.text for command in shown.power.commands] if shown.power is not None else [],
        "problem": {
            "reason": wrong.reason,
            "began": wrong.began,
            "facts": wrong.facts,
            "causes": list(wrong.causes),
            "remedy": list(wrong.remedy),
        }
        if wrong is not None
        else None,
        "boots": [boot_json(boot) for boot in boots],
    }


def boot_json(boot: Timeline) -> dict[str, Any]:
    """Return one boot, or one installation, for programs."""
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

"""An event as a plain list, for a file and for other edges, and what comes back from there, looked at first. Pure.

    [time, mac, step, outcome, message, {detail}]

Who wrote it may be another release, a broken disk or another host: what is no event is none, and what is too long is
cut as everywhere (`edge.journey.events.Note`).
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from edge.journey.events import MAX_DETAIL, MAX_MESSAGE, Note, Outcome, Step, Value
from edge.journey.history import Entry, detail_of, message_of, outcome_of, packed_bytes, step_of
from tink.mac import is_mac

MAX_DETAILS: Final = 40
"""So many details of one event are kept."""
MAX_NAME: Final = 64


class Happened(NamedTuple):
    """One event of one machine; `time` in seconds since the epoch."""

    time: float
    mac: str
    entry: Entry


def plain(happened: Happened) -> list[Any]:
    """As it is written or sent."""
    time, mac, entry = happened
    detail = dict(detail_of(entry))
    return [time, mac, step_of(entry).value, outcome_of(entry).value, message_of(entry), detail]


def read(found: object) -> tuple[float, str, Note] | None:
    """Time, MAC and step of what `plain` gave; None: it is no event."""
    if not isinstance(found, list) or len(found) != 6:
        return None
    time, mac, step, outcome, message, detail = found
    if not _is_number(time) or not 0 <= time < 1e11 or not isinstance(mac, str) or not is_mac(mac):
        return None
    if not isinstance(message, str) or not isinstance(detail, dict):
        return None
    try:
        kind = Step(step), Outcome(outcome)
    except ValueError:
        return None
    details = _details(detail)
    return float(time), mac, Note(*kind, message, details, kept_bytes=packed_bytes(message[:MAX_MESSAGE], details))


def _details(found: dict[Any, Any]) -> dict[str, Value]:
    kept: dict[str, Value] = {}
    for name, value in found.items():
        if len(kept) >= MAX_DETAILS:
            break
        if not isinstance(name, str) or not name.isidentifier() or len(name) > MAX_NAME:
            continue
        if isinstance(value, str):
            kept[name] = value[:MAX_DETAIL]
        elif _is_number(value):
            kept[name] = value
    return kept


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) < 2**63

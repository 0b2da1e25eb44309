"""Results of a benchmark: samples of rounds that alternate ours and the peer's, rows made of them, and the table.

Absolute figures mean little on a machine that others use too. So every round measures both sides one after the other,
the ratio is taken within the round, and a row shows the median of the ratios with their spread. A ratio above 1 always
means that ours is better, whether more is better (throughput) or less (time).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

Sample = Mapping[str, float]
"""Figures of one measurement, by name."""


class Round(NamedTuple):
    """One measurement of each side; no `peer` where there is none on this machine."""

    ours: Sample
    peer: Sample | None


@dataclass(frozen=True)
class Row:
    """One line of the table. `ratios` has one value for each round. Without a peer, `peer` is None; see `note`."""

    subject: str
    what: str
    unit: str
    ours: float
    peer: float | None
    peer_name: str
    ratios: Sequence[float] = field(default=())
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """The median of the rounds."""
        return median(self.ratios) if self.ratios else None


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)


def alternate(rounds: int, ours: Callable[[], Sample], peer: Callable[[], Sample] | None) -> list[Round]:
    """Measure both sides `rounds` times; the first side alternates, so that a drift of the machine favours neither."""
    rounds_done = []
    for number in range(rounds):
        if peer is None:
            rounds_done.append(Round(ours(), None))
        elif number % 2:
            theirs = peer()
            rounds_done.append(Round(ours(), theirs))
        else:
            rounds_done.append(Round(ours(), peer()))
    return rounds_done


def row(
    subject: str,
    what: str,
    unit: str,
    rounds: Sequence[Round],
    key: str,
    peer_name: str,
    *,
    less_is_better: bool = False,
    note: str = "",
) -> Row:
    """Make the row of one figure, `key` in the samples; `peer_name` is empty if there is no peer."""
    ours = [sample.ours[key] for sample in rounds]
    peers = [sample.peer[key] for sample in rounds if sample.peer is not None]
    pairs = list(zip(ours, peers, strict=False))
    if not peers:
        peer_name = f"{peer_name}: not installed" if peer_name else "-"
    ratios = [(theirs / our if less_is_better else our / theirs) for our, theirs in pairs]
    return Row(subject, what, unit, median(ours), median(peers) if peers else None, peer_name, ratios, note)


def idle_note(rounds: Sequence[Round]) -> str:
    """Return a note if the servers did not limit the speed; `busy` in the samples is their share of their core."""
    peers = [sample.peer["busy"] for sample in rounds if sample.peer is not None]
    shares = [median(sample.ours["busy"] for sample in rounds), *([median(peers)] if peers else [])]
    if max(shares) > 0.9:
        return ""
    return f"the servers are not the limit (busy: {', '.join(f'{share:.0%}' for share in shares)}); compare the CPU"


def table(rows: Sequence[Row]) -> str:
    """Format the rows as aligned text, with their notes below."""
    header = ("subject", "what", "unit", "ours", "peer", "ratio", "spread", "peer is", "note")
    notes = list(dict.fromkeys(row.note for row in rows if row.note))
    lines = [header]
    for each in rows:
        spread = f"{min(each.ratios):.2f}-{max(each.ratios):.2f}" if each.ratios else "-"
        lines.append(
            (
                each.subject,
                each.what,
                each.unit,
                _figure(each.ours),
                _figure(each.peer),
                f"{each.ratio:.2f}" if each.ratio is not None else "-",
                spread,
                each.peer_name,
                f"[{notes.index(each.note) + 1}]" if each.note else "",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    numbers = {"ours", "peer", "ratio", "spread"}
    text = []
    for line in lines:
        cells = [
            cell.rjust(width) if name in numbers else cell.ljust(width)
            for cell, width, name in zip(line, widths, header, strict=True)
        ]
        text.append("  ".join(cells).rstrip())
    text.append("ratio: above 1 ours is better; median of the rounds, spread: their lowest and highest")
    text += [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
    return "\n".join(text)


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

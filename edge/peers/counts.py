"""What is counted of the other edges; `edge.peers.metrics` shows it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from edge.peers.signatures import Refusal


@dataclass(slots=True)
class Counts:
    """What has happened since the start. `hits` and `misses` are of files that were looked for; `refused` are requests
    that were not taken for those of an edge."""

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    parent_hits: int = 0
    parent_misses: int = 0
    """Files that the upstream edge was asked for, and had or could not get."""
    served: int = 0
    served_bytes: int = 0
    sent: int = 0
    """Events of machines that other edges were told, each of them."""
    failed_batches: int = 0
    """Times that one could not be told."""
    received: int = 0
    """Events that others have told, and were news."""
    refused: Counter[Refusal] = field(default_factory=Counter)

"""What an agent says of itself beside the message of a call: its token, and which Workflows it holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from proto import metadata

MAX_HELD = 64
"""Workflows that are read; an agent runs one, and reports the end of a few."""


@dataclass(frozen=True, slots=True)
class CallMetadata:
    """`token` is empty where there is none. `holds` are the uids of the Workflows that the agent runs or has events of
    that nobody acknowledged; None: it does not say."""

    token: str = ""
    holds: frozenset[str] | None = None


def read_call_metadata(sent: Iterable[tuple[str, str | bytes]] | None) -> CallMetadata:
    """What is in the metadata of a call. Never raises on what a stranger sends.

    An agent that names as many as are read may hold others, too: it does not say.
    """
    token, held, says = "", set[str](), False
    for key, value in sent or ():
        if not isinstance(value, str):
            continue
        if key == metadata.AUTHORIZATION:
            scheme, _, rest = value.partition(" ")
            token = rest.strip() if scheme.lower() == "bearer" else ""
        elif key == metadata.WORKFLOW:
            says = True
            if value and len(held) < MAX_HELD:
                held.add(value)
    return CallMetadata(token, frozenset(held) if says and len(held) < MAX_HELD else None)

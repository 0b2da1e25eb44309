"""Values that a walk had nothing to say of, so that the next one need not look: most of an update is as it was.

A list of a status holds what became of each of its items, and with every change of one all come again. Each node of a
schema knows its own values, by their JSON: true is not 1 there, and 1.0 not 1.
"""

from __future__ import annotations

from typing import Any

import orjson

from tink.shrink import shrink_to_fit

MAX_TEXT = 8 << 10
"""Longer values are not kept."""
GENERATION_BYTES = 1 << 20
"""Values are kept for two generations: those that nobody asks for while so much else is noted are forgotten."""
_ENTRY_BYTES = 150
"""What an entry costs beside its text, roughly."""


class ValidCache:
    """What is known of one schema's values."""

    def __init__(self) -> None:
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()
        self._size = 0

    def __contains__(self, text: bytes) -> bool:
        if text in self._young:
            return True
        if text in self._old:
            self.note(text)
            return True
        return False

    def note(self, text: bytes) -> None:
        """Keep the text of a value that a walk left as it was and found nothing wrong with."""
        if len(text) > MAX_TEXT:
            return
        cost = len(text) + _ENTRY_BYTES
        if self._size + cost > GENERATION_BYTES:
            self._old, self._young, self._size = self._young, set(), 0
        self._size += cost
        self._young.add(shrink_to_fit(text))


def text_of(value: Any) -> bytes | None:
    """Give a value as JSON; None for what has none here: integers of more than 64 bits, text that is not Unicode."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return None

"""Warnings of one request: which reach the client, and how much of them.

Kubernetes writes each text once, drops what no header can hold, and shortens all when together they are too long
(k8s.io/apiserver, pkg/endpoints/filters/warning.go). Pure.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

MAX_TOTAL = 4 * 1024
MAX_EACH = 256
"""Once all warnings are longer than MAX_TOTAL characters, each is cut to MAX_EACH."""


def limited(warnings: Iterable[str]) -> list[str]:
    """Give the warnings that a client is told, in their order."""
    told: dict[str, None] = {}
    written, cutting = 0, False
    for text in warnings:
        if cutting and written >= MAX_TOTAL:
            break
        if not text or text in told:
            continue
        told[text] = None
        if not _fits_header(text):
            continue
        size = min(len(text), MAX_EACH) if cutting else len(text)
        if not cutting and written + size > MAX_TOTAL:
            cutting = True
            written = sum(min(len(other), MAX_EACH) for other in told if _fits_header(other))
        else:
            written += size
    return [text[:MAX_EACH] if cutting else text for text in told if _fits_header(text)]


def _fits_header(text: str) -> bool:
    """Whether a header can hold the text: no control characters, nothing that is no character."""
    return not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)

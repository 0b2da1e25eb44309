"""Moments as text: RFC 3339 in UTC, as Kubernetes, logs and pages have them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

Precision = Literal["seconds", "milliseconds", "microseconds"]


def rfc3339(seconds: float, precision: Precision = "seconds") -> str:
    """`2026-11-25T23:00:00Z` for Unix seconds; of a more exact one, the rest is cut off."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision).removesuffix("+00:00") + "Z"

"""Timestamps as text: RFC 3339 in UTC, the format of Kubernetes, logs and pages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

Precision = Literal["seconds", "milliseconds", "microseconds"]


def rfc3339(seconds: float, precision: Precision = "seconds") -> str:
    """Return Unix seconds as text such as `2026-11-25T23:00:00Z`, truncated to the precision."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision).removesuffix("+00:00") + "Z"

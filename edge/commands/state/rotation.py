"""Backups of one directory, by the times in their names: which to make, and which have become too many. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

ALIKE = "tinkedge-????????T??????Z.tgz*"
"""Glob pattern of such names."""
_NAME = re.compile(r"tinkedge-\d{8}T\d{6}Z\.tgz(\.age)?")


def name_at(now: datetime, *, encrypted: bool) -> str:
    """Of a backup that is made at `now` (with a time zone): ISO 8601's basic form in UTC, which sorts by time."""
    return f"tinkedge-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}.tgz{'.age' if encrypted else ''}"


def too_many(names: Iterable[str], made: str, keep: int) -> list[str]:
    """Of the `names` in a directory where `made` is the newest backup, those to remove, so that `keep` stay.

    What is no backup of ours is not looked at. A name of a later time is of a clock that was wrong: it goes first.
    """
    others = {name for name in names if _NAME.fullmatch(name)} - {made}
    stay = sorted(others, key=lambda name: (name < made, name), reverse=True)[: max(0, keep - 1)]
    return sorted(others - {*stay})

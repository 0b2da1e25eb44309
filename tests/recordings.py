"""Recordings: output of other projects' programs, stored as JSON so that a diff shows a change.

A recording is a directory with a file for each subject. A value that fits in a line is on one; every other value has a
line for each part. `python -m tests.record` makes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_WIDTH = 160


def layout(value: Any, indent: int = 0) -> str:
    """JSON in lines."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + len(line) <= _WIDTH or not value or not isinstance(value, dict | list):
        return line
    begin, end = "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {layout(part, indent + 1)}" for key, part in value.items()]
    else:
        parts = [layout(part, indent + 1) for part in value]
    return begin + (",\n" + " " * (indent + 1)).join(parts) + end


def read(folder: Path) -> dict[str, Any]:
    """Return the recorded output of every file, by subject."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def write(folder: Path, said: Mapping[str, Any]) -> None:
    """Write a whole recording; files of earlier subjects are deleted."""
    folder.mkdir(exist_ok=True)
    for file in folder.glob("*.json"):
        if file.stem not in said:
            file.unlink()
    for subject, value in said.items():
        (folder / f"{subject}.json").write_text(layout(value) + "\n")

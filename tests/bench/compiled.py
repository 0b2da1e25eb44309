"""The load generators, which are C: a generator written in Python would be the limit instead of the server.

Their sources are in `tests/bench/load`, one file a program. Each is compiled at its first use. The program's file name
has a hash of the source and the compiler flags, so a change of either compiles it again.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from tests.bench.bed import BenchError, installed

_SOURCES = Path(__file__).parent / "load"
_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread")


def compiled(name: str) -> Path:
    """Return the program compiled from `load/<name>.c`. Raises BenchError with the compiler's output."""
    source = _SOURCES / f"{name}.c"
    shared = sorted(_SOURCES.glob("*.h"))
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for part in (source, *shared):
        digest.update(part.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinkedge" / "bench"
    program = cache / f"{name}-{digest.hexdigest()[:16]}"
    if program.exists():
        return program
    compiler = installed("gcc") or installed("cc")
    if compiler is None:
        raise BenchError(f"{source.name} has to be compiled, and no C compiler is installed (apt-get install gcc)")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        made = Path(directory) / name
        command = [compiler, *_FLAGS, "-o", str(made), str(source), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"{source.name} can't be compiled: {done.stderr.strip()[-2000:]}")
        made.replace(program)  # at once: another run may look for it now
    return program

"""Programs that do what others do best: apt, skopeo."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from edge.bundle.manifest import BundleError

_LINES = 8


def run(
    command: list[str | Path], *, what: str, package: str, timeout: float = 3600, env: dict[str, str] | None = None
) -> str:
    """Run a program of a Debian `package` and give what it prints. Raises BundleError with its last lines."""
    name = str(command[0])
    if shutil.which(name) is None:
        raise BundleError(f"{what}: there is no {name}: apt-get install {package}")
    environment = {**os.environ, "LC_ALL": "C", **(env or {})}
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=timeout, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise BundleError(f"{what}: {name} has not ended after {timeout:.0f} s") from error
    if ran.returncode:
        # apt says on its output why, and on the other that.
        last = "\n".join(f"{ran.stdout}\n{ran.stderr}".strip().splitlines()[-_LINES:])
        raise BundleError(f"{what}: {name} ended with {ran.returncode}:\n{last}")
    return ran.stdout

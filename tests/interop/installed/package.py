"""The Debian package of this checkout, made once for all tests of a run."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.installed.host import ROOT


def package_of_this_run(factory: pytest.TempPathFactory) -> Path:
    """The package, as `make deb` makes it but for how it is compressed: at its best that takes most of a minute."""
    own = factory.getbasetemp()
    # Those of pytest-xdist's workers are side by side.
    out = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "deb"
    out.mkdir(exist_ok=True)
    with (out / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(out.glob("*.deb")):
            _make(out)
    (made,) = out.glob("*.deb")
    return made


def _make(out: Path) -> None:
    command = [sys.executable, "-m", "deploy.package", "deb", "--compression", "gzip", "--out", str(out)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=environment)

"""`make image` from two clones gives one image: what differs between those who build it is not in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fresh.__main__ import clone
from tests.interop.installed.host import ROOT

pytestmark = pytest.mark.timeout(900)

MOST_BYTES = 150 * 10**6


def image(directory: Path, umask: int, zone: str) -> tuple[str, bytes]:
    """The digest that is printed, and the archive."""
    clone("HEAD", directory)
    epoch = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], check=True, capture_output=True, text=True)
    made = subprocess.run(
        [sys.executable, "-m", "deploy.package", "image", "--out", "dist"],
        cwd=directory,
        # Modules of this clone, and not of the checkout that is installed in the environment.
        env=os.environ | {"SOURCE_DATE_EPOCH": epoch.stdout.strip(), "TZ": zone, "PYTHONPATH": str(directory)},
        umask=umask,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    (archive,) = directory.glob("dist/*.oci.tar")
    (contents,) = directory.glob("dist/*.cdx.json")
    assert '"pkg:deb/debian/python3-minimal@' in contents.read_text()
    return made.stdout.strip(), archive.read_bytes()


def test_two_builds_of_one_commit_give_one_image(tmp_path: Path) -> None:
    first, archive = image(tmp_path / "first", 0o022, "UTC")
    again, other = image(tmp_path / "elsewhere/a-longer-name", 0o077, "Pacific/Auckland")
    assert first == again
    assert archive == other
    assert len(archive) < MOST_BYTES

"""The part of the OSIE that is this program: a zip archive of its packages, as a wheel is one (PEP 427).

It is made from the files that run here, so that it needs no checkout and no pip, and the agent in the OSIE is of the
same version as the edge. The same files give the same bytes.
"""

from __future__ import annotations

import zipfile
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("edge", "hegel", "ipxe", "proto", "tink")
_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip archive has."""


def files(root: Path) -> dict[str, Path]:
    """Return the files of the program below `root`, by their path there: Python alone, without the recipes."""
    found = (path for name in _PACKAGES for path in (root / name).rglob("*") if path.is_file())
    named = {str(path.relative_to(root)): path for path in found if path.suffix != ".pyc"}
    return {name: path for name, path in named.items() if not name.startswith("edge/_deploy/")}


def write(root: Path, directory: Path) -> Path:
    """Write the archive into `directory` and return its path. Raises OSError."""
    release = version("tinkedge")
    out = directory / f"tinkedge-{release}-py3-none-any.whl"
    # `tinkedge --version` reads this.
    metadata = f"Metadata-Version: 2.1\nName: tinkedge\nVersion: {release}\n"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(files(root).items()):
            archive.writestr(zipfile.ZipInfo(name, _TIME), path.read_bytes(), zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo(f"tinkedge-{release}.dist-info/METADATA", _TIME), metadata)
    return out

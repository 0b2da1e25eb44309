"""The libraries of the extra `diagnose`, loaded when they are used: what serves machines never pays for them.

What users install (docs/installing.md) has them not, because of scapy's licence; there, Debian's own package will do.
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from pathlib import Path
from typing import Any, Final

DEBIAN: Final = Path("/usr/lib/python3/dist-packages")
"""Where Debian's packages are, which an environment of its own does not see."""
_PACKAGES: Final = {"scapy": "python3-scapy"}


class DiagnoseError(Exception):
    """A diagnosis can't be made; says why, and what to do."""


class MissingExtraError(DiagnoseError):
    """The extra is not installed."""


def scapy() -> Any:
    """The module `scapy.all`. Raises MissingExtraError if the extra is not installed."""
    # It says on loading that there is no IPv6 route, no libpcap and so on, none of which is needed here.
    logging.getLogger("scapy").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):  # Debian 12's names ciphers that are deprecated by now
        return _load("scapy.all")


def tftpy() -> Any:
    """The module `tftpy`. Raises MissingExtraError if the extra is not installed."""
    logging.getLogger("tftpy").setLevel(logging.CRITICAL)  # what it says is raised, too
    return _load("tftpy")


def _load(name: str) -> Any:
    library = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = _PACKAGES.get(library)
        if package is not None and (DEBIAN / library).is_dir() and str(DEBIAN) not in sys.path:
            sys.path.append(str(DEBIAN))  # last: for all else the environment's own are taken
            return _load(name)
        debian = f"apt install {package}, or " if package is not None else ""
        text = f"{library} is not installed: {debian}pip install 'tinkedge[diagnose]'"
        raise MissingExtraError(text) from error

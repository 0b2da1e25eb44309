"""The libraries of the extra `diagnose`, loaded when they are used: what serves machines never pays for them.

What users install (docs/installing.md) has them not, because of scapy's licence; there, Debian's own package will do.
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

DEBIAN: Final = Path("/usr/lib/python3/dist-packages")
"""Where Debian's packages are, which an environment of its own does not see."""
_PACKAGES: Final = {"scapy": "python3-scapy"}
_SOCKETS: Final = {
    "scapy.config": ("conf",),
    "scapy.layers.inet": ("IP", "UDP"),
    "scapy.layers.l2": ("Ether",),
    "scapy.packet": ("Raw",),
    "scapy.sendrecv": ("AsyncSniffer", "sendp"),
}
"""Modules and what is used of them."""


class DiagnoseError(Exception):
    """A diagnosis can't be made; says why, and what to do."""


class MissingExtraError(DiagnoseError):
    """The extra is not installed."""


def scapy() -> Any:
    """The module `scapy.all`, with the dissectors of all protocols; it takes most of a second to load.

    Raises MissingExtraError if the extra is not installed.
    """
    return _load_quietly("scapy.all")


def scapy_sockets() -> Any:
    """What of scapy listens and sends, by its names in `scapy.all`; a quarter of the time.

    Raises MissingExtraError if the extra is not installed.
    """
    _load_quietly("scapy.arch")  # gives `conf` the sockets of this operating system
    return SimpleNamespace(
        **{name: getattr(_load_quietly(module), name) for module, names in _SOCKETS.items() for name in names}
    )


def tftpy() -> Any:
    """The module `tftpy`. Raises MissingExtraError if the extra is not installed."""
    logging.getLogger("tftpy").setLevel(logging.CRITICAL)  # what it says is raised, too
    return _load("tftpy")


def _load_quietly(name: str) -> Any:
    # It says on loading that there is no IPv6 route, no libpcap and so on, none of which is needed here.
    logging.getLogger("scapy").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):  # Debian 12's names ciphers that are deprecated by now
        return _load(name)


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

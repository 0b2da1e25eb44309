"""The libraries of the extra `diagnose`, imported when they are used.

scapy is GPL-2.0-only, and both libraries are slow to import, so nothing that serves machines imports them. The packages
that users install (docs/installing.md) do not have scapy because of its licence; Debian's own package will do there.
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from tink.errors import TinkedgeError

DEBIAN: Final = Path("/usr/lib/python3/dist-packages")
"""The directory of Debian's packages, which a virtual environment does not search."""
_DEBIAN_PACKAGES: Final = {"scapy": "python3-scapy"}
_SOCKET_NAMES: Final = {
    "scapy.config": ("conf",),
    "scapy.layers.inet": ("IP", "UDP"),
    "scapy.layers.l2": ("Ether",),
    "scapy.packet": ("Raw",),
    "scapy.sendrecv": ("AsyncSniffer", "sendp"),
}
"""The names that `scapy_sockets` takes from each module."""


class DiagnoseError(TinkedgeError):
    """A diagnosis can't be made. The message says why, and what to do."""


class MissingExtraError(DiagnoseError):
    """The extra is not installed."""


def scapy() -> Any:
    """Import `scapy.all`, with all dissectors; it takes most of a second. Raises MissingExtraError."""
    return _import_quietly("scapy.all")


def scapy_sockets() -> Any:
    """Import the names of `scapy.all` that capture and send, in a quarter of the time. Raises MissingExtraError."""
    _import_quietly("scapy.arch")  # gives `conf` the sockets of this operating system
    modules = {module: _import_quietly(module) for module in _SOCKET_NAMES}
    return SimpleNamespace(
        **{name: getattr(modules[module], name) for module, names in _SOCKET_NAMES.items() for name in names}
    )


def tftpy() -> Any:
    """Import `tftpy`. Raises MissingExtraError if the extra is not installed."""
    logging.getLogger("tftpy").setLevel(logging.CRITICAL)  # what it logs is raised, too
    return _import("tftpy")


def _import_quietly(name: str) -> Any:
    # scapy warns on import that there is no IPv6 route, no libpcap and so on, none of which is needed here.
    logging.getLogger("scapy").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):  # Debian 12's names ciphers that are deprecated by now
        return _import(name)


def _import(name: str) -> Any:
    library = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = _DEBIAN_PACKAGES.get(library)
        if package is not None and (DEBIAN / library).is_dir() and str(DEBIAN) not in sys.path:
            sys.path.append(str(DEBIAN))  # last: the environment's own packages come first
            return _import(name)
        debian = f"apt install {package}, or " if package is not None else ""
        text = f"{library} is not installed: {debian}pip install 'tinkedge[diagnose]'"
        raise MissingExtraError(text) from error

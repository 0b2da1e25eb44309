"""The libraries of the extra `diagnose`, loaded when they are used: what serves machines never pays for them."""

from __future__ import annotations

import importlib
import logging
from typing import Any


class DiagnoseError(Exception):
    """A diagnosis can't be made; says why, and what to do."""


class MissingExtraError(DiagnoseError):
    """The extra is not installed."""


def scapy() -> Any:
    """The module `scapy.all`. Raises MissingExtraError if the extra is not installed."""
    # It says on loading that there is no IPv6 route, no libpcap and so on, none of which is needed here.
    logging.getLogger("scapy").setLevel(logging.ERROR)
    return _load("scapy.all")


def tftpy() -> Any:
    """The module `tftpy`. Raises MissingExtraError if the extra is not installed."""
    logging.getLogger("tftpy").setLevel(logging.CRITICAL)  # what it says is raised, too
    return _load("tftpy")


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        library = name.partition(".")[0]
        text = f"{library} is not installed; it comes with: pip install 'tinkedge[diagnose]'"
        raise MissingExtraError(text) from error

"""Texts of inventories: what a machine or its BMC reports, cleaned, and without the placeholders of firmware. Pure.

All of these texts are hostile: they come from a BMC, from firmware, or from a program that claims to be an agent.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, Final

from tink.api.bounds import MAX_INVENTORY_CHARACTERS

MAX_INVENTORY_NUMBER: Final = 2**63 - 1
"""Maximum of a number of an inventory: that of Kubernetes' integers."""

_MAC = re.compile(r"[0-9a-f]{2}(?:([:-]?)[0-9a-f]{2})(?:\1[0-9a-f]{2}){4}")
_PLACEHOLDERS = frozenset({
    "", "-", ".", "na", "n/a", "none", "null", "nil", "unknown", "undefined", "empty", "default string",
    "not available", "not applicable", "not specified", "not present", "no dimm", "oem", "o.e.m.",
    "to be filled by o.e.m.", "to be filled by oem", "system manufacturer", "system product name",
    "system serial number", "system version", "chassis serial number", "chassis manufacturer",
    "base board serial number", "serial number", "serialnumber", "asset tag", "$(default_string)", "invalid",
    "sys-1234567890", "chassis-1234567890", "base-1234567890",
})  # fmt: skip
"""Texts that firmware reports for a field that the manufacturer did not fill in."""
_NO_SERIAL = re.compile(r"[0\s.:_-]+|[x*#]+|f+|0?123456789\w{0,3}", re.IGNORECASE)


def clean_text(*values: object) -> str:
    """Return the first value that is a meaningful text, in one line of at most MAX_INVENTORY_CHARACTERS; else empty."""
    for value in values:
        if isinstance(value, str):
            start = value[: 4 * MAX_INVENTORY_CHARACTERS]
            # Categories C (control, format, surrogate, unassigned) and Z (separators): a terminal must not obey them.
            line = start
            if not (start.isascii() and start.isprintable()):
                line = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in start)
            text = " ".join(line.split())[:MAX_INVENTORY_CHARACTERS].rstrip()
            # "To Be Filled By O.E.M", with and without each dot.
            if not {text.casefold(), text.casefold().replace(".", "")} & _PLACEHOLDERS:
                return text
    return ""


def serial_number(*values: object) -> str:
    """Return the first value that can be a serial number; empty if all are placeholders such as zeros."""
    return next((text for value in values if (text := clean_text(value)) and not _NO_SERIAL.fullmatch(text)), "")


def mac_address(value: object) -> str:
    """Return a MAC address in lower case with colons; empty for any other text, multicast, zeros and ones."""
    text = value.strip().lower() if isinstance(value, str) and len(value) <= MAX_INVENTORY_CHARACTERS else ""
    if _MAC.fullmatch(text) is None:
        return ""
    digits = re.sub("[:-]", "", text)
    is_unicast = int(digits[:2], 16) & 1 == 0 and int(digits, 16) != 0
    return ":".join(digits[at : at + 2] for at in range(0, 12, 2)) if is_unicast else ""


def component_order(component: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return the sort key of a component: its place, then all of its fields. DIMM2 comes before DIMM10."""
    names = ("slot", "portID", "name", "pciAddress", "mac", "serialNumber", "description")
    place = " ".join(str(component.get(name, "")) for name in names)
    parts = re.split(r"([0-9]{1,9})", f"{place} {sorted(component.items(), key=itemgetter(0))}")
    return [(int(part), "") if at % 2 else (-1, part) for at, part in enumerate(parts)]


def disk_size(size: float) -> str:
    """Return a size in bytes as the manufacturer of a disk writes it: 480 GB, 3.84 TB."""
    return f"{size / 1e12:.3g} TB" if size >= 1e12 else f"{size / 1e9:.3g} GB"

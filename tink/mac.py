"""MAC addresses as Hardware name interfaces by them: six octets in lowercase hexadecimal, with colons between them."""

from __future__ import annotations

import re
from typing import Final

PATTERN: Final = r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}"
"""A MAC address as a regular expression, for those that look for one within something longer."""
_MAC = re.compile(PATTERN)


def is_mac(text: str) -> bool:
    """Whether `text` is a MAC address in this form, and nothing else."""
    return _MAC.fullmatch(text) is not None


def octets(mac: str) -> bytes:
    """The six bytes of a MAC address in this form. Raises ValueError where it has other digits."""
    return bytes.fromhex(mac.replace(":", ""))

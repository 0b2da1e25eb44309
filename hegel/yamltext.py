"""Scalars of YAML that stay strings: "123", "on" and a MAC of digits, which YAML 1.1 would count in base 60.

The documents made here have few and known shapes, so they are put together line by line: a general writer takes a
hundred times as long, and there may be 100,000 Hardware.
"""

from __future__ import annotations

from json.encoder import encode_basestring


def quoted(value: str) -> str:
    """`value` in double quotes (YAML 1.1, section 5.7): JSON's escapes mean the same, and all else is `\\U`."""
    text = encode_basestring(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)

"""Make untrusted text safe for a screen, a log line or a header: no character moves a cursor or forges a line."""

from __future__ import annotations


def printable(text: str, instead: str = "?", *, keep: str = "", ascii_only: bool = False) -> str:
    """Replace each unprintable character by `instead`, except those in `keep`.

    `ascii_only` replaces all characters outside ASCII, too.
    """
    if text.isprintable() and (not ascii_only or text.isascii()):
        return text
    return "".join(
        each if each in keep or (each.isprintable() and (not ascii_only or each.isascii())) else instead
        for each in text
    )


def escaped(text: str) -> str:
    """Replace each unprintable character by its escape, such as `\\n` for a line break."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)

"""What others wrote, made fit for a screen, a log line or a header: no character moves a cursor or forges a line."""

from __future__ import annotations


def printable(text: str, instead: str = "?", *, keep: str = "", ascii_only: bool = False) -> str:
    """With `instead` for each character that can't be printed, but for those in `keep`; `ascii_only`: for all that is
    not ASCII, too."""
    if text.isprintable() and (not ascii_only or text.isascii()):
        return text
    return "".join(
        each if each in keep or (each.isprintable() and (not ascii_only or each.isascii())) else instead
        for each in text
    )


def escaped(text: str) -> str:
    """With `\\n` for a line break, and so on."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)

"""Words of a terminal: durations, clocks, and texts of others, which move no cursor and take no more room than they
may. Pure."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Iterator

from tink.printable import printable as _printable


def printable(text: str) -> str:
    """Text of machines or users in one line, without what a terminal would obey."""
    return _printable(text, " ")


def span(seconds: float) -> str:
    """A duration: 0.2s, 12s, 3m20s, 5h, 2d."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    if seconds < 119.5:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes}m{rest:02d}s"
    if seconds < 48 * 3600:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours}h{minutes:02d}m"
    return f"{seconds / 86400:.0f}d"


def spoken(seconds: float) -> str:
    """Return a duration for a sentence: `now`, `22 s`, `3 min 20 s`, `2 h 5 min`, `5 days`."""
    whole = int(max(0.0, seconds))
    if whole < 120:
        return f"{whole} s" if whole else "now"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} days"


def ago(seconds: float) -> str:
    """Return how long ago something was: `now`, `22 s ago`."""
    text = spoken(seconds)
    return text if text == "now" else f"{text} ago"


def due(deadline: float, now: float) -> str:
    """Return when a step is due: `due in 4 s`, `due now`, `22 s overdue`."""
    left = deadline - now
    if abs(left) < 1:
        return "due now"
    return f"due in {spoken(left)}" if left > 0 else f"{spoken(-left)} overdue"


def clock(at: float) -> str:
    """The time of day, with its date where that is not today's."""
    then, now = time.localtime(at), time.localtime()
    day = "" if then[:3] == now[:3] else time.strftime("%Y-%m-%d ", then)
    return day + time.strftime("%H:%M:%S", then)


def precise(at: float) -> str:
    """Return the time of day with milliseconds."""
    return f"{clock(at)}.{int(at * 1000) % 1000:03d}"


def cells(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Return the text cut to `width` columns, with an ellipsis."""
    if cells(text) <= width:
        return text
    kept, room = [], width - 1
    for character in text:
        room -= _cells(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + "…"


def padded(text: str, width: int) -> str:
    """Return the text in exactly `width` columns."""
    text = cut(text, width)
    return text + " " * (width - cells(text))


def wrapped(text: str, width: int, indent: str) -> Iterator[str]:
    """Lines of so many columns at most, all but the first indented; between words where there are any."""
    line = ""
    for word in text.split(" "):
        if line and cells(line) + 1 + cells(word) > width and line.strip():
            yield line
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
        while cells(line) > width > len(indent) + 2:
            head = cut(line, width + 1)[:-1]
            yield head
            line = indent + line[len(head) :]
    yield line

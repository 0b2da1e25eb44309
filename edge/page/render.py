"""Templates: HTML in which texts of machines, users of the API and upstreams stay text."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from pathlib import Path
from typing import Any, Final

from jinja2 import PackageLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

from edge.page.words import KIND_WORDS, PHASE_WORDS
from tink.timestamps import rfc3339

STATIC: Final = Path(__file__).parent / "static"
_CONTROL: Final = re.compile(r"[^\S\n\t ]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def plain(value: Any) -> Any:
    """Return a text without terminal escapes, control characters, and marks that change its direction."""
    if hasattr(value, "__html__") or not isinstance(value, str) or (value.isascii() and value.isprintable()):
        return value
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _ESCAPES.sub("", value))


def span(seconds: float | None) -> str:
    """Return a duration for people: `40 ms`, `4.2 s`, `1:05 min`, `3:10 h`, `12 days`."""
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.0005 else "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} min"
    if seconds < 2 * _DAY:
        return f"{int(seconds // _HOUR)}:{int(seconds % _HOUR // 60):02d} h"
    return f"{int(seconds // _DAY)} days"


def age(seconds: float) -> str:
    """Return a duration that grows while the page is open, in whole seconds: `now`, `12 s`, `1:05 min`."""
    return "now" if seconds < 1 else span(float(int(seconds))) if seconds >= _MINUTE else f"{int(seconds)} s"


def ago(seconds: float) -> str:
    """Return how long ago something was: `now`, `12 s ago`."""
    return "now" if seconds < 1 else f"{age(seconds)} ago"


def due(seconds: float) -> str:
    """Return when a step is due that has `seconds` left: `due in 4 s`, `due now`, `22 s overdue`."""
    if abs(seconds) < 1:
        return "due now"
    return f"due in {age(seconds)}" if seconds > 0 else f"{age(-seconds)} overdue"


def size(count: float) -> str:
    """Return a size for people: `850 B`, `14.2 kB`, `14.2 MB`, `1.4 GB`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B"


def clock(at: float) -> str:
    """Return the time of day on the edge's host, with the date if it is not today."""
    then, now = time.localtime(at), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", then)


def utc(at: float) -> str:
    """Return the date and time of day in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


class Templates:
    """Renders the templates of the page."""

    def __init__(self) -> None:
        environment = SandboxedEnvironment(
            loader=PackageLoader("edge.page"),
            undefined=StrictUndefined,
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=plain,
            auto_reload=False,
        )
        environment.filters |= {each.__name__: each for each in (span, age, ago, due, utc, size, clock)}
        environment.filters["iso"] = rfc3339
        environment.globals |= {
            "kind_words": KIND_WORDS,
            "phase_words": PHASE_WORDS,
            "assets": {name: f"/static/{name}?v={digest(name)}" for name in ("page.css", "page.js", "icon.svg")},
        }
        self._environment = environment
        self._compiled = False

    async def compile(self) -> None:
        """Compile the templates in a thread, before the first page: it takes a tenth of a second."""
        if not self._compiled:
            names = self._environment.list_templates(extensions=["html"])
            await asyncio.to_thread(lambda: [self._environment.get_template(name) for name in names])
            self._compiled = True

    def page(self, name: str, **values: Any) -> str:
        """Return a whole page."""
        return self._environment.get_template(name).render(**values)

    def part(self, name: str, macro: str, *values: Any) -> str:
        """Return the output of one macro of a template."""
        made: str = getattr(self._environment.get_template(name).module, macro)(*values)
        return made


def digest(name: str) -> str:
    """Return the digest of a file in `static`, for its URL: other bytes get another URL."""
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]

"""One machine: where it is and what is wrong, its boots with the duration of each step, and what it does from now on.
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from edge.commands.watching.words import clock, padded, printable, span, wrapped

_LABEL: Final = 34
_INDENT: Final = "  "


def summary(found: Mapping[str, Any], now: float, width: int) -> Iterator[str]:
    """Where it is: lines of `width` columns at most."""
    names = (str(found[name]) for name in ("hardware", "mac", "address") if found.get(name))
    yield printable("  ".join(names))
    since = found["since"] or found["heard"]
    yield from wrapped(printable(str(found["state"])) + _for(since, now), width, _INDENT)
    if found["awaited"]:
        usual = f"usually {span(found['usual_seconds'])} here, " if found["usual_seconds"] else ""
        left = found["deadline"] - now
        due = f"within {span(left)}" if left > 0 else f"{span(-left)} late"
        yield from wrapped(f"awaited: {found['awaited']} ({usual}{due})", width, _INDENT)
    if found["wrong"]:
        mark = "wrong" if found["warning"] else "note"
        yield from wrapped(printable(f"{mark}: {found['reason']}: {found['wrong']}"), width, _INDENT)
    if found["workflow"]:
        yield printable(f"Workflow: {found['workflow']}")


def boots(found: Mapping[str, Any], width: int) -> Iterator[str]:
    """Its boots, the oldest first, step by step."""
    for boot in found["boots"]:
        yield ""
        yield from wrapped(
            f"boot of {clock(boot['began'])}, {span(boot['seconds'])}: {printable(boot['reached'])}", width, _INDENT
        )
        for step in boot["steps"]:
            yield _step(step, width)


def _step(step: Mapping[str, Any], width: int) -> str:
    usual = f"  usually {span(step['usual_seconds'])}" if step["usual_seconds"] else ""
    marks = [word for name, word in (("failed", "failed"), ("late", "late"), ("goes_on", "goes on")) if step[name]]
    took, label = span(step["seconds"]), padded(printable(step["step"]), min(_LABEL, max(10, width - 46)))
    return f"{_INDENT}{clock(step['began'])} {label} {took:>7}{usual}{'  ' if marks else ''}{', '.join(marks)}".rstrip()


def _for(since: float | None, now: float) -> str:
    return f", for {span(now - since)} (since {clock(since)})" if since else ""

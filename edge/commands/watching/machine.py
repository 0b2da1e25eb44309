"""One machine: where it is, what is wrong and what to do, and its boots with the duration of each step. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from edge.commands.watching.words import ago, clock, due, padded, printable, span, spoken, wrapped

_LABEL: Final = 34
_INDENT: Final = "  "


def summary(found: Mapping[str, Any], now: float, width: int) -> Iterator[str]:
    """Yield where the machine is and what is wrong: lines of `width` columns at most."""
    names = (str(found[name]) for name in ("hardware", "mac", "address", "osie", "model") if found.get(name))
    yield from wrapped(printable("  ".join(names)), width, _INDENT)
    yield from wrapped(printable(str(found["state"])) + _for(found["since"] or found["heard"], now), width, _INDENT)
    yield from _problem(found, now, width)
    if found["workflow"]:
        parts = (f"Workflow {found['workflow']}", found.get("workflow_state"), found.get("workflow_failure"))
        yield from wrapped(printable(": ".join(filter(None, parts))), width, _INDENT)
    if found.get("waiting_for"):
        yield from wrapped(f"waiting for: {waiting(found, now)}", width, _INDENT)
    if found.get("last_output"):
        yield from wrapped(printable(f"last output: {found['last_output']}"), width, _INDENT)
    if found["heard"]:
        yield f"last heard: {ago(now - found['heard'])}"


def waiting(found: Mapping[str, Any], now: float) -> str:
    """Return what a machine waits for: `kernel download (22 s overdue)`, or `(usually 4 s, due in 8 s)`."""
    usual = found["usual_seconds"]
    takes = f"usually {spoken(usual)}, " if usual and usual >= 1 and found["deadline"] > now else ""
    return printable(f"{found['waiting_for']} ({takes}{due(found['deadline'], now)})")


def _problem(found: Mapping[str, Any], now: float, width: int) -> Iterator[str]:
    """Yield what is wrong, since when, the likely causes, and what to do."""
    if not found["wrong"]:
        return
    mark = "problem" if found["warning"] else "note"
    problem = found.get("problem")
    if not problem:
        yield from wrapped(printable(f"{mark}: {found['reason']}: {found['wrong']}"), width, _INDENT)
        return
    since = f"since {clock(problem['began'])}, {ago(now - problem['began'])}"
    yield from wrapped(printable(f"{mark}: {problem['reason']} ({since}): {problem['facts']}"), width, _INDENT)
    for cause in problem["causes"]:
        yield from wrapped(printable(f"likely cause: {cause}"), width, _INDENT)
    for step in problem["remedy"]:
        yield from wrapped(printable(f"what to do: {step}"), width, _INDENT)


def boots(found: Mapping[str, Any], width: int) -> Iterator[str]:
    """Yield its boots, the oldest first, step by step."""
    for boot in found["boots"]:
        yield ""
        yield from wrapped(
            f"boot of {clock(boot['began'])}, {span(boot['seconds'])}: {printable(boot['reached'])}", width, _INDENT
        )
        for step in boot["steps"]:
            yield _step(step, width)


def _step(step: Mapping[str, Any], width: int) -> str:
    usual = f"  usually {span(step['usual_seconds'])}" if step["usual_seconds"] else ""
    slow = "overdue" if step["running"] else "slow"
    marks = [word for name, word in (("failed", "failed"), ("overdue", slow), ("running", "running")) if step[name]]
    took, label = span(step["seconds"]), padded(printable(step["step"]), min(_LABEL, max(10, width - 46)))
    return f"{_INDENT}{clock(step['began'])} {label} {took:>7}{usual}{'  ' if marks else ''}{', '.join(marks)}".rstrip()


def _for(since: float | None, now: float) -> str:
    return f", for {span(now - since)} (since {clock(since)})" if since else ""

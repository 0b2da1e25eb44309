"""Label and field selectors, as in `kubectl get -l` and `--field-selector`.

Label selectors are equality based (`a=b`, `a==b`, `a!=b`) and set based (`a in (b,c)`, `a notin (b)`, `a`, `!a`, `a>1`,
`a<1`), joined by commas that all must hold (Kubernetes documentation, "Labels and Selectors"). Field selectors know
`metadata.name` and `metadata.namespace`, and for some resources more fields (`registry`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tink.apiserver.errors import bad_request

Labels = Mapping[str, str]
Match = Callable[[Labels], bool]

_KEY = r"[A-Za-z0-9]([A-Za-z0-9_./-]*[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?"
_REQUIREMENT = re.compile(
    rf"\s*(?:(?P<absent>!)\s*(?P<absent_key>{_KEY})"
    rf"|(?P<key>{_KEY})\s*(?:(?P<set>(?:not)?in)\s*\((?P<values>[^()]*)\)|(?P<op>==|!=|=|>|<)\s*(?P<value>{_VALUE}))?)"
    r"\s*(?:,|$)"
)
_VALUE_ONLY = re.compile(_VALUE)


def parse_labels(text: str) -> Match | None:
    """Compile a label selector; None when it selects everything. Raises StatusError (400) when it cannot be parsed."""
    requirements: list[Match] = []
    position = 0
    while position < len(text):
        found = _REQUIREMENT.match(text, position)
        if found is None or found.end() == position:
            raise bad_request(f"unable to parse requirement: found {text[position:]!r}, expected a label selector")
        requirements.append(_requirement(found, text))
        position = found.end()
    if text.rstrip().endswith(","):
        raise bad_request("unable to parse requirement: found '', expected: identifier after ','")
    if not requirements:
        return None
    return lambda labels: all(holds(labels) for holds in requirements)


def _requirement(found: re.Match[str], text: str) -> Match:
    if found["absent"]:
        key = found["absent_key"]
        return lambda labels: key not in labels
    key = found["key"]
    if found["set"]:
        values = frozenset(value.strip() for value in found["values"].split(","))
        for value in values:
            if not _VALUE_ONLY.fullmatch(value):
                raise bad_request(f"unable to parse requirement: values[0][{key}]: Invalid value: {value!r}")
        if found["set"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    value = found["value"]
    match found["op"]:
        case None:
            return lambda labels: key in labels
        case "!=":
            return lambda labels: labels.get(key) != value
        case ">" | "<" as op:
            return _ordered(key, op, value, text)
        case _:
            return lambda labels: labels.get(key) == value


def _ordered(key: str, op: str, value: str, text: str) -> Match:
    try:
        bound = int(value)
    except ValueError as error:
        raise bad_request(
            f"unable to parse requirement: {text!r}: for '>' and '<', the value must be an integer"
        ) from error

    def holds(labels: Labels) -> bool:
        try:
            actual = int(labels[key])
        except (KeyError, ValueError):
            return False
        return actual > bound if op == ">" else actual < bound

    return holds


def labels_of(obj: Mapping[str, Any]) -> Labels:
    """Give the labels of an object."""
    labels: Labels = obj["metadata"].get("labels") or {}
    return labels


_TERM = re.compile(r"(?P<field>[^=!,]+?)\s*(?P<op>==|!=|=)\s*(?P<value>(?:[^,\\=]|\\.)*)$")


def parse_fields(text: str, known: Mapping[str, tuple[str, ...]]) -> list[tuple[str, str, bool]]:
    """Read a field selector into (field, value, whether it must be equal). Raises StatusError (400)."""
    terms = []
    for part in re.split(r"(?<!\\),", text):
        if not part.strip():
            continue
        found = _TERM.match(part.strip())
        if found is None:
            raise bad_request(f"invalid selector: {part!r}; can't understand it")
        if found["field"] not in known:
            raise bad_request(f"field label not supported: {found['field']}")
        value = re.sub(r"\\(.)", r"\1", found["value"])
        terms.append((found["field"], value, found["op"] != "!="))
    return terms


def match_fields(terms: list[tuple[str, str, bool]], known: Mapping[str, tuple[str, ...]]) -> Callable[[Any], bool]:
    """Compile a parsed field selector."""

    def holds(obj: Any) -> bool:
        for name, value, equal in terms:
            at = obj
            for step in known[name]:
                at = at.get(step) if isinstance(at, dict) else None
            if ((at or "") == value) != equal:
                return False
        return True

    return holds

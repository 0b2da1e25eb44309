"""Label and field selectors, as in `kubectl get -l` and `--field-selector`.

Label selectors are equality based (`a=b`, `a==b`, `a!=b`) and set based (`a in (b,c)`, `a notin (b)`, `a`, `!a`, `a>1`,
`a<1`), joined by commas that all must hold (Kubernetes documentation, "Labels and Selectors"; pkg/labels). Field
selectors know `metadata.name` and `metadata.namespace`, and for some resources more fields (`registry`); pkg/fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tink.kubeapi.apiserver.errors import StatusError, bad_request
from tink.kubeapi.schema import meta, quote

Labels = Mapping[str, str]
Match = Callable[[Labels], bool]
Term = tuple[str, str, bool]
"""A term of a field selector: field, value, whether they must be equal."""

_KEY = r"[^ \t\r\n=!(),<>]+"
_REQUIREMENT = re.compile(
    rf"""\s*(?:
        !\s*(?P<absent>{_KEY})
        | (?P<key>{_KEY}) (?:
            \s*(?P<operator>==|!=|=|<|>)\s*(?P<value>{_KEY})?
            | \s+(?P<set>in|notin)\s*\((?P<values>[^=!()<>]*)\)
        )?
    )\s*(?P<more>,|$)""",
    re.VERBOSE,
)
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


def parse_labels(text: str) -> Match | None:
    """Compile a label selector; None when it selects everything. Raises StatusError (400) when it cannot be parsed."""
    if not text.strip():
        return None
    requirements = list(_requirements(text))
    return lambda labels: all(holds(labels) for holds in requirements)


def _requirements(text: str) -> Iterator[Match]:
    at = 0
    while True:
        found = _REQUIREMENT.match(text, at)
        if found is None:
            raise bad_request(f"unable to parse the label selector {quote(text)} at {quote(text[at:])}")
        yield _requirement(found)
        at = found.end()
        if not found["more"]:
            return


def _requirement(found: re.Match[str]) -> Match:
    key, operator = found["absent"] or found["key"], found["operator"] or found["set"]
    values = frozenset(map(str.strip, (found["values"] or "").split(",")))
    value = found["value"] or ""
    if operator in ("<", ">") and not _INTEGER.fullmatch(value):
        raise _wrong(value, "for 'Gt', 'Lt' operators, the value must be an integer")
    if wrong := meta.wrong_keys(key):
        raise _wrong(key, "; ".join(wrong))
    for given in sorted(values) if found["set"] else [value]:
        if wrong := meta.wrong_values(given):
            raise _wrong(given, "; ".join(wrong))
    if operator in ("<", ">"):
        return _ordered(key, operator, int(value))
    if operator is None:
        return requirement(key, "DoesNotExist" if found["absent"] else "Exists", ())
    return requirement(key, "NotIn" if operator in ("notin", "!=") else "In", values if found["set"] else [value])


def requirement(key: str, operator: str, values: Iterable[str]) -> Match:
    """Compile a LabelSelectorRequirement."""
    wanted = frozenset(values)
    match operator:
        case "In":
            return lambda labels: labels.get(key) in wanted
        case "NotIn":
            return lambda labels: labels.get(key) not in wanted
        case "Exists":
            return lambda labels: key in labels
        case _:
            return lambda labels: key not in labels


def _wrong(value: str, why: str) -> StatusError:
    return bad_request(f"unable to parse the label selector: Invalid value: {quote(value)}: {why}")


def _ordered(key: str, operator: str, bound: int) -> Match:
    def holds(labels: Labels) -> bool:
        value = labels.get(key, "")
        if not _INTEGER.fullmatch(value):
            return False
        return int(value) > bound if operator == ">" else int(value) < bound

    return holds


def labels_of(obj: Mapping[str, Any]) -> Labels:
    """Give the labels of an object."""
    labels: Labels = obj["metadata"].get("labels") or {}
    return labels


_TERM = re.compile(r"(?P<field>.*?)(?P<op>!=|==|=)(?P<value>.*)", re.DOTALL)
_SPECIAL = re.compile(r"\\(.?)|([,=])", re.DOTALL)


def parse_fields(text: str, known: Mapping[str, tuple[str, ...]], *, builtin: bool = False) -> list[Term]:
    """Read a field selector. Raises StatusError (400): it makes no sense, or names a field that cannot be selected."""
    terms = []
    for part in sorted(_split(text)):
        if not part:
            continue
        found = _TERM.fullmatch(part)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        value = _unescape(found["value"])
        if found["field"] not in known:
            raise bad_request(_unknown_field(found["field"], known, builtin))
        terms.append((found["field"], value, found["op"] != "!="))
    return terms


def _unknown_field(name: str, known: Mapping[str, tuple[str, ...]], builtin: bool) -> str:
    """Say that a field cannot be selected: built-in types without fields of their own have words of their own."""
    if builtin and set(known) <= {"metadata.name", "metadata.namespace"}:
        return f'{quote(name)} is not a known field selector: only "metadata.name", "metadata.namespace"'
    return f"field label not supported: {name}"


def _split(text: str) -> list[str]:
    parts, start = [], 0
    escaped = False
    for at, letter in enumerate(text):
        if escaped:
            escaped = False
        elif letter == "\\":
            escaped = True
        elif letter == ",":
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def _unescape(value: str) -> str:
    def one(found: re.Match[str]) -> str:
        if found[2]:
            raise bad_request(f"invalid field selector: unescaped character in value: {found[2]}")
        if found[1] not in ("\\", ",", "="):
            raise bad_request(f"invalid field selector: invalid escape sequence: \\{found[1]}")
        return found[1]

    return _SPECIAL.sub(one, value)


def _written(value: Any) -> str:
    """Write a value as field selectors do; one that is missing is empty."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def match_fields(terms: list[Term], known: Mapping[str, tuple[str, ...]]) -> Callable[[Any], bool]:
    """Compile a parsed field selector."""

    def holds(obj: Any) -> bool:
        for name, value, equal in terms:
            at = obj
            for step in known[name]:
                at = at.get(step) if isinstance(at, dict) else None
            if (_written(at) == value) != equal:
                return False
        return True

    return holds

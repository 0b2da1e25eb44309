"""Label and field selectors, as in `kubectl get -l` and `--field-selector`.

Label selectors are equality based (`a=b`, `a==b`, `a!=b`) and set based (`a in (b,c)`, `a notin (b)`, `a`, `!a`, `a>1`,
`a<1`), joined by commas that all must hold (Kubernetes documentation, "Labels and Selectors"). They are read sign by
sign, by a parser with the grammar and the words of k8s.io/apimachinery (pkg/labels). Field selectors know
`metadata.name` and `metadata.namespace`, and for some resources more fields (`registry`); pkg/fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tink.apiserver.errors import bad_request
from tink.schema import meta, quote

Labels = Mapping[str, str]
Match = Callable[[Labels], bool]
Term = tuple[str, str, bool]
"""A term of a field selector: field, value, whether they must be equal."""

_TOKEN = re.compile(r"[ \t\r\n]*(?:(?P<special>==|!=|[=!(),<>])|(?P<word>[^ \t\r\n=!(),<>]+)|$)")
_OPERATORS = "in, notin, =, ==, !=, gt, lt"
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


class _SelectorError(ValueError):
    """The selector breaks the grammar; the message is Kubernetes'."""


class _Tokens:
    """The tokens of a label selector; the end is "" again and again. `in` and `notin` are words like others."""

    def __init__(self, text: str) -> None:
        self._found = list(self._scan(text))
        self._at = 0

    @staticmethod
    def _scan(text: str) -> Iterator[tuple[str, bool]]:
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None or not (found["special"] or found["word"]):
                return
            yield (found["special"] or found["word"]), found["word"] is not None
            at = found.end()

    def look(self) -> tuple[str, bool]:
        """Give the next token and whether it is a word; it stays."""
        return self._found[self._at] if self._at < len(self._found) else ("", False)

    def take(self) -> tuple[str, bool]:
        """Give the next token and whether it is a word."""
        found = self.look()
        self._at += 1
        return found


def parse_labels(text: str) -> Match | None:
    """Compile a label selector; None when it selects everything. Raises StatusError (400) when it cannot be parsed."""
    if not text:
        return None
    try:
        requirements = list(_requirements(_Tokens(text)))
    except _SelectorError as error:
        raise bad_request(str(error)) from error
    if not requirements:
        return None
    return lambda labels: all(holds(labels) for holds in requirements)


def _requirements(tokens: _Tokens) -> Iterator[Match]:
    while True:
        sign, word = tokens.look()
        if not sign:
            return
        if not word and sign != "!":
            raise _SelectorError(f"found '{sign}', expected: !, identifier, or 'end of string'")
        try:
            yield _requirement(tokens)
        except _SelectorError as error:
            raise _SelectorError(f"unable to parse requirement: {error}") from error
        sign, _ = tokens.take()
        if not sign:
            return
        if sign != ",":
            raise _SelectorError(f"found '{sign}', expected: ',' or 'end of string'")
        sign, word = tokens.look()
        if not word and sign != "!":
            raise _SelectorError(f"found '{sign}', expected: identifier after ','")


def _requirement(tokens: _Tokens) -> Match:
    key, word = tokens.take()
    absent = key == "!" and not word
    if absent:
        key, word = tokens.take()
    if not word:
        raise _SelectorError(f"found '{key}', expected: identifier")
    if wrong := meta.wrong_keys(key):
        raise _SelectorError(f"<nil>: Invalid value: {quote(key)}: {'; '.join(wrong)}")
    if absent:
        return lambda labels: key not in labels
    sign, _ = tokens.look()
    if sign in ("", ","):
        return lambda labels: key in labels
    operator, _ = tokens.take()
    match operator:
        case "in" | "notin":
            values = frozenset(_values(tokens))
            _check_values(key, sorted(values))
            if operator == "in":
                return lambda labels: labels.get(key) in values
            return lambda labels: labels.get(key) not in values
        case "=" | "==" | "!=" | "<" | ">":
            return _comparison(key, operator, _value(tokens))
    raise _SelectorError(f"found '{operator}', expected: {_OPERATORS}")


def _comparison(key: str, operator: str, value: str) -> Match:
    if operator in "<>":
        if not _INTEGER.fullmatch(value):
            why = "for 'Gt', 'Lt' operators, the value must be an integer"
            raise _SelectorError(f"values[0]: Invalid value: {quote(value)}: {why}")
        return _ordered(key, operator, int(value))
    _check_values(key, [value])
    if operator == "!=":
        return lambda labels: labels.get(key) != value
    return lambda labels: labels.get(key) == value


def _value(tokens: _Tokens) -> str:
    sign, _ = tokens.look()
    if sign in ("", ","):
        return ""
    sign, word = tokens.take()
    if not word:
        raise _SelectorError(f"found '{sign}', expected: identifier")
    return sign


def _values(tokens: _Tokens) -> Iterator[str]:
    """Read `(a,b,)`: between, before and after commas the empty value may stand."""
    sign, _ = tokens.take()
    if sign != "(":
        raise _SelectorError(f"found '{sign}' expected: '('")
    sign, word = tokens.look()
    if not word and sign not in (",", ")"):
        raise _SelectorError(f"found '{sign}', expected: ',', ')' or identifier")
    before = ","
    while True:
        sign, word = tokens.take()
        if word:
            yield sign
            if (after := tokens.look()[0]) not in (",", ")"):
                raise _SelectorError(f"found '{after}', expected: ',' or ')'")
        elif sign in (",", ")"):
            if before == ",":
                yield ""
            if sign == ")":
                return
        else:
            raise _SelectorError(f"found '{sign}', expected: ',', or identifier")
        before = "" if word else sign


def _check_values(key: str, values: list[str]) -> None:
    for index, value in enumerate(values):
        if wrong := meta.wrong_values(value):
            raise _SelectorError(f"values[{index}][{key}]: Invalid value: {quote(value)}: {'; '.join(wrong)}")


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

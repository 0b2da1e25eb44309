"""A second reader of YAML as kubectl reads it: PyYAML's constructor with go-yaml v2's implicit types, without limits.

The tests compare `tink.api.yaml` with it.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

_BOOLEANS = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"^[-+]?(0b[01_]+|0o?[0-7_]*|0x[0-9a-fA-F_]+|[1-9][0-9_]*)$")
_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_NOT_FINITE = re.compile(r"^([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$")


class RefusedError(ValueError):
    """Text that kubectl does not read."""


class _Loader(yaml.CSafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own protocol: a class attribute


def _integer(loader: yaml.CSafeLoader, node: yaml.ScalarNode) -> int:
    digits = str(loader.construct_scalar(node)).replace("_", "").lower()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    if digits.startswith("0") and len(digits) > 1 and digits[1] in "01234567":
        digits = "0o" + digits[1:]
    return sign * int(digits, 0)


def _float(loader: yaml.CSafeLoader, node: yaml.ScalarNode) -> float | int:
    text = str(loader.construct_scalar(node))
    if _NOT_FINITE.match(text) or math.isinf(number := float(text)):
        raise RefusedError(text)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _bool(loader: yaml.CSafeLoader, node: yaml.ScalarNode) -> bool:
    return _BOOLEANS[str(loader.construct_scalar(node))]


def _mapping(loader: yaml.CSafeLoader, node: yaml.MappingNode) -> dict[str, Any]:
    own = {id(key) for key, _ in node.value}
    loader.flatten_mapping(node)  # puts what `<<` brings in front
    mapping: dict[str, Any] = {}
    given: set[str] = set()
    for key_node, value_node in node.value:
        key = _key(loader.construct_object(key_node, deep=True))
        if key in given:
            raise RefusedError(key)
        if id(key_node) in own:
            given.add(key)
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


def _key(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


for _tag, _pattern, _first in (
    ("bool", re.compile(f"^({'|'.join(_BOOLEANS)})$"), "yYnNtTfFoO"),
    ("null", re.compile("^(~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("int", _INTEGER, "-+0123456789"),
    ("float", _FLOAT, "-+0123456789."),
    ("float", _NOT_FINITE, "-+."),
    ("merge", re.compile("^<<$"), "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, list(_first))
for _tag, _construct in (("int", _integer), ("float", _float), ("bool", _bool), ("map", _mapping)):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _construct)


def documents(text: str) -> list[Any]:
    """Return the documents of a text. Raises RefusedError."""
    try:
        return list(yaml.load_all(text, Loader=_Loader))
    except (yaml.YAMLError, ValueError, RecursionError, KeyError) as error:
        raise RefusedError(str(error)) from error

"""YAML as Kubernetes reads it: the scalar rules of sigs.k8s.io/yaml (go-yaml v2), not those of PyYAML.

The difference is not academic: PyYAML reads the unquoted MAC address 52:54:00:12:34:56 as a number in base 60, and
2001-01-01 as a date. Here both are strings, as for kubectl, and a manifest means the same wherever it is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tink.api.v1alpha2 import Raw

MAX_BYTES = 3 * 1024 * 1024
"""The size of a request body that Kubernetes' API takes; larger manifests could not be applied."""

_MAX_DEPTH = 100
_MAX_NODES = 500_000

_BOOLEANS = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"), False),
}
_NULLS = ("", "~", "null", "Null", "NULL")
_INTEGER = re.compile(r"^[-+]?(0b[01_]+|0o?[0-7_]*|0x[0-9a-fA-F_]+|[1-9][0-9_]*)$")
_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_NOT_FINITE = re.compile(r"^([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$")
_NUMERIC = frozenset("-+.0123456789")


class YamlError(ValueError):
    """Text that is not YAML, or not a Kubernetes object; the message says where."""


class _Loader(yaml.CSafeLoader):
    """go-yaml v2's implicit types instead of PyYAML's."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own protocol: a class attribute


def _integer(text: str) -> int:
    digits = text.replace("_", "").lower()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    if digits.startswith("0") and len(digits) > 1 and digits[1] in "01234567":
        digits = "0o" + digits[1:]
    return sign * int(digits, 0)


def _construct_integer(loader: yaml.CSafeLoader, node: yaml.ScalarNode) -> int:
    return _integer(str(loader.construct_scalar(node)))


def _construct_float(loader: yaml.CSafeLoader, node: yaml.ScalarNode) -> float | int:
    try:
        return _float(str(loader.construct_scalar(node)))
    except ValueError as error:
        raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error


def _float(text: str) -> float | int:
    if _NOT_FINITE.match(text):
        raise ValueError(f"{text} has no place in JSON")
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large a number")
    # JSON knows one kind of number: 1e3 is the integer 1000 for Kubernetes.
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def plain_scalar(text: str) -> Any:
    """What a scalar without quotes and without a tag means: a boolean, null, a number, or the text itself.

    Raises ValueError for what JSON can't say, such as .inf.
    """
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text in _NULLS:
        return None
    if text[0] not in _NUMERIC:
        return text
    if _INTEGER.match(text):
        return _integer(text)
    return _float(text) if _FLOAT.match(text) or _NOT_FINITE.match(text) else text


def _construct_bool(loader: yaml.CSafeLoader, node: yaml.ScalarNode) -> bool:
    text = str(loader.construct_scalar(node))
    if text not in _BOOLEANS:
        raise yaml.constructor.ConstructorError(None, None, f"{text!r} is no boolean", node.start_mark)
    return _BOOLEANS[text]


def _construct_mapping(loader: yaml.CSafeLoader, node: yaml.MappingNode) -> dict[str, Any]:
    own = {id(key_node) for key_node, _ in node.value}
    loader.flatten_mapping(node)  # puts what `<<` brings in front
    mapping: dict[str, Any] = {}
    given: set[str] = set()
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        key = _key(key)
        if key in given:
            repeated = getattr(loader, "repeated", None)
            if repeated is None:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            repeated.append((key, key_node.start_mark.line + 1))
        if id(key_node) in own:
            given.add(key)
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


def _key(value: Any) -> str:
    """JSON's keys are strings; go-yaml writes others as JSON would."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _first(pattern: str) -> list[str]:
    return list(pattern)


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(f"^({'|'.join(_BOOLEANS)})$"), _first("yYnNtTfFoO"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("^(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, _first("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, _first("-+0123456789."))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NOT_FINITE, _first("-+."))
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("^<<$"), ["<"])
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Loader.add_constructor("tag:yaml.org,2002:bool", _construct_bool)
_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


def check_depth(text: str | bytes) -> None:
    """Refuse deep nesting before anything recurses over it: PyYAML's composer would overrun the stack of C."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise YamlError(f"nested deeper than {_MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_size(document: Any) -> None:
    """Refuse what a few bytes of aliases blow up to (the "billion laughs"), and what contains itself."""
    budget = _MAX_NODES
    level = [document]
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            budget -= len(children)
            if budget < 0:
                raise YamlError(f"more than {_MAX_NODES} values, counting what aliases repeat")
            below += children
        if not below:
            return
        level = below
    raise YamlError(f"nested deeper than {_MAX_DEPTH} levels, counting what aliases repeat")


def document_and_repeated(text: str | bytes) -> tuple[Any, list[tuple[str, int]]]:
    """The first document of a YAML text, and the keys that stand in it twice, with their lines. Raises YamlError.

    The last value of a key is taken, as Kubernetes does when it is not told to be strict.
    """
    if len(text) > MAX_BYTES:
        raise YamlError(f"larger than {MAX_BYTES} bytes")
    repeated: list[tuple[str, int]] = []
    try:
        check_depth(text)
        loader = _Loader(text)
        loader.repeated = repeated  # type: ignore[attr-defined]
        try:
            document = loader.get_data() if loader.check_data() else None  # type: ignore[no-untyped-call]
        finally:
            loader.dispose()
        _check_size(document)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlError(f"not YAML: {error}") from error
    return document, repeated


def documents(text: str | bytes) -> Iterator[Any]:
    """The documents of a YAML (or JSON) text as JSON-like values. Raises YamlError."""
    if len(text) > MAX_BYTES:
        raise YamlError(f"larger than {MAX_BYTES} bytes")
    try:
        check_depth(text)
        for document in yaml.load_all(text, Loader=_Loader):
            _check_size(document)
            yield document
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlError(f"not YAML: {error}") from error


def objects(text: str | bytes) -> list[Raw]:
    """The Kubernetes objects in a YAML text; empty documents are passed over, Lists taken apart. Raises YamlError."""
    found: list[Raw] = []
    for number, document in enumerate(documents(text), start=1):
        if document is None:
            continue
        if not isinstance(document, dict) or not all(isinstance(document.get(k), str) for k in ("apiVersion", "kind")):
            raise YamlError(f"document {number} is no Kubernetes object: apiVersion or kind is missing")
        if document["kind"] == "List":
            found.extend(document.get("items") or [])
        else:
            found.append(document)
    return found

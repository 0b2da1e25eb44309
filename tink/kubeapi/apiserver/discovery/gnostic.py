"""OpenAPI 2 as protobuf, which kubectl up to 1.26 requires (google/gnostic, openapiv2/OpenAPIv2.proto). Pure.

Each message is a table from the keys of the JSON document to field numbers. Values of the type `Any` (vendor
extensions, enums, defaults) are written as YAML, which includes JSON. Parts of a document are encoded one by one, and
`document` joins them: the fields of a protobuf message may come in any order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from tink.kubeapi.apiserver.serializer import delimited, varint
from tink.kubeapi.schema.shapes import Raw

Encode = Callable[[int, Any], bytes]


def _text(number: int, value: Any) -> bytes:
    raw = str(value).encode("utf-8", "surrogatepass")
    return delimited(number, raw) if raw else b""


def _texts(number: int, value: Any) -> bytes:
    return b"".join(delimited(number, str(item).encode("utf-8", "surrogatepass")) for item in value)


def _number(number: int, value: Any) -> bytes:
    return varint(number << 3) + varint(int(value)) if value else b""


def _double(number: int, value: Any) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<d", value) if value else b""


def _any(number: int, value: Any) -> bytes:
    """Encode a value as the message Any: its field `yaml`."""
    return delimited(number, delimited(2, orjson.dumps(value) + b"\n"))


def _schema(number: int, value: Any) -> bytes:
    return delimited(number, schema(value))


def _schemas(number: int, value: Any) -> bytes:
    return b"".join(_schema(number, item) for item in value)


def _additional(number: int, value: Any) -> bytes:
    # The only message in which false differs from a missing value: it is one of two alternatives.
    return delimited(number, varint(2 << 3) + bytes([value]) if isinstance(value, bool) else _schema(1, value))


def _properties(number: int, value: Any) -> bytes:
    return delimited(number, b"".join(named(1, name, schema(part)) for name, part in value.items()))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


_SCHEMA: Mapping[str, tuple[int, Encode]] = {
    key: (number, encode)
    for encode, numbers in (
        (_text, {"$ref": 1, "format": 2, "title": 3, "description": 4, "pattern": 13}),
        (_any, {"default": 5, "example": 30}),
        (_double, {"multipleOf": 6, "maximum": 7, "minimum": 9}),
        (_number, {"exclusiveMaximum": 8, "exclusiveMinimum": 10, "uniqueItems": 16}),
        (_number, {"maxLength": 11, "minLength": 12, "maxItems": 14, "minItems": 15}),
        (_number, {"maxProperties": 17, "minProperties": 18}),
        (_texts, {"required": 19}),
        (lambda number, value: b"".join(_any(number, item) for item in value), {"enum": 20}),
        (_additional, {"additionalProperties": 21}),
        (lambda number, value: delimited(number, _texts(1, _listed(value))), {"type": 22}),
        (lambda number, value: delimited(number, _schemas(1, _listed(value))), {"items": 23}),
        (_schemas, {"allOf": 24}),
        (_properties, {"properties": 25}),
    )
    for key, number in numbers.items()
}
_PARAMETER: Mapping[str, Mapping[str, tuple[int, Encode]]] = {
    where: {
        key: (number, _schema if key == "schema" else _number if key in ("required", "uniqueItems") else _text)
        for key, number in numbers.items()
    }
    for where, numbers in {
        "body": {"description": 1, "name": 2, "in": 3, "required": 4, "schema": 5},
        "query": {"required": 1, "in": 2, "description": 3, "name": 4, "type": 6, "uniqueItems": 20},
        "path": {"required": 1, "in": 2, "description": 3, "name": 4, "type": 5, "uniqueItems": 19},
    }.items()
}
_SECURITY = ("type", "name", "in", "description")
_METHODS = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}


def named(number: int, name: str, value: bytes) -> bytes:
    """Encode an entry of a map, as all Named... messages are: name and value."""
    return delimited(number, _text(1, name) + delimited(2, value))


def _extensions(number: int, of: Raw) -> bytes:
    return b"".join(
        delimited(number, _text(1, key) + _any(2, value)) for key, value in of.items() if key.startswith("x-")
    )


def _fields(of: Raw, table: Mapping[str, tuple[int, Encode]]) -> bytes:
    return b"".join([table[key][1](table[key][0], value) for key, value in of.items() if key in table])


def schema(value: Raw) -> bytes:
    """Encode the message Schema."""
    return _fields(value, _SCHEMA) + _extensions(31, value)


def _parameter_item(value: Raw) -> bytes:
    fields = _fields(value, _PARAMETER[value["in"]])
    if value["in"] == "body":
        return delimited(1, delimited(1, fields))
    return delimited(1, delimited(2, delimited(3 if value["in"] == "query" else 4, fields)))


def _operation(value: Raw) -> bytes:
    answers = b""
    for code, answer in value["responses"].items():
        content = delimited(2, _schema(1, answer["schema"])) if "schema" in answer else b""
        answers += named(1, code, delimited(1, _text(1, answer["description"]) + content))
    return b"".join(
        (
            _texts(1, value["tags"]),
            _text(3, value["description"]),
            _text(5, value["operationId"]),
            _texts(6, value["produces"]),
            _texts(7, value["consumes"]),
            *(delimited(8, _parameter_item(parameter)) for parameter in value.get("parameters", [])),
            delimited(9, answers),
            _texts(10, value["schemes"]),
            _extensions(13, value),
        )
    )


def path_item(value: Raw) -> bytes:
    """Encode the message PathItem."""
    operations = [
        delimited(number, _operation(value[method])) for method, number in _METHODS.items() if method in value
    ]
    parameters = [delimited(9, _parameter_item(parameter)) for parameter in value["parameters"]]
    return b"".join((*operations, *parameters))


def document(head: Raw, paths: Iterable[tuple[str, bytes]], definitions: Iterable[tuple[str, bytes]]) -> bytes:
    """Join the message Document. `head` holds title, version and the name of the bearer token's scheme."""
    info = _text(1, head["info"]["title"]) + _text(2, head["info"]["version"])
    security = b"".join(
        named(1, name, delimited(2, b"".join(_text(number, one[key]) for number, key in enumerate(_SECURITY, 1))))
        for name, one in head["securityDefinitions"].items()
    )
    needed = b"".join(delimited(12, b"".join(named(1, name, b"") for name in one)) for one in head["security"])
    return b"".join(
        (
            _text(1, head["swagger"]),
            delimited(2, info),
            delimited(8, b"".join([named(2, path, item) for path, item in paths])),
            delimited(9, b"".join([named(1, name, one) for name, one in definitions])),
            needed,
            delimited(13, security),
        )
    )

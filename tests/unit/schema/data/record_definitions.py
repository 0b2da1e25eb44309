"""Asks a real kube-apiserver what it says to right and wrong CustomResourceDefinitions, and writes it down.

    python -m tests.record definitions

Everything but the definitions that an update starts from is a dry run. `test_definitions_recorded.py` compares.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import recordings
from tests.peer import DEFINITIONS, Peer
from tests.waiting import wait_until

Raw = dict[str, Any]


def base(**schema: Any) -> Raw:
    """Give a right definition; `schema` are keywords of its root."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.org"},
        "spec": {
            "group": "example.org",
            "scope": "Cluster",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [version("v1", storage=True, **schema)],
        },
    }


def version(name: str, *, storage: bool = False, **schema: Any) -> Raw:
    """Give one version of a definition."""
    return {
        "name": name,
        "served": True,
        "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object", **schema}},
    }


def put(obj: Any, path: str, value: Any) -> Any:
    """Give a copy with the value at a path; `...` takes the field away."""
    made = copy.deepcopy(obj)
    node = made
    steps = [int(step) if step.isdigit() else step for step in path.split("/")]
    for step in steps[:-1]:
        node = node[step] if isinstance(node, list) else node.setdefault(step, {})
    if value is ...:
        del node[steps[-1]]
    elif isinstance(node, list) and steps[-1] == len(node):
        node.append(value)
    else:
        node[steps[-1]] = value
    return made


STRING: Raw = {"type": "string"}
INTEGER: Raw = {"type": "integer"}


def ruled(schema: Raw, *rules: Raw | str, **more: Any) -> Raw:
    """Give a schema with rules."""
    listed = [{"rule": rule} if isinstance(rule, str) else rule for rule in rules]
    return {**schema, "x-kubernetes-validations": listed, **more}


def obj(**properties: Raw) -> Raw:
    """Give the schema of an object."""
    return {"type": "object", "properties": properties}


def items(of: Raw, **more: Any) -> Raw:
    """Give the schema of a list."""
    return {"type": "array", "items": of, **more}


def at(**properties: Any) -> Raw:
    """Give a definition with properties under the root."""
    return base(properties=properties)


def _spec() -> Iterator[tuple[str, Raw]]:
    ok = at(spec=obj(a=STRING))
    yield "right", ok
    yield "no group", put(ok, "spec/group", ...)
    yield "group without a dot", put(put(ok, "spec/group", "example"), "metadata/name", "widgets.example")
    yield "group in capitals", put(ok, "spec/group", "Example.org")
    yield "other name", put(ok, "metadata/name", "gadgets.example.org")
    yield "no name", put(ok, "metadata", {})
    yield "no scope", put(ok, "spec/scope", ...)
    yield "unknown scope", put(ok, "spec/scope", "Galaxy")
    yield "no versions", put(ok, "spec/versions", [])
    yield "no spec", put(ok, "spec", ...)
    yield "preserveUnknownFields", put(ok, "spec/preserveUnknownFields", True)
    yield "preserveUnknownFields false", put(ok, "spec/preserveUnknownFields", False)
    kube = put(put(ok, "spec/group", "stuff.k8s.io"), "metadata/name", "widgets.stuff.k8s.io")
    note = "metadata/annotations"
    yield "protected group", kube
    yield "protected group approved", put(kube, note, {"api-approved.kubernetes.io": "https://github.com/k/k/1"})
    yield "protected group unapproved", put(kube, note, {"api-approved.kubernetes.io": "unapproved, a test"})
    yield "protected group wrongly approved", put(kube, note, {"api-approved.kubernetes.io": "yes"})
    kube = put(put(ok, "spec/group", "stuff.kubernetes.io"), "metadata/name", "widgets.stuff.kubernetes.io")
    yield "protected kubernetes.io group", kube
    yield "bad label", put(ok, "metadata/labels", {"a b": "c"})


def _names() -> Iterator[tuple[str, Raw]]:
    ok = at(spec=obj(a=STRING))
    yield "plural in capitals", put(ok, "spec/names/plural", "Widgets")
    yield "no plural", put(ok, "spec/names/plural", ...)
    yield "no kind", put(ok, "spec/names/kind", ...)
    yield "no names", put(ok, "spec/names", ...)
    yield "kind with a dash at the end", put(ok, "spec/names/kind", "Widget-")
    yield "kind starts with a digit", put(ok, "spec/names/kind", "9Widget")
    yield "singular wrong", put(ok, "spec/names/singular", "wid.get")
    yield "listKind is kind", put(ok, "spec/names/listKind", "Widget")
    yield "listKind wrong", put(ok, "spec/names/listKind", "Wid_get")
    yield "short names wrong", put(ok, "spec/names/shortNames", ["ok", "Not", ""])
    yield "categories wrong", put(ok, "spec/names/categories", ["all", "A", "x" * 64])


def _versions() -> Iterator[tuple[str, Raw]]:
    ok = at(spec=obj(a=STRING))
    other = at(spec=obj(a=INTEGER))["spec"]["versions"][0]
    yield "version name wrong", put(ok, "spec/versions/0/name", "1.0")
    yield "no version name", put(ok, "spec/versions/0/name", ...)
    yield "no storage", put(ok, "spec/versions/0/storage", False)
    two = put(ok, "spec/versions/1", {**other, "name": "v2"})
    yield "two storage versions", two
    yield "two right versions", put(two, "spec/versions/1/storage", False)
    yield "same names", put(put(two, "spec/versions/1/storage", False), "spec/versions/1/name", "v1")
    same = put(ok, "spec/versions/1", {**ok["spec"]["versions"][0], "name": "v2", "storage": False})
    yield "same schemas", same
    yield (
        "same schemas are wrong",
        put(
            put(same, "spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/a", {}),
            "spec/versions/1/schema/openAPIV3Schema/properties/spec/properties/a",
            {},
        ),
    )
    yield "no schema", put(ok, "spec/versions/0/schema", ...)
    yield "empty schema", put(ok, "spec/versions/0/schema", {})
    yield "one of two has no schema", put(two, "spec/versions/1/schema", ...)
    yield "warning without deprecation", put(ok, "spec/versions/0/deprecationWarning", "do not")
    warned = put(ok, "spec/versions/0/deprecated", True)
    yield "deprecated", warned
    yield "empty warning", put(warned, "spec/versions/0/deprecationWarning", "")
    yield "long warning", put(warned, "spec/versions/0/deprecationWarning", "x" * 257)
    yield "warning with a control", put(warned, "spec/versions/0/deprecationWarning", "a\x07b")
    yield "warning with a line break", put(warned, "spec/versions/0/deprecationWarning", "ä\nb")
    for what, column in {
        "right column": {"name": "A", "type": "string", "jsonPath": ".spec.a"},
        "column without a name": {"type": "string", "jsonPath": ".spec.a"},
        "column without a type": {"name": "A", "jsonPath": ".spec.a"},
        "column of unknown type": {"name": "A", "type": "object", "jsonPath": ".spec.a"},
        "column of unknown format": {"name": "A", "type": "string", "format": "ipv4", "jsonPath": ".spec.a"},
        "column with a format": {"name": "A", "type": "date", "format": "date-time", "jsonPath": ".spec.a"},
        "column without a path": {"name": "A", "type": "string"},
        "column whose path lacks the dot": {"name": "A", "type": "string", "jsonPath": "spec.a"},
        "column whose path is a dot": {"name": "A", "type": "string", "jsonPath": "."},
        "column with a filter": {"name": "A", "type": "string", "jsonPath": ".spec.a[?(@.b=='c')].d"},
    }.items():
        yield what, put(ok, "spec/versions/0/additionalPrinterColumns", [column])
    scale = "spec/versions/0/subresources/scale"
    for what, paths in {
        "right scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"},
        "scale without paths": {},
        "scale outside of spec": {"specReplicasPath": ".status.n", "statusReplicasPath": ".spec.n"},
        "scale paths lack the dot": {"specReplicasPath": "spec.n", "statusReplicasPath": "status.n"},
        "scale selector": {
            "specReplicasPath": ".spec.n",
            "statusReplicasPath": ".status.n",
            "labelSelectorPath": ".metadata.labels",
        },
        "scale selector lacks the dot": {
            "specReplicasPath": ".spec.n",
            "statusReplicasPath": ".status.n",
            "labelSelectorPath": "status.s",
        },
    }.items():
        yield what, put(ok, scale, paths)
    selectable = "spec/versions/0/selectableFields"
    wide = at(
        spec=obj(
            a=STRING,
            e={"type": "string", "enum": ["x"]},
            d={"type": "string", "format": "date"},
            n=INTEGER,
            f={"type": "number"},
            b={"type": "boolean"},
            m={"type": "object", "additionalProperties": STRING},
            **{f"s{i}": STRING for i in range(9)},
        ),
        metadata={"type": "object", "properties": {"name": STRING}},
    )
    for what, paths in {
        "right selectable fields": [".spec.a", ".spec.e", ".spec.d", ".spec.n", ".spec.b"],
        "selectable field without a path": [""],
        "selectable field unknown": [".spec.z"],
        "selectable field below a scalar": [".spec.a.b"],
        "selectable field without the dot": ["spec.a"],
        "selectable number": [".spec.f"],
        "selectable object": [".spec"],
        "selectable map": [".spec.m.x"],
        "selectable field in brackets": [".spec.m['x']"],
        "selectable metadata": [".metadata.name"],
        "selectable twice": [".spec.a", ".spec.n", ".spec.a"],
        "selectable end": [".spec."],
        "selectable too many": [f".spec.s{i}" for i in range(9)],
        "selectable eight": [f".spec.s{i}" for i in range(8)],
    }.items():
        yield what, put(wide, selectable, [{"jsonPath": path} for path in paths])
    yield (
        "selectable without a schema",
        put(put(ok, "spec/versions/0/schema", ...), selectable, [{"jsonPath": ".spec.a"}]),
    )


def _conversion() -> Iterator[tuple[str, Raw]]:
    ok = at(spec=obj(a=STRING))
    url = {"url": "https://example.org/convert"}
    service = {"service": {"namespace": "ns", "name": "svc", "path": "/convert"}}
    yield "conversion None", put(ok, "spec/conversion", {"strategy": "None"})
    yield "conversion unknown", put(ok, "spec/conversion", {"strategy": "Magic"})
    yield "conversion without strategy", put(ok, "spec/conversion", {})
    yield (
        "conversion None with webhook",
        put(
            ok,
            "spec/conversion",
            {"strategy": "None", "webhook": {"clientConfig": url, "conversionReviewVersions": ["v1"]}},
        ),
    )
    yield "conversion Webhook alone", put(ok, "spec/conversion", {"strategy": "Webhook"})
    for what, config, reviews in (
        ("webhook by url", url, ["v1"]),
        ("webhook by service", service, ["v1", "v1beta1"]),
        ("webhook without clientConfig", None, ["v1"]),
        ("webhook with neither", {}, ["v1"]),
        ("webhook with both", {**url, **service}, ["v1"]),
        ("webhook by http", {"url": "http://example.org/"}, ["v1"]),
        ("webhook without host", {"url": "https:///x"}, ["v1"]),
        ("webhook with user, query and fragment", {"url": "https://u:p@example.org/?q=1#f"}, ["v1"]),
        ("webhook with bad url", {"url": "https://exa mple.org"}, ["v1"]),
        ("webhook without names", {"service": {}}, ["v1"]),
        ("webhook with bad port", {"service": {"namespace": "a", "name": "b", "port": 0}}, ["v1"]),
        ("webhook with large port", {"service": {"namespace": "a", "name": "b", "port": 70000}}, ["v1"]),
        ("webhook with relative path", {"service": {"namespace": "a", "name": "b", "path": "x"}}, ["v1"]),
        ("webhook with empty step", {"service": {"namespace": "a", "name": "b", "path": "/x//y"}}, ["v1"]),
        ("webhook with bad step", {"service": {"namespace": "a", "name": "b", "path": "/X_/y/"}}, ["v1"]),
        ("webhook with slashes", {"service": {"namespace": "a", "name": "b", "path": "//"}}, ["v1"]),
        ("webhook without reviews", url, []),
        ("webhook with unknown reviews", url, ["v3"]),
        ("webhook with reviews twice", url, ["v1", "v1"]),
        ("webhook with bad reviews", url, ["1", "v1"]),
        ("webhook with bad bundle", {**url, "caBundle": "bm90IGEgY2VydGlmaWNhdGU="}, ["v1"]),
    ):
        webhook: Raw = {"conversionReviewVersions": reviews}
        if config is not None:
            webhook["clientConfig"] = config
        yield what, put(ok, "spec/conversion", {"strategy": "Webhook", "webhook": webhook})


def _structural() -> Iterator[tuple[str, Raw]]:
    either = [{"type": "integer"}, {"type": "string"}]
    for what, properties in {
        "field without a type": {"a": {}},
        "item without a type": {"a": items({})},
        "list without items": {"a": {"type": "array"}},
        "unknown type": {"a": {"type": "text"}},
        "type null": {"a": {"type": "null"}},
        "int or string": {"a": {"x-kubernetes-int-or-string": True}},
        "int or string with a type": {"a": {"type": "integer", "x-kubernetes-int-or-string": True}},
        "int or string by anyOf": {"a": {"x-kubernetes-int-or-string": True, "anyOf": either}},
        "int or string by allOf": {
            "a": {"x-kubernetes-int-or-string": True, "allOf": [{"anyOf": either}, {"pattern": "^a"}]}
        },
        "int or string the other way": {"a": {"x-kubernetes-int-or-string": True, "anyOf": either[::-1]}},
        "int or string that keeps": {
            "a": {"x-kubernetes-int-or-string": True, "x-kubernetes-preserve-unknown-fields": True}
        },
        "int or string embedded": {
            "a": {"x-kubernetes-int-or-string": True, "x-kubernetes-embedded-resource": True, "type": "object"}
        },
        "keeps unknown": {"a": {"x-kubernetes-preserve-unknown-fields": True}},
        "keeps unknown false": {"a": {"type": "object", "x-kubernetes-preserve-unknown-fields": False}},
        "embedded": {
            "a": {
                "type": "object",
                "x-kubernetes-embedded-resource": True,
                "x-kubernetes-preserve-unknown-fields": True,
            }
        },
        "embedded without properties": {"a": {"type": "object", "x-kubernetes-embedded-resource": True}},
        "embedded without a type": {
            "a": {"x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True}
        },
        "embedded list": {"a": items(STRING, **{"x-kubernetes-embedded-resource": True})},
        "embedded map": {
            "a": {"type": "object", "additionalProperties": STRING, "x-kubernetes-embedded-resource": True}
        },
        "embedded with odd kinds": {
            "a": {
                "type": "object",
                "x-kubernetes-embedded-resource": True,
                "properties": {"kind": INTEGER, "apiVersion": INTEGER, "metadata": STRING},
            }
        },
        "embedded in metadata": {
            "a": {
                "type": "object",
                "x-kubernetes-embedded-resource": True,
                "properties": {
                    "metadata": {
                        "type": "object",
                        "properties": {
                            "x": {
                                "type": "object",
                                "x-kubernetes-embedded-resource": True,
                                "x-kubernetes-preserve-unknown-fields": True,
                            }
                        },
                    }
                },
            }
        },
        "properties and additionalProperties": {
            "a": {"type": "object", "properties": {"b": STRING}, "additionalProperties": STRING}
        },
        "properties and additionalProperties true": {
            "a": {"type": "object", "properties": {"b": STRING}, "additionalProperties": True}
        },
        "properties and additionalProperties false": {
            "a": {"type": "object", "properties": {"b": STRING}, "additionalProperties": False}
        },
        "uniqueItems": {"a": items(STRING, uniqueItems=True)},
        "bad pattern": {"a": {"type": "string", "pattern": "("}},
        "bad pattern in anyOf": {"a": {"type": "string", "anyOf": [{"pattern": "["}]}},
        "lookahead": {"a": {"type": "string", "pattern": "^(?!x)"}},
        "reference": {"a": {"type": "object", "$ref": "#/x"}},
        "id": {"a": {"type": "object", "id": "x"}},
        "definitions": {"a": {"type": "object", "definitions": {"b": STRING}}},
        "dependencies": {"a": {"type": "object", "dependencies": {"b": ["c"]}}},
        "patternProperties": {"a": {"type": "object", "patternProperties": {"b": STRING}}},
        "additionalItems": {"a": items(STRING, additionalItems=True)},
        "items is a list": {"a": {"type": "array", "items": [STRING]}},
        "types in anyOf": {"a": {"type": "string", "anyOf": [{"type": "string"}, {"nullable": True}]}},
        "words in oneOf": {
            "a": {"type": "string", "oneOf": [{"title": "x", "description": "y", "default": "z"}, {"maxLength": 2}]}
        },
        "additionalProperties in not": {"a": {**obj(b=STRING), "not": {"additionalProperties": STRING}}},
        "extensions in allOf": {
            "a": {
                **items(obj(b=STRING)),
                "allOf": [
                    {
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["b"],
                        "x-kubernetes-map-type": "atomic",
                        "x-kubernetes-int-or-string": True,
                        "x-kubernetes-preserve-unknown-fields": True,
                        "x-kubernetes-embedded-resource": True,
                        "x-kubernetes-validations": [{"rule": "true"}],
                    }
                ],
            }
        },
        "field only in anyOf": {"a": {**obj(b=STRING), "anyOf": [{"properties": {"c": {"minLength": 1}}}]}},
        "field in anyOf": {"a": {**obj(b=STRING), "anyOf": [{"properties": {"b": {"minLength": 1}}}]}},
        "items only in not": {"a": {**obj(b=STRING), "not": {"items": {"minLength": 1}}}},
        "metadata in anyOf": {
            "a": {**obj(metadata={"type": "object"}), "anyOf": [{"properties": {"metadata": {"minProperties": 1}}}]}
        },
        "unknown keyword": {"a": {"type": "string", "readOnly": True}},
        "unknown keyword in items": {"a": items({"type": "string", "readOnly": True})},
        "wrong keyword in items": {"a": items(obj(b={"type": "string", "maxLength": "5"}))},
        "wrong keyword in additionalProperties": {"a": {"type": "object", "additionalProperties": {"type": 5}}},
        "additionalProperties is a string": {"a": {"type": "object", "additionalProperties": "x"}},
        "additionalProperties false in not": {"a": {**obj(b=STRING), "not": {"additionalProperties": False}}},
        "default in embedded labels": {
            "a": {
                "type": "object",
                "x-kubernetes-embedded-resource": True,
                "properties": {
                    "metadata": obj(
                        labels={"type": "object", "additionalProperties": {"type": "string", "default": "x"}}
                    )
                },
            }
        },
        "type is a list": {"a": {"type": ["string", "null"]}},
        "pattern is a number": {"a": {"type": "string", "pattern": 5}},
        "minimum is a string": {"a": {"type": "integer", "minimum": "5"}},
        "maxLength is a float": {"a": {"type": "string", "maxLength": 1.5}},
        "properties is a list": {"a": {"type": "object", "properties": []}},
        "required is a string": {"a": {"type": "object", "required": "b"}},
        "field is a string": {"a": "string"},
        "unknown format": {"a": {"type": "string", "format": "ip"}},
        "known formats": {
            "a": {"type": "string", "format": "date-time"},
            "b": {"type": "integer", "format": "int32"},
            "c": {"type": "number", "format": "double"},
            "d": {"type": "string", "format": "k8s-short-name"},
        },
        "format of another type": {"a": {"type": "integer", "format": "date"}, "b": {**obj(x=STRING), "format": "x"}},
        "negative sizes": {"a": {"type": "string", "maxLength": -1, "minLength": -2}},
        "multipleOf zero": {"a": {"type": "integer", "multipleOf": 0}},
        "type and enum apart": {"a": {"type": "string", "enum": [1, 2]}},
        "required twice": {"a": {**obj(b=STRING), "required": ["b", "b", "c"]}},
    }.items():
        yield what, at(**properties)
    yield "root is a list", put(base(), "spec/versions/0/schema/openAPIV3Schema", {"type": "array", "items": STRING})
    yield "root without a type", put(base(), "spec/versions/0/schema/openAPIV3Schema", {"properties": {"a": STRING}})
    yield "root is empty", put(base(), "spec/versions/0/schema/openAPIV3Schema", {})
    yield "root nullable", base(nullable=True)
    yield "root map", base(additionalProperties=STRING)
    yield "root keeps unknown", base(**{"x-kubernetes-preserve-unknown-fields": True})
    yield "root with allOf", base(properties={"a": STRING}, allOf=[{"required": ["a"]}])
    status = "spec/versions/0/subresources"
    yield (
        "root with allOf and status",
        put(base(properties={"a": STRING}, allOf=[{"required": ["a"]}]), status, {"status": {}}),
    )
    yield (
        "root map type and status",
        put(base(properties={"a": STRING}, **{"x-kubernetes-map-type": "atomic"}), status, {"status": {}}),
    )
    yield (
        "root list and status",
        put(
            put(base(), "spec/versions/0/schema/openAPIV3Schema", {"type": "array", "items": STRING}),
            status,
            {"status": {}},
        ),
    )
    yield (
        "status allowed keywords",
        put(base(description="x", properties={"a": STRING}, required=["a"], minProperties=1), status, {"status": {}}),
    )
    yield "metadata restricted", at(metadata=obj(name={"type": "string", "maxLength": 3}))
    yield "metadata labels restricted", at(metadata=obj(labels={"type": "object", "additionalProperties": STRING}))
    yield "metadata default", at(metadata={**obj(name={"type": "string", "default": "x"})})
    yield "metadata is a string", at(metadata=STRING)
    yield "kind is an integer", at(kind=INTEGER, apiVersion=INTEGER)
    yield "kind default", at(kind={"type": "string", "default": "x"})
    yield "schema is a string", put(base(), "spec/versions/0/schema/openAPIV3Schema", "x")
    deep: Raw = STRING
    for _ in range(20):
        deep = obj(a=deep)
    yield "deep", at(spec=deep)


def _lists() -> Iterator[tuple[str, Raw]]:
    entry = obj(k=STRING, n=INTEGER, o={"type": "object"})
    need = {**entry, "required": ["k"]}
    kind, keys = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"
    for what, schema in {
        "list map": items(need, **{kind: "map", keys: ["k"]}),
        "list set": items(STRING, **{kind: "set"}),
        "list type unknown": items(STRING, **{kind: "bag"}),
        "list type of a string": {"type": "string", kind: "set"},
        "list type of nothing": {"x-kubernetes-preserve-unknown-fields": True, kind: "set"},
        "list map without keys": items(need, **{kind: "map"}),
        "list keys without map": items(need, **{keys: ["k"]}),
        "list keys of a set": items(STRING, **{kind: "set", keys: ["k"]}),
        "list map of strings": items(STRING, **{kind: "map", keys: ["k"]}),
        "list map of unknown key": items(need, **{kind: "map", keys: ["z"]}),
        "list map with a key twice": items(need, **{kind: "map", keys: ["k", "k"]}),
        "list map with an object as key": items({**need, "required": ["o"]}, **{kind: "map", keys: ["o"]}),
        "list map with optional key": items(entry, **{kind: "map", keys: ["k"]}),
        "list map with defaulted key": items(obj(k={"type": "string", "default": "x"}), **{kind: "map", keys: ["k"]}),
        "list map with nullable key": items(
            {**obj(k={"type": "string", "nullable": True}), "required": ["k"]}, **{kind: "map", keys: ["k"]}
        ),
        "list map of nullable": items({**need, "nullable": True}, **{kind: "map", keys: ["k"]}),
        "list set of nullable": items({"type": "string", "nullable": True}, **{kind: "set"}),
        "list set of objects": items(obj(a=STRING), **{kind: "set"}),
        "list set of atomic objects": items({**obj(a=STRING), "x-kubernetes-map-type": "atomic"}, **{kind: "set"}),
        "list set of sets": items(items(STRING, **{kind: "set"}), **{kind: "set"}),
        "list set of lists": items(items(STRING), **{kind: "set"}),
        "map type unknown": {**obj(a=STRING), "x-kubernetes-map-type": "bag"},
        "map type of a list": items(STRING, **{"x-kubernetes-map-type": "atomic"}),
        "map type of nothing": {"x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-map-type": "atomic"},
        "map type granular": {**obj(a=STRING), "x-kubernetes-map-type": "granular"},
        "list map of lists": items(items(STRING), **{kind: "map", keys: ["k"]}),
    }.items():
        yield what, at(a=schema)


def _defaults() -> Iterator[tuple[str, Raw]]:
    for what, schema in {
        "default": {"type": "string", "default": "x"},
        "default of wrong type": {"type": "string", "default": 5},
        "default too long": {"type": "string", "maxLength": 2, "default": "xyz"},
        "default not in enum": {"type": "string", "enum": ["a", "b"], "default": "c"},
        "default that breaks the pattern": {"type": "string", "pattern": "^a", "default": "b"},
        "default with unknown field": {**obj(b=STRING), "default": {"c": 1}},
        "default within default": {**obj(b={"type": "string", "default": "x"}), "default": {}},
        "default lacks a field": {**obj(b=STRING), "required": ["b"], "default": {}},
        "default null": {"type": "string", "default": None},
        "default null of nullable": {"type": "string", "nullable": True, "default": None},
        "default too small": {"type": "integer", "minimum": 5, "default": 1},
        "default of a list": items(STRING, default=["a", "b"]),
        "default of a list is wrong": items(STRING, default=["a", 1]),
        "default of a set": items(STRING, default=["a", "a"], **{"x-kubernetes-list-type": "set"}),
        "default in items": items({"type": "string", "default": 1}),
        "default in additionalProperties": {
            "type": "object",
            "additionalProperties": {"type": "string", "default": "x"},
        },
        "wrong default in additionalProperties": {
            "type": "object",
            "additionalProperties": {"type": "string", "default": 5},
        },
        "default in anyOf": {"type": "string", "anyOf": [{"default": "x"}]},
        "default of int or string": {"x-kubernetes-int-or-string": True, "default": 5},
        "default of int or string is wrong": {"x-kubernetes-int-or-string": True, "default": True},
        "default of kept": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "default": {"a": 1}},
        "default of embedded": {
            "type": "object",
            "x-kubernetes-embedded-resource": True,
            "x-kubernetes-preserve-unknown-fields": True,
            "default": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}},
        },
        "default of embedded lacks kind": {
            "type": "object",
            "x-kubernetes-embedded-resource": True,
            "x-kubernetes-preserve-unknown-fields": True,
            "default": {"apiVersion": "v1"},
        },
        "default breaks a rule": ruled({"type": "integer", "default": 1}, "self > 5"),
        "default breaks a rule with message": ruled(
            {**obj(b=INTEGER), "default": {"b": 1}}, {"rule": "self.b > 5", "message": "b must be more than 5"}
        ),
        "default keeps a rule": ruled({"type": "integer", "default": 9}, "self > 5"),
        "default has an error in a rule": ruled({"type": "integer", "default": 0}, "5 / self > 1"),
        "default breaks optionalOldSelf": ruled(
            {"type": "integer", "default": 1}, {"rule": "oldSelf.hasValue()", "optionalOldSelf": True}
        ),
        "default breaks transition": ruled({"type": "integer", "default": 1}, "self > oldSelf"),
        "default breaks format": {"type": "string", "format": "date", "default": "yesterday"},
    }.items():
        yield what, at(a=schema)
    yield "root default", base(properties={"a": STRING}, default={"a": "x"})


def _rules() -> Iterator[tuple[str, Raw]]:
    spec = obj(a={"type": "string", "maxLength": 10}, n=INTEGER, l=items(STRING, maxItems=5))
    for what, rules in {
        "rule": ["self.n > 1"],
        "rule empty": [""],
        "rule blank": ["  "],
        "rule missing": [{"message": "x"}],
        "rule is a number": ["5"],
        "rule is a string": ["self.a"],
        "rule syntax": ["self.n >"],
        "rule syntax in the second line": [{"rule": "self.n > 1 &&\n self.a ==", "message": "x"}],
        "rule unknown field": ["self.z == 1"],
        "rule unknown variable": ["spec.n == 1"],
        "rule no overload": ["self.a > 1"],
        "rule two errors": ["self.x == self.y"],
        "rule unknown function": ["self.a.foo()"],
        "rule wrong regex": ["self.a.matches('(')"],
        "rule undeclared type": ["has(self.z)"],
        "rule deep chars": ["self.ä == 1"],
        "rule with line breaks": ["self.n > 1 &&\nself.n < 5"],
        "rule with line breaks and message": [{"rule": "self.n > 1 &&\nself.n < 5", "message": "x"}],
        "message blank": [{"rule": "true", "message": " "}],
        "message with line break": [{"rule": "true", "message": "a\nb"}],
        "messageExpression": [{"rule": "true", "messageExpression": "self.a + 'x'"}],
        "messageExpression blank": [{"rule": "true", "messageExpression": " "}],
        "messageExpression is a bool": [{"rule": "true", "messageExpression": "true"}],
        "messageExpression syntax": [{"rule": "true", "messageExpression": "self.a +"}],
        "messageExpression unknown field": [{"rule": "true", "messageExpression": "self.z"}],
        "reason": [{"rule": "true", "reason": "FieldValueForbidden"}],
        "reason unknown": [{"rule": "true", "reason": "Because"}],
        "fieldPath": [{"rule": "true", "fieldPath": ".a"}],
        "fieldPath of a list": [{"rule": "true", "fieldPath": ".l"}],
        "fieldPath with an index": [{"rule": "true", "fieldPath": ".l[0]"}],
        "fieldPath unknown": [{"rule": "true", "fieldPath": ".z"}],
        "fieldPath without dot": [{"rule": "true", "fieldPath": "a"}],
        "fieldPath blank": [{"rule": "true", "fieldPath": " "}],
        "fieldPath with line break": [{"rule": "true", "fieldPath": ".a\n"}],
        "fieldPath in brackets": [{"rule": "true", "fieldPath": "['a']"}],
        "fieldPath broken": [{"rule": "true", "fieldPath": ".a["}],
        "optionalOldSelf": [{"rule": "!oldSelf.hasValue() || self.n > oldSelf.value().n", "optionalOldSelf": True}],
        "optionalOldSelf without oldSelf": [{"rule": "self.n > 1", "optionalOldSelf": True}],
        "optionalOldSelf false": [{"rule": "self.n > 1", "optionalOldSelf": False}],
        "optionalOldSelf used plainly": [{"rule": "self.n > oldSelf.n", "optionalOldSelf": True}],
        "oldSelf": ["self.n > oldSelf.n"],
        "many wrong": [{"rule": "self.n >", "reason": "x"}, {"rule": "self.q"}],
        "many rules": ["self.n > 1", "self.q", "self.a > 5"],
    }.items():
        yield what, at(spec=ruled(spec, *rules))
    old = ruled({"type": "string"}, "self == oldSelf")
    kind, keys = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"
    entry = {**obj(k={"type": "string"}, v=old), "required": ["k"]}
    for what, schema in {
        "oldSelf in an atomic list": items(old),
        "oldSelf in a set": items(old, **{kind: "set"}),
        "oldSelf in a list map": items(entry, maxItems=5, **{kind: "map", keys: ["k"]}),
        "oldSelf in a list of objects": items(entry, **{kind: "atomic"}),
        "oldSelf in a list of lists": items(items(ruled(INTEGER, "self == oldSelf"), maxItems=2), maxItems=2),
        "oldSelf in a map": {"type": "object", "additionalProperties": old},
        "oldSelf in an atomic object": {**obj(b=old), "x-kubernetes-map-type": "atomic"},
        "oldSelf on a list": ruled(items(STRING, maxItems=3), "self == oldSelf"),
        "rule on int or string": ruled({"x-kubernetes-int-or-string": True}, "type(self) == int"),
        "rule on kept": ruled({"x-kubernetes-preserve-unknown-fields": True}, "true"),
        "rule on kept object": ruled({"type": "object", "x-kubernetes-preserve-unknown-fields": True}, "self.x == 1"),
        "rule on an object in a kept list": items(
            ruled({"x-kubernetes-preserve-unknown-fields": True}, "true"), maxItems=2
        ),
        "rule on a date": ruled({"type": "string", "format": "date-time"}, "self > timestamp('2020-01-01T00:00:00Z')"),
        "rule on a day": ruled({"type": "string", "format": "date"}, "self.getFullYear() > 2000"),
        "rule on a duration": ruled({"type": "string", "format": "duration"}, "self < duration('1h')"),
        "rule on bytes": ruled({"type": "string", "format": "byte"}, "self.size() > 1"),
        "rule on a duration as a string": ruled({"type": "string", "format": "duration"}, "self.startsWith('1')"),
        "rule on a number": ruled({"type": "number"}, "self > 1"),
        "rule on a number as a double": ruled({"type": "number"}, "self > 1.0"),
        "rule on escaped names": ruled(
            obj(**{"a-b": STRING, "c.d": STRING, "e/f": STRING, "g__h": STRING, "namespace": STRING, "if": STRING}),
            "self.a__dash__b + self.c__dot__d + self.e__slash__f + self.g__underscores__h + self.__namespace__ == "
            "self.__if__",
        ),
        "rule on unescaped names": ruled(obj(**{"a-b": STRING}), "self.a-b == 'x'"),
        "rule on names that cannot be escaped": ruled(obj(**{"1a": STRING, "ä": STRING}), "has(self.ä)"),
        "rule below a name that cannot be escaped": obj(**{"1a": ruled(obj(x=INTEGER), "self.x > 1")}),
        "rule on an embedded resource": ruled(
            {
                "type": "object",
                "x-kubernetes-embedded-resource": True,
                "x-kubernetes-preserve-unknown-fields": True,
            },
            "self.metadata.name.size() < 5 && self.kind == 'Pod' && self.apiVersion == 'v1'",
        ),
        "rule on an embedded namespace": ruled(
            {
                "type": "object",
                "x-kubernetes-embedded-resource": True,
                "x-kubernetes-preserve-unknown-fields": True,
            },
            "self.metadata.namespace == 'x'",
        ),
        "rule with wrong schema inside": ruled(obj(b={}), "self.b == 1"),
        "rule beside wrong schema": {**obj(b=ruled(INTEGER, "self > 1"), c={"type": "array"})},
        "rule below rule": ruled(obj(b=ruled(obj(c=INTEGER), "self.d > 1")), "self.b.c > 1"),
        "rule with macros": ruled(
            items(obj(n=INTEGER), maxItems=10), "self.all(x, x.n > 1) && self.exists_one(x, x.n == 2)"
        ),
        "rule with a wrong macro": ruled(items(obj(n=INTEGER), maxItems=10), "self.all(x.n > 1)"),
        "rule on a map": ruled(
            {"type": "object", "maxProperties": 5, "additionalProperties": INTEGER}, "self.all(k, self[k] > 1)"
        ),
        "rule with ip functions": ruled({"type": "string", "maxLength": 20}, "isIP(self) && ip(self).family() == 4"),
        "rule with format functions": ruled(
            {"type": "string", "maxLength": 63}, "!format.dns1123Label().validate(self).hasValue()"
        ),
    }.items():
        yield what, at(a=schema)
    yield (
        "rule on root metadata",
        base(properties={"a": STRING}, **{"x-kubernetes-validations": [{"rule": "self.metadata.name == self.a"}]}),
    )
    yield (
        "rule on root labels",
        base(properties={"a": STRING}, **{"x-kubernetes-validations": [{"rule": "has(self.metadata.labels)"}]}),
    )
    yield "rule in metadata", at(metadata=ruled({"type": "object"}, "self.name == 'x'"))
    yield "rule on metadata name", at(metadata=obj(name=ruled(STRING, "self.size() < 5")))


def _costs() -> Iterator[tuple[str, Raw]]:
    each = "self.all(x, self.all(y, x == y))"
    for what, schema in {
        "cost of unlimited lists": ruled(items(STRING), each),
        "cost of limited list": ruled(items(STRING, maxItems=10), each),
        "cost of limited list and text": ruled(items({"type": "string", "maxLength": 10}, maxItems=10), each),
        "cost of a regex": ruled(STRING, "self.matches('^[a-z]+$')"),
        "cost of a regex in an unlimited list": items(ruled(STRING, "self.matches('^[a-z]+$')")),
        "cost of a regex in a list": items(ruled({"type": "string", "maxLength": 100}, "self.matches('^[a-z]+$')")),
        "cost of a regex in a small list": items(
            ruled({"type": "string", "maxLength": 100}, "self.matches('^[a-z]+$')"), maxItems=10
        ),
        "cost slightly over": ruled(items({"type": "string", "maxLength": 500}, maxItems=320), each),
        "cost twice": ruled(items(INTEGER, maxItems=2600), each, "self.all(x, self.all(y, x > y))"),
        "cost of a map in a map": {
            "type": "object",
            "additionalProperties": {"type": "object", "additionalProperties": ruled(INTEGER, "self > 5")},
        },
        "cost of integers in a list": items(ruled(INTEGER, "self > 5")),
        "cost of messageExpression": ruled(
            items(STRING), {"rule": "true", "messageExpression": "self.map(x, self.join(x)).join(',')"}
        ),
        "cost of contains": ruled(STRING, "self.contains(self)"),
        "cost of enum": ruled(
            items({"type": "string", "enum": ["a", "bb"]}), "self.exists(x, self.exists(y, x + y == 'abb'))"
        ),
        "cost of a date": ruled(items({"type": "string", "format": "date-time"}), each),
        "cost of duration list": ruled(items({"type": "string", "format": "duration"}), each),
        "cost of bytes": ruled(items({"type": "string", "format": "byte", "maxLength": 10}), each),
        "cost of int or string": ruled(items({"x-kubernetes-int-or-string": True, "maxLength": 5}), each),
        "cost of objects with required fields": ruled(
            items({**obj(name={"type": "string"}, size=INTEGER), "required": ["name", "size"]}),
            "self.all(x, self.all(y, x.name == y.name))",
        ),
        "cost of objects just over": ruled(
            items({**obj(name={"type": "string"}, size=INTEGER), "required": ["name", "size"]}),
            "self.all(x, x.size > 1 && x.size > 2 && x.size > 3 && x.size > 4 && x.size > 5 && x.size > 6 && "
            "x.size > 7 && x.size > 8 && x.size > 9 && x.size > 10 && x.size > 11 && x.size > 12)",
        ),
        "cost of sorted": ruled(items(INTEGER), "self.isSorted() && self.sum() > 5 && self.indexOf(1) > 2"),
        "cost of split": ruled(STRING, "self.split(',').all(x, x.size() > 1)"),
    }.items():
        yield what, at(a=schema)
    heavy = ruled(items({"type": "string", "maxLength": 100}, maxItems=300), each)
    yield "cost of all rules", at(**{f"f{i}": heavy for i in range(30)})


def _forms() -> Iterator[tuple[str, Raw]]:
    ok = at(spec=obj(a=STRING))
    yield "spec is a string", put(ok, "spec", "x")
    yield "versions is an object", put(ok, "spec/versions", {})
    yield "served is a string", put(ok, "spec/versions/0/served", "yes")
    yield "shortNames is a string", put(ok, "spec/names/shortNames", "wd")
    yield "shortNames has a number", put(ok, "spec/names/shortNames", [1])
    yield "unknown field", put(ok, "spec/versions/0/color", "red")
    yield "unknown field in names", put(ok, "spec/names/nick", "w")
    yield (
        "priority is a string",
        put(
            ok,
            "spec/versions/0/additionalPrinterColumns",
            [{"name": "A", "type": "string", "jsonPath": ".a", "priority": "1"}],
        ),
    )
    yield (
        "status is given",
        put(ok, "status", {"storedVersions": ["v0"], "conditions": [], "acceptedNames": {"plural": "x", "kind": "X"}}),
    )
    yield "rules is an object", at(a={"type": "string", "x-kubernetes-validations": {}})
    yield "rule field unknown", at(a=ruled(STRING, {"rule": "true", "color": "x"}))


def updated() -> Iterator[tuple[str, Raw, Raw]]:
    """Give what was, and what it shall be."""
    ok = put(at(spec=obj(a=STRING)), "metadata/labels", {})
    other = at(spec=obj(a=INTEGER))["spec"]["versions"][0]
    yield "scope changes", ok, put(ok, "spec/scope", "Namespaced")
    yield "kind changes", ok, put(ok, "spec/names/kind", "Gadget")
    yield "group changes", ok, put(ok, "spec/group", "example.net")
    yield "plural changes", ok, put(ok, "spec/names/plural", "gadgets")
    yield "short names change", ok, put(ok, "spec/names/shortNames", ["wd"])
    yield "listKind changes", ok, put(ok, "spec/names/listKind", "Widgets")
    yield "stored version goes", ok, put(ok, "spec/versions/0/name", "v2")
    two = put(ok, "spec/versions/1", {**other, "name": "v2", "storage": False})
    yield "version added", ok, two
    swapped = put(put(two, "spec/versions/0/storage", False), "spec/versions/1/storage", True)
    yield "storage moves", two, swapped
    yield "version that is not stored goes", two, ok
    yield "old storage version goes", two, put(swapped, "spec/versions/0", ...)
    yield "preserveUnknownFields again", ok, put(ok, "spec/preserveUnknownFields", True)
    bad = at(spec=obj(a={"type": "string", "x-kubernetes-list-type": "set"}))
    yield "schema becomes wrong", ok, bad
    yield "rule becomes wrong", ok, at(spec=ruled(obj(a=STRING), "self.z"))
    kube = put(put(ok, "spec/group", "stuff.k8s.io"), "metadata/name", "widgets.stuff.k8s.io")
    kube = put(kube, "metadata/annotations", {"api-approved.kubernetes.io": "unapproved, a test"})
    yield "approval goes", kube, put(kube, "metadata/annotations", {})
    yield "approval stays", kube, put(kube, "spec/names/shortNames", ["wd"])
    hook = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": {"url": "https://example.org/"}, "conversionReviewVersions": ["v1"]},
    }
    hooked = put(ok, "spec/conversion", hook)
    yield "webhook loses reviews", hooked, put(hooked, "spec/conversion/webhook/conversionReviewVersions", [])
    yield (
        "webhook gets unknown reviews",
        hooked,
        put(hooked, "spec/conversion/webhook/conversionReviewVersions", ["v7"]),
    )
    yield (
        "webhook gets bad bundle",
        hooked,
        put(hooked, "spec/conversion/webhook/clientConfig/caBundle", "bm90IGEgY2VydGlmaWNhdGU="),
    )
    yield "default becomes wrong", ok, at(spec=obj(a={"type": "string", "default": 5}))
    yield "no resourceVersion", ok, put(ok, "metadata/resourceVersion", "")
    yield (
        "format unknown already",
        at(spec=obj(a={"type": "string", "format": "ip"})),
        at(spec=obj(a={"type": "string", "format": "ip"}, b={"type": "string", "format": "ipp"})),
    )
    # The last one: the real server takes minutes to delete a definition whose webhook can never be called.
    wrong = put(hooked, "spec/conversion/webhook/clientConfig/caBundle", "bm90IGEgY2VydGlmaWNhdGU=")
    yield "webhook keeps bad bundle", wrong, put(wrong, "spec/names/shortNames", ["wd"])


def broken(definition: Raw) -> bool:
    """Whether a definition will never be served."""
    conditions = definition.get("status", {}).get("conditions") or []
    return any(item.get("reason") == "InvalidCABundle" for item in conditions)


def causes(code: int, answer: Raw) -> Raw:
    """Give what is compared."""
    if code < 300:
        answer["metadata"] = {}
        return {"code": code, "object": answer}
    listed = (answer.get("details") or {}).get("causes") or []
    return {
        "code": code,
        "message": answer["message"],
        "causes": [[cause.get("reason"), cause.get("field", ""), cause["message"]] for cause in listed],
    }


CREATED = {
    "spec": _spec,
    "names": _names,
    "versions": _versions,
    "conversion": _conversion,
    "structural": _structural,
    "lists": _lists,
    "defaults": _defaults,
    "rules": _rules,
    "costs": _costs,
    "forms": _forms,
}
"""Subject -> definitions that are created, with their names."""


def _settled(definition: Raw) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return broken(definition) or any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


def record(kubeconfig: Path) -> None:
    """Ask, and write the answers down."""
    peer = Peer(kubeconfig)
    said: dict[str, list[Raw]] = {}
    for subject, definitions in CREATED.items():
        said[subject] = []
        for name, new in definitions():
            answer = peer.ask("POST", f"{DEFINITIONS}?dryRun=All", new)
            found = {"name": name, "new": new, "warnings": answer.warnings, **causes(answer.code, answer.json)}
            said[subject].append(found)
    said["updates"] = [_updated(peer, *each) for each in updated()]
    recordings.write(Path(__file__).with_name("definitions"), said)


def _updated(peer: Peer, name: str, old: Raw, new: Raw) -> Raw:
    path = f"{DEFINITIONS}/{old['metadata']['name']}"
    peer.ask("POST", DEFINITIONS, old).must()
    wait_until(lambda: _settled(peer.ask("GET", path).json))
    stored = peer.ask("GET", path).json
    version = new["metadata"].get("resourceVersion", stored["metadata"]["resourceVersion"])
    new = put(new, "metadata/resourceVersion", version)
    answer = peer.ask("PUT", f"{path}?dryRun=All", new)
    stored["metadata"].pop("managedFields", None)
    peer.ask("DELETE", path)
    deadline = time.monotonic() + 5  # some take minutes
    while peer.ask("GET", path).code != 404 and time.monotonic() < deadline:
        time.sleep(0.05)
    return {
        "name": name,
        "old": stored,
        "new": new,
        "warnings": answer.warnings,
        **causes(answer.code, answer.json),
    }

"""The sequences of writes that `record.py` records: many written by hand, more made up at random.

Each is a name, the resource, and steps: verb, manager, body, and what else there is to say.
"""

from __future__ import annotations

import json
import random
from typing import Any

Raw = dict[str, Any]

THINGS, CONFIG_MAPS, LEASES = "things", "configmaps", "leases"
LAST = "kubectl.kubernetes.io/last-applied-configuration"


def by_kubectl(api: str, kind: str, **fields: Any) -> Raw:
    """What kubectl creates when it applies from the client's side."""
    config = {"apiVersion": api, "kind": kind, "metadata": {"name": "x"}, **fields}
    return {"metadata": {"annotations": {LAST: json.dumps(config)}}, **fields}


# --- sequences that are written by hand ---


def spec(**fields: Any) -> Raw:
    return {"spec": fields}


def op(verb: str, manager: str, body: Any, **more: Any) -> Raw:
    return {"verb": verb, "manager": manager, "body": body, **more}


PORT80 = {"port": 80, "protocol": "TCP", "name": "http"}
SEQUENCES: list[tuple[str, str, list[Raw]]] = [
    ("create", THINGS, [op("post", "", spec(text="a", number=1, flag=True, tags=["b", "a"], labels={"x": "1"}))]),
    (
        "create-all",
        THINGS,
        [
            op(
                "post",
                "m",
                spec(
                    text="a",
                    ratio=1.5,
                    when="2020-01-01T00:00:00Z",
                    either="5%",
                    order=["x", "y"],
                    tags=["b", "a"],
                    ports=[PORT80, {"port": 443}],
                    whole={"a": "1", "b": "2"},
                    labels={"x": "1", "y/z": "2"},
                    nested={"inner": {"deep": "1"}, "list": [{"name": "a", "items": [{"id": 2, "value": "x"}]}]},
                    free={"a": {"b": [1, {"c": 2}], "d": {}}, "n": 1},
                    embedded={
                        "apiVersion": "v1",
                        "kind": "X",
                        "metadata": {"name": "e", "labels": {"a": "b"}},
                        "data": {"a": "b"},
                    },
                ),
            )
        ],
    ),
    (
        "metadata",
        THINGS,
        [
            op(
                "post",
                "m",
                {
                    "metadata": {
                        "labels": {"a": "1"},
                        "annotations": {"b/c": "2"},
                        "finalizers": ["x.io/a"],
                        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-1"}],
                    }
                },
            ),
            op("merge", "n", {"metadata": {"labels": {"a": "2", "c": "3"}, "finalizers": ["x.io/a", "x.io/b"]}}),
            op(
                "apply",
                "o",
                {
                    "metadata": {
                        "labels": {"d": "4"},
                        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p2", "uid": "u-2"}],
                    }
                },
            ),
            op("apply", "o", {"metadata": {"labels": {"e": "4"}, "finalizers": ["x.io/c"]}}),
            op("apply", "o", {}),
        ],
    ),
    (
        "update",
        THINGS,
        [
            op("post", "a", spec(text="a", number=1)),
            op("put", "b", spec(text="b")),
            {"verb": "wait"},
            op("put", "b", spec(number=2)),
            op("put", "c", {}),
            op("put", "a", {}, without=["spec.text"]),
            op("merge", "a", {"spec": {"number": None}}),
            op("json", "d", [{"op": "add", "path": "/spec/labels", "value": {"k": "v"}}]),
            op("json", "d", [{"op": "remove", "path": "/spec/labels/k"}]),
        ],
    ),
    (
        "apply",
        THINGS,
        [
            op("apply", "a", spec(text="a", number=1, labels={"x": "1"})),
            op("apply", "a", spec(text="a", number=1, labels={"x": "1"})),
            {"verb": "wait"},
            op("apply", "a", spec(text="a", number=1, labels={"x": "1"})),
            op("apply", "a", spec(text="b", labels={"y": "1"})),
            op("apply", "a", spec(text="b", labels={})),
            op("apply", "a", spec(text="b")),
            op("apply", "a", {}),
        ],
    ),
    (
        "share",
        THINGS,
        [
            op("apply", "a", spec(text="a", number=1)),
            op("apply", "b", spec(text="a")),
            {"verb": "wait"},
            op("apply", "b", spec(text="a")),
            op("apply", "a", spec(number=1)),
            op("apply", "b", {}),
            op("apply", "b", spec(number=1, flag=True)),
        ],
    ),
    (
        "conflict",
        THINGS,
        [
            op("apply", "a", spec(text="a", number=1, ports=[PORT80])),
            op("apply", "b", spec(text="b")),
            op("apply", "b", spec(text="b", number=2, ports=[{"port": 80, "protocol": "TCP", "name": "web"}])),
            op("apply", "b", spec(text="b", number=2), force=True),
            op("apply", "a", spec(text="a", number=1)),
            op("apply", "a", spec(text="b", number=2)),
            op("apply", "a", spec(number=2)),
            op("merge", "c", spec(number=3, flag=True)),
            op("apply", "b", spec(text="b", number=2, flag=False)),
        ],
    ),
    (
        "conflict-status",
        THINGS,
        [
            op("post", "a", spec(text="a")),
            op(
                "merge",
                "s",
                {"status": {"phase": "x", "conditions": [{"type": "R", "status": "T"}]}},
                subresource="status",
            ),
            op("apply", "t", {"status": {"phase": "y"}}, subresource="status"),
            op("apply", "t", {"status": {"phase": "y"}}, subresource="status", force=True),
            op("apply", "s", {"status": {"phase": "z"}}, subresource="status"),
            op("apply", "s", {"status": {"conditions": [{"type": "Q", "status": "T"}]}}, subresource="status"),
            op("apply", "s", {"status": {"conditions": [{"type": "R", "status": "F"}]}}, subresource="status"),
        ],
    ),
    (
        "status",
        THINGS,
        [
            op("post", "a", {**spec(text="a"), "status": {"phase": "no"}}),
            op("put", "s", {"status": {"phase": "up"}}, subresource="status"),
            op(
                "put",
                "s",
                {"status": {"phase": "up"}, **spec(text="no"), "metadata": {"labels": {"no": "1"}}},
                subresource="status",
            ),
            op("put", "m", {"status": {"phase": "no"}, **spec(text="b")}),
            op("apply", "m", {"status": {"phase": "no"}, **spec(text="b")}),
            op(
                "apply",
                "s",
                {"status": {"phase": "up"}, **spec(text="b"), "metadata": {"labels": {"no": "1"}}},
                subresource="status",
            ),
            op("merge", "s", {"status": None}, subresource="status"),
            op("merge", "s", {"status": {"free": {"a": 1}}}, subresource="status"),
        ],
    ),
    (
        "kinds-of-lists",
        THINGS,
        [
            op("apply", "a", spec(tags=["a", "b"], order=["x"], ports=[PORT80])),
            op("apply", "b", spec(tags=["c", "a"], ports=[{"port": 443, "name": "https"}])),
            op("apply", "b", spec(order=["x", "y"])),
            op("apply", "a", spec(tags=["b"], ports=[])),
            op("apply", "b", spec(tags=["d", "b"], ports=[{"port": 80, "name": "http"}, {"port": 443}])),
            op("apply", "b", spec(tags=[])),
            op("apply", "b", spec()),
        ],
    ),
    (
        "order-of-items",
        THINGS,
        [
            op("apply", "a", spec(tags=["a", "b", "c", "d"])),
            op("apply", "b", spec(tags=["d", "x", "b"])),
            op("apply", "c", spec(tags=["z", "a", "y", "d"])),
            op("apply", "a", spec(tags=["c", "a"])),
        ],
    ),
    (
        "port-defaults",
        THINGS,
        [
            op("apply", "a", spec(ports=[{"port": 80}])),
            op("apply", "b", spec(ports=[{"port": 80, "protocol": "UDP"}])),
            op("apply", "a", spec(ports=[{"port": 80, "name": "x"}])),
            op("apply", "b", spec(ports=[{"port": 80, "protocol": "TCP", "name": "y"}])),
            op("apply", "b", spec(ports=[{"name": "y"}])),
            op("apply", "b", spec(ports=[{"protocol": "TCP"}])),
        ],
    ),
    (
        "duplicates-refused",
        THINGS,
        [
            op("apply", "a", spec(tags=["a", "a"])),
            op("apply", "a", spec(ports=[{"port": 80}, {"port": 80, "protocol": "TCP"}])),
            op("apply", "a", spec(nested={"list": [{"name": "a"}, {"name": "a"}]})),
        ],
    ),
    (
        "atomic",
        THINGS,
        [
            op("apply", "a", spec(whole={"a": "1"}, struct={"a": "1"})),
            op("apply", "b", spec(whole={"b": "1"})),
            op("apply", "b", spec(whole={"b": "1"}, struct={"b": "2"}), force=True),
            op("apply", "a", spec(whole={"b": "1"})),
            op("apply", "b", spec()),
        ],
    ),
    (
        "free",
        THINGS,
        [
            op("apply", "a", spec(free={"a": {"b": 1, "l": [1, 2]}, "s": "x"})),
            op("apply", "b", spec(free={"a": {"c": True}})),
            op("apply", "b", spec(free={"a": "text"})),
            op("apply", "b", spec(free={"a": "text"}), force=True),
            op("apply", "a", spec(free={"a": {"b": 1}}), force=True),
            op("apply", "a", spec(free={"a": {"b": True}})),
            op("merge", "c", spec(free={"a": {"b": 1}})),
            op("merge", "d", spec(free={"a": None, "s": {"t": {"u": 1}}})),
            op("merge", "e", spec(free={"s": 5, "e": {}})),
            op("apply", "a", spec(free={})),
            op("apply", "a", spec()),
        ],
    ),
    (
        "either",
        THINGS,
        [
            op("apply", "a", spec(either=5)),
            op("apply", "b", spec(either="5%")),
            op("apply", "b", spec(either="5%"), force=True),
            op("merge", "c", spec(either=5)),
        ],
    ),
    (
        "nested",
        THINGS,
        [
            op(
                "apply",
                "a",
                spec(
                    nested={
                        "inner": {"deep": "1", "other": "2"},
                        "list": [{"name": "a", "items": [{"id": 1, "value": "x"}]}],
                    }
                ),
            ),
            op(
                "apply",
                "b",
                spec(nested={"inner": {"other": "2"}, "list": [{"name": "a", "items": [{"id": 2, "value": "y"}]}]}),
            ),
            op("apply", "a", spec(nested={"inner": {"deep": "1"}})),
            op(
                "apply",
                "b",
                spec(nested={"list": [{"name": "a", "items": [{"id": 2, "value": "z"}, {"id": 10, "value": "y"}]}]}),
            ),
            op("apply", "b", spec(nested={"list": [{"name": "b"}]})),
            op("apply", "a", {}),
        ],
    ),
    (
        "nulls",
        THINGS,
        [
            op("apply", "a", spec(text="a", nullable=None, labels={"a": "1"})),
            op("apply", "a", spec(text=None, nullable="x")),
            op("apply", "a", spec(labels=None)),
            op("apply", "a", {"spec": None}),
        ],
    ),
    (
        "removed-from-both",
        THINGS,
        [
            op("post", "u", spec(labels={"a": "1", "b": "2"}, tags=["p", "q"])),
            op("apply", "a", spec(labels={"a": "1"}, tags=["p"])),
            op("apply", "a", {}),
            op("apply", "a", spec(labels={"a": "1", "c": "3"}, tags=["r"])),
            op("merge", "u", spec(labels={"a": None})),
            op("apply", "a", spec(labels={"c": "3"})),
            op("put", "u", {}, without=["spec.labels", "spec.tags"]),
            op("apply", "a", spec(labels={"c": "3"})),
        ],
    ),
    (
        "reset",
        THINGS,
        [
            op("post", "a", spec(text="a")),
            op("put", "b", {"metadata": {"managedFields": []}, **spec(number=5)}),
            op("put", "c", spec(number=6)),
            op("apply", "d", spec(flag=True, number=6)),
            op("apply", "d", spec(text="d")),
        ],
    ),
    (
        "reset-by-empty-entry",
        THINGS,
        [
            op("post", "a", spec(text="a")),
            op("put", "b", {"metadata": {"managedFields": [{}]}, **spec(number=5)}),
            op("apply", "c", spec(number=7)),
            op("apply", "c", spec(number=7), force=True),
        ],
    ),
    (
        "reset-by-merge",
        THINGS,
        [
            op("apply", "a", spec(text="a")),
            op("merge", "b", {"metadata": {"managedFields": [{}]}, **spec(number=5)}),
            op("apply", "c", spec(text="a")),
        ],
    ),
    (
        "reset-refused-on-status",
        THINGS,
        [
            op("post", "a", spec(text="a")),
            op("put", "s", {"metadata": {"managedFields": []}, "status": {"phase": "x"}}, subresource="status"),
        ],
    ),
    (
        "managed-null",
        THINGS,
        [
            op("post", "a", spec(text="a")),
            op("put", "b", {"metadata": {"managedFields": None}, **spec(number=1)}),
            op("put", "b", {**spec(number=2)}, without=["metadata.managedFields"]),
        ],
    ),
    (
        "managed-invalid",
        THINGS,
        [
            op(
                "post",
                "a",
                {
                    "metadata": {
                        "managedFields": [
                            {
                                "manager": "x",
                                "operation": "Bad",
                                "apiVersion": "v1",
                                "fieldsType": "FieldsV1",
                                "fieldsV1": {},
                            }
                        ]
                    },
                    **spec(text="a"),
                },
            ),
            op(
                "put",
                "b",
                {
                    "metadata": {
                        "managedFields": [
                            {
                                "manager": "x",
                                "operation": "Update",
                                "apiVersion": "managed.example/v1",
                                "fieldsType": "FieldsV2",
                                "fieldsV1": {},
                            }
                        ]
                    },
                    **spec(text="b"),
                },
            ),
            op(
                "put",
                "b",
                {
                    "metadata": {
                        "managedFields": [
                            {
                                "manager": "x",
                                "operation": "Update",
                                "apiVersion": "managed.example/v1",
                                "fieldsType": "FieldsV1",
                                "fieldsV1": {"bad": {}},
                            }
                        ]
                    },
                    **spec(text="c"),
                },
            ),
            op(
                "put",
                "b",
                {
                    "metadata": {
                        "managedFields": [
                            {
                                "manager": "x",
                                "operation": "Update",
                                "apiVersion": "managed.example/v1",
                                "fieldsType": "FieldsV1",
                                "fieldsV1": {"f:spec": 5},
                            }
                        ]
                    },
                    **spec(text="d"),
                },
            ),
            op(
                "put",
                "b",
                {
                    "metadata": {
                        "managedFields": [
                            {"manager": "x", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {}}
                        ]
                    },
                    **spec(text="e"),
                },
            ),
        ],
    ),
    (
        "managed-sent",
        THINGS,
        [
            op(
                "post",
                "a",
                {
                    "metadata": {
                        "managedFields": [
                            {
                                "manager": "x",
                                "operation": "Apply",
                                "apiVersion": "managed.example/v1",
                                "time": "2020-01-02T03:04:05Z",
                                "fieldsType": "FieldsV1",
                                "fieldsV1": {
                                    "f:spec": {
                                        "f:text": {},
                                        "f:number": {".": {}},
                                        "f:tags": {'v:"b"': {}, 'v:"a"': {}},
                                        "z:future": {},
                                        "f:ports": {'k:{"protocol":"TCP","port":80}': {".": {}, "f:name": {}}},
                                    }
                                },
                            }
                        ]
                    },
                    **spec(text="a", number=1),
                },
            ),
            op("apply", "x", spec(number=1)),
            op(
                "put",
                "b",
                {
                    "metadata": {
                        "managedFields": [
                            {
                                "manager": "y",
                                "operation": "Update",
                                "apiVersion": "managed.example/v1",
                                "time": "2020-01-02T03:04:05+02:00",
                                "fieldsType": "FieldsV1",
                                "fieldsV1": {"f:spec": {"f:text": {}}},
                            }
                        ]
                    },
                    **spec(flag=True),
                },
            ),
        ],
    ),
    (
        "csa-to-ssa",
        THINGS,
        [
            op(
                "post",
                "kubectl-client-side-apply",
                by_kubectl("managed.example/v1", "Thing", **spec(text="a", number=1, labels={"a": "1"})),
            ),
            op("apply", "kubectl", spec(text="b", number=1)),
            op("apply", "kubectl", spec(text="b", flag=True)),
        ],
    ),
    (
        "csa-to-ssa-conflict",
        THINGS,
        [
            op(
                "post",
                "kubectl-client-side-apply",
                by_kubectl("managed.example/v1", "Thing", **spec(text="a", number=1)),
            ),
            op("merge", "other", spec(number=2)),
            op("apply", "kubectl", spec(text="b", number=3)),
            op("apply", "me", spec(text="b")),
            op("apply", "kubectl", spec(text="b", number=3), force=True),
        ],
    ),
    (
        "csa-migration-by-patch",
        THINGS,
        [
            op(
                "post",
                "kubectl-client-side-apply",
                {
                    "metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}},
                    **spec(text="a", labels={"a": "1", "b": "2"}),
                },
            ),
            op(
                "json",
                "kubectl",
                [
                    {
                        "op": "replace",
                        "path": "/metadata/managedFields",
                        "value": [
                            {
                                "manager": "kubectl",
                                "operation": "Apply",
                                "apiVersion": "managed.example/v1",
                                "time": "2020-01-02T03:04:05Z",
                                "fieldsType": "FieldsV1",
                                "fieldsV1": {
                                    "f:metadata": {
                                        "f:annotations": {
                                            ".": {},
                                            "f:kubectl.kubernetes.io/last-applied-configuration": {},
                                        }
                                    },
                                    "f:spec": {".": {}, "f:text": {}, "f:labels": {".": {}, "f:a": {}, "f:b": {}}},
                                },
                            }
                        ],
                    },
                ],
            ),
            op("apply", "kubectl", spec(text="a", labels={"a": "1"})),
        ],
    ),
    (
        "eleven-updaters",
        THINGS,
        [
            op("post", "m00", spec(text="a")),
            *(op("merge", f"m{i:02}", spec(labels={f"l{i}": "x"})) for i in range(1, 11)),
            {"verb": "wait"},
            *(op("merge", f"m{i:02}", spec(labels={f"l{i}": "y"})) for i in range(5, 15)),
            op("apply", "z", spec(labels={"l1": "x", "l12": "y"})),
        ],
    ),
    (
        "two-versions",
        THINGS,
        [
            op("post", "a", spec(text="a", labels={"x": "1"})),
            op("merge", "a", spec(number=2), version="v1beta1"),
            op("apply", "b", spec(text="a", tags=["t"]), version="v1beta1"),
            op("apply", "c", spec(text="c")),
            op("apply", "b", spec(text="a", labels={"y": "2"})),
            op("merge", "d", spec(text="d"), version="v1beta1"),
            op("apply", "b", spec(labels={"y": "2"}), version="v1beta1"),
        ],
    ),
    (
        "unknown-version",
        THINGS,
        [
            op(
                "post",
                "a",
                {
                    "metadata": {
                        "managedFields": [
                            {
                                "manager": "old",
                                "operation": "Update",
                                "apiVersion": "managed.example/v0",
                                "time": "2020-01-02T03:04:05Z",
                                "fieldsType": "FieldsV1",
                                "fieldsV1": {"f:spec": {"f:text": {}}},
                            }
                        ]
                    },
                    **spec(text="a"),
                },
            ),
            op("apply", "b", spec(text="b")),
        ],
    ),
    (
        "no-such-field",
        THINGS,
        [
            op("apply", "a", spec(nope=1)),
            op("apply", "a", {"nope": {}}),
            op("apply", "a", {"metadata": {"nope": "x"}}),
            op("apply", "a", spec(ports=[{"port": 80, "nope": 1}])),
        ],
    ),
    (
        "wrong-types",
        THINGS,
        [
            op("apply", "a", spec(text=5)),
            op("apply", "a", spec(number="5")),
            op("apply", "a", spec(flag="yes")),
            op("apply", "a", spec(tags="x")),
            op("apply", "a", spec(labels=["x"])),
            op("apply", "a", spec(text={"a": [1.5, True, "x"]})),
            op("apply", "a", spec(ports=["x"])),
            op("apply", "a", spec(tags=[{"a": 1}])),
            op("apply", "a", spec(tags=[None])),
            op("apply", "a", spec(when=True)),
            op("apply", "a", spec(when={"a": 1})),
            op("apply", "a", spec(number=True)),
            op("apply", "a", spec(number=[1])),
            op("apply", "a", spec(labels={"a": 1})),
            op("apply", "a", spec(nested={"list": [{"name": "a", "items": [{"id": "x"}]}]})),
            op("apply", "a", spec(text=1, number="x")),
        ],
    ),
    (
        "wrong-object",
        THINGS,
        [
            op("apply", "a", {"metadata": {"managedFields": [{"manager": "x"}]}}),
            op("apply", "a", {"metadata": {"managedFields": []}}),
            op("apply", "a", {"apiVersion": "managed.example/v1beta1"}),
            op("apply", "a", {"kind": "Other"}),
        ],
    ),
    (
        "odd-keys",
        THINGS,
        [
            op("apply", "a", spec(tags=["<b>&", "ä", '"q"', "a b", "\u2028", "\t"], labels={"a.b/c": "1", "ä": "2"})),
            op("merge", "b", spec(labels={'x"y': "1"})),
            op("apply", "c", spec(tags=["<b>&"])),
            op("apply", "c", spec(numbers=[1, 10, 2, -3])),
            op("apply", "d", spec(numbers=[2, 7])),
        ],
    ),
    (
        "defaults",
        THINGS,
        [
            op("apply", "a", spec(text="a", defaulted={})),
            op("apply", "b", spec(defaulted={"mode": "slow"})),
            op("apply", "b", spec(defaulted={"mode": "fast"})),
            op("apply", "a", spec(text="a")),
            op("apply", "b", spec()),
        ],
    ),
    (
        "config-map",
        CONFIG_MAPS,
        [
            op("post", "", {"data": {"a": "1", "b": "2"}}),
            op("apply", "a", {"data": {"a": "1", "c": "3"}}),
            op("apply", "b", {"data": {"a": "2"}}),
            op("apply", "b", {"data": {"a": "2"}, "immutable": False}, force=True),
            op("merge", "c", {"data": {"a": None}, "binaryData": {"x": "eA=="}}),
            op("apply", "a", {"metadata": {"labels": {"q": "r"}}}),
            op("put", "d", {"metadata": {"labels": {"q": "s"}}}),
            op("apply", "a", {}),
        ],
    ),
    (
        "config-map-reset",
        CONFIG_MAPS,
        [
            op("post", "a", {"data": {"a": "1"}}),
            op("put", "b", {"metadata": {"managedFields": []}, "data": {"a": "2"}}),
            op("put", "c", {"data": {"a": "3"}}),
            op("apply", "d", {"data": {"a": "3", "b": "4"}}),
            op("put", "e", {"metadata": {"managedFields": [{}]}, "data": {"a": "5"}}),
            op("apply", "kubectl", {"data": {"a": "6"}}),
            op("apply", "kubectl", {"data": {"a": "6"}}, force=True),
            op("merge", "f", {"metadata": {"managedFields": []}}),
        ],
    ),
    (
        "config-map-unknown-version",
        CONFIG_MAPS,
        [
            op(
                "post",
                "a",
                {
                    "metadata": {
                        "managedFields": [
                            {
                                "manager": "old",
                                "operation": "Update",
                                "apiVersion": "v0",
                                "time": "2020-01-02T03:04:05Z",
                                "fieldsType": "FieldsV1",
                                "fieldsV1": {"f:data": {"f:a": {}}},
                            },
                            {
                                "manager": "now",
                                "operation": "Update",
                                "apiVersion": "v1",
                                "time": "2020-01-02T03:04:05Z",
                                "fieldsType": "FieldsV1",
                                "fieldsV1": {"f:data": {"f:a": {}}},
                            },
                        ]
                    },
                    "data": {"a": "1"},
                },
            ),
            op("merge", "b", {"data": {"b": "2"}}),
            op("apply", "c", {"data": {"b": "2"}}),
        ],
    ),
    (
        "config-map-empty",
        CONFIG_MAPS,
        [
            op("post", "a", {"data": {}}),
            op("apply", "b", {"data": {}}),
            op("apply", "b", {"data": {"a": "1"}}),
            op("apply", "b", {"data": {}}),
            op("apply", "b", {}),
        ],
    ),
    (
        "empty-containers",
        THINGS,
        [
            op("post", "a", spec(labels={}, tags=[], ports=[], free={}, order=[], whole={}, nested={})),
            op(
                "merge",
                "b",
                spec(
                    labels={"a": "1"},
                    tags=["x"],
                    ports=[{"port": 1}],
                    free={"a": 1},
                    order=["x"],
                    whole={"a": "1"},
                    nested={"inner": {}},
                ),
            ),
            op("merge", "c", spec(nullable="x")),
            op("merge", "d", spec(nullable=None)),
            op("put", "e", spec(labels={}, tags=[], ports=[])),
            op("apply", "f", spec(labels={}, tags=[], free={}, nested={"inner": {}})),
            op("apply", "f", spec()),
        ],
    ),
    (
        "twice-in-a-list",
        CONFIG_MAPS,
        [
            op(
                "post",
                "a",
                {
                    "metadata": {
                        "ownerReferences": [
                            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-1"},
                            {"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "u-1"},
                        ],
                        "finalizers": ["a.io/x", "a.io/x"],
                    }
                },
            ),
            op("merge", "b", {"metadata": {"labels": {"a": "b"}}}),
            op("apply", "c", {"metadata": {"labels": {"c": "d"}, "finalizers": ["a.io/y"]}}),
            op("apply", "c", {"metadata": {"finalizers": ["a.io/y", "a.io/x"]}}),
            op(
                "put",
                "d",
                {
                    "metadata": {
                        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "u-1"}],
                        "finalizers": ["a.io/x"],
                    }
                },
            ),
            op(
                "put",
                "e",
                {
                    "metadata": {
                        "ownerReferences": [
                            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-1"},
                            {"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "u-1"},
                        ],
                        "finalizers": ["a.io/x", "a.io/z", "a.io/z"],
                    }
                },
            ),
            op(
                "put",
                "f",
                {
                    "metadata": {
                        "ownerReferences": [
                            {"apiVersion": "v1", "kind": "Pod", "name": "r", "uid": "u-1"},
                            {"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "u-1"},
                        ]
                    }
                },
            ),
            op("put", "g", {"metadata": {"ownerReferences": [], "finalizers": []}}),
        ],
    ),
    (
        "config-map-wrong",
        CONFIG_MAPS,
        [
            op("apply", "a", {"data": {"a": 1}}),
            op("apply", "a", {"data": ["a"]}),
            op("apply", "a", {"nope": 1}),
            op("apply", "a", {"immutable": "x"}),
        ],
    ),
    (
        "config-map-kubectl",
        CONFIG_MAPS,
        [
            op(
                "post",
                "kubectl-client-side-apply",
                by_kubectl("v1", "ConfigMap", data={"a": "1"}),
            ),
            op("apply", "kubectl", {"data": {"a": "2", "b": "<3>"}}),
            op("apply", "kubectl", {"data": {"a": "2"}}),
        ],
    ),
    (
        "lease",
        LEASES,
        [
            op(
                "post",
                "l",
                {
                    "spec": {
                        "holderIdentity": "a",
                        "leaseDurationSeconds": 15,
                        "renewTime": "2020-01-01T00:00:00.000000Z",
                    }
                },
            ),
            op("put", "l", {"spec": {"renewTime": "2020-01-01T00:00:01.000000Z"}}),
            op("merge", "o", {"spec": {"holderIdentity": "b", "leaseTransitions": 1}}),
            op("apply", "p", {"spec": {"holderIdentity": "c"}}),
            op("apply", "p", {"spec": {"leaseDurationSeconds": 15}}),
            op("apply", "p", {}),
        ],
    ),
    (
        "lease-empty",
        LEASES,
        [
            op("post", "l", {}),
            op("put", "l", {"spec": {"holderIdentity": "a"}}),
        ],
    ),
]


# --- sequences that are generated ---


def _config(rng: random.Random) -> Raw:
    """A random part of a Thing, from few values, so that managers meet."""
    some = {
        "text": lambda: rng.choice(["a", "b"]),
        "number": lambda: rng.choice([1, 2, 3]),
        "flag": lambda: rng.choice([True, False]),
        "labels": lambda: {key: rng.choice("12") for key in rng.sample("abc", rng.randrange(4))},
        "whole": lambda: {key: rng.choice("12") for key in rng.sample("ab", rng.randrange(1, 3))},
        "struct": lambda: {key: rng.choice("12") for key in rng.sample("ab", rng.randrange(1, 3))},
        "tags": lambda: rng.sample(["p", "q", "r", "s"], rng.randrange(4)),
        "order": lambda: rng.sample(["x", "y", "z"], rng.randrange(3)),
        "either": lambda: rng.choice([5, "5%"]),
        "nullable": lambda: rng.choice([None, "x"]),
        "ports": lambda: [
            {"port": port, **rng.choice([{}, {"protocol": "UDP"}, {"name": "n"}, {"name": "m", "protocol": "TCP"}])}
            for port in rng.sample([80, 443, 8080], rng.randrange(3))
        ],
        "nested": lambda: {
            key: value
            for key, value in (
                ("inner", {key: rng.choice("12") for key in rng.sample(["deep", "other"], rng.randrange(1, 3))}),
                (
                    "list",
                    [
                        {
                            "name": name,
                            **rng.choice([{}, {"items": [{"id": rng.choice([1, 2]), "value": rng.choice("xy")}]}]),
                        }
                        for name in rng.sample("ab", rng.randrange(1, 3))
                    ],
                ),
            )
            if rng.random() < 0.6
        },
        "free": lambda: rng.choice([{"a": 1}, {"a": {"b": 1}}, {"a": {"b": [1]}, "c": "x"}, {"a": {"d": True}}, {}]),
    }
    return {name: some[name]() for name in rng.sample(sorted(some), rng.randrange(1, 5))}


def _operations(rng: random.Random, fields: Raw) -> list[Raw]:
    return [
        {"op": "add", "path": f"/spec/{name}", "value": value} for name, value in fields.items() if value is not None
    ]


def generate(seed: int) -> list[Raw]:
    """A random sequence: a create, then patches, updates and applies by few managers."""
    rng = random.Random(seed)
    steps = [op(rng.choice(["post", "apply"]), rng.choice("abc"), spec(**_config(rng)))]
    for _ in range(rng.randrange(4, 9)):
        manager, fields = rng.choice("abc"), _config(rng)
        kind = rng.random()
        if kind < 0.5:
            steps.append(op("apply", manager, spec(**fields), force=rng.random() < 0.4))
        elif kind < 0.65:
            steps.append(
                op("merge", manager, spec(**{k: v if rng.random() < 0.8 else None for k, v in fields.items()}))
            )
        elif kind < 0.72:
            steps.append(op("json", manager, _operations(rng, fields)))
        elif kind < 0.85:
            gone = [
                f"spec.{name}" for name in rng.sample(["text", "labels", "tags", "ports", "nested"], rng.randrange(3))
            ]
            steps.append(op("put", manager, spec(**fields), without=gone))
        else:
            body = {"status": {"phase": rng.choice("xy"), "conditions": [{"type": rng.choice("RS"), "status": "T"}]}}
            steps.append(
                op(rng.choice(["apply", "merge"]), manager, body, subresource="status", force=rng.random() < 0.5)
                if rng.random() < 0.9
                else op("put", manager, body, subresource="status")
            )
    for step in steps:
        if step["verb"] != "apply":
            step.pop("force", None)
    return steps

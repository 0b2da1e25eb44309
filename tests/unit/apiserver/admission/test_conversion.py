"""Objects in several versions: what clients get through a conversion webhook is what a real kube-apiserver gives.

Recorded as in `test_recorded.py`:

    TINKEDGE_ORACLE=peer.kubeconfig pytest tests/unit/apiserver/admission/test_conversion.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import recordings
from tests.unit.apiserver.conftest import Client

Raw = dict[str, Any]
RECORDED = Path(__file__).with_name("recorded-conversion.json")
ORACLE = os.environ.get("TINKEDGE_ORACLE")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
V1 = "/apis/convert.test/v1/namespaces/default/shapes"
V2 = "/apis/convert.test/v2/namespaces/default/shapes"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


def _version(name: str, spec: Raw, *, storage: bool = False) -> Raw:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}
    return {"name": name, "served": True, "storage": storage, "schema": {"openAPIV3Schema": schema}}


DEFINITION: Raw = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "shapes.convert.test"},
    "spec": {
        "group": "convert.test",
        "scope": "Namespaced",
        "names": {"plural": "shapes", "kind": "Shape"},
        "versions": [
            _version("v1", {"size": {"type": "integer"}, "color": {"type": "string", "default": "red"}}, storage=True),
            _version(
                "v2",
                {
                    "dimensions": {"type": "object", "properties": {"size": {"type": "integer"}}},
                    "color": {"type": "string"},
                    "two": {"type": "string", "default": "2"},
                },
            ),
        ],
        "conversion": {
            "strategy": "Webhook",
            "webhook": {
                "clientConfig": {"url": "$URL/convert", "caBundle": "$CA"},
                "conversionReviewVersions": ["v1"],
            },
        },
    },
}


def one(**spec: Any) -> Raw:
    return {"apiVersion": "convert.test/v1", "kind": "Shape", "metadata": {"name": "one"}, "spec": spec or {"size": 3}}


def two(**spec: Any) -> Raw:
    spec = spec or {"dimensions": {"size": 4}}
    return {"apiVersion": "convert.test/v2", "kind": "Shape", "metadata": {"name": "one"}, "spec": spec}


def create(body: Raw, path: str = V1) -> Raw:
    return {"method": "POST", "path": path, "body": body}


def get(path: str = f"{V2}/one") -> Raw:
    return {"method": "GET", "path": path}


def send(method: str, body: Any, path: str, content: str = "application/json", **query: str) -> Raw:
    return {"method": method, "path": path, "body": body, "content": content, "query": query}


def case(*requests: Raw, **answer: Any) -> Raw:
    return {"requests": requests, "hooks": {"/convert": answer}}


def read(**answer: Any) -> Raw:
    """An object stored in v1 that is read in v2, and the webhook answers so."""
    return case(create(one()), get(), **answer)


def _result(**result: Any) -> Raw:
    return {"response": {"result": result}}


CASES: dict[str, Raw] = {
    "read": read(),
    "read in its own version": case(create(one()), get(f"{V1}/one")),
    "create in v2": case(create(two(), V2), get(f"{V1}/one"), get()),
    "replace in v2": case(
        create(one()),
        get(),
        send(
            "PATCH",
            [{"op": "replace", "path": "/spec/dimensions/size", "value": 8}],
            f"{V2}/one",
            "application/json-patch+json",
        ),
        get(f"{V1}/one"),
    ),
    "merge in v2": case(create(one()), send("PATCH", {"spec": {"dimensions": {"size": 9}}}, f"{V2}/one", MERGE)),
    "apply in v2": case(
        create(one()),
        send("PATCH", two(color="green"), f"{V2}/one", APPLY, fieldManager="me", force="true"),
        get(f"{V1}/one"),
    ),
    "delete in v2": case(create(one()), send("DELETE", None, f"{V2}/one"), get()),
    "unknown fields are pruned": read(convert="unknown field"),
    "labels may change, other metadata not": read(convert="label"),
    "other name": read(convert="name"),
    "other namespace": read(convert="namespace"),
    "other uid": read(convert="uid"),
    "other kind": read(convert="kind"),
    "other version": read(convert="stay"),
    "nothing": read(convert="empty"),
    "bad label": read(convert="bad label"),
    "bad annotation": read(convert="bad annotation"),
    "label that is a number": read(convert="number label"),
    "labels that are a list": read(convert="list label"),
    "no metadata": read(convert="no metadata"),
    "metadata that are text": read(convert="text metadata"),
    "too few": read(count=0),
    "failed": read(**_result(status="Failure", message="cannot")),
    "failed without a message": read(**_result(status="Failure")),
    "no result": read(**_result()),
    "wrong uid of the answer": read(response={"uid": "other"}),
    "no response": read(review={"response": "absent"}),
    "other apiVersion of the answer": read(review={"apiVersion": "apiextensions.k8s.io/v1beta1"}),
    "unknown apiVersion of the answer": read(review={"apiVersion": "apiextensions.k8s.io/v7"}),
    "other kind of the answer": read(review={"kind": "AdmissionReview"}),
    "no kind of the answer": read(review={"kind": "absent"}),
    "not JSON": read(raw="nonsense"),
    "code 500": read(code=500, raw="it broke", type="text/plain"),
    "closes": read(drop=True),
    "create fails": case(create(two(), V2), get(f"{V1}/one"), **_result(status="Failure", message="cannot")),
    "update fails": case(
        create(one()),
        send("PATCH", {"spec": {"color": "x"}}, f"{V2}/one", MERGE),
        **_result(status="Failure", message="cannot"),
    ),
    "delete fails": case(
        create(one()),
        send("DELETE", None, f"{V2}/one"),
        get(f"{V1}/one"),
        **_result(status="Failure", message="cannot"),
    ),
}


async def play(client: Client, make_player: Callable[[Any], Any]) -> Raw:
    player = make_player(client)
    await player.install(CRDS, DEFINITION)
    played = {}
    for name, each in CASES.items():
        played[name] = await player.run(each)
        # A real server asks more often, for its caches too, and at times of its own: one question shows what is asked.
        seen = played[name].pop("seen")
        if name == "read":
            played[name]["seen"] = seen[0]
    return played


async def record(connect: Any, make_player: Callable[[Any], Any]) -> None:
    client = connect(Path(ORACLE or ""))
    try:
        recorded = await play(client, make_player)
    finally:
        await client("DELETE", f"{CRDS}/shapes.convert.test")
    RECORDED.write_text(recordings.layout(json.loads(json.dumps(recorded, sort_keys=True))) + "\n")


if ORACLE:
    test_record = record


async def test_clients_get_what_a_real_server_gives(
    bare: Client, make_player: Callable[[Any], Any], differences: Any
) -> None:
    recorded = json.loads(RECORDED.read_text())
    played = await play(bare, make_player)
    different = [line for name in played for line in differences(name, played[name], recorded[name])]
    assert not different, "ours | theirs\n" + "\n".join(different)

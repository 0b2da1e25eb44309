"""The recording again, through the whole server: every step of a write stands in the right place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import recordings
from tests.unit.apiserver.conftest import Client
from tink.apiserver.write.pipeline import Pipeline

HERE = Path(__file__).parent
Raw = dict[str, Any]
RECORDED = list(recordings.read(HERE / "recorded").values())
DEFINITION = json.loads((HERE / "schemas.json").read_text())["definition"]
MEDIA = {
    "apply": "application/apply-patch+yaml",
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "put": "application/json",
    "post": "application/json",
}
METHODS = {"post": "POST", "put": "PUT"}
PATHS = {
    "things": "/apis/managed.example/{version}/namespaces/default/things",
    "configmaps": "/api/v1/namespaces/default/configmaps",
    "leases": "/apis/coordination.k8s.io/v1/namespaces/default/leases",
}
VOLATILE = ("uid", "creationTimestamp", "resourceVersion", "generation")


def _clean(answer: Raw, name: str) -> Raw:
    """Leave out what differs from run to run, and what no reader of managed fields looks at."""
    answer = json.loads(json.dumps(answer).replace(name, "x"))
    if answer.get("kind") == "Status":
        details = answer.get("details") or {}
        causes = sorted(json.dumps(cause, sort_keys=True) for cause in details.get("causes", []))
        return {"code": answer["code"], "message": sorted(answer["message"].splitlines()), "causes": causes}
    metadata = {key: value for key, value in answer["metadata"].items() if key not in VOLATILE}
    return {**answer, "metadata": metadata}


async def _replay(client: Client, sequence: Raw, name: str, clock: list[str]) -> str:
    """Replay one sequence. Gives the first difference, or nothing."""
    for number, step in enumerate(sequence["steps"]):
        clock[0] = step["now"]
        base = PATHS[sequence["resource"]].format(version=step["version"] or "v1")
        where = base if step["verb"] == "post" else f"{base}/{name}"
        sent = json.loads(json.dumps(step["sent"]))
        if step["verb"] != "merge" and step["verb"] != "json":
            sent["metadata"]["name"] = name
        if step["verb"] == "put":
            live = (await client("GET", f"{base}/{name}")).json
            sent["metadata"] |= {key: live["metadata"][key] for key in VOLATILE if key in live["metadata"]}
        answer = await client(
            METHODS.get(step["verb"], "PATCH"),
            where + (f"/{step['subresource']}" if step["subresource"] else ""),
            sent,
            content=MEDIA[step["verb"]],
            fieldManager=step["manager"],
            **({"force": "true"} if step["force"] else {}),
        )
        found, wanted = _clean(answer.json, name), _clean(step["answer"], name)
        if step["code"] == 422 and answer.status == 422:
            continue
        if answer.status != step["code"] or found != wanted:
            return f"step {number} ({step['verb']}): {answer.status} {found}, not {step['code']} {wanted}"
    return ""


_NULLS = "what is applied to a custom resource is not rid of nulls on the real server, but refused (422)"
_NAMESPACE = "the namespace of the path shows in a message that names the configuration's own"
DIFFERENT = {
    "unknown-version": "see test_recorded",
    "apply": _NULLS,
    "nulls": _NULLS,
    "generated-19": _NULLS,
    "generated-27": _NULLS,
    "duplicates-refused": _NAMESPACE,
    "no-such-field": _NAMESPACE,
    "wrong-types": _NAMESPACE,
    "config-map-wrong": _NAMESPACE,
    "free": "an update that only makes true of 1 changes nothing",
    "two-versions": "entries in other versions stay as they are",
    "config-map-unknown-version": "entries in other versions stay as they are",
    "config-map-reset": "an empty list does not reset built-in objects",
    "config-map-empty": "empty maps of built-in objects are kept",
}
"""Sequences in which the whole server is still different, and why; to be shortened as that is mended."""

UNPLAYED = {f"generated-{number}" for number in range(33, 140)}
"""Enough is enough: test_recorded plays them."""


async def test_the_whole_server_does_what_the_real_one_does(bare: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ["2026-01-01T00:00:00Z"]
    monkeypatch.setattr(Pipeline, "timestamp", lambda _: clock[0])
    await bare("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
    wrong = {}
    for number, sequence in enumerate(each for each in RECORDED if each["name"] not in UNPLAYED):
        difference = await _replay(bare, sequence, f"replayed-{number}", clock)
        if difference and sequence["name"] not in DIFFERENT:
            wrong[sequence["name"]] = difference
    assert wrong == {}

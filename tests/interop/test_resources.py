"""Good and bad objects of our kinds: our API answers like a real kube-apiserver.

`resources/answers` holds the cases with the answers of a kube-apiserver, and the definitions that it accepted.
`resources/record.py` records it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests import recordings
from tests.api import serving
from tests.interop.resources.record import collection, definitions, digest

RECORDED = recordings.read(Path(__file__).parent / "resources" / "answers")
ACCEPTED = RECORDED.pop("server")["accepted"]
CASES = [case for cases in RECORDED.values() for case in cases]


def test_kube_apiserver_accepts_the_present_definitions() -> None:
    """Above all the estimated cost of their CEL rules, which only a kube-apiserver knows for sure."""
    now = {crd["metadata"]["name"]: digest(crd) for crd in definitions()}
    assert now == ACCEPTED, "record again: python -m tests.record resources"


def test_table_has_every_error_that_one_object_can_cause() -> None:
    refused = [case for case in CASES if case["fields"]]
    assert len(refused) > 200
    assert len(CASES) - len(refused) > 100
    message = " ".join(cause["message"] for case in refused for cause in case["answer"]["causes"])
    rules = [rule for crd in definitions() for rule in find(crd, "x-kubernetes-validations")]
    assert len(rules) > 25
    for rule in rules:
        assert rule["message"] in message or "messageExpression" in rule, f"no case for the rule {rule['message']!r}"


def find(node: Any, key: str) -> Iterator[Any]:
    if isinstance(node, dict):
        for name, child in node.items():
            if name == key:
                yield from child
            else:
                yield from find(child, key)
    elif isinstance(node, list):
        for child in node:
            yield from find(child, key)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the embedded API's answers to every case."""

    async def play_all() -> dict[str, Any]:
        async with serving(tmp_path_factory.mktemp("api"), definitions()) as (_, client):
            headers = dict(await client._authorize())
            return {case["name"]: await play(client._session, client.url, headers, case) for case in CASES}

    return asyncio.run(play_all())


async def play(session: aiohttp.ClientSession, url: str, headers: dict[str, str], case: dict[str, Any]) -> Any:
    path = url + collection(case["kind"])
    alone = len(case["steps"]) == 1
    merge = {**headers, "Content-Type": "application/merge-patch+json"}
    status: Any = None
    for verb, body in case["steps"]:
        if verb == "create":
            query = {"dryRun": "All"} if alone else {}
            async with session.post(path, json=body, headers=headers, params=query) as got:
                status = await got.json()
        else:
            target = f"{path}/case" + ("/status" if verb == "status" else "")
            patch = {"status": body} if verb == "status" else body
            async with session.patch(target, data=json.dumps(patch), headers=merge) as got:
                status = await got.json()
    if not alone:
        async with session.delete(f"{path}/case", headers=headers) as got:
            await got.read()
    if status["kind"] != "Status":
        return {"code": 200}
    return {key: status[key] for key in ("code", "reason", "message")} | {
        "causes": status.get("details", {}).get("causes", [])
    }


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_embedded_api_answers_like_a_kube_apiserver(case: dict[str, Any], answers: dict[str, Any]) -> None:
    ours, theirs = answers[case["name"]], case["answer"]
    assert ours["code"] == theirs["code"], ours
    key = lambda cause: (cause["field"], cause["reason"], cause["message"])  # noqa: E731
    assert sorted(map(key, ours.get("causes", []))) == sorted(map(key, theirs.get("causes", [])))
    assert ours.get("reason") == theirs.get("reason")

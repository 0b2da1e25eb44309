"""What real definitions need of writes: defaults of a status, several schemas without a webhook, nulls and names in
what is applied, warnings beside refusals. What a real kube-apiserver says to it is in tests/interop/conformance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.apiserver.conftest import CRDS, Answer, Client

CONFORMANCE = Path(__file__).parents[3] / "interop" / "conformance"
_DOCUMENTS = yaml.load_all((CONFORMANCE / "crds.yaml").read_text(), Loader=yaml.CSafeLoader)
DEFINITIONS = {one["spec"]["names"]["kind"]: one for one in _DOCUMENTS}
V1 = "/apis/conf.test/v1/namespaces/default"
MOVABLES = "/apis/conf.test/v1beta1/namespaces/default/movables"
MAPS = "/api/v1/namespaces/default/configmaps"
APPLY = "application/apply-patch+yaml"


def made(kind: str, name: str = "a", version: str = "v1", **parts: Any) -> dict[str, Any]:
    return {"apiVersion": f"conf.test/{version}", "kind": kind, "metadata": {"name": name}, **parts}


@pytest.fixture
async def client(bare: Client) -> Client:
    for kind in ("Gate", "Movable", "Widget"):
        assert (await bare("POST", CRDS, DEFINITIONS[kind])).status == 201
    return bare


def warnings(answer: Answer) -> list[str]:
    return answer.headers.get("Warning", [])


async def apply(client: Client, path: str, config: Any, **query: str) -> Answer:
    return await client("PATCH", path, config, content=APPLY, fieldManager="me", **query)


async def test_status_that_nobody_wrote_is_that_of_the_version_in_which_the_object_is_stored(client: Client) -> None:
    sent = made("Movable", version="v1beta1", spec={"shared": "x"}, status={"phase": "Mine"})
    answer = await client("POST", MOVABLES, sent)
    assert (answer.status, answer.json["status"]) == (201, {"phase": "Stored"})
    assert (await client("GET", f"{V1}/movables/a")).json["status"] == {"phase": "Stored", "stored": "stored"}


async def test_dry_run_answers_what_the_write_would_answer(client: Client) -> None:
    sent = made("Movable", version="v1beta1", spec={"shared": "x", "served": "gone"})
    tried = (await client("POST", MOVABLES, sent, dryRun="All")).json
    created = (await client("POST", MOVABLES, sent)).json
    assert (tried["spec"], tried["status"]) == (created["spec"], created["status"])
    assert created["spec"] == {"shared": "x", "differs": "in v1beta1"}
    changed = {"spec": {"served": "gone too"}}
    tried = (await client.merge(f"{MOVABLES}/a", changed, dryRun="All")).json
    assert tried["spec"] == (await client.merge(f"{MOVABLES}/a", changed)).json["spec"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [(None, "spec"), ({"name": None}, "spec.name"), ({"name": "x", "number": None}, "spec.number")],
)
async def test_null_in_what_is_applied_is_a_value_of_a_wrong_type(client: Client, spec: Any, field: str) -> None:
    answer = await apply(client, f"{V1}/gates/a", made("Gate", spec=spec))
    assert (answer.status, answer.json["details"]["causes"][0]["field"]) == (422, field)
    assert (await client("POST", f"{V1}/gates", made("Gate", spec=None))).status == 201
    answer = await apply(client, f"{V1}/gates/a", made("Gate", spec=spec))
    assert (answer.status, answer.json["details"]["causes"][0]["field"]) == (422, field)


async def test_null_that_may_be_stays_and_a_default_takes_the_place_of_one_that_may_not(client: Client) -> None:
    spec = {"name": "x", "maybe": None, "filled": None, "texts": {"a": None}, "items": [None, "b"]}
    expected = {"name": "x", "maybe": None, "filled": "full", "texts": {"a": "t"}, "items": ["i", "b"]}
    assert (await apply(client, f"{V1}/gates/a", made("Gate", spec=spec))).json["spec"] == expected
    assert (await client("POST", f"{V1}/gates", made("Gate", "b", spec=spec))).json["spec"] == expected


async def test_what_is_applied_and_not_there_says_its_name(client: Client) -> None:
    gate = {"apiVersion": "conf.test/v1", "kind": "Gate", "spec": {"name": "x"}}
    answer = await apply(client, f"{V1}/gates/a", gate)
    assert (answer.status, "name must be provided" in answer.json["message"]) == (400, True)
    answer = await apply(client, f"{MAPS}/a", {"apiVersion": "v1", "kind": "ConfigMap"})
    assert (answer.status, "name must be provided" in answer.json["message"]) == (400, True)
    assert (await apply(client, f"{V1}/gates/a", made("Gate", spec={"name": "x"}))).status == 201
    assert (await apply(client, f"{V1}/gates/a", gate)).status == 200  # which one is meant, the path says
    assert (await apply(client, f"{V1}/gates/a", made("Gate", "b", spec={"name": "x"}))).status == 400


WRONG: dict[str, tuple[str, str, dict[str, Any]]] = {
    "invalid": ("POST", "widgets", made("Widget", "b", spec={"colour": "red", "range": 50})),
    "exists": ("POST", "widgets", made("Widget", spec={"colour": "red"})),
    "elsewhere": ("POST", "widgets", made("Widget", spec={"colour": "red"}) | {"metadata": {"namespace": "other"}}),
    "not there": ("PUT", "widgets/none", made("Widget", "none", spec={"colour": "red"})),
    "another name": ("PUT", "widgets/a", made("Widget", "b", spec={"colour": "red"})),
    "without version": ("PUT", "widgets/a", made("Widget", spec={"colour": "red"})),
}


@pytest.mark.parametrize("case", WRONG)
async def test_unknown_field_is_told_beside_what_is_refused_otherwise(client: Client, case: str) -> None:
    await client("POST", f"{V1}/widgets", made("Widget", spec={"color": "red"}))
    method, path, body = WRONG[case]
    answer = await client(method, f"{V1}/{path}", body)
    assert (answer.status >= 400, warnings(answer)) == (True, ['299 - "unknown field \\"spec.colour\\""'])
    answer = await client(method, f"{V1}/{path}", body, fieldValidation="Ignore")
    assert (answer.status >= 400, warnings(answer)) == (True, [])
    answer = await client(method, f"{V1}/{path}", body, fieldValidation="Strict")
    assert (answer.status, "strict decoding error" in answer.json["message"]) == (400, True)


async def test_warnings_of_a_patch_reach_the_client_beside_the_refusal(client: Client) -> None:
    await client("POST", f"{V1}/widgets", made("Widget", spec={"color": "red"}))
    answer = await client.merge(f"{V1}/widgets/a", {"spec": {"colour": "red", "range": 50}})
    assert (answer.status, warnings(answer)) == (422, ['299 - "unknown field \\"spec.colour\\""'])
    for wrong in ({"resourceVersion": "1"}, {"name": "b"}, {"namespace": "other"}, {"uid": "other"}):
        answer = await client.merge(f"{V1}/widgets/a", {"metadata": wrong, "spec": {"colour": "red"}})
        assert (answer.status >= 400, warnings(answer)) == (True, ['299 - "unknown field \\"spec.colour\\""'])


async def test_finalizer_is_warned_of_once_and_not_beside_a_refusal(client: Client) -> None:
    short = made("Widget", spec={"color": "red"})
    short["metadata"]["finalizers"] = ["short"]
    assert len(warnings(await client("POST", f"{V1}/widgets", short))) == 1
    assert warnings(await client.merge(f"{V1}/widgets/a", {"spec": {"color": "blue"}})) == []
    two = {"metadata": {"finalizers": ["short", "brief"]}}
    assert warnings(await client.merge(f"{V1}/widgets/a", two | {"spec": {"range": 50}})) == []
    assert ['"brief' in text.replace("\\", "") for text in warnings(await client.merge(f"{V1}/widgets/a", two))] == [
        True
    ]


async def test_review_that_is_refused_has_its_warnings(bare: Client) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = await bare("POST", path, {"spec": {"odd": 1}})
    assert (answer.status, warnings(answer)) == (422, ['299 - "unknown field \\"spec.odd\\""'])

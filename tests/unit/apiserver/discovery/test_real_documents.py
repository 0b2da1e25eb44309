"""What a real kube-apiserver said of itself (data/documents), and what we say: clients must find no difference.

Recorded with data/record_documents.py. Texts are our own and not compared, nor is what only a newer Kubernetes has.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests import recordings
from tests.implementation_details import in_common
from tink.apiserver.access import Authenticator
from tink.apiserver.discovery import groups
from tink.apiserver.discovery.documents import DocumentRequest, Documents
from tink.apiserver.errors import StatusError
from tink.apiserver.requests import Form, negotiate
from tink.apiserver.resources import builtin, definitions
from tink.apiserver.resources.registry import Registry
from tink.apiserver.write.reviews import Reviewer, find_review

DATA = Path(__file__).parents[1] / "data"
REAL = recordings.read(DATA / "documents")
WIDGETS = json.loads((DATA / "widgets.json").read_text())
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def now() -> datetime:
    return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture(scope="module")
def registry() -> Registry:
    made = Registry(builtin.resources())
    made.add(definitions.definition_resource(lambda _: []))
    # The scale subresource, whoever serves it: here it matters how it is published.
    widgets = [
        replace(one, subresources=("scale",) if one.version == "v1" else ()) for one in definitions.resources(WIDGETS)
    ]
    made.install("widgets.example.org", widgets)
    return made


@pytest.fixture(scope="module")
def documents(registry: Registry) -> Documents:
    return Documents(registry, now)


def get(documents: Documents, path: str, accept: str = "") -> Any:
    found = documents.answer(DocumentRequest(path, accept))
    assert found is not None
    return orjson.loads(found.body)


def plain(value: Any) -> Any:
    """Leave out texts and the order of lists that have none."""
    if isinstance(value, dict):
        return {
            key: sorted(part) if key in ("required", "consumes", "produces") and _names(part) else plain(part)
            for key, part in value.items()
            if not (key == "description" and isinstance(part, str))
        }
    return [plain(part) for part in value] if isinstance(value, list) else value


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


@pytest.mark.parametrize("version", [3, 2])
@pytest.mark.parametrize("name", ["org.example.v1.Widget", "org.example.v1.WidgetList", "org.example.v1beta1.Widget"])
def test_schema_that_clients_read_is_that_of_a_real_server(documents: Documents, name: str, version: int) -> None:
    if version == 2:
        ours = get(documents, "/openapi/v2")["definitions"][name]
    else:
        ours = get(documents, f"/openapi/v3/apis/example.org/{name.split('.')[2]}")["components"]["schemas"][name]
    assert plain(ours) == plain(REAL[f"schemas{version}"][name])


def test_operations_of_a_custom_resource_are_those_of_a_real_server(documents: Documents) -> None:
    ours = get(documents, "/openapi/v3/apis/example.org/v1")["paths"]
    real = REAL["paths3"]
    assert ours.keys() == real.keys()
    for path in real:
        assert plain(ours[path]) == plain(real[path]), path


def test_operations_of_a_built_in_resource_are_those_of_a_real_server(documents: Documents) -> None:
    ours = {path: item for path, item in get(documents, "/openapi/v3/api/v1")["paths"].items() if "/configmaps" in path}
    assert ours.keys() == REAL["core3"].keys()
    for path, item in REAL["core3"].items():
        for operation in item.values():
            if isinstance(operation, dict) and operation.get("parameters") == []:
                del operation["parameters"]
        assert plain(ours[path]) == plain(item), path


def test_classic_discovery_is_that_of_a_real_server(documents: Documents) -> None:
    for path, real in REAL["classic"].items():
        assert get(documents, path) == real, path
    plurals = [item["name"] for item in REAL["core"]]
    ours = [item for item in get(documents, "/api/v1")["resources"] if item["name"] in plurals]
    assert ours == REAL["core"]


def test_aggregated_discovery_is_that_of_a_real_server(documents: Documents) -> None:
    made = get(documents, "/apis", AGGREGATED)
    assert (made["kind"], made["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")
    ours = {item["metadata"]["name"]: item for item in made["items"]}
    named = ("example.org", "coordination.k8s.io", "authorization.k8s.io", "authentication.k8s.io", "events.k8s.io")
    for name in named:
        assert ours[name] == REAL["aggregated"][name], name
    core = get(documents, "/api", AGGREGATED)["items"][0]["versions"][0]["resources"]
    names = [item["resource"] for item in REAL["aggregated_core"]]
    assert [item for item in core if item["resource"] in names] == REAL["aggregated_core"]


def test_groups_stand_in_the_order_of_a_real_server(registry: Registry) -> None:
    ours = [item["name"] for item in groups.groups(registry)["groups"]]
    assert ours == [name for name in REAL["group_order"] if name in ours]
    early = Registry(registry.all())
    early.install("widgets.aaa.org", [replace(one, group="aaa.org") for one in definitions.resources(WIDGETS)])
    assert [item["name"] for item in groups.groups(early)["groups"]][-2:] == ["aaa.org", "example.org"]


@pytest.mark.parametrize("case", REAL["accept"], ids=lambda case: f"{case['accept']} {case['path'][-7:]}")
def test_accept_header_is_read_as_a_real_server_reads_it(case: Any) -> None:
    many = case["path"].endswith("/widgets")
    if case["status"] == 200:
        made = negotiate(case["accept"], many=many)
        assert made.media == case["media"]
        if made.media == "application/json":
            plain_kind = "example.org/v1 WidgetList" if many else "example.org/v1 Widget"
            list_of = "List" if many and made.form is Form.PARTIAL else ""
            form = f"meta.k8s.io/{made.version} {made.form.value}{list_of}"
            assert case["kind"] == (plain_kind if made.form is Form.OBJECT else form)
        return
    with pytest.raises(StatusError) as refused:
        negotiate(case["accept"], many=many)
    assert refused.value.code == 406


@pytest.mark.parametrize("case", REAL["reviews"], ids=lambda case: f"{case['path'].rpartition('/')[2]} {case['body']}")
def test_review_is_answered_as_a_real_server_that_allows_everything_answers_it(case: Any, tmp_path: Path) -> None:
    steps = case["path"].split("/")
    review = find_review(steps[2], steps[3], steps[-1])
    assert review is not None
    namespace = "default" if "namespaces" in steps else ""
    if case["status"] == 404:
        assert review.namespaced != bool(namespace)
        return
    reviewer = Reviewer(Authenticator("TOKEN".__eq__, tmp_path / "none", now), now)
    body = json.loads(json.dumps(case["body"]))
    if case["status"] != 201:
        with pytest.raises(StatusError) as refused:
            reviewer.answer(review, namespace, body)
        assert refused.value.code == case["status"]
        assert in_common(refused.value.message) == in_common(case["answer"]["message"])
        assert in_common(refused.value.details or {}) == in_common(case["answer"].get("details", {}))
        return
    answer, warnings = reviewer.answer(review, namespace, body)
    answer["metadata"].pop("creationTimestamp", None)
    if "spec" in answer and {"user", "groups"} & set(answer["spec"]):
        # About others than the one who asks: there they may do everything, here nobody knows them.
        assert answer["status"] == {"allowed": False}
        answer["status"] = {"allowed": True}
    for made in (answer, case["answer"]):
        # The real server's token user has an id and an audience; ours needs none.
        made["status"].pop("audiences", None)
        for user in ("user", "userInfo"):
            made["status"].get(user, {}).pop("uid", None)
    assert (answer, warnings) == (case["answer"], [])

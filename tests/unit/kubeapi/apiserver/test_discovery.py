"""Discovery and OpenAPI: equal to those of a real server, cacheable, and current."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from tests import recordings
from tests.implementation_details import in_common
from tests.unit.kubeapi.apiserver.conftest import Client
from tink.kubeapi.apiserver.access import Authenticator
from tink.kubeapi.apiserver.discovery import gnostic, groups
from tink.kubeapi.apiserver.discovery import openapi as openapi_module
from tink.kubeapi.apiserver.discovery.documents import OPENAPI_2, DocumentRequest, Documents, HttpDocument
from tink.kubeapi.apiserver.discovery.openapi import OpenAPI
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.http.app import may_be_document
from tink.kubeapi.apiserver.http.responses import render
from tink.kubeapi.apiserver.media import Accepted, Body, Form, clauses, negotiate, wants_gzip
from tink.kubeapi.apiserver.resources import builtin, definitions
from tink.kubeapi.apiserver.resources.registry import Registry
from tink.kubeapi.apiserver.write.reviews import Reviewer, find_review

DATA = Path(__file__).with_name("data")
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
WIDGETS = "/openapi/v3/apis/example.org/v1"


def definition(group: str = "example.org") -> Any:
    return json.loads((DATA / "widgets.json").read_text().replace("example.org", group))


def now() -> datetime:
    return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def registry() -> Registry:
    made = Registry((*builtin.resources(), definitions.definition_resource(lambda _: [])))
    made.install("widgets.example.org", definitions.resources(definition()))
    return made


@pytest.fixture
def documents(registry: Registry) -> Documents:
    return Documents(registry, now)


def answer(documents: Documents, path: str, accept: str = "", **more: str) -> HttpDocument:
    return documents.answer(DocumentRequest(path, accept, **more))


# --- what clients keep ---


@pytest.mark.parametrize(
    ("path", "accept"),
    [("/apis", AGGREGATED), ("/api", AGGREGATED), ("/openapi/v2", ""), ("/openapi/v3", ""), (WIDGETS, "")],
)
def test_client_with_a_current_document_gets_304(documents: Documents, path: str, accept: str) -> None:
    first = answer(documents, path, accept)
    again = answer(documents, path, accept, known_tag=first.headers["ETag"])
    assert (again.status, again.body, again.headers["ETag"]) == (304, b"", first.headers["ETag"])
    # kubectl puts the headers of this answer over those it kept: another media type would make its copy unreadable.
    assert again.media == first.media
    assert answer(documents, path, accept, known_tag='"other", ' + first.headers["ETag"]).status == 304
    assert answer(documents, path, accept, known_tag='"other"').status == 200


def test_documents_change_with_definitions(registry: Registry, documents: Documents) -> None:
    before = {path: answer(documents, path).headers["ETag"] for path in ("/openapi/v2", "/openapi/v3", WIDGETS)}
    groups = answer(documents, "/apis", AGGREGATED).headers["ETag"]
    registry.install("widgets.example.com", definitions.resources(definition("example.com")))
    assert answer(documents, "/openapi/v2").headers["ETag"] != before["/openapi/v2"]
    assert answer(documents, "/openapi/v3").headers["ETag"] != before["/openapi/v3"]
    assert answer(documents, "/apis", AGGREGATED).headers["ETag"] != groups
    assert answer(documents, WIDGETS).headers["ETag"] == before[WIDGETS]
    registry.remove("widgets.example.com")
    for path, tag in before.items():
        assert answer(documents, path).headers["ETag"] == tag
    assert documents.answer(DocumentRequest("/apis/example.com/v1")) is None


def test_only_changed_groups_are_rebuilt(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    openapi = OpenAPI(registry)
    openapi.index(), openapi.two(), openapi.two_binary()
    made: list[str] = []
    real = openapi_module.resource_schemas
    monkeypatch.setattr(
        openapi_module, "resource_schemas", lambda one, **how: made.append(one.group) or real(one, **how)
    )
    registry.install("widgets.example.com", definitions.resources(definition("example.com")))
    openapi.index(), openapi.two(), openapi.two_binary()
    assert set(made) == {"example.com"}
    made.clear()
    openapi.index(), openapi.two(), openapi.two_binary()
    assert made == []


def test_openapi_3_is_cacheable_without_limit_only_under_its_hash(documents: Documents) -> None:
    index = orjson.loads(answer(documents, "/openapi/v3").body)["paths"]
    relative = index["apis/example.org/v1"]["serverRelativeURL"]
    path, _, tag = relative.partition("?hash=")
    assert path == WIDGETS
    kept = answer(documents, path, hash=tag)
    assert kept.headers["Cache-Control"] == "public, immutable"
    assert kept.headers["Expires"] == "Sat, 02 Jan 2027 03:04:05 GMT"
    assert kept.headers["ETag"] == f'"{tag}"'
    old = answer(documents, path, hash="0123")
    assert (old.status, old.headers["Location"]) == (301, relative)
    assert "Cache-Control" not in answer(documents, path).headers


def test_documents_are_compressed_for_clients_that_accept_it(documents: Documents) -> None:
    whole = answer(documents, "/openapi/v2")
    packed = answer(documents, "/openapi/v2", encoding="gzip, deflate")
    assert (packed.headers["Content-Encoding"], packed.headers["Vary"]) == ("gzip", "Accept, Accept-Encoding")
    assert gzip.decompress(packed.body) == whole.body
    assert "Content-Encoding" not in answer(documents, "/version", encoding="gzip").headers
    assert "Content-Encoding" not in whole.headers
    assert not wants_gzip("deflate, br")


# --- forms ---


def test_openapi_2_is_protobuf_for_kubectl_and_json_for_others(documents: Documents) -> None:
    old = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    for wanted in (old, OPENAPI_2, f"{old}, application/json;q=0.5"):
        made = answer(documents, "/openapi/v2", wanted)
        assert (made.media, made.body[:6]) == (OPENAPI_2, b"\x0a\x032.0\x12")
    for wanted in ("", "*/*", "application/json", f"application/json, {old};q=0.9"):
        assert answer(documents, "/openapi/v2", wanted).body.startswith(b'{"swagger"')
    assert answer(documents, "/openapi/v2", "text/html").status == 406
    assert answer(documents, WIDGETS, "text/html").status == 406


def test_discovery_has_the_version_that_kubectl_accepts(documents: Documents) -> None:
    beta = AGGREGATED.replace("v2", "v2beta1")
    for wanted, version in ((f"{AGGREGATED},{beta},application/json", "v2"), (f"{beta},application/json", "v2beta1")):
        made = answer(documents, "/apis", wanted)
        assert made.media == AGGREGATED.replace("v2", version)
        assert orjson.loads(made.body)["apiVersion"] == f"apidiscovery.k8s.io/{version}"
    classic = answer(documents, "/apis", f"{AGGREGATED.replace('v2', 'v9')},application/json")
    assert orjson.loads(classic.body)["kind"] == "APIGroupList"
    assert yaml.safe_load(answer(documents, "/apis", "application/yaml").body)["kind"] == "APIGroupList"
    assert orjson.loads(answer(documents, "/api", host="10.0.0.1:6443").body)["serverAddressByClientCIDRs"] == [
        {"clientCIDR": "0.0.0.0/0", "serverAddress": "10.0.0.1:6443"}
    ]
    with pytest.raises(StatusError):
        answer(documents, "/apis", "text/html")


def test_root_lists_every_path_and_unknown_paths_are_no_document(documents: Documents) -> None:
    paths = orjson.loads(answer(documents, "").body)["paths"]
    assert {"/api/v1", "/apis/example.org/v1beta1", "/openapi/v2", "/version"} <= {*paths}
    for path in paths:
        if path not in ("/healthz", "/livez", "/readyz", "/openapi/v3/"):
            assert answer(documents, path).status == 200
    for path in ("/apis/none", "/apis/example.org/v9", "/api/v2", "/openapi/v3/apis/none/v1", "/other"):
        assert documents.answer(DocumentRequest(path)) is None
    for path in ("", "/api", "/apis/example.org/v1", "/openapi/v3/apis/example.org/v1", "/version", "/api/v1"):
        assert may_be_document(path)
    for path in ("/api/v1/secrets", "/api/v1/namespaces/x", "/apis/example.org/v1/widgets"):
        assert not may_be_document(path)


def test_invalid_clauses_are_ignored_and_protobuf_comes_last() -> None:
    odd = "a/b/c, /, x, application/json;q=0.3x;;=, *"
    assert [clause.media for clause in clauses(odd)] == ["application/json", "*/*"]
    assert len(clauses("application/json," * 10_000)) <= 32
    protobuf = "application/vnd.kubernetes.protobuf"
    assert negotiate(protobuf, protobuf=True).media == protobuf
    for accept in (f"{protobuf}, */*", f"{protobuf},application/json"):
        assert negotiate(accept, protobuf=True).media == "application/json"
    with pytest.raises(StatusError, match="only the following media types are accepted: application/json, "):
        negotiate(protobuf)
    with pytest.raises(StatusError, match="accepted: application/json;stream=watch, "):
        negotiate("application/yaml", watch=True)


def test_answers_are_indented_or_yaml_on_request() -> None:
    body = b'{"b":{"mac":"52:54:00:12:34:56","on":"yes","n":null,"t":"2026-01-01T00:00:00Z"},"a":[{},{}]}'
    assert yaml.safe_load(render(body, Accepted("application/yaml"))) == json.loads(body)
    assert render(body, Accepted("application/yaml")).startswith(b"a:\n- {}\n- {}\nb:\n")
    assert render(body, Accepted(pretty=True)).startswith(b'{\n  "b": {\n')
    assert render(body, Accepted()) is body


# --- OpenAPI as protobuf ---


def tree(raw: bytes) -> list[tuple[int, Any]]:
    """Parse protobuf without its messages: fields that look like messages are parsed, YAML is read."""
    found: list[tuple[int, Any]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(raw):
        key = varint()
        if key & 7 == 0:
            found.append((key >> 3, varint()))
        else:
            size = 8 if key & 7 == 1 else varint()
            assert key & 7 in (1, 2)
            assert at + size <= len(raw)
            found.append((key >> 3, raw[at : at + size]))
            at += size
    return found


def parsed(raw: bytes) -> Any:
    try:
        parts = [(number, parsed(value) if isinstance(value, bytes) else value) for number, value in tree(raw)]
    except (IndexError, AssertionError):
        parts = []
    if parts and all(number for number, _ in parts):
        return sorted(parts, key=repr)
    try:
        # A loader of strings and nothing else would not see that 1.0 is 1; this one reads as the other side does.
        return repr(yaml.safe_load(raw.decode()))
    except (UnicodeDecodeError, yaml.YAMLError):
        return raw


def test_openapi_in_protobuf_equals_the_output_of_the_real_encoder() -> None:
    """data/gnostic.json holds a document, with every keyword once, and google/gnostic's encoding of it."""
    recorded = json.loads((DATA / "gnostic.json").read_text())
    document = recorded["document"]
    ours = gnostic.document(
        document,
        [(path, gnostic.path_item(item)) for path, item in document["paths"].items()],
        [(name, gnostic.schema(schema)) for name, schema in document["definitions"].items()],
    )
    assert parsed(ours) == parsed(base64.b64decode(recorded["protobuf"]))


def test_documents_of_a_large_definition_are_not_much_larger_than_it(registry: Registry) -> None:
    large = definition("example.net")
    large["spec"]["versions"] = large["spec"]["versions"][1:]
    field = {"type": "object", "properties": {f"p{n}": {"type": "string", "description": "x" * 40} for n in range(100)}}
    schema = large["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"] |= {f"large{n}": field for n in range(120)}
    registry.install("widgets.example.net", definitions.resources(large))
    openapi = OpenAPI(registry)
    size = len(openapi.two().body) + len(openapi.two_binary().body) + len(openapi.index().body)
    assert size < 8 * len(orjson.dumps(large))


async def test_server_answers_documents_with_their_headers_and_lists_in_yaml(bare: Client) -> None:
    first = await bare("GET", "/apis", accept=AGGREGATED)
    assert first.headers["Content-Type"] == [AGGREGATED]
    assert first.headers["Cache-Control"] == ["public"]
    assert (await bare("GET", "/openapi/v2", accept=OPENAPI_2)).headers["Content-Type"] == [OPENAPI_2]
    for method in ("POST", "PUT", "DELETE"):
        assert (await bare(method, "/openapi/v2")).status == 405
    maps = "/api/v1/namespaces/default/configmaps"
    for name in ("", "a", "b"):
        if name:
            await bare("POST", maps, {"metadata": {"name": name}, "data": {"k": "- x\n- y"}})
        text = await bare("GET", maps, accept="application/yaml")
        assert text.headers["Content-Type"][0].startswith("application/yaml")
        assert yaml.safe_load(text.text) == (await bare("GET", maps)).json
        keys = [line.partition(b":")[0] for line in text.text.splitlines() if line[:1].isalpha()]
        assert keys == [b"apiVersion", b"items", b"kind", b"metadata"]


# --- recorded: clients must find no difference. Texts are our own and not compared ---


REAL = recordings.read(DATA / "documents")
"""Documents of a real kube-apiserver, recorded with data/record_documents.py."""


@pytest.fixture(scope="module")
def real_registry() -> Registry:
    made = Registry((*builtin.resources(), definitions.definition_resource(lambda _: [])))
    # The scale subresource; this test is about its publication only.
    found = definitions.resources(definition())
    widgets = [replace(one, subresources=("scale",) if one.version == "v1" else ()) for one in found]
    made.install("widgets.example.org", widgets)
    return made


@pytest.fixture(scope="module")
def real_documents(real_registry: Registry) -> Documents:
    return Documents(real_registry, now)


def get(documents: Documents, path: str, accept: str = "") -> Any:
    return orjson.loads(answer(documents, path, accept).body)


def plain(value: Any) -> Any:
    """Remove descriptions and the order of unordered lists."""
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
def test_published_schema_is_that_of_a_real_server(real_documents: Documents, name: str, version: int) -> None:
    if version == 2:
        ours = get(real_documents, "/openapi/v2")["definitions"][name]
    else:
        ours = get(real_documents, f"/openapi/v3/apis/example.org/{name.split('.')[2]}")["components"]["schemas"][name]
    assert plain(ours) == plain(REAL[f"schemas{version}"][name])


@pytest.mark.parametrize(
    ("path", "key", "part"), [("apis/example.org/v1", "paths3", ""), ("api/v1", "core3", "/configmaps")]
)
def test_operations_of_a_resource_are_those_of_a_real_server(real_documents, path, key, part) -> None:
    paths = get(real_documents, f"/openapi/v3/{path}")["paths"]
    ours = {each: item for each, item in paths.items() if part in each}
    assert ours.keys() == REAL[key].keys()
    for each, item in REAL[key].items():
        for operation in item.values():
            if isinstance(operation, dict) and operation.get("parameters") == []:
                del operation["parameters"]
        assert plain(ours[each]) == plain(item), each


def test_classic_discovery_is_that_of_a_real_server(real_documents: Documents) -> None:
    for path, real in REAL["classic"].items():
        assert get(real_documents, path) == real, path
    plurals = [item["name"] for item in REAL["core"]]
    ours = [item for item in get(real_documents, "/api/v1")["resources"] if item["name"] in plurals]
    assert ours == REAL["core"]


def test_aggregated_discovery_is_that_of_a_real_server(real_documents: Documents) -> None:
    made = get(real_documents, "/apis", AGGREGATED)
    assert (made["kind"], made["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")
    ours = {item["metadata"]["name"]: item for item in made["items"]}
    named = ("example.org", "coordination.k8s.io", "authorization.k8s.io", "authentication.k8s.io", "events.k8s.io")
    for name in named:
        assert ours[name] == REAL["aggregated"][name], name
    core = get(real_documents, "/api", AGGREGATED)["items"][0]["versions"][0]["resources"]
    names = [item["resource"] for item in REAL["aggregated_core"]]
    assert [item for item in core if item["resource"] in names] == REAL["aggregated_core"]


def test_groups_stand_in_the_order_of_a_real_server(real_registry: Registry) -> None:
    ours = [item["name"] for item in groups.groups(real_registry)["groups"]]
    assert ours == [name for name in REAL["group_order"] if name in ours]
    early = Registry(real_registry.all())
    early.install("widgets.aaa.org", [replace(one, group="aaa.org") for one in definitions.resources(definition())])
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
    namespace = "default" if "namespaces" in steps else ""
    if case["status"] == 404:
        assert review.namespaced != bool(namespace)
        return
    reviewer = Reviewer(Authenticator("TOKEN".__eq__, tmp_path / "none", now), now)
    body = Body(json.loads(json.dumps(case["body"])))
    if case["status"] != 201:
        with pytest.raises(StatusError) as refused:
            reviewer.answer(review, namespace, body)
        assert refused.value.code == case["status"]
        assert in_common(refused.value.message) == in_common(case["answer"]["message"])
        assert in_common(refused.value.details or {}) == in_common(case["answer"].get("details", {}))
        return
    found, warnings = reviewer.answer(review, namespace, body)
    found["metadata"].pop("creationTimestamp", None)
    if "spec" in found and {"user", "groups"} & set(found["spec"]):
        # Reviews about other users: on the real server they may do everything, here they are unknown.
        assert found["status"] == {"allowed": False}
        found["status"] = {"allowed": True}
    for made in (found, case["answer"]):
        # The real server's token user has an id and an audience; ours needs none.
        made["status"].pop("audiences", None)
        for user in ("user", "userInfo"):
            made["status"].get(user, {}).pop("uid", None)
    assert (found, warnings) == (case["answer"], [])

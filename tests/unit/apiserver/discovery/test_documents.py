"""Discovery and OpenAPI over the wire and in the cache: what clients keep, and when they must ask again."""

from __future__ import annotations

import base64
import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from tests.unit.apiserver.conftest import Client
from tink.apiserver.discovery.documents import OPENAPI_2, Document, DocumentRequest, Documents
from tink.apiserver.discovery.openapi import OpenAPI, gnostic
from tink.apiserver.errors import StatusError
from tink.apiserver.http.responses import rendered
from tink.apiserver.requests import Accepted, clauses, negotiate, wants_gzip
from tink.apiserver.resources import builtin, definitions
from tink.apiserver.resources.registry import Registry

DATA = Path(__file__).parents[1] / "data"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
WIDGETS = "/openapi/v3/apis/example.org/v1"


def definition(group: str = "example.org") -> Any:
    return json.loads((DATA / "widgets.json").read_text().replace("example.org", group))


def now() -> datetime:
    return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def registry() -> Registry:
    made = Registry(builtin.resources())
    made.add(definitions.definition_resource(lambda _: []))
    made.install("widgets.example.org", definitions.resources(definition()))
    return made


@pytest.fixture
def documents(registry: Registry) -> Documents:
    return Documents(registry, now)


def answer(documents: Documents, path: str, accept: str = "", **more: str) -> Document:
    found = documents.answer(DocumentRequest(path, accept, **more))
    assert found is not None
    return found


# --- what clients keep ---


@pytest.mark.parametrize(
    ("path", "accept"),
    [("/apis", AGGREGATED), ("/api", AGGREGATED), ("/openapi/v2", ""), ("/openapi/v3", ""), (WIDGETS, "")],
)
def test_client_that_has_a_document_already_gets_none(documents: Documents, path: str, accept: str) -> None:
    first = answer(documents, path, accept)
    again = answer(documents, path, accept, known_tag=first.headers["ETag"])
    assert (again.status, again.body, again.headers["ETag"]) == (304, b"", first.headers["ETag"])
    # kubectl puts the headers of this answer over those it kept: another media type would make its copy unreadable.
    assert again.media == first.media
    assert answer(documents, path, accept, known_tag='"other", ' + first.headers["ETag"]).status == 304
    assert answer(documents, path, accept, known_tag='"other"').status == 200


def test_documents_change_when_a_definition_comes_or_goes(registry: Registry, documents: Documents) -> None:
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


def test_only_the_groups_that_changed_are_made_again(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    openapi = OpenAPI(registry)
    openapi.index(), openapi.two(), openapi.two_binary()
    made: list[str] = []
    from tink.apiserver.discovery.openapi import service

    real = service.publish.schemas
    monkeypatch.setattr(service.publish, "schemas", lambda one, **how: made.append(one.group) or real(one, **how))
    registry.install("widgets.example.com", definitions.resources(definition("example.com")))
    openapi.index(), openapi.two(), openapi.two_binary()
    assert set(made) == {"example.com"}
    made.clear()
    openapi.index(), openapi.two(), openapi.two_binary()
    assert made == []


def test_openapi_3_may_be_kept_for_ever_only_under_its_hash(documents: Documents) -> None:
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


def test_documents_are_compressed_for_those_who_ask(documents: Documents) -> None:
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


def test_discovery_is_given_in_the_version_that_kubectl_understands(documents: Documents) -> None:
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


@pytest.mark.parametrize(
    "path", ["/apis/none", "/apis/example.org/v9", "/api/v2", "/openapi/v3/apis/none/v1", "/other"]
)
def test_what_is_not_there_is_no_document(documents: Documents, path: str) -> None:
    assert documents.answer(DocumentRequest(path)) is None


def test_paths_of_objects_are_told_from_those_of_documents_without_work() -> None:
    for path in ("", "/api", "/apis/example.org/v1", "/openapi/v3/apis/example.org/v1", "/version", "/api/v1"):
        assert Documents.may_serve(path)
    for path in ("/api/v1/secrets", "/api/v1/namespaces/x", "/apis/example.org/v1/widgets"):
        assert not Documents.may_serve(path)


def test_root_lists_every_path(documents: Documents) -> None:
    paths = orjson.loads(answer(documents, "").body)["paths"]
    assert {"/api/v1", "/apis/example.org/v1beta1", "/openapi/v2", "/version"} <= {*paths}
    for path in paths:
        if path not in ("/healthz", "/livez", "/readyz", "/openapi/v3/"):
            assert answer(documents, path).status == 200


def test_clauses_that_make_no_sense_are_passed_over() -> None:
    odd = "a/b/c, /, x, application/json;q=0.3x;;=, *"
    assert [clause.media for clause in clauses(odd)] == ["application/json", "*/*"]
    assert len(clauses("application/json," * 10_000)) <= 32


def test_protobuf_is_given_only_where_nothing_else_will_do() -> None:
    protobuf = "application/vnd.kubernetes.protobuf"
    assert negotiate(protobuf, protobuf=True).media == protobuf
    assert negotiate(f"{protobuf}, */*", protobuf=True).media == "application/json"
    assert negotiate(f"{protobuf},application/json", protobuf=True).media == "application/json"
    with pytest.raises(StatusError, match="only the following media types are accepted: application/json, "):
        negotiate(protobuf)
    with pytest.raises(StatusError, match="accepted: application/json;stream=watch, "):
        negotiate("application/yaml", watch=True)


def test_answers_are_written_for_people_and_in_yaml() -> None:
    body = b'{"b":{"mac":"52:54:00:12:34:56","on":"yes","n":null,"t":"2026-01-01T00:00:00Z"},"a":[{},{}]}'
    assert yaml.safe_load(rendered(body, Accepted("application/yaml"))) == json.loads(body)
    assert rendered(body, Accepted("application/yaml")).startswith(b"a:\n- {}\n- {}\nb:\n")
    assert rendered(body, Accepted(pretty=True)).startswith(b'{\n  "b": {\n')
    assert rendered(body, Accepted()) is body


# --- OpenAPI as protobuf ---


def tree(raw: bytes) -> list[tuple[int, Any]]:
    """Take protobuf apart without knowing its messages: what looks like a message is one, YAML is read."""
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


def test_openapi_in_protobuf_is_what_the_real_encoder_writes() -> None:
    """data/gnostic.json holds a document and what google/gnostic makes of it; every keyword is in it once."""
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


async def test_server_answers_documents_with_their_headers(bare: Client) -> None:
    first = await bare("GET", "/apis", accept=AGGREGATED)
    assert first.headers["Content-Type"] == [AGGREGATED]
    assert first.headers["Cache-Control"] == ["public"]
    assert (await bare("GET", "/openapi/v2", accept=OPENAPI_2)).headers["Content-Type"] == [OPENAPI_2]
    for method in ("POST", "PUT", "DELETE"):
        assert (await bare(method, "/openapi/v2")).status == 405
    answer = await bare("GET", "/api/v1/namespaces/default", accept="application/yaml")
    assert answer.headers["Content-Type"][0].startswith("application/yaml")
    assert yaml.safe_load(answer.text)["metadata"]["name"] == "default"
    listed = await bare("GET", "/api/v1/namespaces", accept="application/yaml")
    assert "default" in [item["metadata"]["name"] for item in yaml.safe_load(listed.text)["items"]]
    assert (await bare("GET", "/api/v1/namespaces", accept="text/html")).status == 406


async def test_list_in_yaml_is_the_list_in_json(bare: Client) -> None:
    maps = "/api/v1/namespaces/default/configmaps"
    for name in ("", "a", "b"):
        if name:
            await bare("POST", maps, {"metadata": {"name": name}, "data": {"k": "- x\n- y"}})
        text = await bare("GET", maps, accept="application/yaml")
        assert yaml.safe_load(text.text) == (await bare("GET", maps)).json
        keys = [line.partition(b":")[0] for line in text.text.splitlines() if line[:1].isalpha()]
        assert keys == [b"apiVersion", b"items", b"kind", b"metadata"]


async def test_review_over_the_wire(bare: Client) -> None:
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    asked = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}
    answer = await bare("POST", reviews, asked)
    assert (answer.status, answer.json["status"]) == (201, {"allowed": True})
    strict = await bare("POST", reviews, {"spec": {**asked["spec"], "x": 1}}, fieldValidation="Strict")
    assert (strict.status, 'unknown field "spec.x"' in strict.json["message"]) == (400, True)
    for method, path, status in (
        ("GET", reviews, 405),
        ("GET", f"{reviews}/x", 404),
        ("DELETE", reviews, 405),
        ("POST", "/apis/authorization.k8s.io/v1/namespaces/default/selfsubjectaccessreviews", 404),
    ):
        assert (await bare(method, path, asked if method == "POST" else None)).status == status

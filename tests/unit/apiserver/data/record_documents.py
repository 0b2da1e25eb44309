"""Record what a real kube-apiserver says of itself, for test_real_documents.py.

    python -m tests.record documents

The server must allow everything to the owner of the token. Texts are left out: they are Kubernetes' own.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests import recordings
from tests.peer import DEFINITIONS, Peer

HERE = Path(__file__).parent
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
HEADERS = [
    "",
    "*/*",
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "text/plain",
    "text/plain, application/json;q=0.1",
    "application/json;q=0.1,application/yaml;q=0.9",
    "*/*;q=1,application/yaml;q=0.2",
    "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io",
    f"application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,{TABLE}",
    TABLE,
    TABLE.replace("v1", "v1beta1"),
    TABLE.replace("v1", "v2"),
    f"{TABLE.replace('v1', 'v2')},application/json",
    "application/json;as=Table;v=v1",
    "*/*;as=Table;v=v1;g=meta.k8s.io",
    "application/yaml;as=Table;v=v1;g=meta.k8s.io",
    PARTIAL,
    PARTIAL.replace("PartialObjectMetadata", "PartialObjectMetadataList"),
    "application/json;as=Pod;v=v1;g=meta.k8s.io",
    "application/json;pretty=1",
    "application/json;stream=watch",
    "application/json;stream=other",
    "application/json;sv=v1",
    "application/json;unknown=1",
    "application/json;q=x",
    "application",
    "a/b/c,application/json",
    " application/json ; as=Table ; v=v1 ; g=meta.k8s.io ",
]
ONE = "/apis/example.org/v1/namespaces/default/widgets/w"
MANY = "/apis/example.org/v1/namespaces/default/widgets"
AUTHORIZATION = "/apis/authorization.k8s.io/v1"
AUTHENTICATION = "/apis/authentication.k8s.io/v1"
GET = {"verb": "get", "resource": "pods"}
PATH = {"path": "/x", "verb": "get"}
REVIEWS: list[tuple[str, Any]] = [
    (f"{AUTHORIZATION}/selfsubjectaccessreviews", {"spec": {"resourceAttributes": {"namespace": "default", **GET}}}),
    (f"{AUTHORIZATION}/selfsubjectaccessreviews", {"spec": {"nonResourceAttributes": PATH}}),
    (f"{AUTHORIZATION}/selfsubjectaccessreviews", {"spec": {}}),
    (
        f"{AUTHORIZATION}/selfsubjectaccessreviews",
        {"spec": {"resourceAttributes": GET, "nonResourceAttributes": PATH}},
    ),
    (f"{AUTHORIZATION}/selfsubjectrulesreviews", {"spec": {"namespace": "default"}}),
    (f"{AUTHORIZATION}/selfsubjectrulesreviews", {"spec": {}}),
    (f"{AUTHORIZATION}/subjectaccessreviews", {"spec": {"user": "bob", "resourceAttributes": GET}}),
    (f"{AUTHORIZATION}/subjectaccessreviews", {"spec": {"groups": ["g"], "resourceAttributes": GET}}),
    (f"{AUTHORIZATION}/subjectaccessreviews", {"spec": {"resourceAttributes": GET}}),
    (f"{AUTHORIZATION}/subjectaccessreviews", {"spec": {}}),
    (
        f"{AUTHORIZATION}/namespaces/default/localsubjectaccessreviews",
        {
            "metadata": {"namespace": "default"},
            "spec": {"user": "b", "resourceAttributes": GET | {"namespace": "default"}},
        },
    ),
    (
        f"{AUTHORIZATION}/namespaces/default/localsubjectaccessreviews",
        {
            "metadata": {"namespace": "default"},
            "spec": {"user": "b", "resourceAttributes": GET | {"namespace": "other"}},
        },
    ),
    (
        f"{AUTHORIZATION}/namespaces/default/localsubjectaccessreviews",
        {"metadata": {"namespace": "default"}, "spec": {"user": "b", "nonResourceAttributes": PATH}},
    ),
    (f"{AUTHORIZATION}/localsubjectaccessreviews", {}),
    (f"{AUTHORIZATION}/namespaces/default/selfsubjectaccessreviews", {}),
    (f"{AUTHENTICATION}/selfsubjectreviews", {}),
    (f"{AUTHENTICATION}/tokenreviews", {"spec": {"token": "TOKEN"}}),
    (f"{AUTHENTICATION}/tokenreviews", {"spec": {"token": "wrong"}}),
    (f"{AUTHENTICATION}/tokenreviews", {"spec": {"token": "TOKEN", "audiences": ["other"]}}),
    (f"{AUTHENTICATION}/tokenreviews", {"spec": {}}),
]


class Server:
    """The peer, asked as this recording wants it."""

    def __init__(self, kubeconfig: Path) -> None:
        self._peer = Peer(kubeconfig)
        self.token = self._peer.token

    def ask(self, path: str, accept: str = "application/json", body: Any = None) -> tuple[int, str, bytes]:
        if body is not None:
            body = json.loads(json.dumps(body).replace("TOKEN", self.token))
        answer = self._peer.ask("GET" if body is None else "POST", path, body, accept=accept)
        return answer.code, answer.headers.get("Content-Type", ""), answer.body

    def json(self, path: str, accept: str = "application/json") -> Any:
        return json.loads(self.ask(path, accept)[2])


def stripped(value: Any) -> Any:
    """Leave out texts, what this version of Kubernetes alone has, and defaults that say nothing."""
    if isinstance(value, dict):
        return {
            key: stripped(part)
            for key, part in value.items()
            if not (key == "description" and isinstance(part, str)) and not (key == "default" and part in ("", {}))
        }
    if isinstance(value, list):
        return [stripped(part) for part in value if "shardSelector" not in json.dumps(part)]
    return value


def accepted(server: Server) -> list[Any]:
    found = []
    for header in HEADERS:
        for path in (ONE, MANY):
            status, media, body = server.ask(path, header)
            message, kind = "", ""
            if status == 406 and media == "application/json":
                message = json.loads(body)["message"]
            elif media == "application/json":
                made = json.loads(body)
                kind = f"{made['apiVersion']} {made['kind']}"
            found.append(
                {"accept": header, "path": path, "status": status, "media": media, "kind": kind, "message": message}
            )
    return found


def reviewed(server: Server) -> list[Any]:
    found = []
    for path, body in REVIEWS:
        status, _, raw = server.ask(path, body=body)
        made = json.loads(raw.replace(f'"{server.token}"'.encode(), b'"TOKEN"'))
        made.get("metadata", {}).pop("managedFields", None)
        made.get("metadata", {}).pop("creationTimestamp", None)
        found.append({"path": path, "body": body, "status": status, "answer": made})
    return found


def record(kubeconfig: Path) -> None:
    server = Server(kubeconfig)
    assert server.ask(DEFINITIONS, body=json.loads((HERE / "widgets.json").read_text()))[0] == 201
    time.sleep(5)
    widget = {
        "apiVersion": "example.org/v1",
        "kind": "Widget",
        "metadata": {"name": "w"},
        "spec": {"color": "red", "nul": None},
    }
    assert server.ask(MANY, body=widget)[0] == 201
    three = {version: server.json(f"/openapi/v3/apis/example.org/{version}") for version in ("v1", "v1beta1")}
    two = server.json("/openapi/v2")
    ours = {"org.example.v1.Widget", "org.example.v1.WidgetList", "org.example.v1beta1.Widget"}
    core = server.json("/openapi/v3/api/v1")
    aggregated = {
        path: server.json(path, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
        for path in ("/api", "/apis")
    }
    groups = (
        "example.org",
        "coordination.k8s.io",
        "authorization.k8s.io",
        "authentication.k8s.io",
        "apiextensions.k8s.io",
        "events.k8s.io",
    )
    plurals = ("configmaps", "events", "secrets")
    small = {key: two[key] for key in two if key not in ("paths", "definitions", "parameters")}
    small["paths"] = {path: item for path, item in two["paths"].items() if path.endswith("/widgets/{name}/status")}
    small["definitions"] = {name: two["definitions"][name] for name in ours}
    made = {
        "accept": accepted(server),
        "reviews": reviewed(server),
        "schemas3": {
            name: stripped(schema)
            for document in three.values()
            for name, schema in document["components"]["schemas"].items()
            if name in ours
        },
        "schemas2": {name: stripped(two["definitions"][name]) for name in ours},
        "paths3": stripped(three["v1"]["paths"]),
        "core3": stripped(
            {
                path: item
                for path, item in core["paths"].items()
                if path.startswith("/api/v1/") and "/configmaps" in path and "/watch/" not in path
            }
        ),
        "classic": {
            f"/apis/{path}": server.json(f"/apis/{path}")
            for path in ("example.org", "example.org/v1", "authorization.k8s.io/v1", "events.k8s.io/v1")
        },
        "core": [item for item in server.json("/api/v1")["resources"] if item["name"] in plurals],
        "aggregated": {
            item["metadata"]["name"]: item
            for item in aggregated["/apis"]["items"]
            if item["metadata"]["name"] in groups
        },
        "aggregated_core": [
            item for item in aggregated["/api"]["items"][0]["versions"][0]["resources"] if item["resource"] in plurals
        ],
        "group_order": [item["name"] for item in server.json("/apis")["groups"]],
    }
    recordings.write(HERE / "documents", json.loads(json.dumps(made, sort_keys=True)))

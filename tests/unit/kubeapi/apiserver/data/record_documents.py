"""Record a real kube-apiserver's discovery and OpenAPI documents for test_discovery.py.

    python -m tests.record documents

The server must allow everything to the owner of the token. Descriptions are left out: they are Kubernetes' own. To add
an Accept header or a review, write the request (`accept`; `path` and `body`) into `documents` and record.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests import recordings
from tests.peer import DEFINITIONS, Peer
from tests.waiting import wait_until

HERE = Path(__file__).parent
ONE = "/apis/example.org/v1/namespaces/default/widgets/w"
MANY = "/apis/example.org/v1/namespaces/default/widgets"


class Server:
    """The server to record from."""

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
    """Remove descriptions, fields of this version of Kubernetes alone, and empty defaults."""
    if isinstance(value, dict):
        return {
            key: stripped(part)
            for key, part in value.items()
            if not (key == "description" and isinstance(part, str)) and not (key == "default" and part in ("", {}))
        }
    if isinstance(value, list):
        return [stripped(part) for part in value if "shardSelector" not in json.dumps(part)]
    return value


def accepted(server: Server, asked: list[Any]) -> list[Any]:
    found = []
    for header in dict.fromkeys(case["accept"] for case in asked):
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


def reviewed(server: Server, asked: list[Any]) -> list[Any]:
    found = []
    for case in asked:
        status, _, raw = server.ask(case["path"], body=case["body"])
        made = json.loads(raw.replace(f'"{server.token}"'.encode(), b'"TOKEN"'))
        made.get("metadata", {}).pop("managedFields", None)
        made.get("metadata", {}).pop("creationTimestamp", None)
        found.append({"path": case["path"], "body": case["body"], "status": status, "answer": made})
    return found


def _is_published(server: Server) -> bool:
    """Return True if both OpenAPI documents have both versions of our group."""
    documents = json.dumps([*server.json("/openapi/v3")["paths"]]), json.dumps([*server.json("/openapi/v2")["paths"]])
    return all(f"apis/example.org/{version}" in paths for version in ("v1", "v1beta1") for paths in documents)


def record(kubeconfig: Path) -> None:
    server = Server(kubeconfig)
    asked = recordings.read(HERE / "documents")
    assert server.ask(DEFINITIONS, body=json.loads((HERE / "widgets.json").read_text()))[0] == 201
    wait_until(lambda: _is_published(server))
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
        "accept": accepted(server, asked["accept"]),
        "reviews": reviewed(server, asked["reviews"]),
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

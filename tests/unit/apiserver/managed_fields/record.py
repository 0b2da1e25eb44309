"""Records what a real kube-apiserver does with managed fields, for `test_recorded.py`.

    python -m tests.record managed-fields

Installs the definition of `schemas.json`, runs the sequences of `sequences.py`, each on an object of
its own, and writes every request with its answer to `recorded`. Times stay as they are: the time of each request
is recorded too. A request in which the clock has just moved on is tried again with another object.
"""

from __future__ import annotations

import json
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from tests import recordings
from tests.peer import DEFINITIONS, Peer
from tests.unit.apiserver.managed_fields.sequences import CONFIG_MAPS, LEASES, SEQUENCES, THINGS, generate
from tests.waiting import wait_until

HERE = Path(__file__).parent
SCHEMAS = json.loads((HERE / "schemas.json").read_text())
VOLATILE = ("uid", "creationTimestamp", "resourceVersion", "generation", "selfLink")
MEDIA = {
    "apply": "application/apply-patch+yaml",
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
}
GENERATED = 140
Raw = dict[str, Any]


def call(peer: Peer, method: str, path: str, body: Any = None, media: str = "application/json") -> tuple[int, Any, str]:
    """The code, the object and the server's time."""
    answer = peer.ask(method, path, body, media)
    when = parsedate_to_datetime(answer.headers["Date"]).strftime("%Y-%m-%dT%H:%M:%SZ")
    return answer.code, answer.json, when


def path_of(kind: str, version: str) -> str:
    if kind == THINGS:
        return f"/apis/managed.example/{version or 'v1'}/namespaces/default/things"
    if kind == LEASES:
        return "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    return "/api/v1/namespaces/default/configmaps"


def head(kind: str, name: str, version: str = "") -> Raw:
    versions = {THINGS: f"managed.example/{version or 'v1'}", LEASES: "coordination.k8s.io/v1"}
    kinds = {THINGS: "Thing", LEASES: "Lease", CONFIG_MAPS: "ConfigMap"}
    return {"apiVersion": versions.get(kind, "v1"), "kind": kinds[kind], "metadata": {"name": name}}


def merged(one: Any, other: Any) -> Any:
    """RFC 7386, but null stays: a body may hold it."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return other
    return {**one, **{key: merged(one.get(key), value) for key, value in other.items()}}


def clean(answer: Any) -> Any:
    """Leave out what differs from run to run."""
    if isinstance(answer, dict) and isinstance(answer.get("metadata"), dict):
        kept = {key: value for key, value in answer["metadata"].items() if key not in VOLATILE}
        answer = {**answer, "metadata": kept}
    return answer


class MovedError(Exception):
    """The clock moved on during a request."""


def run(peer: Peer, kind: str, name: str, steps: list[Raw]) -> list[Raw]:
    """Run a sequence of steps on a new object. Raises MovedError."""
    recorded = []
    for step in steps:
        if step["verb"] == "wait":
            time.sleep(1.05)
            continue
        recorded.append(_one(peer, kind, name, step))
    return recorded


def _one(peer: Peer, kind: str, name: str, step: Raw) -> Raw:
    version, subresource, manager = step.get("version", ""), step.get("subresource", ""), step.get("manager", "")
    base = path_of(kind, version)
    where = f"{base}/{name}" + (f"/{subresource}" if subresource else "")
    began = int(time.time())
    query = f"?fieldManager={manager}" if manager else "?"
    verb, body = step["verb"], step.get("body")
    if verb == "post":
        sent = merged(head(kind, name, version), body)
        status, answer, when = call(peer, "POST", base + query, sent)
    elif verb == "put":
        _, live, _ = call(peer, "GET", f"{base}/{name}")
        sent = merged(live, body)
        for gone in step.get("without", []):
            *way, last = gone.split(".")
            at = sent
            for part in way:
                at = at.get(part, {})
            at.pop(last, None)
        status, answer, when = call(peer, "PUT", where + query, sent)
        sent = clean(sent)
    else:
        sent = merged(head(kind, name, version), body) if verb == "apply" and not step.get("bare") else body
        if step.get("force"):
            query += "&force=true"
        status, answer, when = call(peer, "PATCH", where + query, sent, MEDIA[verb])
    if int(time.time()) != began:
        raise MovedError
    return {
        "verb": verb,
        "version": version,
        "subresource": subresource,
        "manager": manager or "recorder",
        "force": bool(step.get("force")),
        "sent": sent,
        "now": when,
        "code": status,
        "answer": clean(answer),
    }


def record(kubeconfig: Path) -> None:
    peer = Peer(kubeconfig)
    peer.ask("POST", DEFINITIONS, SCHEMAS["definition"]).must()
    wait_until(lambda: peer.ask("GET", path_of(THINGS, "v1beta1")).code == 200)
    time.sleep(2)  # until the other version is served, too
    todo = SEQUENCES + [(f"generated-{seed}", THINGS, generate(seed)) for seed in range(GENERATED)]
    recorded = {}
    for number, (name, kind, steps) in enumerate(todo):
        for attempt in range(5):
            unique = f"r{int(time.time())}-{number}-{attempt}"
            try:
                found = run(peer, kind, unique, steps)
            except MovedError:
                continue
            text = json.dumps({"name": name, "resource": kind, "steps": found}).replace(unique, "x")
            recorded[name] = json.loads(text)
            break
        else:
            raise SystemExit(f"{name}: the clock always moves on")
    recordings.write(HERE / "recorded", recorded)

"""Record the managed fields of a real kube-apiserver for `test_recorded.py`.

    python -m tests.record managed-fields

Installs the definition of `schemas.json`, runs the sequences of `recorded`, each on its own object, and writes every
request with its answer back. The time of each request is recorded, too. If the clock moves on during a request, it is
repeated with another object.

To add a sequence, write a file with `name`, `resource` and `steps`. A step needs `verb` and `sent`, and `now` if it
must come a second or more after the step before it. The sequences named `generated-...` were drawn at random.
"""

from __future__ import annotations

import json
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from tests import recordings
from tests.peer import DEFINITIONS, Peer
from tests.waiting import wait_until

HERE = Path(__file__).parent
SCHEMAS = json.loads((HERE / "schemas.json").read_text())
VOLATILE = ("uid", "creationTimestamp", "resourceVersion", "generation", "selfLink")
MEDIA = {
    "post": "application/json",
    "put": "application/json",
    "apply": "application/apply-patch+yaml",
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
}
PATHS = {
    "things": "/apis/managed.example/{version}/namespaces/default/things",
    "configmaps": "/api/v1/namespaces/default/configmaps",
    "leases": "/apis/coordination.k8s.io/v1/namespaces/default/leases",
}
Raw = dict[str, Any]


class ClockMovedError(Exception):
    """The clock moved on during a request."""


def clean(answer: Any) -> Any:
    """Remove values that differ between runs."""
    if isinstance(answer, dict) and isinstance(answer.get("metadata"), dict):
        kept = {key: value for key, value in answer["metadata"].items() if key not in VOLATILE}
        answer = {**answer, "metadata": kept}
    return answer


def run(peer: Peer, resource: str, name: str, steps: list[Raw]) -> list[Raw]:
    """Run a sequence of steps on a new object. Raises ClockMovedError."""
    recorded: list[Raw] = []
    before: Raw = {}
    owners = None
    for step in steps:
        if before and step.get("now", "") > before.get("now", ""):
            began = int(time.time())
            wait_until(lambda began=began: int(time.time()) > began)
        recorded.append(_one(peer, resource, name, step, owners))
        before = step
        if step.get("code", 500) < 300:
            owners = step["answer"]["metadata"].get("managedFields")
    return recorded


def _one(peer: Peer, resource: str, name: str, step: Raw, owners: Any) -> Raw:
    """Do one step. `owners` are the managed fields that the object had before it when it was recorded."""
    verb, sent = step["verb"], json.loads(json.dumps(step["sent"]))
    base = PATHS[resource].format(version=step.get("version") or "v1")
    where = f"{base}/{name}" + (f"/{step['subresource']}" if step.get("subresource") else "")
    if verb not in ("merge", "json") and (sent.get("metadata") or {}).get("name") == "x":
        sent["metadata"]["name"] = name
    if verb == "put":
        live = peer.ask("GET", f"{base}/{name}").json["metadata"]
        sent["metadata"] |= {key: live[key] for key in VOLATILE if key in live}
        if owners and sent["metadata"].get("managedFields") == owners:
            sent["metadata"]["managedFields"] = live["managedFields"]
    manager = "" if step.get("manager", "recorder") == "recorder" else step["manager"]
    query = (f"?fieldManager={manager}" if manager else "?") + ("&force=true" if step.get("force") else "")
    method = {"post": "POST", "put": "PUT"}.get(verb, "PATCH")
    began = int(time.time())
    answer = peer.ask(method, (base if verb == "post" else where) + query, sent, MEDIA[verb])
    if int(time.time()) != began:
        raise ClockMovedError
    return {
        "verb": verb,
        "version": step.get("version", ""),
        "subresource": step.get("subresource", ""),
        "manager": manager or "recorder",
        "force": bool(step.get("force")),
        "sent": clean(sent),
        "now": parsedate_to_datetime(answer.headers["Date"]).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "code": answer.code,
        "answer": clean(answer.json),
    }


def record(kubeconfig: Path) -> None:
    """Run all sequences and write them back."""
    peer = Peer(kubeconfig)
    peer.ask("POST", DEFINITIONS, SCHEMAS["definition"]).must()
    served = [PATHS["things"].format(version=version) for version in ("v1", "v1beta1")]
    wait_until(lambda: all(peer.ask("GET", path).code == 200 for path in served))
    recorded = {}
    for number, (name, sequence) in enumerate(recordings.read(HERE / "recorded").items()):
        for attempt in range(5):
            unique = f"r{int(time.time())}-{number}-{attempt}"
            try:
                found = {**sequence, "steps": run(peer, sequence["resource"], unique, sequence["steps"])}
            except ClockMovedError:
                continue
            recorded[name] = json.loads(json.dumps(found).replace(unique, "x"))
            break
        else:
            raise SystemExit(f"{name}: the clock always moves on")
    recordings.write(HERE / "recorded", recorded)

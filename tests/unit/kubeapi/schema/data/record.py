"""Record the answers of a real kube-apiserver to definitions, and to objects with CEL rules.

    python -m tests.record definitions validations

`definitions` and `validations` hold the questions and the recorded answers. To add a case, write its question there
(`name`, `new`, and `old` for an update) and record.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from tests import recordings
from tests.peer import DEFINITIONS, Answer, Peer
from tests.waiting import wait_until

Raw = dict[str, Any]
HERE = Path(__file__).parent
THINGS = "/apis/example.org/v1/things"


def _causes(answer: Answer) -> list[list[str]]:
    listed = (answer.json.get("details") or {}).get("causes") or []
    return [[cause.get("reason"), cause.get("field", ""), cause["message"]] for cause in listed]


def record_definitions(kubeconfig: Path) -> None:
    """Record what the server answers to definitions. Everything but what an update starts from is a dry run."""
    peer = Peer(kubeconfig)
    asked = recordings.read(HERE / "definitions")
    recordings.write(
        HERE / "definitions", {subject: [_define(peer, case) for case in cases] for subject, cases in asked.items()}
    )


def _define(peer: Peer, case: Raw) -> Raw:
    asked: Raw = {"name": case["name"]}
    if "old" in case:
        asked["old"] = _store(peer, case["old"])
        metadata = {"resourceVersion": asked["old"]["metadata"]["resourceVersion"]}
        if case["new"]["metadata"].get("resourceVersion") == "":
            metadata = {}
        asked["new"] = {**case["new"], "metadata": {**case["new"]["metadata"], **metadata}}
        path = f"{DEFINITIONS}/{case['old']['metadata']['name']}"
        answer = peer.ask("PUT", f"{path}?dryRun=All", asked["new"])
        peer.ask("DELETE", path)
        with contextlib.suppress(AssertionError):  # the server takes minutes if it can never call the webhook
            wait_until(lambda: peer.ask("GET", path).code == 404, within=5)
    else:
        asked["new"] = case["new"]
        answer = peer.ask("POST", f"{DEFINITIONS}?dryRun=All", asked["new"])
    asked |= {"warnings": answer.warnings, "code": answer.code}
    if answer.code < 300:
        return asked | {"object": {**answer.json, "metadata": {}}}
    return asked | {"message": answer.json["message"], "causes": _causes(answer)}


def _store(peer: Peer, old: Raw) -> Raw:
    metadata = {name: value for name, value in old["metadata"].items() if name in ("name", "labels", "annotations")}
    peer.ask("POST", DEFINITIONS, {**old, "metadata": metadata, "status": {}}).must()
    path = f"{DEFINITIONS}/{metadata['name']}"
    wait_until(lambda: _is_settled(peer.ask("GET", path).json))
    stored: Raw = peer.ask("GET", path).json
    stored["metadata"].pop("managedFields", None)
    return stored


def _is_settled(definition: Raw) -> bool:
    """Return True if the definition is served, or never will be."""
    conditions = definition.get("status", {}).get("conditions") or []
    return any(
        (item["type"] == "Established" and item["status"] == "True") or item.get("reason") == "InvalidCABundle"
        for item in conditions
    )


def record_validations(kubeconfig: Path) -> None:
    """Record what CEL rules find in objects, new and changed.

    Objects that an update starts from are stored under a schema that allows everything, which then gets its rules; so
    values that have always been wrong are among them.
    """
    peer = Peer(kubeconfig)
    asked = recordings.read(HERE / "validations")
    for index, group in enumerate(asked.values()):
        peer.ask("POST", DEFINITIONS, _definition(index, None)).must()
        wait_until(lambda index=index: peer.ask("GET", f"{THINGS}{index}").code == 200)
        for number, case in enumerate(group["cases"]):
            if case["old"] is not None:
                peer.ask("POST", f"{THINGS}{index}", _thing(index, number, case["old"])).must()
    for index, group in enumerate(asked.values()):
        path = f"{DEFINITIONS}/things{index}.example.org"
        after = _definition(index, group["schema"])
        after["metadata"]["resourceVersion"] = peer.ask("GET", path).must()["metadata"]["resourceVersion"]
        peer.ask("PUT", path, after).must()
    for index, group in enumerate(asked.values()):
        refused = [(number, case) for number, case in enumerate(group["cases"]) if case.get("causes")][:1]
        for number, case in refused:  # the rules hold when what was refused before is refused
            wait_until(lambda index=index, number=number, case=case: _validate(peer, index, number, case))
        for number, case in enumerate(group["cases"]):
            case["causes"] = _validate(peer, index, number, case)
    recordings.write(HERE / "validations", asked)


def _validate(peer: Peer, index: int, number: int, case: Raw) -> list[list[str]]:
    thing = _thing(index, number, case["new"])
    if case["old"] is None:
        answer = peer.ask("POST", f"{THINGS}{index}?dryRun=All", thing)
    else:
        path = f"{THINGS}{index}/t{number}"
        thing["metadata"]["resourceVersion"] = peer.ask("GET", path).must()["metadata"]["resourceVersion"]
        answer = peer.ask("PUT", f"{path}?dryRun=All", thing)
    causes = _causes(answer)
    if answer.code >= 300 and not causes:
        raise SystemExit(f"{case['name']}: {answer.json}")
    return causes


def _definition(index: int, spec: Raw | None) -> Raw:
    """Return the definition of a group: with its schema, or with one that allows everything."""
    root: Raw = {"type": "object"}
    root |= {"x-kubernetes-preserve-unknown-fields": True} if spec is None else {"properties": {"spec": spec}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things{index}.example.org"},
        "spec": {
            "group": "example.org",
            "scope": "Cluster",
            "names": {"plural": f"things{index}", "kind": f"Thing{index}"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": root}}],
        },
    }


def _thing(index: int, number: int, spec: Any) -> Raw:
    return {"apiVersion": "example.org/v1", "kind": f"Thing{index}", "metadata": {"name": f"t{number}"}, "spec": spec}

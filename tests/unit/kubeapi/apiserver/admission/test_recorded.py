"""Clients and webhooks receive the same from our server and from a real kube-apiserver, case by case.

`recorded` holds the answers of kube-apiserver 1.36.3 to the cases in `cases.yaml`: those to the clients, and the
requests to the webhooks. To record again:

    python -m tests.record admission
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import recordings
from tests.implementation_details import in_common
from tests.unit.kubeapi.apiserver.conformance.test_conformance import differences
from tests.unit.kubeapi.apiserver.conftest import CRDS, Client

Raw = dict[str, Any]
RECORDED = Path(__file__).with_name("recorded")
ORACLE = os.environ.get("TINKEDGE_ORACLE")
PATHS = {
    "w": "/apis/admit.test/v1/namespaces/default/widgets",
    "w2": "/apis/admit.test/v2/namespaces/default/widgets",
    "labelled": "/apis/admit.test/v1/namespaces/labelled/widgets",
    "nowhere": "/apis/admit.test/v1/namespaces/nowhere/widgets",
    "shapes": "/apis/convert.test/v1/namespaces/default/shapes",
    "shapes2": "/apis/convert.test/v2/namespaces/default/shapes",
    "g": "/apis/admit.test/v1/gadgets",
    "ns": "/api/v1/namespaces",
    "validating": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "mutating": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
}
MEDIA = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
    "strategic": "application/strategic-merge-patch+json",
}
RULE = {"operations": ["*"], "apiGroups": ["admit.test"], "apiVersions": ["v1"], "resources": ["widgets"]}
CREATE = {"do": "POST <w>", "of": "Widget", "body": {"metadata": {"name": "one"}, "spec": {"size": 1}}}
SHAPE = {"apiVersion": "convert.test/v1", "kind": "Shape", "metadata": {"name": "one"}, "spec": {"size": 3}}


def _hook(short: Raw) -> Raw:
    short = copy.deepcopy(short)
    path, rule = short.pop("path"), short.pop("rule", {})
    made = {
        "name": f"{path.lower()}.admit.test",
        "clientConfig": {"url": f"$URL/{path}", "caBundle": "$CA"},
        "rules": [{**RULE, **rule}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **short,
    }
    return {name: value for name, value in made.items() if value is not None}


def _configuration(short: Raw) -> Raw:
    made: Raw = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": short["name"]}}
    made["kind"] = f"{short['configure'].capitalize()}WebhookConfiguration"
    return made | ({"webhooks": [_hook(hook) for hook in short["hooks"]]} if "hooks" in short else {})


def _request(short: Raw) -> Raw:
    method, path = short["do"].split(" ")
    made: Raw = {"method": method, "path": re.sub(r"<(\w+)>", lambda found: PATHS[found[1]], path)}
    made["query"] = short.get("query", {})
    if "as" in short:
        made["content"] = MEDIA[short["as"]]
    if "of" in short:
        kind, _, version = short["of"].partition("/")
        made["body"] = {"apiVersion": f"admit.test/{version or 'v1'}", "kind": kind, **short["body"]}
    elif "configuration" in short:
        made["body"] = _configuration(short["configuration"])
    elif "webhooks" in short:
        made["body"] = {"webhooks": [_hook(hook) if "path" in hook else hook for hook in short["webhooks"]]}
    elif "body" in short:
        made["body"] = short["body"]
    return made


def _case(short: Raw, create: Raw) -> Raw:
    requests = [create if request == "create" else request for request in short.get("requests", ["create"])]
    if "stored" in short:
        stored = {"configure": "validating", "name": "v", "hooks": short["stored"]}
        requests = [{"do": "POST <validating>", "query": {"dryRun": "All"}, "configuration": stored}]
    configurations = list(short.get("configurations", []))
    for kind in ("mutating", "validating"):
        if kind in short:
            configurations.append({"configure": kind, "name": kind[0], "hooks": short[kind]})
    return {
        "requests": [_request(request) for request in requests],
        "hooks": short.get("answers", {}),
        "configurations": [_configuration(each) for each in configurations],
        "unordered": short.get("unordered", False),
    }


def _conversion(short: Raw) -> Raw:
    requests = short.get("requests", ["create", {"do": "GET <shapes2>/one"}])
    create = {"do": "POST <shapes>", "body": SHAPE}
    return _case({"requests": requests, "answers": {"/convert": short.get("answer", {})}}, create)


def _read(name: str) -> list[Any]:
    text = re.sub(r"<(\w)\*(\d+)>", lambda found: found[1] * int(found[2]), Path(__file__).with_name(name).read_text())
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))


CASES = {
    group: {name: _conversion(case) if group == "conversion" else _case(case, CREATE) for name, case in cases.items()}
    for group, cases in _read("cases.yaml")[0].items()
}


async def play(group: str, client: Client, make_player: Callable[[Any], Any]) -> Raw:
    """Run the cases of a group on a server."""
    player = make_player(client)
    if not ORACLE or (await client("GET", "/api/v1/namespaces/labelled")).status == 404:
        for each in _read("objects.yaml"):
            await player.install(CRDS if each["kind"] == "CustomResourceDefinition" else PATHS["ns"], each)
    played = {name: await player.run(case) for name, case in CASES[group].items()}
    if group == "conversion":
        # A real server asks more often, for its caches too, and at times of its own: one question shows what is asked.
        for name, each in played.items():
            seen = each.pop("seen")
            if name == "read":
                each["seen"] = seen[0]
    return played


async def record(connect: Any, make_player: Callable[[Any], Any]) -> None:
    answers = {group: await play(group, connect(Path(ORACLE or "")), make_player) for group in CASES}
    recordings.write(RECORDED, json.loads(json.dumps(answers, sort_keys=True)))


if ORACLE:
    test_record = record


@pytest.mark.parametrize("group", CASES)
async def test_clients_and_webhooks_receive_what_a_real_server_sends(
    group: str, bare: Client, make_player: Any
) -> None:
    recorded = json.loads((RECORDED / f"{group}.json").read_text())
    played = await play(group, bare, make_player)
    assert played.keys() == recorded.keys()
    different = list(differences(in_common(recorded), in_common(played)))
    assert not different, "\n".join(different)

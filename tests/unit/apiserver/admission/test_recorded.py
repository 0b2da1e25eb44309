"""What clients and webhooks get from us is what they get from a real kube-apiserver, case by case.

`recorded` holds the answers of kube-apiserver 1.36.3 to the cases in `cases.py`: what each client was told and
what each webhook was sent. To record anew:

    python -m tests.record admission
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import recordings
from tests.unit.apiserver.admission.cases import CASES, DEFINITIONS, NAMESPACES
from tests.unit.apiserver.conftest import Client

Raw = dict[str, Any]
RECORDED = Path(__file__).with_name("recorded")
ORACLE = os.environ.get("TINKEDGE_ORACLE")


async def play(group: str, client: Client, make_player: Callable[[Any], Any]) -> Raw:
    """Run the cases of a group on a server."""
    player = make_player(client)
    if not ORACLE or (await client("GET", "/api/v1/namespaces/labelled")).status == 404:
        for definition in DEFINITIONS:
            await player.install("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        for namespace in NAMESPACES:
            await player.install("/api/v1/namespaces", namespace)
    return {name: await player.run(each) for name, each in CASES[group].items()}


async def record(connect: Any, make_player: Callable[[Any], Any]) -> None:
    said = {group: await play(group, connect(Path(ORACLE or "")), make_player) for group in CASES}
    recordings.write(RECORDED, json.loads(json.dumps(said, sort_keys=True)))


if ORACLE:
    test_record = record


@pytest.mark.parametrize("group", CASES)
async def test_clients_and_webhooks_get_what_a_real_server_gives(
    group: str, bare: Client, make_player: Callable[[Any], Any], differences: Any
) -> None:
    recorded = json.loads((RECORDED / f"{group}.json").read_text())
    played = await play(group, bare, make_player)
    assert played.keys() == recorded.keys()
    different = [line for name in played for line in differences(name, played[name], recorded[name])]
    assert not different, "ours | theirs\n" + "\n".join(different)

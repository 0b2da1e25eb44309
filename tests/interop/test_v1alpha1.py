"""v1alpha1 beside v1alpha2: the embedded API answers as a kube-apiserver with our conversion webhook.

`webhooks/v1alpha1.json` has a real kube-apiserver's answers to CAPT's requests; `webhooks/v1alpha1.py` records them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api import serving
from tests.interop.webhooks import v1alpha1 as recorder
from tink import versions
from tink.api.crds import generate
from tink.webhooks.conversion import served_v1alpha1
from tink.webhooks.server import Webhooks

RECORDED = json.loads((Path(recorder.__file__).parent / "v1alpha1.json").read_text())
BY_WEBHOOK, IN_PROCESS = "by the webhook", "in the process of the API"


@contextlib.asynccontextmanager
async def player(directory: Path, where: str) -> AsyncIterator[recorder.Player]:
    here = where == IN_PROCESS
    converters = dict.fromkeys(versions.DEFINITIONS, versions) if here else {}
    async with serving(directory, generate(serve_v1alpha1=here), converters=converters) as (_, client):
        webhooks = Webhooks(client, [served_v1alpha1()] if where == BY_WEBHOOK else [])
        await webhooks.start()
        try:
            yield await recorder.player(client)
        finally:
            await webhooks.stop()


@pytest.mark.parametrize("where", [BY_WEBHOOK, IN_PROCESS])
async def test_requests_of_capt_are_answered_as_by_a_cluster(tmp_path: Path, where: str) -> None:
    async with player(tmp_path, where) as playing:
        played = await playing.play()
    for ours, theirs in zip(played["answers"], RECORDED["answers"], strict=True):
        assert ours == theirs, theirs["shows"]
    assert played["list"] == RECORDED["list"]
    assert played["list"]["items"] == recorder.MACHINES + 1


@pytest.mark.parametrize(("where", "osie"), [(BY_WEBHOOK, RECORDED["replaced"]), (IN_PROCESS, {"name": "hook"})])
async def test_only_the_embedded_api_restores_fields_that_a_replaced_object_lacks(
    tmp_path: Path, where: str, osie: Any
) -> None:
    assert RECORDED["replaced"] is None
    async with player(tmp_path, where) as playing:
        assert await playing.replace() == osie

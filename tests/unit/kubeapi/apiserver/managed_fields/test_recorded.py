"""The managed fields of a real kube-apiserver (1.36), replayed on the whole API. `record.py` records them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import recordings
from tests.implementation_details import in_common
from tests.unit.kubeapi.apiserver.managed_fields.conftest import Object
from tests.unit.kubeapi.apiserver.managed_fields.record import clean
from tink.kubeapi.apiserver.errors import StatusError

Raw = dict[str, Any]
RECORDED = list(recordings.read(Path(__file__).parent / "recorded").values())
DIFFERENT = {
    "unknown-version": "the real server loses all owners of a custom resource when one entry is in a version that the "
    "definition does not have any more; here only that entry goes, as the real server has it for built-in resources",
    "config-map-reset": "an empty list does not reset built-in objects",
    "config-map-empty": "empty maps of built-in objects are kept",
}


def _compared(answer: Raw) -> Raw:
    """Remove values that differ between runs; keep the visible parts of a refusal, in any order."""
    if answer.get("kind") != "Status":
        return clean(answer)
    causes = (answer.get("details") or {}).get("causes") or []
    return {
        "code": answer["code"],
        "reason": answer.get("reason", ""),
        "message": sorted(in_common(answer["message"]).splitlines()),
        "causes": sorted((cause["reason"], cause["message"], cause["field"]) for cause in causes),
    }


async def _answer(obj: Object, step: Raw) -> Raw:
    try:
        return _compared(await obj.write(step))
    except StatusError as refused:
        return _compared(refused.body())


def _case(sequence: Raw) -> Any:
    why = DIFFERENT.get(sequence["name"])
    return pytest.param(
        sequence, id=sequence["name"], marks=[pytest.mark.xfail(strict=True, reason=why)] if why else []
    )


@pytest.mark.parametrize("sequence", [_case(each) for each in RECORDED])
async def test_every_write_leaves_what_the_real_server_leaves(sequence: Raw) -> None:
    obj = Object(sequence["resource"])
    for number, step in enumerate(sequence["steps"]):
        found, wanted = await _answer(obj, step), _compared(step["answer"])
        where = f"step {number}: {step['verb']} by {step['manager']}"
        if step["code"] == 422:  # what a schema refuses is compared elsewhere
            assert found.get("code") == 422, where
        else:
            assert found == wanted, where

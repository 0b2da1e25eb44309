"""What a real kube-apiserver does with managed fields, replayed (made by `record.py`, Kubernetes 1.36)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import recordings
from tests.implementation_details import in_common
from tink.apiserver.errors import StatusError

RECORDED = list(recordings.read(Path(__file__).parent / "recorded").values())

Raw = dict[str, Any]


DIFFERENT = {
    "unknown-version": "the real server loses all owners of a custom resource when one entry is in a version that the "
    "definition does not have any more; here only that entry goes, as the real server has it for built-in resources",
}
SEQUENCES = [
    pytest.param(
        item,
        id=item["name"],
        marks=[pytest.mark.xfail(strict=True, reason=DIFFERENT[item["name"]])] if item["name"] in DIFFERENT else [],
    )
    for item in RECORDED
]


def _without_noise(obj: Raw) -> Raw:
    volatile = ("uid", "creationTimestamp", "resourceVersion", "generation", "namespace")
    metadata = {key: value for key, value in obj["metadata"].items() if key not in volatile}
    return {**obj, "metadata": metadata}


def _causes(status: Raw) -> list[tuple[str, str, str]]:
    causes = (status.get("details") or {}).get("causes") or []
    return sorted((cause["reason"], cause["message"], cause["field"]) for cause in causes)


def _answer(write: Callable[[Raw], Raw], step: Raw) -> Raw:
    """Give the object, or the status of a refusal; of what the schema refuses only the code."""
    try:
        return write(step)
    except StatusError as refused:
        return refused.body()
    except Exception as refused:
        if type(refused).__name__ != "RefusedError":
            raise
        return {"metadata": {}, "code": 422}


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_every_write_leaves_what_the_real_server_leaves(sequence: Raw, api: Callable[[str], Any]) -> None:
    object_ = api(sequence["resource"])
    for number, step in enumerate(sequence["steps"]):
        where = f"step {number}: {step['verb']} by {step['manager']}"
        wanted, found = step["answer"], _answer(object_.write, step)
        if step["code"] == 422:
            assert found.get("code") == 422, where
        elif step["code"] >= 400:
            assert found.get("code") == step["code"], f"{where}: {found}, not {wanted}"
            ours, theirs = in_common(found["message"]), in_common(wanted["message"])
            assert sorted(ours.splitlines()) == sorted(theirs.splitlines()), where
            assert found.get("reason", "") == wanted.get("reason", ""), where
            assert _causes(found) == _causes(wanted), where
        else:
            assert _without_noise(found) == _without_noise(wanted), where

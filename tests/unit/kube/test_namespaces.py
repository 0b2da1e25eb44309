"""A namespace that is not there is said to be missing; one that may not be looked at is not."""

from __future__ import annotations

from typing import Any

import pytest

from tink.kube.client import KubeClient
from tink.kube.namespaces import say_which_are_missing

ANSWERS = [
    (200, {"kind": "Namespace", "metadata": {"name": "ulm"}}),
    (404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": 'namespaces "berln" not found'}),
    (403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "not yours"}),
]


async def test_name_with_a_slip_is_said(api: Any, client: KubeClient, caplog: pytest.LogCaptureFixture) -> None:
    api.lists = list(ANSWERS)
    await say_which_are_missing(client, ["ulm", "berln", "secret"])
    assert [asked.path for asked in api.asked] == [f"/api/v1/namespaces/{name}" for name in ("ulm", "berln", "secret")]
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "there is no namespace 'berln'" in said

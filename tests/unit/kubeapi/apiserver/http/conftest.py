"""Users with tokens, and a server that has a Workflow and a Secret."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.kubeapi.apiserver.conftest import GROUP, Client
from tink.kubeapi import issue_token

WORKFLOWS = f"{GROUP}/namespaces/default/workflows"
WORKFLOW = {"metadata": {"name": "x"}, "spec": {"hardwareRef": {"name": "m"}, "templateRef": {"name": "t"}}}
SECRETS = "/api/v1/namespaces/default/secrets"
User = Callable[..., str]


@pytest.fixture
def user(tmp_path: Path) -> User:
    """Return a function that creates a user and returns the user's token."""

    def token(name: str, role: str, *namespaces: str, days: float = 1) -> str:
        now = datetime.now(UTC)
        return issue_token(tmp_path / "state", name, role, namespaces, now, now + timedelta(days=days))[1]

    return token


@pytest.fixture
async def some(api: Client) -> Client:
    """A client of a server that has a Workflow and a Secret."""
    assert (await api("POST", WORKFLOWS, WORKFLOW)).status == 201
    assert (await api("POST", SECRETS, {"metadata": {"name": "s"}, "stringData": {"a": "hunter2"}})).status == 201
    return api

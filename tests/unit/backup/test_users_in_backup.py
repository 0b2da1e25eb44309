"""Colleagues' tokens go on working with what is restored."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tink.apiserver import USERS_FILE, issue_token
from tink.backup import contents


def test_users_of_the_api_are_in_a_backup(tmp_path: Path) -> None:
    issue_token(tmp_path, "alice", "view", (), datetime.now(UTC), None)
    assert [name for name, _ in contents.kept_files(tmp_path, osie=False)] == [USERS_FILE]

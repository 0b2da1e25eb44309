"""What is waited for is said: at the start, again for as long as it lasts, and to who asks whether it is ready."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.api import serving
from tests.waiting import until
from tink.metal3 import following
from tink.metal3.following import Follower
from tink.metal3.settings import Metal3Settings


async def test_wrong_token_is_said_again_and_again_with_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_SAY_AGAIN_FIRST", 0.1)
    monkeypatch.setattr(following, "_SAY_AGAIN_LONGEST", 0.1)
    async with serving(tmp_path / "state") as (api, _):
        content = api.kubeconfig.read_text()
        wrong = tmp_path / "wrong.kubeconfig"
        wrong.write_text(content.replace((tmp_path / "state" / "token").read_text().strip(), "tinkedge.wrong"))
        follower = Follower(wrong, None, (), Metal3Settings(), None)
        running = asyncio.create_task(follower.run())
        try:
            with caplog.at_level(logging.WARNING):
                await until(lambda: caplog.text.count("is what --kubeconfig has") >= 3)
            assert "Unauthorized" in follower.not_ready
            assert " s now" in caplog.text
        finally:
            running.cancel()
            await asyncio.wait([running])

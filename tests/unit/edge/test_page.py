"""`tinkedge page` prints a link that lets a browser in, and never the token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner, Result

from edge.cli import main
from tests.page_site import TOKEN, PageSite


def page(url: str, file: Path) -> Result:
    return CliRunner().invoke(main, ["page", "--admin-url", url, "--admin-token-file", str(file)])


@pytest.fixture
async def edge() -> AsyncIterator[Any]:
    async with PageSite().served(**{"X-Nobody": "1"}) as client:
        yield client


async def test_link_lets_a_browser_in_once(edge: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    url = str(edge._base_url)
    result = await asyncio.to_thread(page, url, file)
    assert result.exit_code == 0
    link = result.stdout.strip()
    assert link.startswith(f"{url.rstrip('/')}/enter?code=")
    assert TOKEN not in result.output
    async with aiohttp.ClientSession() as browser:
        assert [(await browser.get(link)).status for _ in range(2)] == [200, 401]


async def test_wrong_token_is_said(edge: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("b" * 64 + "\n")
    result = await asyncio.to_thread(page, str(edge._base_url), file)
    assert result.exit_code == 1
    assert "has another token than that in" in result.output
    assert "b" * 64 not in result.output


@pytest.mark.parametrize(("url", "said"), [("http://127.0.0.1:9", "Is `tinkedge up`"), ("nonsense", "is no URL")])
def test_edge_that_does_not_answer_is_said(url: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    result = page(url, file)
    assert result.exit_code == 1
    assert said in result.output


def test_token_that_is_not_there_is_said(tmp_path: Path) -> None:
    result = page("http://127.0.0.1:9", tmp_path / "token")
    assert result.exit_code == 1
    assert "there is no admin token" in result.output

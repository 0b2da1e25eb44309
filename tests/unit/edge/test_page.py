"""`tinkedge page` prints a link that lets a browser in, and never the token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner, Result

from edge.cli import main
from tests.page_site import TOKEN, PageSite


def page(url: str, file: Path) -> Result:
    return CliRunner().invoke(main, ["page", "--admin-url", url, "--admin-token-file", str(file)])


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with PageSite().served(**{"X-Nobody": "1"}) as client:
        yield str(client._base_url)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(TOKEN + "\n")
    return tmp_path / "token"


async def test_link_lets_a_browser_in_once(url: str, file: Path) -> None:
    result = await asyncio.to_thread(page, url, file)
    assert result.exit_code == 0
    link = result.stdout.strip()
    assert link.startswith(f"{url.rstrip('/')}/enter?code=")
    assert TOKEN not in result.output
    async with aiohttp.ClientSession() as browser:
        assert [(await browser.get(link)).status for _ in range(2)] == [200, 401]


async def test_wrong_token_is_said(url: str, file: Path) -> None:
    file.write_text("b" * 64 + "\n")
    result = await asyncio.to_thread(page, url, file)
    assert result.exit_code == 1
    assert "has another token than that in" in result.output
    assert "b" * 64 not in result.output


def test_edge_that_does_not_answer_and_token_that_is_not_there_are_said(file: Path, tmp_path: Path) -> None:
    for where, token, said in (
        ("http://127.0.0.1:9", file, "Is `tinkedge up`"),
        ("nonsense", file, "is no URL"),
        ("http://127.0.0.1:9", tmp_path / "none", "there is no admin token"),
    ):
        result = page(where, token)
        assert (result.exit_code, said in result.output) == (1, True)

"""Streams that end with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.server.conftest import Rig
from tests.unit.server.dispatch.side import Make, Side


@pytest.fixture
async def side(rig: Rig) -> AsyncIterator[Make]:
    sides: list[Side] = []

    def make(*holds: str, says: bool = True, start: bool = True) -> Side:
        made = Side(rig, frozenset(holds) if says else None)
        sides.append(made)
        if start:
            made.start()
        return made

    yield make
    for made in sides:
        await made.close()

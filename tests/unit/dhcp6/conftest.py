"""Fixtures for tests of DHCPv6: edges to send messages to."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ipxe.binaries import BootBinaries
from tests.unit.dhcp6.harness import Edge6, MakeEdge6, hardware, make


@pytest.fixture
def make_edge(tmp_path: Path) -> MakeEdge6:
    for name in ("undionly.kpxe", "snponly.efi", "ipxe.efi"):
        (tmp_path / name).write_bytes(name.encode() * 100)
    return partial(make, BootBinaries(tmp_path))


@pytest.fixture
def edge(make_edge: MakeEdge6) -> Edge6:
    return make_edge(hardware())

"""A site for firmware to boot at."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from edge.machines import DhcpMode
from ipxe.binaries import BootBinaries
from tests.unit.dhcp.firmware.dialogue import MakeSite, Site
from tests.unit.dhcp.harness import MakeEdge


@pytest.fixture
def binaries(request: pytest.FixtureRequest, tmp_path: Path) -> BootBinaries:
    """Of these names, or of those that a test has as the parameter."""
    for name in getattr(request, "param", ("undionly.kpxe", "snponly.efi", "snponly-arm64.efi")):
        (tmp_path / name).write_bytes(name.encode())
    return BootBinaries(tmp_path)


@pytest.fixture
def make_site(make_edge: MakeEdge) -> MakeSite:
    return partial(Site, make_edge)


@pytest.fixture(params=[DhcpMode.RESERVATION, DhcpMode.PROXY, DhcpMode.AUTO_PROXY], ids=str)
def site(request: pytest.FixtureRequest, make_site: MakeSite) -> Site:
    return make_site(request.param)

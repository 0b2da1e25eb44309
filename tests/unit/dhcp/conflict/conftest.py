"""A machine that declines its address."""

from __future__ import annotations

import pytest

from tests.unit.dhcp.harness import Wire


@pytest.fixture
def decline(wire: Wire, captured: dict[str, bytes]) -> bytes:
    """The DHCPDECLINE of the firmware captures' machine: of 10.77.0.58, given by 10.77.0.1."""
    options = {53: b"\4", 54: b"\x0a\x4d\0\1", 50: b"\x0a\x4d\0\x3a"}
    return wire.altered(captured["plain_discover"], drop=(55,), options=options)

"""What a layout can be learnt from, and what has something of its own."""

from __future__ import annotations

from typing import Any

import pytest

from edge.dhcp.fast_path.layout import layout_of
from edge.dhcp.wire import codec
from tests.unit.dhcp.harness import Wire


@pytest.mark.parametrize(
    "change",
    [
        {"options": {52: b"\1"}},
        {"ciaddr": b"\x0a\x4d\0\x3a"},
        {"options": {97: b"\1" + bytes(16)}},
        {"options": {61: b""}},
        {"options": {82: b"\1\xff"}},
        {"options": {82: b"\1\1a\1\1b"}},
        {"options": {82: b"\0"}},
        {"options": {12: bytes(300)}},
    ],
    ids=[
        "overload", "ciaddr", "UUID of another type", "empty identifier", "lying 82", "82 with a repeated sub-option",
        "82 with a pad", "option in two instances",
    ],
)  # fmt: skip
def test_packet_with_something_of_its_own_is_not_learnt_from(
    wire: Wire, captured: dict[str, bytes], change: dict[str, Any]
) -> None:
    packet = captured["edk2_pxe_discover"]
    assert layout_of(packet, codec.parse(packet)) is not None
    odd = wire.altered(packet, **change)
    assert layout_of(odd, codec.parse(odd)) is None


def test_packet_without_end_or_with_something_behind_the_mac_is_not_learnt_from(captured: dict[str, bytes]) -> None:
    packet = captured["edk2_pxe_discover"]
    assert packet.endswith(b"\xff")
    assert layout_of(packet[:-1], codec.parse(packet[:-1])) is None
    padded = packet[:34] + b"\1" + packet[35:]
    assert layout_of(padded, codec.parse(padded)) is None

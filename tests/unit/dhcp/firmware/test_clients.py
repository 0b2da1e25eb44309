"""The re-implemented clients reject what breaks real firmware."""

from __future__ import annotations

import pytest

from tests.unit.dhcp.firmware.clients import Booted, Edk2, Edk2Pxe, RejectedError
from tests.unit.dhcp.firmware.dialogue import MakeSite
from tests.unit.dhcp.firmware.packets import ROMS


def test_judges_reject_what_breaks_real_firmware(make_site: MakeSite) -> None:
    site = make_site()
    site.register(ROMS[0].mac)
    good = site.ask(ROMS[0])
    assert good is not None

    def judged(offer: bytes) -> Booted:
        firmware = Edk2Pxe(ROMS[0])
        firmware.hear(offer)
        return firmware.boot()

    control = bytes.fromhex("2b04060108ff")
    assert control in good
    with pytest.raises(RejectedError, match="no answer on port 4011"):
        judged(good.replace(control, b"\0" * len(control)))
    with pytest.raises(RejectedError, match="more than"):
        judged(good.ljust(1473, b"\0"))
    # A boot file without its NUL, right before another option: EDK2 writes the NUL over that option's code.
    name = b"snponly.efi"
    unterminated = good[:240] + bytes((67, len(name))) + name + b"\x3c\x09PXEClient" + control + good[240:]
    firmware = Edk2Pxe(ROMS[0])
    firmware.hear(unterminated)
    Edk2.boot_file(firmware.offers[0])
    assert firmware.offers[0][240 + 2 + len(name)] == 0
    with pytest.raises(RejectedError, match="option 54 has 3 bytes"):
        judged(good[:240] + b"\x36\x03\x0a\x4d\x00" + good[240:])

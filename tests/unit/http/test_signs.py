"""Signs of life: what iPXE and the OSIE say on the way, as it comes from firmware, and as nobody should believe it."""

from __future__ import annotations

import pytest

from edge.journey.events import Outcome, Step
from tests.unit.http.conftest import Rack

MAC = "52:54:00:00:00:01"


@pytest.mark.parametrize(
    ("below", "above", "mib"),
    [
        ("00000000ffff0700", "", 512),  # as QEMU says it, to both of Debian's iPXEs
        ("00000000ffff2f00", "00004000ffff0700", None),  # one that ends before it begins
        ("00000000ffff2f00", "00004000ffff4f00", 4096),  # a second one, above 4 GiB
        ("00000000ffffffff", "", None),  # SMBIOS 2.7: the addresses stand elsewhere
        ("", "", None),
        ("ffff", "", None),
        ("x" * 16, "", None),
        ("00000000ffff0700", "zz", None),
    ],
)
async def test_what_ipxe_says_before_the_kernel_is_on_the_journey(
    rack: Rack, below: str, above: str, mib: int | None
) -> None:
    rack.register()
    reply = await rack.ask(f"/sign/starting?model=Maker%20Model&uuid=u&memory={below}&above={above}")
    assert (reply.status, reply.text) == (200, "ok\n")
    (event,) = rack.journey.events(MAC)
    assert (event.step, event.outcome, event.message) == (Step.BOOT, Outcome.INFO, "iPXE starts the kernel")
    memory = {} if mib is None else {"memory_bytes": mib << 20}
    assert event.detail == {"phase": "starting", "model": "Maker Model", "uuid": "u", **memory}


async def test_kernel_that_the_firmware_refuses_is_a_failure_on_the_journey(rack: Rack) -> None:
    rack.register()
    assert (await rack.ask("/sign/failed")).status == 200
    (event,) = rack.journey.events(MAC)
    assert (event.step, event.outcome, event.detail["phase"]) == (Step.BOOT, Outcome.FAILED, "failed")
    assert "Where Secure Boot is on, the kernel of the OSIE must be signed" in event.message


@pytest.mark.parametrize(
    ("clock", "ahead"), [("0", True), ("9999999999", True), ("0x5c3f1b00", True), ("", False), ("10h", False)]
)
async def test_clock_of_a_machine_is_compared_with_ours(rack: Rack, clock: str, ahead: bool) -> None:
    rack.register()
    assert (await rack.ask(f"/sign/starting?clock={clock}")).status == 200
    (event,) = rack.journey.events(MAC)
    assert ("clock_ahead_seconds" in event.detail) is ahead
    if ahead:
        assert abs(int(event.detail["clock_ahead_seconds"]) + event.time - int(clock, 0)) < 60


async def test_sign_of_whom_nobody_knows_is_none(rack: Rack) -> None:
    rack.register()
    assert (await rack.ask("/sign/up", ip="127.0.0.9")).status == 403
    assert (await rack.ask("/sign/down")).status == 404
    assert rack.journey.events(MAC) == []

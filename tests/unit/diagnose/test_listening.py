"""Packets and the journey's events stand in the order in which they happened, though they come on different ways."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import pytest

from edge.diagnose import listening
from edge.diagnose.extra import MissingExtraError, scapy, scapy_sockets
from edge.diagnose.listening import Timed, in_order


@pytest.fixture(autouse=True)
def _blink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HOLD_SECONDS", 0.05)


async def source(*items: tuple[float, float, str]) -> AsyncGenerator[Timed[str], None]:
    """Each after a wait, with the time that it says it happened at."""
    for wait, at, what in items:
        await asyncio.sleep(wait)
        yield Timed(at, what)


async def test_late_event_takes_its_place_before_packets_that_came_sooner() -> None:
    packets = source((0, 1.0, "discover"), (0, 3.0, "request"))
    journey = source((0.01, 2.0, "offered"), (0, 4.0, "acknowledged"))
    assert [what async for what in in_order(packets, journey)] == ["discover", "offered", "request", "acknowledged"]


async def test_lines_of_the_same_moment_keep_the_order_in_which_they_came() -> None:
    assert [what async for what in in_order(source((0, 1.0, "b"), (0, 1.0, "a")))] == ["b", "a"]


async def test_lines_are_not_held_until_the_end() -> None:
    async def endless() -> AsyncGenerator[Timed[str], None]:
        yield Timed(1.0, "first")
        await asyncio.Event().wait()

    async with asyncio.timeout(20), aclosing(in_order(endless())) as stream:
        assert await anext(stream) == "first"


async def test_source_that_fails_is_not_mistaken_for_one_that_ended() -> None:
    async def failing() -> AsyncGenerator[Timed[str], None]:
        yield Timed(1.0, "first")
        raise ZeroDivisionError

    stream = in_order(failing())
    assert await anext(stream) == "first"
    with pytest.raises(ZeroDivisionError):
        await anext(stream)


@pytest.mark.parametrize(("load", "module"), [(scapy, "scapy.all"), (scapy_sockets, "scapy.arch")])
def test_missing_extra_is_named_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[], object], module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"scapy is not installed: .* 'tinkedge\[diagnose\]'"):
        load()


def test_listening_loads_no_dissectors() -> None:
    """They take four times as long as all the rest."""
    script = (
        "import sys; from edge.diagnose.extra import scapy_sockets; assert scapy_sockets().conf.L2listen is not None; "
        "sys.exit('scapy.all' in sys.modules or 'scapy.layers.dhcp' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)

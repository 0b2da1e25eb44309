"""Packets and the journey's events stand in the order in which they happened, though they come on different ways."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace

import pytest

from edge.diagnose import listening
from edge.diagnose.capture import Heard, take_the_rest
from edge.diagnose.extra import MissingExtraError, scapy, scapy_sockets
from edge.diagnose.listening import Listening, Timed, in_order


@pytest.fixture(autouse=True)
def _blink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HOLD_SECONDS", 0.05)


async def source(*items: tuple[float, float, str]) -> AsyncGenerator[Timed[str], None]:
    """Each after a wait, with the time that it says it happened at."""
    for wait, at, what in items:
        await asyncio.sleep(wait)
        yield Timed(at, what)


async def test_late_event_takes_its_place_before_packets_that_came_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HOLD_SECONDS", 20)
    told = asyncio.Event()

    async def packets() -> AsyncGenerator[Timed[str], None]:
        yield Timed(1.0, "discover")
        yield Timed(3.0, "request")
        await told.wait()

    async def journey() -> AsyncGenerator[Timed[str], None]:
        await asyncio.sleep(0.01)
        yield Timed(2.0, "offered")
        yield Timed(4.0, "acknowledged")
        told.set()
        await asyncio.Event().wait()

    found = [what async for what in in_order(packets(), journey())]
    assert found == ["discover", "offered", "request", "acknowledged"]


class Frames:
    """A capture whose thread has not kept up: frames wait when it is told to stop."""

    def __init__(self, _interface: str, _mac: str, heard: Heard, _write: Path | None = None) -> None:
        self._heard = heard
        self._left = 3
        self.seen = 0

    def start(self) -> None:
        self._take()

    def stop(self) -> int:
        while self._left:
            self._take()
        return 0

    def _take(self) -> None:
        self._left -= 1
        self.seen += 1
        self._heard(float(self.seen), b"frame")


async def test_what_was_heard_until_the_end_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "Capture", Frames)
    monkeypatch.setattr(listening.Conversation, "lines", lambda _self, at, _frame: [f"frame {at:.0f}"])
    async with asyncio.timeout(20), Listening("eth0", "52:54:00:00:00:01") as heard:
        lines = heard.heard()
        assert (await anext(lines)).text == "frame 1"
        heard.end()
        assert [line.text async for line in lines] == ["frame 2", "frame 3"]


async def test_end_of_the_packets_gives_what_is_held_and_waits_for_no_event() -> None:
    async def journey() -> AsyncGenerator[Timed[str], None]:
        yield Timed(2.0, "offered")
        await asyncio.Event().wait()

    async with asyncio.timeout(20):
        assert [what async for what in in_order(source((0, 3.0, "request")), journey())] == ["offered", "request"]


def test_frames_that_wait_are_taken_up_to_the_end_and_no_further() -> None:
    frames = [SimpleNamespace(time=at) for at in (1.0, 2.0, 3.0, 4.0)]
    sock = SimpleNamespace(ins=SimpleNamespace(setblocking=lambda _: None), recv=lambda: frames.pop(0))
    taken: list[float] = []
    take_the_rest(sock, 2.5, lambda frame: taken.append(frame.time))
    assert taken == [1.0, 2.0]


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

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

from edge.diagnose import extra, listening
from edge.diagnose.capture import Heard, take_the_rest
from edge.diagnose.extra import MissingExtraError, scapy, scapy_sockets
from edge.diagnose.listening import Listening, Timed, in_order
from tests.support.virtual_time import elapse


async def source(*items: tuple[float, str], after: float = 0.0, ends: bool = True) -> AsyncGenerator[Timed[str], None]:
    """Lines with the times that they say they happened at, `after` some seconds."""
    await elapse(after)
    for at, what in items:
        yield Timed(at, what)
    if not ends:
        await asyncio.Event().wait()


@pytest.mark.looptime
async def test_late_event_takes_its_place_before_packets_that_came_sooner() -> None:
    packets = source((1.0, "discover"), (3.0, "request"), ends=False)
    journey = source((2.0, "offered"), (4.0, "acknowledged"), after=listening.HOLD_SECONDS / 2, ends=False)
    async with aclosing(in_order(packets, journey)) as stream:
        assert [await anext(stream) for _ in range(4)] == ["discover", "offered", "request", "acknowledged"]


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
    async with Listening("eth0", "52:54:00:00:00:01") as heard:
        lines = heard.heard()
        assert (await anext(lines)).text == "frame 1"
        heard.end()
        assert [line.text async for line in lines] == ["frame 2", "frame 3"]


@pytest.mark.looptime
async def test_end_of_the_packets_gives_what_is_held_and_waits_for_no_event() -> None:
    lines = in_order(source((3.0, "request")), source((2.0, "offered"), ends=False))
    assert [what async for what in lines] == ["offered", "request"]
    assert [what async for what in in_order(source((1.0, "b"), (1.0, "a")))] == ["b", "a"], "as they came"
    async with aclosing(in_order(source((1.0, "first"), ends=False))) as stream:
        assert await anext(stream) == "first", "it is not held until the end"


def test_frames_that_wait_are_taken_up_to_the_end_and_no_further() -> None:
    frames = [SimpleNamespace(time=at) for at in (1.0, 2.0, 3.0, 4.0)]
    sock = SimpleNamespace(ins=SimpleNamespace(setblocking=lambda _: None), recv=lambda: frames.pop(0))
    taken: list[float] = []
    take_the_rest(sock, 2.5, lambda frame: taken.append(frame.time))
    assert taken == [1.0, 2.0]


@pytest.mark.looptime
async def test_source_that_fails_is_not_mistaken_for_one_that_ended() -> None:
    async def failing() -> AsyncGenerator[Timed[str], None]:
        yield Timed(1.0, "first")
        raise ZeroDivisionError

    stream = in_order(failing())
    assert await anext(stream) == "first"
    with pytest.raises(ZeroDivisionError):
        await anext(stream)


@pytest.mark.parametrize(
    ("load", "module", "said"),
    [
        (scapy, "scapy.all", "scapy is not installed: .* 'tinkedge"),
        (scapy_sockets, "scapy.arch", "scapy is not installed: .* 'tinkedge"),
        (extra.tftpy, "tftpy", "tftpy is not installed: pip install 'tinkedge"),  # Debian has no package of it
    ],
)
def test_missing_extra_is_named_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[], object], module: str, said: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{said}\[diagnose\]'"):
        load()


def test_listening_loads_no_dissectors() -> None:
    """They take four times as long as all the rest."""
    script = (
        "import sys; from edge.diagnose.extra import scapy_sockets; assert scapy_sockets().conf.L2listen is not None; "
        "sys.exit('scapy.all' in sys.modules or 'scapy.layers.dhcp' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_debians_own_package_will_do_where_the_environment_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extra, "DEBIAN", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(extra, "_PACKAGES", {"selfmade": "python3-selfmade"})
    with pytest.raises(MissingExtraError, match=r"selfmade is not installed: apt install python3-selfmade, or pip"):
        extra._load("selfmade.all")
    assert str(tmp_path) not in sys.path
    (tmp_path / "selfmade").mkdir()
    (tmp_path / "selfmade" / "__init__.py").touch()
    (tmp_path / "selfmade" / "all.py").write_text("HERE = 1\n")
    assert extra._load("selfmade.all").HERE == 1
    assert sys.path[-1] == str(tmp_path), "behind all that is tinkedge's own"

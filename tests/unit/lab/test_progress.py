"""A slow machine is waited for, and one that asks the same for ever is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.lab.progress import Progress

HEAD = "Inter-|   Receive                         |  Transmit\n face |bytes packets errs drop fifo frame compressed\n"


class Rack:
    def __init__(self, directory: Path) -> None:
        self.screen, self.counters = directory / "screen.log", directory / "dev"
        self.screen.touch()
        self.served(0)
        self.progress = Progress(self.screen, "machine0", self.counters)

    def served(self, count: int) -> None:
        lines = [
            f"  {name}: 7 0 0 0 0 0 0 0 {sent} 9 0 0 0 0 0 0\n" for name, sent in (("lo", 10**9), ("machine0", count))
        ]
        self.counters.write_text(HEAD + "".join(lines))

    def shows(self, text: str) -> None:
        with self.screen.open("a") as screen:
            screen.write(text)


@pytest.fixture
def rack(tmp_path):
    return Rack(tmp_path)


def test_machine_that_loads_its_kernel_gets_on_and_one_that_only_asks_for_an_address_does_not(rack):
    assert not rack.progress.made()
    for sent in range(0, 60_000, 1000):
        rack.served(sent)
        assert not rack.progress.made()
    rack.served(5_000_000)
    assert rack.progress.made()
    assert not rack.progress.made()
    rack.served(5_060_000)
    assert not rack.progress.made()
    rack.served(5_070_000)
    assert rack.progress.made(), "a slow download counts as a whole"


def test_machine_that_shows_something_new_gets_on_and_one_that_repeats_itself_does_not(rack):
    rack.shows("[    1.000] Linux version 6.1\n")
    assert rack.progress.made()
    assert not rack.progress.made()
    for attempt in range(5):
        rack.shows(f"Configuring (net0 52:54)..{'.' * attempt}\r\nNo configuration methods succeeded ({attempt})\r\n")
        assert rack.progress.made() is (attempt == 0)
    rack.shows("half a li")
    assert not rack.progress.made()
    rack.shows("ne\n")
    assert rack.progress.made()

"""What the lab refuses and shows, when it gives up, and what it clears away."""

import os
import subprocess
from contextlib import nullcontext

import pytest
from click.testing import CliRunner

from edge.commands.lab import lab
from edge.journey.events import Outcome
from edge.lab import namespaces as made
from edge.lab.namespaces import remove_abandoned
from edge.lab.progress import Progress
from edge.lab.rack import PREFIX
from edge.lab.screen import Screen
from edge.lab.shell import CommandError

# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ipv6 --dual-stack", "--ipv6 is a rack without IPv4, --dual-stack one with both"),
        ("--static", "--static is for a machine that starts from a medium"),
        ("--full --medium usb", "a BIOS starts a USB stick and never the disk after it"),
    ],
)
def test_options_that_exclude_each_other_are_named(words, said):
    result = CliRunner().invoke(lab, words.split())
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


# --- one line a step, with times that mean something ------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_times_are_the_labs_in_brackets_and_the_machines_from_power_on(clock, capsys):
    screen = Screen(clock)
    clock.now += 2.5
    screen.step("build", "OSIE")
    assert screen.since_power_on() == 0
    clock.now += 10
    screen.power_on()
    clock.now += 0.25
    screen.step("dhcp", "DHCPACK")
    assert screen.elapsed() == 12.75
    assert screen.since_power_on() == 0.25
    for outcome in (Outcome.INFO, Outcome.WARNING, Outcome.REFUSED, Outcome.FAILED):
        screen.step("step", "said", outcome)
    assert capsys.readouterr().out.splitlines() == [
        "[  2.50 s] ✓ build     OSIE",
        "   0.25 s ✓ dhcp      DHCPACK",
        *(f"   0.25 s {sign} step      said" for sign in "·?!✗"),
    ]


def test_errors_go_to_standard_error_and_without_a_terminal_without_colours(clock, capsys):
    screen = Screen(clock)
    screen.error("lab failed")
    screen.block("two\nlines")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("two\nlines\n", "lab failed\n")


def test_silence_is_broken_by_what_is_waited_for(clock, capsys):
    screen = Screen(clock, terminal=False)
    screen.step("build", "OSIE")
    clock.now += 1
    screen.waiting(lambda: "fetching")
    assert "fetching" not in capsys.readouterr().out
    clock.now += 2
    screen.waiting(lambda: "fetching")
    screen.waiting(lambda: "fetching")
    assert capsys.readouterr().out.splitlines() == ["[  3.00 s] · ...       fetching"]


def test_on_a_terminal_it_is_one_line_that_the_next_step_replaces(clock, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen(clock, terminal=True)
    clock.now += 1
    screen.waiting(lambda: "fetching " + "x" * 100)
    clock.now += 1
    screen.waiting(lambda: "unpacking")
    screen.step("build", "done")
    written = capsys.readouterr().out
    assert written.count("\n") == 1
    first, second, third = written.split("\r\033[K")
    assert len(first) == 39
    assert second == "[  2.00 s] · ...       unpacking"
    assert third == "[  2.00 s] ✓ build     done\n"


# --- a slow machine is waited for, and one that asks the same for ever is not -----------------------------------------


HEAD = "Inter-|   Receive                         |  Transmit\n face |bytes packets errs drop fifo frame compressed\n"


class Rack:
    """What the lab sees of its rack: the machine's screen, and the kernel's counters of its interface."""

    def __init__(self, directory):
        self.screen, self.counters = directory / "screen.log", directory / "dev"
        self.screen.touch()
        self.served(0)
        self.progress = Progress(self.screen, "machine0", self.counters)

    def served(self, count):
        lines = (
            "  {}: 7 0 0 0 0 0 0 0 {} 9 0 0 0 0 0 0\n".format(*each) for each in (("lo", 10**9), ("machine0", count))
        )
        self.counters.write_text(HEAD + "".join(lines))

    def shows(self, text):
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


# --- racks of labs that were killed are cleared away; those of labs that run are not touched --------------------------


@pytest.fixture
def gone():
    """The pid of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def namespaces(tmp_path, monkeypatch):
    directory = tmp_path / "netns"
    directory.mkdir()
    monkeypatch.setattr(made, "NAMESPACES", directory)

    async def run(command, **_):
        assert command[:3] == ["ip", "netns", "delete"]
        (directory / command[3]).unlink()
        return ""

    monkeypatch.setattr(made, "run", run)
    return directory


async def test_only_namespaces_of_ended_labs_are_removed(namespaces, gone):
    others = {f"{PREFIX}{os.getpid()}", f"{PREFIX}x", PREFIX, f"other-{gone}", str(gone)}
    for name in (f"{PREFIX}{gone}", *others):
        (namespaces / name).touch()
    await remove_abandoned(PREFIX)
    assert {entry.name for entry in namespaces.iterdir()} == others
    for entry in namespaces.iterdir():
        entry.unlink()
    namespaces.rmdir()
    await remove_abandoned(PREFIX)  # a host without any namespace is fine


@pytest.mark.parametrize("goes", [True, False])
async def test_namespace_that_another_lab_removes_meanwhile_is_fine_and_one_that_stays_is_an_error(
    namespaces, gone, monkeypatch, goes
):
    entry = namespaces / f"{PREFIX}{gone}"
    entry.touch()

    async def fail(*_):
        if goes:
            entry.unlink()
        raise CommandError("ip netns delete: Operation not permitted")

    monkeypatch.setattr(made, "run", fail)
    with nullcontext() if goes else pytest.raises(CommandError, match="not permitted"):
        await remove_abandoned(PREFIX)

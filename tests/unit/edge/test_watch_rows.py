"""`tinkedge watch` shows one line a machine, and one machine with all its steps and how long they took."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from edge.cli import main
from edge.commands.watching.table import Table, columns, line_of
from edge.commands.watching.words import cells, cut, printable, span, wrapped
from edge.journey.events import Outcome, Step
from edge.journey.follow import Rows
from edge.journey.steps import Milestone
from edge.page.feed import AT_ONCE
from tests.page_site import INSTALLATION, TOKEN, PageSite
from tests.page_site import cut as boot_until

T0 = 1_700_000_000.0
EVIL = "\x1b[31mred\x1b]0;title\x07\n\u202egnp.exe"
Watch = Callable[..., Any]


@pytest.fixture
async def site() -> PageSite:
    return PageSite(T0)


@pytest.fixture
async def watch(site: PageSite, tmp_path: Path) -> AsyncIterator[Watch]:
    """`await watch(*options)` of that site's edge."""
    token = tmp_path / "admin-token"
    token.write_text(TOKEN)
    async with site.served() as client:

        async def run(*options: str) -> Result:
            where = ["--admin-url", str(client._base_url).rstrip("/"), "--admin-token-file", str(token)]
            return await asyncio.to_thread(CliRunner().invoke, main, ["watch", *where, *options])

        yield run


def row(**changed: Any) -> dict[str, Any]:
    mac = "52:54:00:00:00:01"
    fine = {"mac": mac, "hardware": "default/m1", "address": "10.0.0.1", "kind": "booting", "state": "has an address"}
    times = {"since": T0, "heard": T0, "awaited": "that it asks for its boot program", "deadline": T0 + 8}
    rest = {"usual_seconds": 2.5, "reason": None, "wrong": None, "warning": False, "message": "DHCPACK"}
    return {**fine, **times, **rest, **changed}


async def test_every_machine_has_a_line_with_its_state_what_is_awaited_and_what_is_wrong(
    site: PageSite, watch: Watch
) -> None:
    one, two, _ = (site.hardware(name, number) for number, name in enumerate(("m1", "m2", "m3"), start=1))
    site.play(one, INSTALLATION, T0, "m1")
    site.play(two, boot_until(Milestone.LEASED), T0 + 500, "m2")
    for second in range(20):
        site.sweep(T0 + 506 + second)
    site.journey.record("02:00:00:aa:bb:cc", Step.SEEN, Outcome.INFO, "seen, not registered")
    result = await watch("--once")
    assert result.exit_code == 0, result.stderr
    head, *lines = result.stdout.splitlines()
    assert head.split() == ["MACHINE", "STATE", "FOR", "AWAITED,", "OR", "WHAT", "IS", "WRONG"]
    assert [line.split()[0] for line in lines] == ["default/m2", "02:00:00:aa:bb:cc", "default/m1", "default/m3"]
    assert lines[0].split(maxsplit=1)[1].startswith("has an address")
    assert "! NoTFTPRequest: has 10.0.0.2" in lines[0]
    assert "not registered" in lines[1]
    assert "installed system is up" in lines[2]
    assert "never heard" in lines[3]


async def test_programs_get_each_machine_as_json(site: PageSite, watch: Watch) -> None:
    mac = site.hardware("m1", 1)
    site.play(mac, boot_until(Milestone.LEASED), T0, "m1")
    (line,) = (await watch("--once", "--json")).stdout.splitlines()
    told = json.loads(line)
    assert (told["mac"], told["hardware"], told["state"], told["kind"]) == (
        mac,
        "default/m1",
        "has an address",
        "booting",
    )
    assert (told["awaited"], told["since"]) == ("that it asks for its boot program", T0 + 4.9)
    assert told["deadline"] == pytest.approx(T0 + 12.9)


async def test_more_machines_than_one_message_has_are_all_there(site: PageSite, watch: Watch) -> None:
    for number in range(1, AT_ONCE + 40):
        site.hardware(f"m{number}", number)
    result = await watch("--once")
    assert len(result.stdout.splitlines()) == AT_ONCE + 40


async def test_edge_without_machines_says_so(watch: Watch) -> None:
    assert "no machine is registered, and none was heard" in (await watch("--once")).stdout


async def test_one_machine_is_shown_with_every_step_and_how_long_it_took(site: PageSite, watch: Watch) -> None:
    mac = site.hardware("m1", 1)
    site.play(mac, INSTALLATION, T0 - 1000, "m1")
    site.play(mac, INSTALLATION, T0, "m1")
    result = await watch("--once", "m1")
    lines = result.stdout.splitlines()
    assert lines[0] == f"default/m1  {mac}  10.0.0.1"
    assert lines[1].startswith("installed system is up, for ")
    began = [line for line in lines if line.startswith("boot of")]
    assert len(began) == 2
    steps = {line[11:] if line[4] != "-" else line[22:] for line in lines if line.startswith("  ")}
    assert any("loads the initrd" in line and "6.5s" in line and "usually 6.5s" in line for line in steps), (
        result.stdout
    )
    assert any("action stream-image" in line and "44s" in line for line in steps), result.stdout
    offered = next(line for line in lines if "DHCPACK to UEFI" in line)
    assert "+4.9s dhcp      ok" in offered


async def test_one_machine_for_programs_has_its_boots_and_events(site: PageSite, watch: Watch) -> None:
    mac = site.hardware("m1", 1)
    site.play(mac, INSTALLATION, T0, "m1")
    first, *events = map(json.loads, (await watch("--once", "--json", mac)).stdout.splitlines())
    steps = {step["step"]: step["seconds"] for step in first["boots"][-1]["steps"]}
    assert steps["loads the initrd"] == 6.5
    assert steps["action stream-image"] == 43.5
    assert len(events) == len(INSTALLATION)


async def test_what_machines_and_templates_say_moves_no_cursor(site: PageSite, watch: Watch) -> None:
    mac = site.hardware("m1", 1)
    site.play(mac, boot_until(Milestone.WORKFLOW_RUNNING), T0, "m1")
    site.journey.record(mac, Step.ACTION, Outcome.INFO, EVIL, action=EVIL, state="Running", output=EVIL)
    for options in ([], ["m1"], ["m1", "--logs"]):
        out = (await watch("--once", *options)).stdout
        assert "red" in out
        assert {"\x1b", "\x07", "\u202e"}.isdisjoint(out)


def test_every_line_fits_into_eighty_columns() -> None:
    long = row(
        hardware="a-namespace/a-very-long-name-of-a-machine", state="action " + "x" * 90, wrong="w" * 300, reason="R"
    )
    wide = row(hardware="default/日本語の名前の機械", state="日本語" * 20)
    for each in (row(), long, wide, row(awaited=None, since=None, heard=None)):
        line = line_of(columns(each, T0 + 1), 20, 80)
        assert cells(line) <= 80, line
    assert line_of(columns(row(), T0 + 1), 17, 80) == (
        "default/m1        has an address             1.0s asks for its boot program: ta…"
    )


def test_terminal_is_drawn_anew_with_those_first_that_need_somebody() -> None:
    said: list[str] = []
    table = Table(
        as_json=False, live=True, echo=said.append, clock=lambda: T0 + 1, size=lambda: os.terminal_size((80, 8))
    )
    rows = [row(mac=f"52:54:00:00:00:{n:02x}", hardware=f"default/m{n}") for n in range(1, 30)]
    table.take(Rows(rows, [], False, ["eth1 has no IPv4 address"]))
    table.take(
        Rows([row(hardware="default/m1", kind="trouble", wrong="lost", reason="Lost", warning=True)], [], False, None)
    )
    lines = said[-1].removeprefix("\x1b[H\x1b[J").splitlines()
    assert len(lines) <= 8
    assert "eth1 has no IPv4 address" in lines[0]
    assert "default/m1 " in lines[2]
    assert "! Lost: lost" in lines[2]
    assert "default/m2 " in lines[3]
    assert lines[-1].startswith("and 25 more")


def test_list_that_is_shown_once_is_sorted_as_a_whole_and_fits_the_terminal() -> None:
    said: list[str] = []
    table = Table(as_json=False, live=False, once=True, width=80, echo=said.append, clock=lambda: T0 + 1)
    table.take(Rows([row()], [], True, []))
    lost = row(
        mac="52:54:00:00:00:02", hardware="default/m2", kind="trouble", wrong="w" * 200, reason="R", warning=True
    )
    table.take(Rows([lost], [], False, None))
    assert [line.split()[0] for line in said] == ["MACHINE", "default/m2", "default/m1"]
    assert max(map(cells, said)) == 80


def test_elsewhere_a_line_is_said_again_only_when_it_has_changed() -> None:
    said: list[str] = []
    table = Table(as_json=False, live=False, echo=said.append, clock=lambda: T0 + 1)
    table.take(Rows([row()], [], False, []))
    table.take(Rows([row(heard=T0 + 1, message="again")], [], False, None))
    table.take(Rows([row(state="loads its boot program")], [], False, None))
    assert [line.split()[0] for line in said] == ["MACHINE", "default/m1", "default/m1"]


@pytest.mark.parametrize(
    ("seconds", "words"), [(-1, "0.0s"), (9.94, "9.9s"), (12, "12s"), (200, "3m20s"), (7500, "2h05m"), (400_000, "5d")]
)
def test_durations_are_short(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_words_of_any_length_are_wrapped_and_cut() -> None:
    lines = list(wrapped("one two " + "x" * 50 + " three", 20, "  "))
    assert all(cells(line) <= 20 for line in lines)
    assert "".join(lines).replace(" ", "") == "onetwo" + "x" * 50 + "three"
    assert cut("日本語", 4) == "日…"
    assert printable("a\x00b") == "a b"

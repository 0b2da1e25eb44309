"""The commands that ask a running edge: watch, health and page."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from edge.cli import main
from edge.commands.watching import Shape, Table, cells, cut, due, lines_of, printable, span, spoken, wrapped
from edge.journey.events import Milestone, Outcome, Step
from edge.journey.expectations.limits import LIMITS
from edge.journey.follow import Rows
from edge.page.feed import MAX_ROWS
from tests.page_site import IN_ACTION, INSTALLATION, PageSite, workflow
from tests.page_site import TOKEN as SITE_TOKEN
from tests.page_site import cut as boot_until
from tests.ports import free_port
from tests.waiting import PATIENCE_SECONDS, wait_until

MAC, OTHER = "52:54:00:00:00:01", "52:54:00:00:00:02"
Watch = Callable[..., Any]
TOKEN = "ab" * 32


def event(mac: str, message: str, outcome: str = "ok", **detail: Any) -> bytes:
    fields = {"time": 0.0, "mac": mac, "step": "dhcp", "outcome": outcome, "message": message, "detail": detail}
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


@pytest.fixture
def token(tmp_path: Path) -> str:
    """The file that it is in."""
    file = tmp_path / "admin-token"
    file.write_text(f"# the newest first\n{TOKEN}\nolder\n")
    return str(file)


@pytest.fixture
async def watch(token: str) -> AsyncIterator[Watch]:
    """`await watch(stream, *options)`: what `tinkedge watch` makes of these bytes."""
    asked: list[str] = []
    stream = b""

    async def events(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401)
        asked.append(request.query["since"])
        return web.Response(body=stream, content_type="text/event-stream")

    app = web.Application()

    async def machines(_: web.Request) -> web.Response:
        names = [(MAC, "rack", "m1"), (OTHER, "rack", "m2"), ("52:54:00:00:00:03", "other", "m2")]
        known = [{"mac": mac, "namespace": space, "name": name} for mac, space, name in names]
        return web.json_response([{"mac": "52:54:00:00:00:04", "registered": False}, *known])

    app.router.add_get("/api/v1/events", events)
    app.router.add_get("/api/v1/machines", machines)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def run(content: bytes, *options: str) -> tuple[Result, list[str]]:
        nonlocal stream
        stream = content
        where = ["--admin-url", url, "--admin-token-file", token]
        result = await asyncio.to_thread(CliRunner().invoke, main, ["watch", *where, *options])
        return result, asked

    yield run
    await runner.cleanup()


async def test_lines_that_a_machine_logs_are_shown_on_request_one_by_one(watch: Watch) -> None:
    logged = event(MAC, "err b: two (3 lines)", "info", lines="info a: one\nerr b: two", omitted_lines=1)
    stream = event(MAC, "lease") + logged.replace(b'"step": "dhcp"', b'"step": "log"')
    result, _ = await watch(stream, "--events")
    assert "lease" in result.stdout
    assert "one" not in result.stdout
    result, _ = await watch(stream, "--logs")
    shown = [line.partition("log       ")[2] for line in result.stdout.splitlines()[1:]]
    assert shown == ["info a: one", "err b: two", "(1 more lines are in the machine's file only)"]
    result, _ = await watch(stream, "--logs", "-o", "json")
    assert [json.loads(line)["step"] for line in result.stdout.splitlines()] == ["dhcp", "log"]


async def test_lost_events_are_reported_and_the_stream_continues(watch: Watch) -> None:
    stream = b": journey\n\n" + event(MAC, "one") + b"event: lost\ndata: 12\n\n: heartbeat\n\n" + event(MAC, "two")
    result, _ = await watch(stream, "--events", "-o", "json")
    assert [json.loads(line)["message"] for line in result.stdout.splitlines()] == ["one", "two"]
    assert "12 events were lost" in result.stderr
    assert result.exit_code == 1
    assert "the edge has ended the stream" in result.stderr


@pytest.mark.parametrize("name", [MAC, MAC.upper(), MAC.replace(":", "-"), "m1", "rack/m1"])
async def test_one_machine_is_shown_by_its_mac_or_the_name_of_its_hardware(watch: Watch, name: str) -> None:
    result, _ = await watch(event(OTHER, "other") + event(MAC, "own"), name)
    assert "own" in result.stdout
    assert "other" not in result.stdout


@pytest.mark.parametrize(
    ("name", "expected"),
    [("nobody", "no Hardware of that name (there is: other/m2, rack/m1, rack/m2)"), ("m2", "other/m2 or rack/m2")],
)
async def test_unknown_name_ends_watch_with_an_error(watch: Watch, name: str, expected: str) -> None:
    result, asked = await watch(event(MAC, "own"), name)
    assert result.exit_code == 1
    assert expected in result.stderr
    assert asked == []


async def test_event_of_another_day_has_its_date_and_a_strangers_manifest_can_be_copied(watch: Watch) -> None:
    seen = event(MAC, "seen, not registered", "info", manifest="kind: Hardware\nmetadata: {}\n")
    result, _ = await watch(seen, "--events")
    assert result.stdout.startswith(("1970-01-01 ", "1969-12-31 "))
    assert "\n    kind: Hardware\n    metadata: {}\n" in result.stdout


@pytest.mark.parametrize(("option", "since"), [(["--events"], "all"), (["--no-history"], "now")])
async def test_history_is_shown_by_default(watch: Watch, option: list[str], since: str) -> None:
    _, asked = await watch(b"", *option)
    assert asked == [since]


@pytest.mark.parametrize(
    ("url", "message"), [("http://127.0.0.1:1", "does not answer: "), ("nonsense", "is no URL: write it as http://")]
)
def test_edge_that_does_not_answer_is_named(url: str, message: str, token: str) -> None:
    result = CliRunner().invoke(main, ["watch", "--admin-url", url, "--admin-token-file", token])
    assert result.exit_code == 1
    assert f"{url} {message}" in result.stderr


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ("admin-port: 1", "http://127.0.0.1:1"),
        ("admin-port: 1\nadmin-address: 127.0.0.9", "http://127.0.0.9:1"),
        ("admin-port: 1\nadmin-address: 0.0.0.0", "http://127.0.0.1:1"),
        ("admin-port: 1\nadmin-address: '::1'", "http://[::1]:1"),
    ],
)
def test_admin_address_comes_from_the_settings(settings: str, asked: str, token: str, tmp_path: Path) -> None:
    file = tmp_path / "tinkedge.yaml"
    file.write_text(settings)
    result = CliRunner().invoke(main, ["watch", "--config", str(file), "--admin-token-file", token])
    assert f"{asked} does not answer" in result.stderr


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("interface: [absent0=10.0.0.1]", "there is no interface absent0"),
        ("interface: absent0", "there is no interface absent0"),
        (
            "interface: [absent0, absent1]",
            "give with --interface the interface of the machine: one of absent0, absent1",
        ),
    ],
)
def test_capture_interface_comes_from_the_settings(settings: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "tinkedge.yaml"
    file.write_text(settings)
    result = CliRunner().invoke(main, ["watch", MAC, "--capture", "--config", str(file)])
    assert result.exit_code != 0
    assert expected in result.stderr


async def test_token_of_another_edge_is_named_with_its_file(watch: Watch, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "admin-token"
    file.write_text("cd" * 32)
    result, _ = await watch(b"", "--events", "--data-dir", str(file.parent), "--admin-token-file", str(file))
    assert result.exit_code == 1
    assert f"has another token than {file}" in result.stderr


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "the edge makes it when it starts"),
        (b"", "is empty"),
        (b"# nothing\n", "is empty"),
        (b"\xff\xfe", "can't be read"),
        (b"a\x1bb", "is empty"),
    ],
)
def test_file_without_a_token_is_named_with_what_to_do(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "admin-token"
    if content is not None:
        file.write_bytes(content)
    result = CliRunner().invoke(main, ["watch", "--data-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert str(file) in result.stderr
    assert why in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--capture"], "give its MAC"),
        (["--capture", "machine-1"], "give its MAC"),
        ([MAC, "--write", "x.pcap"], "go with --capture"),
        ([MAC, "--interface", "eth0"], "go with --capture"),
    ],
)
def test_misused_capture_options_are_explained(options: list[str], words: str) -> None:
    result = CliRunner().invoke(main, ["watch", *options])
    assert result.exit_code == 2
    assert words in result.stderr


def test_capture_without_the_extra_names_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("scapy.all", "scapy.arch"):
        monkeypatch.setitem(sys.modules, module, None)
    result = CliRunner().invoke(main, ["watch", MAC, "--capture", "--interface", "lo"])
    assert result.exit_code == 1
    assert "pip install 'tinkedge[diagnose]'" in result.stderr


SMALL = os.terminal_size((80, 8))
T0 = 1_700_000_000.0
BOOT_PROGRAM = LIMITS[Milestone.LEASED].awaited
EVIL = "\x1b[31mred\x1b]0;title\x07\n\u202egnp.exe"
Watch = Callable[..., Any]


@pytest.fixture
async def site() -> PageSite:
    return PageSite(T0)


@pytest.fixture
async def watch_site(site: PageSite, tmp_path: Path) -> AsyncIterator[Watch]:
    """`await watch_site(*options)` of that site's edge."""
    token = tmp_path / "admin-token"
    token.write_text(SITE_TOKEN)
    async with site.served() as client:

        async def run(*options: str) -> Result:
            where = ["--admin-url", str(client._base_url).rstrip("/"), "--admin-token-file", str(token)]
            return await asyncio.to_thread(CliRunner().invoke, main, ["watch", *where, *options])

        yield run


def row(**changed: Any) -> dict[str, Any]:
    mac = "52:54:00:00:00:01"
    fine = {"mac": mac, "hardware": "default/m1", "address": "10.0.0.1", "kind": "booting", "state": "has an address"}
    times = {"since": T0, "heard": T0, "waiting_for": "kernel download", "deadline": T0 + 8}
    rest = {"usual_seconds": 2.5, "reason": None, "wrong": None, "warning": False, "message": "DHCPACK"}
    return {**fine, **times, **rest, **changed}


async def test_every_machine_has_a_line_with_its_state_next_step_and_problem(site: PageSite, watch_site: Watch) -> None:
    one, two, _ = (site.hardware(name, number) for number, name in enumerate(("m1", "m2", "m3"), start=1))
    site.play(one, INSTALLATION, T0, "m1")
    site.play(two, boot_until(Milestone.LEASED), T0 + 500, "m2")
    for second in range(20):
        site.sweep(T0 + 506 + second)
    site.journey.record("02:00:00:aa:bb:cc", Step.SEEN, Outcome.INFO, "seen, not registered")
    result = await watch_site("--once")
    assert result.exit_code == 0, result.stderr
    head, *lines = result.stdout.splitlines()
    assert head.split() == ["MACHINE", "STATE", "FOR", "WAITING", "FOR,", "OR", "PROBLEM"]
    assert [line.split()[0] for line in lines] == ["default/m2", "02:00:00:aa:bb:cc", "default/m1", "default/m3"]
    assert lines[0].split(maxsplit=1)[1].startswith("has an address")
    assert "! NoTFTPRequest: has 10.0.0.2" in lines[0]
    assert "not registered" in lines[1]
    assert "installed system is up" in lines[2]
    assert "never seen" in lines[3]


async def test_programs_get_each_machine_as_json(site: PageSite, watch_site: Watch) -> None:
    mac = site.hardware("m1", 1)
    site.play(mac, boot_until(Milestone.LEASED), T0, "m1")
    (line,) = (await watch_site("--once", "--json")).stdout.splitlines()
    shown = json.loads(line)
    machine = {"mac": mac, "hardware": "default/m1", "state": "has an address", "kind": "booting"}
    assert shown.items() >= {**machine, "waiting_for": BOOT_PROGRAM, "since": T0 + 4.9}.items()
    assert shown["deadline"] == pytest.approx(T0 + 12.9)


async def test_empty_site_is_reported_and_many_machines_are_all_listed(site: PageSite, watch_site: Watch) -> None:
    assert "no machine is registered, and none was heard" in (await watch_site("--once")).stdout
    for number in range(1, MAX_ROWS + 40):
        site.hardware(f"m{number}", number)
    result = await watch_site("--once")
    assert len(result.stdout.splitlines()) == MAX_ROWS + 40


async def test_one_machine_is_shown_with_every_step_and_its_duration(site: PageSite, watch_site: Watch) -> None:
    mac = site.hardware("m1", 1)
    site.play(mac, INSTALLATION, T0 - 1000, "m1")
    site.play(mac, INSTALLATION, T0, "m1")
    result = await watch_site("--once", "m1")
    lines = result.stdout.splitlines()
    assert lines[0] == f"default/m1  {mac}  10.0.0.1  hook  Supermicro X12STH"
    assert lines[1].startswith("installed system is up, for ")
    began = [line for line in lines if line.startswith("boot of")]
    assert len(began) == 2
    steps = {line[11:] if line[4] != "-" else line[22:] for line in lines if line.startswith("  ")}
    assert any("loads the initrd" in line and "usually 6.5s" in line for line in steps), result.stdout
    assert any("action stream-image" in line and "44s" in line for line in steps), result.stdout
    offered = next(line for line in lines if "DHCPACK to UEFI" in line)
    assert "+4.9s dhcp      ok" in offered


async def test_one_machine_is_shown_with_problem_start_cause_and_remedy(site: PageSite, watch_site: Watch) -> None:
    mac = site.hardware("m1", 1)
    site.play(mac, boot_until(Milestone.LEASED), T0, "m1")
    for second in range(20):
        site.sweep(T0 + 5 + second)
    out = (await watch_site("--once", "m1")).stdout
    assert re.search(r"^problem: NoTFTPRequest \(since .* ago\): Has 10.0.0.1 and the name of its boot", out, re.M)
    assert re.search(r"^likely cause: udp/69 is blocked", out, re.M)
    assert re.search(r"^what to do: 'tinkedge doctor'", out, re.M)
    assert f"\nwaiting for: {BOOT_PROGRAM} (" in out
    assert re.search(r"^waiting for: .* overdue\)$", out, re.M)
    assert re.search(r"^last heard: .* ago$", out, re.M)
    assert re.search(r"asks for its boot program .* overdue, running$", out, re.M)


async def test_one_machine_in_an_action_is_shown_with_workflow_and_last_output(
    site: PageSite, watch_site: Watch
) -> None:
    mac = site.hardware("m1", 1)
    site.play(mac, IN_ACTION, T0, "m1")
    site.workflows["m1"] = workflow("m1", T0 + 100)
    out = (await watch_site("--once", "m1")).stdout
    assert "\naction 2 of 3: grow-partition, for " in out
    assert "\nWorkflow default/install-m1: Running action 2 of 3: grow-partition\n" in out
    assert "\nlast output: grow-partition: resizing /dev/nvme0n1p1 to 1.8 TiB\n" in out


async def test_power_is_shown_where_machines_are_listed_and_with_the_commands_of_one(
    site: PageSite, watch_site: Watch
) -> None:
    mac = site.hardware("m1", 1, power="off")
    site.hardware("m2", 2, power="on")
    site.hardware("m3", 3)
    site.journey.record(mac, Step.POWER, Outcome.WARNING, "no DISCOVER: cable, VLAN, or wrong MAC", reason="NoDiscover")
    _, *lines = (await watch_site("--once")).stdout.splitlines()
    assert [line.split()[0] for line in lines if "never seen, off" in line] == ["default/m1"]
    shown = [json.loads(line) for line in (await watch_site("--once", "--json")).stdout.splitlines()]
    assert {each["hardware"]: each["power"] for each in shown} == {
        "default/m1": "off", "default/m2": "on", "default/m3": None,
    }  # fmt: skip
    out = (await watch_site("--once", "m1")).stdout
    assert "\npower: off, as its BMC reported it last; tinkedge power m1 on; tinkedge bmc check m1\n" in out
    assert re.search(r"power     warning  no DISCOVER: cable, VLAN, or wrong MAC$", out, re.M)
    assert "power:" not in (await watch_site("--once", "m3")).stdout


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("52:54:00:00:00:09", "no machine with the MAC 52:54:00:00:00:09, and no Hardware has it"),
        ("52:54:00:00:00:09", "52:54:00:00:00:01 default/machine-1"),
        ("52-54-00-00-00-0A", "no machine with the MAC 52:54:00:00:00:0a"),
        (
            "machin-2",
            "'machin-2' is no MAC address, and the edge knows no Hardware of that name (nearest: default/machine-2",
        ),
        ("nothing-like-it", "(there is: default/machine-1, default/machine-2)"),
    ],
)
async def test_unknown_machine_is_an_error_that_names_the_nearest(
    site: PageSite, watch_site: Watch, name: str, expected: str
) -> None:
    for number in (1, 2):
        site.hardware(f"machine-{number}", number)
    for options in (["--once"], ["--once", "--json"]):
        result = await watch_site(*options, name)
        assert (result.exit_code, result.stdout) == (1, "")
        assert expected in result.stderr


async def test_registered_machine_without_events_is_known_by_its_mac(site: PageSite, watch_site: Watch) -> None:
    result = await watch_site("--once", site.hardware("m1", 1))
    assert result.exit_code == 0
    assert "never seen" in result.stdout


async def test_unknown_mac_is_waited_for_with_a_message(watch: Watch) -> None:
    result, asked = await watch(event(OTHER, "other"), "52:54:00:00:00:0f")
    assert "no machine with the MAC 52:54:00:00:00:0f" in result.stderr
    assert "waiting for it, end with Ctrl-C" in result.stderr
    assert asked == ["all"]
    assert "no machine with the MAC" not in (await watch(event(MAC, "own"), MAC))[0].stderr


async def test_one_machine_for_programs_has_its_boots_and_events(site: PageSite, watch_site: Watch) -> None:
    mac = site.hardware("m1", 1)
    site.play(mac, INSTALLATION, T0, "m1")
    first, *events = map(json.loads, (await watch_site("--once", "--json", mac)).stdout.splitlines())
    steps = {step["step"]: step["seconds"] for step in first["boots"][-1]["steps"]}
    assert steps["loads the initrd"] == 6.5
    assert steps["action stream-image"] == 43.5
    assert len(events) == len(INSTALLATION)


async def test_text_of_machines_and_templates_moves_no_cursor(site: PageSite, watch_site: Watch) -> None:
    mac = site.hardware("m1", 1)
    site.play(mac, boot_until(Milestone.WORKFLOW_RUNNING), T0, "m1")
    site.journey.record(mac, Step.ACTION, Outcome.INFO, EVIL, action=EVIL, state="Running", output=EVIL)
    for options in ([], ["m1"], ["m1", "--logs"]):
        out = (await watch_site("--once", *options)).stdout
        assert "red" in out
        assert {"\x1b", "\x07", "\u202e"}.isdisjoint(out)


def test_every_line_fits_into_eighty_columns_and_no_sentence_is_cut() -> None:
    name = "a-namespace/a-very-long-name-of-a-machine"
    sentence = "has 10.0.0.5 and the name of its boot program, but for 8 s no TFTP request for it came in: " * 3
    long = row(hardware=name, state="action " + "x" * 90, wrong=sentence, reason="NoTFTPRequest", warning=True)
    wide = row(hardware="default/日本語の名前の機械", state="日本語" * 20)
    for each in (row(), long, wide, row(waiting_for=None, since=None, heard=None)):
        for line in lines_of(each, T0 + 1, Shape.of([each], 80)):
            assert cells(line) <= 80, line
    first, *more = lines_of(long, T0 + 1, Shape.of([long], 80))
    assert first.endswith("! NoTFTPRequest")
    assert " ".join(" ".join(more).split()) == sentence.strip()
    assert all(line.startswith("    ") for line in more)


def test_waiting_machine_has_its_next_step_and_delay() -> None:
    late = row(state="loads the kernel")
    (line,) = lines_of(late, T0 + 8 + 22, Shape.of([late], 90))
    assert line == "default/m1        loads the kernel    30s waiting for: kernel download (22 s overdue)"
    (line,) = lines_of(row(), T0 + 1, Shape.of([row()], None))
    assert line.endswith("waiting for: kernel download (usually 2 s, due in 7 s)")
    first, second = lines_of(row(), T0 + 1, Shape.of([row()], 80))
    assert first.split() == ["default/m1", "has", "an", "address", "1.0s"]
    assert second == "    waiting for: kernel download (usually 2 s, due in 7 s)"


def test_terminal_shows_the_most_urgent_machines_first() -> None:
    written: list[str] = []
    table = Table(as_json=False, live=True, echo=written.append, clock=lambda: T0 + 1, size=lambda: SMALL)
    rows = [row(mac=f"52:54:00:00:00:{n:02x}", hardware=f"default/m{n}") for n in range(1, 30)]
    table.take(Rows(rows, [], False, ["eth1 has no IPv4 address"]))
    lost = row(hardware="default/m1", kind="trouble", wrong="lost", reason="Lost", warning=True)
    table.take(Rows([lost], [], False, None))
    lines = written[-1].removeprefix("\x1b[H\x1b[J").splitlines()
    assert len(lines) <= 8
    assert "eth1 has no IPv4 address" in lines[0]
    assert "default/m1 " in lines[2]
    assert "! Lost: lost" in lines[2]
    assert "default/m2 " in lines[3]
    assert lines[-1].startswith("and 26 more")


def test_reason_of_the_most_urgent_machine_is_whole_in_a_terminal_where_there_is_room_for_it() -> None:
    written: list[str] = []
    size = os.terminal_size((80, 24))
    table = Table(as_json=False, live=True, echo=written.append, clock=lambda: T0 + 1, size=lambda: size)
    sentence = " ".join(f"word{n}" for n in range(100))
    lost = row(kind="trouble", wrong=sentence, reason="Lost", warning=True)
    others = [row(mac=f"52:54:00:00:01:{n:02x}", hardware=f"default/n{n}") for n in range(30)]
    table.take(Rows([lost, *others], [], False, []))
    lines = written[-1].removeprefix("\x1b[H\x1b[J").splitlines()
    assert len(lines) <= 24
    assert sentence in " ".join(re.sub("\x1b\\[[0-9;]*m", "", " ".join(lines)).split())


def test_list_that_is_shown_once_is_sorted_as_a_whole_and_fits_the_terminal() -> None:
    written: list[str] = []
    table = Table(as_json=False, live=False, once=True, width=80, echo=written.append, clock=lambda: T0 + 1)
    table.take(Rows([row()], [], True, []))
    second = {"mac": "52:54:00:00:00:02", "hardware": "default/m2"}
    lost = row(**second, kind="trouble", wrong="w" * 200, reason="R", warning=True)
    table.take(Rows([lost], [], False, None))
    assert [line.split()[0] for line in written if line[0] != " "] == ["MACHINE", "default/m2", "default/m1"]
    assert max(map(cells, written)) == 80


def test_output_to_a_file_repeats_a_line_only_after_a_change() -> None:
    written: list[str] = []
    table = Table(as_json=False, live=False, echo=written.append, clock=lambda: T0 + 1)
    table.take(Rows([row()], [], False, []))
    table.take(Rows([row(heard=T0 + 1, message="again")], [], False, None))
    table.take(Rows([row(state="loads its boot program")], [], False, None))
    assert [line.split()[0] for line in written] == ["MACHINE", "default/m1", "default/m1"]


def test_durations_are_short_and_words_of_any_length_are_wrapped_and_cut() -> None:
    seconds = (-1, 9.94, 12, 200, 7500, 400_000)
    assert [span(each) for each in seconds] == ["0.0s", "9.9s", "12s", "3m20s", "2h05m", "5d"]
    assert [spoken(each) for each in seconds] == ["now", "9 s", "12 s", "3 min 20 s", "2 h 5 min", "4 days"]
    assert [due(T0 + left, T0) for left in (-22, -0.5, 0.5, 4)] == ["22 s overdue", "due now", "due now", "due in 4 s"]
    lines = list(wrapped("one two " + "x" * 50 + " three", 20, "  "))
    assert all(cells(line) <= 20 for line in lines)
    assert "".join(lines).replace(" ", "") == "onetwo" + "x" * 50 + "three"
    assert cut("日本語", 4) == "日…"
    assert printable("a\x00b") == "a b"


# --- `tinkedge health` against what a service answers, and services that get SIGHUP, as processes ---------------------


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ready = self.path == "/healthz"
        self.send_response(200 if ready else 503)
        self.end_headers()
        self.wfile.write(b"ok\n" if ready else b"no address on eth1\n")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_health_reports_why_a_service_is_not_ready_and_fails(port: int) -> None:
    result = CliRunner().invoke(main, ["health", "--health-address", str(port), "--config", "/dev/null"])
    assert result.exit_code == 1
    assert "503 no address on eth1" in result.output
    live = CliRunner().invoke(main, ["health", "--health-address", str(port), "--live", "--config", "/dev/null"])
    assert live.exit_code == 0


@pytest.mark.parametrize("given", ["[::1]", "[::]"])
def test_health_asks_by_ipv6(given: str) -> None:
    class Server(HTTPServer):
        address_family = socket.AF_INET6

    with Server(("::1", 0), Answers) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        words = ["--health-address", f"{given}:{server.server_address[1]}", "--live", "--config", "/dev/null"]
        result = CliRunner().invoke(main, ["health", *words])
        thread.join()
    assert (result.exit_code, result.output) == (0, f"ok  http://[::1]:{server.server_address[1]}/healthz: ok\n")


def test_health_asks_every_address_that_the_file_names(port: int, tmp_path: Path) -> None:
    file = tmp_path / "tinkedge.yaml"
    file.write_text(f"interface: [lo=127.0.0.1, lo=127.0.0.2]\nhttp-port: {port}\n")
    result = CliRunner().invoke(main, ["health", "--live", "--json", "--config", str(file)])
    found = json.loads(result.output)
    assert result.exit_code == 1
    assert [check["ok"] for check in found["checks"]] == [True, False]


@pytest.mark.parametrize("command", ["apiserver", "agent"])
def test_service_lives_on_after_sighup(command: str, tmp_path: Path) -> None:
    port = free_port()
    options = {
        "apiserver": f"--data-dir {tmp_path}/data --api-port {port}",
        "agent": f"--agent-id m --server 127.0.0.1:{port} --runtime process --state-dir {tmp_path}",
    }[command]
    words = [sys.executable, "-m", "edge.cli", command, *options.split(), "--config", "/dev/null"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TINKEDGE_")}
    log = tmp_path / "log"
    with log.open("wb") as opened:
        process = subprocess.Popen(words, stderr=opened, env=environment)
    try:
        ready = {"apiserver": "ready:", "agent": "agent:"}[command]
        wait_until(lambda: ready in log.read_text(), lambda: log.read_text())
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "SIGHUP" in log.read_text(), lambda: log.read_text())
        assert process.poll() is None
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


# --- `tinkedge page` prints a link that lets a browser in, and never the token ----------------------------------------


def page(url: str, file: Path) -> Result:
    return CliRunner().invoke(main, ["page", "--admin-url", url, "--admin-token-file", str(file)])


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with PageSite().served(**{"X-Nobody": "1"}) as client:
        yield str(client._base_url)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(SITE_TOKEN + "\n")
    return tmp_path / "token"


async def test_link_admits_one_browser_once(url: str, file: Path) -> None:
    result = await asyncio.to_thread(page, url, file)
    assert result.exit_code == 0
    link = result.stdout.strip()
    assert link.startswith(f"{url.rstrip('/')}/enter?code=")
    assert SITE_TOKEN not in result.output
    async with aiohttp.ClientSession() as browser:
        assert [(await browser.get(link)).status for _ in range(2)] == [200, 401]


async def test_wrong_token_is_reported(url: str, file: Path) -> None:
    file.write_text("b" * 64 + "\n")
    result = await asyncio.to_thread(page, url, file)
    assert result.exit_code == 1
    assert "has another token than" in result.output
    assert "b" * 64 not in result.output


def test_silent_edge_and_missing_token_are_reported(file: Path, tmp_path: Path) -> None:
    for where, token, expected in (
        ("http://127.0.0.1:9", file, "Is `tinkedge up`"),
        ("nonsense", file, "is no URL"),
        ("http://127.0.0.1:9", tmp_path / "none", "there is no admin token"),
    ):
        result = page(where, token)
        assert (result.exit_code, expected in result.output) == (1, True)

"""`tinkedge watch` reads the stream of the journey, whatever comes in it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from edge.cli import main

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


async def test_lost_events_are_told_and_the_stream_goes_on(watch: Watch) -> None:
    stream = b": journey\n\n" + event(MAC, "one") + b"event: lost\ndata: 12\n\n: heartbeat\n\n" + event(MAC, "two")
    result, _ = await watch(stream, "--events", "-o", "json")
    assert [json.loads(line)["message"] for line in result.stdout.splitlines()] == ["one", "two"]
    assert "12 events were lost" in result.stderr
    assert result.exit_code == 1
    assert "the edge has ended the stream" in result.stderr


@pytest.mark.parametrize("mac", [MAC, MAC.upper(), MAC.replace(":", "-")])
async def test_one_machine_is_shown_however_its_mac_is_written(watch: Watch, mac: str) -> None:
    result, _ = await watch(event(OTHER, "other") + event(MAC, "own"), mac)
    assert "own" in result.stdout
    assert "other" not in result.stdout


@pytest.mark.parametrize("name", ["m1", "rack/m1"])
async def test_one_machine_is_shown_by_the_name_of_its_hardware(watch: Watch, name: str) -> None:
    result, _ = await watch(event(OTHER, "other") + event(MAC, "own"), name)
    assert "own" in result.stdout
    assert "other" not in result.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [("nobody", "no Hardware of that name (there is: other/m2, rack/m1, rack/m2)"), ("m2", "other/m2 or rack/m2")],
)
async def test_name_that_nobody_has_is_not_waited_for(watch: Watch, name: str, said: str) -> None:
    result, asked = await watch(event(MAC, "own"), name)
    assert result.exit_code == 1
    assert said in result.stderr
    assert asked == []


async def test_event_of_another_day_has_its_date(watch: Watch) -> None:
    result, _ = await watch(event(MAC, "long ago"), "--events")
    assert result.stdout.startswith(("1970-01-01 ", "1969-12-31 "))


async def test_manifest_of_a_stranger_can_be_copied_as_it_stands(watch: Watch) -> None:
    result, _ = await watch(
        event(MAC, "seen, not registered", "info", manifest="kind: Hardware\nmetadata: {}\n"), "--events"
    )
    assert "\n    kind: Hardware\n    metadata: {}\n" in result.stdout


@pytest.mark.parametrize(("option", "since"), [(["--events"], "all"), (["--no-history"], "now")])
async def test_history_is_shown_unless_it_is_not_wanted(watch: Watch, option: list[str], since: str) -> None:
    _, asked = await watch(b"", *option)
    assert asked == [since]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense"])
def test_edge_that_does_not_answer_is_named(url: str, token: str) -> None:
    result = CliRunner().invoke(main, ["watch", "--admin-url", url, "--admin-token-file", token])
    assert result.exit_code == 1
    assert f"{url} does not answer" in result.stderr
    assert "tinkedge up" in result.stderr


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ("admin-port: 1", "http://127.0.0.1:1"),
        ("admin-port: 1\nadmin-address: 127.0.0.9", "http://127.0.0.9:1"),
        ("admin-port: 1\nadmin-address: 0.0.0.0", "http://127.0.0.1:1"),
        ("admin-port: 1\nadmin-address: '::1'", "http://[::1]:1"),
    ],
)
def test_edge_is_asked_where_the_settings_say_that_it_listens(
    settings: str, asked: str, token: str, tmp_path: Path
) -> None:
    file = tmp_path / "tinkedge.yaml"
    file.write_text(settings)
    result = CliRunner().invoke(main, ["watch", "--config", str(file), "--admin-token-file", token])
    assert f"{asked} does not answer" in result.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("interface: [absent0=10.0.0.1]", "there is no interface absent0"),
        ("interface: absent0", "there is no interface absent0"),
        ("interface: [absent0, absent1]", "say with --interface on which of absent0, absent1"),
    ],
)
def test_packets_are_looked_for_where_the_settings_say_that_machines_are(
    settings: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "tinkedge.yaml"
    file.write_text(settings)
    result = CliRunner().invoke(main, ["watch", MAC, "--capture", "--config", str(file)])
    assert result.exit_code != 0
    assert said in result.stderr


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
def test_options_of_the_capture_are_explained_where_they_are_misused(options: list[str], words: str) -> None:
    result = CliRunner().invoke(main, ["watch", *options])
    assert result.exit_code == 2
    assert words in result.stderr


def test_capture_without_the_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("scapy.all", "scapy.arch"):
        monkeypatch.setitem(sys.modules, module, None)
    result = CliRunner().invoke(main, ["watch", MAC, "--capture", "--interface", "lo"])
    assert result.exit_code == 1
    assert "pip install 'tinkedge[diagnose]'" in result.stderr


def test_help_and_watch_load_nothing_of_the_extra() -> None:
    for arguments in ("['--help']", "['watch', '--help']", "['doctor', '--help']"):
        script = (
            f"import sys; from edge.cli import main; main({arguments}, standalone_mode=False); "
            "sys.exit(any(name.partition('.')[0] in ('scapy', 'tftpy') for name in sys.modules))"
        )
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)

"""`tinkedge watch` reads the stream of the journey, whatever comes in it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from edge.cli import main

MAC, OTHER = "52:54:00:00:00:01", "52:54:00:00:00:02"
Watch = Callable[..., Any]


def event(mac: str, message: str, outcome: str = "ok", **detail: Any) -> bytes:
    fields = {"time": 0.0, "mac": mac, "step": "dhcp", "outcome": outcome, "message": message, "detail": detail}
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    """`await watch(stream, *options)`: what `tinkedge watch` makes of these bytes."""
    asked: list[str] = []
    stream = b""

    async def events(request: web.Request) -> web.Response:
        asked.append(request.query["since"])
        return web.Response(body=stream, content_type="text/event-stream")

    app = web.Application()
    app.router.add_get("/api/v1/events", events)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def run(content: bytes, *options: str) -> tuple[Result, list[str]]:
        nonlocal stream
        stream = content
        result = await asyncio.to_thread(CliRunner().invoke, main, ["watch", "--admin-url", url, *options])
        return result, asked

    yield run
    await runner.cleanup()


async def test_lost_events_are_told_and_the_stream_goes_on(watch: Watch) -> None:
    stream = b": journey\n\n" + event(MAC, "one") + b"event: lost\ndata: 12\n\n: heartbeat\n\n" + event(MAC, "two")
    result, _ = await watch(stream, "-o", "json")
    assert [json.loads(line)["message"] for line in result.stdout.splitlines()] == ["one", "two"]
    assert "12 events were lost" in result.stderr
    assert result.exit_code == 1
    assert "the edge has ended the stream" in result.stderr


@pytest.mark.parametrize("mac", [MAC, MAC.upper(), MAC.replace(":", "-")])
async def test_one_machine_is_shown_however_its_mac_is_written(watch: Watch, mac: str) -> None:
    result, _ = await watch(event(OTHER, "other") + event(MAC, "own"), mac)
    assert "own" in result.stdout
    assert "other" not in result.stdout


async def test_manifest_of_a_stranger_can_be_copied_as_it_stands(watch: Watch) -> None:
    result, _ = await watch(event(MAC, "seen, not registered", "info", manifest="kind: Hardware\nmetadata: {}\n"))
    assert "\n    kind: Hardware\n    metadata: {}\n" in result.stdout


@pytest.mark.parametrize(("option", "since"), [([], "all"), (["--no-history"], "now")])
async def test_history_is_shown_unless_it_is_not_wanted(watch: Watch, option: list[str], since: str) -> None:
    _, asked = await watch(b"", *option)
    assert asked == [since]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense"])
def test_edge_that_does_not_answer_is_named(url: str) -> None:
    result = CliRunner().invoke(main, ["watch", "--admin-url", url])
    assert result.exit_code == 1
    assert f"{url} does not answer" in result.stderr
    assert "tinkedge up" in result.stderr


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
    monkeypatch.setitem(sys.modules, "scapy.all", None)
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

"""`tinkedge health` against what a service answers, and services that get SIGHUP, as processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from edge.cli import main
from tests.ports import free_port
from tests.waiting import PATIENCE_SECONDS, wait_until


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


def test_health_says_why_a_service_is_not_ready_and_fails(port: int) -> None:
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


@pytest.mark.parametrize("given", ["::1:7082", "[127.0.0.1]:7082", "[::1]", "host:7082", "70000", "[::1"])
def test_address_that_is_none_is_refused_by_who_listens_and_by_who_asks(given: str) -> None:
    for command in ("health", "controller"):
        result = CliRunner().invoke(main, [command, "--health-address", given, "--config", "/dev/null"])
        assert result.exit_code == 2, result.output
        assert "like 7082, 127.0.0.1:7082 or [::1]:7082" in " ".join(result.output.split())


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

"""What a process tells the service manager, and what SIGHUP does."""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from edge.composition.host import Network, NetworkState
from edge.composition.logs import set_up
from edge.composition.logs.writer import StreamWriter
from edge.composition.process import HealthError, HealthServer, Notifier, OperatorAddresses, Reload, Watchdog, report
from edge.composition.process.status import status_line
from edge.composition.readiness import Readiness
from edge.composition.settings import Service, StackSettings
from tests.ports import free_port
from tests.waiting import until
from tink.files.key_file import KeyFile
from tink.metrics.process import process_registry


class Manager:
    """The manager's end of the socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)

    def heard(self) -> list[str]:
        found = []
        with suppress(BlockingIOError):
            while True:
                found.append(self.socket.recv(4096).decode())
        return found


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.socket.close()


@pytest.fixture
def notifier(tmp_path: Path, manager: Manager) -> Notifier:
    return Notifier(str(tmp_path / "notify"), watchdog_seconds=0.2)


def test_variables_of_the_manager_are_taken_and_not_inherited() -> None:
    environment = {"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "A": "b"}
    found = Notifier.from_environment(environment)
    assert (found.address, found.watchdog_seconds) == ("/run/n", 30.0)
    assert environment == {"A": "b"}
    assert Notifier.from_environment({"WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"}).watchdog_seconds == 0


def test_abstract_socket_is_reached(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        name = f"tinkedge-{os.getpid()}"
        listening.bind(f"\0{name}")
        Notifier(f"@{name}").ready("serving\nforged=1")
        assert listening.recv(4096) == b"READY=1\nSTATUS=serving forged=1"
    assert not caplog.records


def test_manager_that_is_gone_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier(str(tmp_path / "nobody"))
    notifier.alive()
    notifier.alive()
    assert len(caplog.records) == 1


async def test_ready_is_told_when_machines_can_be_served_and_not_before(manager: Manager, notifier: Notifier) -> None:
    reasons = ["no address"]
    task = asyncio.create_task(
        report(notifier, lambda: reasons[0], lambda: f"not ready: {reasons[0]}" if reasons[0] else "serving")
    )
    await asyncio.sleep(0.05)
    assert manager.heard() == ["STATUS=not ready: no address"]
    reasons[0] = ""
    await asyncio.sleep(1.1)
    task.cancel()
    assert manager.heard() == ["READY=1\nSTATUS=serving"]


async def test_watchdog_is_fed_while_the_loop_and_its_probes_answer(
    manager: Manager, notifier: Notifier, caplog: pytest.LogCaptureFixture
) -> None:
    answers = asyncio.Event()
    answers.set()
    task = asyncio.create_task(Watchdog(notifier, {"it": answers.wait}).run())
    await until(lambda: "WATCHDOG=1" in manager.heard())
    answers.clear()
    await until(lambda: re.search(r"from: (.*, )?it(,|;)", caplog.text))
    manager.heard()
    await asyncio.sleep(0.3)
    assert manager.heard() == []
    answers.set()
    await until(lambda: "WATCHDOG=1" in manager.heard())
    task.cancel()


async def test_probe_that_does_not_answer_is_named(notifier: Notifier, caplog: pytest.LogCaptureFixture) -> None:
    task = asyncio.create_task(Watchdog(notifier, {"the embedded API": asyncio.Event().wait}).run())
    await until(lambda: re.search(r"from: .*the embedded API", caplog.text))
    task.cancel()


def test_status_says_what_is_served_and_where() -> None:
    settings = StackSettings(frozenset({Service.DHCP, Service.HTTP}), networks=(Network("eth1", ""),))
    networks = [NetworkState("eth1", "10.0.0.1")]
    assert status_line(settings, networks, Readiness(), 1) == "serving dhcp, http on eth1 (10.0.0.1) for 1 machine"
    assert status_line(settings, networks, Readiness("starting"), 1) == "not ready: starting"
    leads = Readiness("", ("this replica leads",))
    said = status_line(StackSettings(frozenset({Service.CONTROLLER})), [], leads, 0)
    assert said == "serving controller; this replica leads"


async def test_sighup_reads_keys_again_and_says_which_are_bad(
    tmp_path: Path, manager: Manager, notifier: Notifier, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    good, bad = tmp_path / "good", tmp_path / "bad"
    for file in (good, bad):
        file.write_text("k" * 40 + "\n")
    keys = [KeyFile(file, "key", create=False) for file in (good, bad)]
    good.write_text("n" * 41 + "\n")
    bad.write_text("short\n")
    reload = Reload(notifier, lambda: "serving")
    reload.hangup()
    assert manager.heard() == []  # not before the start is done
    reload.ready()
    heard = manager.heard()
    assert heard[0].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert heard[1:] == ["READY=1\nSTATUS=serving"]
    assert keys[0].holds("n" * 41)
    assert keys[1].holds("k" * 40)
    assert f"key {bad}: a key has less than" in caplog.text


def test_log_file_that_was_rotated_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("a") as stream:
        writer = StreamWriter(stream)
        path.rename(tmp_path / "log.1")
        writer.reopen()
        os.write(stream.fileno(), b"new\n")
        writer.close()
    assert path.read_text() == "new\n"
    assert (tmp_path / "log.1").read_text() == ""


def test_lines_for_the_journal_have_a_priority_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    path = tmp_path / "journal"
    try:
        with path.open("a") as stream:
            found = os.fstat(stream.fileno())
            monkeypatch.setattr("sys.stderr", stream)
            monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
            set_up("info", "text")
            logging.getLogger("a").warning("one\ntwo")
            root.handlers[0].close()
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert path.read_text() == "<4>a: one\\ntwo\n"


async def ask(port: int, line: str, host: str = "127.0.0.1") -> tuple[str, str]:
    """Status and body."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return head.split(" ")[1], body.strip()


async def test_health_answers_probes_and_says_why_not() -> None:
    found, port = [Readiness("no address")], free_port()
    server = HealthServer(lambda: found[0], process_registry(lambda: found[0].problem))
    async with server.listening(OperatorAddresses(health=("127.0.0.1", port))):
        assert await ask(port, "GET /healthz") == ("200", "ok")
        assert await ask(port, "GET /livez") == ("200", "ok")
        assert await ask(port, "GET /readyz") == ("503", "no address")
        found[0] = Readiness("", ("this replica leads",))
        assert await ask(port, "GET /readyz") == ("200", "ok: this replica leads")
        assert await ask(port, "HEAD /readyz") == ("200", "")
        assert (await ask(port, "GET /secrets"))[0] == "404"
        assert (await ask(port, "POST /readyz"))[0] == "405"
        assert (await ask(port, "GET /metrics"))[0] == "404", "a port for probes that is open to all tells no more"


async def test_metrics_are_beside_the_probes() -> None:
    port = free_port()
    server = HealthServer(Readiness, process_registry(lambda: "no address"))
    async with server.listening(OperatorAddresses(metrics=("127.0.0.1", port), wanted=True)):
        status, text = await ask(port, "GET /metrics")
        assert status == "200"
        assert "tinkedge_ready 0.0" in text.splitlines()
        assert "# TYPE process_resident_memory_bytes gauge" in text.splitlines()
        assert await ask(port, "GET /readyz") == ("200", "ok")


@pytest.mark.parametrize(("address", "asked"), [("::1", ["::1"]), ("::", ["::1", "127.0.0.1"])])
async def test_probes_are_answered_with_ipv6(address: str, asked: list[str]) -> None:
    port = free_port()
    server = HealthServer(Readiness, process_registry(str))
    async with server.listening(OperatorAddresses(health=(address, port))):
        assert [await ask(port, "GET /readyz", host) for host in asked] == [("200", "ok")] * len(asked)
        with pytest.raises(HealthError, match=rf"--metrics-address \[{address}\]:{port}: can't listen there"):
            async with server.listening(OperatorAddresses(metrics=(address, port), wanted=True)):
                pass


def test_metrics_of_the_process_are_there_in_a_unit_that_hides_the_rest_of_proc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = builtins.open

    def hiding(name: Any, *args: Any, **options: Any) -> Any:
        if str(name) == "/proc/stat":
            raise FileNotFoundError(name)
        return known(name, *args, **options)

    monkeypatch.setattr(builtins, "open", hiding)
    registry = process_registry(str)
    assert (registry.get_sample_value("process_resident_memory_bytes") or 0) > 0
    begun = registry.get_sample_value("process_start_time_seconds") or 0
    assert 0 < time.time() - begun < 86400


async def test_second_service_on_a_host_runs_without_the_metrics_that_nobody_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = ("127.0.0.1", free_port())
    server = HealthServer(Readiness, process_registry(str))
    async with server.listening(OperatorAddresses(metrics=place)):
        async with server.listening(OperatorAddresses(metrics=place)):
            assert f"--metrics-address 127.0.0.1:{place[1]}: can't listen there" in caplog.text
        with pytest.raises(HealthError, match="--metrics-address"):
            async with server.listening(OperatorAddresses(metrics=place, wanted=True)):
                pass
        with pytest.raises(HealthError, match="--health-address"):
            async with server.listening(OperatorAddresses(health=place)):
                pass

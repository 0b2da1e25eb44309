"""Log lines: for people, and for collectors that read a JSON object a line."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from edge.journey.events import Outcome, Step
from edge.journey.recorder import Journey
from edge.run import logs
from edge.run.logs import JournalFormatter, JournalWriter, StreamWriter, TextFormatter, set_up
from tests.waiting import PATIENCE_SECONDS, wait_until

log = logging.getLogger("test.logs")

_SWITCHES = ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing")


@pytest.fixture(autouse=True)
def _root_is_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    switches = {name: getattr(logging, name) for name in _SWITCHES}
    yield
    for handler in root.handlers:
        if isinstance(handler, StreamWriter):
            handler.close()
    root.handlers[:], level = before
    root.setLevel(level)
    for name, value in switches.items():
        setattr(logging, name, value)


def written() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    written()
    captured = capsys.readouterr()
    assert captured.out == ""
    return [json.loads(line) for line in captured.err.splitlines()]


@pytest.mark.parametrize("prefix", ["", "<3>"])
def test_no_text_of_an_exception_forges_a_line_or_moves_the_cursor(prefix: str) -> None:
    forged = (
        "tink.kubeapi.apiserver.http.audit: alice from 10.0.0.7: delete hardware.tinkerbell.org default/m1: deleted"
    )
    try:
        raise ValueError(f"no such name: x\n{forged}\u2028{forged}\x0b{forged}\x1b[2J")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("edge.http", logging.ERROR, "f", 1, "failed for %s", (f"m\n{forged}",), error)
    form = JournalFormatter() if prefix else TextFormatter()
    first, *rest = form.format(record).split("\n")
    assert first.endswith(f"edge.http: failed for m\\n{forged}")
    assert {line.removeprefix(prefix)[:4] for line in rest} == {"    "}
    assert sum(line.removeprefix(prefix).startswith(f"    {forged}") for line in rest) == 3
    assert all(line.isprintable() for line in rest)


def test_json_has_one_object_a_line_whatever_was_logged(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", "json")
    log.info("two\nlines and a \udcff of a file's name, for %s", {"a": 1})
    try:
        raise ValueError("wrong\ud800")
    except ValueError:
        log.exception("failed")
    first, second = lines(capsys)
    assert first["message"] == "two\nlines and a \\udcff of a file's name, for {'a': 1}"
    assert (first["level"], first["logger"]) == ("info", "test.logs")
    assert first["time"].endswith("Z")
    assert "exception" not in first
    assert second["exception"].startswith("Traceback")
    assert "wrong\\ud800" in second["exception"]


def test_text_names_level_and_logger_and_strangers_words_forge_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", "text")
    seen: list[logging.LogRecord] = []
    log.addFilter(lambda record: not seen.append(record))  # type: ignore[func-returns-value]
    log.debug("hidden")
    log.warning("asked for %s", "x\n2026-01-31 12:00:00,123 ERROR   edge: forged\x1b[2J\u2028\udc80é")
    log.filters.clear()
    set_up("debug", "text")
    log.debug("now shown")
    logging.getLogger("aiohttp.access").info("GET /")  # access logs of libraries stay out
    written()
    texts = [line.split(" ", 2)[2] for line in capsys.readouterr().err.splitlines()]
    assert texts == [
        r"WARNING test.logs: asked for x\n2026-01-31 12:00:00,123 ERROR   edge: forged\x1b[2J\u2028\udc80é",
        "DEBUG   test.logs: now shown",
    ]
    # A record costs no walk up the stack.
    assert (seen[0].funcName, seen[0].thread, seen[0].process) == ("(unknown function)", None, None)


def test_one_line_is_written_once_however_often_logging_is_set_up(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", "json")
    for reported in ("once", "twice"):
        set_up("info", "json")
        log.info(reported)
        assert [line["message"] for line in lines(capsys)] == [reported]
    wait_until(lambda: sum(thread.name == "log" for thread in threading.enumerate()) <= 1, "threads of earlier set-ups")


def test_json_has_the_facts_of_a_journey_as_fields_and_none_replaces_the_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up("info", "json")
    journey = Journey(time.time)
    journey.record("52:54:00:00:00:01", Step.KERNEL, Outcome.OK, "sent", size_bytes=5, boot="\udcff")
    log.info("x", extra={"fields": {"time": "never", "level": "high", "place": {"unit": 3, "free": None}}})
    first, second = lines(capsys)
    assert (first["mac"], first["step"], first["outcome"]) == ("52:54:00:00:00:01", "kernel", "ok")
    assert first["detail"] == {"size_bytes": 5, "boot": "\\udcff"}
    assert first["message"] == "52:54:00:00:00:01 kernel ok: sent"
    assert second["time"] != "never"
    assert (second["level"], second["place"]) == ("info", {"unit": 3, "free": None})


@pytest.mark.parametrize("form", ["text", "json"])
def test_time_of_each_line_is_its_own(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", form)
    times = [1_700_000_000.03125, 1_700_000_000.9990234375, 1_700_003_600.5, 1_700_000_000.25]
    for moment in times:
        record = log.makeRecord(log.name, logging.INFO, "", 0, "x", (), None)
        record.created, record.msecs = moment, int(moment % 1 * 1000)
        log.handle(record)
    written()
    reported = capsys.readouterr().err.splitlines()
    if form == "json":
        expected = [datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] for moment in times]
        assert [json.loads(line)["time"] for line in reported] == [f"{moment}Z" for moment in expected]
    else:
        expected = [datetime.fromtimestamp(moment).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3] for moment in times]  # noqa: DTZ006
        assert [line[:23] for line in reported] == expected


# --- the journal -----------------------------------------------------------------------------------------------------


class Journal:
    """The journal's end of its socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(PATIENCE_SECONDS)

    def entry(self) -> dict[str, str]:
        """The next, read as the protocol says."""
        rest, found = self.socket.recv(1 << 20), {}
        while rest:
            line, _, rest = rest.partition(b"\n")
            name, equals, value = line.partition(b"=")
            if not equals:
                length = int.from_bytes(rest[:8], "little")
                value, rest = rest[8 : 8 + length], rest[8 + length :].removeprefix(b"\n")
            found[name.decode()] = value.decode()
        return found


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    found = Journal(tmp_path / "socket")
    yield found
    found.socket.close()


def to_journal(path: Path, stream: Any = sys.stderr) -> logging.Logger:
    logger = logging.Logger("edge.journey")  # noqa: LOG001 - it goes with the test
    logger.addHandler(JournalWriter(stream, path))
    return logger


def test_journal_has_the_facts_of_a_line_as_fields(journal: Journal, tmp_path: Path) -> None:
    logger = to_journal(tmp_path / "socket")
    fields = {"mac": "52:54:00:00:00:01", "step": "dhcp", "detail": {"a": 1}, "address": "", "odd name": "1\n2"}
    logger.warning("not %s", "known\nPRIORITY=0", extra={"fields": fields})
    assert journal.entry() == {
        "PRIORITY": "4",
        "MESSAGE": r"edge.journey: not known\nPRIORITY=0",
        "SYSLOG_IDENTIFIER": "tinkedge",
        "TINKEDGE_LOGGER": "edge.journey",
        "TINKEDGE_MAC": "52:54:00:00:00:01",
        "TINKEDGE_STEP": "dhcp",
        "TINKEDGE_DETAIL": '{"a":1}',
        "TINKEDGE_ODD_NAME": "1\n2",
    }
    try:
        raise RuntimeError("out of order")
    except RuntimeError:
        logger.exception("broken")
    found = journal.entry()
    assert found["PRIORITY"] == "3"
    assert found["MESSAGE"].startswith("edge.journey: broken\n    Traceback (most recent call last):\n")
    logger.handlers[0].close()


def test_lines_for_the_journal_have_a_priority_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "journal").open("a") as stream:
        found = os.fstat(stream.fileno())
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        set_up("info", "text")
        log.warning("one\ntwo")
        logging.getLogger().handlers[0].close()
    assert (tmp_path / "journal").read_text() == "<4>test.logs: one\\ntwo\n"


def test_line_that_the_journal_does_not_take_goes_to_standard_error(journal: Journal, tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w") as stream:
        logger = to_journal(tmp_path / "socket", stream)
        logger.info("x" * 3_000_000)
        logger.info("small")
        logger.handlers[0].flush()
        assert journal.entry()["MESSAGE"] == "edge.journey: small"
        (tmp_path / "socket").unlink()
        logger.error("the journal\nis away")
        logger.handlers[0].close()
    large, away = (tmp_path / "stderr").read_text().splitlines()
    assert large.startswith("<6>edge.journey: xxx")
    assert away == r"<3>edge.journey: the journal\nis away"


# --- the writer ----------------------------------------------------------------------------------------------------


class Pipe:
    """A standard error that is not read until `read_all`."""

    def __init__(self, **bounds: int) -> None:
        self._read_end, write_end = os.pipe()
        self._stream = os.fdopen(write_end, "w")
        self.handler = StreamWriter(self._stream, **bounds)
        self.log = logging.Logger("pipe")  # noqa: LOG001 - it goes with the test
        self.log.addHandler(self.handler)
        self._read = b""
        self._reader: threading.Thread | None = None

    def start_reading(self) -> None:
        self._reader = threading.Thread(target=self._read_everything, daemon=True)
        self._reader.start()

    def read_all(self) -> list[str]:
        if self._reader is None:
            self.start_reading()
        self.handler.close()
        self._stream.close()
        assert self._reader is not None
        self._reader.join(PATIENCE_SECONDS)
        os.close(self._read_end)
        return self._read.decode().splitlines()

    def _read_everything(self) -> None:
        while piece := os.read(self._read_end, 65_536):
            self._read += piece


def test_log_file_that_was_rotated_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("a") as stream:
        writer = StreamWriter(stream)
        path.rename(tmp_path / "log.1")
        writer.reopen()
        os.write(stream.fileno(), b"new\n")
        writer.close()
    assert (path.read_text(), (tmp_path / "log.1").read_text()) == ("new\n", "")


def test_reader_of_standard_error_that_has_stopped_delays_no_server_and_loses_no_reserved_line() -> None:
    pipe = Pipe(max_waiting_bytes=200_000)
    for number in range(10_000):
        pipe.log.info("%d %s", number, "x" * 90)
        if number % 100 == 0:
            pipe.log.info("write %d", number, extra={"reserved": True})
    waiting = pipe.handler._taken_bytes - pipe.handler._written_bytes
    assert waiting < 220_000, "the reserved ones are few"
    pipe.start_reading()
    pipe.handler.flush()
    pipe.log.info("again")
    pipe.log.info("and again")
    reported = pipe.read_all()
    assert reported[-2:] == ["again", "and again"]
    assert [line for line in reported if line.startswith("write")] == [f"write {n}" for n in range(0, 10_000, 100)]
    missing = [re.fullmatch(r"(\d+) log lines are missing here: standard error was .*", line) for line in reported]
    lost = sum(int(each[1]) for each in missing if each is not None)
    there = [int(line.split()[0]) for line in reported if line.endswith("x")]
    assert len(there) + lost == 10_000
    assert there == list(range(len(there)))


def test_errors_wait_for_a_blocked_standard_error_once_and_not_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_ERROR_SECONDS", 0.01)
    pipe = Pipe()
    pipe.log.info("x" * 200_000)
    waits: list[float] = []
    within = pipe.handler._written_within
    monkeypatch.setattr(pipe.handler, "_written_within", lambda seconds: waits.append(seconds) or within(seconds))
    for _ in range(50):
        pipe.log.error("broken")
    assert waits == [0.01]
    monkeypatch.setattr(logs, "_ERROR_SECONDS", PATIENCE_SECONDS)
    pipe.start_reading()
    pipe.handler.flush()
    pipe.log.error("broken")  # standard error is read again, so this one is waited for
    assert pipe.handler._written_bytes == pipe.handler._taken_bytes
    assert pipe.read_all().count("broken") == 51
    pipe = Pipe()
    pipe.start_reading()
    in_time = pipe.handler._written_within
    # One that is written a little late is no reason not to wait for the next.
    monkeypatch.setattr(pipe.handler, "_written_within", lambda _: in_time(PATIENCE_SECONDS) and False)
    pipe.log.error("broken")
    assert not pipe.handler._stuck
    assert pipe.read_all() == ["broken"]


def test_everything_is_written_when_the_program_ends_and_after_an_error_it_may_end_as_it_likes() -> None:
    patient = "from edge.run import logs; logs._ERROR_SECONDS = 20\n"
    reported = _program(f"{patient}for n in range(100): log.info('%d', n)\nlog.error('the end')\nos._exit(3)", status=3)
    assert [line.rpartition(" ")[2] for line in reported] == [*map(str, range(100)), "end"]
    reported = _program("for n in range(3000): log.info('%d', n)")
    assert [line.rpartition(" ")[2] for line in reported] == list(map(str, range(3000)))


def test_program_ends_although_its_log_is_not_read() -> None:
    code = f"{_START}logging.info('x' * 500_000)"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        try:
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()


def test_terminal_that_another_program_made_non_blocking_loses_no_line() -> None:
    pipe = Pipe()
    os.set_blocking(pipe.handler._descriptor, False)
    for number in range(3_000):
        pipe.log.info("%d %s", number, "x" * 90)
    assert len(pipe.read_all()) == 3_000


def test_closed_standard_error_is_survived() -> None:
    pipe = Pipe()
    os.close(pipe._read_end)
    pipe.log.error("to nobody")
    pipe.log.error("nor this")
    assert pipe.handler._written_within(PATIENCE_SECONDS)
    pipe.handler.close()
    pipe._stream.close()


_START = "import logging, os; from edge.run.logs import set_up\nset_up('info', 'text')\n"


def _program(code: str, status: int = 0) -> list[str]:
    program = f"{_START}log = logging.getLogger('x')\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == status
    return done.stderr.splitlines()

"""Log lines: for people, and for collectors that read a JSON object a line."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from edge.logs import set_up

log = logging.getLogger("test.logs")


@pytest.fixture(autouse=True)
def _root_is_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], level = before
    root.setLevel(level)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return [json.loads(line) for line in captured.err.splitlines()]


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


def test_text_names_level_and_logger_and_debug_is_quiet_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", "text")
    log.debug("hidden")
    log.warning("shown")
    set_up("debug", "text")
    log.debug("now shown")
    said = capsys.readouterr().err.splitlines()
    assert [line.split(" ", 2)[2] for line in said] == [
        "WARNING test.logs: shown",
        "DEBUG   test.logs: now shown",
    ]


def test_one_line_is_written_once_however_often_logging_is_set_up(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", "json")
    set_up("info", "json")
    log.info("once")
    assert len(lines(capsys)) == 1


def test_access_logs_of_libraries_stay_out(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("debug", "json")
    logging.getLogger("aiohttp.access").info("GET /")
    assert lines(capsys) == []

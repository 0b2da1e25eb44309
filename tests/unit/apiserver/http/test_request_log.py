"""What an operator reads in the log when clients misbehave: each thing once, and not a thousand times."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.unit.apiserver.conftest import Client
from tink.apiserver.http.request_log import (
    CAPACITY,
    FAULTS,
    INTERVAL_SECONDS,
    SHARE,
    STRANGERS_SHARE,
    NotHttp,
    RequestLog,
)

LOG = logging.getLogger("tests.refusals")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


def test_same_refusal_is_told_once_a_minute(lines: Any) -> None:
    now = [0.0]
    requests = RequestLog(LOG, lambda: now[0])
    for now[0] in (0.0, 1.0, INTERVAL_SECONDS - 1, INTERVAL_SECONDS):
        requests.refused("GET", "/x", "400 no")
    assert lines() == ["GET /x: 400 no"] * 2


def test_flood_of_different_refusals_is_cut_off_and_said_to_be(lines: Any) -> None:
    now = [0.0]
    requests = RequestLog(LOG, lambda: now[0])
    for number in range(CAPACITY * 3):
        requests.refused("GET", f"/{number}", "400 no")
    assert len(lines()) == CAPACITY
    now[0] = INTERVAL_SECONDS
    requests.refused("GET", "/later", "400 no")
    assert lines()[-2:] == [f"{CAPACITY * 2} more lines like the last ones were left out", "GET /later: 400 no"]


def test_what_is_no_http_leaves_no_stack_trace(lines: Any) -> None:
    from aiohttp.http_exceptions import BadHttpMethod

    only = NotHttp(RequestLog(LOG, lambda: 0.0))
    for error, passes in ((BadHttpMethod("x"), False), (BadHttpMethod("y"), False), (ValueError("ours"), True)):
        record = LOG.makeRecord("x", logging.ERROR, "f", 1, "Error handling request", (), (type(error), error, None))
        assert only.filter(record) is passes
    assert lines() == ["? ?: a client sends what is no HTTP: BadHttpMethod"]


async def test_repeated_bad_request_is_one_line(bare: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(5):
        assert (await bare("GET", "/api/v1/secrets?limit=x")).status == 400
    assert sum("strconv.ParseInt" in record.getMessage() for record in caplog.records) == 1


def test_paths_that_one_user_makes_up_leave_room_for_the_lines_about_others(lines: Any) -> None:
    requests = RequestLog(LOG, lambda: 0.0)
    for number in range(CAPACITY * 3):
        requests.refused("GET", f"/{number}", "400 no", "mallory")
        requests.unauthorized(f"2001:db8::{number:x}", "Unauthorized")
    requests.refused("GET", "/" + "x" * 9000, "400 no", "alice")
    requests.unauthorized("::1", "Unauthorized")
    assert len(lines()) == SHARE + STRANGERS_SHARE + 2
    assert [line[:30] for line in lines()[-2:]] == ["GET /" + "x" * 25, "::1: 401 Unauthorized: no toke"]
    assert max(map(len, lines())) < 600


def test_fault_that_is_caused_again_and_again_leaves_few_stack_traces(lines: Any) -> None:
    requests = RequestLog(LOG, lambda: 0.0)
    for number in range(100):
        try:
            raise ValueError(number)
        except ValueError:
            requests.failed("GET", f"/{number}")
    assert len(lines()) == FAULTS

"""Work that nothing waits for logs its failure."""

import asyncio
import logging

import pytest

from tests.support.virtual_time import turns
from tink.waiting import log_failure

log = logging.getLogger("test.waiting")


async def fails():
    raise ValueError("a mistake")


async def test_an_exception_is_logged_once_with_what_it_means(caplog):
    work = asyncio.create_task(fails())
    called = []
    log_failure(work, log, "nobody cleans up any more", lambda: called.append("then"))
    await asyncio.wait([work])
    await turns()
    assert called == ["then"]
    (record,) = [record for record in caplog.records if record.name == log.name]
    assert record.levelno == logging.ERROR
    assert record.getMessage() == "nobody cleans up any more"
    assert isinstance(record.exc_info[1], ValueError)


@pytest.mark.parametrize("cancelled", [True, False])
async def test_success_and_cancellation_are_not_logged(caplog, cancelled):
    work = asyncio.create_task(turns(10))
    called = []
    log_failure(work, log, "nobody cleans up any more", lambda: called.append("then"))
    if cancelled:
        work.cancel()
    await asyncio.wait([work])
    await turns()
    assert (caplog.records, called) == ([], [])

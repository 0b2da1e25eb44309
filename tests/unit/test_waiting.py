"""Work that nobody waits for does not end unheard."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tink.waiting import failure_is_said

log = logging.getLogger("test.waiting")


async def fails() -> None:
    raise ValueError("a mistake")


async def test_an_exception_is_said_once_with_what_it_means(caplog):
    work = asyncio.create_task(fails())
    called = []
    failure_is_said(work, log, "nobody cleans up any more", lambda: called.append("then"))
    await asyncio.wait([work])
    await asyncio.sleep(0)
    assert called == ["then"]
    (record,) = [record for record in caplog.records if record.name == log.name]
    assert record.levelno == logging.ERROR
    assert record.getMessage() == "nobody cleans up any more"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


@pytest.mark.parametrize("cancelled", [True, False])
async def test_an_end_that_is_none_is_not(caplog, cancelled):
    work = asyncio.create_task(asyncio.sleep(10 if cancelled else 0))
    called = []
    failure_is_said(work, log, "nobody cleans up any more", lambda: called.append("then"))
    if cancelled:
        work.cancel()
    await asyncio.wait([work])
    await asyncio.sleep(0)
    assert (caplog.records, called) == ([], [])

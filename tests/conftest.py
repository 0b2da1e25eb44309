"""Hooks and fixtures for all tests, however and wherever they are started."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import leftovers

# How long an example of hypothesis takes says how busy the machine is, and no more.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# A shell starts what it puts into the background with SIGINT ignored, and so would be what tests start and end by it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start programs of the project by the hundred; where the environment forbids to keep what was compiled, a start
# takes twice as long.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def _is_ours(record: logging.LogRecord) -> bool:
    """False of what grpc.aio makes asyncio log when two event loops of a process were woken for one event, as those
    of tests that follow one another are: nothing is lost then (grpc/grpc#25364)."""
    raised = record.exc_info[0] if isinstance(record.exc_info, tuple) else None
    return raised is not BlockingIOError or "PollerCompletionQueue._handle_events" not in record.getMessage()


logging.getLogger("asyncio").addFilter(_is_ours)

# looptime asks for the event loop of synchronous tests, too. Without this, asyncio creates one that is never closed.
asyncio.set_event_loop(None)

# What is collected stays: to look for garbage in it meanwhile, again and again, is for nothing.
gc.disable()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remove the leftovers of a killed run before the first test. Only tests that run as root leave any."""
    if os.geteuid() == 0 and not hasattr(session.config, "workerinput"):
        for line in leftovers.clear():
            print(f"left by a killed test run, removed: {line}")


_UNIT = Path(__file__).parent / "unit"


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark unit tests by their place, and start long tests first, so that the end of a run does not wait for them."""
    for item in items:
        if _UNIT in item.path.parents:
            item.add_marker("unit")
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Repeat each failure in one line at the very end, where a reader of a long log finds it."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    for report in () if reporter is None else (*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())):
        crash = getattr(report.longrepr, "reprcrash", None)
        where = f"{Path(crash.path).name}:{crash.lineno}: {' '.join(crash.message.split())[:300]}" if crash else ""
        reporter.write_line(f"{report.nodeid.rpartition('/')[2]} ({report.when}): {where}")


def pytest_configure(config: pytest.Config) -> None:
    """Suppress the messages of pytest-xdist's workers about the start, set-up and teardown of tests.

    For ten thousand tests, they are most of the work of the process that collects the results. The messages stay if
    options ask for times.
    """
    if config.option.xmlpath is None and config.option.durations is None:
        for worker in [plugin for plugin in config.pluginmanager.get_plugins() if hasattr(plugin, "sendevent")]:
            worker.sendevent = partial(_tell, worker.sendevent)


def _tell(send: Callable[..., None], event: str, **said: Any) -> None:
    if not _is_small_talk(event, **said):
        send(event, **said)


def _is_small_talk(event: str, **said: Any) -> bool:
    if event != "testreport":
        return event in ("logstart", "logfinish")
    report = said["data"]
    return report["when"] != "call" and report["outcome"] == "passed" and not report["sections"]


def pytest_collection_finish() -> None:
    """Ten thousand tests and all modules stay: to look for garbage among them takes a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.enable()

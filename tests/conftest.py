"""What holds for all tests, however and wherever they are started."""

from __future__ import annotations

import gc
import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

# How long an example of hypothesis takes says how busy the machine is, and no more.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# A shell starts what it puts into the background with SIGINT ignored, and so would be what tests start and end by it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start programs of the project by the hundred; where the environment forbids to keep what was compiled, a start
# takes twice as long.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# What is collected stays: to look for garbage in it meanwhile, again and again, is for nothing.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is marked `long` begins first: nobody waits for it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """Ten thousand tests and all modules stay: to look for garbage among them takes a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.enable()

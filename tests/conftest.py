"""What holds for all tests, however and wherever they are started."""

from __future__ import annotations

import os
import signal
import sys

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

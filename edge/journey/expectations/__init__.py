"""The next step that a machine is expected to take, its deadline, and diagnoses when it is missing: docs/journey.md.

    the journey -> story (the boots of one machine) ----------------------+
    reservation, networks, what else is known -> facts --------------------+-> rules -> finding: what is so, and why
    limits (how long a step takes here) ------------------------------------+

All of that is pure, the time is an argument. `watch` is the one part with a memory: who is awaited until when.
"""

from edge.journey.expectations.facts import Facts, Finding, Network, Registered
from edge.journey.expectations.limits import Limits
from edge.journey.expectations.rules import NOT_RUN, diagnose
from edge.journey.expectations.story import Boot, Story, read, workflow_of
from edge.journey.expectations.watch import Awaited, Expectations

__all__ = [
    "NOT_RUN",
    "Awaited",
    "Boot",
    "Expectations",
    "Facts",
    "Finding",
    "Limits",
    "Network",
    "Registered",
    "Story",
    "diagnose",
    "read",
    "workflow_of",
]

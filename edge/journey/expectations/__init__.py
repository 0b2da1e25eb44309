"""The next step that a machine is expected to take, its deadline, and diagnoses when it is missing: docs/journey.md.

    the journey -> story (the boots of one machine) ----------------------+
    reservation, networks, what else is known -> facts --------------------+-> rules -> finding: what is so, and why
    limits (how long a step takes here) ------------------------------------+

All of that is pure, the time is an argument. `watch` is the one part with a memory: who is awaited until when.
"""

from edge.journey.expectations.facts import Diagnosis, Facts, KnownNetworks, Registered
from edge.journey.expectations.limits import StepLimits
from edge.journey.expectations.rules import NOT_RUN, diagnose
from edge.journey.expectations.story import MachineBoot, Story, read, workflow_of
from edge.journey.expectations.watch import Awaited, Expectations

__all__ = [
    "NOT_RUN",
    "Awaited",
    "Diagnosis",
    "Expectations",
    "Facts",
    "KnownNetworks",
    "MachineBoot",
    "Registered",
    "StepLimits",
    "Story",
    "diagnose",
    "read",
    "workflow_of",
]

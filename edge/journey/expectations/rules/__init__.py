"""The rules: each is a function of the story and the facts that returns a finding or None.

`diagnose` calls them in this order, and the first finding counts: certain facts come before deadlines, and problems of
this boot before those of the last. A rule returns None rather than a finding that may be false.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from edge.journey.expectations.facts import Diagnosis, Facts
from edge.journey.expectations.rules import address, files, loops, osie, power, program, work
from edge.journey.expectations.rules.program import NOT_RUN
from edge.journey.expectations.rules.work import SILENCE
from edge.journey.expectations.story import Story

__all__ = ["NOT_RUN", "RULES", "SILENCE", "Rule", "diagnose"]

Rule = Callable[[Story, Facts], Diagnosis | None]

RULES: Final[tuple[Rule, ...]] = (
    address.duplicate_mac,
    address.almost_registered,
    address.second_card,
    address.not_known,
    power.not_booted,
    files.upstream_stalls,
    files.user_data_dropped,
    files.last_failure,
    files.last_refusal,
    address.offers_not_taken,
    program.not_asked_for,
    program.transfer_stalls,
    program.not_started,
    program.no_script_asked,
    files.not_asked_for,
    files.sending_stalls,
    osie.little_memory,
    osie.silent_kernel,
    osie.no_agent,
    osie.wrong_clock,
    work.not_introduced,
    work.not_approved,
    work.no_workflow,
    work.not_begun,
    work.pull_stalls,
    work.silent_action,
    loops.netboots_again,
    loops.interrupted_action,
    loops.boot_loop,
    loops.kernel_restarted,
)


WITHOUT_POWER: Final[tuple[Rule, ...]] = (
    address.duplicate_mac,
    address.almost_registered,
    address.second_card,
    address.not_known,
    power.not_booted,
    files.user_data_dropped,
    files.last_failure,
    files.last_refusal,
    power.is_off,
)
"""The rules for a machine that is off, or that BMC control has switched: no next step of it is missing."""


def diagnose(story: Story, facts: Facts) -> Diagnosis | None:
    """Return the first finding that explains why this machine does not progress, or None if no rule finds a problem."""
    rules = WITHOUT_POWER if facts.is_off or power.is_switched(story) else RULES
    found = next((finding for rule in rules if (finding := rule(story, facts)) is not None), None)
    if found is None or found.began:
        return found
    boot = story.boot
    return replace(found, began=boot.since if boot.at is not None else boot.began)

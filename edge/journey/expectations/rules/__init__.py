"""The rules: each is a function of the story and the facts that gives one finding, or nothing.

They are asked in this order, and the first that speaks is believed: what is certain comes before what a clock says, and
what is wrong with this boot before what became of the last. A rule says nothing rather than something that may be
false.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from edge.journey.expectations.facts import Facts
from edge.journey.expectations.finding import Finding
from edge.journey.expectations.rules import address, files, identity, loops, osie, program, work
from edge.journey.expectations.rules.program import NOT_RUN
from edge.journey.expectations.rules.work import SILENCE
from edge.journey.expectations.story import Story

__all__ = ["NOT_RUN", "RULES", "SILENCE", "Rule", "diagnose"]

Rule = Callable[[Story, Facts], Finding | None]

RULES: Final[tuple[Rule, ...]] = (
    identity.duplicate_mac,
    identity.almost_registered,
    identity.second_card,
    identity.not_known,
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
    work.no_workflow,
    work.not_begun,
    work.pull_stalls,
    work.silent_action,
    loops.netboots_again,
    loops.interrupted_action,
    loops.boot_loop,
    loops.kernel_restarted,
)


def diagnose(story: Story, facts: Facts) -> Finding | None:
    """The one finding that explains most of why this machine does not get on; None: nothing is known to be wrong."""
    found = next((finding for rule in RULES if (finding := rule(story, facts)) is not None), None)
    if found is None or found.began:
        return found
    boot = story.boot
    return replace(found, began=boot.since if boot.at is not None else boot.began)

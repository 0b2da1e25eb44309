"""Who the machine is: a MAC that nobody has, or two, or that somebody meant to have."""

from __future__ import annotations

from edge.journey.expectations.facts import Facts
from edge.journey.expectations.finding import Cause, Finding
from edge.journey.expectations.rules.words import API_CHECKS
from edge.journey.expectations.story import Story
from edge.journey.steps import Step


def duplicate_mac(story: Story, facts: Facts) -> Finding | None:
    """Several Hardware have this MAC, so none is served."""
    if len(facts.claimants) < 2:
        return None
    names = " and ".join(facts.claimants)
    return Finding(
        "DuplicateMAC",
        Step.SEEN,
        f"{story.mac} is in the Hardware {names}, so the machine is served by neither",
        checks=("remove it from all but one",),
        about=facts.claimants,
    )


def almost_registered(story: Story, facts: Facts) -> Finding | None:
    """One digit of its MAC differs from that of a Hardware that was not heard."""
    if facts.near is None or facts.registered is not None or not _only_seen(story):
        return None
    hardware, mac = facts.near
    return Finding(
        "AlmostRegistered",
        Step.SEEN,
        f"not registered, and one digit off from {mac} of Hardware {hardware}, which was never heard",
        (
            Cause(f"there is a slip in spec.networkInterfaces of Hardware {hardware}"),
            Cause("it is another machine, and not registered yet"),
        ),
        (f"compare the label of the machine, then correct the MAC in Hardware {hardware}, or register this one, too",),
        about=(hardware,),
    )


def second_card(story: Story, facts: Facts) -> Finding | None:
    """It said the UUID that a registered machine said with another MAC: the same machine's other card."""
    if facts.same_uuid is None or facts.registered is not None or not _only_seen(story):
        return None
    hardware, mac = facts.same_uuid
    return Finding(
        "SecondCard",
        Step.SEEN,
        f"not registered, and has the UUID of Hardware {hardware}, which netbooted with {mac}",
        (
            Cause("this is another network card of that machine"),
            Cause("two machines have one UUID (clones of a virtual machine, boards without one of their own)"),
        ),
        (f"to let it netboot with this card, too, add {story.mac} to spec.networkInterfaces of {hardware}",),
        about=(hardware,),
    )


def not_known(story: Story, facts: Facts) -> Finding | None:
    """Nobody has registered it, as far as is known; but what is known may be old."""
    if not facts.api_away or facts.registered is not None or facts.claimants or not _only_seen(story):
        return None
    fact = "is not among the Hardware that are known here, which may be old"
    return Finding("APIAway", Step.SEEN, fact, (Cause(facts.api_away), Cause("it is not registered")), API_CHECKS)


def _only_seen(story: Story) -> bool:
    return bool(story.boot.events) and story.boot.last(Step.SEEN) is not None and story.boot.at is None

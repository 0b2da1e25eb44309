"""Rules for the address: offers that are not accepted, and MACs that have no Hardware, or several."""

from __future__ import annotations

from typing import Final

from edge.journey.events import Milestone, Outcome, Step
from edge.journey.expectations.facts import Causes, Diagnosis, Facts, LikelyCause
from edge.journey.expectations.rules.words import API_CHECKS, address, overdue, seconds, times
from edge.journey.expectations.story import MachineBoot, Story

OFFERS, OFFERS_SECONDS = 3, 7.0
"""Number of offers that show before the deadline that none is accepted, and the time they must span: EDK2 may take
6.1 s, and one DISCOVER may come through several relays."""
AGAIN_SECONDS, ASKED_AGAIN_SECONDS = 1.0, 8.0
"""A client that repeats its DISCOVER between these times has not accepted the offer. iPXE repeats it once, and accepts
an offer 2 s later."""
_OFFERED = {Milestone.OFFERED, Milestone.IPXE_OFFERED, Milestone.OS_OFFERED}


def offers_not_taken(story: Story, facts: Facts) -> Diagnosis | None:
    """The machine was offered its address, and did not accept it."""
    boot = story.boot
    if boot.at not in _OFFERED or not (overdue(boot, facts) or _asks_again(boot, facts)):
        return None
    other_server = next(
        (event for event in boot.since_then() if event.outcome is Outcome.FAILED and event.detail.get("server")), None
    )
    if other_server is not None:
        other = other_server.detail["server"]
        return Diagnosis(
            "OtherDHCPServer",
            Step.DHCP,
            f"was offered {address(facts)}, but accepted the offer of another DHCP server, {other}",
            checks=(f"stop the answers of {other} to this machine, or use --dhcp-mode proxy",),
        )
    who = "iPXE " if boot.at is Milestone.IPXE_OFFERED else ""
    offered = f"{who}was offered {address(facts)} {times(boot.times)}"
    fact = f"{offered} in {seconds(boot.since, facts.now)}, but never requested it"
    return Diagnosis("OfferNotTaken", Step.DHCP, fact, _causes(boot, facts), _checks(facts))


def _asks_again(boot: MachineBoot, facts: Facts) -> bool:
    waited = facts.now - boot.since
    asked_again = boot.times > 1 and boot.latest - boot.since >= AGAIN_SECONDS
    return (boot.times >= OFFERS and waited >= OFFERS_SECONDS) or (asked_again and waited >= ASKED_AGAIN_SECONDS)


def _causes(boot: MachineBoot, facts: Facts) -> Causes:
    registered, network = facts.registered, facts.network
    if facts.is_elsewhere and registered is not None:
        here = ", ".join(map(str, network.served))
        elsewhere = LikelyCause(
            "the machine refuses an address of another network", f"{registered.network} is not {here}"
        )
        return (elsewhere, *_ON_THE_LINK)
    if facts.is_relayed and registered is not None:
        if facts.relay_trouble:
            return (LikelyCause(f"the answers do not reach its relay, {facts.relay}", facts.relay_trouble),)
        by = f", {facts.relay}," if facts.relay else ","
        lost = f"the answers are lost between here and the relay{by} or behind it"
        return (LikelyCause(lost, f"it is in {registered.network}"), _ON_THE_LINK[1])
    return (*_ON_THE_LINK, *(("it was switched off",) if boot.times == 1 else ()))


_ON_THE_LINK: Final = (
    "the offers do not reach it (VLAN of its port, DHCP snooping of the switch)",
    "it has accepted another DHCP server's offer",
)


def _checks(facts: Facts) -> tuple[str, ...]:
    if facts.is_relayed and facts.relay_trouble:
        return ("give this host a route to the relay, or correct the relay's address",)
    if facts.is_relayed:
        return ("does this host have a route to the relay, and may udp/67 pass both ways?",)
    if facts.is_elsewhere:
        return ("correct dhcp.ip and dhcp.netmask of the Hardware, or plug the machine into that network",)
    return ("tinkedge doctor --probe lists the DHCP servers that answer there",)


def duplicate_mac(story: Story, facts: Facts) -> Diagnosis | None:
    """Several Hardware have this MAC, so none is served."""
    if len(facts.claimants) < 2:
        return None
    fact = f"{story.mac} is in the Hardware {' and '.join(facts.claimants)}, so the edge does not serve the machine"
    return Diagnosis("DuplicateMAC", Step.SEEN, fact, checks=("remove it from all but one",), about=facts.claimants)


def almost_registered(story: Story, facts: Facts) -> Diagnosis | None:
    """The MAC differs in one digit from that of a Hardware whose machine was never seen."""
    if facts.near is None or facts.registered is not None or not _only_seen(story):
        return None
    hardware, mac = facts.near
    other = f"{mac} of Hardware {hardware}, whose machine was never seen"
    fact = f"not registered, but its MAC differs in one digit from {other}"
    typo = f"there is a typo in spec.networkInterfaces of Hardware {hardware}"
    causes = (typo, "it is another machine that is not registered yet")
    check = (
        f"compare the machine's label, then correct the MAC in Hardware {hardware}, or register this machine as well"
    )
    return Diagnosis("AlmostRegistered", Step.SEEN, fact, causes, (check,), about=(hardware,))


def second_card(story: Story, facts: Facts) -> Diagnosis | None:
    """The machine reported the UUID of a registered machine with another MAC: it is another card of that machine."""
    if facts.same_uuid is None or facts.registered is not None or not _only_seen(story):
        return None
    hardware, mac = facts.same_uuid
    fact = f"not registered, but has the UUID of Hardware {hardware}, which netbooted with {mac}"
    clones = "two machines have one UUID (cloned virtual machines, boards without a UUID of their own)"
    causes = ("this is another network card of that machine", clones)
    check = f"to let it netboot with this card as well, add {story.mac} to spec.networkInterfaces of {hardware}"
    return Diagnosis("SecondCard", Step.SEEN, fact, causes, (check,), about=(hardware,))


def not_known(story: Story, facts: Facts) -> Diagnosis | None:
    """No known Hardware has the MAC. The known Hardware may be out of date."""
    if not facts.api_away or facts.registered is not None or facts.claimants or not _only_seen(story):
        return None
    fact = "is not among the Hardware objects known here, which may be out of date"
    return Diagnosis("APIAway", Step.SEEN, fact, (facts.api_away, "it is not registered"), API_CHECKS)


def _only_seen(story: Story) -> bool:
    return bool(story.boot.events) and story.boot.last(Step.SEEN) is not None and story.boot.at is None

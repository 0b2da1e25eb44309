"""Rules for the address: offers that are not accepted, and MACs that have no Hardware, or several."""

from __future__ import annotations

from typing import Final

from edge.journey.events import Milestone, Outcome, Step
from edge.journey.expectations.facts import Cause, Facts, Finding
from edge.journey.expectations.rules.words import API_CHECKS, address, overdue, seconds, times
from edge.journey.expectations.story import Boot, Story

OFFERS, OFFERS_SECONDS = 3, 7.0
"""Number of offers that show before the deadline that none is accepted, and the time they must span: EDK2 may take
6.1 s, and one DISCOVER may come through several relays."""
AGAIN_SECONDS, ASKED_AGAIN_SECONDS = 1.0, 8.0
"""A client that repeats its DISCOVER between these times has not accepted the offer. iPXE repeats it once, and accepts
an offer 2 s later."""
_OFFERED = {Milestone.OFFERED, Milestone.IPXE_OFFERED, Milestone.OS_OFFERED}


def offers_not_taken(story: Story, facts: Facts) -> Finding | None:
    """The machine was offered its address, and did not accept it."""
    boot = story.boot
    if boot.at not in _OFFERED or not (overdue(boot, facts) or _asks_again(boot, facts)):
        return None
    took_another = next(
        (event for event in boot.since_then() if event.outcome is Outcome.FAILED and event.detail.get("server")), None
    )
    if took_another is not None:
        other = took_another.detail["server"]
        return Finding(
            "OtherDHCPServer",
            Step.DHCP,
            f"was offered {address(facts)}, and took the offer of another DHCP server, {other}",
            checks=(f"have {other} give this machine no address, or use --dhcp-mode proxy",),
        )
    who = "iPXE " if boot.at is Milestone.IPXE_OFFERED else ""
    offered = f"{who}was offered {address(facts)} {times(boot.times)}"
    fact = f"{offered} in {seconds(boot.since, facts.now)}, and never asked for it"
    return Finding("OfferNotTaken", Step.DHCP, fact, _causes(boot, facts), _checks(facts))


def _asks_again(boot: Boot, facts: Facts) -> bool:
    waited = facts.now - boot.since
    asked_again = boot.times > 1 and boot.latest - boot.since >= AGAIN_SECONDS
    return (boot.times >= OFFERS and waited >= OFFERS_SECONDS) or (asked_again and waited >= ASKED_AGAIN_SECONDS)


def _causes(boot: Boot, facts: Facts) -> tuple[Cause, ...]:
    registered, network = facts.registered, facts.network
    if facts.is_elsewhere and registered is not None:
        here = ", ".join(map(str, network.served))
        elsewhere = Cause("the machine refuses an address of another network", f"{registered.network} is not {here}")
        return (elsewhere, *_ON_THE_LINK)
    if facts.is_relayed and registered is not None:
        if facts.relay_trouble:
            return (Cause(f"the answers do not reach its relay, {facts.relay}", facts.relay_trouble),)
        by = f", {facts.relay}," if facts.relay else ","
        lost = f"the answers are lost between here and the relay{by} or behind it"
        return (Cause(lost, f"it is in {registered.network}"), _ON_THE_LINK[1])
    return (*_ON_THE_LINK, *((Cause("it was switched off"),) if boot.times == 1 else ()))


_ON_THE_LINK: Final = (
    Cause("the offers do not reach it (VLAN of its port, DHCP snooping of the switch)"),
    Cause("it has chosen another DHCP server's offer"),
)


def _checks(facts: Facts) -> tuple[str, ...]:
    if facts.is_relayed and facts.relay_trouble:
        return ("give this host a route to the relay, or correct the relay's address",)
    if facts.is_relayed:
        return ("does this host have a route to the relay, and may udp/67 pass both ways?",)
    if facts.is_elsewhere:
        return ("correct dhcp.ip and dhcp.netmask of the Hardware, or plug the machine into that network",)
    return ("tinkedge doctor --probe shows who offers there",)


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
    """The MAC differs in one digit from that of a Hardware that was never heard."""
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
    """The machine reported the UUID of a registered machine with another MAC: it is another card of that machine."""
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
    """No known Hardware has the MAC. The known Hardware may be out of date."""
    if not facts.api_away or facts.registered is not None or facts.claimants or not _only_seen(story):
        return None
    fact = "is not among the Hardware that are known here, which may be old"
    return Finding("APIAway", Step.SEEN, fact, (Cause(facts.api_away), Cause("it is not registered")), API_CHECKS)


def _only_seen(story: Story) -> bool:
    return bool(story.boot.events) and story.boot.last(Step.SEEN) is not None and story.boot.at is None

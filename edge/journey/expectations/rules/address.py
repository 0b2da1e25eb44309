"""From the offer of an address to its taking."""

from __future__ import annotations

from typing import Final

from edge.journey.expectations.facts import Facts
from edge.journey.expectations.finding import Cause, Finding
from edge.journey.expectations.rules.words import address, overdue, seconds, times
from edge.journey.expectations.story import Boot, Story
from edge.journey.steps import Milestone, Outcome, Step

OFFERS, OFFERS_SECONDS = 3, 7.0
"""So many offers of which none was taken say it before the clock does; but EDK2 takes its time (6.1 s were seen), and
one question may come through several relays."""
AGAIN_SECONDS, ASKED_AGAIN_SECONDS = 1.0, 8.0
"""One who asks again so long after its first question has not taken the answer; iPXE does that once, and takes an offer
2 s later."""
_OFFERED = {Milestone.OFFERED, Milestone.IPXE_OFFERED, Milestone.OS_OFFERED}


def offers_not_taken(story: Story, facts: Facts) -> Finding | None:
    """It was offered its address, and did not take it."""
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

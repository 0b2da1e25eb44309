"""Rules from the lease to the script: the boot program by TFTP or HTTP, and iPXE's request for its script."""

from __future__ import annotations

from edge.journey.events import PROGRESS, Milestone, Step, is_uki
from edge.journey.expectations.facts import Diagnosis, Facts, LikelyCause, Why
from edge.journey.expectations.limits import SOLICITING_SECONDS, SOONER
from edge.journey.expectations.rules.words import (
    address,
    has_just_knocked,
    insists,
    knocked,
    overdue,
    seconds,
    times,
    why_unheard,
)
from edge.journey.expectations.story import MachineBoot, Story
from ipxe.binaries import GRUB_OF

_SILENT, _NOT_STARTED = "ProgramSilent", "ProgramNotStarted"
NOT_RUN = frozenset({_SILENT, _NOT_STARTED})
"""The rules that make `BootPaths` offer another boot program (`edge.machines.policy`)."""
_HTTP_ROM = "HTTP Boot ROM"
_FETCHES = (Step.TFTP, Step.BINARY, Step.SCRIPT, Step.KERNEL, Step.INITRD)


def not_asked_for(story: Story, facts: Facts) -> Diagnosis | None:
    """The machine has an address and the name of a boot program, and does not request that."""
    boot = story.boot
    if boot.at is not Milestone.LEASED or not boot.detail.get("boot") or boot.heard_of(*_FETCHES):
        return None
    by_http = boot.detail.get("stage") == _HTTP_ROM
    port = f"tcp/{facts.http_port}" if by_http else "udp/69"
    again = boot.again.get(Milestone.OFFERED, 0)
    is_late = overdue(boot, facts) and not has_just_knocked(facts, port)
    if not (is_late or again or insists(facts, port)):
        return None
    came_back = f", and it requested an address again {times(again)}" if again else ""
    fact = (
        f"has {address(facts)} and the name of its boot program, but no {'HTTP' if by_http else 'TFTP'} request for it "
        f"arrived for {seconds(boot.since, facts.now)}{came_back}"
    )
    return Diagnosis("NoTFTPRequest" if not by_http else "NoHTTPRequest", Step.TFTP, fact, *why_unheard(facts, port))


def no_script_asked(story: Story, facts: Facts) -> Diagnosis | None:
    """The machine's iPXE has an address, and does not request its script."""
    boot = story.boot
    if boot.at is not Milestone.IPXE_LEASED or boot.heard_of(*_FETCHES):
        return None
    by_tftp = "tftp://" in str(boot.detail.get("boot", ""))
    port = "udp/69" if by_tftp else f"tcp/{facts.http_port}"
    again = boot.again.get(Milestone.IPXE_OFFERED, 0)
    is_late = _script_is_late(boot, facts) and not has_just_knocked(facts, port)
    if not (is_late or again or insists(facts, port)):
        return None
    fact = f"iPXE has {address(facts)}, but no request for its script arrived for {seconds(boot.since, facts.now)}"
    causes, checks = why_unheard(facts, port)
    if not knocked(facts, port) and facts.now - boot.since < _IPV6_SECONDS and not _has_done_with_ipv6(boot, facts):
        solicits = "it solicits one" if _solicits(facts) else ""
        ipv6 = LikelyCause("iPXE still waits for an IPv6 router, for up to 16 s", solicits)
        causes = (ipv6, *causes) if solicits else (*causes, ipv6)
    return Diagnosis("NoScriptRequest", Step.SCRIPT, fact, causes, checks)


_IPV6_SECONDS = 40.0
"""Seconds after which iPXE no longer waits for an IPv6 router, even on a slow processor."""


def _script_is_late(boot: MachineBoot, facts: Facts) -> bool:
    """Return True if the script is late: iPXE waits up to 16 s for an IPv6 router after its lease (`limits.py`)."""
    waited = facts.now - boot.since
    if _has_done_with_ipv6(boot, facts):
        return waited >= SOONER[Milestone.IPXE_LEASED]
    return overdue(boot, facts) and not (_solicits(facts) and waited < _IPV6_SECONDS)


def _solicits(facts: Facts) -> bool:
    """Return True if the machine has just solicited an IPv6 router, so that it still waits for one."""
    return facts.solicited is not None and facts.now - facts.solicited < SOLICITING_SECONDS


def _has_done_with_ipv6(boot: MachineBoot, facts: Facts) -> bool:
    """Return True if iPXE solicited a router for this lease and has stopped: it got an answer, or gave up."""
    begun = boot.reached.get(Milestone.IPXE_OFFERED, boot.since) - 2 * SOLICITING_SECONDS
    return facts.solicited is not None and facts.solicited >= begun and not _solicits(facts)


def transfer_stalls(story: Story, _facts: Facts) -> Diagnosis | None:
    """The machine requested its boot program by TFTP, and acknowledges no block."""
    boot = story.boot
    if boot.at is not Milestone.PROGRAM_BEGUN:
        return None
    report = next((event for event in boot.since_then() if event.detail.get("phase") == PROGRESS), None)
    if report is None:
        return None
    silent = float(report.detail.get("silent_seconds", 0))
    name, position = report.detail.get("name", "its boot program"), report.detail.get("position", "its beginning")
    fact = f"TFTP sends {name}, but the machine acknowledged nothing for {silent:.0f} s, at {position}"
    begun = bool(report.detail.get("acknowledged"))
    causes = (
        "the machine has stopped or was switched off" if begun else "the blocks do not reach it",
        "packets of this transfer, which uses its own port, are lost on the way",
    )
    checks = ("a firewall in between must track TFTP (conntrack), or use --tftp-single-port",)
    return Diagnosis("TFTPStalls", Step.TFTP, fact, causes, checks, began=report.time - silent)


def not_started(story: Story, facts: Facts) -> Diagnosis | None:
    """The machine has its boot program, which has sent no packet."""
    boot = story.boot
    before = story.before
    if _has_program(boot) and overdue(boot, facts):
        name = _name(boot)
        fact = f"has {name}, but has sent nothing for {seconds(boot.since, facts.now)}"
        return Diagnosis(_SILENT, Step.TFTP, fact, *_why_unstarted(boot, facts))
    if before is None or not _has_program(before) or boot.at not in (Milestone.OFFERED, Milestone.LEASED):
        return None
    if boot.began - before.latest > facts.limit(Milestone.PROGRAM_SENT):
        return None
    name = _name(before)
    waited = seconds(before.latest, boot.began)
    fact = f"has {name}, but its firmware requested an address again {waited} later"
    causes, checks = _why_unstarted(before, facts)
    causes = (*causes, "it was reset, or switched off and on")
    return Diagnosis(_NOT_STARTED, Step.TFTP, fact, causes, checks, began=boot.began)


def _has_program(boot: MachineBoot) -> bool:
    """Return True if the last milestone is the end of the boot program's transfer, or of a UKI's."""
    return boot.at is Milestone.PROGRAM_SENT or (boot.at is Milestone.INITRD_SENT and is_uki(boot.detail))


def _name(boot: MachineBoot) -> str:
    return "the UKI" if is_uki(boot.detail) else str(boot.detail.get("name", "its boot program"))


def _why_unstarted(boot: MachineBoot, facts: Facts) -> Why:
    causes = (
        "Secure Boot refuses it",
        "it is not for this machine's architecture",
        "its network card does not come up again",
    )
    # GRUB 2.12 sends no router solicitation (RFC 4861 section 6.3.7), so it only knows an IPv6 router whose periodic
    # advertisement it has received. Firmware and shim solicit.
    is_grub = str(boot.detail.get("name", "")).rpartition("/")[2] in GRUB_OF.values()
    if not (facts.behind_router and is_grub):
        return causes, ("look at its screen",)
    evidence = f"{facts.behind_router} is in no network of this edge"
    cause = LikelyCause(
        "GRUB, which solicits no IPv6 router, has no route to this edge and stays at its prompt", evidence
    )
    return (cause, *causes), ("let it boot a UKI or an iPXE that the site has signed, or put an edge on its link",)

"""Rules for machines that restart: after they were installed, in the middle of an action, or again and again."""

from __future__ import annotations

from typing import Final

from edge.journey.events import Milestone, Step
from edge.journey.expectations.facts import Causes, Diagnosis, Facts
from edge.journey.expectations.rules.words import nth, seconds
from edge.journey.expectations.story import MachineBoot, Story

LOOP: Final = 3
"""Number of boots with the same end that make a loop."""
LOOP_SECONDS: Final = 3600.0

_WORDS: Final = {
    Milestone.PROGRAM_SENT: "had received its boot program",
    Milestone.IPXE_OFFERED: "iPXE was offered an address",
    Milestone.IPXE_LEASED: "iPXE had an address",
    Milestone.SCRIPT_SENT: "had received its script",
    Milestone.KERNEL_BEGUN: "was receiving the kernel",
    Milestone.KERNEL_SENT: "had received the kernel",
    Milestone.INITRD_BEGUN: "was receiving the initrd",
    Milestone.INITRD_SENT: "had received the initrd",
    Milestone.KERNEL_STARTED: "iPXE started the kernel",
    Milestone.OS_OFFERED: "the OSIE requested an address",
    Milestone.OS_LEASED: "the OSIE had an address",
    Milestone.OSIE_UP: "the OSIE was up",
    Milestone.AGENT_CONNECTED: "its agent was connected",
}
_IN_OSIE: Final = {Milestone.OS_OFFERED, Milestone.OS_LEASED, Milestone.OSIE_UP, Milestone.AGENT_CONNECTED}
_KERNEL_RAN: Final = {Milestone.KERNEL_STARTED, Milestone.INITRD_SENT} | _IN_OSIE
_WORK: Final = {Milestone.WORKFLOW_RUNNING, Milestone.ACTION_BEGUN, Milestone.ACTION_ENDED}
_BEFORE_KERNEL: Final = frozenset(one for one in Milestone if one < Milestone.KERNEL_STARTED)
"""The first milestones after the firmware: iPXE in a card's ROM has its script within a second."""


def netboots_again(story: Story, facts: Facts) -> Diagnosis | None:
    """The machine was installed, and still boots from the network."""
    boot, before = story.boot, story.before
    if before is None or facts.workflow or boot.at not in _BEFORE_KERNEL or not boot.detail_of("boot"):
        return None
    done = next((event for event in reversed(before.events) if event.detail.get("state") == "Succeeded"), None)
    if before.at is not Milestone.WORKFLOW_ENDED or done is None or done.step is not Step.WORKFLOW:
        return None
    ended = seconds(done.time, boot.began)
    fact = f"netboots again, although Workflow {done.detail.get('workflow', '')} succeeded {ended} earlier"
    causes = ("its boot order has the network before the disk", "it could not boot from the disk")
    check = "--netboot-when workflow lets a machine netboot only for a Workflow; disableNetboot: true also prevents it"
    return Diagnosis("NetbootsAgain", Step.DHCP, fact, causes, (check,), began=boot.began)


def interrupted_action(story: Story, _facts: Facts) -> Diagnosis | None:
    """The machine restarted during an action other than the last one, which may be intended to restart it."""
    boot, before = story.boot, story.before
    if (
        before is None
        or before.at is not Milestone.ACTION_BEGUN
        or boot.at not in _BEFORE_KERNEL
        or boot.after_power_off
    ):
        return None
    action = before.detail
    if action.get("number") == action.get("of"):
        return None
    ran = seconds(before.since, boot.began)
    fact = f"restarted while action {action.get('action', '')} was running, {ran} after its start"
    causes = ("it lost its power or was reset", "the action or the kernel rebooted it")
    checks = ("its BMC's log shows why it started; an action that reboots on purpose must be the last",)
    return Diagnosis("Interrupted", Step.ACTION, fact, causes, checks, began=boot.began)


def boot_loop(story: Story, facts: Facts) -> Diagnosis | None:
    """Several boots in a row end at the same step."""
    boots = [boot for boot in story.boots if facts.now - boot.began <= LOOP_SECONDS and boot.at is not None]
    alike: list[MachineBoot] = []
    for boot, after in zip(reversed(boots[:-1]), reversed(boots[1:]), strict=True):
        if after.after_power_off or boot.at not in _WORDS or (alike and boot.at is not alike[-1].at):
            break
        alike.append(boot)
    if len(alike) < LOOP - 1:
        return None
    count = len(alike) + 1
    where = _WORDS[alike[0].at] if alike[0].at is not None else ""
    fact = (
        f"netboots for the {nth(count)} time in {seconds(alike[-1].began, facts.now)}; each boot ended at the same "
        f"step: {where}"
    )
    checks = ("look at its screen or console, right before it restarts",)
    return Diagnosis("BootLoop", Step.DHCP, fact, _why(alike[0]), checks, began=alike[-1].began)


def kernel_restarted(story: Story, _facts: Facts) -> Diagnosis | None:
    """The kernel ran, and then the firmware requested an address again."""
    boot, before = story.boot, story.before
    if before is None or before.at not in _KERNEL_RAN or boot.at not in _BEFORE_KERNEL or not before.boots_osie:
        return None
    if boot.after_power_off:
        return None
    where = _WORDS[before.at] if before.at is not None else ""
    fact = f"{where}, and {seconds(before.latest, boot.began)} later its firmware requested an address again"
    return Diagnosis("KernelRestarted", Step.BOOT, fact, _why(before), ("its console shows which",), began=boot.began)


def _why(boot: MachineBoot) -> Causes:
    if boot.at in _IN_OSIE:
        return ("the OSIE has rebooted it", "the kernel has panicked", "it was reset or lost its power")
    if boot.at in _KERNEL_RAN:
        return (
            "the kernel has panicked (too little memory, no driver, no init)",
            "Secure Boot refuses the kernel",
            "it was reset",
        )
    return (
        "its boot program fails there, and its firmware starts again",
        "its next request does not reach this host",
        "it is reset, or switched off and on",
    )

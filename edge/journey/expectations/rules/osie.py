"""Rules from the initrd to the agent, where the machine sends few packets."""

from __future__ import annotations

from edge.journey.events import Milestone, Outcome, Step
from edge.journey.expectations.facts import Diagnosis, Facts, LikelyCause
from edge.journey.expectations.rules.words import (
    has_just_knocked,
    insists,
    knocked,
    overdue,
    seconds,
    size,
    why_unheard,
)
from edge.journey.expectations.story import MachineBoot, Story

_STARTED = {Milestone.INITRD_SENT, Milestone.KERNEL_STARTED}
_LEASED = {Milestone.OS_LEASED, Milestone.OSIE_UP}


_SPARE_BYTES = 64 << 20
"""Minimum memory that Linux needs beside its initrd."""


def little_memory(story: Story, _facts: Facts) -> Diagnosis | None:
    """The machine has too little memory to unpack the initrd; reported before the kernel fails."""
    boot = story.boot
    memory, initrd = _memory(boot), _initrd(boot)
    if boot.at is not Milestone.KERNEL_STARTED or not memory or not initrd or memory >= 2 * initrd + _SPARE_BYTES:
        return None
    fact = (
        f"has {size(memory)} of memory, too little for Linux and an initrd of {size(initrd)}, which is in memory twice "
        "while it is unpacked"
    )
    return Diagnosis("TooLittleMemory", Step.BOOT, fact, checks=("give it more memory, or a smaller initrd",))


def _memory(boot: MachineBoot) -> float:
    size = boot.detail_of("memory_bytes")
    return size if isinstance(size, int | float) else 0.0


def _initrd(boot: MachineBoot) -> float:
    sent = (event for event in reversed(boot.events) if event.step is Step.INITRD and event.outcome is Outcome.OK)
    bytes_sent = next((event.detail.get("size_bytes") for event in sent), None)
    return bytes_sent if isinstance(bytes_sent, int | float) else 0.0


def silent_kernel(story: Story, facts: Facts) -> Diagnosis | None:
    """The kernel was started, and sent no DHCP packet and no report of the OSIE."""
    boot = story.boot
    if boot.at not in _STARTED or not overdue(boot, facts):
        return None
    memory, initrd = _memory(boot), _initrd(boot)
    sizes = f"it has {size(memory)}, the initrd {size(initrd)}" if memory and initrd else ""
    waited, failed = seconds(boot.since, facts.now), "the kernel has panicked"
    if boot.at is Milestone.KERNEL_STARTED:
        fact = f"iPXE started the kernel {waited} ago, but nothing was received from the machine since"
    else:
        fact = f"has kernel and initrd, but nothing was received from it for {waited}"
        failed = f"iPXE could not start the kernel, or {failed}"
    causes = (
        failed,
        "it has no driver for this network card",
        LikelyCause("the machine has too little memory for the initrd", sizes),
        "its switch port does not forward yet (spanning tree), or it uses another card",
    )
    check = "its console shows which: set console= in spec.kernelParams"
    return Diagnosis("KernelSilent", Step.BOOT, fact, causes, (check,))


CLOCK_SECONDS = 300.0
"""Seconds that a machine's clock must differ by to be mentioned."""


def wrong_clock(story: Story, _facts: Facts) -> Diagnosis | None:
    """The machine's clock is wrong. No warning, because many machines never use the time."""
    boot = story.boot
    off = _clock_off(boot)
    if not off or boot.at not in _STARTED | _LEASED | {Milestone.OS_OFFERED}:
        return None
    fact = f"{off}: it may reject valid certificates, and anything else that depends on the time"
    return Diagnosis("WrongClock", Step.BOOT, fact, checks=("set it in the firmware's setup",), outcome=Outcome.INFO)


def _clock_off(boot: MachineBoot) -> str:
    """Return a clause that says how far the clock is off; empty if it is right, or not known."""
    ahead = boot.detail_of("clock_ahead_seconds")
    if not isinstance(ahead, int | float) or abs(ahead) < CLOCK_SECONDS:
        return ""
    return f"its clock is {seconds(0, abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this host's"


def no_agent(story: Story, facts: Facts) -> Diagnosis | None:
    """The OSIE has an address, but its agent does not connect."""
    boot = story.boot
    port = f"tcp/{facts.grpc_port}"
    if (
        boot.at not in _LEASED
        or not boot.boots_osie
        or boot.heard_of(Step.AGENT)
        or not (insists(facts, port) or (overdue(boot, facts) and not has_just_knocked(facts, port)))
    ):
        return None
    up = boot.at is Milestone.OSIE_UP
    waited = seconds(boot.since, facts.now)
    fact = f"the OSIE {'is up' if up else 'has an address'}, but its agent has not connected for {waited}"
    causes, checks = why_unheard(facts, port)
    if facts.answered.get(port) and not knocked(facts, port):
        made = f"its connection to {port} was answered"
        causes = (
            LikelyCause("it does not trust the server's certificate (another authority), or does not speak TLS", made),
        )
    if off := _clock_off(boot):
        causes = (LikelyCause("by its clock the server's certificate is not valid", off), *causes)
    if not knocked(facts, port):
        causes, checks = (
            (*causes, "the agent does not start in this OSIE, or its image is still being downloaded"),
            ("look at its console, where the agent logs",),
        )
    return Diagnosis("AgentMissing", Step.AGENT, fact, causes, checks)

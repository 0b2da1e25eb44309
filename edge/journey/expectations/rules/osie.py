"""Rules from the initrd to the agent, where the machine sends few packets."""

from __future__ import annotations

from typing import Final

from edge.journey.events import Milestone, Outcome, Step
from edge.journey.expectations.facts import Cause, Facts, Finding
from edge.journey.expectations.rules.words import (
    has_just_knocked,
    insists,
    knocked,
    overdue,
    seconds,
    size,
    why_unheard,
)
from edge.journey.expectations.story import Boot, Story

_STARTED = {Milestone.INITRD_SENT, Milestone.KERNEL_STARTED}
_LEASED = {Milestone.OS_LEASED, Milestone.OSIE_UP}


_SPARE_BYTES = 64 << 20
"""Minimum memory that Linux needs beside its initrd."""


def little_memory(story: Story, _facts: Facts) -> Finding | None:
    """The machine has too little memory to unpack the initrd; reported before the kernel fails."""
    boot = story.boot
    memory, initrd = _memory(boot), _initrd(boot)
    if boot.at is not Milestone.KERNEL_STARTED or not memory or not initrd or memory >= 2 * initrd + _SPARE_BYTES:
        return None
    fact = (
        f"has {size(memory)} of memory, too little for Linux and an initrd of {size(initrd)}, which is there twice "
        "while it is unpacked"
    )
    return Finding("TooLittleMemory", Step.BOOT, fact, checks=("give it more memory, or a smaller initrd",))


def _memory(boot: Boot) -> float:
    size = boot.detail_of("memory_bytes")
    return size if isinstance(size, int | float) else 0.0


def _initrd(boot: Boot) -> float:
    sent = (event for event in reversed(boot.events) if event.step is Step.INITRD and event.outcome is Outcome.OK)
    bytes_sent = next((event.detail.get("size_bytes") for event in sent), None)
    return bytes_sent if isinstance(bytes_sent, int | float) else 0.0


def silent_kernel(story: Story, facts: Facts) -> Finding | None:
    """The kernel was started, and sent no DHCP packet and no report of the OSIE."""
    boot = story.boot
    if boot.at not in _STARTED or not overdue(boot, facts):
        return None
    memory, initrd = _memory(boot), _initrd(boot)
    too_little = Cause(
        "the machine has too little memory for the initrd",
        f"it has {size(memory)}, the initrd {size(initrd)}" if memory and initrd else "",
    )
    if boot.at is Milestone.KERNEL_STARTED:
        fact = f"iPXE started the kernel {seconds(boot.since, facts.now)} ago, and nothing was received from it since"
        causes = (
            Cause("the kernel has panicked"),
            Cause("it has no driver for this network card"),
            too_little,
            _PORT,
        )
    else:
        fact = f"has kernel and initrd, and nothing was received from it for {seconds(boot.since, facts.now)}"
        causes = (
            Cause("iPXE could not start the kernel, or the kernel has panicked"),
            Cause("it has no driver for this network card"),
            too_little,
            _PORT,
        )
    return Finding("KernelSilent", Step.BOOT, fact, causes, ("its console says which: spec.kernelParams console=",))


_PORT: Final = Cause("its switch port does not forward yet (spanning tree), or it uses another card")

CLOCK_SECONDS = 300.0
"""Seconds that a machine's clock must differ by to be mentioned."""


def wrong_clock(story: Story, _facts: Facts) -> Finding | None:
    """The machine's clock is wrong. No warning, because many machines never use the time."""
    boot = story.boot
    off = _clock_off(boot)
    if not off or boot.at not in _STARTED | _LEASED | {Milestone.OS_OFFERED}:
        return None
    fact = f"{off}: certificates may not be valid then, nor what else it compares with the time"
    return Finding("WrongClock", Step.BOOT, fact, checks=("set it in the firmware's setup",), outcome=Outcome.INFO)


def _clock_off(boot: Boot) -> str:
    """Return a clause that says how far the clock is off; empty if it is right, or not known."""
    ahead = boot.detail_of("clock_ahead_seconds")
    if not isinstance(ahead, int | float) or abs(ahead) < CLOCK_SECONDS:
        return ""
    return f"its clock is {seconds(0, abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this host's"


def no_agent(story: Story, facts: Facts) -> Finding | None:
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
    fact = f"the OSIE {'is up' if up else 'has an address'}, and its agent has not connected for {waited}"
    causes, checks = why_unheard(facts, port)
    if facts.answered.get(port) and not knocked(facts, port):
        made = f"its connection to {port} was answered"
        causes = (Cause("it does not trust the server's certificate (another authority), or speaks no TLS", made),)
    if off := _clock_off(boot):
        causes = (Cause("it takes the server's certificate for one that is not valid now", off), *causes)
    if not knocked(facts, port):
        causes, checks = (
            (*causes, Cause("the agent does not start in this OSIE, or its image is still being downloaded")),
            ("look at its console, where the agent logs",),
        )
    return Finding("AgentMissing", Step.AGENT, fact, causes, checks)

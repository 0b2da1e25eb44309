"""One simulated machine: its drawn traits, its step, and what it reports to the recorder.

`edge.fleet.boot.live` runs a machine's life. `Surroundings` holds what all machines of a fleet share.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from edge.fleet.bmc import PowerSupply
from edge.fleet.discovery import Introduction
from edge.fleet.network import DhcpPort
from edge.fleet.population import Identity, Profile, Traits, chance
from edge.fleet.results import Failure, FleetStep, Recorder
from tink.errors import TinkedgeError
from tink.printable import printable

MAX_ERROR_CHARACTERS: Final = 300


class BootError(TinkedgeError):
    """This boot has failed; the firmware tries again."""


class GaveUpError(TinkedgeError):
    """The machine has failed for good. `injected`: a fault of the profile is the cause."""

    def __init__(self, cause: str, *, injected: bool = False) -> None:
        super().__init__(cause)
        self.injected = injected


@dataclass(slots=True)
class Surroundings:
    """The data that all machines of one run share.

    `allowed(address)` returns True if machines may send to this IPv4 address. With `by_reference`, machines request the
    length and the last byte of kernel and initrd only.
    """

    profile: Profile
    seed: int
    port: DhcpPort
    recorder: Recorder
    allowed: Callable[[str], bool]
    by_reference: bool = False
    contexts: dict[str, ssl.SSLContext] = field(default_factory=dict)
    """TLS contexts by the SHA-256 of the authority: machines with the same authority share one."""

    def check(self, address: str) -> None:
        """Raise BootError for an address that machines must not send to."""
        if not self.allowed(address):
            raise BootError(f"was directed to {address}, which is not the target: add it with --allow if intended")


class SimulatedMachine:
    """A machine's state, and the methods by which the stages of a boot report to the recorder."""

    __slots__ = (
        "_counter", "_first_error", "_is_blamed", "_since", "around", "edge", "has_hung", "identity", "introduction",
        "power", "step", "traits", "was_cut",
    )  # fmt: skip

    def __init__(
        self,
        around: Surroundings,
        identity: Identity,
        traits: Traits,
        power: PowerSupply | None = None,
        introduction: Introduction | None = None,
    ) -> None:
        """`power`: the power supply, if a BMC controls it; None: the machine starts by itself.

        `introduction`: what an unknown machine reports about itself; None: a Hardware describes the machine.
        """
        self.around = around
        self.identity = identity
        self.traits = traits
        self.power = power
        self.introduction = introduction
        self.step = FleetStep.OFF
        self.edge = ""
        """Host and port of the edge that served the iPXE script."""
        self.was_cut = False
        """True after a power cut, which also erased the agent's memory."""
        self.has_hung = False
        self._since = 0.0
        self._counter = 0
        self._is_blamed = False
        self._first_error: tuple[FleetStep, str] | None = None

    @property
    def is_expected(self) -> bool:
        """True if the machine gets a Workflow: it is known, or a list approves it."""
        return self.introduction is None or self.introduction.is_approved

    def takes_address(self, address: str) -> bool:
        """Return True if the machine may have this address; an unknown machine takes any."""
        if self.introduction is not None:
            self.identity = replace(self.identity, address=address)
        return address == self.identity.address

    def power_on(self) -> None:
        """Start to measure the time of the first step."""
        self._since = asyncio.get_running_loop().time()

    def at(self, step: FleetStep, *, completed: bool = True) -> None:
        """Record that the machine enters `step`. `completed`: the step before reached its goal."""
        now = asyncio.get_running_loop().time()
        self.around.recorder.moved(self.step, step, now - self._since, completed=completed)
        self.step = step
        self._since = now

    def error(self, text: str) -> None:
        """Record an error after which the machine tries again."""
        text = printable(text[:MAX_ERROR_CHARACTERS])
        self.around.recorder.error(self.step, text)
        if self._first_error is None:
            self._first_error = self.step, text

    def fail(self, cause: str, *, injected: bool) -> None:
        """Record that the machine has failed for good. A cause in the system is reported at its first error's step."""
        step = self.step
        if self._first_error is not None and not injected:
            step, first = self._first_error
            cause = first if first == cause else f"{first}; then {cause}"
        cause = printable(cause[: 2 * MAX_ERROR_CHARACTERS])  # servers have written some of it
        failure = Failure(self.identity.name, step, cause, injected or self._is_blamed)
        self.around.recorder.failures.append(failure)
        self.at(FleetStep.FAILED, completed=False)

    def blame_fleet(self) -> None:
        """Count a later failure of this machine as injected: a fault of the profile has affected it."""
        self._is_blamed = True

    def chance(self) -> float:
        """Return the machine's next random number, from 0 to below 1. Runs with the same seed get the same numbers."""
        self._counter += 1
        return chance(self.around.seed, self.traits.number, self._counter)

    def lost(self) -> bool:
        """Count the machine's next datagram; return True if the fault injection drops it."""
        self.around.recorder.packets += 1
        rate = self.around.profile.faults.lost_packets
        if not rate:
            return False
        is_lost = self.chance() < rate
        if is_lost:
            self.around.recorder.faults["datagrams lost"] += 1
        return is_lost

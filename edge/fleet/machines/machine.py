"""One machine, from power-on to its installed system: a coroutine that sleeps nearly always.

    firmware -> boot program -> iPXE -> kernel, initrd -> OSIE -> agent -> Workflow -> disk -> cloud-init

What is drawn for it (`Traits`) is all that it is; what happens to it goes to the recorder, and it keeps nothing else. A
boot that fails is begun again, as firmware does; a power cut ends whatever is going on, and the memory of the agent
with it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from edge.fleet.machines import agent, firmware, installed, loader, osie
from edge.fleet.machines.surroundings import BootError, GaveUpError, Surroundings
from edge.fleet.population import HangsAt, Identity, Traits, chance, is_lost
from edge.fleet.protocols.http import HttpError
from edge.fleet.results import Failure, Step, Whole
from tink.printable import printable

MAX_SAID: Final = 300
"""Characters of what went wrong that are told."""


class Machine:
    """A machine. `run` is its life; it raises nothing."""

    __slots__ = (
        "_began",
        "_blamed",
        "_counter",
        "_cut",
        "_first_error",
        "_hung",
        "_since",
        "around",
        "edge",
        "identity",
        "step",
        "traits",
    )

    def __init__(self, around: Surroundings, identity: Identity, traits: Traits) -> None:
        self.around = around
        self.identity = identity
        self.traits = traits
        self.step = Step.OFF
        self.edge = ""
        """Where its script came from: host and port."""
        self._since = 0.0
        self._began = 0.0
        self._counter = 0
        self._blamed = False
        self._cut = False
        self._hung = False
        self._first_error: tuple[Step, str] | None = None

    # --- what the stages use ---

    def at(self, step: Step, *, completed: bool = True) -> None:
        """The machine goes on to a step; `completed`: the one before did what it is for."""
        now = asyncio.get_running_loop().time()
        self.around.recorder.moved(self.step, step, now - self._since, completed=completed)
        self.step = step
        self._since = now

    def error(self, text: str) -> None:
        """Something went wrong that is tried again."""
        text = printable(text[:MAX_SAID])
        self.around.recorder.error(self.step, text)
        if self._first_error is None:
            self._first_error = self.step, text

    def chance(self) -> float:
        """The next of the machine's random numbers, from 0 to below 1: the same in each run with the same seed."""
        self._counter += 1
        return chance(self.around.seed, self.traits.number, self._counter)

    def lost(self) -> bool:
        """Whether its next datagram is lost."""
        self.around.recorder.packets += 1
        rate = self.around.profile.faults.lost_packets
        if not rate:
            return False
        self._counter += 1
        if is_lost(rate, self.around.seed, self.traits.number, self._counter):
            self.around.recorder.faults["datagrams lost"] += 1
            return True
        return False

    def blame_fleet(self) -> None:
        """What keeps it from succeeding, if something does, is what the fleet did to it."""
        self._blamed = True

    @property
    def was_cut(self) -> bool:
        """Whether it has lost its power, and with it what its agent knew."""
        return self._cut

    # --- its life ---

    async def run(self) -> None:
        """From power-on to the end."""
        await asyncio.sleep(self.traits.power_on)
        loop = asyncio.get_running_loop()
        self._began = self._since = loop.time()
        recorder = self.around.recorder
        try:
            await self._provision_with_faults()
            recorder.took(Whole.PROVISIONED, loop.time() - self._began)
            await installed.boot(self)
            recorder.took(Whole.INSTALLED, loop.time() - self._began)
            self.at(Step.DONE)
        except GaveUpError as error:
            self._fail(str(error), injected=error.injected)
        except (BootError, HttpError) as error:  # of the installed system, which nobody boots again
            self._fail(str(error), injected=False)

    def _fail(self, cause: str, *, injected: bool) -> None:
        step = self.step
        if self._first_error is not None and not injected:
            step, first = self._first_error
            cause = first if first == cause else f"{first}; then {cause}"
        cause = printable(cause[: 2 * MAX_SAID])  # servers have written some of it
        failure = Failure(self.identity.name, step, cause, injected or self._blamed)
        self.around.recorder.failures.append(failure)
        self.at(Step.FAILED, completed=False)

    async def _provision_with_faults(self) -> None:
        cut_at = self.traits.cut_at
        try:
            async with asyncio.timeout(cut_at) as power:
                await self._provision()
                return
        except TimeoutError:
            if not power.expired():
                raise
        self._cut = True
        self.blame_fleet()
        self.around.recorder.faults["power cuts"] += 1
        self.at(Step.OFF, completed=False)
        await asyncio.sleep(self.traits.off)
        await self._provision()

    async def _provision(self) -> None:
        """Until its Workflow has Succeeded. Raises GaveUpError."""
        rounds = self.around.profile.rounds
        for number in range(1, rounds + 1):
            try:
                return await self._boot()
            except (BootError, HttpError, OSError) as error:
                self.error(str(error))
                if number == rounds:
                    raise GaveUpError(f"{error} (after {rounds} boots)") from error
            await asyncio.sleep(self.traits.round_pause)
        return None

    async def _boot(self) -> None:
        """One boot from the network, to the end of the Workflow. Raises BootError, HttpError, OSError, GaveUpError."""
        self.at(Step.FIRMWARE, completed=False)
        await asyncio.sleep(self.traits.post)
        await self._hang(HangsAt.POST)
        await firmware.load(self)
        self.at(Step.LOADER)
        await self._hang(HangsAt.LOADER)
        await asyncio.sleep(self.traits.loader)
        kernel = await loader.run(self)
        self.at(Step.STARTING)
        await asyncio.sleep(self.traits.kernel)
        settings = await osie.start(self, kernel)
        await agent.work(self, settings)

    async def _hang(self, where: HangsAt) -> None:
        """Until somebody switches it off and on. Raises BootError: it begins from the start."""
        if self.traits.hangs_at is not where or self._hung:
            return
        self._hung = True
        self.around.recorder.faults["firmware hung"] += 1
        await asyncio.sleep(self.traits.hang + self.traits.off)
        raise BootError(f"hung in {where.value}, and was switched off and on")

"""Make a BMC do one thing: observe, decide, send, read back, until the effect is there or its absence has a cause.

`decision` decides. This module keeps the attempts, calls the client, and waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import assert_never

from tink.bmc.decision import (
    Attempt,
    Done,
    GiveUp,
    Send,
    Wait,
    after_failed_read,
    decide,
    describe,
    limit_of,
)
from tink.bmc.model import BmcClient, BmcError, ClearedBoot, Observation, Wanted, WantedBoot, WantedMedium
from tink.bmc.quirks import Quirks, quirks_for


async def perform(
    client: BmcClient,
    wanted: Wanted,
    quirks: Quirks | None = None,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
    progress: Callable[[str], None] = lambda _: None,
) -> str:
    """Make the BMC do what is wanted, and return a clause that says what it reports.

    Returns at once, without a request, if the BMC reports it already. `quirks` None: those of the BMC's identity.
    `clock` returns seconds that only grow; `sleep` waits for so many of them. `progress` gets a clause whenever the
    operation sends a request or waits for something else than before.

    Ends within `decision.limit_of(wanted)` seconds and the time of one observation. Cancellation ends it at once; the
    BMC finishes the request that it has. Raises BmcError.
    """
    operation = _Operation(client, wanted, quirks, clock, progress)
    while True:
        next_step = await operation.step()
        match next_step:
            case Wait():
                await sleep(next_step.seconds)
            case Done():
                return next_step.message
            case GiveUp():
                raise BmcError(next_step.cause, next_step.message)
            case Send():
                pass
            case _:
                assert_never(next_step)


class _Operation:
    """The state of one operation: its attempts, and the failures to observe the BMC."""

    def __init__(
        self,
        client: BmcClient,
        wanted: Wanted,
        quirks: Quirks | None,
        clock: Callable[[], float],
        progress: Callable[[str], None],
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._quirks = quirks
        self._clock = clock
        self._progress = progress
        self._started = clock()
        self._attempts: list[Attempt] = []
        self._failing_since = 0.0
        self._failed_reads = 0
        self._reported = ""

    async def step(self) -> Send | Wait | Done | GiveUp:
        """Observe the BMC, decide, and send the request of the decision."""
        try:
            seen = await self._client.observe(
                boot=isinstance(self._wanted, WantedBoot | ClearedBoot), media=isinstance(self._wanted, WantedMedium)
            )
        except BmcError as error:
            next_step: Send | Wait | Done | GiveUp = self._after_failed_read(error)
        else:
            next_step = self._decide(seen)
            if isinstance(next_step, Send):
                failed = self._attempts[-1].error if self._attempts else None
                again = "" if failed is None else f" again, because {failed}"
                self._report(f"the BMC is asked for {describe(next_step.request)}{again}")
                await self._send(next_step, seen)
        if isinstance(next_step, Wait):
            self._report(next_step.reason)
        return next_step

    def _after_failed_read(self, error: BmcError) -> Wait | GiveUp:
        now = self._clock()
        if not self._failed_reads:
            self._failing_since = now
        self._failed_reads += 1
        deadline = self._started + limit_of(self._wanted)
        return after_failed_read(error, self._failed_reads, self._failing_since, now, deadline)

    def _decide(self, seen: Observation) -> Send | Wait | Done | GiveUp:
        self._failed_reads = 0
        if self._attempts:
            last = self._attempts[-1]
            self._attempts[-1] = replace(last, reads=last.reads + 1)
        quirks = self._quirks or quirks_for(seen.identity)
        return decide(self._wanted, seen, self._attempts, quirks, self._clock(), self._started)

    async def _send(self, decision: Send, seen: Observation) -> None:
        error = None
        try:
            await self._client.send(decision.request)
        except BmcError as raised:
            error = raised
        self._attempts.append(Attempt(decision.request, self._clock(), error, decision.form, seen))

    def _report(self, text: str) -> None:
        if text != self._reported:
            self._reported = text
            self._progress(text)

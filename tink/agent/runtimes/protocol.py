"""What every way of running actions has in common.

`agent` asks for `pull` and then `run`, one action at a time. Both end early when `stop` is set; a stop is a state,
not a call, so that it cannot slip through between the two.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from tink.agent.model import Action, RunResult

STOP_GRACE_SECONDS = 10.0
"""Between TERM and KILL, when an action is stopped; Docker's default."""


class Runtime(Protocol):
    """Runs actions."""

    async def prepare(self, held: str = "", /) -> None:
        """Clear away what an agent that died has left behind; called once, before anything is run.

        `held`: the id of the action that `resume` will be asked for next, by the agent's journal; what is left of that
        action stays. Raises SettingsError when the runtime cannot be used on this machine.
        """
        ...

    async def pull(self, image: str, stop: asyncio.Event, /) -> None:
        """Have `image` ready. Returns early, without it, when `stop` is set. Raises ActionError.

        Tells of its progress in lines at a bounded rate, in the log and to `output.lines.line_sink`.
        """
        ...

    def check(self, action: Action, /) -> None:
        """Raise ActionError for what of `action`, whose image is ready, can't be had on this machine: whoever is to run
        it later learns now whether it can be."""
        ...

    async def run(self, action: Action, stop: asyncio.Event, /) -> RunResult:
        """Run `action` to its end, or until `stop` is set: TERM, a grace, KILL. Raises ActionError.

        When it returns or raises, nothing of the action is left: no process, no mount, no file.
        """
        ...

    async def resume(self, action: Action, stop: asyncio.Event, /) -> RunResult | None:
        """Ask back the action that an agent which died was running; called after `prepare`, before anything is run.

        Where the runtime can still know how it ended (an engine kept its container), waits for its end as `run`
        does, with the same `stop`, and leaves nothing of it behind. None when it cannot be known: then nothing of the
        action runs any more either, so that it may be reported as failed. Never starts anything. Raises ActionError.
        """
        ...

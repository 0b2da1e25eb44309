"""The gRPC service that takes what actions print, and tells it to the floor above as what agents do (`activity`).

Nothing of it is kept here. Agents send it in pieces, seldom (`tink.agent.output`), so what is refused is what no agent
of ours sends: pieces that come faster than that are answered and left out, and counted in the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from proto import output_pb2 as pb
from proto import output_pb2_grpc as pb_grpc
from tink.limits.token_bucket import TokenBuckets
from tink.printable import printable
from tink.server.activity import ActivityKind, ActivityObserver, AgentActivity

LINES: Final = 100
LINE_CHARACTERS: Final = 400
PIECE_CHARACTERS: Final = 3900
"""What of one piece is told; the rest is counted as dropped."""

PIECES_PER_SECOND: Final = 5.0
PIECES_AT_ONCE: Final = 50.0
"""For one machine."""

MACHINES: Final = 20_000
"""So many machines' rates are remembered, those that were heard last."""

_CALL_SECONDS: Final = 60.0
_MANY: Final = 1 << 40

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who sends output. `hardware` and `workflow` are `namespace/name`; `actions` has the names of the Workflow's
    actions by their ids. `elsewhere`: `peer` is none of the Hardware's addresses."""

    agent_id: str
    peer: str
    hardware: str
    workflow: str
    actions: dict[str, str]
    elsewhere: bool = False


Authorise = Callable[[str, Context], Awaitable[Speaker]]
"""`authorise(workflow_id, context)`: who speaks, if they may speak of that Workflow; else it aborts the call."""


class OutputService(pb_grpc.OutputServiceServicer):
    """The methods by their names in the proto."""

    def __init__(
        self, authorise: Authorise, observe: ActivityObserver, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` gives seconds that never go back."""
        self._authorise = authorise
        self._observe = observe
        self._clock = clock
        self._buckets = TokenBuckets(PIECES_AT_ONCE, PIECES_PER_SECOND, MACHINES)
        self._left_out: dict[str, int] = {}  # lines, by Hardware; those who began to lose some last come last

    async def WriteOutput(  # noqa: N802 - name of the proto
        self, request_iterator: AsyncIterator[pb.WriteOutputRequest], context: Context
    ) -> pb.WriteOutputResponse:
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                async for piece in request_iterator:
                    speaker = await self._authorise(piece.workflow_id, context)
                    self._take(speaker, piece)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the call took too long; open another one")
        return pb.WriteOutputResponse()

    def _take(self, speaker: Speaker, piece: pb.WriteOutputRequest) -> None:
        action = speaker.actions.get(piece.action_id)
        if action is None:
            return  # an action that the Workflow does not have prints nothing that anybody looks for
        if not self._buckets.allows(speaker.hardware, self._clock()):
            self._leave_out(speaker.hardware, len(piece.lines) + min(piece.dropped, _MANY))
            return
        lines = fitting(piece.lines)
        left_out = self._left_out.pop(speaker.hardware, 0)
        dropped = len(piece.lines) - len(lines) + min(piece.dropped, _MANY) + left_out
        self._observe(
            AgentActivity(
                speaker.agent_id,
                speaker.peer,
                ActivityKind.OUTPUT,
                f"action {action}: {lines[-1] if lines else f'{dropped} lines of output left out'}",
                speaker.hardware,
                speaker.workflow,
                action=action,
                lines=lines,
                dropped=dropped,
                elsewhere=speaker.elsewhere,
            )
        )

    def _leave_out(self, hardware: str, lines: int) -> None:
        self._left_out[hardware] = self._left_out.get(hardware, 0) + lines
        if len(self._left_out) > MACHINES:
            del self._left_out[next(iter(self._left_out))]


def fitting(lines: Sequence[str]) -> tuple[str, ...]:
    """The newest of `lines` that fit, oldest first; nothing in them moves a terminal's cursor."""
    kept, room = [], PIECE_CHARACTERS
    for line in reversed(lines[-LINES:]):
        text = printable(line[:LINE_CHARACTERS], keep="\t")
        room -= len(text) + 1
        if room < 0:
            break
        kept.append(text)
    return tuple(reversed(kept))

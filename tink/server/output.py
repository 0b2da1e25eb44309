"""The gRPC service that takes what actions print, and tells it to the floor above as observations.

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
from tink.server.observation import AgentObservation, ObservationKind, Observe

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


@dataclass(slots=True)
class _Allowance:
    """What a machine may send yet."""

    pieces: float
    at: float
    left_out: int = 0


class OutputService(pb_grpc.OutputServiceServicer):
    """The methods by their names in the proto."""

    def __init__(self, authorise: Authorise, observe: Observe, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds that never go back."""
        self._authorise = authorise
        self._observe = observe
        self._clock = clock
        self._allowances: dict[str, _Allowance] = {}

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
        allowance = self._allowance(speaker.hardware)
        if allowance.pieces < 1:
            allowance.left_out += len(piece.lines) + min(piece.dropped, _MANY)
            return
        allowance.pieces -= 1
        lines = told(piece.lines)
        dropped = len(piece.lines) - len(lines) + min(piece.dropped, _MANY) + allowance.left_out
        allowance.left_out = 0
        self._observe(
            AgentObservation(
                speaker.agent_id,
                speaker.peer,
                ObservationKind.OUTPUT,
                f"action {action}: {lines[-1] if lines else f'{dropped} lines of output left out'}",
                speaker.hardware,
                speaker.workflow,
                action=action,
                lines=lines,
                dropped=dropped,
                elsewhere=speaker.elsewhere,
            )
        )

    def _allowance(self, hardware: str) -> _Allowance:
        now = self._clock()
        allowance = self._allowances.pop(hardware, None) or _Allowance(PIECES_AT_ONCE, now)
        allowance.pieces = min(PIECES_AT_ONCE, allowance.pieces + (now - allowance.at) * PIECES_PER_SECOND)
        allowance.at = now
        self._allowances[hardware] = allowance
        if len(self._allowances) > MACHINES:
            del self._allowances[next(iter(self._allowances))]
        return allowance


def told(lines: Sequence[str]) -> tuple[str, ...]:
    """The newest of `lines` that fit, oldest first; nothing in them moves a terminal's cursor."""
    kept, room = [], PIECE_CHARACTERS
    for line in reversed(lines[-LINES:]):
        text = "".join(c if c.isprintable() or c == "\t" else "?" for c in line[:LINE_CHARACTERS])
        room -= len(text) + 1
        if room < 0:
            break
        kept.append(text)
    return tuple(reversed(kept))

"""One agent's command stream: sends the next command whenever there is one.

A stream is level based. It looks at the Workflows of its machine, does the one next thing (`dispatch.next_move`), and
looks again; when there is nothing to do it sleeps until something about its machine changes. Nothing is polled.

A Workflow is claimed before it is sent: the status says Scheduled, if nobody changed it meanwhile. If the stream ends
between the claim and the sending, the claim is taken back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from proto import workflow_pb2 as pb
from tink.api.v1alpha2 import Raw, WorkflowState
from tink.server.agents import HardwareKey
from tink.server.dispatch import Claim, Rejections, Start, Stop, Told, Wait, next_move
from tink.server.wire import start_command, stop_command
from tink.server.workflows import WorkflowIndex, uid_of
from tink.workflow.status import InvalidStatusError, name_of, state_of

log = logging.getLogger(__name__)

Write = Callable[[pb.GetWorkflowsResponse], Awaitable[None]]
Spawn = Callable[[Coroutine[Any, Any, None]], None]
"""Runs a coroutine that outlives the stream."""

_CLAIM_RETRY = 1.0
"""Seconds before a claim that failed is tried again, if nothing changed before: a fault of the API."""


class Claims(Protocol):
    """What the stream needs of the API."""

    async def claim(self, workflow: Raw) -> Raw | None:
        """Make a Pending Workflow Scheduled; None if it can't be had now."""

    async def take_back(self, workflow: Raw) -> None:
        """Make it Pending again, if nobody changed it since."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the server ends a stream."""

    code: grpc.StatusCode
    message: str


class Stream:
    """The command stream of one agent, which speaks for the Hardware `key` from the address `peer`."""

    def __init__(
        self,
        agent_id: str,
        peer: str,
        key: HardwareKey,
        *,
        holds: frozenset[str] | None,
        workflows: WorkflowIndex,
        rejections: Rejections,
        claims: Claims,
        spawn: Spawn,
        sent: Callable[[Stream, Start | Stop], None],
        clock: Callable[[], float],
    ) -> None:
        self.agent_id = agent_id
        self.peer = peer
        self.key = key
        self._holds = holds
        self._workflows = workflows
        self._rejections = rejections
        self._claims = claims
        self._spawn = spawn
        self._sent = sent
        self._clock = clock
        self._told = Told()
        self._changed = asyncio.Event()
        self._ending: Ending | None = None

    def wake(self) -> None:
        """Something about the machine's Workflows changed."""
        self._changed.set()

    def gone(self, workflow: Raw) -> None:
        """A Workflow of the machine is gone from the API."""
        self._told.forget(workflow)
        self._changed.set()

    def end(self, code: grpc.StatusCode, message: str) -> None:
        """Close the stream; the first call counts."""
        self._ending = self._ending or Ending(code, message)
        self._changed.set()

    async def run(self, write: Write) -> Ending:
        """Send commands with `write` until `end` is called, and return how."""
        while self._ending is None:
            self._changed.clear()
            workflows = self._workflows.of(self.key)
            try:
                self._told.started |= {uid_of(w) for w in workflows if state_of(w) is WorkflowState.RUNNING}
                move = next_move(workflows, self._told, self._rejections, self._clock())
            except InvalidStatusError as error:
                log.error("agent %s gets no commands: %s", self.agent_id, error)
                move = Wait()
            match move:
                case Stop(uid):
                    await write(stop_command(uid))
                    self._told.orphans.pop(uid, None)
                    self._told.stopped.add(uid)
                    self._sent(self, move)
                case Start(workflow):
                    await self._start(workflow, write)
                case Claim(workflow):
                    if not await self._dispatch(workflow, write):
                        await self._sleep(_CLAIM_RETRY)
                case Wait(until):
                    await self._sleep(None if until is None else until - self._clock())
        return self._ending

    async def _dispatch(self, workflow: Raw, write: Write) -> bool:
        """Claim and send; False if the Workflow can't be had now."""
        # The claim outlives the stream: a call that is cancelled half-way may have been carried out all the same.
        claim = asyncio.ensure_future(self._claims.claim(workflow))
        sent = False
        try:
            claimed = await asyncio.shield(claim)
            if claimed is None:
                return False
            if self._ending is None:
                await self._start(claimed, write)
                sent = True
        finally:
            if not sent:
                self._spawn(self._take_back(claim))
        return True

    async def _take_back(self, claim: asyncio.Future[Raw | None]) -> None:
        claimed = await claim
        if claimed is not None:
            log.info("Workflow %s: agent %s went before it could be sent", name_of(claimed), self.agent_id)
            await self._claims.take_back(claimed)

    async def _start(self, workflow: Raw, write: Write) -> None:
        await write(start_command(workflow))
        self._told.started.add(uid_of(workflow))
        self._told.stopped.discard(uid_of(workflow))
        self._sent(self, Start(workflow))

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep until something changes, at most for `seconds` (None: for ever)."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

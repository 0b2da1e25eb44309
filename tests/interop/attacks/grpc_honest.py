"""An honest agent that measures the service of the server while others attack.

Run as `python -m tests.interop.attacks.grpc_honest JSON`; the JSON has `target`, `agent_id`, `seconds`, and for TLS
`ca`, `certificate` and `key` (files). It keeps its command stream open, sends twenty requests a second on the same
connection, and opens a new connection every half a second. It prints JSON lines: one when its stream is open, one with
the measurements at the end. An answer may take a second; a rejected request counts as half a minute.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from proto import metadata
from proto import workflow_pb2 as pb
from proto.workflow_pb2_grpc import WorkflowServiceStub
from tests.waiting import PATIENCE_SECONDS

_REFUSED = 30.0
_ASK_EVERY = 0.05
_CONNECT_EVERY = 0.5
_ALONE = [("grpc.use_local_subchannel_pool", 1)]


@dataclass
class Honest:
    target: str
    agent_id: str
    seconds: float
    ca: str = ""
    certificate: str = ""
    key: str = ""
    calls: list[float] = field(default_factory=list)
    connected: list[float] = field(default_factory=list)
    troubles: Counter[str] = field(default_factory=Counter)
    breaks: int = 0
    _ended: bool = False

    def _channel(self) -> grpc.aio.Channel:
        if not self.ca:
            return grpc.aio.insecure_channel(self.target, options=_ALONE)
        files = (Path(name).read_bytes() for name in (self.ca, self.key, self.certificate))
        return grpc.aio.secure_channel(self.target, grpc.ssl_channel_credentials(*files), options=_ALONE)

    @staticmethod
    def _stream(channel: grpc.aio.Channel, agent_id: str) -> Any:
        request = pb.GetWorkflowsRequest(agent_id=agent_id)
        return WorkflowServiceStub(channel).GetWorkflows(request, metadata=[(metadata.WORKFLOW, "")])

    def _trouble(self, error: grpc.aio.AioRpcError) -> None:
        self.troubles[f"{error.code().name} {error.details()}"] += 1

    async def hold(self, opened: asyncio.Event) -> None:
        """Keep the command stream open; reopen it when it breaks."""
        while True:
            async with self._channel() as channel:
                call = self._stream(channel, self.agent_id)
                try:
                    await call.initial_metadata()
                    opened.set()
                    await call.read()
                except grpc.aio.AioRpcError as error:
                    self._trouble(error)
            self.breaks += 1
            await asyncio.sleep(0.2)

    async def ask(self) -> None:
        """Send small calls on one connection."""
        event = pb.Event(workflow_id="none", action_started=pb.Event.ActionStarted(action_id="a"))
        async with self._channel() as channel:
            publish = WorkflowServiceStub(channel).PublishEvent
            while not self._ended:
                begin = time.perf_counter()
                try:
                    await publish(pb.PublishEventRequest(event=event), timeout=10)
                except grpc.aio.AioRpcError as error:
                    served = error.code() is grpc.StatusCode.NOT_FOUND
                    if not served:
                        self._trouble(error)
                    self.calls.append(time.perf_counter() - begin if served else _REFUSED)
                await asyncio.sleep(_ASK_EVERY)

    async def come_again(self) -> None:
        """Open new connections. The rejection of an unknown agent id counts as served."""
        while not self._ended:
            begin = time.perf_counter()
            async with self._channel() as channel:
                call = self._stream(channel, "nobody")
                code = None
                with suppress(TimeoutError):
                    code = await asyncio.wait_for(call.code(), 10)
                served = code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED)
                if not served:
                    self.troubles[str(code)] += 1
                self.connected.append(time.perf_counter() - begin if served else _REFUSED)
            await asyncio.sleep(_CONNECT_EVERY)

    async def run(self) -> dict[str, Any]:
        opened = asyncio.Event()
        holding = asyncio.create_task(self.hold(opened))
        await asyncio.wait_for(opened.wait(), PATIENCE_SECONDS)
        print(json.dumps({"open": True}), flush=True)
        working = [asyncio.create_task(work()) for work in (self.ask, self.come_again)]
        await asyncio.sleep(self.seconds)
        self._ended = True  # calls in flight still count, however long they take
        await asyncio.gather(*working)
        holding.cancel()
        await asyncio.wait([holding])
        measured = {"calls": _spread(self.calls), "connected": _spread(self.connected)}
        return {**measured, "breaks": self.breaks, "troubles": self.troubles}


def _spread(latencies: list[float]) -> dict[str, float]:
    latencies = sorted(latencies)
    if not latencies:
        return {"count": 0, "median": _REFUSED, "p99": _REFUSED, "refused": 0}
    return {
        "count": len(latencies),
        "median": round(latencies[len(latencies) // 2], 4),
        "p99": round(latencies[int(len(latencies) * 0.99)], 4),
        "refused": latencies.count(_REFUSED),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(Honest(**json.loads(sys.argv[1])).run())), flush=True)

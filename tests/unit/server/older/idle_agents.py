"""`python -m tests.unit.server.older.idle_agents KIND PORT COUNT`: so many agents that have nothing to do, until it is
killed. KIND is `older`, tink-agent's polls and pauses, or `todays`, a command stream each."""

from __future__ import annotations

import asyncio
import random
import sys

import grpc

from proto import older_pb2 as pb
from proto import workflow_pb2 as pb_today
from proto import workflow_pb2_grpc as pb_grpc
from tink.server.older.service import SERVICES

PAUSE_SECONDS = 5.0
"""Between two polls of tink-agent that find nothing, when it has found nothing for long: within half of it around."""
_AT_ONCE = 50


def _mac(number: int) -> str:
    return f"52:54:00:{number.to_bytes(3, 'big').hex(':')}"


class _Ready:
    def __init__(self, count: int) -> None:
        self._left = count
        self.turn = asyncio.Semaphore(_AT_ONCE)

    def one(self) -> None:
        self._left -= 1
        if not self._left:
            print("connected", flush=True)


async def older(channel: grpc.aio.Channel, number: int, ready: _Ready) -> None:
    poll = channel.unary_unary(f"/{SERVICES[0]}/GetAction")
    request = pb.ActionRequest(agent_id=_mac(number)).SerializeToString()
    async with ready.turn:
        await channel.channel_ready()
    ready.one()
    while True:
        try:
            await poll(request)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
        await asyncio.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.5))


async def todays(channel: grpc.aio.Channel, number: int, ready: _Ready) -> None:
    call = pb_grpc.WorkflowServiceStub(channel).GetWorkflows(pb_today.GetWorkflowsRequest(agent_id=_mac(number)))
    async with ready.turn:
        await call.initial_metadata()
    ready.one()
    await call.read()
    raise AssertionError("the stream has ended")


async def main(kind: str, port: int, count: int) -> None:
    run = {"older": older, "todays": todays}[kind]
    ready = _Ready(count)
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(count)]
    agents = [asyncio.create_task(run(channel, number, ready)) for number, channel in enumerate(channels)]
    await asyncio.gather(*agents)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))

"""`python -m tests.bench.idle_agents KIND PORT COUNT`: connect COUNT idle agents and stay until killed.

KIND is `older`: tink-agent's polls and pauses, on connections like grpc-go's; `telling`: the same, with the attributes
of its machine; or `todays`: a command stream each, with the real agent's pings.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sys
from collections.abc import Awaitable

import grpc

from proto import older_pb2 as pb
from proto import workflow_pb2 as pb_today
from proto import workflow_pb2_grpc as pb_grpc
from tink.agent.connection import CHANNEL_OPTIONS
from tink.server.older.service import HOLD_SECONDS, SERVICES

PAUSE_SECONDS = 5.0
"""Seconds between two polls of a tink-agent that has been idle for long, plus or minus half."""
_AT_ONCE = 50


def mac(number: int) -> str:
    """Return the MAC address of a machine, numbered from 0."""
    return f"52:54:00:{number.to_bytes(3, 'big').hex(':')}"


def _attributes(number: int) -> pb.AgentAttributes:
    attributes = pb.AgentAttributes
    disks = [
        attributes.Block(name=f"nvme{disk}n1", size="480GB", vendor="vendor", model="model of a disk", wwn=f"0x5{disk}")
        for disk in range(4)
    ]
    return attributes(
        cpu=attributes.CPU(total_cores=32, total_threads=64),
        memory=attributes.Memory(total="256GB", usable="255GB"),
        block=disks,
        network=[attributes.Network(name="eth0", mac=mac(number), speed="25Gbit/s")],
        chassis=attributes.Chassis(serial=f"C{number}", vendor="vendor"),
        product=attributes.Product(name="model", vendor="vendor", serial_number=f"S{number}"),
    )


class _Ready:
    def __init__(self, count: int) -> None:
        self._left = count
        self.turn = asyncio.Semaphore(_AT_ONCE)

    def one(self) -> None:
        self._left -= 1
        if not self._left:
            print("connected", flush=True)


async def _nothing(call: Awaitable[bytes]) -> None:
    """Wait for the end of a poll that finds no work."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
            raise


async def telling(channel: grpc.aio.Channel, number: int, ready: _Ready) -> None:
    """Run one tink-agent that sends attributes of its machine."""
    await _polls(channel, pb.ActionRequest(agent_id=mac(number), agent_attributes=_attributes(number)), ready)


async def older(channel: grpc.aio.Channel, number: int, ready: _Ready) -> None:
    """Run one tink-agent that sends no attributes of its machine."""
    await _polls(channel, pb.ActionRequest(agent_id=mac(number)), ready)


async def _polls(channel: grpc.aio.Channel, action_request: pb.ActionRequest, ready: _Ready) -> None:
    poll = channel.unary_unary(f"/{SERVICES[0]}/GetAction")
    request = action_request.SerializeToString()
    async with ready.turn:
        await channel.channel_ready()
    ready.one()
    first = poll(request)
    # Spread the agents as if they had connected one by one: each polls again during the first hold. That ends the
    # first poll, since the server serves only the newest one.
    await asyncio.sleep(random.uniform(0, HOLD_SECONDS))
    poll_call = poll(request)
    await _nothing(first)
    while True:
        await _nothing(poll_call)
        await asyncio.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.5))
        poll_call = poll(request)


async def todays(channel: grpc.aio.Channel, number: int, ready: _Ready) -> None:
    """Run one agent of this project."""
    call = pb_grpc.WorkflowServiceStub(channel).GetWorkflows(pb_today.GetWorkflowsRequest(agent_id=mac(number)))
    async with ready.turn:
        await call.initial_metadata()
    ready.one()
    await call.read()
    raise AssertionError("the stream has ended")


async def main(kind: str, port: int, count: int) -> None:
    """Connect `count` agents of a kind and stay."""
    run, options = {"older": (older, ()), "telling": (telling, ()), "todays": (todays, CHANNEL_OPTIONS)}[kind]
    ready = _Ready(count)
    own = [("grpc.use_local_subchannel_pool", 1), *options]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=own) for _ in range(count)]
    agents = [asyncio.create_task(run(channel, number, ready)) for number, channel in enumerate(channels)]
    await asyncio.gather(*agents)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))

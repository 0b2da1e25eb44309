"""tink-agent, as the real one was recorded: `python -m tests.interop.old_site.tink_agent HOST:PORT ID`.

It sends GetAction, reports the start, runs the action (prints a line to standard output), and reports the end. It
pauses if there is no action. It never ends by itself, and works with any server.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import grpc.aio

from proto import older_pb2 as pb

_PAUSE_SECONDS = 0.5
_RECONNECT = [("grpc.initial_reconnect_backoff_ms", 500), ("grpc.max_reconnect_backoff_ms", 1000)]
"""The real tink-agent waits up to two minutes after a long absence of the server."""


def report(action: pb.ActionResponse, state: Any, message: str) -> bytes:
    """Return the encoded ActionStatusRequest of a report."""
    return pb.ActionStatusRequest(
        workflow_id=action.workflow_id,
        agent_id=action.agent_id,
        task_id=action.task_id,
        action_id=action.action_id,
        action_name=action.name,
        action_state=state,
        message=pb.ActionStatusRequest.Message(message=message),
    ).SerializeToString()


async def main(address: str, agent_id: str) -> None:
    """Poll for actions and report them, until the process is ended."""
    attributes = pb.AgentAttributes(
        cpu=pb.AgentAttributes.CPU(total_cores=4), memory=pb.AgentAttributes.Memory(total="8GB")
    )
    request = pb.ActionRequest(agent_id=agent_id, agent_attributes=attributes).SerializeToString()
    async with grpc.aio.insecure_channel(address, options=_RECONNECT) as channel:
        poll: Any = channel.unary_unary("/proto.WorkflowService/GetAction")
        report_status: Any = channel.unary_unary("/proto.WorkflowService/ReportActionStatus")
        while True:
            try:
                action = pb.ActionResponse.FromString(await poll(request))
                await report_status(report(action, pb.ActionStatusRequest.RUNNING, "running action"))
                print(f"ran {action.name} {action.image} {' '.join(action.command)}", flush=True)
                await report_status(report(action, pb.ActionStatusRequest.SUCCESS, "action completed"))
            except grpc.aio.AioRpcError as error:
                print(f"no action: {error.code().name}", flush=True)
                await asyncio.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

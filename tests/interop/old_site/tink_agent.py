"""tink-agent, as the real one was recorded: `python -m tests.interop.old_site.tink_agent HOST:PORT ID`.

GetAction, a report that it begins, the action (which here is a line on standard output), a report of its end; pauses
where there is nothing. It never ends by itself, and knows nothing of what server that is.
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
"""The real one waits as long as two minutes, if there was no server for so long."""


def report(action: pb.ActionResponse, state: Any, message: str) -> bytes:
    """As it goes over the wire."""
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
    """Work."""
    attributes = pb.AgentAttributes(
        cpu=pb.AgentAttributes.CPU(total_cores=4), memory=pb.AgentAttributes.Memory(total="8GB")
    )
    request = pb.ActionRequest(agent_id=agent_id, agent_attributes=attributes).SerializeToString()
    async with grpc.aio.insecure_channel(address, options=_RECONNECT) as channel:
        poll: Any = channel.unary_unary("/proto.WorkflowService/GetAction")
        tell: Any = channel.unary_unary("/proto.WorkflowService/ReportActionStatus")
        while True:
            try:
                action = pb.ActionResponse.FromString(await poll(request))
                await tell(report(action, pb.ActionStatusRequest.RUNNING, "running action"))
                print(f"ran {action.name} {action.image} {' '.join(action.command)}", flush=True)
                await tell(report(action, pb.ActionStatusRequest.SUCCESS, "action completed"))
            except grpc.aio.AioRpcError as error:
                print(f"no action: {error.code().name}", flush=True)
                await asyncio.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

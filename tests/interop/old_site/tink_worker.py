"""tink-worker, as the real one was recorded: `python -m tests.interop.old_site.tink_worker HOST:PORT ID SERVICE`.

It reads the stream of contexts, requests the actions of each Workflow once, and runs them one after the other: it
reports the start, prints a line to standard output, and reports the end. It pauses if there is no Workflow. It never
ends by itself.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import grpc.aio

from proto import older_pb2 as pb

_PAUSE_SECONDS = 0.5


async def main(address: str, worker_id: str, service: str) -> None:
    """Run Workflows until the process is ended. `service` is the full name of the gRPC service."""
    contexts_request = pb.WorkflowContextRequest(worker_id=worker_id).SerializeToString()
    done: set[str] = set()
    async with grpc.aio.insecure_channel(address) as channel:
        stream: Any = channel.unary_stream(f"/{service}/GetWorkflowContexts")
        get_actions: Any = channel.unary_unary(f"/{service}/GetWorkflowActions")
        report: Any = channel.unary_unary(f"/{service}/ReportActionStatus")
        while True:
            try:
                contexts = [pb.WorkflowContext.FromString(each) async for each in stream(contexts_request)]
                for workflow in {context.workflow_id for context in contexts} - done:
                    request = pb.WorkflowActionsRequest(workflow_id=workflow).SerializeToString()
                    actions = pb.WorkflowActionList.FromString(await get_actions(request)).action_list
                    for action in actions:
                        await report(_status(workflow, action, pb.WORKER_RUNNING, "Started execution"))
                        print(f"ran {action.name} {action.image} {' '.join(action.command)}", flush=True)
                        await report(_status(workflow, action, pb.WORKER_SUCCESS, "finished execution successfully"))
                    done.add(workflow)
            except grpc.aio.AioRpcError as error:
                print(f"no workflow: {error.code().name}", flush=True)
            await asyncio.sleep(_PAUSE_SECONDS)


def _status(workflow: str, action: pb.WorkflowAction, state: Any, message: str) -> bytes:
    return pb.WorkflowActionStatus(
        workflow_id=workflow,
        task_name=action.task_name,
        action_name=action.name,
        action_status=state,
        message=message,
        worker_id=action.worker_id,
    ).SerializeToString()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

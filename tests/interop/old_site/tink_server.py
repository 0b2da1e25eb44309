"""A Tink server without any action: `python -m tests.interop.old_site.tink_server HOST:PORT`.

As Tinkerbell's own, it answers NOT_FOUND then, after a while. Prints who asks.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import grpc.aio

from proto import older_pb2 as pb

_HOLD_SECONDS = 0.5


async def get_action(request: pb.ActionRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.ActionResponse:
    """Nothing."""
    print(f"asked by {request.agent_id}", flush=True)
    await asyncio.sleep(_HOLD_SECONDS)
    await context.abort(grpc.StatusCode.NOT_FOUND, "no action")
    return pb.ActionResponse()


async def main(address: str) -> None:
    """Serve."""
    server = grpc.aio.server()
    handler: Any = grpc.unary_unary_rpc_method_handler(get_action, request_deserializer=pb.ActionRequest.FromString)
    service = grpc.method_handlers_generic_handler("proto.WorkflowService", {"GetAction": handler})
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(address)
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

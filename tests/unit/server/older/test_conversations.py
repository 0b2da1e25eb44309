"""Recorded requests of the real programs, sent to the server again byte for byte: each gets the answer it accepted.

conversations/ has a file for each program: the Workflow that it ran, and its calls in their order, with request and
answers in hexadecimal. They were recorded between the program, with a Docker engine, and this server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.unit.server.conftest import Rig

MAC = "52:54:00:00:00:aa"
PROGRAMS = ("tink-agent", "tink-worker-v0.12.2", "tink-worker-v0.8.0")
CONVERSATIONS = [Path(__file__).with_name("conversations") / f"{program}.json" for program in PROGRAMS]


@pytest.mark.parametrize("path", CONVERSATIONS, ids=lambda path: path.stem)
async def test_the_conversation_goes_as_it_went(rig: Rig, path: Path) -> None:
    recorded = json.loads(path.read_text())
    await rig.start()
    rig.machine(mac=MAC)
    rig.workflow(actions=[{**action, "state": "Pending"} for action in recorded["workflow"]["actions"]])
    workflow = rig.read("w")
    rig.remove("w")
    workflow["metadata"]["uid"] = recorded["workflow"]["uid"]
    rig.api.put(workflow)
    channel = rig.agent(apart=True).channel
    for call in recorded["calls"]:
        assert await answers(channel, call) == call["answers"], call["call"]
    assert rig.state() == "Succeeded"
    states = [action["state"] for action in rig.read("w")["status"]["actions"]]
    assert states == ["Succeeded"] * 2


async def answers(channel: grpc.aio.Channel, call: dict[str, Any]) -> list[str]:
    """In hexadecimal, as they are recorded."""
    request = bytes.fromhex(call["request"])
    if call["call"].endswith("/GetWorkflowContexts"):
        streaming: Any = channel.unary_stream(call["call"])
        return [each.hex() async for each in streaming(request, timeout=120)]
    unary: Any = channel.unary_unary(call["call"])
    return [(await unary(request, timeout=120)).hex()]

"""Compatibility with earlier releases: today's code opens their state, and understands their agents and servers.

`record.py` wrote `releases/VERSION` with that release's own code.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from proto import workflow_pb2 as pb
from tests.api import serving
from tests.unit.server.conftest import Rig
from tests.unit.upgrades.record import SERVICE, agent_command
from tests.waiting import until
from tink.api.annotations import HOLD_ANNOTATION
from tink.backup.restoration import restore
from tink.kube.resources import HARDWARE, OSIE, SECRET, TEMPLATE, WORKFLOW
from tink.kubeapi import ApiServerError

RELEASES = sorted((Path(__file__).parent / "releases").iterdir())
every_release = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)


def unpack(release: Path, directory: Path) -> Path:
    directory.mkdir(mode=0o700)
    with tarfile.open(release / "state.tar.gz") as packed:
        # Debian 12's Python knows no filter, and 3.12 asks for one.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # type: ignore[assignment]
        packed.extractall(directory)
    return directory


def conversation(release: Path) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = json.loads((release / "conversation.json").read_text())
    return calls


@every_release
async def test_state_of_the_release_is_served_with_its_keys(release: Path, tmp_path: Path) -> None:
    directory = unpack(release, tmp_path / "data")
    token = (directory / "token").read_bytes()
    async with serving(directory) as (_, client):
        for resource in (SECRET, OSIE, TEMPLATE, HARDWARE):
            assert len((await client.list(resource, "default"))["items"]) == 1, resource.kind
        workflows = {each["metadata"]["name"]: each for each in (await client.list(WORKFLOW))["items"]}
        states = {name: each.get("status", {}).get("state", "") for name, each in workflows.items()}
        names = ("new", "pending", "scheduled", "running", "succeeded", "failed")
        assert states == {f"w-{name}": "" if name == "new" else name.capitalize() for name in names}
        changed = await client.patch(WORKFLOW, "w-new", "default", {"metadata": {"labels": {"a": "b"}}})
        newest = max(int(each["metadata"]["resourceVersion"]) for each in workflows.values())
        assert int(changed["metadata"]["resourceVersion"]) > newest
    assert (directory / "token").read_bytes() == token


@every_release
async def test_backup_of_the_release_is_restored_and_what_may_have_run_since_is_held(release, tmp_path) -> None:
    directory = tmp_path / "data"
    with (release / "backup.tgz").open("rb") as backup:
        restored = restore(backup, directory, now=datetime.now(UTC), progress=lambda *_: None)
    assert [each.name for each in restored.held] == ["default/w-new", "default/w-pending", "default/w-scheduled"]
    async with serving(directory) as (_, client):
        workflows = {each["metadata"]["name"]: each for each in (await client.list(WORKFLOW))["items"]}
        assert workflows["w-succeeded"]["status"]["state"] == "Succeeded"
        held = {name for name, each in workflows.items() if HOLD_ANNOTATION in each["metadata"].get("annotations", {})}
        assert held == {"w-new", "w-pending", "w-scheduled"}


@every_release
async def test_state_of_a_release_to_come_is_refused_and_kept(release: Path, tmp_path: Path) -> None:
    directory = unpack(release, tmp_path / "data")
    with sqlite3.connect(directory / "state.db") as db:
        db.execute("PRAGMA user_version = 1000")
    db.close()
    before = (directory / "state.db").read_bytes()
    with pytest.raises(ApiServerError, match=r"a newer release of tinkedge made it.*docs/upgrading\.md"):
        async with serving(directory):
            pass
    assert (directory / "state.db").read_bytes() == before


@every_release
async def test_agent_of_the_release_is_served_by_todays_server(release: Path) -> None:
    rig = Rig()
    await rig.start()
    try:
        rig.machine()
        rig.workflow()
        actions = rig.read()["status"]["actions"]
        for action in actions:
            action["rendered"] |= {"cmd": "/bin/echo", "args": ["done"], "env": {"A": "b"}}
        rig.set_state("w", "Pending", actions=actions)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{rig.server.port}") as channel:
            first, *events = conversation(release)
            assert first["method"] == SERVICE + "GetWorkflows"
            metadata = [(key, value) for key, value in first["metadata"]]
            stream = channel.unary_stream(first["method"])(bytes.fromhex(first["request"]), metadata=metadata)
            command = await stream.read()
            known = pb.GetWorkflowsResponse.FromString(bytes.fromhex(first["responses"][0]))
            assert pb.GetWorkflowsResponse.FromString(command) == known, "the agent reads what it was sent then"
            for call in events:
                answer = await channel.unary_unary(call["method"])(bytes.fromhex(call["request"]))
                assert answer == bytes.fromhex(call["responses"][0])
            stream.cancel()
        assert rig.state() == "Succeeded"
    finally:
        await rig.close()


class OldServer(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types for it
    """A server that replays the responses of the release's server, and records the requests."""

    def __init__(self, calls: list[dict[str, Any]]) -> None:
        self._calls = calls
        self.said: list[pb.GetWorkflowsRequest] = []
        self.events: list[pb.Event] = []

    def service(self, details: Any) -> Any:
        answers = [call["responses"] for call in self._calls if call["method"] == details.method]

        async def stream(request: bytes, _: Any) -> Any:
            self.said.append(pb.GetWorkflowsRequest.FromString(request))
            for response in answers[0] if len(self.said) == 1 else ():
                yield bytes.fromhex(response)
            await asyncio.Event().wait()

        async def unary(request: bytes, _: Any) -> bytes:
            self.events.append(pb.PublishEventRequest.FromString(request).event)
            return bytes.fromhex(answers[0][0])

        if details.method == SERVICE + "GetWorkflows":
            return grpc.unary_stream_rpc_method_handler(stream)
        if details.method == SERVICE + "PublishEvent":
            return grpc.unary_unary_rpc_method_handler(unary)
        return None  # what it does not know, such as calls that came later


@every_release
async def test_todays_agent_works_for_the_server_of_the_release(release: Path, tmp_path: Path) -> None:
    calls = conversation(release)
    events = [
        pb.PublishEventRequest.FromString(bytes.fromhex(call["request"])).event
        for call in calls
        if call["method"] == SERVICE + "PublishEvent"
    ]
    old = OldServer(calls)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((old,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    agent = await asyncio.create_subprocess_exec(*agent_command(port, tmp_path))
    try:
        await until(lambda: len(old.events) >= len(events))
    finally:
        agent.terminate()
        await agent.wait()
        await server.stop(None)
    assert sorted(map(str, old.events)) == sorted(map(str, events)), "the same reports, which may come in another order"

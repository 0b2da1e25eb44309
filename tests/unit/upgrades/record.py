"""Records a release: the state that it writes, and what its agent and its server say to each other.

    cd CHECKOUT-OF-THE-RELEASE && PYTHONPATH=. python .../tests/unit/upgrades/record.py FOLDER

Run once at each release with its own code, and never again: what a release wrote does not change. The folder is then
`releases/VERSION`: `state.tar.gz` is a data directory, `backup.tgz` its backup, `conversation.json` the calls of an
agent in their order, with the bytes of each message in hex.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from tests.api import serving
from tests.unit.server.conftest import MAC, Rig
from tests.waiting import until
from tink.api.crds import generate
from tink.kube.resources import HARDWARE, OSIE, SECRET, TEMPLATE, WORKFLOW

SERVICE = "/internal.proto.workflow.v2.WorkflowService/"
API = "tinkerbell.org/v1alpha2"


async def record_state(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "data"
        async with serving(directory, generate()) as (_, client):
            await fill(client)
        with tarfile.open(folder / "state.tar.gz", "w:gz") as packed:
            for path in sorted(directory.rglob("*")):
                if path.is_file():
                    packed.add(path, str(path.relative_to(directory)), filter=_anonymous)
        back_up(directory, folder)


def back_up(directory: Path, folder: Path) -> None:
    """As its operator does."""
    command = ["backup", str(folder / "backup.tgz"), "--data-dir", str(directory)]
    subprocess.run([sys.executable, "-m", "edge.cli", *command], check=True)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


async def fill(client: Any) -> None:
    """One object of each kind, a Workflow of each state, and one that was deleted."""

    async def make(resource: Any, kind: str, name: str, **fields: Any) -> None:
        api_version = API if kind != "Secret" else "v1"
        metadata = {"name": name, "namespace": "default", **fields.pop("metadata", {})}
        await client.create(resource, {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields})

    await make(SECRET, "Secret", "ud", stringData={"userdata": "#cloud-config"})
    await make(OSIE, "OSIE", "osie", spec={"kernelUrl": "http://h/k", "initrdUrl": "http://h/i"})
    await make(TEMPLATE, "Template", "t", spec={"actions": [{"name": "n", "image": "i"}]})
    mac = {MAC: {"dhcp": {"ip": "192.168.1.5", "netmask": "255.255.255.0"}}}
    await make(HARDWARE, "Hardware", "h", spec={"networkInterfaces": mac, "osie": {"name": "osie"}})
    owner = await client.get(HARDWARE, "h", "default")
    reference = {"apiVersion": API, "kind": "Hardware", "name": "h", "uid": owner["metadata"]["uid"]}
    spec = {"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}}
    for state in ("", "Pending", "Scheduled", "Running", "Succeeded", "Failed"):
        name = f"w-{state.lower() or 'new'}"
        await make(WORKFLOW, "Workflow", name, spec=spec, metadata={"ownerReferences": [reference]})
        if state:
            status = {"state": state, "actions": [{"id": name, "rendered": {"name": "n", "image": "i"}}]}
            await client.patch(WORKFLOW, name, "default", {"status": status}, subresource="status")
    await make(WORKFLOW, "Workflow", "gone", spec=spec)
    await client.delete(WORKFLOW, "gone", "default")


class Proxy(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types for it
    """Passes all calls on as bytes, and writes them down."""

    def __init__(self, port: int) -> None:
        self.calls: list[dict[str, Any]] = []
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    def service(self, details: Any) -> Any:
        call: dict[str, Any] = {"method": details.method, "metadata": []}
        for key, value in details.invocation_metadata:
            if isinstance(value, str) and not key.startswith((":", "user-agent", "grpc-", "te", "content-type")):
                call["metadata"].append([key, value])

        async def stream(request: bytes, _context: Any) -> Any:
            self._begin(call, request)
            metadata = [tuple(each) for each in call["metadata"]]
            async for response in self._channel.unary_stream(details.method)(request, metadata=metadata):
                call["responses"].append(response.hex())
                yield response

        async def unary(request: bytes, _context: Any) -> bytes:
            self._begin(call, request)
            response: bytes = await self._channel.unary_unary(details.method)(request)
            call["responses"].append(response.hex())
            return response

        if details.method == SERVICE + "GetWorkflows":
            return grpc.unary_stream_rpc_method_handler(stream)
        if details.method == SERVICE + "PublishEvent":
            return grpc.unary_unary_rpc_method_handler(unary)
        return None

    def _begin(self, call: dict[str, Any], request: bytes) -> None:
        call |= {"request": request.hex(), "responses": []}
        self.calls.append(call)


def agent_command(port: int, directory: Path) -> list[str]:
    """An agent that runs actions as processes."""
    options = ["--runtime", "process", "--state-dir", str(directory), "--agent-id", MAC]
    options += ["--server", f"127.0.0.1:{port}"]
    return [sys.executable, "-m", "edge.cli", "agent", *options]


async def record_conversation(folder: Path) -> None:
    rig = Rig()
    await rig.start()
    rig.machine()
    rig.workflow()
    actions = rig.read()["status"]["actions"]
    for action in actions:
        action["rendered"] |= {"cmd": "/bin/echo", "args": ["done"], "env": {"A": "b"}}
    rig.set_state("w", "Pending", actions=actions)
    proxy = Proxy(rig.server.port)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((proxy,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with tempfile.TemporaryDirectory() as directory:
        agent = await asyncio.create_subprocess_exec(*agent_command(port, Path(directory)))
        await until(lambda: rig.state() == "Succeeded")
        agent.terminate()
        await agent.wait()
    await server.stop(None)
    await rig.close()
    (folder / "conversation.json").write_text(json.dumps(proxy.calls, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(record_state(Path(sys.argv[1])))
    asyncio.run(record_conversation(Path(sys.argv[1])))

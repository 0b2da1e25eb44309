"""The load of a soak: machines that arrive, are installed and leave continuously, on a running `tinkedge up`.

    python -m tests.interop.attacks.soak.machines JSON

Runs in the edge's namespace until SIGTERM; the JSON has the machines' namespaces. Each life is a new machine: an
operator creates Template, Hardware and Workflow, the machine boots (`boot`), its agent runs the Workflow, cloud-init
reads metadata, and the operator deletes everything. Everyday faults happen meanwhile: unregistered machines, aborted
transfers, duplicate agents, Workflows deleted while they run, rejected objects.
Most agents are scripted; a few are `tinkedge agent`. Prints a line of JSON every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from proto import workflow_pb2 as pb
from tests.bench.agents import GROUP, Agent
from tests.bench.wire import Account, Connection
from tests.interop.attacks.soak.boot import Card, NotServedError, fetch, http, lease, strangers, tftp
from tests.interop.rack import TINKEDGE
from tink.api.v1alpha2 import API_VERSION, Raw

_REPORTED_FAILURES = 20
"""Maximum number of failures that are reported in full."""
_PATIENCE = 60.0
_MACS = 64
_ACTIONS = 3
_METADATA = (
    "/2009-04-04/meta-data/",
    "/2009-04-04/meta-data/instance-id",
    "/2009-04-04/user-data",
    "/nocloud/{}/meta-data",
)


class Operator:
    """A client of the API that sends its requests on a few persistent connections."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._idle: list[Connection] = []
        self.requests = 0

    async def ask(self, method: str, path: str, body: Raw | None = None) -> tuple[int, Raw]:
        """Send a request, on a new connection if the server has closed the old one."""
        wire = self._idle.pop() if self._idle else await Connection.open(self._account)
        sent = orjson.dumps(body) if body is not None else b""
        status, answer = await wire.ask(self._account.request(method, GROUP + path, sent))
        self._idle.append(wire)
        self.requests += 1
        return status, orjson.loads(answer) if answer else {}

    async def create(self, plural: str, kind: str, name: str, spec: Raw, **more: Raw) -> None:
        """Create an object; `more` has fields of its metadata."""
        metadata = {"name": name, "namespace": "default", **more}
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
        status, answer = await self.ask("POST", f"/{plural}", body)
        if status != 201:
            raise NotServedError(f"POST {plural}: {status} {answer}")

    async def delete(self, plural: str, name: str) -> None:
        """Delete, and wait until it is gone: a Workflow that runs is stopped first."""
        give_up = time.monotonic() + _PATIENCE
        status, answer = await self.ask("DELETE", f"/{plural}/{name}")
        while status != 404:
            if status not in (200, 202) or time.monotonic() > give_up:
                raise NotServedError(f"DELETE {plural}/{name}: {status} {answer}")
            await asyncio.sleep(0.1)
            status, answer = await self.ask("GET", f"/{plural}/{name}")

    async def ended(self, name: str) -> None:
        give_up = time.monotonic() + _PATIENCE
        while True:
            _, workflow = await self.ask("GET", f"/workflows/{name}")
            state = workflow.get("status", {}).get("state")
            if state == "Succeeded":
                return
            if state in ("Failed", "Canceled") or time.monotonic() > give_up:
                raise NotServedError(f"Workflow {name}: {state} {workflow.get('status')}")
            await asyncio.sleep(0.1)


class Scripted(Agent):
    """The bench's agent, extended by the stop command: it then reports that it does not know this Workflow.

    A `dying` agent ignores all commands: its machine is about to be reset.
    """

    def __init__(self, name: str, *, dying: bool = False) -> None:
        super().__init__(name, lambda agent, workflow: self.begun.set())
        self.begun = asyncio.Event()
        self.failure = ""
        self._stopped: set[str] = set()
        self._part = bytearray()
        self._dying = dying

    def _lost(self, why: str) -> None:
        self.failure = self.failure or why
        if not self.connected.done():
            self.connected.set_exception(NotServedError(f"agent {self.name}: {why}"))

    def _command(self, payload: bytes) -> None:
        if self._dying:
            return
        self._part += payload
        while len(self._part) >= 5 and len(self._part) >= (end := 5 + int.from_bytes(self._part[1:5], "big")):
            message = pb.GetWorkflowsResponse.FromString(bytes(self._part[5:end]))
            if message.HasField("stop_workflow"):
                self._stop(message.stop_workflow.workflow_id)
            else:
                super()._command(bytes(self._part[:end]))
            del self._part[:end]

    def _stop(self, workflow_id: str) -> None:
        rejected = pb.Event.WorkflowRejected(failure_reason="UnknownWorkflow", failure_message="stopped")
        self._publish(pb.Workflow(workflow_id=workflow_id), workflow_rejected=rejected)
        self._stopped.add(workflow_id)
        self._send()

    def _publish(self, workflow: pb.Workflow, then: Any = None, **event: Any) -> None:
        if workflow.workflow_id not in self._stopped:
            super()._publish(workflow, then, **event)


class Rack:
    """The state that all machines share."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.server_ip: str = given["server_ip"]
        self.namespaces: list[str] = given["namespaces"]
        self.rate: float = given["rate"]
        self.kubeconfig = Path(given["kubeconfig"])
        self.operator = Operator(Account.of(self.kubeconfig))
        self.rng = random.Random(given.get("seed", 1))
        self.counts = dict.fromkeys(("lives", "agents", "kubectl", "watch", "failures"), 0)
        self.failures: list[str] = []
        self._number = 0
        self._next = time.monotonic()
        self._agent_due = time.monotonic() + 1
        self._fresh = 0

    async def turn(self) -> int:
        """Wait until another life may begin, and return its number."""
        self._next = max(self._next + 1 / self.rate, time.monotonic() - 1)
        self._number += 1
        number = self._number
        await asyncio.sleep(self._next - time.monotonic())
        return number

    def mac(self, place: int, number: int) -> str:
        """Return one of a few MACs, so that per-machine state reaches its limit; now and then a new one."""
        if number % 10 == 0:
            return f"52:54:01:{number.to_bytes(3, 'big').hex(':')}"
        return f"52:54:00:00:{place:02x}:{self.rng.randrange(_MACS // len(self.namespaces)):02x}"

    def real_agent_is_due(self) -> bool:
        """Return True once in half a minute: a real agent costs as much as many scripted ones."""
        if time.monotonic() < self._agent_due:
            return False
        self._agent_due = time.monotonic() + 30
        return True

    async def serve(self, place: int) -> None:
        """Run one machine after the other at this place."""
        card = Card(self.namespaces[place], self.server_ip)
        while True:
            number = await self.turn()
            try:
                async with asyncio.timeout(2 * _PATIENCE):
                    await Life(self, card, place, number).live()
                self.counts["lives"] += 1
            except (NotServedError, TimeoutError, OSError) as error:
                self.counts["failures"] += 1
                if len(self.failures) < _REPORTED_FAILURES:
                    self.failures.append(f"life {number}: {type(error).__name__}: {error}")
                await self.forget(number)

    async def forget(self, number: int) -> None:
        """Delete the objects of a life that failed."""
        for plural in ("workflows", "hardware", "templates"):
            with contextlib.suppress(NotServedError, OSError):
                await self.operator.delete(plural, f"soak-{number}")


class Life:
    """One machine, from its registration to its deletion."""

    def __init__(self, rack: Rack, card: Card, place: int, number: int) -> None:
        self._rack, self._card, self._number = rack, card, number
        self._name = f"soak-{number}"
        self._mac = rack.mac(place, number)
        self._ip = f"172.31.{128 + (number >> 8) % 100}.{number & 255}"

    async def live(self) -> None:
        """Run the whole life. Raises NotServedError at the first failure."""
        await self._register()
        await asyncio.to_thread(self._card.become, self._mac)
        await self._boot()
        stop = self._number % 10 == 3
        if self._rack.real_agent_is_due():
            await self._real_agent()
        else:
            await self._scripted_agent(stop=stop)
        if not stop:
            await self._metadata()
        await self._trouble()
        for plural in ("workflows", "hardware", "templates"):
            await self._rack.operator.delete(plural, self._name)

    async def _register(self) -> None:
        operator, name = self._rack.operator, self._name
        seconds = "0.2" if self._number % 10 != 3 else "3"
        actions = [
            {"name": f"a{number}", "image": "none", "cmd": "/bin/sleep", "args": [seconds], "timeout": 90}
            for number in range(_ACTIONS)
        ]
        await operator.create(
            "templates", "Template", name, {"actions": actions, "env": {"NAME": "{{ .Params.name }}"}}
        )
        dhcp = {"ip": self._ip, "netmask": "255.255.0.0", "hostname": name, "nameservers": [self._rack.server_ip]}
        spec = {
            "networkInterfaces": {self._mac: {"dhcp": dhcp}},
            "osie": {"name": "soak"},
            "instance": {"userdata": f"#cloud-config\nhostname: {name}\n"},
        }
        await operator.create("hardware", "Hardware", name, spec)
        references = {"hardwareRef": {"name": name}, "templateRef": {"name": name}, "templateParams": {"name": name}}
        await operator.create("workflows", "Workflow", name, references)

    async def _boot(self) -> None:
        card, rng = self._card, self._rack.rng
        first = await lease(card, rng)
        if first.ip != self._ip:
            raise NotServedError(f"{self._mac} was offered {first.ip}, not {self._ip}")
        await asyncio.to_thread(card.take, first.ip)
        if not await tftp(card, first.file):
            raise NotServedError(f"{first.file} is empty")
        second = await lease(card, rng, ipxe=True)
        script = (await fetch(card, second.file.removeprefix(f"http://{card.server_ip}:7080"))).decode()
        paths = dict.fromkeys(re.findall(r"/osie/\S+/(?:kernel|initrd)\b", script))
        if len(paths) != 2:
            raise NotServedError(f"the script has no kernel and initrd: {script}")
        for path in paths:
            await fetch(card, path)

    async def _connect(self, *, dying: bool = False) -> Scripted:
        sock = self._card.socket(socket.SOCK_STREAM)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, (self._card.server_ip, 42113))
        _, agent = await loop.create_connection(lambda: Scripted(self._mac, dying=dying), sock=sock)
        await agent.connected
        return agent

    async def _scripted_agent(self, *, stop: bool) -> None:
        if self._number % 5 == 1:  # its machine was reset
            (await self._connect(dying=True)).close()
        agent = await self._connect()
        try:
            if stop:
                async with asyncio.timeout(_PATIENCE):
                    await agent.begun.wait()
                await self._rack.operator.delete("workflows", self._name)
            else:
                await self._rack.operator.ended(self._name)
            if agent.failure or agent.refused:
                raise NotServedError(f"agent {self._mac}: {agent.failure}, {agent.refused} events refused")
        finally:
            agent.close()

    async def _real_agent(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            words = ["--agent-id", self._mac, "--server", f"{self._card.server_ip}:42113", "--runtime", "process"]
            inside = ["ip", "netns", "exec", self._card.namespace, *TINKEDGE, "agent"]
            command = [*inside, *words, "--state-dir", directory]
            async with _background_command(*command):
                await self._rack.operator.ended(self._name)
        self._rack.counts["agents"] += 1

    async def _metadata(self) -> None:
        for path in _METADATA:
            if not await fetch(self._card, path.format(self._mac)):
                raise NotServedError(f"{path} is empty")

    async def _trouble(self) -> None:
        """Cause everyday faults. None of them may leak."""
        card, rng = self._card, self._rack.rng
        await strangers(card, rng, 5)
        await tftp(card, "ipxe.efi", blocks=2)
        await http(card, "/osie/soak/initrd", most=1000)
        await http(card, f"/nowhere/{self._number}")
        status, _ = await self._rack.operator.ask("POST", "/hardware", {"kind": "Hardware", "spec": {"osie": 7}})
        if status < 400:
            raise NotServedError("a Hardware that is wrong was accepted")


@contextlib.asynccontextmanager
async def _background_command(*command: str) -> Any:
    """Start a program and end it at the exit; fail if it has ended by itself."""
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TINKEDGE_", "KUBE"))}
    process = await asyncio.create_subprocess_exec(
        "setpriv", "--pdeathsig", "KILL", *command, stdin=null, stdout=null, stderr=pipe, env=environment
    )
    assert process.stderr is not None
    stderr = asyncio.create_task(process.stderr.read())
    try:
        yield
        if process.returncode is not None:
            raise NotServedError(f"{' '.join(command)} ended: {(await stderr).decode()[-500:]}")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await stderr


async def _ran(*command: str) -> None:
    """Run a program to its end; end it if this task is cancelled."""
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec("setpriv", "--pdeathsig", "KILL", *command, stdin=null, stdout=null)
    try:
        if await process.wait():
            raise NotServedError(f"{' '.join(command)} failed")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _operators(rack: Rack, directory: Path) -> None:
    """Run kubectl and `tinkedge watch` for a while, again and again, as operators do."""
    kubectl = ["kubectl", f"--kubeconfig={rack.kubeconfig}", f"--cache-dir={directory}"]
    watch = [*TINKEDGE, "watch", "--events", "-o", "json", "--data-dir", str(Path(rack.kubeconfig).parent)]
    while True:
        try:
            async with _background_command(*kubectl, "get", "workflows", "-w"), _background_command(*watch):
                await _ran(*kubectl, "get", "hardware,workflows,templates,osies,events")
                await asyncio.sleep(10)
            rack.counts["kubectl"] += 1
            rack.counts["watch"] += 1
        except NotServedError as error:
            rack.counts["failures"] += 1
            rack.failures.append(str(error))
        await asyncio.sleep(20)


async def main(given: dict[str, Any]) -> None:
    rack = Rack(given)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    files = {"kernelUrl": "file://" + given["kernel"], "initrdUrl": "file://" + given["initrd"]}
    await rack.operator.create("osies", "OSIE", "soak", files)
    with tempfile.TemporaryDirectory() as directory:
        tasks = [asyncio.create_task(rack.serve(place)) for place in range(len(rack.namespaces))]
        tasks.append(asyncio.create_task(_operators(rack, Path(directory))))
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1)
            for task in tasks:
                if task.done():
                    task.result()
            counts = {
                **rack.counts,
                "requests": rack.operator.requests,
                "cpu": time.process_time(),
                "failures": rack.failures,
            }
            print(json.dumps(counts), flush=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))

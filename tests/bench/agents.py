"""Simulated agents: ten thousand in one process, each on a connection of its own, that cost next to nothing.

They speak what `tinkedge agent` speaks: gRPC over HTTP/2, one command stream, events in order, as many at once as the
agent sends, a ping every 20 s. They read the frames of answers but not the headers, so that the server limits the
speed. An action is a pause; its first argument is the number of seconds.

Run as `python -m tests.bench.agents JSON`; the JSON names the function (`do`), the kubeconfig, the port and the
function's arguments. Prints the measured figures.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice
from pathlib import Path
from typing import Any, cast

import orjson
import uvloop

from proto import workflow_pb2 as pb
from proto.metadata import WORKFLOW as HOLDS
from tests.bench.wire import Account, Connection, WireError
from tink.agent.connection import WINDOW
from tink.api.v1alpha2 import API_VERSION, Raw

GROUP = "/apis/tinkerbell.org/v1alpha2/namespaces/default"
PING_SECONDS = 20.0
_WRITERS = 32
_SETTLE_SECONDS = 120.0

# --- HTTP/2 (RFC 9113) and HPACK (RFC 7541), as much as an agent needs ------------------------------------------------

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM = _ACK = 0x1
_END_HEADERS = 0x4
_WIDE = (1 << 31) - 1


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _text(value: bytes) -> bytes:
    return bytes((len(value),)) + value  # shorter than 127, and not Huffman coded


def _headers(method: str) -> bytes:
    """POST, http, the path, the authority, te and content-type: indexed or literal, nothing added to the table."""
    path = f"/internal.proto.workflow.v2.WorkflowService/{method}".encode()
    block = b"\x83\x86\x04" + _text(path) + b"\x01" + _text(b"bench") + b"\x00" + _text(b"te") + _text(b"trailers")
    return block + b"\x0f\x10" + _text(b"application/grpc") + b"\x00" + _text(HOLDS.encode()) + _text(b"")


_PREFACE = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + _frame(_SETTINGS, 0, 0, (4).to_bytes(2, "big") + _WIDE.to_bytes(4, "big"))  # windows that never have to grow
    + _frame(_WINDOW_UPDATE, 0, 0, (_WIDE - 65535).to_bytes(4, "big"))
)
_STREAM_HEADERS = _headers("GetWorkflows")
_EVENT_HEADERS = _headers("PublishEvent")


def _call(stream: int, headers: bytes, message: bytes) -> bytes:
    body = b"\0" + len(message).to_bytes(4, "big") + message
    return _frame(_HEADERS, _END_HEADERS, stream, headers) + _frame(_DATA, _END_STREAM, stream, body)


class Agent(asyncio.Protocol):
    """One agent. It calls `on_workflow(agent, workflow)` for each Workflow that the server sends, then runs it."""

    def __init__(self, name: str, on_workflow: Callable[[Agent, pb.Workflow], None] | None = None) -> None:
        self.name = name
        self.connected = asyncio.get_running_loop().create_future()
        self.refused = 0
        """Number of events that the server rejected."""
        self._on_workflow = on_workflow
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._stream = bytearray()
        self._next_id = 3
        self._calls: dict[int, bool] = {}
        """Events in flight, by stream, oldest first; True after the server has answered with a message."""
        self._answered: set[int] = set()
        self._sent = 0
        self._events: deque[tuple[pb.Event, Callable[[], None] | None]] = deque()

    # --- the connection -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of the protocol."""
        self._transport = cast(asyncio.Transport, transport)
        request = pb.GetWorkflowsRequest(agent_id=self.name).SerializeToString()
        self._transport.write(_PREFACE + _call(1, _STREAM_HEADERS, request))
        loop = asyncio.get_running_loop()
        loop.call_later(random.uniform(0, PING_SECONDS), self._ping, loop)

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of the protocol."""
        self._lost("the connection was closed")

    def close(self) -> None:
        """Close."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _ping(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._transport is not None:
            self._transport.write(_frame(_PING, 0, 0, bytes(8)))
            loop.call_later(PING_SECONDS, self._ping, loop)

    def _lost(self, why: str) -> None:
        if not self.connected.done():
            self.connected.set_exception(WireError(f"agent {self.name}: {why}"))
        elif self._transport is not None:
            sys.exit(f"agent {self.name}: {why}")  # the figures would be wrong

    def data_received(self, data: bytes) -> None:
        """Part of the protocol."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 9:
            end = at + 9 + int.from_bytes(buffer[at : at + 3], "big")
            if end > len(buffer):
                break
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big")
            self._frame(buffer[at + 3], buffer[at + 4], stream, bytes(buffer[at + 9 : end]))
            at = end
        del buffer[:at]

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _DATA:
            if stream == 1:
                self._command(payload)
            else:
                self._calls[stream] = True
        elif kind == _HEADERS:
            if stream == 1:
                self._opened(ended=bool(flags & _END_STREAM))
            elif flags & _END_STREAM:
                self._handle_answer(stream)
        elif kind in (_SETTINGS, _PING) and not flags & _ACK and self._transport is not None:
            self._transport.write(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind in (_RESET, _GOAWAY):
            self._lost(f"the server ended it: {payload!r}")

    def _opened(self, *, ended: bool) -> None:
        if ended:
            self._lost("the server ended the command stream")
        elif not self.connected.done():
            self.connected.set_result(None)

    # --- commands and events ------------------------------------------------------------------------------------------

    def _command(self, payload: bytes) -> None:
        self._stream += payload
        while len(self._stream) >= 5:
            end = 5 + int.from_bytes(self._stream[1:5], "big")
            if len(self._stream) < end:
                return
            message = pb.GetWorkflowsResponse.FromString(bytes(self._stream[5:end]))
            del self._stream[:end]
            if message.HasField("start_workflow"):
                if self._on_workflow is not None:
                    self._on_workflow(self, message.start_workflow.workflow)
                self._begin(message.start_workflow.workflow, 0)

    def _begin(self, workflow: pb.Workflow, index: int) -> None:
        loop = asyncio.get_running_loop()
        action = workflow.actions[index]
        seconds = float(action.args[0])

        def done() -> None:
            self._publish(workflow, action_succeeded=pb.Event.ActionSucceeded(action_id=action.id))
            if index + 1 < len(workflow.actions):
                self._begin(workflow, index + 1)
            self._send()

        started = pb.Event.ActionStarted(action_id=action.id)
        if index in (0, len(workflow.actions) - 1):  # here, an agent waits until the server has its events
            self._publish(workflow, lambda: loop.call_later(seconds, done), action_started=started)
        else:
            self._publish(workflow, action_started=started)
            loop.call_later(seconds, done)
        if index == 0:
            self._send()

    def _publish(self, workflow: pb.Workflow, then: Callable[[], Any] | None = None, **event: Any) -> None:
        self._events.append((pb.Event(workflow_id=workflow.workflow_id, **event), then))

    def _send(self) -> None:
        """Send waiting events, as many as the window allows."""
        if self._transport is None or self._sent == len(self._events) or self._sent == WINDOW:
            return
        calls = []
        for event, _ in islice(self._events, self._sent, WINDOW):
            request = pb.PublishEventRequest(event=event)
            calls.append(_call(self._next_id, _EVENT_HEADERS, request.SerializeToString()))
            self._calls[self._next_id] = False
            self._next_id += 2
        self._sent += len(calls)
        self._transport.write(b"".join(calls))

    def _handle_answer(self, stream: int) -> None:
        """Handle the answer to an event; a rejection has no message."""
        self.refused += not self._calls[stream]
        self._answered.add(stream)
        while self._calls and (oldest := next(iter(self._calls))) in self._answered:
            del self._calls[oldest]
            self._answered.remove(oldest)
            self._sent -= 1
            _, then = self._events.popleft()
            if then is not None:
                then()
        self._send()


async def connect(port: int, names: list[str], on_workflow: Callable[[Agent, pb.Workflow], None] | None) -> list[Agent]:
    """Connect an agent for each name and open its command stream."""
    loop = asyncio.get_running_loop()
    agents: list[Agent] = []

    async def one(name: str) -> None:
        _, agent = await loop.create_connection(lambda: Agent(name, on_workflow), "127.0.0.1", port)
        agents.append(agent)
        await agent.connected

    await _each(names, one, 200)
    return agents


# --- measurements -----------------------------------------------------------------------------------------------------


async def idle(account: Account, port: int, count: int) -> None:
    """Connect `count` agents, report it on standard output, and stay until the end of standard input."""
    agents = await connect(port, [f"machine-{number}" for number in range(count)], None)
    print(json.dumps({"connected": len(agents)}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for agent in agents:
        agent.close()


async def receipt(account: Account, port: int, busy: int, free: int, probes: int, seconds: float) -> dict[str, float]:
    """Measure the milliseconds from the POST of a Workflow to its receipt, while `busy` other agents run theirs.

    Each busy agent begins an action every `seconds`; the probes go to `free` more agents, one after the other.
    """
    received: dict[str, float] = {}

    def note(_: Agent, workflow: pb.Workflow) -> None:
        received[workflow.workflow_id] = time.perf_counter()

    await connect(port, [f"machine-{number}" for number in range(busy + free)], note)
    await _templates(account, {"long": [seconds] * 12, "short": [0.001]})
    rng = random.Random(1)
    begin = time.perf_counter()
    names = [f"busy-{number}" for number in range(busy)]

    async def occupy(index: int) -> None:
        # Spread over one action's time, so that the agents do not work in step.
        await asyncio.sleep(index / busy * max(seconds, busy / 50) - (time.perf_counter() - begin))
        await _create_one(account, names[index], f"machine-{index}", "long")

    await _each(list(range(busy)), occupy, 8)
    await _until(lambda: len(received) >= busy, "all agents are busy")
    await asyncio.sleep(3)
    wire = await Connection.open(account)
    latencies = []
    for number in range(probes):
        await asyncio.sleep(rng.uniform(0.02, 0.08))
        body = _workflow(f"probe-{number}", f"machine-{busy + number % free}", "short")
        start = time.perf_counter()
        answer = await wire.must(account.request("POST", f"{GROUP}/workflows", body))
        uid = orjson.loads(answer)["metadata"]["uid"]
        give_up = start + 10
        while uid not in received:
            if time.perf_counter() > give_up:
                raise WireError(f"probe-{number} did not arrive")
            await asyncio.sleep(0.0005)
        latencies.append(1000 * (received[uid] - start))
    latencies.sort()
    return {
        "median": latencies[len(latencies) // 2],
        "p99": latencies[int(len(latencies) * 0.99)],
        "most": latencies[-1],
    }


async def batch(
    account: Account, port: int, first: int, machines: int, count: int, actions: int, seconds: float
) -> dict[str, float]:
    """Measure the seconds from the first POST until the last of `count` Workflows on `machines` has succeeded."""
    agents = await connect(port, [f"machine-{number}" for number in range(first, first + machines)], None)
    await _templates(account, {f"seconds-{first}": [seconds] * actions})
    ended: dict[str, float] = {}
    rest = b""

    def line(piece: bytes) -> None:
        nonlocal rest
        *lines, rest = (rest + piece).split(b"\n")
        for each in lines:
            if (
                b'"state":"Succeeded"' in each
                and each.startswith(b"{")
                and b'"type":"Succeeded","status":"True"' in each
            ):
                name = orjson.loads(each)["object"]["metadata"]["name"]
                ended.setdefault(name, time.perf_counter())

    watcher = await Connection.open(account)
    watcher.watch(account.request("GET", f"{GROUP}/workflows?watch=true&resourceVersion=0"), line)
    begin = time.perf_counter()

    async def one(number: int) -> None:
        await _create_one(
            account, f"batch-{first}-{number}", f"machine-{first + number % machines}", f"seconds-{first}"
        )

    await _each(list(range(count)), one, _WRITERS)
    created = time.perf_counter() - begin
    mine = f"batch-{first}-"
    await _until(lambda: sum(name.startswith(mine) for name in ended) >= count, "all Workflows have succeeded")
    watcher.close()
    refused = sum(agent.refused for agent in agents)
    if refused:
        raise WireError(f"{refused} events were refused")
    return {"seconds": max(ended.values()) - begin, "created": created}


async def machines(account: Account, port: int, count: int) -> dict[str, float]:
    """Create Hardware named machine-0, machine-1, ..."""

    async def one(number: int) -> None:
        interface = {"dhcp": {"ip": f"10.9.{number >> 8}.{number & 255}", "netmask": "255.255.0.0"}}
        mac = f"52:54:00:{number.to_bytes(3, 'big').hex(':')}"
        await _post(
            account, "hardware", _object("Hardware", f"machine-{number}", {"networkInterfaces": {mac: interface}})
        )

    await _each(list(range(count)), one, _WRITERS)
    return {}


# --- helpers ----------------------------------------------------------------------------------------------------------

_idle_connections: list[Connection] = []


async def _post(account: Account, plural: str, body: bytes) -> bytes:
    wire = _idle_connections.pop() if _idle_connections else await Connection.open(account)
    answer = await wire.must(account.request("POST", f"{GROUP}/{plural}", body))
    _idle_connections.append(wire)
    return answer


def _object(kind: str, name: str, spec: Raw) -> bytes:
    metadata = {"name": name, "namespace": "default"}
    return orjson.dumps({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})


def _workflow(name: str, machine: str, template: str) -> bytes:
    return _object("Workflow", name, {"hardwareRef": {"name": machine}, "templateRef": {"name": template}})


async def _create_one(account: Account, name: str, machine: str, template: str) -> None:
    await _post(account, "workflows", _workflow(name, machine, template))


async def _templates(account: Account, templates: dict[str, list[float]]) -> None:
    for name, pauses in templates.items():
        actions = [
            {"name": f"a{number}", "image": "registry.example/pause:1", "cmd": "sleep", "args": [str(seconds)]}
            for number, seconds in enumerate(pauses)
        ]
        await _post(account, "templates", _object("Template", name, {"actions": actions}))
    await asyncio.sleep(1)  # until the controller has the Template: a Workflow without it waits


async def _each(items: list[Any], do: Callable[[Any], Awaitable[None]], at_once: int) -> None:
    """Call `do` for each item, at most `at_once` at a time."""
    left = iter(items)

    async def work() -> None:
        for item in left:
            await do(item)

    await asyncio.gather(*(work() for _ in range(at_once)))


async def _until(true: Callable[[], bool], condition: str) -> None:
    give_up = time.monotonic() + _SETTLE_SECONDS
    while not true():
        if time.monotonic() > give_up:
            raise WireError(f"after {_SETTLE_SECONDS:.0f} s this is not true: {condition}")
        await asyncio.sleep(0.01)


def main(arguments: dict[str, Any]) -> None:
    """Run the function that `do` names, and print its figures as JSON."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    account = Account.of(Path(arguments.pop("kubeconfig")))
    do: dict[str, Callable[..., Awaitable[Any]]] = {
        "idle": idle,
        "receipt": receipt,
        "batch": batch,
        "machines": machines,
    }
    figures = uvloop.run(cast(Any, do[arguments.pop("do")](account, **arguments)))
    if figures is not None:
        print(json.dumps({**figures, "agents": time.process_time()}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

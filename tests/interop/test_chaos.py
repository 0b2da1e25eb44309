"""kill -9 of everything at random moments, while 80 Workflows run: each ends as planned, and no action runs twice.

    agents --- proxy (of this test) --- two servers ---+
                                        two controllers +--- embedded API

Each of them is a process of `tinkedge`, on loopback. Actions append to a file of the machine, so the test counts each
run independently of the reported states. Some kills of an agent also delete its disk, as when a machine that runs from
memory loses its power; some Workflows have an action that fails, and some are deleted while they run.

Agents use TLS and tokens. CHAOS_SEED repeats a run's choices (not its timing). CHAOS_WORKFLOWS makes the run longer, as
`make soak` does. CHAOS_PLAIN=1 runs without TLS and tokens, to find out whether they cause a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from cryptography import x509

from tests.interop.authority import Authority
from tests.interop.loaded import Child, nursery
from tests.ports import free_ports
from tests.waiting import until
from tink.api.v1alpha2 import API_VERSION, Raw
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.resources import HARDWARE, TEMPLATE, WORKFLOW, ResourceType
from tink.server import TokenKeys, TokenSettings

pytestmark = pytest.mark.long

T = TypeVar("T")

SEED = int(os.environ.get("CHAOS_SEED") or secrets.randbelow(10**6))
WORKFLOWS = int(os.environ.get("CHAOS_WORKFLOWS") or 80)
PLAIN = bool(os.environ.get("CHAOS_PLAIN"))
AGENTS = 8
ACTIONS = 5
FAILING = 3
"""The index of the action that fails in the Workflows that are to fail."""
CALM_AFTER = 0.2 * WORKFLOWS
"""Seconds after which nothing more is killed, so that the end is bounded."""
PATIENCE = 100 + WORKFLOWS
"""Seconds after which all Workflows must have ended."""
OUTAGE = 60.0
"""Seconds that the API may be away."""
NAMESPACE = "default"
ACTION_SECONDS = 0.15
RUN = f'echo "{{{{ .Params.name }}}} %d" >> runs; sleep {ACTION_SECONDS}'


# --- processes that are killed and restarted -------------------------------------------------------------------------


class Victim:
    """A process that is restarted at each end, as by systemd, in the directory that `begin` returns before each life.

    Its modules are already imported (`loaded`), and it ends with this test in any case.
    """

    def __init__(
        self, name: str, words: Callable[[Path], list[str]], log: Path, begin: Callable[[], Path] = Path.cwd
    ) -> None:
        self.name = name
        self.kills = 0
        self.ended_by_itself: list[int] = []
        self._words = words
        self._log = log
        self._begin = begin
        self._process: Child | None = None
        self._killed = False
        self._life_begins = 0
        self.down = 0.0
        """Seconds between a kill and the restart."""

    async def run(self) -> None:
        """Restart the process at each end, until cancelled."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TINKEDGE_")}
        try:
            while True:
                with self._log.open("ab") as log:
                    self._killed = False
                    self._life_begins = log.tell()
                    here = self._begin()
                    life = self._process = nursery().begin("", self._words(here), log, log, environment, here)
                while (code := life.poll()) is None:
                    await asyncio.sleep(0.05)
                if not self._killed and not self._api_was_away:
                    self.ended_by_itself.append(code)
                await asyncio.sleep(self.down if self._killed else 1.0)
        finally:
            self.kill()
            if self._process is not None:
                self._process.wait()

    @property
    def ready(self) -> bool:
        """Return True if this life of the process has logged that it is ready."""
        with self._log.open("rb") as log:
            log.seek(self._life_begins)
            return b"ready: " in log.read(65536)

    @property
    def _api_was_away(self) -> bool:
        """Return True if this life ended because the API was away for too long, as its log says."""
        with self._log.open("rb") as log:
            log.seek(self._life_begins)
            return b"the API has not listed" in log.read(1 << 20)

    def kill(self) -> None:
        """Send SIGKILL if the process is alive."""
        if self._process is not None and self._process.poll() is None:
            self._killed = True
            self.kills += 1
            self._process.kill()

    def tail(self, lines: int = 30) -> str:
        """Return the end of the process's log."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return f"--- {self.name}\n" + "\n".join(text.splitlines()[-lines:])


class Machine:
    """An agent's directory: each life of its disk has its own, with the file to which its actions append."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lives = 1

    def here(self) -> Path:
        """The directory of this life."""
        here = self._directory / f"life-{self._lives}"
        here.mkdir(parents=True, exist_ok=True)
        return here

    def busy(self) -> bool:
        """Return True if an action has just begun."""
        with contextlib.suppress(FileNotFoundError):
            return time.time() - (self.here() / "runs").stat().st_mtime < ACTION_SECONDS
        return False

    def lose_everything(self) -> None:
        """Simulate a power failure of a machine that has everything in memory."""
        self._lives += 1

    def runs(self) -> list[list[tuple[str, int]]]:
        """Return, for each life, the Workflows and actions that ran, in order."""
        lives = []
        for life in range(1, self._lives + 1):
            path = self._directory / f"life-{life}" / "runs"
            lines = path.read_text().splitlines() if path.exists() else []
            lives.append([(line.split()[0], int(line.split()[1])) for line in lines])
        return lives


class Proxy:
    """A proxy for agents: it connects each to a running server, chosen at random."""

    def __init__(self, ports: list[int], rng: random.Random) -> None:
        self._ports = ports
        self._rng = rng
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            for port in self._rng.sample(self._ports, len(self._ports)):
                with contextlib.suppress(OSError):
                    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
                    writers.append(far_writer)
                    ways = (_pass_on(reader, far_writer), _pass_on(far_reader, writer))
                    done = [asyncio.create_task(way) for way in ways]
                    try:
                        await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        for way in done:
                            way.cancel()
                        await asyncio.gather(*done, return_exceptions=True)
                    return
        finally:
            for each in writers:
                each.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()


# --- the whole site --------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """The planned course of a Workflow."""

    name: str
    machine: int
    fails: bool
    deleted_after: float | None
    """Seconds after its creation; None: it stays."""


@dataclass
class World:
    """All processes and objects of one run. `rng` makes the choices."""

    directory: Path
    rng: random.Random
    plans: list[Plan] = field(default_factory=list)
    machines: list[Machine] = field(default_factory=list)
    victims: dict[str, list[Victim]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _exit: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def start(self) -> None:
        """Start the processes; the objects follow with `fill`."""
        api_port, *server_ports = free_ports(3)
        kubeconfig = self.directory / "api" / "kubeconfig"
        api = ["apiserver", "--data-dir", str(self.directory / "api"), "--api-port", str(api_port)]
        self._add("api", lambda _: api)
        await until(kubeconfig.exists, within=OUTAGE)
        self.client = await KubeClient.connect(kubeconfig)
        self._exit.push_async_callback(self.client.close)
        theirs, ours = self._guards()
        for port in server_ports:
            network = ["--interface", "lo=127.0.0.1", "--grpc-port", str(port)]
            words = ["server", "--kubeconfig", str(kubeconfig), *network, *theirs]
            self._add("server", lambda _, words=words: words)
        for _ in range(2):
            self._add("controller", lambda _: ["controller", "--kubeconfig", str(kubeconfig), "--disable", "webhooks"])
        proxy = Proxy(server_ports, self.rng)
        await proxy.start()
        self._exit.push_async_callback(proxy.stop)
        for number in range(AGENTS):
            machine = Machine(self.directory / f"machine-{number}")
            self.machines.append(machine)
            words = ["agent", "--agent-id", mac(number), "--server", f"127.0.0.1:{proxy.port}", "--runtime", "process"]
            words += ours(mac(number))
            # The state is in another directory after a loss of power.
            self._add("agent", lambda here, words=words: [*words, "--state-dir", str(here / "state")], machine.here)

    def _guards(self) -> tuple[list[str], Callable[[str], list[str]]]:
        """Return the server's options that authenticate agents, and a function: the options of the agent of a MAC."""
        if PLAIN:
            return ["--agent-auth", "none"], lambda _: ["--no-tls"]
        chain, key = Authority(self.directory).sign("tls", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        keys = TokenKeys(TokenSettings(self.directory / "agent-token.key", create=True))
        server = ["--grpc-tls-cert", str(chain), "--grpc-tls-key", str(key)]
        server += ["--agent-auth", "token", "--agent-token-key", str(self.directory / "agent-token.key")]
        roots = str(self.directory / "authority.crt")
        return server, lambda mac: ["--tls", "--tls-roots", roots, "--token", keys.mint(mac, time.time())]

    def _add(self, kind: str, words: Callable[[Path], list[str]], begin: Callable[[], Path] = Path.cwd) -> None:
        victims = self.victims.setdefault(kind, [])
        name = f"{kind}-{len(victims)}"
        victims.append(Victim(name, words, self.directory / f"{name}.log", begin))
        self._tasks.append(asyncio.create_task(victims[-1].run()))

    async def stop(self) -> None:
        """End everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._exit.aclose()

    def all(self) -> list[Victim]:
        """Every process."""
        return [victim for victims in self.victims.values() for victim in victims]

    async def create(self, resource: ResourceType, name: str, spec: Raw) -> None:
        """Create an object, with retries during outages of the API."""
        metadata = {"name": name, "namespace": NAMESPACE}
        obj = {"apiVersion": API_VERSION, "kind": resource.kind, "metadata": metadata, "spec": spec}
        with contextlib.suppress(ConflictError):  # it was created, and the answer was lost
            await surely(lambda: self.client.create(resource, obj))

    async def fill(self) -> None:
        """Create the machines and Templates as soon as the API serves their definitions."""

        async def served(resource: ResourceType) -> bool:
            with contextlib.suppress(NotFoundError):
                await surely(lambda: self.client.list(resource, NAMESPACE))
                return True
            return False

        for resource in (HARDWARE, TEMPLATE, WORKFLOW):
            await until(lambda resource=resource: served(resource), every=0.05)
        for number in range(AGENTS):
            interface = {"dhcp": {"ip": f"127.0.1.{number + 1}", "netmask": "255.0.0.0"}}
            await self.create(HARDWARE, f"machine-{number}", {"networkInterfaces": {mac(number): interface}})
        for template in ("good", "bad"):
            scripts = [RUN % index for index in range(ACTIONS)]
            if template == "bad":
                reason = 'printf Broken > "$TINKERBELL_FAILURE_REASON"'
                scripts[FAILING] = f"{scripts[FAILING]}; {reason}; exit 1"
            actions = [
                {"name": f"a{index}", "image": "none", "cmd": "/bin/sh", "args": ["-c", script]}
                for index, script in enumerate(scripts)
            ]
            await self.create(TEMPLATE, template, {"actions": actions})

    async def order(self) -> None:
        """Create the Workflows during the first half of the chaos, and delete some of them."""
        deletions = []
        for number in range(WORKFLOWS):
            roll = self.rng.random()
            plan = Plan(
                f"w{number}",
                self.rng.randrange(AGENTS),
                fails=roll < 0.1,
                deleted_after=self.rng.uniform(0, 8) if roll > 0.94 else None,
            )
            self.plans.append(plan)
            spec = {
                "hardwareRef": {"name": f"machine-{plan.machine}"},
                "templateRef": {"name": "bad" if plan.fails else "good"},
                "templateParams": {"name": plan.name},
            }
            await self.create(WORKFLOW, plan.name, spec)
            if plan.deleted_after is not None:
                deletions.append(asyncio.create_task(self._delete(plan.name, plan.deleted_after)))
            await asyncio.sleep(self.rng.uniform(0, CALM_AFTER / WORKFLOWS))
        await asyncio.gather(*deletions)

    async def _delete(self, name: str, after: float) -> None:
        await asyncio.sleep(after)
        with contextlib.suppress(NotFoundError):  # it was deleted, and the answer was lost
            await surely(lambda: self.client.delete(WORKFLOW, name, NAMESPACE))
        self.deleted.add(name)

    async def kill(self, kind: str, least: float, most: float) -> None:
        """Kill processes of this kind, with random pauses of `least` to `most` seconds."""
        calm = time.monotonic() + CALM_AFTER
        while True:
            await asyncio.sleep(self.rng.uniform(least, most))
            if time.monotonic() > calm:
                return
            number = self.rng.randrange(len(self.victims[kind]))
            if kind == "agent" and self.rng.random() < 0.5:
                number = next((busy for busy, machine in enumerate(self.machines) if machine.busy()), number)
            victim = self.victims[kind][number]
            # Processes start slowly on a busy machine: repeated kills before they serve would stop all progress.
            if kind != "agent" and not victim.ready and self.rng.random() < 0.9:
                continue
            victim.down = self.rng.choice((0.0, 0.1, 0.5, 2.0))
            if kind == "agent" and self.rng.random() < 0.15:
                self.machines[number].lose_everything()
            victim.kill()

    async def workflows(self) -> dict[str, Raw]:
        """Return all Workflows by name."""
        listed = await surely(lambda: self.client.list(WORKFLOW, NAMESPACE))
        return {workflow["metadata"]["name"]: workflow for workflow in listed["items"]}

    async def ended(self) -> dict[str, Raw]:
        """Wait until every Workflow has ended or is deleted as planned; return the remaining ones by name."""
        give_up = time.monotonic() + PATIENCE
        while True:
            workflows_by_name = await self.workflows()
            unended = {name: w for name, w in workflows_by_name.items() if not over(w) or name in self.deleted}
            if len(self.plans) == WORKFLOWS and not unended:
                return workflows_by_name
            if time.monotonic() > give_up:
                stuck = "\n".join(
                    f"{name}: {w['metadata'].get('finalizers')} {w.get('status')}" for name, w in unended.items()
                )
                logs = "\n".join(victim.tail() for victim in self.all())
                pytest.fail(f"seed {SEED}: after {PATIENCE:.0f} s {len(unended)} have not ended:\n{stuck}\n{logs}")
            await asyncio.sleep(0.5)


def mac(number: int) -> str:
    return f"52:54:00:00:00:{number:02x}"


def over(workflow: Raw) -> bool:
    """Return True if the Workflow has ended and has no finalizers."""
    state = workflow.get("status", {}).get("state")
    return state in ("Succeeded", "Failed", "Canceled") and not workflow["metadata"].get("finalizers")


async def surely(call: Callable[[], Awaitable[T]]) -> T:
    """Retry a call to the API until it succeeds. Raises NotFoundError and ConflictError at once."""
    give_up = time.monotonic() + OUTAGE
    while True:
        try:
            return await call()
        except (NotFoundError, ConflictError):
            raise
        except ApiError as error:
            if 0 < error.status < 500 or time.monotonic() > give_up:
                raise
            await asyncio.sleep(0.1)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    new_world = World(tmp_path, random.Random(SEED))
    try:
        await new_world.start()
        await new_world.fill()
        yield new_world
    finally:
        await new_world.stop()


# --- assertions ------------------------------------------------------------------------------------------------------


def check_end(plan: Plan, workflow: Raw, ran: Counter[int]) -> str:
    """Check that the Workflow's status matches the machine's file; return how the Workflow ended."""
    status = workflow["status"]
    states = [action["state"] for action in status["actions"]]
    story = f"{plan} ran {dict(ran)}: {status}"
    if status["state"] == "Succeeded":
        assert not plan.fails, story
        assert states == ["Succeeded"] * ACTIONS, story
        assert set(ran) == set(range(ACTIONS)), story
        return "Succeeded"
    assert status["state"] == "Failed", story
    reason: str = next(each["reason"] for each in status["conditions"] if each["type"] == "Succeeded")
    succeeded = states.count("Succeeded")
    failed = states.count("Failed")
    assert states == ["Succeeded"] * succeeded + ["Failed"] * failed + ["Pending"] * (ACTIONS - succeeded - failed), (
        story
    )
    assert set(range(succeeded)) <= set(ran), story
    if reason == "AgentLost":
        # The agent's unsent reports were lost with its disk: more actions have run than the status shows.
        assert failed <= 1, story
        return reason
    assert failed == 1, story
    assert set(ran) <= set(range(succeeded + 1)), story
    assert status["actions"][succeeded]["failureReason"] == reason, story
    if reason != "AgentRestarted":
        assert plan.fails, story
        assert (succeeded, reason) == (FAILING, "Broken"), story
        assert ran[FAILING] == 1, story
    return reason


def check_runs(lives: list[list[tuple[str, int]]]) -> None:
    """Check that no action ran twice, even after a loss of power.

    The first action waits until the server has stored its start. A machine that has lost its disk reports the Workflow
    that it had begun as lost.
    """
    times = Counter(run for life in lives for run in life)
    assert not (again := [run for run, number in times.items() if number > 1]), f"run twice: {again}"


@pytest.mark.timeout(600 + 2 * WORKFLOWS)
async def test_every_workflow_ends_as_planned_and_no_action_runs_twice_whichever_process_is_killed(
    world: World,
) -> None:
    print(f"CHAOS_SEED={SEED}")
    pauses = {"agent": (0.5, 2.0), "server": (2, 6), "controller": (3, 7), "api": (4, 8)}
    disturbances = [asyncio.create_task(world.kill(kind, *pause)) for kind, pause in pauses.items()]
    await world.order()  # ended Workflows may still be deleted
    found = await world.ended()
    for disturbance in disturbances:
        disturbance.cancel()
    await asyncio.gather(*disturbances, return_exceptions=True)
    ran: dict[str, Counter[int]] = {plan.name: Counter() for plan in world.plans}
    for machine in world.machines:
        lives = machine.runs()
        check_runs(lives)
        for name, index in (run for life in lives for run in life):
            ran[name][index] += 1
    problems = [
        check_end(plan, found[plan.name], ran[plan.name]) if plan.name in found else "deleted" for plan in world.plans
    ]
    ends = Counter(problems)
    assert {plan.name for plan in world.plans} - set(found) == world.deleted
    kills = {kind: sum(victim.kills for victim in victims) for kind, victims in world.victims.items()}
    print(f"killed {kills}, ended {dict(ends)}")
    for number, machine in enumerate(world.machines):
        lost = sum(
            end == "AgentLost" for plan, end in zip(world.plans, problems, strict=True) if plan.machine == number
        )
        assert lost < len(machine.runs()), f"machine {number} lost its disk {len(machine.runs()) - 1} times"
    assert ends["AgentLost"] + ends["AgentRestarted"] <= kills["agent"], "more was reported lost than was"
    for victim in world.all():
        assert not victim.ended_by_itself, f"{victim.name} ended by itself: {victim.ended_by_itself}\n{victim.tail()}"

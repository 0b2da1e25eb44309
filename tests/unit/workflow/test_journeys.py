"""Long journeys of several machines and their Workflows, with real times, through whatever may happen on the way.

Where `test_model` visits every state of a very small world, this walks at random through a larger one: two controllers,
two servers, machines with several Workflows of one to three actions, timeouts and delays as they are configured,
deletions and states set by hand. Time is a number that the test moves. In the end nothing goes wrong any more, and
everything must come to rest: every Workflow at its end, every machine idle, what was deleted gone.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.workflow.table import TERMINAL
from tests.unit.workflow.world import ViolationError, lawful, to_machine
from tink.agent import model as agent_model
from tink.agent.executor import Executor, Publish, RunAction, StopAction
from tink.api.v1alpha2 import API_VERSION, Raw
from tink.controller import ControllerSettings
from tink.controller.reconcile import Decision, reconcile
from tink.kubeapi.apiserver.patch import merge
from tink.server.decision import AgentView, ClaimAndSend, GiveBack, Recall, Start, Stop, next_move
from tink.server.events import ServerEvent, _settled, rejection_delay
from tink.template import RenderedTemplate
from tink.workflow import events, guards, machine
from tink.workflow.guards import protect
from tink.workflow.status import agent_seen, name_of, rejections, state_of, status_of, status_patch, timestamp
from tink.workflow.table import Author

MACHINES = 3
SILENT = 2
"""The machine whose agent does not say what it holds."""
LONGEST = 60.0
"""Seconds that a rejected Workflow waits at most."""
SETTINGS = ControllerSettings(scheduled_timeout=30, cancelling_timeout=20, action_timeout=40)
COMPONENTS = ("controller 0", "controller 1", "server 0", "server 1")


class ConflictError(Exception):
    """The object has changed."""


class Api:
    """Every version of every Workflow, and how many of them each component has seen."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.versions: dict[str, list[Raw | None]] = {}
        self.seen: dict[tuple[str, str], int] = {}

    def create(self, uid: str, machine_name: str, template: str, timeout: int, *, protects: bool) -> None:
        """`protects`: the API gives new Workflows the finalizer."""
        metadata = {"name": uid, "namespace": "d", "uid": uid, "generation": 1}
        metadata |= {"resourceVersion": "0", "creationTimestamp": timestamp(self.now)}
        spec = {"hardwareRef": {"name": machine_name}, "templateRef": {"name": template}, "timeout": timeout}
        new: Raw = {"apiVersion": API_VERSION, "kind": "Workflow", "metadata": metadata, "spec": spec}
        if protects:
            protect(new)
        self.versions[uid] = [new]

    def get(self, uid: str) -> Raw | None:
        return self.versions[uid][-1]

    def patch(self, uid: str, body: Raw, author: Author | None) -> Raw:
        now = self.get(uid)
        if now is None or body["metadata"].get("resourceVersion", now["metadata"]["resourceVersion"]) != str(
            len(self.versions[uid]) - 1
        ):
            raise ConflictError
        after: Raw = merge(copy.deepcopy(now), body)
        if author is not None:
            lawful(now.get("status", {}), after.get("status", {}), author)
        after["metadata"]["resourceVersion"] = str(len(self.versions[uid]))
        gone = after["metadata"].get("deletionTimestamp") and not after["metadata"].get("finalizers")
        self.versions[uid].append(None if gone else after)
        return after

    def of(self, component: str, uid: str) -> Raw | None:
        """The Workflow as a component sees it."""
        return self.versions[uid][self.seen.get((component, uid), 0)]

    def catch_up(self, component: str, uid: str) -> bool:
        """Let the component see the next version."""
        at = self.seen.get((component, uid), 0)
        if at + 1 == len(self.versions[uid]):
            return False
        self.seen[component, uid] = at + 1
        return True

    def list_anew(self, component: str) -> None:
        """A component that was restarted sees what is there."""
        for uid, versions in self.versions.items():
            self.seen[component, uid] = len(versions) - 1


class Stream:
    """One server's stream to a machine; the agent has the other end while it is `open`."""

    def __init__(self, *, says: bool) -> None:
        self.view = AgentView(says=says)
        self.open = True
        self.seen = False  # the server has recorded that the agent is connected, while it reboots its machine
        self.wire: list[agent_model.Command] = []


class Agent:
    """A machine: what its agent remembers, and what truly ran on it."""

    def __init__(self, *, says: bool) -> None:
        self.executor = Executor()
        self.says = says  # what it holds, when it connects
        self.lost = self.runs = False  # the action that the agent is at has begun; ended with the agent
        self.spool: list[agent_model.Event] = []
        self.action: agent_model.RenderedAction | None = None
        self.stopping = False
        self.stream: Stream | None = None
        self.begun: set[str] = set()  # ids of actions

    def carry_out(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Publish(event):
                    self.spool.append(event)
                case RunAction():
                    if self.action not in (None, effect.action):
                        raise ViolationError("two actions at once")
                    self.action, self.stopping = effect.action, False
                    self.runs, self.lost = effect.resumed and self.runs, effect.resumed and self.lost
                case StopAction():
                    self.stopping = True

    def begin(self) -> bool:
        """Agent._start_is_acknowledged: the first action and the last one wait until the server has heard of it."""
        progress = self.executor.progress
        if self.action is None or self.runs or self.lost or self.stopping or progress.workflow is None:
            return False
        first, *_, last = (progress.workflow.actions[0], *progress.workflow.actions)
        if self.action in (first, last) and progress.workflow.id in self.unheard():
            return False
        if self.action.id in self.begun:
            raise ViolationError("an action began twice")
        self.begun.add(self.action.id)
        self.runs = True
        self.executor.action_begins()
        return True

    def end(self, *, succeeded: bool) -> None:
        succeeded = succeeded and self.runs and not self.lost and not self.stopping
        self.action, self.runs, self.lost = None, False, False
        self.carry_out(self.executor.action_ended(agent_model.RunResult(0 if succeeded else 1, "R", "m")))

    def restart(self, *, action_lives: bool) -> None:
        """The agent's process dies and restarts with its journal."""
        self.lost = self.lost or (self.runs and not action_lives)
        self.executor = Executor(self.executor.progress)
        self.carry_out(self.executor.resume())

    def unheard(self) -> set[str]:
        return {event.workflow_id for event in self.spool}

    def held_workflows(self) -> set[str]:
        return self.unheard() | ({self.executor.running} if self.executor.running else set())


class Journeys(RuleBasedStateMachine):
    """The rules are what may happen; each does one thing."""

    workflows = Bundle("workflows")

    def __init__(self) -> None:
        super().__init__()
        self.api = Api()
        self.agents = [Agent(says=at != SILENT) for at in range(MACHINES)]
        self.streams: dict[tuple[int, int], Stream] = {}  # by server and machine
        self.delayed: list[agent_model.Event] = []

    # --- users -------------------------------------------------------------------

    @rule(
        target=workflows,
        at=st.integers(0, MACHINES - 1),
        template=st.sampled_from(["1", "2", "3", "1 reboots", "3 reboots"]),
        timeout=st.sampled_from([0, 90]),
        protects=st.booleans(),
    )
    def somebody_creates(self, at: int, template: str, timeout: int, protects: bool) -> str:
        uid = f"u{len(self.api.versions)}"
        self.api.create(uid, f"h{at}", template, timeout, protects=protects)
        return uid

    @rule(uid=workflows)
    def somebody_deletes(self, uid: str) -> None:
        workflow = self.api.get(uid)
        if workflow is not None and "deletionTimestamp" not in workflow["metadata"]:
            self.api.patch(uid, {"metadata": {"deletionTimestamp": timestamp(self.api.now)}}, None)

    @rule(uid=workflows)
    def somebody_sets_cancelling_by_hand(self, uid: str) -> None:
        workflow = self.api.get(uid)
        if workflow is not None and state_of(workflow) not in TERMINAL:
            self.api.patch(uid, {"metadata": {}, "status": {"state": "Cancelling"}}, None)

    # --- controllers and servers -------------------------------------------------------------------

    @rule(uid=workflows, component=st.sampled_from(COMPONENTS))
    def a_component_sees_a_change(self, uid: str, component: str) -> None:
        self.api.catch_up(component, uid)

    @rule(uid=workflows, which=st.integers(0, 1), writes=st.sampled_from([9, 9, 1]))
    def a_controller_looks(self, uid: str, which: int, writes: int) -> None:
        self._look(uid, which, writes)

    def _look(self, uid: str, which: int, writes: int) -> bool:
        """Controller._look_at; it may die after some of its writes."""
        workflow = self.api.of(f"controller {which}", uid)
        if workflow is None:
            return False
        written = False
        for patch in self._decide(workflow).patches[:writes]:
            version = workflow["metadata"]["resourceVersion"]
            body = {**patch.body, "metadata": {**patch.body["metadata"], "resourceVersion": version}}
            try:
                workflow = self.api.patch(uid, body, Author.CONTROLLER)
            except ConflictError:
                break
            written = True
        return written

    def _decide(self, workflow: Raw) -> Decision:
        template = {"metadata": {"name": workflow["spec"]["templateRef"]["name"]}}
        return reconcile(workflow, {"metadata": {}}, template, SETTINGS, self.api.now, _render)

    @rule(which=st.integers(0, 1), at=st.integers(0, MACHINES - 1))
    def a_server_takes_its_turn(self, which: int, at: int) -> None:
        self._turn(which, at)

    def _turn(self, which: int, at: int) -> bool:
        """One turn of CommandStream.run."""
        stream = self.streams.get((which, at))
        if stream is None:
            return False
        views = [self.api.of(f"server {which}", uid) for uid in self.api.versions]
        mine = [w for w in views if w is not None and w["spec"]["hardwareRef"]["name"] == f"h{at}"]
        stream.view.see(mine)
        move = next_move(mine, stream.view, self.api.now, LONGEST)
        match move:
            case Stop(uid):
                stream.view.orphans.pop(uid, None)
                stream.view.stopped.add(uid)
                stream.wire.append(agent_model.StopWorkflow(uid))
            case Start(workflow) | ClaimAndSend(workflow):
                again = isinstance(move, Start)
                claimed = self._write(workflow, events.Reclaimed() if again else events.Dispatched())
                if claimed is None:
                    return False
                self._send(stream, claimed)
            case GiveBack(workflow):
                return self._write(workflow, events.GivenBack()) is not None
            case Recall():
                del self.streams[which, at]
                stream.open = False
                if self.agents[at].stream is stream:
                    self.an_agent_connects(which, at)
            case _:
                return False
        return True

    def _send(self, stream: Stream, workflow: Raw) -> None:
        uid = workflow["metadata"]["uid"]
        stream.view.sent(workflow, self.api.now)
        actions = tuple(
            agent_model.RenderedAction(a["id"], a["rendered"]["name"], a["rendered"]["image"])
            for a in workflow["status"]["actions"]
        )
        stream.wire.append(agent_model.StartWorkflow(agent_model.Workflow(uid, actions)))

    def _write(self, workflow: Raw, event: ServerEvent | events.Event) -> Raw | None:
        status = machine.apply(workflow, event, self.api.now, Author.SERVER)
        if status is None:
            return None
        try:
            return self.api.patch(workflow["metadata"]["uid"], status_patch(workflow, status), Author.SERVER)
        except ConflictError:
            return None

    def _take(self, which: int, uid: str, event: ServerEvent) -> None:
        """EventStore._take: on what is seen, then on what is."""
        for workflow in (self.api.of(f"server {which}", uid), self.api.get(uid)):
            if workflow is None:
                return
            if isinstance(event, events.Rejected):
                delay = rejection_delay(rejections(status_of(workflow)), 5, LONGEST, 0.5)
                event = dataclasses.replace(event, delay=delay)
            try:
                if self._write(workflow, event) is not None or _settled(state_of(workflow), event):
                    return
            except machine.UnknownActionError:
                continue

    def _hear(self, which: int, event: agent_model.Event) -> None:
        """WorkflowServer.take_event."""
        happened = to_machine(event)
        self._take(which, event.workflow_id, happened)
        for (server, _), stream in self.streams.items():
            at_work = isinstance(happened, events.ActionStarted | events.ActionSucceeded)
            if server == which and at_work and self._machine_of(event.workflow_id) == _:
                stream.view.runs([event.workflow_id])

    def _machine_of(self, uid: str) -> int:
        first = self.api.versions[uid][0]
        assert first is not None
        return int(first["spec"]["hardwareRef"]["name"][1:])

    @rule(which=st.integers(0, 1))
    def a_server_restarts(self, which: int) -> None:
        for key in [key for key in self.streams if key[0] == which]:
            self._break(self.streams.pop(key))
        self.api.list_anew(f"server {which}")

    def _break(self, stream: Stream) -> None:
        stream.open = False
        for agent in self.agents:
            if agent.stream is stream:
                agent.stream = None

    # --- machines -------------------------------------------------------------------

    @rule(which=st.integers(0, 1), at=st.integers(0, MACHINES - 1))
    def an_agent_connects(self, which: int, at: int) -> None:
        agent = self.agents[at]
        if agent.stream is not None:
            agent.stream.open = False
        self.streams[which, at] = agent.stream = Stream(says=agent.says)
        if agent.says:
            self._account(which, at, agent.held_workflows())

    def _account(self, which: int, at: int, holds: set[str]) -> None:
        """CommandStream._account."""
        view = self.streams[which, at].view
        view.runs(holds)
        for uid in self.api.versions:
            workflow = self.api.of(f"server {which}", uid)
            if self._machine_of(uid) != at:
                continue
            if workflow is None:
                if uid in holds:
                    view.orphans[uid] = f"d/{uid}"
            elif uid not in holds and state_of(workflow) in ("Running", "Cancelling"):
                self._take(which, uid, events.AgentLost())

    @rule(at=st.integers(0, MACHINES - 1))
    def a_stream_breaks_unseen(self, at: int) -> None:
        stream = self.agents[at].stream
        if stream is not None:
            self._break(stream)

    @rule(at=st.integers(0, MACHINES - 1))
    def a_command_arrives(self, at: int) -> None:
        self._receive(at)

    def _receive(self, at: int) -> bool:
        agent = self.agents[at]
        if agent.stream is None or not agent.stream.wire:
            return False
        agent.carry_out(agent.executor.handle(agent.stream.wire.pop(0)))
        return True

    @rule(at=st.integers(0, MACHINES - 1), which=st.integers(0, 1), fate=st.sampled_from(["ok", "ok", "again", "late"]))
    def an_agent_reports(self, at: int, which: int, fate: str) -> None:
        self._report(at, which, fate)

    def _report(self, at: int, which: int, fate: str) -> bool:
        agent = self.agents[at]
        if not agent.spool:
            return False
        if fate == "late":
            self.delayed.append(agent.spool[0])
            return True
        self._hear(which, agent.spool[0])
        if fate == "ok":
            agent.spool.pop(0)
        return True

    @precondition(lambda self: self.delayed)
    @rule(which=st.integers(0, 1))
    def a_late_copy_arrives(self, which: int) -> None:
        self._hear(which, self.delayed.pop())

    @rule(at=st.integers(0, MACHINES - 1), succeeds=st.booleans())
    def an_action_ends(self, at: int, succeeds: bool) -> None:
        self._end_action(at, succeeds=succeeds)

    def _end_action(self, at: int, *, succeeds: bool) -> bool:
        agent = self.agents[at]
        if agent.action is None:
            return False
        agent.end(succeeded=succeeds)
        return True

    @rule(at=st.integers(0, MACHINES - 1))
    def an_action_begins(self, at: int) -> None:
        self.agents[at].begin()

    @rule(at=st.integers(0, MACHINES - 1), action_lives=st.booleans())
    def an_agent_dies_and_begins_anew(self, at: int, action_lives: bool) -> None:
        agent = self.agents[at]
        if agent.stream is not None:
            self._break(agent.stream)
        agent.restart(action_lives=action_lives)

    @rule(at=st.integers(0, MACHINES - 1))
    def a_machine_reboots(self, at: int) -> None:
        old = self.agents[at]
        new = self.agents[at] = Agent(says=old.says)
        new.begun = old.begun
        if old.stream is not None:
            old.stream.open = False

    @rule(at=st.integers(0, MACHINES - 1))
    def an_action_reboots_its_machine(self, at: int) -> None:
        agent = self.agents[at]
        workflow = self.api.get(agent.executor.running) if agent.executor.running else None
        if agent.runs and not agent.lost and workflow is not None and guards.rebooting(workflow):
            self.a_machine_reboots(at)

    @rule(which=st.integers(0, 1), at=st.integers(0, MACHINES - 1), uid=workflows)
    def a_server_sees_an_agent_whose_machine_reboots(self, which: int, at: int, uid: str) -> None:
        """RebootWatch._say."""
        workflow, stream = self.api.of(f"server {which}", uid), self.streams.get((which, at))
        if stream is not None and workflow is not None and self._machine_of(uid) == at and guards.rebooting(workflow):
            self._take(which, uid, events.AgentSeen())
            stream.seen = True

    @rule(which=st.integers(0, 1), uid=workflows)
    def a_server_takes_an_agent_for_gone(self, which: int, uid: str) -> None:
        """RebootWatch._conclude. The agent has no server; or the server has not heard yet that another sees it."""
        workflow, now = self.api.of(f"server {which}", uid), self.api.get(uid)
        at = self._machine_of(uid)
        if workflow is None or now is None or (which, at) in self.streams or not guards.rebooting(workflow):
            return
        seen, stream = agent_seen(status_of(workflow)), self.agents[at].stream
        if stream is None:
            self._take(which, uid, events.AgentAway(30, seen))
        elif stream.seen and seen != agent_seen(status_of(now)):
            self._take(which, uid, events.AgentAway(30, seen))
            assert self.api.get(uid) is now, "another server sees the agent"

    # --- time -------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 6, 25, 100]))
    def time_passes(self, seconds: int) -> None:
        self.api.now += seconds

    @invariant()
    def nothing_is_left_by_an_end_state(self) -> None:
        for versions in self.api.versions.values():
            workflow = versions[-1]
            if workflow is not None and state_of(workflow) in TERMINAL:
                states = [a["state"] for a in workflow["status"].get("actions", ())]
                assert "Running" not in states, name_of(workflow)

    def teardown(self) -> None:
        """Nothing goes wrong any more: everything must come to rest."""
        self._rest()
        for uid in self.api.versions:
            self.somebody_deletes(uid)
        self._rest()
        for uid, versions in self.api.versions.items():
            assert versions[-1] is None, f"{uid} was deleted and stays, {versions[-1]}"

    def _rest(self) -> None:
        for component in COMPONENTS:
            self.api.list_anew(component)
        for event in self.delayed:
            self._hear(0, event)
        self.delayed.clear()
        self.streams.clear()
        for at in range(MACHINES):
            self.an_agent_connects(0, at)
        for _ in range(60):
            while self._busy():
                pass
            self.api.now += 30
        for uid, versions in self.api.versions.items():
            workflow = versions[-1]
            assert workflow is None or state_of(workflow) in TERMINAL, f"{uid} stays {state_of(workflow)}"
            assert workflow is None or not workflow["metadata"].get("finalizers"), f"{uid} keeps its finalizer"
        assert [a.action for a in self.agents] == [None] * MACHINES, "an agent runs something for ever"
        assert not any(a.spool for a in self.agents)

    def _busy(self) -> bool:
        did = False
        for uid in self.api.versions:
            did |= self._look(uid, 0, 9)
        for at in range(MACHINES):
            self._hear_of_the_gone(at)
            did |= self._turn(0, at) | self._receive(at)
            did |= self._report(at, 0, "ok") or self.agents[at].begin() or self._end_action(at, succeeds=True)
        for uid in self.api.versions:
            for component in COMPONENTS:
                did |= self.api.catch_up(component, uid)
        return did

    def _hear_of_the_gone(self, at: int) -> None:
        """Stream.gone."""
        for versions in self.api.versions.values():
            last = versions[-2] if versions[-1] is None else None
            if last is not None:
                self.streams[0, at].view.forget(last)


def _render(template: Raw, _hardware: Raw, _params: object) -> RenderedTemplate:
    count, *reboots = template["metadata"]["name"].split()
    actions: list[Raw] = [{"name": f"n{i}", "image": "image"} for i in range(int(count))]
    actions[-1]["reboots"] = bool(reboots)
    return RenderedTemplate(actions)


TestJourneys = Journeys.TestCase
TestJourneys.settings = settings(max_examples=25, stateful_step_count=50, deadline=None)

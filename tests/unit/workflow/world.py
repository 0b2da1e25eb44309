"""A small world in which everything can happen: the pure cores, an API, a network and a clock, as one value.

`State` is all of it: what the API holds, what each server's stream knows, what the agent runs and still has to report,
what is on its way. `steps` gives every state that may follow, one component doing one thing; `test_model` walks through
all of them. The cores (`reconcile`, `next_move`, `apply`, `Executor`) are the real ones. Between them stand the few
lines of the shells that decide something, written again as pure functions; each names the method that it mirrors.

What makes the number of states finite, and why nothing is lost by it:

- Times. All timestamps are one constant, and a component may look at its clock before (`NOW`) or after (`LATE`) every
  deadline, at any moment. So each timer may fire at any time.
- Lag. A component may see each Workflow as it is or as it was up to `LAG` versions ago; a stream does not go back.
  Controllers keep nothing between two looks, so one that may see any version and may die between any two writes is any
  number of them.
- What a server says that it sees of the agent has a time; three are enough to tell it from those that lag. Claims have
  one, too, of four: those that lag, and one that another server has yet to take back.
- Servers are interchangeable: they are kept sorted. The agent is connected to the one whose stream is `live`.
- Faults (a message lost or repeated, a stream broken, a crash, a reboot) are counted; `faults` are left.
"""

from __future__ import annotations

import copy
import dataclasses
from functools import cache
from typing import Any, NamedTuple

import orjson

from tests.unit.workflow.table import TERMINAL, reach
from tink.agent import model as agent_model
from tink.agent.executor import Effect, EndWorkflow, Executor, Publish, RunAction, StopAction
from tink.api.v1alpha2 import Raw
from tink.controller import ControllerSettings
from tink.controller import reconcile as controller
from tink.kubeapi.apiserver.patch import merge
from tink.server import decision
from tink.server.decision import AgentView
from tink.server.events import ServerEvent, _settled
from tink.template import RenderedTemplate
from tink.workflow import events, machine, status
from tink.workflow.table import Author

NOW = 1_800_000_000.0
LATE = NOW + 1_000_000
STAMP = "2027-01-15T08:00:00.000Z"
ACTIONS = 2
LAG = 2
GONE = -1
CLAIMS = 4
SETTINGS = ControllerSettings(release_after=0.0)  # the controller looks when it likes: that is any time later, too
DELAY = 10.0
LONGEST = 300.0
"""Seconds that a rejected Workflow waits, and could wait at most."""
REBOOTS = "reboots"
"""The name of the Template whose last action reboots the machine."""


class ViolationError(AssertionError):
    """Something happened that must not."""


# --- values that are compared by number -------------------------------------------------------------------


class Interned:
    """Values by number, equal ones by the same; what is taken is a copy."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def put(self, value: Any) -> int:
        key = frozen(value)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._values)
            self._values.append(copy.deepcopy(value))
        return number

    def take(self, number: int) -> Any:
        return copy.deepcopy(self._values[number])

    def see(self, number: int) -> Any:
        """The value itself: not to be changed."""
        return self._values[number]


def frozen(value: Any) -> Any:
    """Something hashable that is equal for equal values, whatever fields their classes have."""
    if isinstance(value, dict):
        return tuple(sorted((str(k), frozen(v)) for k, v in value.items()))
    if isinstance(value, set | frozenset):
        return tuple(sorted(map(str, value)))
    if isinstance(value, list | tuple):
        return tuple(frozen(v) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return (type(value).__name__, *(frozen(getattr(value, f.name)) for f in fields))
    if hasattr(value, "__dict__") and not isinstance(value, str | int | float):
        return (type(value).__name__, frozen(vars(value)))
    return value


OBJECTS, VIEWS, EXECUTORS, EVENTS = Interned(), Interned(), Interned(), Interned()
event_number = cache(EVENTS.put)


# --- the state of the world -------------------------------------------------------------------


class Stream(NamedTuple):
    """The view that one server has of the agent. `live`: the agent still listens; `wire` is on its way to it."""

    view: int
    live: bool
    lag: tuple[int, ...]  # by how many versions of each Workflow the server may be behind at most
    holds: tuple[str, ...] | None = None  # what the agent reported, until it is processed
    missing: tuple[int, ...] = ()  # the Workflows that were under way then, and not held
    wire: tuple[tuple[str, int], ...] = ()
    claimed: int = -1  # the Workflow that was claimed and is still to be sent
    claim: str = ""  # which claim that was, if no other server can have sent it since
    given: bool = False  # whether the agent may have had it before
    seen: bool = False  # it has recorded that the agent of a rebooting machine is connected


class Agent(NamedTuple):
    """`action`: what the agent is at, as (Workflow, index); `runs`: it has truly begun; `lost`: it ran when the agent
    died, and its end is unknown. `says`: what it holds, when it connects. The last two are what a god would know."""

    executor: int
    spool: tuple[int, ...] = ()
    action: tuple[int, int] | None = None
    runs: bool = False
    lost: bool = False
    stopping: bool = False
    says: bool = True
    begun: frozenset[tuple[int, int]] = frozenset()
    done: frozenset[tuple[int, int]] = frozenset()


class State(NamedTuple):
    """`api`: of each Workflow the versions that may be seen, the newest last. `said`: the Workflows that ended by
    their agent's word; `sent`: those that it may have, as far as anybody who lives can know."""

    api: tuple[tuple[int, ...], ...]
    servers: tuple[Stream | None, ...]
    agent: Agent
    ghosts: tuple[int, ...] = ()
    faults: int = 0
    said: frozenset[int] = frozenset()
    sent: frozenset[int] = frozenset()


Step = tuple[str, State]


def uid(workflow: int) -> str:
    return f"u{workflow}"


def number(workflow_id: str) -> int:
    return int(workflow_id[1:])


@cache
def action_ids(workflow: int) -> tuple[str, ...]:
    return tuple(controller.action_id(uid(workflow), index) for index in range(ACTIONS))


@cache
def start_command(workflow: int) -> agent_model.StartWorkflow:
    actions = tuple(
        agent_model.RenderedAction(action, f"n{i}", "image") for i, action in enumerate(action_ids(workflow))
    )
    return agent_model.StartWorkflow(agent_model.Workflow(uid(workflow), actions))


def first(workflows: int, servers: int, faults: int, *, reboots: bool = False, says: bool = True) -> State:
    """New Workflows that no server has seen; for an agent that reports what it holds, and one that does not."""
    created = []
    for index in range(workflows):
        metadata = {"name": f"w{index}", "namespace": "default", "uid": uid(index), "creationTimestamp": STAMP}
        spec = {"hardwareRef": {"name": "h"}, "templateRef": {"name": REBOOTS if reboots else "t"}, "timeout": 60}
        created.append((OBJECTS.put({"metadata": metadata, "spec": spec}),))
    return State(tuple(created), (None,) * servers, Agent(EXECUTORS.put(Executor()), says=says), (), faults)


# --- the API -------------------------------------------------------------------


def obj_of(versions: tuple[int, ...], age: int = 0) -> Raw:
    """The Workflow as it was `age` versions ago; a shared object but for its metadata."""
    obj: Raw = OBJECTS.see(versions[-1 - age])
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(-age)}}


def state_of(version: int) -> str | None:
    return None if version == GONE else OBJECTS.see(version).get("status", {}).get("state")


class ConflictError(Exception):
    """The resourceVersion of a write is not that of the object."""


def write(versions: tuple[int, ...], body: Raw, author: Author | None) -> tuple[int, ...]:
    """The versions after a merge patch; without an author, a user's. Raises ConflictError, and ViolationError if the
    patch breaks the law."""
    if versions[-1] == GONE or body["metadata"].get("resourceVersion", "0") != "0":
        raise ConflictError
    packed = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    after = _patched(versions[-1], packed, author)
    return versions if after == versions[-1] else (*versions, after)[-1 - LAG :]


@cache
def _patched(version: int, packed: bytes, author: Author | None) -> int:
    before: Raw = OBJECTS.see(version)
    after: Raw = merge(copy.deepcopy(before), orjson.loads(packed))
    after["metadata"].pop("resourceVersion", None)
    _plain(after.get("status", {}))
    if author is not None:
        lawful(before.get("status", {}), after.get("status", {}), author)
    if after["metadata"].get("deletionTimestamp") and not after["metadata"].get("finalizers"):
        return GONE
    return OBJECTS.put(after)


def _plain(value: Any) -> None:
    """Make all moments one, and all counts of rejections at most one."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("lastTransitioned", "startedAt", "lastTransitionTime"):
                value[key] = STAMP
            elif key == "dispatchAfter" and inner:
                value[key] = status.timestamp(NOW + DELAY)
            elif key == "rejections" and inner:
                value[key] = 1
            else:
                _plain(inner)
    elif isinstance(value, list):
        for inner in value:
            _plain(inner)


def lawful(before: Raw, after: Raw, author: Author) -> None:
    """Raise ViolationError unless arrows of `author` lead from one status to the other."""
    old, new = before.get("state"), after.get("state")
    if old in TERMINAL and before != after:
        raise ViolationError(f"the end state {old} was changed, to {after}")
    if new != old and new not in reach(old, author):
        raise ViolationError(f"no arrow of the {author} leads from {old} to {new}")


# --- the controller: Controller._look_at and _write -------------------------------------------------------------------


def render(template: Raw, _hardware: Raw, _params: object) -> RenderedTemplate:
    actions: list[Raw] = [{"name": f"n{i}", "image": "image"} for i in range(ACTIONS)]
    if template["metadata"]["name"] == REBOOTS:
        actions[-1]["reboots"] = True
    return RenderedTemplate(actions)


@cache
def decide(version: int, now: float) -> tuple[controller.Patch, ...]:
    workflow = obj_of((version,))
    template = {"metadata": {"name": workflow["spec"]["templateRef"]["name"]}}
    return controller.reconcile(workflow, {"metadata": {}}, template, SETTINGS, now, render).patches


@cache
def controlled(versions: tuple[int, ...], age: int, now: float) -> tuple[tuple[int, ...], ...]:
    """The versions after each of the controller's writes: it may die after any of them."""
    written = []
    patches = decide(versions[-1 - age], now)
    resource_version = str(-age)
    for patch in patches:
        body = {**patch.body, "metadata": {**patch.body["metadata"], "resourceVersion": resource_version}}
        try:
            versions = write(versions, body, Author.CONTROLLER)
        except ConflictError:
            break
        resource_version = "0"
        written.append(versions)
    return tuple(written)


# --- the server: CommandStream.run, EventStore -------------------------------------------------------------------


@cache
def look(seen: tuple[int, ...], view: int, now: float) -> tuple[decision.Move, int]:
    """Yield the next steps of a stream, with its view of the agent after each. CommandStream.run."""
    knows: AgentView = VIEWS.take(view)
    workflows = [obj_of((version,)) for version in seen if version != GONE]
    knows.see(workflows)
    return decision.next_move(workflows, knows, now, LONGEST), VIEWS.put(knows)


@cache
def stored(versions: tuple[int, ...], age: int, event: ServerEvent) -> tuple[int, ...]:
    """The versions after an event that a server applies to what it sees. EventStore._take."""
    if isinstance(event, events.Rejected):
        event = dataclasses.replace(event, delay=DELAY)
    for seen, fresh in ((age, False), (0, True)):
        if versions[-1 - seen] == GONE:
            return versions
        workflow = obj_of(versions, seen)
        try:
            after = machine.apply(workflow, event, NOW + _stamps(workflow), Author.SERVER)
        except machine.UnknownActionError:
            continue
        if after is None:
            if _settled(status.state_of(workflow), event):
                return versions
            continue
        try:
            return write(versions, status.status_patch(workflow, after), Author.SERVER)
        except ConflictError:
            if fresh:
                raise
    return versions


def _stamps(workflow: Raw) -> int:
    """Return a second that differs from the last one in which a server recorded that it sees the agent."""
    at = status.parse_timestamp(status.agent_seen(status.status_of(workflow)))
    return 0 if at is None else int(at - NOW + 1) % (LAG + 1)


def _claims(workflow: Raw) -> int:
    """Another second than that of the last claim."""
    at = status.parse_timestamp(status.claim_of(status.status_of(workflow)))
    return 0 if at is None else int(at - NOW + 1) % CLAIMS


@cache
def stored_once(versions: tuple[int, ...], age: int, event: events.Event) -> tuple[int, ...] | None:
    """The versions after one attempt, None if it can't be had. EventStore.claim, reclaim and give_back."""
    workflow = obj_of(versions, age)
    after = machine.apply(workflow, event, NOW + _claims(workflow), Author.SERVER)
    if after is None:
        return None
    try:
        return write(versions, status.status_patch(workflow, after), Author.SERVER)
    except ConflictError:
        return None


@cache
def view_after(view: int, what: str, workflow: int, last: int = GONE) -> int:
    """Return the view of a stream after a command or a change. `last`: the Workflow before its deletion."""
    knows: AgentView = VIEWS.take(view)
    match what:
        case "start":  # CommandStream._send
            knows.sent({"metadata": {"uid": uid(workflow)}}, NOW)
        case "stop":  # CommandStream._carry_out
            knows.orphans.pop(uid(workflow), None)
            knows.stopped.add(uid(workflow))
        case "heard":  # Stream.heard
            knows.runs([uid(workflow)])
        case "orphan":  # CommandStream._account
            knows.orphans[uid(workflow)] = f"default/w{workflow}"
        case "gone":  # Stream.gone
            metadata = {"uid": uid(workflow), "name": f"w{workflow}"}
            knows.forget(OBJECTS.see(last) if last != GONE else {"metadata": metadata, "status": {"state": "Canceled"}})
    return VIEWS.put(knows)


# --- the agent: Agent._carry_out -------------------------------------------------------------------


@cache
def executed(executor: int, what: str, workflow: int = -1) -> tuple[int, tuple[Effect, ...]]:
    """The executor after a command or an action's end, and what it wants done."""
    it: Executor = EXECUTORS.take(executor)
    match what:
        case "start":
            effects = it.handle(start_command(workflow))
        case "stop":
            effects = it.handle(agent_model.StopWorkflow(uid(workflow)))
        case "begins":
            it.action_begins()
            effects = []
        case "restarts":  # Agent.prepare
            it = Executor(it.progress)
            effects = it.resume()
        case _:
            effects = it.action_ended(agent_model.RunResult(0 if what == "succeeds" else 1, "R", "m"))
    return EXECUTORS.put(it), tuple(effects)


def carried_out(state: State, what: str, workflow: int = -1) -> State:
    """The world after what the executor makes of it. Raises ViolationError."""
    executor, effects = executed(state.agent.executor, what, workflow)
    agent = state.agent._replace(executor=executor)
    for effect in effects:
        match effect:
            case Publish(event):
                agent = agent._replace(spool=_appended(agent.spool, event))
            case RunAction():
                agent = _taken_up(agent, effect)
            case StopAction():
                agent = agent._replace(stopping=True)
            case EndWorkflow():
                pass
    return state._replace(agent=agent)


def _appended(spool: tuple[int, ...], event: agent_model.Event) -> tuple[int, ...]:
    """MemorySpool.append: a rejection that waits already is not queued again."""
    if isinstance(event, agent_model.WorkflowRejected):
        for queued in map(EVENTS.see, spool):
            if isinstance(queued, agent_model.WorkflowRejected) and (queued.workflow_id, queued.reason) == (
                event.workflow_id,
                event.reason,
            ):
                return spool
    return (*spool, event_number(event))


def _taken_up(agent: Agent, effect: RunAction) -> Agent:
    """One that is resumed is asked back; any other will begin."""
    workflow = number(effect.workflow_id)
    action = (workflow, action_ids(workflow).index(effect.action.id))
    if agent.action not in (None, action):
        raise ViolationError(f"action {action} begins while {agent.action} runs")
    runs, lost = effect.resumed and agent.runs, effect.resumed and agent.lost
    return agent._replace(action=action, stopping=False, runs=runs, lost=lost)


def begun(state: State) -> State:
    """The action's first step. Agent._attempt."""
    agent = state.agent
    assert agent.action is not None
    workflow, index = agent.action
    if agent.action in agent.begun:
        raise ViolationError(f"action {agent.action} begins a second time")
    if index and (workflow, index - 1) not in agent.done:
        raise ViolationError(f"action {agent.action} begins before the one before it has succeeded")
    if workflow in state.said:
        raise ViolationError(f"action {agent.action} begins although the agent had said that its Workflow is over")
    executor, _ = executed(agent.executor, "begins")
    return state._replace(agent=agent._replace(executor=executor, runs=True, begun=agent.begun | {agent.action}))


def to_machine(event: agent_model.Event) -> events.AgentEvent:
    """wire.event_to_wire, then wire.event_of."""
    match event:
        case agent_model.ActionStarted(_, action):
            return events.ActionStarted(action)
        case agent_model.ActionSucceeded(_, action):
            return events.ActionSucceeded(action)
        case agent_model.ActionFailed(_, action, reason, message):
            return events.ActionFailed(action, reason, message)
        case agent_model.WorkflowRejected(_, reason, message):
            return events.Rejected(reason, message)

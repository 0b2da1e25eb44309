"""What agents may do next in a `world`, and what may go wrong with them, their machines and the network."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tests.unit.workflow import world
from tests.unit.workflow.server_moves import ended, given, reboots, spoken
from tests.unit.workflow.states import live_of, replaced, spend, with_stream, with_versions
from tests.unit.workflow.world import (
    EVENTS,
    EXECUTORS,
    GONE,
    VIEWS,
    Agent,
    State,
    Step,
    Stream,
    state_of,
    stored,
    uid,
    view_after,
)
from tink.agent.connection.transport import reorderable
from tink.agent.executor import Executor
from tink.server.dispatch.decision import AgentView
from tink.workflow import events

# --- the agent -------------------------------------------------------------------


def of_agent(state: State) -> Iterator[Step]:
    agent = state.agent
    live = live_of(state)
    if live is None:
        tried = set()
        for index, stream in enumerate(state.servers):
            if stream not in tried:
                tried.add(stream)
                for ages in product(*(range(min(len(v), world.LAG + 1)) for v in state.api)):
                    yield f"agent connects to server {index}, {ages} behind", connected(state, index, ages)
    else:
        stream = state.servers[live]
        assert stream is not None
        if stream.wire:
            yield f"agent receives {stream.wire[0]}", received(state, live, stream)
    if agent.action is not None:
        if may_begin(state):
            yield "action begins", world.begun(state)
        if agent.stopping:
            yield "action is stopped", action_ended(state, succeeded=False)
        else:
            yield "action fails", action_ended(state, succeeded=False)
            if agent.runs and not agent.lost:
                yield "action succeeds", action_ended(state, succeeded=True)
        if at_its_reboot(state):
            yield "action reboots the machine", rebooted_by_its_action(state)
    if agent.spool:
        workflow = world.number(EVENTS.see(agent.spool[0]).workflow_id)
        known = state.servers[live] if live is not None else None
        most = known.lag[workflow] if known is not None else world.LAG
        for age in range(min(len(state.api[workflow]), most + 1)):
            yield f"agent reports {name_of(agent.spool[0])}, {age} behind", published(state, age)
            for event in ahead(agent.spool):
                yield f"agent reports {name_of(event)} ahead, {age} behind", stored_event(state, event, age)


def ahead(spool: tuple[int, ...]) -> Iterator[int]:
    """Transport._send_ahead: what may be stored before the oldest event is. It stays where it is, for nobody knows
    whether the answer comes; so it may be sent again."""
    oldest, *others = map(EVENTS.see, spool)
    for number, event in zip(spool[1:], others, strict=True):
        if not reorderable(oldest, event):
            return
        yield number


def may_begin(state: State) -> bool:
    """Agent._start_is_acknowledged: before the first action the server has heard of everything.

    The last one waits for that, too, but only for a while. Here that while is for ever if it reboots the machine, which
    is a success only to a server that knows of it, and no time at all if it does not.
    """
    agent = state.agent
    if agent.action is None or agent.runs or agent.lost or agent.stopping:
        return False
    workflow, index = agent.action
    pending = any(EVENTS.see(event).workflow_id == uid(workflow) for event in agent.spool)
    return not pending or (index > 0 and not would_reboot(state, agent.action))


def at_its_reboot(state: State) -> bool:
    """Whether the agent runs an action that reboots the machine."""
    agent = state.agent
    return agent.action is not None and agent.runs and not agent.lost and would_reboot(state, agent.action)


def would_reboot(state: State, action: tuple[int, int]) -> bool:
    """Whether an action is one that reboots the machine."""
    workflow, index = action
    last = next((version for version in reversed(state.api[workflow]) if version != GONE), GONE)
    return index == world.ACTIONS - 1 and reboots(last)


def rebooted_by_its_action(state: State) -> State:
    agent = state.agent
    assert agent.action is not None
    return rebooted(state._replace(agent=agent._replace(done=agent.done | {agent.action})))


def connected(state: State, index: int, ages: tuple[int, ...]) -> State:
    """AgentStreams._open: a new stream takes the place of the older. CommandStream._not_held."""
    older = state.servers[index]
    if older is not None:
        state = ended(state, index, older)
    if not state.agent.says:
        return with_stream(state, index, Stream(VIEWS.put(AgentView()), True, ages))
    holds = held(state.agent)
    under_way = (
        workflow
        for workflow, (versions, age) in enumerate(zip(state.api, ages, strict=True))
        if uid(workflow) not in holds and state_of(versions[-1 - age]) in ("Running", "Cancelling")
    )
    return with_stream(state, index, Stream(VIEWS.put(AgentView(says=True)), True, ages, holds, tuple(under_way)))


def held(agent: Agent) -> tuple[str, ...]:
    """Agent.held_workflows."""
    executor: Executor = EXECUTORS.see(agent.executor)
    running = {executor.running} if executor.running else set()
    return tuple(sorted(running | {EVENTS.see(event).workflow_id for event in agent.spool}))


def received(state: State, index: int, stream: Stream) -> State:
    kind, workflow = stream.wire[0]
    state = with_stream(state, index, stream._replace(wire=stream.wire[1:]))
    return world.carried_out(state, kind, workflow)


def action_ended(state: State, *, succeeded: bool) -> State:
    agent = state.agent
    assert agent.action is not None
    done = agent.done | {agent.action} if succeeded else agent.done
    state = state._replace(agent=agent._replace(action=None, runs=False, lost=False, stopping=False, done=done))
    return world.carried_out(state, "succeeds" if succeeded else "fails")


def name_of(event: int) -> str:
    value = EVENTS.see(event)
    details = getattr(value, "reason", "")
    action = getattr(value, "action_id", "")
    if action:
        workflow = world.number(value.workflow_id)
        details = f"a{world.action_ids(workflow).index(action)} {details}"
    return f"{type(value).__name__} w{value.workflow_id[1:]} {details}".strip()


def stored_event(state: State, event: int, age: int) -> State:
    """WorkflowServer.take_event, at the server to which the agent is connected."""
    value = EVENTS.see(event)
    workflow = world.number(value.workflow_id)
    versions = state.api[workflow]
    if versions[-1] == GONE:
        return state
    happened = world.to_machine(value)
    after = stored(versions, age, happened)
    state = with_versions(spoken(state, workflow, after, name_of(event)), workflow, after)
    if state_of(after[-1]) == "Pending" and after != versions:  # rejected
        state = state._replace(sent=state.sent - {workflow})
    live = live_of(state)
    if live is None:
        return state
    stream = state.servers[live]
    assert stream is not None
    view = stream.view
    if isinstance(happened, events.ActionStarted | events.ActionSucceeded):
        view = view_after(view, "heard", workflow)
    # What the server has read or written it sees, too. WorkflowIndex.refresh.
    lag = 0 if after != versions else min(stream.lag[workflow], age)
    return with_stream(state, live, stream._replace(view=view, lag=replaced(stream.lag, workflow, lag)))


def published(state: State, age: int) -> State:
    """The oldest event is stored and acknowledged."""
    state = stored_event(state, state.agent.spool[0], age)
    return state._replace(agent=state.agent._replace(spool=state.agent.spool[1:]))


# --- what goes wrong -------------------------------------------------------------------


def of_network(state: State) -> Iterator[Step]:
    for index, event in enumerate(state.ghosts):
        rest = state.ghosts[:index] + state.ghosts[index + 1 :]
        yield f"a late copy of {name_of(event)} arrives", stored_event(state._replace(ghosts=rest), event, 0)
    if not state.faults:
        return
    spent = spend(state)
    live = live_of(state)
    if live is not None:
        stream = state.servers[live]
        assert stream is not None
        yield "the stream breaks, the server does not see it", disconnected(spent)
        lost = given(spent, stream.claimed) if stream.claimed >= 0 else spent
        yield "the server crashes", with_stream(lost, live, None)
        if stream.claimed >= 0:
            # What was written is not taken back: nobody knows that it did not arrive. CommandStream._dispatch.
            broken = with_stream(lost, live, stream._replace(claimed=-1, claim="", given=False))
            yield (
                f"w{stream.claimed} arrives as the stream breaks",
                world.carried_out(disconnected(broken), "start", stream.claimed),
            )
    if state.agent.spool:
        event = state.agent.spool[0]
        yield f"a copy of {name_of(event)} is delayed", spent._replace(ghosts=tuple(sorted((*state.ghosts, event))))
    yield "the machine reboots", rebooted(spent)
    yield "the agent dies, its action with it", restarted(spent, lost=True)
    if state.agent.runs:
        yield "the agent dies, its action lives", restarted(spent, lost=False)


def restarted(state: State, *, lost: bool) -> State:
    """The agent's process begins anew with its journal. Agent.prepare."""
    agent = state.agent
    state = disconnected(state)._replace(agent=agent._replace(lost=agent.runs and (lost or agent.lost)))
    return world.carried_out(state, "restarts")


def disconnected(state: State) -> State:
    """The agent's end of the stream is gone; the server does not see it."""
    live = live_of(state)
    if live is None:
        return state
    stream = state.servers[live]
    assert stream is not None
    return with_stream(state, live, stream._replace(live=False, wire=()))


def rebooted(state: State) -> State:
    """Nothing is left at the machine. A reboot takes longer than any call that the agent still had under way."""
    agent = state.agent
    fresh = Agent(EXECUTORS.put(Executor()), says=agent.says, begun=agent.begun, done=agent.done)
    return disconnected(state)._replace(agent=fresh, ghosts=())

"""Possible next events in a `world`: `steps` yields every state that may follow.

Users, controllers and servers; then the agents, and what may go wrong with them, their machines and the network.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tests.unit.workflow import world
from tests.unit.workflow.table import TERMINAL
from tests.unit.workflow.world import (
    EVENTS,
    EXECUTORS,
    GONE,
    LATE,
    NOW,
    OBJECTS,
    VIEWS,
    Agent,
    State,
    Step,
    Stream,
    ViolationError,
    controlled,
    look,
    state_of,
    stored,
    stored_once,
    uid,
    view_after,
)
from tink.agent.connection import reorderable
from tink.agent.executor import Executor
from tink.server.decision import AgentView, ClaimAndSend, GiveBack, Recall, Start, Stop
from tink.workflow import events, guards, status

CLOCKS = ((NOW, ""), (LATE, ", late"))


def steps(state: State) -> Iterator[Step]:
    """Every state that may follow, with what leads there. Raises ViolationError."""
    yield from of_user(state)
    yield from of_controllers(state)
    for index, stream in enumerate(state.servers):
        if stream is not None:
            yield from of_server(state, index, stream)
    yield from of_waiting(state)
    yield from of_agent(state)
    yield from of_network(state)


# --- helpers of all -------------------------------------------------------------------


def with_versions(state: State, workflow: int, versions: tuple[int, ...]) -> State:
    """After a write to a Workflow."""
    if versions == state.api[workflow]:
        return state
    servers = tuple(
        s and s._replace(lag=replaced(s.lag, workflow, min(s.lag[workflow] + 1, world.LAG))) for s in state.servers
    )
    api = (*state.api[:workflow], versions, *state.api[workflow + 1 :])
    return state._replace(api=api, servers=servers)


def replaced(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


def with_stream(state: State, index: int, stream: Stream | None) -> State:
    return state._replace(servers=(*state.servers[:index], stream, *state.servers[index + 1 :]))


def sorted_servers(state: State) -> State:
    """Servers are alike: only what they know tells them apart."""
    return state._replace(servers=tuple(sorted(state.servers, key=order)))


def order(stream: Stream | None) -> tuple[bool, ...] | tuple[bool, bool, Stream]:
    if stream is None:
        return (False,)
    return (True, stream.holds is None, stream._replace(holds=stream.holds or ()))


def live_of(state: State) -> int | None:
    """The server to which the agent is connected."""
    return next((i for i, s in enumerate(state.servers) if s is not None and s.live), None)


def spend(state: State) -> State:
    return state._replace(faults=state.faults - 1)


# --- the user, the controllers -------------------------------------------------------------------


def of_user(state: State) -> Iterator[Step]:
    yield from deletions(state)
    if state.faults:  # a state that is written by hand is one of the things that do not happen all the time
        yield from cancellations(spend(state))


def deletions(state: State) -> Iterator[Step]:
    for workflow, versions in enumerate(state.api):
        if versions[-1] != GONE and not OBJECTS.see(versions[-1])["metadata"].get("deletionTimestamp"):
            body = {"metadata": {"deletionTimestamp": world.STAMP}}
            yield f"user deletes w{workflow}", with_versions(state, workflow, world.write(versions, body, None))


def cancellations(state: State) -> Iterator[Step]:
    """The state, written by hand. What has ended the API keeps as it is."""
    for workflow, versions in enumerate(state.api):
        if versions[-1] != GONE and state_of(versions[-1]) not in TERMINAL | {"Cancelling"}:
            body = {"metadata": {}, "status": {"state": "Cancelling"}}
            after = world.write(versions, body, None)
            yield f"user sets w{workflow} to Cancelling", with_versions(state, workflow, after)


def of_controllers(state: State) -> Iterator[Step]:
    for workflow, versions in enumerate(state.api):
        if versions[-1] == GONE:
            continue
        for age, (now, when) in product(range(len(versions)), CLOCKS):
            for after in controlled(versions, age, now):
                if now == NOW:
                    not_at_work(state, workflow, after)
                yield f"controller looks at w{workflow}, {age} behind{when}", with_versions(state, workflow, after)


def not_at_work(state: State, workflow: int, after: tuple[int, ...]) -> None:
    """Raise ViolationError if a Workflow that the agent runs would end without a stop command."""
    agent = state.agent
    if state_of(after[-1]) != "Canceled" or state_of(state.api[workflow][-1]) != "Cancelling":
        return
    if workflow in state.sent and agent.action is not None and agent.action[0] == workflow:
        raise ViolationError(f"w{workflow} is Canceled at once while the agent runs {agent.action}")


# --- a server -------------------------------------------------------------------


def of_server(state: State, index: int, stream: Stream) -> Iterator[Step]:
    """One stream's next step."""
    if not stream.live:
        yield f"server {index} ends its dead stream", ended(state, index, stream)
    yield from of_sight(state, index, stream)
    if stream.holds is not None:
        for ages in all_ages(state, stream):
            yield f"server {index}, {ages} behind, hears {stream.holds}", accounted(state, index, stream, ages)
        return
    if stream.claimed >= 0:
        yield f"server {index} sends w{stream.claimed}", commanded(state, index, stream, "start", stream.claimed)
        return
    known = VIEWS.see(stream.view)
    for workflow, versions in enumerate(state.api):
        if versions[-1] == GONE and knows_of(known, workflow):
            yield f"server {index} hears that w{workflow} is gone", forgotten(state, index, stream, workflow)
    seen_before = set()
    for ages in all_ages(state, stream):
        seen = tuple(versions[-1 - age] for versions, age in zip(state.api, ages, strict=True))
        for now, when in CLOCKS:
            move, view = look(seen, stream.view, now)
            after = moved(state, index, stream._replace(view=view, lag=ages), move)
            if after is not None and after not in seen_before:
                seen_before.add(after)
                yield f"server {index}, {ages} behind{when}: {describe(move)}", after


def of_sight(state: State, index: int, stream: Stream) -> Iterator[Step]:
    """RebootWatch.opened, of the server with the agent: in time, for every waiting server starts again then."""
    for workflow, versions in enumerate(state.api):
        if stream.live and not stream.seen and rebooting(versions[-1]):
            after = stored(versions, 0, events.AgentSeen())
            seen = with_stream(state, index, stream._replace(seen=True))
            yield f"server {index} says that it sees the agent", with_versions(seen, workflow, after)


def of_waiting(state: State) -> Iterator[Step]:
    """RebootWatch._conclude, of a server without the agent, whose time is up."""
    live = live_of(state)
    stream = state.servers[live] if live is not None else None
    for workflow, versions in enumerate(state.api):
        for age, version in enumerate(reversed(versions)):
            if not rebooting(version):
                continue
            away = events.AgentAway(30, sight(version))
            after = stored(versions, age, away)
            if stream is None:
                yield f"a server, {age} behind, takes the agent for gone", with_versions(state, workflow, after)
            elif stream.seen and sight(version) != sight(versions[-1]) and after != versions:
                # If it knew, it would have restarted.
                raise ViolationError(f"w{workflow}: the agent is taken for gone although another server has seen it")


def rebooting(version: int) -> bool:
    return version != GONE and guards.rebooting(OBJECTS.see(version))


def reboots(version: int) -> bool:
    return version != GONE and OBJECTS.see(version)["spec"]["templateRef"]["name"] == world.REBOOTS


def sight(version: int) -> str:
    """When an agent was last seen."""
    return "" if version == GONE else status.agent_seen(OBJECTS.see(version).get("status", {}))


def all_ages(state: State, stream: Stream) -> Iterator[tuple[int, ...]]:
    """How far behind a stream may be with each Workflow."""
    return product(*(range(min(len(v), lag + 1)) for v, lag in zip(state.api, stream.lag, strict=True)))


def accounted(state: State, index: int, stream: Stream, ages: tuple[int, ...]) -> State:
    """CommandStream._account."""
    holds = stream.holds or ()
    view = stream.view
    for held_uid in holds:
        view = view_after(view, "heard", world.number(held_uid))
    for workflow, (versions, age) in enumerate(zip(state.api, ages, strict=True)):
        if versions[-1 - age] == GONE and uid(workflow) in holds:
            view = view_after(view, "orphan", workflow)
        if workflow in stream.missing:
            after = stored(versions, age, events.AgentLost())
            state = spoken(state, workflow, after, "AgentLost")
            went = reboots(versions[-1]) and (workflow, world.ACTIONS - 1) in state.agent.done
            if went and after != versions and state_of(after[-1]) == "Failed":
                raise ViolationError(f"w{workflow} failed, although its machine did what its last action wanted")
            state = with_versions(state, workflow, after)
            ages = replaced(ages, workflow, 0)
    return with_stream(state, index, stream._replace(view=view, lag=ages, holds=None, missing=()))


def spoken(state: State, workflow: int, after: tuple[int, ...], why: str) -> State:
    """A Workflow has got another version by the agent's word: has that ended it?"""
    if state_of(after[-1]) not in TERMINAL or state_of(state.api[workflow][-1]) in TERMINAL:
        return state
    if state.agent.action is not None and state.agent.action[0] == workflow:
        raise ViolationError(f"w{workflow} ends by {why} while the agent runs {state.agent.action}")
    return state._replace(said=state.said | {workflow})


def describe(move: object) -> str:
    return type(move).__name__ + (f" {move.uid}" if isinstance(move, Stop) else "")


def knows_of(known: AgentView, workflow: int) -> bool:
    return any(uid(workflow) in uids for uids in (known.started, known.given, known.stopped))


def moved(state: State, index: int, stream: Stream, move: object) -> State | None:
    """After one turn of CommandStream.run; None if there was nothing to do."""
    match move:
        case Stop(stopped_uid):
            return commanded(state, index, stream, "stop", world.number(stopped_uid))
        case Start(workflow):
            # The claim's maker may have sent it. CommandStream._send_again.
            claimed = claim(state, index, stream, workflow, events.Reclaimed())
            return claimed and given(claimed, world.number(workflow["metadata"]["uid"]))
        case GiveBack(workflow):
            number = world.number(workflow["metadata"]["uid"])
            after = stored_once(state.api[number], age_of(state.api[number], workflow), events.GivenBack())
            return with_stream(with_versions(state, number, after), index, stream) if after is not None else None
        case ClaimAndSend(workflow):
            return claim(state, index, stream, workflow, events.Dispatched())
        case Recall():
            return ended(state, index, stream)
        case _:  # it may have learnt something
            before = state.servers[index]
            return with_stream(state, index, stream) if before is None or before.view != stream.view else None


def claim(
    state: State, index: int, stream: Stream, workflow: world.Raw, event: events.Dispatched | events.Reclaimed
) -> State | None:
    """CommandStream._dispatch and _send_again, to where the claim is stored."""
    number = world.number(workflow["metadata"]["uid"])
    after = stored_once(state.api[number], age_of(state.api[number], workflow), event)
    if after is None:
        return None
    state = with_versions(state, number, after)
    # What it has written it sees. WorkflowIndex.refresh.
    stream = stream._replace(lag=replaced(stream.lag, number, 0), claimed=number)
    if isinstance(event, events.Dispatched):
        now = status.claim_of(OBJECTS.see(after[-1])["status"])
        stream = stream._replace(claim=now, given=status.given(workflow["status"]))
    return with_stream(state, index, stream)


def age_of(versions: tuple[int, ...], workflow: world.Raw) -> int:
    """How far behind the version is that a move was decided from."""
    return next(
        age
        for age, version in enumerate(reversed(versions))
        if version != GONE and OBJECTS.see(version).get("status") == workflow.get("status")
    )


def commanded(state: State, index: int, stream: Stream, kind: str, workflow: int) -> State:
    """CommandStream._carry_out, to where it has written the command."""
    view = view_after(stream.view, kind, workflow)
    wire = (*stream.wire, (kind, workflow)) if stream.live else ()
    if kind == "start":
        state = given(state, workflow)
    return with_stream(state, index, stream._replace(view=view, wire=wire, claimed=-1, claim="", given=False))


def given(state: State, workflow: int) -> State:
    """A Workflow may have been sent to the agent."""
    return state._replace(sent=state.sent | {workflow})


def forgotten(state: State, index: int, stream: Stream, workflow: int) -> State:
    """Stream.gone. WorkflowServer._workflow_gone has taken it out of the index before, so no older version is seen."""
    last = next((version for version in reversed(state.api[workflow]) if version != GONE), GONE)
    view = view_after(stream.view, "gone", workflow, last)
    return with_stream(state, index, stream._replace(view=view, lag=replaced(stream.lag, workflow, 0)))


def ended(state: State, index: int, stream: Stream) -> State:
    """The stream is over for the server; what was claimed and not sent is taken back. EventStore.take_back."""
    state = with_stream(state, index, None)
    if not stream.claim:
        return state
    after = stored(state.api[stream.claimed], 0, events.Undelivered(stream.claim, stream.given))
    not_at_work(state, stream.claimed, after)
    return with_versions(state, stream.claimed, after)


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
    """Transport._send_ahead: what may be stored before the oldest event is. It stays where it is, because it is unknown
    whether the answer comes; so it may be sent again."""
    oldest, *others = map(EVENTS.see, spool)
    for number, event in zip(spool[1:], others, strict=True):
        if not reorderable(oldest, event):
            return
        yield number


def may_begin(state: State) -> bool:
    """Agent._start_is_acknowledged: before the first action the server has heard of everything.

    The last one waits for that, too, but only for a while. Here that while never ends if it reboots the machine, which
    is a success only to a server that knows of it, and no time at all if it does not.
    """
    agent = state.agent
    if agent.action is None or agent.runs or agent.lost or agent.stopping:
        return False
    workflow, index = agent.action
    pending = any(EVENTS.see(event).workflow_id == uid(workflow) for event in agent.spool)
    return not pending or (index > 0 and not would_reboot(state, agent.action))


def at_its_reboot(state: State) -> bool:
    """Return True if the agent runs an action that reboots the machine."""
    agent = state.agent
    return agent.action is not None and agent.runs and not agent.lost and would_reboot(state, agent.action)


def would_reboot(state: State, action: tuple[int, int]) -> bool:
    """Return True if an action reboots the machine."""
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
            # The write stays: it is unknown whether the command arrived. CommandStream._dispatch.
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
    """The agent's process restarts with its journal. Agent.prepare."""
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

"""What the user, the controllers and the servers may do next in a `world`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tests.unit.workflow import world
from tests.unit.workflow.states import live_of, replaced, spend, with_stream, with_versions
from tests.unit.workflow.table import TERMINAL
from tests.unit.workflow.world import (
    GONE,
    LATE,
    NOW,
    OBJECTS,
    VIEWS,
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
from tink.server.dispatch.decision import AgentView, Claim, GiveBack, Recall, Start, Stop
from tink.workflow import events, guards, status

CLOCKS = ((NOW, ""), (LATE, ", late"))


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
    """Raise ViolationError if a Workflow that the agent runs is said to need nobody to stop it."""
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
    """RebootWatch.opened, of the server with the agent: in time, for every server that waits begins anew then."""
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
                # If it knew, it would have begun anew.
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
        case Claim(workflow):
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

"""The progress of a `world` without further failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.unit.workflow import world
from tests.unit.workflow.moves import (
    accounted,
    action_ended,
    at_its_reboot,
    commanded,
    connected,
    deletions,
    describe,
    ended,
    forgotten,
    knows_of,
    live_of,
    may_begin,
    moved,
    name_of,
    published,
    rebooted_by_its_action,
    received,
    stored_event,
    with_versions,
)
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
)

# --- nothing goes wrong any more -------------------------------------------------------------------


def fair(state: State, *, hangs: bool) -> tuple[str, State] | None:
    """The next step when everybody has their turn and clocks go on; None when all is done. With `hangs`, actions end
    only when they are stopped."""
    if state.ghosts:
        return "a late copy arrives", stored_event(state._replace(ghosts=state.ghosts[1:]), state.ghosts[0], 0)
    for index, stream in enumerate(state.servers):
        if stream is not None and not stream.live:
            return "a dead stream ends", ended(state, index, stream)
    live = live_of(state)
    if live is None:
        return "agent connects", connected(state, 0, (0,) * len(state.api))
    stream = state.servers[live]
    assert stream is not None
    if stream.wire:
        return f"agent receives {stream.wire[0]}", received(state, live, stream)
    if state.agent.spool:
        return f"agent reports {name_of(state.agent.spool[0])}", published(state, 0)
    return fair_decision(state, live, stream, NOW) or fair_action(state, hangs=hangs) or late(state, live, stream)


def late(state: State, live: int, stream: Stream) -> tuple[str, State] | None:
    """Nothing is left but to wait for a clock: for a delay after a rejection to pass, or for a timeout."""
    step = fair_decision(state, live, stream, LATE)
    if step is None:
        return None
    label, after = step
    return (f"{label}, in vain" if label.startswith("controller") else f"{label}, late"), after


def deletion(state: State) -> tuple[str, State] | None:
    """Delete what is still there."""
    for label, after in deletions(state):
        return label, after
    return None


def unattended(state: State, wish: Callable[[State], Iterator[Step]], *, soon: bool) -> State:
    """The machine is away and no clock goes on; `wish` is what the user does to each Workflow, after the servers have
    seen that, or before (`soon`)."""
    if soon:
        state = supervised(wished(state, wish))
    for index, stream in enumerate(state.servers):
        if stream is not None:
            state = ended(state, index, stream)
    return supervised(wished(state, wish))


def wished(state: State, wish: Callable[[State], Iterator[Step]]) -> State:
    while step := next(wish(state), None):
        state = step[1]
    return state


def supervised(state: State) -> State:
    """After all that a controller has to do at once."""
    for workflow, versions in enumerate(state.api):
        after = versions
        while after[-1] != GONE and (writes := controlled(after, 0, NOW)) and writes[-1] != after:
            after = writes[-1]
        state = with_versions(state, workflow, after)
    return state


def fair_decision(state: State, live: int, stream: Stream, now: float) -> tuple[str, State] | None:
    if stream.holds is not None:
        return f"server hears {stream.holds}", accounted(state, live, stream, (0,) * len(state.api))
    if stream.claimed >= 0:
        return f"server sends w{stream.claimed}", commanded(state, live, stream, "start", stream.claimed)
    known = VIEWS.see(stream.view)
    for workflow, versions in enumerate(state.api):
        if versions[-1] == GONE and knows_of(known, workflow):
            return f"server hears that w{workflow} is gone", forgotten(state, live, stream, workflow)
    move, view = look(tuple(v[-1] for v in state.api), stream.view, now)
    after = moved(state, live, stream._replace(view=view), move)
    if after is not None:
        return f"server: {describe(move)}", after
    for workflow, versions in enumerate(state.api):
        if versions[-1] != GONE:
            *_, after_writes = (versions, *controlled(versions, 0, now))
            if after_writes != versions:
                return f"controller looks at w{workflow}", with_versions(state, workflow, after_writes)
    return None


def fair_action(state: State, *, hangs: bool) -> tuple[str, State] | None:
    agent = state.agent
    if may_begin(state):
        return "action begins", world.begun(state)
    if hangs and not agent.stopping and at_its_reboot(state):
        return "action reboots the machine in the end", rebooted_by_its_action(state)
    if agent.action is not None and (agent.stopping or agent.lost or not hangs):
        return "action ends", action_ended(state, succeeded=not agent.stopping and not agent.lost)
    return None


def settled(state: State) -> None:
    """Raise ViolationError unless everything has come to its end."""
    for workflow, versions in enumerate(state.api):
        version = versions[-1]
        if version == GONE:
            continue
        if state_of(version) not in TERMINAL:
            raise ViolationError(f"w{workflow} stays {state_of(version)}")
        metadata = OBJECTS.see(version)["metadata"]
        if metadata.get("finalizers"):
            raise ViolationError(f"w{workflow} keeps its finalizer")
        if metadata.get("deletionTimestamp"):
            raise ViolationError(f"w{workflow} was deleted and stays")
    # Only the agent still knows a deleted Workflow, and it may be one that does not report what it holds.
    if state.agent.action is not None and (state.agent.says or state.api[state.agent.action[0]][-1] != GONE):
        raise ViolationError(f"the agent runs {state.agent.action} for ever")
    if state.agent.spool:
        raise ViolationError("the agent keeps events for ever")

"""States after something: what all moves have in common."""

from __future__ import annotations

from tests.unit.workflow import world
from tests.unit.workflow.world import (
    State,
    Stream,
)

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

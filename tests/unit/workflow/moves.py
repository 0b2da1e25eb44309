"""What may happen next in a `world`."""

from __future__ import annotations

from collections.abc import Iterator

from tests.unit.workflow.agent_moves import of_agent, of_network
from tests.unit.workflow.server_moves import of_controllers, of_server, of_user, of_waiting
from tests.unit.workflow.world import State, Step


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

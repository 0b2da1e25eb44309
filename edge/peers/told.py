"""The other edges in a process that does not speak with them, but is told which live: a worker (`edge.run`)."""

from __future__ import annotations

from collections.abc import Iterable

from edge.peers.membership import Alternative, Membership
from edge.peers.messages import Edge


class ToldEdges:
    """Knows what `told` said last."""

    def __init__(self) -> None:
        self._own: Edge | None = None
        self._membership = Membership("", lambda: 0.0)

    def told(self, own: str, others: Iterable[tuple[str, str]]) -> None:
        """This edge and the living others with where they are asked, as `Peers.known` has it. Raises MessageError."""
        self._own = Edge.read(own.encode()) if own else None
        self._membership = Membership(self._own.id if self._own is not None else "", lambda: 0.0)
        for edge, authority in others:
            self._membership.heard(Edge.read(edge.encode()), authority)

    def alternatives(self, address: str, machine: str) -> tuple[Alternative, ...]:
        """Where `machine`, which has reached this edge at `address`, can go on with another edge."""
        return self._membership.alternatives(self._own, address, machine) if self._own is not None else ()
